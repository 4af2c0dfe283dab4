"""Registrations of nsqlookupd: names, producers, tombstones."""

import pytest

from fakensqd.lookupd.registry import Key, Peer, Registry


def peer(number=1):
    return Peer(f"127.0.0.1:{number}", "host", "h", 4150 + number, 5150 + number, "1.3.0", 0.0)


@pytest.fixture
def registry():
    return Registry()


def topics(registry):
    return [key.topic for key in registry.find(Key("topic", "*"))]


def producers(registry, topic):
    return [producer.peer.id for producer in registry.producers(Key("topic", topic))]


def test_channel_is_registered_with_its_topic(registry):
    one = peer()
    registry.register(one, "t", "c")

    assert topics(registry) == ["t"]
    assert registry.find(Key("channel", "t", "*")) == [Key("channel", "t", "c")]
    assert producers(registry, "t") == [one.id]
    assert [name for name, _ in registry.topics_of(one)] == ["t"]


def test_unregistered_channel_leaves_its_topic(registry):
    one = peer()
    registry.register(one, "t", "c")

    registry.unregister(one, "t", "c")

    assert producers(registry, "t") == [one.id]
    assert registry.producers(Key("channel", "t", "c")) == []
    assert registry.find(Key("channel", "t", "c"))


def test_unregistered_topic_unregisters_its_channels(registry):
    one, two = peer(1), peer(2)
    registry.register(one, "t", "c")
    registry.register(two, "t", "c")

    registry.unregister(one, "t", "")

    assert producers(registry, "t") == [two.id]
    assert [producer.peer for producer in registry.producers(Key("channel", "t", "c"))] == [two]


def test_unregistering_an_unknown_name_does_nothing(registry):
    registry.unregister(peer(), "t", "c")
    registry.unregister(peer(), "t", "")

    assert registry.producers_by_key == {}


@pytest.mark.parametrize(("topic", "channel"), [("t#ephemeral", ""), ("t", "c#ephemeral")])
def test_ephemeral_names_are_deleted_with_their_last_producer(registry, topic, channel):
    one, two = peer(1), peer(2)
    category = "channel" if channel else "topic"
    for each in (one, two):
        registry.register(each, topic, channel)

    registry.unregister(one, topic, channel)
    assert registry.find(Key(category, topic, channel))

    registry.unregister(two, topic, channel)
    assert not registry.find(Key(category, topic, channel))


def test_lost_connection_leaves_even_ephemeral_names(registry):
    one = peer()
    registry.connect(one)
    registry.register(one, "t#ephemeral", "")

    registry.disconnect(one)

    assert topics(registry) == ["t#ephemeral"]
    assert producers(registry, "t#ephemeral") == []
    assert registry.producers(Key("client")) == []


def test_names_can_be_created_and_deleted(registry):
    registry.create("t", "c")
    registry.create("u")
    assert topics(registry) == ["t", "u"]

    assert registry.forget(Key("topic", "*"))
    assert not registry.forget(Key("topic", "*"))
    assert topics(registry) == []


def test_wildcard_finds_each_producer_once(registry):
    one = peer()
    registry.register(one, "t", "")
    registry.register(one, "u", "")

    assert producers(registry, "*") == [one.id]


def test_tombstone_hides_one_producer_of_one_topic_for_a_time(registry):
    one, two = peer(1), peer(2)
    for each in (one, two):
        registry.register(each, "t", "")
        registry.register(each, "u", "")

    registry.tombstone("t", "host:5151", 10.0)

    hidden = {
        (name, producer.peer.id): producer.tombstoned(20.0, 45.0)
        for each in (one, two)
        for name, producer in registry.topics_of(each)
    }
    assert hidden == {("t", one.id): True, ("u", one.id): False, ("t", two.id): False, ("u", two.id): False}
    (first, _) = registry.producers(Key("topic", "t"))
    assert not first.tombstoned(55.0, 45.0)


def test_tombstone_ends_only_by_unregistering(registry):
    one = peer()
    registry.register(one, "t", "")
    registry.tombstone("t", "host:5151", 10.0)

    registry.register(one, "t", "")
    assert registry.producers(Key("topic", "t"))[0].tombstoned_at == 10.0

    registry.unregister(one, "t", "")
    registry.register(one, "t", "")
    assert registry.producers(Key("topic", "t"))[0].tombstoned_at is None


def test_debug_lists_keys_that_have_producers(registry):
    one = peer()
    registry.connect(one)
    registry.register(one, "t", "c")
    registry.tombstone("t", "host:5151", 2.0)
    registry.create("u")

    document = registry.debug(lambda now: round(now * 10))

    assert list(document) == ["channel:t:c", "client::", "topic:t:"]
    assert document["topic:t:"] == [
        {
            "broadcast_address": "host",
            "hostname": "h",
            "http_port": 5151,
            "id": "127.0.0.1:1",
            "last_update": 0,
            "tcp_port": 4151,
            "tombstoned": True,
            "tombstoned_at": 20,
            "version": "1.3.0",
        }
    ]
    assert document["client::"][0]["tombstoned_at"] == -6795364578871345152
