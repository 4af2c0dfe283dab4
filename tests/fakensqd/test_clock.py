"""Clocks: real time, and time that a test moves; calls with a timeout."""

import itertools
import time

import gevent
import pytest
from gevent import socket
from gevent.event import AsyncResult, Event

from fakensqd.clock import ManualClock, RealClock, _run_until_idle, run_with_timeout
from gnsq.clock import RealClock as ClientClock


def test_real_clock_calls_back_after_the_time():
    clock, called = RealClock(), Event()
    before = clock.monotonic()

    clock.call_later(0.01, called.set)

    assert called.wait(5.0)
    assert clock.monotonic() - before >= 0.01
    assert abs(clock.time_ns() - time.time_ns()) < 10**9


def test_advance_stops_at_every_deadline():
    clock = ManualClock(start_ns=0)
    seen = []

    def record():
        seen.append(clock.monotonic())
        if len(seen) < 3:
            clock.call_later(10.0, record)

    clock.call_later(20.0, lambda: seen.append("later"))
    clock.call_later(5.0, record)
    clock.advance(16.0)
    assert seen == [5.0, 15.0]
    assert clock.time_ns() == 16 * 10**9

    clock.advance(100.0)
    assert seen == [5.0, 15.0, "later", 25.0]


def test_advance_refuses_negative_seconds():
    with pytest.raises(ValueError, match="seconds -1 are negative"):
        ManualClock().advance(-1)


def waiting_with_timeout(clock, ends):
    """Start a function that waits for ever and notes its end, with a timeout of 5 s; returns the greenlet."""

    def wait():
        try:
            Event().wait()
        finally:
            ends.append("ended")

    waiting = gevent.spawn(run_with_timeout, clock, 5.0, wait)
    gevent.sleep(0)
    clock.sleep(0)  # only yields
    return waiting


def test_run_with_timeout_interrupts_the_function_after_the_time():
    clock, ends = ManualClock(), []
    waiting = waiting_with_timeout(clock, ends)

    clock.advance(5.0)

    with pytest.raises(TimeoutError, match=r"not done within 5\.0 s"):
        waiting.get(timeout=10)
    assert ends == ["ended"]


def test_run_with_timeout_ends_the_function_with_its_caller():
    ends = []

    waiting_with_timeout(ManualClock(), ends).kill()

    assert ends == ["ended"]


# --- idle -------------------------------------------------------------------------------------------------------------


def test_advance_returns_when_no_greenlet_can_continue():
    clock, seen = ManualClock(), []
    left, right = socket.socketpair()

    def play(mine):
        while data := mine.recv(100):
            seen.append(clock.monotonic())
            woken = Event()
            gevent.spawn(woken.set)
            woken.wait()
            gevent.sleep(1e-6)
            if len(data) < 50:
                mine.sendall(data + b"x")

    players = [gevent.spawn(play, sock) for sock in (left, right)]
    clock.call_later(5.0, lambda: gevent.spawn(left.sendall, b"x"))
    clock.call_later(5.5, lambda: seen.append("then"))
    clock.advance(10.0)

    assert seen == [5.0] * 50 + ["then"]
    gevent.killall(players)
    left.close()
    right.close()


def test_hub_becomes_idle_only_after_some_rounds_even_if_the_process_is_suspended():
    ran = Event()
    gevent.spawn(lambda: (gevent.sleep(0), ran.set()))

    # A second passes between two reads of the machine's clock.
    _run_until_idle(10.0, itertools.count(1.0).__next__)

    assert ran.is_set()


def test_advance_raises_if_a_greenlet_never_waits():
    def spin():
        while True:
            gevent.sleep(0)

    spinner = gevent.spawn(spin)
    with pytest.raises(RuntimeError, match=r"hub not idle after 0\.05 s: a greenlet in it never waits"):
        ManualClock(idle_timeout=0.05).advance(1.0)
    spinner.kill()


# --- timeouts ---------------------------------------------------------------------------------------------------------

CLOCKS = [
    pytest.param(ManualClock, id="manual"),
    pytest.param(RealClock, id="real"),
    pytest.param(ClientClock, id="client"),
]


@pytest.mark.parametrize("make", CLOCKS)
def test_wait_returns_when_the_event_is_set(make):
    clock, result = make(), AsyncResult()
    gevent.spawn(result.set, 1)

    assert clock.wait(result, 10.0)
    assert clock.wait(result, 0)


@pytest.mark.parametrize("make", CLOCKS)
def test_wait_and_timeout_of_zero_seconds_end_at_once(make):
    assert not make().wait(Event(), 0)

    with pytest.raises(gevent.Timeout), make().timeout(0):
        Event().wait()


def test_wait_ends_after_the_time():
    clock, never = ManualClock(), Event()
    waiting = gevent.spawn(clock.wait, never, 60.0)

    clock.advance(59.9)
    assert not waiting.ready()
    clock.advance(0.1)

    assert waiting.get(timeout=10) is False
    assert never.linkcount() == 0


def test_timeout_raises_itself_in_the_greenlet_that_started_it():
    clock = ManualClock()
    timeout = clock.timeout(60.0)

    def wait():
        with timeout:
            assert timeout.pending
            Event().wait()

    waiting = gevent.spawn(wait)
    clock.advance(59.9)
    assert not waiting.ready()
    clock.advance(0.1)

    with pytest.raises(gevent.Timeout) as caught:
        waiting.get(timeout=10)
    assert caught.value is timeout
    assert str(timeout) == "60.0 seconds"


def test_timeout_that_passes_after_its_block_has_no_effect():
    clock, done = ManualClock(), Event()

    def work():
        with clock.timeout(60.0):
            done.wait()
        clock.sleep(60.0)
        return "done"

    # In the same moment, and in front of it.
    clock.call_later(60.0, done.set)
    working = gevent.spawn(work)
    clock.advance(120.0)

    assert working.get(timeout=10) == "done"


def test_timeout_of_zero_seconds_has_no_effect_after_its_block():
    timeout = ManualClock().timeout(0)
    with timeout:
        pass
    timeout.close()

    gevent.sleep(0)
    gevent.sleep(0)
    assert not timeout.pending
