"""Checks the deadlines of publishes, and finds stalled links. dispatcher.py decides how a late publish ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gevent.event import Event

from gnsq.clock import Clock
from gnsq.nsqd.connection import Connection
from gnsq.nsqd.pending import PendingRequest

__all__ = ["MAX_SLEEP", "NO_DEADLINE", "STALLED_AFTER", "Deadlines", "StallDetector"]

# Bounds of the sleep between two checks of deadlines, seconds.
MIN_SLEEP, MAX_SLEEP = 0.005, 3600.0
NO_DEADLINE = float("inf")
# Seconds without a response to a sent request after which an nsqd gets no publishes while others respond. Longer than
# the usual fsync of a busy disk, and short beside the deadline of a publish, 60 s.
STALLED_AFTER = 5.0
# Seconds between two checks of the connections.
CHECK_INTERVAL = STALLED_AFTER / 2


class Deadlines:
    """Checks deadlines at the time of the earliest one, and connections at a regular interval.

    Args:
        expire_overdue: Function that ends the publishes whose deadline has passed, and calls schedule() for all others.
        check_links: Function that checks the connections.

    Attributes:
        due: Time of the next check of deadlines, monotonic seconds; NO_DEADLINE: none is scheduled.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        expire_overdue: Callable[[float], None],
        check_links: Callable[[float], None],
    ) -> None:
        self.due = NO_DEADLINE
        self._clock = clock
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
            if now - checked >= CHECK_INTERVAL:
                checked = now
                self._check_links(now)
            self._woken.clear()
            pause = min(self.due, checked + CHECK_INTERVAL) - now
            self._clock.wait(self._woken, min(max(pause, MIN_SLEEP), MAX_SLEEP))


class StallDetector:
    """Finds links that have not responded for too long. Pure: reads no clock, moves no publish.

    A link has stalled if partition() has found the same oldest sent request for STALLED_AFTER.
    """

    def __init__(self) -> None:
        # By link: its oldest request without a response, and the time when partition() first saw it as the oldest.
        self._oldest: dict[Connection, tuple[PendingRequest, float]] = {}

    def partition(self, links: Sequence[Connection], now: float) -> tuple[list[Connection], list[Connection]]:
        """Return the links to use, and the links that have stalled. If all links have stalled, use all of them."""
        before, self._oldest = self._oldest, {}
        for link in links:
            oldest = next(iter(link.writer.pending.sent), None)
            if oldest is not None:
                known, since = before.get(link, (None, now))
                self._oldest[link] = (oldest, since if oldest is known else now)
        stalled = [link for link, (_, since) in self._oldest.items() if now - since >= STALLED_AFTER]
        usable = [link for link in links if link not in stalled]
        return (usable, stalled) if usable else (list(links), [])
