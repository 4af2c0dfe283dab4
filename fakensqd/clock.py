"""Time for the emulator: the machine's own, or one that stands still until it is told to move on.

Everything that waits asks a clock: ``monotonic()`` and ``sleep()`` as in ``gnsq.clock``, and ``call_later()`` for
timers. Broker and sessions never see a clock, they are given ``now``.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import gevent
from gevent.event import Event

__all__ = ["Clock", "ManualClock", "RealClock", "Timer", "run_within"]

_Value = TypeVar("_Value")


class Timer(Protocol):
    """A call that is due some time; may be taken back."""

    def cancel(self) -> None:
        """Forget the call, if it has not happened."""


class Clock(Protocol):
    """What the servers ask for time."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""

    def sleep(self, seconds: float) -> None:
        """Let the calling greenlet wait; others go on."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some seconds, from the hub: the callback must not block."""


class _HubTimer:
    """A timer of gevent's event loop."""

    __slots__ = ("_watcher",)

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self._watcher = gevent.get_hub().loop.timer(max(0.0, seconds))
        # update: libev counts from its own idea of now, which is as old as the current iteration.
        self._watcher.start(callback, update=True)

    def cancel(self) -> None:
        """Stop the watcher."""
        self._watcher.stop()
        self._watcher.close()


class RealClock:
    """The machine's own time."""

    monotonic = staticmethod(time.monotonic)
    time_ns = staticmethod(time.time_ns)
    sleep = staticmethod(gevent.sleep)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some seconds, from the hub."""
        return _HubTimer(seconds, callback)


class _ManualTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A clock that moves only when told to.

    Args:
        start_ns: The wall clock's time at the start, in nanoseconds since 1970; default: the machine's.
    """

    def __init__(self, start_ns: int | None = None) -> None:
        self._start_ns = time.time_ns() if start_ns is None else start_ns
        self._now = 0.0
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._now

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""
        return self._start_ns + round(self._now * 1e9)

    def sleep(self, seconds: float) -> None:
        """Let the calling greenlet wait until the clock has been moved that far; 0 only yields."""
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
        """Call back from advance(), once the clock has been moved that far."""
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (self._now + max(0.0, seconds), next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move on, stopping at every deadline on the way and letting other greenlets run there.

        Raises:
            ValueError: If the seconds are negative.
        """
        if seconds < 0:
            raise ValueError(f"seconds {seconds} are negative; time does not go back")
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            if timer.callback is None:
                continue
            self._now = max(self._now, when)
            timer.callback()
            gevent.sleep(0)
        self._now = end
        gevent.sleep(0)


def run_within(clock: Clock, seconds: float, function: Callable[[], _Value]) -> _Value:
    """Call a function that waits, in a greenlet of its own, for so many seconds of a clock at most.

    Raises:
        TimeoutError: If it takes longer; it is killed then, as it is when the caller is.
        Exception: What the function raises.
    """
    outcome: list[_Value | Exception] = []
    over = Event()

    def work() -> None:
        try:
            outcome.append(function())
        except Exception as error:  # noqa: BLE001  # raised below
            outcome.append(error)
        over.set()

    worker = gevent.spawn(work)
    timer = clock.call_later(seconds, over.set)
    try:
        over.wait()
    finally:
        timer.cancel()
        worker.kill()
    if not outcome:
        raise TimeoutError(f"not done within {seconds} s")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]
