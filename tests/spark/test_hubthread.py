import threading

import gevent
import pytest

from gnsq.spark.hubthread import HubThread


def test_call_runs_on_the_hubs_thread(hub):
    assert hub.call(threading.get_ident) != threading.get_ident()


def test_call_gives_back_what_was_returned(hub):
    assert hub.call(lambda a, b: a + b, 1, b=2) == 3


def test_call_raises_what_was_raised(hub):
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        hub.call(fail)
    assert hub.call(lambda: 1) == 1


def test_greenlets_go_on_between_calls(hub):
    done = threading.Event()

    hub.call(lambda: gevent.spawn_later(0.01, done.set))

    assert done.wait(5)


def test_stop_ends_the_thread_and_may_be_called_twice():
    before = threading.active_count()
    hub = HubThread("test")

    hub.stop()
    hub.stop()

    assert threading.active_count() == before


def test_call_after_stop_raises():
    hub = HubThread("test")
    hub.stop()

    with pytest.raises(RuntimeError, match="stopped"):
        hub.call(lambda: None)
