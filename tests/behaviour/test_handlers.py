"""Messages whose handlers fail, hang or do not run, with any nsqd."""

import logging

import pytest
from gevent.event import Event

from gnsq import Consumer
from tests.kit import channel_stats, wait_until


@pytest.fixture
def consume(nsqd, topic):
    """Start consumers of the topic that are closed at the end."""
    made = []

    def start(handler, **options):
        consumer = Consumer(topic, "c", nsqd.tcp_address, message_handler=handler, **options)
        made.append(consumer)
        consumer.start(block=False)
        return consumer

    yield start
    for consumer in made:
        consumer.close(timeout=0.1)


def warnings(caplog, text):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING and text in record.message]


def test_message_requeued_without_a_delay_is_deferred_by_nsqd(producer, nsqd, topic, consume):
    consume(lambda _, message: message.requeue(backoff=False), requeue_delay=60_000)
    producer.publish(topic, b"x")

    wait_until(lambda: channel_stats(nsqd, topic, "c")["deferred_count"] == 1)


def test_handler_whose_message_times_out_is_logged_and_counted(producer, nsqd, topic, consume, caplog):
    release = Event()
    attempts = []

    def handle(consumer, message):
        attempts.append(message.attempts)
        if message.attempts == 1:
            release.wait()

    consumer = consume(handle, max_in_flight=2, msg_timeout=1.0)
    producer.publish(topic, b"x")
    wait_until(lambda: consumer.stats().handlers_timed_out)

    assert consumer.stats().handlers_overdue == 1
    (line,) = warnings(caplog, "its handler has run")
    assert f"{__file__}:" in line
    wait_until(lambda: attempts == [1, 2])
    release.set()
    wait_until(lambda: consumer.stats().handlers_overdue == 0)
