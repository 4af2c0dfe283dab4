import os
import signal

import pytest

from gnsq.spark.pipeline.process import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_is_a_request(number):
    with StopRequest() as stop:
        assert not stop.asked.is_set()
        os.kill(os.getpid(), number)
        assert stop.asked.wait(5)
        assert stop.asked.is_set()


def test_second_interrupt_is_one():
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked.wait(5)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)

    with StopRequest() as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop.install()

    assert signal.getsignal(signal.SIGTERM) is before
