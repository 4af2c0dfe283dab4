"""Minutes and hours that pass in no time: our own clients and FakeNsqd in one hub, by one clock."""

import contextlib

import pytest
from gevent.event import Event


@pytest.mark.parametrize(("touches", "lasts"), [(False, 60.0), (True, 900.0)], ids=["alone", "touched"])
def test_message_times_out_after_a_minute_or_if_it_is_touched_a_quarter_of_an_hour(
    nsqd, clock, consume, touches, lasts
):
    attempts, forever = [], Event()

    def handle(consumer, message):
        attempts.append((clock.monotonic(), message.attempts))
        if message.attempts == 1:
            with message.touching() if touches else contextlib.nullcontext():
                forever.wait()

    consume(handle, nsqd.tcp_address, clock=clock, max_in_flight=2)
    nsqd.broker.topics["t"].publish([b"x"], nsqd.now())
    clock.advance(lasts - 0.1)
    assert attempts == [(0.0, 1)]
    clock.advance(0.2)

    assert attempts == [(0.0, 1), (lasts, 2)]
    forever.set()
