"""stats() and is_healthy: what an operator asks."""

import pytest
from gevent.event import Event

from fakensqd import FakeCluster
from gnsq import Consumer, LookupdClient, NsqdHTTPClient
from gnsq.errors import NSQRequeueMessage
from gnsq.stats import Histogram
from tests.helpers import wait_until


def test_counts_are_those_of_all_connections_since_the_start(nsqd, clock, publish, started):
    def handle(consumer, message):
        message.touch()
        if message.body == b"again" and message.attempts == 1:
            raise NSQRequeueMessage(backoff=False)

    consumer = started(handle, nsqd, requeue_delay=0, reconnect_initial=1.0)
    publish(nsqd, b"1")
    publish(nsqd, b"again")
    nsqd.restart()
    clock.advance(2.0)
    publish(nsqd, b"2")
    clock.advance(1.0)

    counts = consumer.stats().counts
    assert (counts.received, counts.finished, counts.requeued, counts.touched) == (4, 3, 1, 4)
    (connection,) = consumer.stats().connections
    assert (connection.address, connection.state, connection.version) == (nsqd.tcp_address, "subscribed", "1.3.0")
    assert (connection.rdy, connection.in_flight, connection.counts.received) == (1, 0, 1)
    assert connection.idle == pytest.approx(1.0)
    assert connection.msg_timeout == 60.0


def test_stats_count_waiting_and_handled_messages(nsqd, clock, publish, started):
    release = Event()
    consumer = started(lambda _, message: release.wait(), nsqd, max_in_flight=4, concurrency=1)
    publish(nsqd, b"0")
    publish(nsqd, b"1", b"2", b"3")

    stats = consumer.stats()
    assert (stats.state, stats.handling, stats.waiting, stats.in_flight, stats.rdy) == ("running", 1, 3, 4, 4)
    release.set()


def test_latency_is_from_arrival_to_answer(nsqd, clock, publish, started):
    held = []

    def handle(consumer, message):
        if message.body == b"async":
            message.enable_async()
            held.append(message)
        elif message.body == b"slow":
            clock.sleep(3.0)

    consumer = started(handle, nsqd, max_in_flight=10)
    publish(nsqd, b"quick")
    publish(nsqd, *[b"quick"] * 5, b"slow", b"async")
    clock.advance(20.0)
    held[0].finish()

    latency = consumer.stats().latency
    assert latency.count == 8
    assert latency.total == pytest.approx(23.0)
    assert latency.quantile(0.5) == 0.001
    assert latency.quantile(0.8) == 4.096
    assert latency.quantile(1.0) == 32.768


def test_empty_histogram_has_no_quantile():
    empty = Histogram((1.0, 2.0), (0, 0, 0), 0.0)

    assert (empty.count, empty.quantile(0.5)) == (0, None)


def test_quantile_beyond_the_last_bound_is_unknown():
    assert Histogram((1.0,), (1, 2), 9.5).quantile(1.0) == float("inf")


def test_failing_nsqds_are_named(nsqd, clock, started):
    nsqd.down()
    consumer = started(lambda _, message: None, nsqd)

    assert "Connection refused" in consumer.stats().failures[nsqd.tcp_address]
    assert not consumer.is_healthy
    nsqd.up()
    clock.advance(10.0)
    assert consumer.stats().failures == {}
    assert consumer.is_healthy


def test_consumer_is_healthy_while_nsqlookupd_knows_no_nsqd_of_its_topic():
    with FakeCluster(nsqds=1, lookupds=1, threaded=True) as cluster:
        addresses = [lookupd.http_address for lookupd in cluster.lookupds]
        consumer = Consumer("t", "c", lookupd_http_addresses=addresses, message_handler=lambda _, message: None)
        assert not consumer.is_healthy
        with consumer:
            assert consumer.is_healthy
        assert not consumer.is_healthy


def test_consumer_without_an_answer_of_nsqlookupd_is_not_healthy():
    with Consumer("t", "c", lookupd_http_addresses="127.0.0.1:1", message_handler=lambda _, message: None) as consumer:
        assert not consumer.is_healthy


def test_consumer_whose_nsqds_all_fail_is_not_healthy_though_nsqlookupd_answers():
    with FakeCluster(nsqds=1, lookupds=1, threaded=True) as cluster:
        (nsqd,), (lookupd,) = cluster.nsqds, cluster.lookupds
        NsqdHTTPClient.from_url(nsqd.http_address).create_topic("t")
        client = LookupdClient.from_url(lookupd.http_address)
        wait_until(lambda: client.lookup("t")["producers"])
        consumer = Consumer(
            "t",
            "c",
            nsqd.tcp_address,
            lookupd_http_addresses=lookupd.http_address,
            message_handler=lambda _, message: None,
        )
        nsqd.down()
        with consumer:
            assert not consumer.is_healthy
        nsqd.up()
