"""Batches: publishes to one topic that are sent together, as one MPUB; each keeps its own deadline and answer.

Owns batches that are being filled. What is sealed goes on as any other publish does.
"""

from __future__ import annotations

from collections.abc import Iterator

import gevent
from gevent.event import Event

from gnsq.clock import Clock
from gnsq.errors import NSQErrorCode, NSQException
from gnsq.producer.completion import LONGEST, NEVER
from gnsq.producer.dispatcher import Dispatcher
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import Publish, Where, copied, is_about_the_nsqd, is_about_the_topic
from gnsq.protocol import commands
from gnsq.protocol.frames import OK

__all__ = ["Batches", "Member"]


class Member(Publish):
    """A publish that goes in a batch. Its command is its body, until it goes alone."""

    alone = False

    def __init__(self, topic: str, body: bytes, started: float, deadline: float) -> None:
        self.topic = topic
        self.command = body
        self.size = len(body)
        self.started = started
        self.deadline = deadline

    @property
    def bodies(self) -> list[bytes]:
        return super().bodies if self.alone else [self.command]

    def leave(self) -> None:
        """Go alone from now on."""
        if not self.alone:
            self.alone = True
            self.largest_message = len(self.command)
            self.command = commands.publish(self.topic, self.command)
            self.size = len(self.command)


class _Batch(Publish):
    """Members that go as one MPUB: nsqd takes all of them or none, unless its disk is full, see leaves_open()."""

    def __init__(self, members: list[Member]) -> None:
        bodies = [member.command for member in members]
        deadline = min([member.deadline for member in members])
        command = commands.multipublish(members[0].topic, bodies)
        super().__init__(members[0].topic, command, max(map(len, bodies)), members[0].started, deadline)
        self.owner = members[0].owner
        self.key = members[0].key
        self.refused_by = frozenset().union(*(member.refused_by for member in members))
        self.mpub_body_size = 4 + sum(map(len, bodies)) + 4 * len(bodies)
        self.members: list[Member] = members

    def overdue(self, where: Where, now: float) -> None:
        if where is not Where.SENT:
            self.done = True
            for member in self._left():
                if member.deadline <= now:
                    self.owner.expire(member, where)
                else:
                    self.owner.resubmit(member)
            return
        for member in self._left():
            if member.deadline <= now:
                self.owner.expire(member, where)
                member.command = b""
        # As Publish.overdue(): only the answer is waited for.
        self.command = b""
        self.deadline = min((member.deadline for member in self._left()), default=NEVER)

    def on_response(self, data: bytes) -> None:
        if data != OK:
            raise self.misunderstood(data)
        self.done = True
        left = self.members = [member for member in self.members if not member.done]
        room = 0
        for member in left:
            member.done = True
            room += member.room
        self.messages = len(left)
        self.room = room
        if left:
            self.owner.complete(self)

    def on_error(self, error: NSQErrorCode) -> None:
        left = self._left()
        if is_about_the_topic(error):
            # None of them is any better alone.
            self.owner.refused_topic(self, error)
            return
        if len(self.members) > 1 and not is_about_the_nsqd(error):
            # One of them is bad, perhaps one whose deadline has passed: alone, it harms none of the others.
            for member in left:
                member.leave()
            self.on_not_sent(error)
            return
        self.done = True
        for member in left:
            self.owner.refused(member, copied(error))

    def on_connection_lost(self, error: NSQException) -> None:
        self.done = True
        for member in self._left():
            self.owner.lost(member, error)

    def on_not_sent(self, error: NSQException) -> None:
        self.done = True
        for member in self._left():
            self.owner.retry(member, error)

    def _left(self) -> list[Member]:
        left = [member for member in self.members if not member.done]
        for member in left:
            member.link = self.link
        return left


class _Filling:
    """Members that wait for more."""

    __slots__ = ("due", "members", "room")

    def __init__(self, due: float, room: int) -> None:
        self.due = due
        self.members: list[Member] = []
        self.room = room


class Batches:
    """Puts members together, by topic and key.

    A batch is sent when it has batch_messages or batch_bytes, or its first member has waited for batch_linger. It is
    not longer than max_body_size, as far as that is known.
    """

    def __init__(self, dispatcher: Dispatcher, options: ProducerOptions, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._count = options.batch_messages or 1
        # Bytes of an MPUB's body without the count of its messages.
        limit = options.max_body_size
        self._bytes = (options.batch_bytes if limit is None else min(options.batch_bytes, limit)) - 4
        self._linger = options.batch_linger
        self._clock = clock
        self._filling: dict[tuple[str, bytes | str | None], _Filling] = {}
        self._begun = Event()
        dispatcher.forward = self.add
        dispatcher.batched = self.members
        dispatcher.press = self.flush

    def add(self, publish: Publish) -> None:
        """Put a member into its batch; others go on at once."""
        if type(publish) is not Member or publish.alone:
            self._dispatcher.send(publish)
            return
        key = (publish.topic, publish.key)
        filling = self._filling.get(key)
        if filling is None:
            filling = self._begin(key)
        room = filling.room - publish.size - 4
        if room < 0 and filling.members:
            self._seal(key)
            filling = self._begin(key)
            room = filling.room - publish.size - 4
        filling.room = room
        members = filling.members
        members.append(publish)
        if room <= 0 or len(members) >= self._count:
            self._seal(key)

    def members(self) -> Iterator[Publish]:
        """Those that wait for more."""
        for filling in self._filling.values():
            yield from filling.members

    def hurry(self) -> None:
        """Let nothing wait for more from now on."""
        self._linger = 0.0
        self.flush()

    def flush(self) -> None:
        """Send all that waits for more."""
        for key in list(self._filling):
            self._seal(key)

    def run(self) -> None:
        """Send batches that have waited for long enough, for ever."""
        while True:
            due = min((filling.due for filling in self._filling.values()), default=NEVER)
            pause = due - self._clock.monotonic()
            if pause > 0:
                self._begun.clear()
                self._clock.wait(self._begun, min(pause, LONGEST))
                continue
            for key, filling in list(self._filling.items()):
                if filling.due <= due:
                    self._seal(key)

    def _begin(self, key: tuple[str, bytes | str | None]) -> _Filling:
        filling = self._filling[key] = _Filling(self._clock.monotonic() + self._linger, self._bytes)
        if len(self._filling) == 1:
            if self._linger:
                self._begun.set()
            else:
                # What comes in this round of the hub.
                gevent.get_hub().loop.run_callback(self.flush)
        return filling

    def _seal(self, key: tuple[str, bytes | str | None]) -> None:
        members = [member for member in self._filling.pop(key).members if not member.done]
        if not members:
            return
        if len(members) == 1:
            members[0].leave()
            self._dispatcher.send(members[0])
            return
        self._dispatcher.send(_Batch(members))
