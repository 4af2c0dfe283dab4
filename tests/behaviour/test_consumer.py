"""A consumer with any nsqd."""

import itertools
import logging

from gevent.event import Event
from gevent.lock import Semaphore

from gnsq import Consumer, NsqdHTTPClient, Producer
from tests.kit import LIMIT, channel_stats, wait_until


def clients(nsqd, topic):
    return channel_stats(nsqd, topic, "c")["clients"]


def test_rdy_is_one_until_the_first_message_and_then_the_share(producer, nsqd, topic):
    with Consumer(topic, "c", nsqd.tcp_address, message_handler=lambda *_, **__: None, max_in_flight=50):
        wait_until(lambda: clients(nsqd, topic)[0]["ready_count"] == 1)
        producer.publish(topic, b"x")

        wait_until(lambda: clients(nsqd, topic)[0]["ready_count"] == 50)


def test_as_many_are_in_flight_as_may_be(producer, nsqd, topic):
    producer.multipublish(topic, [b"x"] * 20)
    running, most, proceed = [], [], Semaphore(0)

    def handle(consumer, message):
        running.append(message)
        most.append(len(running))
        proceed.acquire()
        running.remove(message)

    with Consumer(topic, "c", nsqd.tcp_address, message_handler=handle, max_in_flight=2):
        for left in range(20, 0, -1):
            wait_until(lambda left=left: len(running) == min(2, left))
            proceed.release()
        wait_until(lambda: not running)

    assert max(most) == 2


def test_every_nsqd_is_found_with_one_message_in_flight(start_nsqd, topic):
    nsqds = [start_nsqd() for _ in range(2)]
    for nsqd in nsqds:
        with Producer(nsqd.tcp_address) as producer:
            producer.multipublish(topic, [b"x"] * 3)
    seen = []
    with Consumer(
        topic,
        "c",
        [nsqd.tcp_address for nsqd in nsqds],
        message_handler=lambda c, message: seen.append(message.nsqd),
        low_ready_idle_timeout=0.05,
    ):
        wait_until(lambda: len(seen) == 6)

    assert {nsqd.tcp_address for nsqd in nsqds} == set(seen)


def test_topic_that_no_nsqlookupd_knows_leaves_the_consumer_healthy_and_ready(nsqlookupd, topic, caplog):
    caplog.set_level(logging.INFO)
    options = {
        "lookupd_http_addresses": nsqlookupd.http_address,
        "message_handler": lambda consumer, message: None,
        "lookupd_poll_interval": 0.05,
    }

    with Consumer(topic, "c", **options) as consumer:
        wait_until(lambda: "WARNING" in levels(caplog, f"topic {topic}: the nsqlookupd knows no nsqd with it yet"))

        assert (consumer.is_healthy, consumer.is_ready) == (True, True)
        assert consumer.stats().not_ready == f"http://{nsqlookupd.http_address}/: no nsqd with topic {topic} there"

    assert levels(caplog, f"topic {topic}: the nsqlookupd knows no nsqd with it yet") == ["INFO", "WARNING"]


def test_consumer_connects_once_nsqlookupd_has_named_an_nsqd(start_nsqd, nsqlookupd, topic):
    nsqd = start_nsqd(lookupd_tcp_addresses=(nsqlookupd.tcp_address,))
    options = {
        "lookupd_http_addresses": nsqlookupd.http_address,
        "message_handler": lambda consumer, message: None,
        "lookupd_poll_interval": 0.05,
    }

    with Consumer(topic, "c", **options) as consumer:
        before = consumer.stats().not_ready
        NsqdHTTPClient.from_url(nsqd.http_address).create_topic(topic)
        wait_until(lambda: not consumer.stats().not_ready)

        assert before.endswith(f"no nsqd with topic {topic} there")
        assert (consumer.is_ready, consumer.is_healthy) == (True, True)


def levels(caplog, text):
    """Return the levels of the log lines that have a text."""
    return [record.levelname for record in caplog.records if text in record.getMessage()]


def test_failures_pause_the_consumer_and_successes_end_the_pause(producer, nsqd, topic):
    phases, seen = [], []
    # The first pause is long enough to be seen.
    pauses = itertools.chain([1.0], itertools.repeat(0.05))

    def handle(consumer, message):
        seen.append(message.attempts)
        if message.attempts < 3:
            raise RuntimeError("not yet")

    consumer = Consumer(
        topic,
        "c",
        nsqd.tcp_address,
        message_handler=handle,
        max_in_flight=10,
        requeue_delay=0,
        backoff=lambda failures: next(pauses),
    )
    consumer.on_backoff.connect(lambda _, phase, failures, duration: phases.append(phase), weak=False)
    with consumer:
        producer.publish(topic, b"1")
        wait_until(lambda: consumer.stats().backoff != "off" and clients(nsqd, topic)[0]["ready_count"] == 0)
        producer.multipublish(topic, [b"2", b"3", b"4", b"5"])
        wait_until(lambda: phases[-1] == "end")
        wait_until(lambda: sorted(seen) == [1] * 5 + [2] * 5 + [3] * 5, 20)
        wait_until(lambda: consumer.stats().backoff == "off")
        wait_until(lambda: clients(nsqd, topic)[0]["ready_count"] == 10)


def test_messages_left_at_the_close_deadline_are_requeued_without_a_delay(producer, nsqd, topic):
    forever = Event()
    producer.multipublish(topic, [b"1", b"2", b"3"])
    first = Consumer(
        topic, "c", nsqd.tcp_address, message_handler=lambda *_, **__: forever.wait(), max_in_flight=3, concurrency=1
    )
    first.start(block=False)
    wait_until(lambda: first.total_in_flight)
    first.close(timeout=0.2)

    again = []
    with Consumer(
        topic, "c", nsqd.tcp_address, message_handler=lambda c, message: again.append(message), max_in_flight=3
    ):
        wait_until(lambda: len(again) == 3)
    assert max(message.attempts for message in again) == 2
    forever.set()


def test_log_lines_name_their_consumer_or_producer_from_connecting_to_the_end(nsqd, topic, lines):
    got = Event()
    consumer = Consumer(topic, "c", nsqd.tcp_address, message_handler=lambda consumer, message: got.set())
    with Producer(nsqd.tcp_address, name="orders") as producer:
        producer.publish(topic, b"x")
        consumer.start(block=False)
        assert got.wait(LIMIT)
        consumer.close()
        consumer.join(LIMIT)

    logged = lines()
    for owner in (f"{topic}/c", "orders"):
        assert any(line.startswith(f"{nsqd.tcp_address}: {owner}: connected, nsqd ") for line in logged)
        assert any(line.startswith(f"{owner}: closing, with up to 30 s for ") for line in logged)
        assert f"{owner}: closed; nothing was left" in logged
