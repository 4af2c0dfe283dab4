"""One channel: queue, in flight, deferred, timeouts, subscribers that are woken."""

import pytest

from fakensqd.message import QueuedMessage
from fakensqd.nsqd.broker import Broker


class Reader:
    """A subscriber that records in a list when it is woken. One with the name busy does not deliver at once."""

    def __init__(self, name, woken):
        self.name, self.woken = name, woken

    def wake(self):
        self.woken.append(self.name)
        return self.name != "busy"

    def message_timed_out(self):
        pass


def message(number):
    return QueuedMessage(b"%016d" % number, b"body %d" % number, 1)


def ids(messages):
    return [int(item.id) for item in messages]


def put(channel, *numbers):
    channel.put([message(number) for number in numbers])


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def channel(broker):
    return broker.ensure_topic("t").ensure_channel("c", 0.0)


@pytest.fixture
def reader(channel):
    subscriber = Reader("reader", [])
    channel.add(subscriber)
    return subscriber


def test_deferred_messages_are_queued_in_the_order_of_their_times(channel, reader):
    channel.defer([message(1)], 5.0, 0.0)
    channel.defer([message(2)], 1.0, 0.0)
    channel.defer([message(3)], 1.0, 0.0)

    channel.expire(10.0)

    assert ids(channel.deliver(reader, 9, 10.0, 60.0)) == [2, 3, 1]
    assert channel.message_count == 3


def test_messages_with_different_timeouts_expire_at_their_own_times(broker, channel, reader):
    other = Reader("other", [])
    channel.add(other)
    put(channel, 1, 2, 3)
    channel.deliver(reader, 1, 0.0, 60.0)
    channel.deliver(other, 1, 1.0, 5.0)
    channel.deliver(reader, 1, 2.0, 60.0)

    assert ids(broker.expire(6.0)) == [2]
    assert broker.due == 60.0
    assert ids(broker.expire(61.0)) == [1]
    assert ids(broker.expire(62.0)) == [3]


# --- waking -----------------------------------------------------------------------------------------------------------


def play(channel, story):
    """Do the steps of a story; returns the names of the woken subscribers, and how many messages each take has got."""
    woken, shares, last, owned = [], [], 0, {}
    readers = {name: Reader(name, woken) for name in ("a", "b", "c", "d", "busy")}
    for reader in readers.values():
        channel.add(reader)
    for step in story.split(", "):
        match step.split():
            case ["put", count]:
                put(channel, *range(last + 1, last + int(count) + 1))
                last += int(count)
            case ["pause" | "unpause" as word]:
                channel.set_paused(word == "pause")
                woken.clear()
            case ["requeue", name]:
                channel.requeue(readers[name], owned[name].pop().id, 0.0, 1.0)
            case ["take", *names]:
                for name in names:
                    owned[name] = channel.deliver(readers[name], 100, 0.0, 60.0)
                    shares.append(len(owned[name]))
            case [word, *names]:
                act = {"ready": channel.add_ready, "rest": channel.remove_ready, "leave": channel.remove}[word]
                for name in names:
                    act(readers[name])
    return " ".join(woken), shares


STORIES = [
    pytest.param("ready a b c, put 1, take a, ready a, put 1", "a b", [1], id="as many are woken as messages wait"),
    pytest.param(
        "ready a b c d, put 2, put 1, take a, rest a, take b, rest b, take c, rest c", "a b c", [1, 1, 1],
        id="those that take their messages wake no others",
    ),
    pytest.param("ready a b c, put 10, take a b c", "a b c", [4, 3, 3], id="equal shares"),
    pytest.param(
        "ready a b, put 10" + ", take a, ready a" * 7, "a b a a a a a a", [5, 0, 3, 0, 1, 0, 1],
        id="one that never delivers keeps no messages from others",
    ),
    pytest.param(
        "ready a, put 3, take b, ready b, take a b", "a b", [0, 2, 1], id="first messages for the longest waiting"
    ),
    # As if b had published the first message: it calls deliver() and gets nothing.
    pytest.param(
        "ready a b, put 1, take b, ready b, take a, ready a b, put 1", "a b b", [0, 1],
        id="one that gets nothing keeps its place",
    ),
    pytest.param("ready a, put 2, take busy, ready busy, take a", "a busy", [0, 2], id="a busy one has no share"),
    pytest.param("ready busy a, put 1", "busy a", [], id="a busy one does not keep messages from others"),
    pytest.param(
        "put 1, take a, ready b, requeue a, take a b", "b", [1, 0, 1], id="a requeued message for one that waits"
    ),
    pytest.param("leave c d busy, pause, put 4, unpause, take a b", "", [2, 2], id="shares of an unpaused channel"),
    pytest.param("ready a b, put 4, rest b, take a", "a b", [4], id="one that rests frees its share"),
    pytest.param("ready a b, put 1, leave a", "a b", [], id="one that leaves after it was woken wakes another"),
]  # fmt: skip


@pytest.mark.parametrize(("story", "woken", "shares"), STORIES)
def test_woken_subscribers_share_the_queue(channel, story, woken, shares):
    assert play(channel, story) == (woken, shares)
