"""Deadlines: when to look for publishes that must have ended, and what they end with.

Owns that time and the greenlet's loop; where publishes are, and what else is done now and then, the dispatcher knows.
"""

from __future__ import annotations

from collections.abc import Callable

from gevent.event import Event

from gnsq.clock import Clock
from gnsq.errors import NSQException, NSQNotSentTimeout, NSQUnknownTimeout
from gnsq.producer.publish import Publish, Where

__all__ = ["LONGEST", "NEVER", "Deadlines", "overdue_error"]

# The shortest and the longest time between two looks, seconds.
LOOK, LONGEST = 0.005, 3600.0
NEVER = float("inf")


class Deadlines:
    """Looks when the first deadline comes, and in a rhythm while that is asked for.

    Args:
        rhythm: Seconds.
        end_overdue: Ends what must have ended by now, and calls look_by() for all that has not.
        check_links: Called in the rhythm.
        is_rhythmic: Whether that makes sense at present; when it begins to, call look().

    Attributes:
        due: When it looks next.
    """

    def __init__(
        self,
        clock: Clock,
        rhythm: float,
        *,
        end_overdue: Callable[[float], None],
        check_links: Callable[[float], None],
        is_rhythmic: Callable[[], bool],
    ) -> None:
        self.due = NEVER
        self._clock = clock
        self._rhythm = rhythm
        self._end_overdue = end_overdue
        self._check_links = check_links
        self._is_rhythmic = is_rhythmic
        self._look = Event()

    def look_by(self, deadline: float) -> None:
        """Look by then at the latest."""
        if deadline < self.due:
            self.due = deadline
            self._look.set()

    def look(self) -> None:
        """Find out anew when to look."""
        self._look.set()

    def run(self) -> None:
        """Look, for ever."""
        checked = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            if now >= self.due:
                self.due = NEVER
                self._end_overdue(now)
            if now - checked >= self._rhythm:
                checked = now
                self._check_links(now)
            pause = self.due - now
            if self._is_rhythmic():
                pause = min(pause, checked + self._rhythm - now)
            self._look.clear()
            self._clock.wait(self._look, min(max(pause, LOOK), LONGEST))


def overdue_error(
    publish: Publish, where: Where, address: str, why_none: Callable[[str], NSQException], room: str
) -> NSQException:
    """Say what a publish has waited for until its deadline.

    Args:
        address: Of the nsqd that it was given to.
        why_none: Says why there is no connection, given how long that was waited for in words.
        room: How much of it is taken.
    """
    limit = f"within {publish.limit:g} s"
    if where is Where.SENT:
        return NSQUnknownTimeout(f"{address}: publish not answered {limit}; nsqd may have it")
    if publish.refusal is not None:
        return publish.refusal
    if where is Where.ROOM:
        return NSQNotSentTimeout(f"publish to {publish.topic}: no room {limit}: {room}")
    if where is Where.UNSENT:
        return NSQNotSentTimeout(f"{address}: publish not sent {limit}: nsqd has not read what was before it")
    if where is Where.BATCH:
        return NSQNotSentTimeout(f"publish to {publish.topic}: batch not sent {limit}; batch_linger is longer")
    return why_none(limit)
