"""Servers are killed, stopped and started under load: no confirmed message is lost."""

import contextlib
import time

import gevent
import pytest
from gevent.event import Event

from fakensqd.real import RealNsqd
from gnsq import Consumer, NsqdHTTPClient, Producer
from integration.servers import needs_programs, running
from tests.kit import channel_stats, wait_until

pytestmark = [
    pytest.mark.real,
    needs_programs,
]

LIMIT = 40.0
# Options for reconnecting at once.
EAGER = {"reconnect_initial": 0.05, "reconnect_maximum": 0.2}


@contextlib.contextmanager
def load(account, producer, topic, *, publishers, each):
    """Publish in several greenlets, and wait until all messages are confirmed."""

    def publish(number):
        for index in range(each):
            account.publish(producer, topic, b"%d-%d" % (number, index))

    jobs = [gevent.spawn(publish, number) for number in range(publishers)]
    try:
        yield
        gevent.joinall(jobs, timeout=LIMIT, raise_error=True)
        assert all(job.ready() for job in jobs), "publishing has not come to its end"
    finally:
        gevent.killall(jobs)


def processing(account, topic, nsqds=(), **options):
    return Consumer(topic, "c", nsqds, message_handler=account.process, **{"max_in_flight": 50, **EAGER, **options})


@pytest.mark.since("1.3.0")  # earlier versions lose messages after the last sync
def test_nsqd_that_is_killed_in_mid_stream_has_all_it_confirmed(account, topic):
    # Without a channel: nsqd loses messages that are in flight or between a topic and a channel.
    with running("nsqd", "--mem-queue-size=0", "--sync-every=1") as nsqd:
        with (
            Producer(nsqd.tcp_address, allow_duplicates=True, **EAGER) as producer,
            load(account, producer, topic, publishers=5, each=200),
        ):
            for confirmed in (150, 400, 700):
                wait_until(lambda confirmed=confirmed: len(account.confirmed) > confirmed, LIMIT)
                nsqd.kill()
                nsqd.start()
        with processing(account, topic, nsqd.tcp_address):
            wait_until(lambda: not account.lost, LIMIT)

    assert len(account.confirmed) == 1000


def test_consumer_does_not_starve_though_nsqd_counts_a_message_twice(topic, tmp_path, monkeypatch):
    """As after a kill, nsqd reads a message twice. It takes only one of two answers, and with RDY 1 sends no other."""
    monkeypatch.setattr("gnsq.nsqd.connection.MISCOUNT_LIMIT", 1.0)
    got, both = [], Event()

    def handle(consumer, message):
        got.append(message.body)
        if len(got) == 2:
            both.set()
        both.wait()

    with RealNsqd(data_path=str(tmp_path), mem_queue_size=0) as nsqd:
        with NsqdHTTPClient.from_url(nsqd.http_address) as client:
            client.create_topic(topic)
            client.create_channel(topic, "c")
            client.publish(topic, b"first")
        wait_until(lambda: channel_stats(nsqd, topic, "c")["depth"] == 1)
        nsqd.stop()
        queue = tmp_path / f"{topic}:c.diskqueue"
        data = queue.with_suffix(".diskqueue.000000.dat")
        data.write_bytes(data.read_bytes() * 2)
        queue.with_suffix(".diskqueue.meta.dat").write_text(f"2\n0,0\n0,{data.stat().st_size}\n")
        nsqd.start()
        options = {"message_handler": handle, "max_in_flight": 2, "heartbeat_interval": 1, **EAGER}
        with Consumer(topic, "c", nsqd.tcp_address, **options) as consumer:
            wait_until(lambda: consumer.stats().counts.timed_out == 1)
            consumer.max_in_flight = 1
            wait_until(lambda: channel_stats(nsqd, topic, "c")["clients"][0]["ready_count"] == 1)
            with Producer(nsqd.tcp_address) as producer:
                producer.publish(topic, b"second")
            wait_until(lambda: len(got) == 3, LIMIT)

    assert got == [b"first", b"first", b"second"]


def test_long_and_deferred_messages_are_worked_on_once(account, topic):
    due, early = {}, []

    def handle(consumer, message):
        if message.body in due:
            early.append(time.time() < due[message.body])
        else:
            # Longer than msg_timeout and than the interval in which nsqd finds new channels.
            with message.touching():
                gevent.sleep(7)
        account.process(consumer, message)

    with running("nsqd") as nsqd:
        with (
            Producer(nsqd.tcp_address) as producer,
            Consumer(topic, "c", nsqd.tcp_address, message_handler=handle, max_in_flight=40, msg_timeout=1),
        ):
            for number in range(10):
                account.publish(producer, topic, b"long %d" % number)
                body = b"deferred %d" % number
                due[body] = time.time() + 0.2 * number
                account.publish(producer, topic, body, defer=200 * number)
            wait_until(lambda: not account.lost, LIMIT)
            wait_until(lambda: channel_stats(nsqd, topic, "c")["in_flight_count"] == 0)
        stats = channel_stats(nsqd, topic, "c")

    assert early == [False] * 10
    assert (stats["timeout_count"], stats["requeue_count"], account.duplicated) == (0, 0, 0)


def test_a_hundred_consumers_of_ten_nsqds(account, topic):
    with contextlib.ExitStack() as stack:
        nsqds = [stack.enter_context(running("nsqd")) for _ in range(10)]
        addresses = [nsqd.tcp_address for nsqd in nsqds]
        for _ in range(100):
            stack.enter_context(processing(account, topic, addresses, max_in_flight=20))
        for nsqd in nsqds:
            wait_until(lambda nsqd=nsqd: len(channel_stats(nsqd, topic, "c")["clients"]) == 100, LIMIT)
        producer = stack.enter_context(Producer(addresses))
        with load(account, producer, topic, publishers=50, each=100):
            pass
        wait_until(lambda: not account.lost, LIMIT)

    assert len(account.confirmed) == 5000
    assert account.duplicated == 0
