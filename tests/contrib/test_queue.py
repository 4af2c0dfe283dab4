"""QueueHandler and ChannelHandler: greenlets of the program take messages and answer them."""

import pytest

from gnsq.contrib.queue import ChannelHandler, QueueHandler
from tests.kit import channel_stats, wait_until


@pytest.mark.parametrize("handler", [QueueHandler, ChannelHandler])
def test_messages_of_a_queue_are_answered_by_other_greenlets(fakensqd, publish, consume, handler):
    messages = handler()
    consume(messages, max_in_flight=2)
    publish(b"1", b"2", b"3")

    got = []
    for _ in range(3):
        message = messages.get(timeout=10)
        got.append(message.body)
        assert not message.has_responded()
        message.finish()

    assert got == [b"1", b"2", b"3"]
    wait_until(lambda: channel_stats(fakensqd, "t", "c")["in_flight_count"] == 0)


def test_iteration_ends_when_the_close_says_so(fakensqd, publish, consume):
    messages = QueueHandler()
    consumer = consume(messages, max_in_flight=2)
    consumer.on_close.connect(lambda consumer: messages.put(StopIteration), weak=False)
    publish(b"1", b"2", b"3")

    got = []
    for message in messages:
        got.append(message.body)
        message.finish()
        if len(got) == 3:
            consumer.close()

    assert got == [b"1", b"2", b"3"]


def test_handlers_wait_while_the_queue_is_full(publish, consume):
    messages = QueueHandler(maxsize=1)
    consumer = consume(messages, max_in_flight=3)
    publish(b"1", b"2", b"3")

    wait_until(lambda: consumer.total_in_flight == 3)
    assert len(messages) == 1
    for _ in range(3):
        messages.get(timeout=10).finish()
