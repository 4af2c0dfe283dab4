"""Time for whoever waits: a monotonic clock and a cooperative sleep, replaceable in tests."""

from __future__ import annotations

import time
from typing import Protocol

import gevent

__all__ = ["Clock", "RealClock"]


class Clock(Protocol):
    """What every wait and every deadline of the client asks."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Let the calling greenlet wait; others go on."""


class RealClock:
    """The machine's own time."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(gevent.sleep)
