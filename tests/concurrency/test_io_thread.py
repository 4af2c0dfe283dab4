import threading

import gevent
import pytest

from gnsq.concurrency.hub_thread import HubThread
from gnsq.concurrency.io_thread import BlockingIOThread


@pytest.fixture
def hub():
    with HubThread("test") as hub:
        yield hub


@pytest.fixture
def io_thread(hub):
    io_thread = hub.call(BlockingIOThread)
    yield io_thread
    hub.call(io_thread.close)


def test_hub_runs_during_a_blocking_call(hub, io_thread):
    go_on = threading.Event()

    def call():
        gevent.spawn_later(0.01, go_on.set)
        return io_thread.call(go_on.wait, 10)

    assert hub.call(call)


def test_exception_of_a_blocking_call_is_raised_and_not_printed(hub, io_thread, capfd):
    with pytest.raises(ZeroDivisionError):
        hub.call(io_thread.call, divmod, 1, 0)

    assert hub.call(io_thread.call, divmod, 7, 2) == (3, 1)
    assert capfd.readouterr().err == ""


def test_panic_in_a_blocking_call_is_raised_as_an_exception(hub, io_thread):
    class PanicError(BaseException):
        """As the one that libraries in Rust raise."""

    def panic():
        raise PanicError("index out of bounds")

    with pytest.raises(RuntimeError, match=r"PanicError.*index out of bounds"):
        hub.call(io_thread.call, panic)


def test_blocking_calls_run_one_after_the_other(hub, io_thread):
    def call():
        numbers = []
        gevent.joinall([gevent.spawn(io_thread.call, numbers.append, number) for number in range(20)])
        return numbers

    assert hub.call(call) == list(range(20))
