"""Telling: publishes that have ended are counted, and whoever waits for them is woken.

Owns those that have ended and were not told yet. How they have ended is decided elsewhere.

Deadlines: when to look for publishes that must have ended, and what they end with.

Owns that time and the greenlet's loop; where publishes are, and what else is done now and then, the dispatcher knows.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

import gevent
from gevent.event import Event

from gnsq.clock import Clock
from gnsq.errors import NSQException, NSQNotSentTimeout, NSQUnknownTimeout
from gnsq.logs import LogOwner
from gnsq.producer.publish import Publish, Totals, Where
from gnsq.stats import LatencyRecorder

__all__ = [
    "LONGEST",
    "NEVER",
    "Deadlines",
    "Telling",
    "overdue_error",
]

logger = logging.getLogger(__name__)


class _Account(Protocol):
    """Who has counted publishes in, and counts on room that gets free.

    Attributes:
        pending, pending_bytes: What was not told yet, and how much of it has room.
    """

    pending: int
    pending_bytes: int

    def send_returned(self) -> None:
        """Send again what came back without having been executed."""

    def let_in(self) -> None:
        """Give room to those who wait for it."""


class Telling:
    """Tells of one producer's publishes.

    Attributes:
        told: Set whenever all that had ended was told.
        is_due: Whether something has ended that was not told yet.
    """

    def __init__(
        self, account: _Account, totals: Totals, latency: LatencyRecorder, clock: Clock, owner: LogOwner
    ) -> None:
        self.told = Event()
        self.is_due = False
        self._account = account
        self._totals = totals
        self._latency = latency
        self._now = clock.monotonic
        self._ended: deque[Publish] = deque()
        self._run_callback = gevent.get_hub().loop.run_callback
        self._owner = owner

    def settle(self, publish: Publish) -> None:
        """Tell, soon, those who wait for a publish that it is done."""
        self._ended.append(publish)
        if not self.is_due:
            self.is_due = True
            self._run_callback(self._tell)

    def _tell(self) -> None:
        """Wake those who wait: all that one read has answered in one callback, each resumed from here.

        Who is resumed comes back to the hub, so here, when it waits again: no callback or event for each publish.
        """
        ended, totals, account, add_latency = self._ended, self._totals, self._account, self._latency.add
        now = self._now()
        # Before those who are told publish the next: they have waited for longer.
        account.send_returned()
        try:
            while ended:
                publish = ended.popleft()
                if publish.members:
                    self._tell_members(publish, now)
                    continue
                account.pending -= 1
                account.pending_bytes -= publish.room
                if publish.error is None:
                    totals.confirmed += publish.messages
                    if publish.link is not None:
                        publish.link.confirmed += publish.messages
                    add_latency(now - publish.started, publish.messages)
                else:
                    self._count_failure(publish, publish.error)
                if publish.waiter is not None:
                    publish.waiter.switch()
                elif publish.result is not None:
                    publish.result.end(publish.error)  # tell() in place: 0.04 us of 3
                else:
                    publish.tell()
        finally:
            self.is_due = bool(ended)
            if ended:
                self._run_callback(self._tell)
            account.let_in()
            self.told.set()

    def _tell_members(self, batch: Publish, now: float) -> None:
        """Wake those who wait for a batch that was confirmed; counted as one, which saves 0.5 us of 3 for each."""
        members = iter(batch.members)
        account = self._account
        account.pending -= batch.messages
        account.pending_bytes -= batch.room
        self._totals.confirmed += batch.messages
        if batch.link is not None:
            batch.link.confirmed += batch.messages
        self._latency.add(now - batch.started, batch.messages)
        try:
            for member in members:
                if member.waiter is not None:
                    member.waiter.switch()
                elif member.result is not None:
                    member.result.confirm()  # tell() in place: 0.04 us of 2
                else:
                    member.tell()
        finally:
            for member in members:
                # A greenlet without a parent's care has raised; the others are told all the same.
                member.room = member.messages = 0
                account.pending += 1
                self._ended.append(member)

    def _count_failure(self, publish: Publish, error: NSQException) -> None:
        self._totals.count(error, publish.messages)
        if publish.on_room is not None and not publish.room:
            publish.on_room()
        if publish.waiter is None and publish.result is None and publish.on_done is None:
            text = "%s: a publish to %s failed, and its caller no longer waits for it: %s"
            label = self._owner.label
            self._owner.rate_limited(logger).log(logging.WARNING, "unheard", text, label, publish.topic, error)


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
