"""Automatic batches: sends publishes with one topic as one MPUB. Each publish has its own deadline and outcome.

This module owns batches until they are sent. A batch is sent in the same way as a single publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import gevent
from gevent.event import Event

from gnsq.clock import Clock
from gnsq.producer.deadlines import MAX_SLEEP, NO_DEADLINE
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import MultiPublish, PendingPublish

__all__ = ["Batch", "Batcher"]


class Batch(MultiPublish):
    """Publishes that are sent as one MPUB. nsqd stores all or none of them, except in the case that
    may_be_partially_stored() describes."""

    def __init__(self, members: list[PendingPublish]) -> None:
        first = members[0]
        deadline = min([member.deadline for member in members])
        super().__init__(first.topic, [member.body for member in members], first.started, deadline)
        self.owner = first.owner
        self.refused_by = frozenset().union(*(member.refused_by for member in members))
        self.members: list[PendingPublish] = members

    def unfinished(self) -> list[PendingPublish]:
        if self.done:
            return []
        members = [member for member in self.members if not member.done]
        for member in members:
            member.link = self.link
        return members

    def confirm_members(self) -> list[PendingPublish]:
        members = [member for member in self.members if not member.done]
        reserved_bytes = 0
        for member in members:
            member.done = True
            reserved_bytes += member.reserved_bytes
        self.reserved_bytes = reserved_bytes
        return members


@dataclass(slots=True)
class _OpenBatch:
    """A batch that is not full.

    Attributes:
        due: Time at which the batch is sent even if it is not full, monotonic seconds.
        free_bytes: Number of bytes that still fit in the batch.
    """

    due: float
    free_bytes: int
    members: list[PendingPublish] = field(default_factory=list)


class Batcher:
    """Collects publishes with the same topic in a batch.

    A batch is sent when it has batch_messages messages, when the next message would make it longer than batch_bytes or
    max_body_size (if set), when batch_linger seconds have passed since it was opened, or when flush() is called.

    Args:
        send: Called with each batch, and with each publish that is sent alone.
    """

    def __init__(self, send: Callable[[PendingPublish], None], options: ProducerOptions, clock: Clock) -> None:
        self._send = send
        self._max_messages = options.batch_messages or 1
        # _max_bytes is the limit of an MPUB's body, without the 4 bytes for the number of messages.
        limit = options.max_body_size
        self._max_bytes = (options.batch_bytes if limit is None else min(options.batch_bytes, limit)) - 4
        self._linger = options.batch_linger
        self._clock = clock
        self._open: dict[str, _OpenBatch] = {}
        self._opened = Event()

    def add(self, publish: PendingPublish) -> None:
        """Put a publish into a batch. If it can't be in a batch, send it alone."""
        if not publish.is_batchable:
            self._send(publish)
            return
        topic = publish.topic
        batch = self._open.get(topic)
        if batch is None:
            batch = self._open_batch(topic)
        free_bytes = batch.free_bytes - publish.largest_message - 4
        if free_bytes < 0 and batch.members:
            self._close_batch(topic)
            batch = self._open_batch(topic)
            free_bytes = batch.free_bytes - publish.largest_message - 4
        batch.free_bytes = free_bytes
        members = batch.members
        members.append(publish)
        if free_bytes <= 0 or len(members) >= self._max_messages:
            self._close_batch(topic)

    def waiting(self) -> Iterator[PendingPublish]:
        """Yield the publishes that are in batches that were not sent."""
        for batch in self._open.values():
            yield from batch.members

    def stop_waiting(self) -> None:
        """Send all batches. From now on, send each by the end of the hub's round in which it was opened."""
        self._linger = 0.0
        self.flush()

    def flush(self) -> None:
        """Send all batches, even if they are not full."""
        for topic in list(self._open):
            self._close_batch(topic)

    def run(self) -> None:
        """Send batches when they have waited for batch_linger, until the greenlet is killed."""
        while True:
            due = min((batch.due for batch in self._open.values()), default=NO_DEADLINE)
            pause = due - self._clock.monotonic()
            if pause > 0:
                self._opened.clear()
                self._clock.wait(self._opened, min(pause, MAX_SLEEP))
                continue
            for topic, batch in list(self._open.items()):
                if batch.due <= due:
                    self._close_batch(topic)

    def _open_batch(self, topic: str) -> _OpenBatch:
        batch = self._open[topic] = _OpenBatch(self._clock.monotonic() + self._linger, self._max_bytes)
        if len(self._open) == 1:
            if self._linger:
                self._opened.set()
            else:
                # flush() is called after all publishes that greenlets make in this round of the hub.
                gevent.get_hub().loop.run_callback(self.flush)
        return batch

    def _close_batch(self, topic: str) -> None:
        members = [member for member in self._open.pop(topic).members if not member.done]
        if len(members) == 1:
            members[0].is_batchable = False
            self._send(members[0])
        elif members:
            self._send(Batch(members))
