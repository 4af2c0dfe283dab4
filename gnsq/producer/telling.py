"""Telling: publishes that have ended are counted, and whoever waits for them is woken.

Owns those that have ended and were not told yet. How they have ended is decided elsewhere.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Protocol

import gevent
from gevent.event import Event

from gnsq.clock import Clock
from gnsq.errors import NSQException
from gnsq.logs import LogOwner
from gnsq.nsqd.latency import Latency
from gnsq.producer.outcomes import Totals
from gnsq.producer.publish import Publish

__all__ = ["Telling"]

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

    def __init__(self, account: _Account, totals: Totals, latency: Latency, clock: Clock, owner: LogOwner) -> None:
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
        members = deque(batch.members)
        account = self._account
        account.pending -= batch.messages
        account.pending_bytes -= batch.room
        self._totals.confirmed += batch.messages
        if batch.link is not None:
            batch.link.confirmed += batch.messages
        self._latency.add(now - batch.started, batch.messages)
        try:
            while members:
                member = members.popleft()
                if member.waiter is not None:
                    member.waiter.switch()
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
