"""Topics: messages for each channel, new and deleted names, expiry."""

import math

import pytest

from fakensqd.nsqd.broker import Broker, BrokerEvents
from fakensqd.options import NsqdOptions
from tests.fakensqd.nsqd.test_channel import Reader


@pytest.fixture
def events_seen():
    """Events of the broker."""
    return []


@pytest.fixture
def broker(events_seen):
    events = BrokerEvents(
        on_register=lambda topic, channel: events_seen.append(("+", topic, channel)),
        on_unregister=lambda topic, channel: events_seen.append(("-", topic, channel)),
        on_due=lambda when: events_seen.append(("due", when)),
    )
    return Broker(events=events)


@pytest.fixture
def topic(broker):
    return broker.ensure_topic("t")


def bodies(channel, now=0.0):
    return [message.body for message in channel.deliver(Reader(), 1000, now, 60.0)]


def test_timestamps_of_messages_are_wall_clock():
    broker = Broker(epoch_ns=10**18)
    topic = broker.ensure_topic("t")
    channel = topic.ensure_channel("c", 0.0)

    topic.publish([b"a"], 2.5)

    (message,) = channel.deliver(Reader(), 1, 2.5, 60.0)
    assert message.timestamp == 10**18 + 2_500_000_000
    assert int(message.id, 16) >> 22 == (message.timestamp >> 20) - 1288834974288


def test_delay_begins_when_the_channel_gets_the_message(topic):
    topic.publish([b"late"], 0.0, delay=5.0)
    topic.publish([b"now"], 0.0)

    channel = topic.ensure_channel("c", 10.0)

    assert (channel.depth, channel.deferred_count) == (1, 1)
    topic._broker.expire(14.9)
    assert bodies(channel) == [b"now"]
    topic._broker.expire(15.0)
    assert bodies(channel) == [b"late"]


def test_messages_beyond_mem_queue_size_are_on_disk_or_dropped():
    broker = Broker(NsqdOptions(mem_queue_size=2))
    durable, ephemeral = broker.ensure_topic("t"), broker.ensure_topic("t#ephemeral")

    for topic in (durable, ephemeral):
        topic.publish([b"a", b"b", b"c"], 0.0)

    assert (durable.depth, durable.backend_depth) == (3, 1)
    assert (ephemeral.depth, ephemeral.backend_depth) == (2, 0)


# --- names ------------------------------------------------------------------------------------------------------------


def test_broker_events_name_new_and_deleted_topics_and_channels(broker, events_seen):
    topic = broker.ensure_topic("t")
    topic.ensure_channel("c", 0.0)
    topic.ensure_channel("c", 0.0)
    topic.ensure_channel("d", 0.0)
    topic.delete_channel("c")
    broker.delete_topic("t")

    assert events_seen == [
        ("+", "t", None),
        ("+", "t", "c"),
        ("+", "t", "d"),
        ("-", "t", "c"),
        ("-", "t", None),
        ("-", "t", "d"),
    ]
    assert broker.topics == {}


# --- time -------------------------------------------------------------------------------------------------------------


def test_broker_event_names_the_time_of_the_next_expiry(broker, topic, events_seen):
    channel = topic.ensure_channel("c", 0.0)
    topic.publish([b"a", b"b"], 0.0)
    assert broker.due == math.inf

    channel.deliver(Reader(), 1, 0.0, 60.0)
    channel.deliver(Reader(), 1, 1.0, 60.0)
    topic.publish([b"late"], 1.0, delay=5.0)

    assert [event for event in events_seen if event[0] == "due"] == [("due", 60.0), ("due", 6.0)]
    broker.expire(6.0)
    assert broker.due == 60.0
    assert [message.body for message in broker.expire(60.0)] == [b"a"]
    assert broker.due == 61.0
    assert [message.body for message in broker.expire(100.0)] == [b"b"]
    assert broker.due == math.inf
