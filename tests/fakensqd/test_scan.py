"""When nsqd looks for what has fallen due."""

import random

import pytest

from fakensqd import FakeNsqd
from fakensqd.message import QueuedMessage
from fakensqd.nsqd.broker import last_listing, next_listing, next_scan, scan

SCANS = [
    pytest.param(1.0, 0.0, 1.0, id="at a scan"),
    pytest.param(1.01, 0.0, 1.1, id="between two"),
    pytest.param(0.3, 0.0, 0.3, id="at a scan that is no round float"),
    pytest.param(0.0, 1.0, 1.1, id="overdue at a scan"),
    pytest.param(0.0, 1.05, 1.1, id="overdue"),
    pytest.param(1.0, 1.0, 1.1, id="now"),
]


@pytest.mark.parametrize(("due", "now", "scan"), SCANS)
@pytest.mark.parametrize("since", [0.0, 1000.07])
def test_next_scan(due, now, scan, since):
    assert next_scan(due + since, now + since, since) == pytest.approx(scan + since)


LISTINGS = [(0.0, 0.0), (4.99, 0.0), (5.0, 5.0), (12.0, 10.0)]


@pytest.mark.parametrize(("now", "listed"), LISTINGS)
@pytest.mark.parametrize("since", [0.0, 1000.07])
def test_listings(now, listed, since):
    assert last_listing(now + since, since) == pytest.approx(listed + since)
    assert next_listing(now + since, since) == pytest.approx(listed + 5.0 + since)


@pytest.fixture
def late(clock):
    with FakeNsqd(clock=clock, scan_lateness=True) as nsqd:
        yield nsqd


def test_scans_on_a_young_channel_come_late(late, clock):
    clock.advance(1.03)
    topic = late.broker.ensure_topic("t")
    channel = topic.ensure_channel("c", late.now())
    topic.publish([b"x"], late.now(), delay=1.0)

    clock.advance(3.9)
    assert (channel.depth, channel.deferred_count) == (0, 1)
    clock.advance(0.1)
    assert channel.depth == 1
    assert clock.monotonic() == pytest.approx(5.03)


def test_scans_on_an_older_channel_come_every_tenth_of_a_second(late, clock):
    topic = late.broker.ensure_topic("t")
    channel = topic.ensure_channel("c", late.now())
    clock.advance(6.0)
    topic.publish([b"x"], late.now(), delay=1.03)

    clock.advance(1.05)
    assert channel.depth == 0
    clock.advance(0.06)
    assert channel.depth == 1


def test_what_falls_due_at_a_scan_is_seen_by_it(late, clock):
    topic = late.broker.ensure_topic("t")
    channel = topic.ensure_channel("c", late.now())
    clock.advance(6.0)
    topic.publish([b"x"], late.now(), delay=1.0)

    clock.advance(1.0 + 1e-6)
    assert channel.depth == 1


def test_channels_that_came_with_a_restart_are_listed_at_once(late, clock):
    late.broker.ensure_topic("t").ensure_channel("c", late.now())
    late.restart()
    late.broker.topics["t"].publish([b"x"], late.now(), delay=1.0)

    clock.advance(1.1)

    assert late.broker.topics["t"].channels["c"].depth == 1


def looked_into(channels, dirty, count=20):
    """Scan; each channel looked into, in order."""
    looked = []

    def expire(channel):
        looked.append(channel)
        return channel in dirty and looked.count(channel) == 1

    scan(range(channels), count, random.Random(1), expire)
    return looked


def test_a_scan_looks_into_some_of_many_channels():
    looked = looked_into(100, dirty=[])

    assert len(looked) == len(set(looked)) == 20
    assert looked != sorted(looked)


def test_a_scan_looks_into_all_of_few():
    assert sorted(looked_into(20, dirty=[1, 2, 3, 4, 5])) == list(range(20))
    assert looked_into(0, dirty=[]) == []


def test_a_scan_looks_again_while_more_than_a_quarter_had_something():
    assert len(looked_into(20, dirty=range(6))) == 40
    assert len(looked_into(100, dirty=range(100))) > 100


MANY = [pytest.param(20, True, id="20 channels"), pytest.param(200, False, id="200 channels")]


@pytest.mark.parametrize(("count", "at_once"), MANY)
def test_with_many_channels_one_waits_for_its_turn(clock, count, at_once):
    with FakeNsqd(clock=clock, scan_lateness=True, seed=1) as nsqd:
        topic = nsqd.broker.ensure_topic("t")
        channels = [topic.ensure_channel(f"c{number}", nsqd.now()) for number in range(count)]
        clock.advance(6.0)
        channels[0].defer([QueuedMessage(b"0123456789abcdef", b"x", 0)], 1.0, nsqd.now())
        clock.advance(1.1)

        assert (channels[0].depth == 1) is at_once
        clock.advance(20.0)
        assert channels[0].depth == 1
        assert clock.monotonic() == pytest.approx(27.1)


def test_a_scan_of_more_channels_is_an_option(clock):
    with FakeNsqd(clock=clock, scan_lateness=True, queue_scan_selection_count=200) as nsqd:
        topic = nsqd.broker.ensure_topic("t")
        channels = [topic.ensure_channel(f"c{number}", nsqd.now()) for number in range(200)]
        clock.advance(6.0)
        channels[0].defer([QueuedMessage(b"0123456789abcdef", b"x", 0)], 1.0, nsqd.now())

        clock.advance(1.1)

        assert channels[0].depth == 1
