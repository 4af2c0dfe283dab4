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
