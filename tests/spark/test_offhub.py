import threading

import gevent
import pytest

from gnsq.spark.receiver.receiver import BlockingIOThread


@pytest.fixture
def off_hub(hub):
    off_hub = BlockingIOThread()
    yield off_hub
    hub.call(off_hub.close)


def test_hub_goes_on_meanwhile(hub, off_hub):
    go_on = threading.Event()

    def call():
        gevent.spawn_later(0.01, go_on.set)
        return off_hub.call(go_on.wait, 10)

    assert hub.call(call)


def test_what_is_raised_comes_back_and_nothing_is_printed(hub, off_hub, capfd):
    with pytest.raises(ZeroDivisionError):
        hub.call(off_hub.call, divmod, 1, 0)

    assert hub.call(off_hub.call, divmod, 7, 2) == (3, 1)
    assert capfd.readouterr().err == ""


def test_calls_run_one_after_the_other(hub, off_hub):
    def call():
        numbers = []
        gevent.joinall([gevent.spawn(off_hub.call, numbers.append, number) for number in range(20)])
        return numbers

    assert hub.call(call) == list(range(20))


def test_close_twice(hub):
    hub.call(BlockingIOThread().close)
