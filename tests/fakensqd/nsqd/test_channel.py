"""One channel: queue, in flight, deferred, timeouts, subscribers that are woken."""

import pytest

from fakensqd.message import QueuedMessage
from fakensqd.nsqd.broker import Broker


class Reader:
    """A subscriber that records the calls of the channel."""

    def __init__(self, *, at_once=True):
        self.at_once = at_once
        self.calls = []

    def wake(self):
        self.calls.append("wake")
        return self.at_once

    def message_timed_out(self):
        self.calls.append("timed out")

    def channel_emptied(self):
        self.calls.append("emptied")

    def channel_closed(self):
        self.calls.append("closed")


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
    subscriber = Reader()
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
    other = Reader()
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


def test_as_many_subscribers_are_woken_as_there_are_messages(channel):
    readers = [Reader() for _ in range(3)]
    for subscriber in readers:
        channel.add(subscriber)
        channel.add_ready(subscriber)

    put(channel, 1)
    channel.deliver(readers[0], 1, 0.0, 60.0)
    channel.add_ready(readers[0])
    put(channel, 2)

    assert [subscriber.calls for subscriber in readers] == [["wake"], ["wake"], []]


def test_subscribers_that_take_their_messages_wake_no_more_than_the_messages_need(channel):
    readers = [Reader() for _ in range(10)]
    for subscriber in readers:
        channel.add(subscriber)
        channel.add_ready(subscriber)
    put(channel, 1, 2)
    put(channel, 3)

    for subscriber in readers[:3]:
        channel.deliver(subscriber, 1, 0.0, 60.0)
        channel.remove_ready(subscriber)

    assert [len(subscriber.calls) for subscriber in readers] == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert channel.depth == 0


def test_woken_subscribers_share_the_queue(channel):
    readers = [Reader() for _ in range(3)]
    for subscriber in readers:
        channel.add_ready(subscriber)
    put(channel, *range(1, 11))

    shares = [len(channel.deliver(subscriber, 100, 0.0, 60.0)) for subscriber in readers]

    assert shares == [4, 3, 3]


def test_woken_subscriber_that_never_delivers_keeps_no_messages_from_others(channel):
    reader, stuck = Reader(), Reader()
    for subscriber in (reader, stuck):
        channel.add_ready(subscriber)
    put(channel, *range(1, 11))

    shares = []
    while channel.depth:
        shares.append(len(channel.deliver(reader, 100, 0.0, 60.0)))
        channel.add_ready(reader)

    assert shares == [5, 0, 3, 0, 1, 0, 1]


def test_first_messages_go_to_the_longest_waiting_subscribers(channel):
    waiting, publisher = Reader(), Reader()
    channel.add_ready(waiting)
    put(channel, 1, 2, 3)

    assert channel.deliver(publisher, 100, 0.0, 60.0) == []
    channel.add_ready(publisher)

    assert ids(channel.deliver(waiting, 100, 0.0, 60.0)) == [1, 2]
    assert publisher.calls == ["wake"]
    assert ids(channel.deliver(publisher, 100, 0.0, 60.0)) == [3]


def test_subscriber_that_gets_nothing_keeps_its_place(channel):
    first, second = Reader(), Reader()
    channel.add_ready(first)
    channel.add_ready(second)
    put(channel, 1)
    # As if the second one had published it: it calls deliver() and gets nothing.
    channel.deliver(second, 100, 0.0, 60.0)
    channel.add_ready(second)
    channel.deliver(first, 100, 0.0, 60.0)
    for subscriber in (first, second):
        channel.add_ready(subscriber)
        subscriber.calls.clear()

    put(channel, 2)

    assert (first.calls, second.calls) == ([], ["wake"])


def test_busy_subscriber_gets_no_share(channel):
    waiting, busy = Reader(), Reader(at_once=False)
    channel.add_ready(waiting)
    put(channel, 1, 2)
    channel.deliver(busy, 100, 0.0, 60.0)

    channel.add_ready(busy)

    assert len(channel.deliver(waiting, 100, 0.0, 60.0)) == 2


def test_requeued_message_goes_to_a_waiting_subscriber(channel, reader):
    other = Reader()
    put(channel, 1)
    (owned,) = channel.deliver(reader, 1, 0.0, 60.0)
    channel.add_ready(other)

    channel.requeue(reader, owned.id, 0.0, 1.0)

    assert channel.deliver(reader, 1, 1.0, 60.0) == []
    assert ids(channel.deliver(other, 1, 1.0, 60.0)) == [1]


def test_subscribers_share_the_queue_of_an_unpaused_channel(channel):
    readers = [Reader(), Reader()]
    for subscriber in readers:
        channel.add(subscriber)
    channel.set_paused(True)
    put(channel, 1, 2, 3, 4)

    channel.set_paused(False)

    assert [len(channel.deliver(subscriber, 100, 0.0, 60.0)) for subscriber in readers] == [2, 2]


def test_subscriber_that_leaves_frees_its_share(channel):
    reader, other = Reader(), Reader()
    for subscriber in (reader, other):
        channel.add_ready(subscriber)
    put(channel, 1, 2, 3, 4)

    channel.remove_ready(other)

    assert len(channel.deliver(reader, 100, 0.0, 60.0)) == 4


def test_busy_subscriber_does_not_keep_messages_from_others(channel):
    busy, free = Reader(at_once=False), Reader()
    channel.add_ready(busy)
    channel.add_ready(free)

    put(channel, 1)

    assert (busy.calls, free.calls) == (["wake"], ["wake"])


def test_subscriber_that_leaves_after_wake_up_wakes_another(channel, reader):
    other = Reader()
    channel.add_ready(reader)
    channel.add_ready(other)
    put(channel, 1)
    assert (reader.calls, other.calls) == (["wake"], [])

    channel.remove(reader)

    assert other.calls == ["wake"]
