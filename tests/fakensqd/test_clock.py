"""Clocks: the one that stands still moves only when told to."""

import time

import gevent
import pytest
from gevent.event import Event

from fakensqd.clock import ManualClock, RealClock, run_within


def test_the_real_clock_calls_back_in_time():
    clock, called = RealClock(), Event()
    before = clock.monotonic()

    clock.call_later(0.01, called.set)

    assert called.wait(5.0)
    assert clock.monotonic() - before >= 0.01
    assert abs(clock.time_ns() - time.time_ns()) < 10**9


def test_a_cancelled_timer_does_not_call():
    clock, calls = RealClock(), []

    clock.call_later(0.0, lambda: calls.append("cancelled")).cancel()
    clock.call_later(0.0, lambda: calls.append("called"))
    gevent.sleep(0.01)

    assert calls == ["called"]


def test_a_manual_clock_stands_still():
    clock = ManualClock(start_ns=10**18)
    gevent.sleep(0.001)

    assert (clock.monotonic(), clock.time_ns()) == (0.0, 10**18)


def test_advance_stops_at_every_deadline():
    clock = ManualClock(start_ns=0)
    seen = []

    def note():
        seen.append(clock.monotonic())
        if len(seen) < 3:
            clock.call_later(10.0, note)

    clock.call_later(20.0, lambda: seen.append("later"))
    clock.call_later(5.0, note)
    clock.advance(16.0)
    assert seen == [5.0, 15.0]
    assert clock.time_ns() == 16 * 10**9

    clock.advance(100.0)
    assert seen == [5.0, 15.0, "later", 25.0]


def test_a_cancelled_manual_timer_does_not_call():
    clock, calls = ManualClock(), []

    clock.call_later(1.0, lambda: calls.append(1)).cancel()
    clock.advance(2.0)

    assert calls == []


def test_sleepers_wake_when_their_time_has_come():
    clock, woken = ManualClock(), []

    def sleeper(seconds):
        clock.sleep(seconds)
        woken.append(seconds)

    greenlets = [gevent.spawn(sleeper, seconds) for seconds in (3600.0, 60.0, 0.0)]
    gevent.sleep(0)
    gevent.sleep(0)
    assert woken == [0.0]

    clock.advance(60.0)
    assert woken == [0.0, 60.0]

    clock.advance(3600.0)
    gevent.joinall(greenlets, timeout=5.0)
    assert woken == [0.0, 60.0, 3600.0]


def test_time_does_not_go_back():
    with pytest.raises(ValueError, match="seconds -1 are negative"):
        ManualClock().advance(-1)


def test_what_is_done_in_time_gives_its_value():
    assert run_within(RealClock(), 10.0, lambda: gevent.sleep(0) or "done") == "done"


def test_what_raises_in_time_is_raised():
    def fail():
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        run_within(RealClock(), 10.0, fail)


def test_what_is_not_done_in_time_is_killed():
    clock, ends = ManualClock(), []

    def wait():
        try:
            Event().wait()
        finally:
            ends.append("killed")

    waiting = gevent.spawn(run_within, clock, 5.0, wait)
    gevent.sleep(0)
    gevent.sleep(0)
    clock.advance(5.0)

    with pytest.raises(TimeoutError, match=r"not done within 5\.0 s"):
        waiting.get(timeout=10)
    assert ends == ["killed"]


def test_who_waits_and_is_killed_takes_the_work_along():
    ends = []

    def wait():
        try:
            Event().wait()
        finally:
            ends.append("killed")

    waiting = gevent.spawn(run_within, ManualClock(), 5.0, wait)
    gevent.sleep(0)
    gevent.sleep(0)
    waiting.kill()

    assert ends == ["killed"]
