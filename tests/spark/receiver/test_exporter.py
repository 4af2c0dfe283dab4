"""Metrics of receivers for Prometheus."""

from gnsq.spark.receiver.exporter import ReceiverCollector
from tests.spark.helpers import numbered, publish, wait_for


def samples(collector):
    """All values, by tuples of the name and the values of the labels."""
    found = [sample for family in collector.collect() for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in found}


def test_receiver_shows_its_spool_and_the_consumers_of_all_topics(fakensqd, hub, receive):
    for topic in ("clicks", "views"):
        publish(fakensqd, topic, numbered(30))
    receiver = receive(topic="clicks,views")
    wait_for(lambda: receiver.rows == 60)

    found = hub.call(samples, ReceiverCollector(receiver))

    received = ["gnsq_consumer_messages_received_total", "archive", fakensqd.tcp_address]
    assert [found[received[0], topic, *received[1:]] for topic in ("clicks", "views")] == [30, 30]
    assert found["gnsq_receiver_rows_total", "archive"] == 60
    assert found["gnsq_receiver_segments_total", "archive"] == receiver.segments > 0
    assert found["gnsq_receiver_spool_bytes", "archive"] > 0
    assert found["gnsq_receiver_spool_limit_bytes", "archive"] == receiver.options.max_spool_bytes
    states = ("not_finished_total", "spool_full", "spool_failing")
    assert [found[f"gnsq_receiver_{name}", "archive"] for name in states] == [0, 0, 0]


def test_consumers_that_are_gone_keep_their_counters(fakensqd, hub, receive):
    publish(fakensqd, "clicks", numbered(10))
    receiver = receive()
    collector = ReceiverCollector(receiver)
    wait_for(lambda: receiver.rows == 10)
    before = hub.call(samples, collector)

    hub.call(receiver.close)
    receiver.subscriptions._subscriptions.clear()

    after = hub.call(samples, collector)
    received = [key for key in before if key[0] == "gnsq_consumer_messages_received_total"]
    assert sum(after[key] for key in received) == sum(before[key] for key in received) == 10
    assert not [key for key in after if key[0] == "gnsq_consumer_connections"]
