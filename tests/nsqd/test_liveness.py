"""When nsqd is dead to us, asked of values."""

import pytest

from gnsq.errors import NSQConnectionClosed, NSQTimeout
from gnsq.nsqd.connection import LivenessMonitor

TIMEOUT = 60.0


def watched(times, *, last_read=0.0, sending_since=None, heartbeat_interval=30.0, timeout=TIMEOUT):
    """The verdict at the last of some times; the watch was asked at all of them."""
    watch = LivenessMonitor(timeout, heartbeat_interval)
    watch.start(0.0)
    before, verdict = 0.0, None
    for now in times:
        watch.next_check(before, last_read)
        before, verdict = now, watch.check(now, last_read, sending_since)
    return verdict


def regular(end, pause=15.0):
    return [pause * step for step in range(1, round(end / pause) + 1)]


def test_silence_of_two_intervals_is_death():
    assert watched(regular(45)) is None

    error = watched(regular(60))
    assert isinstance(error, NSQConnectionClosed)
    assert str(error) == "no word from nsqd for 60 s, 2 heartbeat intervals"


def test_what_came_begins_the_silence_anew():
    assert watched(regular(75), last_read=20.0) is None


def test_end_of_the_silence_is_not_slept_through():
    watch = LivenessMonitor(TIMEOUT, 30.0)
    watch.start(0.0)

    assert watch.next_check(0.0, 0.0) == 15.0
    assert watch.next_check(52.0, 0.0) == 8.0
    assert watch.next_check(59.999, 0.0) == pytest.approx(0.01)
    assert watch.next_check(52.0, 50.0) == 15.0


def test_without_heartbeats_silence_means_nothing():
    assert watched(regular(9000, 30.0), heartbeat_interval=0) is None


def test_own_stall_is_not_held_against_nsqd():
    stalled = [15.0, 30.0, 130.0]

    assert watched(stalled) is None
    assert watched([*stalled, 145.0, 160.0, 175.0]) is None
    assert watched([*stalled, 145.0, 160.0, 175.0, 190.0]) is not None


@pytest.mark.parametrize("interval", [30.0, 0.0])
def test_send_that_does_not_end_is_a_timeout(interval):
    options = {"heartbeat_interval": interval, "timeout": 10.0}

    assert watched(regular(15, 5.0), sending_since=5.0, last_read=15.0, **options) is None
    error = watched(regular(20, 5.0), sending_since=5.0, last_read=20.0, **options)
    assert isinstance(error, NSQTimeout)
    assert str(error) == "nsqd has not read what was sent for 15 s, timeout is 10.0 s"


def test_looks_are_close_enough_to_see_both():
    assert LivenessMonitor(TIMEOUT, 30.0).next_check(0.0, 0.0) == 15.0
    assert LivenessMonitor(2.0, 30.0).next_check(0.0, 0.0) == 1.0
    assert LivenessMonitor(TIMEOUT, 0.0).next_check(0.0, 0.0) == 30.0
