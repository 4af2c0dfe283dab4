"""Clocks of the emulator: RealClock, and ManualClock, whose time a test moves forward.

Servers and connections get a clock; broker and sessions get the time as ``now``. Either clock may also be the
``clock`` of a client.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import gevent
import greenlet
from gevent.event import Event

from gnsq.clock import Clock as ClientClock
from gnsq.clock import RealClock as RealClientClock
from gnsq.clock import monotonic
from gnsq.texts import counted

__all__ = ["Clock", "ManualClock", "RealClock", "Timer", "run_with_timeout"]

_Value = TypeVar("_Value")
# A hub counts as idle when no greenlet has run for this many rounds of its loop and this many real seconds. The seconds
# are needed because a greenlet may sleep for a microsecond; the rounds, because seconds pass in a suspended process.
_IDLE_ROUNDS = 4
_IDLE_SECONDS = 20e-6


class Timer(Protocol):
    """A call that happens later, unless it is cancelled."""

    def cancel(self) -> None:
        """Cancel the call. Does nothing if the call has happened."""


class Clock(ClientClock, Protocol):
    """Source of time for servers and clients."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call the callback when this clock has advanced by ``seconds``. The callback must not block."""


class _HubTimer:
    __slots__ = ("_watcher",)

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self._watcher = gevent.get_hub().loop.timer(max(0.0, seconds))
        # update=True counts the seconds from now. Otherwise libev counts from the start of this round of the loop.
        self._watcher.start(callback, update=True)

    def cancel(self) -> None:
        self._watcher.stop()
        self._watcher.close()


class RealClock(RealClientClock):
    """Real time."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call the callback in the hub's own greenlet after ``seconds``. The callback must not block."""
        return _HubTimer(seconds, callback)


class _ManualTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class _ManualTimeout(gevent.Timeout):  # type: ignore[misc]  # gevent has no types
    """A gevent.Timeout that expires by the time of a ManualClock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds
        self._timer: Timer | None = None

    def start(self) -> None:
        expire = functools.partial(gevent.get_hub().loop.run_callback, self._expire, gevent.getcurrent())
        self._timer = self._clock.call_later(self._seconds, expire)
        if self._seconds <= 0:
            expire()

    def _expire(self, waiting: gevent.Greenlet) -> None:
        # The hub calls _expire() one round after the deadline, and the ``with`` block may have ended by then.
        if self._timer is not None:
            waiting.throw(self)

    @property
    def pending(self) -> bool:
        return self._timer is not None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    cancel = close

    def __str__(self) -> str:
        return f"{self._seconds} seconds"


class ManualClock:
    """A clock that moves only in advance(), for the emulator and its clients in one hub.

    The greenlet that calls advance() must not itself wait with a timeout of this clock: such a timeout never expires.

    Args:
        start_ns: First value of time_ns(), in nanoseconds since 1970; default: the real time.
        idle_timeout: Real seconds that advance() waits, each time, for the hub to become idle, before it raises.
    """

    def __init__(self, start_ns: int | None = None, *, idle_timeout: float = 10.0) -> None:
        self._start_ns = time.time_ns() if start_ns is None else start_ns
        self._idle_timeout = idle_timeout
        self._now = 0.0
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        """Seconds by which the clock has advanced since it was made."""
        return self._now

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""
        return self._start_ns + round(self._now * 1e9)

    def sleep(self, seconds: float) -> None:
        """Suspend the calling greenlet until the clock has advanced by ``seconds``; 0 only yields to the hub."""
        if seconds <= 0:
            gevent.sleep(0)
            return
        woken = Event()
        timer = self.call_later(seconds, woken.set)
        try:
            woken.wait()
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Let advance() call the callback when the clock has advanced by ``seconds``. The callback must not block."""
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (self._now + max(0.0, seconds), next(self._order), timer))
        return timer

    def timeout(self, seconds: float) -> gevent.Timeout:
        """Make a timeout for a ``with`` block: it is raised there when the clock has advanced by ``seconds``."""
        return _ManualTimeout(self, seconds)

    def wait(self, waitable: Any, seconds: float) -> bool:  # Any: gevent has no types
        """Wait for an Event or AsyncResult, at most until the clock has advanced by ``seconds``.

        Returns:
            True if the waitable is ready.
        """
        if seconds <= 0:
            gevent.sleep(0)
            return bool(waitable.ready())
        ready_or_timeout = Event()

        def link(_: object) -> None:
            ready_or_timeout.set()

        timer = self.call_later(seconds, ready_or_timeout.set)
        waitable.rawlink(link)
        try:
            ready_or_timeout.wait()
        finally:
            timer.cancel()
            waitable.unlink(link)
        return bool(waitable.ready())

    def advance(self, seconds: float) -> None:
        """Move the time on, from deadline to deadline. Wait until the hub is idle, at first and after each deadline.

        A hub is idle if no greenlet in it can continue until the time moves on. advance() waits for threads of
        gevent's pool, but not for other threads and processes.

        Raises:
            ValueError: If the seconds are negative.
            RuntimeError: If the hub does not become idle in idle_timeout, for example because a greenlet never waits.
        """
        if seconds < 0:
            raise ValueError(f"seconds {seconds} are negative; time does not go back")
        end = self._now + seconds
        _run_until_idle(self._idle_timeout)
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            if timer.callback is None:
                continue
            self._now = max(self._now, when)
            timer.callback()
            _run_until_idle(self._idle_timeout)
        self._now = end

    def reset(self) -> None:
        """Set the time back to the start, for the next test.

        Raises:
            RuntimeError: If somebody still waits by this clock, such as a client that is not closed.
        """
        if waiting := sum(timer.callback is not None for _, _, timer in self._timers):
            timers = counted(waiting, "timer")
            raise RuntimeError(f"{timers} of this clock would be late after a reset: first close its clients")
        self._timers.clear()
        self._now = 0.0


def _run_until_idle(timeout: float, real_time: Callable[[], float] = monotonic) -> None:
    """Let the greenlets of this hub run until none of them can continue and no socket is ready."""
    threads = gevent.get_hub().threadpool
    switches: deque[None] = deque(maxlen=3)
    tracer = greenlet.settrace(lambda *_: switches.append(None))
    try:
        with gevent.Timeout(timeout, RuntimeError(f"hub not idle after {timeout} s: a greenlet in it never waits")):
            idle_since, rounds = real_time(), 0
            while rounds < _IDLE_ROUNDS or real_time() - idle_since < _IDLE_SECONDS:
                rounds += 1
                switches.clear()
                has_result = len(threads) > 0
                # Data that was sent over loopback is in the receiver's socket when send() returns. Therefore the loop
                # finds that socket ready before idle() returns.
                gevent.idle()
                if len(threads):
                    # gevent resolves addresses on threads, even numeric addresses.
                    threads.join()
                    has_result = True
                # idle() itself makes two switches; a third shows that a greenlet ran. A thread's result lets one run.
                if has_result or len(switches) > 2:
                    idle_since, rounds = real_time(), 0
    finally:
        greenlet.settrace(tracer)


def run_with_timeout(clock: Clock, seconds: float, function: Callable[[], _Value]) -> _Value:
    """Call a function, and interrupt it if it takes longer than ``seconds``, measured by ``clock``.

    Raises:
        TimeoutError: If the function was interrupted.
        Exception: The exception of the function.
    """
    timeout = clock.timeout(seconds)
    try:
        with timeout:
            return function()
    except gevent.Timeout as expired:
        if expired is not timeout:
            raise
        raise TimeoutError(f"not done within {seconds} s") from None
