"""Time for whoever waits: a monotonic clock, sleeps and time limits, replaceable in tests."""

from __future__ import annotations

import time
from typing import Any, Protocol

import gevent

__all__ = ["Clock", "RealClock"]


class Clock(Protocol):
    """What every wait and every deadline of the client asks."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Let the calling greenlet wait; others go on."""

    def timeout(self, seconds: float) -> gevent.Timeout:
        """Make what ends a ``with`` that takes longer by raising itself there."""

    def wait(self, waitable: Any, seconds: float) -> bool:  # Any: gevent has no types
        """Wait for an Event or AsyncResult for so long at most; whether it has come. Raises nothing itself."""


class RealClock:
    """The machine's own time."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(gevent.sleep)
    timeout = staticmethod(gevent.Timeout)

    def wait(self, waitable: Any, seconds: float) -> bool:  # Any: gevent has no types
        """Wait for an Event or AsyncResult for so long at most; whether it has come."""
        waitable.wait(seconds)
        return bool(waitable.ready())
