"""Checks the deadlines of publishes, and the connections. dispatcher.py decides how a late publish ends."""

from __future__ import annotations

from collections.abc import Callable

from gevent.event import Event

from gnsq.clock import Clock

__all__ = ["MAX_SLEEP", "NO_DEADLINE", "Deadlines"]

# Bounds of the sleep between two checks of deadlines, seconds.
MIN_SLEEP, MAX_SLEEP = 0.005, 3600.0
NO_DEADLINE = float("inf")


class Deadlines:
    """Checks deadlines at the time of the earliest one, and connections at a regular interval.

    Args:
        check_interval: Seconds between two checks of the connections.
        expire_overdue: Function that ends the publishes whose deadline has passed, and calls schedule() for all others.
        check_links: Function that checks the connections.

    Attributes:
        due: Time of the next check of deadlines, monotonic seconds; NO_DEADLINE: none is scheduled.
    """

    def __init__(
        self,
        clock: Clock,
        check_interval: float,
        *,
        expire_overdue: Callable[[float], None],
        check_links: Callable[[float], None],
    ) -> None:
        self.due = NO_DEADLINE
        self._clock = clock
        self._check_interval = check_interval
        self._expire_overdue = expire_overdue
        self._check_links = check_links
        self._woken = Event()

    def schedule(self, at: float) -> None:
        """Make sure that deadlines are checked at this time or earlier."""
        if at < self.due:
            self.due = at
            self._woken.set()

    def run(self) -> None:
        """Call expire_overdue and check_links each time they are due, until the greenlet is killed."""
        checked = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            if now >= self.due:
                self.due = NO_DEADLINE
                self._expire_overdue(now)
            if now - checked >= self._check_interval:
                checked = now
                self._check_links(now)
            self._woken.clear()
            pause = min(self.due, checked + self._check_interval) - now
            self._clock.wait(self._woken, min(max(pause, MIN_SLEEP), MAX_SLEEP))
