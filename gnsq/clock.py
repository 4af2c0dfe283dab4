"""The time, sleeps and timeouts. Tests replace the real clock by another one."""

from __future__ import annotations

import functools
import time
from typing import Any, Protocol

import gevent

__all__ = ["Clock", "RealClock", "monotonic"]

# Seconds since a fixed point in time. Not time.monotonic(), which freezegun freezes in all modules of a test: then
# a wait would never end.
monotonic = functools.partial(time.clock_gettime, time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Source of time for the waits and deadlines that tests can control."""

    def monotonic(self) -> float:
        """Return the seconds since a fixed point in time."""

    def time_ns(self) -> int:
        """Return the nanoseconds since 1970."""

    def sleep(self, seconds: float) -> None:
        """Suspend the calling greenlet for some seconds."""

    def timeout(self, seconds: float) -> gevent.Timeout:
        """Return a context manager that raises gevent.Timeout in its block when the block waits after these seconds."""

    def wait(self, waitable: Any, seconds: float) -> bool:  # Any: gevent has no types
        """Wait for an Event or AsyncResult up to a number of seconds.

        Returns:
            True if the waitable is set; False if it was not set in time.
        """


class RealClock:
    """The time of the machine, with gevent's sleeps and timeouts."""

    monotonic = staticmethod(monotonic)
    time_ns = staticmethod(time.time_ns)
    sleep = staticmethod(gevent.sleep)
    timeout = staticmethod(gevent.Timeout)

    def wait(self, waitable: Any, seconds: float) -> bool:  # Any: gevent has no types
        """Wait as Clock.wait() does."""
        waitable.wait(seconds)
        return bool(waitable.ready())
