"""StatsCollector: names and labels, counters that never fall, and histograms."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fakensqd import on
from fakensqd.faults import disconnect
from gnsq import Consumer, NsqdHTTPClient, Producer
from gnsq.contrib.prometheus import NsqdCollector, StatsCollector
from gnsq.errors import NSQUnknown
from gnsq.stats import ConnectionStats, Histogram, MessageCounts, ProducerConnectionStats
from tests.kit import peer, wait_until

OWN = {"topic": "t", "channel": "c"}


class Source:
    """A source whose statistics are those of a client, but for what the test sets."""

    def __init__(self, client, **changes):
        client.close()
        self.now = replace(client.stats(), latency=Histogram((0.1, 1.0), (0, 0, 0), 0.0))
        self.change(**changes)

    def change(self, **changes):
        self.now = replace(self.now, **changes)

    def stats(self):
        return self.now


def subscriber(**changes):
    return Source(Consumer("t", "c", "host", max_in_flight=100), **changes)


def publisher(**changes):
    return Source(Producer("host"), **changes)


def connection(address, rdy=0, in_flight=0):
    return ConnectionStats(address, "subscribed", "1.3.0", rdy, in_flight, None, MessageCounts())


def scrape(collector):
    """Return all values by name and labels."""
    registry = CollectorRegistry()
    registry.register(collector)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def key(name, **labels):
    return f"gnsq_consumer_{name}", tuple(sorted({**OWN, **labels}.items()))


def finished(values):
    return {
        dict(labels)["nsqd"]: value
        for (name, labels), value in values.items()
        if name == "gnsq_consumer_messages_finished_total"
    }


def test_each_nsqd_has_its_counters_and_gauges_and_the_latency_cumulated_buckets():
    source = subscriber(
        connections=(connection("a:1", rdy=50, in_flight=3), connection("b:2")),
        counts_by_nsqd={"a:1": MessageCounts(received=9, finished=5, requeued=1), "c:3": MessageCounts(timed_out=2)},
        latency=Histogram((0.1, 1.0), (3, 2, 1), 4.5),
    )

    values = scrape(StatsCollector(source))

    assert values[key("messages_received_total", nsqd="a:1")] == 9
    assert values[key("messages_finished_total", nsqd="a:1")] == 5
    assert values[key("messages_requeued_total", nsqd="a:1")] == 1
    assert values[key("messages_touched_total", nsqd="a:1")] == 0
    assert values[key("messages_timed_out_total", nsqd="c:3")] == 2
    assert values[key("rdy", nsqd="a:1")] == 50
    assert values[key("messages_in_flight", nsqd="a:1")] == 3
    assert values[key("connections")] == 2
    name = "message_latency_seconds"
    buckets = {bound: values[key(f"{name}_bucket", le=bound)] for bound in ("0.1", "1.0", "+Inf")}
    assert buckets == {"0.1": 3, "1.0": 5, "+Inf": 6}
    assert (values[key(f"{name}_count")], values[key(f"{name}_sum")]) == (6, 4.5)


def test_consumer_has_its_counters_and_gauges():
    source = subscriber(
        given_up=1,
        failed=2,
        waiting=3,
        handling=4,
        handlers_overdue=2,
        handlers_timed_out=6,
        async_timed_out=7,
        backoff="waiting",
        backoff_failures=5,
        backoff_remaining=1.5,
        failures={"c:3": "refused"},
        lookupd_failures={"d:4": "NOT_FOUND"},
    )

    values = scrape(StatsCollector(source))

    assert values[key("messages_given_up_total")] == 1
    assert values[key("handler_failures_total")] == 2
    assert values[key("messages_waiting")] == 3
    assert values[key("handlers_running")] == 4
    assert values[key("handlers_overdue")] == 2
    assert values[key("handlers_timed_out_total")] == 6
    assert values[key("async_timed_out_total")] == 7
    assert values[key("max_in_flight")] == 100
    assert values[key("unreachable_nsqds")] == 1
    assert values[key("failing_lookupds")] == 1
    assert values[key("backoff_failures")] == 5
    assert values[key("backoff_remaining_seconds")] == 1.5
    states = {state: values[key("backoff_state", state=state)] for state in ("off", "waiting", "probing")}
    assert states == {"off": 0, "waiting": 1, "probing": 0}


def test_counters_of_an_nsqd_continue_with_the_next_connection(fakensqd, publish, consume):
    consumer = consume(lambda consumer, message: None, reconnect_initial=0.01)
    publish(b"x")
    wait_until(lambda: consumer.stats().counts.finished == 1)
    fakensqd.add(on.command("FIN"), disconnect())
    publish(b"y", b"z")
    wait_until(lambda: consumer.stats().counts.finished == 3)
    with Producer(fakensqd.tcp_address) as producer:
        producer.publish("u", b"x")
        fakensqd.add(on.reply("PUB"), disconnect())
        with pytest.raises(NSQUnknown):
            producer.publish("u", b"y")
        producer.publish("u", b"z")

        values = scrape(StatsCollector(consumer, producer))

    assert finished(values) == {fakensqd.tcp_address: 3}
    assert confirmed(values) == {fakensqd.tcp_address: 2}


def test_consumers_of_one_channel_are_added_up():
    busy = subscriber(failed=2, backoff="waiting", backoff_failures=1, backoff_remaining=3.0, waiting=1)
    other = subscriber(failed=3, backoff="waiting", backoff_failures=4, backoff_remaining=2.0, waiting=2)

    values = scrape(StatsCollector(busy, other))

    assert values[key("handler_failures_total")] == 5
    assert values[key("messages_waiting")] == 3
    assert values[key("max_in_flight")] == 200
    assert values[key("backoff_state", state="waiting")] == 2
    assert values[key("backoff_failures")] == 4
    assert values[key("backoff_remaining_seconds")] == 3.0


def test_removed_consumer_leaves_its_counters():
    source = subscriber(counts_by_nsqd={"a:1": MessageCounts(finished=1)})
    other = subscriber(counts_by_nsqd={"a:1": MessageCounts(finished=2)}, max_in_flight=5)
    collector = StatsCollector(source, other)
    collector.add(other)  # counts once

    source.change(counts_by_nsqd={"a:1": MessageCounts(finished=4)}, latency=Histogram((0.1, 1.0), (1, 0, 0), 0.05))
    collector.remove(source)
    collector.remove(source)
    source.change(counts_by_nsqd={"a:1": MessageCounts(finished=100)})
    values = scrape(collector)

    assert finished(values) == {"a:1": 6}
    assert values[key("message_latency_seconds_count")] == 1
    assert values[key("max_in_flight")] == 5


# --- producers --------------------------------------------------------------------------------------------------------


def produced(name, **labels):
    return f"gnsq_producer_{name}", tuple(sorted(labels.items()))


def confirmed(values):
    return {
        dict(labels)["nsqd"]: value
        for (name, labels), value in values.items()
        if name == "gnsq_producer_nsqd_messages_confirmed_total"
    }


def test_producer_has_counters_of_outcomes_and_gauges():
    producer = publisher(
        confirmed=6,
        refused=1,
        not_sent=2,
        unknown=3,
        retried=4,
        possibly_duplicated=5,
        pending=7,
        pending_bytes=8,
        connections=(
            ProducerConnectionStats("a:1", 2, False),
            ProducerConnectionStats("b:2", 3, True),
            ProducerConnectionStats("a:1", 4, False),
        ),
        confirmed_by_nsqd={"a:1": 5, "c:3": 1},
        failures={"c:3": "refused"},
        lookupd_failures={"d:4": "NOT_FOUND", "e:5": "NOT_FOUND"},
    )

    values = scrape(StatsCollector(producer))

    outcomes = ("confirmed", "refused", "not_sent", "unknown", "retried", "possibly_duplicated")
    assert [values[produced(f"messages_{name}_total")] for name in outcomes] == [6, 1, 2, 3, 4, 5]
    gauges = ("pending", "pending_bytes", "connections", "unreachable_nsqds", "failing_lookupds")
    assert [values[produced(name)] for name in gauges] == [7, 8, 3, 1, 2]
    assert confirmed(values) == {"a:1": 5, "c:3": 1}
    assert [values[produced("nsqd_pending", nsqd=nsqd)] for nsqd in ("a:1", "b:2")] == [6, 3]
    assert [values[produced("stalled_connections", nsqd=nsqd)] for nsqd in ("a:1", "b:2")] == [0, 1]


# --- nsqds


def nsqd_values(collector, name):
    return {
        tuple(sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
        if sample.name == f"gnsq_{name}"
    }


@pytest.fixture
def collect_nsqds():
    made = []

    def make(**addresses):
        made.append(NsqdCollector(**addresses))
        return made[-1]

    yield make
    for collector in made:
        collector.close()


def test_nsqd_collector_has_depths_of_all_nsqds_of_an_nsqlookupd(fakecluster, collect_nsqds):
    first, second = fakecluster.nsqds
    first.publish("t", b"1", b"2", b"3")
    # Another topic: an nsqd that makes a topic asks the nsqlookupd for its channels.
    second.publish("u", b"4")
    NsqdHTTPClient.from_url(first.http_address).create_channel("t", "c")
    collector = collect_nsqds(lookupd_http_addresses=fakecluster.lookupd_http_addresses)

    depths = nsqd_values(collector, "nsqd_channel_depth")

    assert depths == {(first.http_address, "t", "c"): 3}
    assert nsqd_values(collector, "nsqd_topic_depth") == {
        (first.http_address, "t"): 0,
        (second.http_address, "u"): 1,
    }
    assert nsqd_values(collector, "nsqd_topic_messages_total")[second.http_address, "u"] == 1
    assert set(nsqd_values(collector, "nsqd_up").values()) == {1}
    assert set(nsqd_values(collector, "nsqlookupd_up").values()) == {1}


def test_nsqd_collector_counts_clients_and_leaves_out_ephemeral_names(fakensqd, consume, collect_nsqds):
    fakensqd.publish("t#ephemeral", b"1")
    NsqdHTTPClient.from_url(fakensqd.http_address).create_topic("t")
    NsqdHTTPClient.from_url(fakensqd.http_address).create_channel("t", "c#ephemeral")
    consume(lambda consumer, message: None)
    collector = collect_nsqds(nsqd_http_addresses=fakensqd.http_address)

    clients = nsqd_values(collector, "nsqd_channel_clients")

    assert clients == {(fakensqd.http_address, "t", "c"): 1}
    assert list(nsqd_values(collector, "nsqd_topic_depth")) == [(fakensqd.http_address, "t")]


def test_nsqd_collector_shows_another_server_as_down_and_the_nsqds_nevertheless(fakensqd, collect_nsqds):
    body = b'{"topics": [{"topic_name": "t", "depth": "many", "channels": []}]}'
    json = b"Content-Type: application/json"

    def answer(connection):
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\n%b\r\nContent-Length: %d\r\n\r\n%b" % (json, len(body), body))

    with peer(answer) as other:
        collector = collect_nsqds(nsqd_http_addresses=[fakensqd.http_address, other])

        up = nsqd_values(collector, "nsqd_up")

    assert up == {(fakensqd.http_address,): 1, (other,): 0}


def test_nsqd_collector_needs_an_address():
    with pytest.raises(ValueError, match="no address: give nsqd_http_addresses"):
        NsqdCollector()
