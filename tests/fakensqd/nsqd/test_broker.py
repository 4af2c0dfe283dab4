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


def test_first_channel_gets_the_messages_of_the_topic(topic):
    topic.publish([b"a", b"b"], 0.0)
    assert topic.depth == 2

    first = topic.ensure_channel("one", 1.0)
    second = topic.ensure_channel("two", 1.0)
    topic.publish([b"c"], 2.0)

    assert topic.depth == 0
    assert bodies(first) == [b"a", b"b", b"c"]
    assert bodies(second) == [b"c"]


def test_channels_get_copies_with_the_same_id_and_timestamp(topic):
    one, two = topic.ensure_channel("one", 0.0), topic.ensure_channel("two", 0.0)
    topic.publish([b"a"], 0.0)

    (first,) = one.deliver(Reader(), 1, 0.0, 60.0)
    (second,) = two.deliver(Reader(), 1, 0.0, 60.0)

    assert first is not second
    assert (first.id, first.timestamp, first.body) == (second.id, second.timestamp, second.body)
    assert (first.attempts, second.attempts) == (1, 1)


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


def test_paused_topic_keeps_messages_and_its_channels_still_deliver(topic):
    channel = topic.ensure_channel("c", 0.0)
    topic.publish([b"a"], 0.0)

    topic.set_paused(True, 1.0)
    topic.publish([b"b"], 1.0)

    assert (topic.depth, channel.depth) == (1, 1)
    topic.set_paused(False, 2.0)
    assert bodies(channel) == [b"a", b"b"]


def test_topic_that_is_not_started_keeps_messages(topic):
    channel = topic.ensure_channel("c", 0.0)
    topic.set_started(False, 0.0)
    topic.publish([b"a"], 0.0)
    assert (topic.depth, channel.depth) == (1, 0)

    topic.set_started(True, 0.0)

    assert (topic.depth, channel.depth) == (0, 1)


def test_emptied_topic_leaves_the_messages_of_its_channels(topic):
    channel = topic.ensure_channel("c", 0.0)
    topic.publish([b"a"], 0.0)
    topic.set_paused(True, 0.0)
    topic.publish([b"b"], 0.0)

    topic.empty()

    assert (topic.depth, channel.depth) == (0, 1)


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


def test_deleted_topic_closes_the_connections_of_subscribers(broker, topic):
    readers = [Reader(), Reader()]
    for name, reader in zip(("one", "two"), readers, strict=True):
        topic.ensure_channel(name, 0.0).add(reader)

    topic.delete_channel("one")
    assert [reader.calls[-1:] for reader in readers] == [["closed"], []]

    broker.delete_topic("t")
    assert readers[1].calls[-1] == "closed"


def test_deleting_an_unknown_name_raises(broker, topic):
    with pytest.raises(KeyError):
        broker.delete_topic("other")
    with pytest.raises(KeyError):
        topic.delete_channel("other")


def test_ephemeral_channel_is_deleted_with_its_last_subscriber(topic):
    channel = topic.ensure_channel("c#ephemeral", 0.0)
    readers = [Reader(), Reader()]
    for reader in readers:
        channel.add(reader)

    topic.leave_channel(channel, readers[0])
    assert "c#ephemeral" in topic.channels

    topic.leave_channel(channel, readers[1])
    assert topic.channels == {}


def test_ephemeral_topic_is_deleted_with_its_last_channel(broker):
    topic = broker.ensure_topic("t#ephemeral")
    topic.publish([b"a"], 0.0)
    topic.ensure_channel("one", 0.0)
    topic.ensure_channel("two", 0.0)

    topic.delete_channel("one")
    assert broker.topics == {"t#ephemeral": topic}

    topic.delete_channel("two")
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
