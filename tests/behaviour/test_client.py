"""The client with any nsqd."""

import time

from gnsq import Consumer
from tests.kit import channel_stats, wait_until


def test_deferred_message_is_delivered_after_its_delay(producer, nsqd, topic):
    got = []
    # A channel older than 5 s is looked at every 0.1 s, a younger one up to 5 s late.
    with Consumer(topic, "c", nsqd.tcp_address, message_handler=lambda c, message: got.append(time.time())):
        published = time.time()
        producer.publish(topic, b"x", defer=300)
        wait_until(lambda: got, limit=15)

    assert got[0] - published >= 0.3


def test_ten_thousand_messages_are_all_consumed(producer, nsqd, topic):
    got = []
    with Consumer(
        topic,
        "c",
        nsqd.tcp_address,
        message_handler=lambda c, message: got.append(message.body),
        max_in_flight=500,
    ):
        for start in range(0, 10_000, 500):
            producer.multipublish(topic, [b"%d" % number for number in range(start, start + 500)])
        wait_until(lambda: len(got) == 10_000, limit=30)

    assert {int(body) for body in got} == set(range(10_000))
    stats = channel_stats(nsqd, topic, "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 0)


def test_closing_in_the_middle_requeues_nothing(producer, nsqd, topic):
    producer.multipublish(topic, [b"%d" % number for number in range(1000)])
    done = []

    def handle(consumer, message):
        done.append(message)
        if len(done) == 300:
            consumer.close()

    Consumer(topic, "c", nsqd.tcp_address, message_handler=handle, max_in_flight=50).start()

    wait_until(lambda: channel_stats(nsqd, topic, "c")["in_flight_count"] == 0)
    assert channel_stats(nsqd, topic, "c")["depth"] == 1000 - len(done)


def test_requeued_message_is_delivered_again(producer, nsqd, topic):
    attempts = []

    def handle(consumer, message):
        attempts.append(message.attempts)
        if message.attempts < 3:
            message.requeue(0)

    producer.publish(topic, b"x")
    with Consumer(topic, "c", nsqd.tcp_address, message_handler=handle, backoff=0.05):
        wait_until(lambda: len(attempts) == 3)

    assert attempts == [1, 2, 3]


def test_message_that_timed_out_is_delivered_again(producer, nsqd, topic):
    attempts = []

    def handle(consumer, message):
        message.enable_async()
        attempts.append(message.attempts)
        if message.attempts == 2:
            message.finish()

    producer.publish(topic, b"x")
    with Consumer(topic, "c", nsqd.tcp_address, message_handler=handle, msg_timeout=1, close_timeout=0.1):
        wait_until(lambda: len(attempts) == 2, limit=20)

    assert channel_stats(nsqd, topic, "c")["timeout_count"] == 1
