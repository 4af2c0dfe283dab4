"""Time for the emulator: the machine's own, or one that stands still until it is told to move on.

Everything that waits asks a clock: ``monotonic()`` and ``sleep()`` as in ``gnsq.clock``, and ``call_later()`` for
timers. Broker and sessions never see a clock, they are given ``now``. Both clocks serve as a client's ``clock``, too.
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

from gnsq.clock import RealClock as ClientClock

__all__ = ["Clock", "ManualClock", "RealClock", "Timer", "run_with_timeout"]

_Value = TypeVar("_Value")
# Real seconds in which a hub must come to rest, and in which nothing happens in one that has: some sleep for a
# microsecond, so that the loop comes round. It must come round so often, too: on a busy machine the seconds may pass
# while the process does not run, and data that was sent before arrives meanwhile.
_PATIENCE = 10.0
_QUIET = 20e-6
_QUIET_ROUNDS = 4


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


class RealClock(ClientClock):
    """The machine's own time."""

    time_ns = staticmethod(time.time_ns)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some seconds, from the hub."""
        return _HubTimer(seconds, callback)


class _ManualTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class _ManualTimeout(gevent.Timeout):  # type: ignore[misc]  # gevent has no types
    """A gevent.Timeout that goes by a clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to wait."""
        expire = functools.partial(gevent.get_hub().loop.run_callback, self._expire, gevent.getcurrent())
        self._timer = self._clock.call_later(self._seconds, expire)
        if self._seconds <= 0:
            expire()

    def _expire(self, waiting: gevent.Greenlet) -> None:
        # From the hub, a round later: the block may be over by now.
        if self._timer is not None:
            waiting.throw(self)

    @property
    def pending(self) -> bool:
        """Whether it was started."""
        return self._timer is not None

    def close(self) -> None:
        """Forget it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    cancel = close

    def __str__(self) -> str:
        return f"{self._seconds} seconds"


class ManualClock:
    """A clock that moves only when told to: one hub's, for the emulator and clients in it alike.

    Who waits for something with a time limit, and is the one that would have to move the clock, waits without one.

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

    def timeout(self, seconds: float) -> gevent.Timeout:
        """Make what ends a ``with`` by raising itself, once the clock has been moved that far."""
        return _ManualTimeout(self, seconds)

    def wait(self, waitable: Any, seconds: float) -> bool:  # Any: gevent has no types
        """Wait for an Event or AsyncResult until the clock has been moved that far; whether it has come."""
        if seconds <= 0:
            gevent.sleep(0)
            return bool(waitable.ready())
        over = Event()
        timer = self.call_later(seconds, over.set)
        link: Callable[[object], None] = lambda _: over.set()  # noqa: E731  # what is unlinked must be this very object
        waitable.rawlink(link)
        try:
            over.wait()
        finally:
            timer.cancel()
            waitable.unlink(link)
        return bool(waitable.ready())

    def advance(self, seconds: float) -> None:
        """Move on, stopping at every deadline on the way until the hub has come to rest there.

        At rest, nothing in this hub can go on without more time, or without threads of others (HTTP requests of our
        clients run on some) and processes: these are not waited for.

        Raises:
            ValueError: If the seconds are negative.
            RuntimeError: If the hub does not come to rest, because something in it never waits.
        """
        if seconds < 0:
            raise ValueError(f"seconds {seconds} are negative; time does not go back")
        end = self._now + seconds
        _run_until_idle()
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            if timer.callback is None:
                continue
            self._now = max(self._now, when)
            timer.callback()
            _run_until_idle()
        self._now = end


def _run_until_idle() -> None:
    """Wait until nothing in this hub can go on: no greenlet to be run, no socket to be read or written."""
    threads = gevent.get_hub().threadpool
    switches: deque[None] = deque(maxlen=3)
    tracer = greenlet.settrace(lambda *_: switches.append(None))
    try:
        with gevent.Timeout(
            _PATIENCE, RuntimeError(f"hub not at rest after {_PATIENCE} s: something in it never waits")
        ):
            quiet_since, rounds = time.perf_counter(), 0
            while rounds < _QUIET_ROUNDS or time.perf_counter() - quiet_since < _QUIET:
                rounds += 1
                switches.clear()
                has_result = len(threads) > 0
                # What goes over loopback is in the reader's socket when send() returns, so the loop sees it before it
                # is idle.
                gevent.idle()
                if len(threads):
                    # Addresses, numeric ones too, are looked up on threads.
                    threads.join()
                    has_result = True
                # Switches to the hub and back are idle()'s own. A thread may have ended after the loop's last round.
                if has_result or len(switches) > 2:
                    quiet_since, rounds = time.perf_counter(), 0
    finally:
        greenlet.settrace(tracer)


def run_with_timeout(clock: Clock, seconds: float, function: Callable[[], _Value]) -> _Value:
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
