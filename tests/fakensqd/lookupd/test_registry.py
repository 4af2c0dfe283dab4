"""Registrations of nsqlookupd, as far as recorded sessions do not have them: of two nsqds, or again."""

import pytest

from fakensqd.lookupd.registry import Key, Peer, Registry


def peer(number=1):
    return Peer(f"127.0.0.1:{number}", "host", "h", 4150 + number, 5150 + number, "1.3.0", 0.0)


@pytest.fixture
def registry():
    return Registry()


def test_unregistering_an_unknown_name_does_nothing(registry):
    registry.unregister(peer(), "t", "c")
    registry.unregister(peer(), "t", "")

    assert registry.producers_by_key == {}


@pytest.mark.parametrize(("topic", "channel"), [("t#ephemeral", ""), ("t", "c#ephemeral")])
def test_ephemeral_names_are_deleted_with_their_last_producer(registry, topic, channel):
    one, two = peer(1), peer(2)
    key = Key("channel" if channel else "topic", topic, channel)
    for each in (one, two):
        registry.register(each, topic, channel)

    registry.unregister(one, topic, channel)
    assert registry.find(key)

    registry.unregister(two, topic, channel)
    assert not registry.find(key)


def test_lost_connection_leaves_even_ephemeral_names(registry):
    registry.connect(peer())
    registry.register(peer(), "t#ephemeral", "")

    registry.disconnect(peer())

    assert registry.producers_by_key == {Key("client"): {}, Key("topic", "t#ephemeral"): {}}


def test_tombstone_is_for_one_producer_and_ends_only_by_unregistering(registry):
    for each in (peer(1), peer(2)):
        registry.register(each, "t", "")
    registry.tombstone("t", "host:5151", 10.0)

    registry.register(peer(1), "t", "")
    assert [producer.tombstoned_at for producer in registry.producers(Key("topic", "t"))] == [10.0, None]

    registry.unregister(peer(1), "t", "")
    registry.register(peer(1), "t", "")
    assert [producer.tombstoned_at for producer in registry.producers(Key("topic", "t"))] == [None, None]
