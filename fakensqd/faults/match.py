"""Which events a fault is for, and which of those it strikes: ``on.reply("PUB", topic="orders").nth(3)``.

Pure: takes events and ``now``. An event is whatever rules may act on: a command, its reply, a pushed frame, a
connection, an HTTP request.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from fakensqd.commands import LOOKUPD_ROWS, NSQD_ROWS, ROWS

__all__ = ["LOOKUPD_COMMANDS", "NSQD_COMMANDS", "Event", "Match", "Point", "Times", "on"]

NSQD_COMMANDS, LOOKUPD_COMMANDS, _COMMANDS = (
    tuple(name.decode() for name in rows) for rows in (NSQD_ROWS, LOOKUPD_ROWS, ROWS)
)
_FRAMES = ("message", "heartbeat")


class Point(enum.Enum):
    """Where a fault acts."""

    COMMAND = "command"
    REPLY = "reply"
    FRAME = "frame"
    CONNECT = "connect"
    HTTP = "http"
    HTTP_ANSWER = "http_answer"


@dataclass(slots=True)
class Event:
    """Something that happens, as matchers and actions see it.

    Attributes:
        kind: The command; "message" or "heartbeat"; the path of a request. Empty for a connection.
        connection: Its number, from 1 in the order of accepting; 0 for HTTP.
        client_id: What IDENTIFY said, before it the client's address; to nsqlookupd, where nsqd says it is reached.
        topic, channel: Those of the command or request, else those of the subscription; empty if there are none.
        bodies: Of the messages, or the body that IDENTIFY, AUTH or a request came with.
        raw: The body of a command as it came.
        words: The words behind a command.
        attempts: Of a message.
        method, query: Of a request.
        header: Bytes in front of what an answer says: 8, its size and type; 4 from nsqlookupd, which sends no type.
    """

    point: Point
    kind: str
    now: float
    connection: int = 0
    client_id: str = ""
    topic: str = ""
    channel: str = ""
    bodies: tuple[bytes, ...] = ()
    raw: bytes = b""
    words: tuple[bytes, ...] = ()
    message_id: bytes = b""
    attempts: int = 0
    method: str = ""
    query: dict[str, str] = field(default_factory=dict)
    header: int = 8


@dataclass(frozen=True, slots=True)
class Times:
    """Which of the matching events a rule strikes, counted from 1.

    Attributes:
        first, last: The first and the last one.
        step: Only each so many-th of them, counted from the beginning.
        chance: How likely it strikes each of them; from 0 to 1.
        after: Events in so many seconds from the arming are not counted.
    """

    first: int = 1
    last: float = 1
    step: int = 1
    chance: float = 1.0
    after: float = 0.0

    def strikes(self, count: int, chance: float) -> bool:
        """Say whether it strikes the event of that number, given a random number from 0 up to 1."""
        return self.first <= count <= self.last and count % self.step == 0 and chance < self.chance

    def over_after(self, count: int) -> bool:
        """Say whether it strikes nothing any more, once so many have been counted."""
        return count >= self.last

    @property
    def endless(self) -> bool:
        """Whether it is never over."""
        return math.isinf(self.last)

    def __str__(self) -> str:
        after = f".after({self.after:g})" if self.after else ""
        if self.chance < 1:
            return f"{after}.sometimes({self.chance:g})"
        if self.endless:
            return f"{after}.every({self.step})" if self.step > 1 else f"{after}.always()"
        if self.first == self.last:
            return f"{after}.nth({self.first})" if self.first > 1 else after
        return f"{after}.first({self.last:g})"


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Match:
    """A condition on events, and on their number. What is None, or not given, fits everything.

    Make one with ``on``. A Match is a value: the methods give back another.
    """

    point: Point
    kind: str | None = None
    topic: str | None = None
    channel: str | None = None
    connection: int | None = None
    client_id: str | None = None
    body: bytes | None = None
    method: str | None = None
    where: Callable[[Event], bool] | None = None
    times: Times = Times()

    def nth(self, number: int) -> Match:
        """Strike only the event of that number, counted from 1."""
        return self._timed(first=_positive("nth", number), last=number)

    def first(self, count: int) -> Match:
        """Strike so many events, from the first on."""
        return self._timed(last=_positive("first", count))

    def every(self, count: int) -> Match:
        """Strike each so many-th event, for ever."""
        return self._timed(last=math.inf, step=_positive("every", count))

    def always(self) -> Match:
        """Strike every event."""
        return self._timed(last=math.inf)

    def sometimes(self, chance: float) -> Match:
        """Strike each event with that likelihood, from 0 to 1, by the server's seeded random numbers."""
        if not 0 <= chance <= 1:
            raise ValueError(f"sometimes({chance!r}): a chance is from 0 to 1")
        return self._timed(last=math.inf, chance=chance)

    def after(self, seconds: float) -> Match:
        """Count from the event that comes so many seconds after the rule has been armed, by the emulator's clock."""
        if not 0 <= seconds < math.inf:
            raise ValueError(f"after({seconds!r}): seconds are 0 or more")
        return dataclasses.replace(self, times=dataclasses.replace(self.times, after=seconds))

    def _timed(self, **changes: float) -> Match:
        times = dataclasses.replace(Times(after=self.times.after), **changes)  # type: ignore[arg-type]  # ints are floats
        return dataclasses.replace(self, times=times)

    def mismatches(self, event: Event) -> list[str]:
        """Say what of an event does not fit; empty if all does."""
        if event.point is not self.point:
            return [f"it is {event.point.value}, not {self.point.value}"]
        found = [
            f"{name} is {is_!r}, not {wanted!r}"
            for name, wanted, is_ in (
                ("kind", self.kind, event.kind),
                ("topic", self.topic, event.topic),
                ("channel", self.channel, event.channel),
                ("connection", self.connection, event.connection),
                ("client_id", self.client_id, event.client_id),
                ("method", self.method, event.method),
            )
            if wanted is not None and is_ != wanted
        ]
        if self.body is not None and self.body not in event.bodies:
            found.append(f"body is {_short(event.bodies)}, not {self.body!r}")
        if not found and self.where is not None and not self.where(event):
            found.append("where() says no")
        return found

    def __str__(self) -> str:
        arguments = [repr(self.kind)] if self.kind is not None else []
        for name in ("topic", "channel", "connection", "client_id", "body", "method"):
            value = getattr(self, name)
            if value is not None:
                arguments.append(f"{name}={value!r}")
        if self.where is not None:
            arguments.append(f"where={getattr(self.where, '__name__', 'a predicate')}")
        if self.point is Point.HTTP_ANSWER:
            arguments.append("executed=True")
        name = Point.HTTP.value if self.point is Point.HTTP_ANSWER else self.point.value
        return f"on.{name}({', '.join(arguments)}){self.times}"


def _positive(name: str, number: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{name}({number!r}): numbers begin with 1")
    return number


def _short(bodies: tuple[bytes, ...]) -> str:
    if len(bodies) != 1:
        return f"in {len(bodies)} messages"
    return repr(bodies[0] if len(bodies[0]) <= 60 else bodies[0][:57] + b"...")


def _checked(kind: str | None, allowed: tuple[str, ...]) -> str | None:
    if kind is not None and kind not in allowed:
        raise ValueError(f"kind is {kind!r}, not one of {', '.join(allowed)}")
    return kind


class on:  # a word of the language of rules, not a class that is made
    """Where and for what a fault is: ``on.command("PUB", topic="orders")``. By default it strikes once.

    All take what a Match has: topic, channel, connection, client_id, body (of one of the messages), and where, a
    predicate that is given the Event.
    """

    @staticmethod
    def command(
        kind: str | None = None,
        *,
        topic: str | None = None,
        channel: str | None = None,
        connection: int | None = None,
        client_id: str | None = None,
        body: bytes | None = None,
        where: Callable[[Event], bool] | None = None,
    ) -> Match:
        """A command that has come: acts instead of its execution, or before it."""
        return Match(Point.COMMAND, _checked(kind, _COMMANDS), topic, channel, connection, client_id, body, where=where)

    @staticmethod
    def reply(
        kind: str | None = None,
        *,
        topic: str | None = None,
        channel: str | None = None,
        connection: int | None = None,
        client_id: str | None = None,
        body: bytes | None = None,
        where: Callable[[Event], bool] | None = None,
    ) -> Match:
        """What a command is answered with, once it has been executed; FIN and others say nothing if all is well."""
        return Match(Point.REPLY, _checked(kind, _COMMANDS), topic, channel, connection, client_id, body, where=where)

    @staticmethod
    def frame(
        kind: str | None = None,
        *,
        topic: str | None = None,
        channel: str | None = None,
        connection: int | None = None,
        client_id: str | None = None,
        body: bytes | None = None,
        where: Callable[[Event], bool] | None = None,
    ) -> Match:
        """What the server pushes: "message" or "heartbeat"."""
        return Match(Point.FRAME, _checked(kind, _FRAMES), topic, channel, connection, client_id, body, where=where)

    @staticmethod
    def connect(*, connection: int | None = None, where: Callable[[Event], bool] | None = None) -> Match:
        """A TCP connection that has been accepted."""
        return Match(Point.CONNECT, connection=connection, where=where)

    @staticmethod
    def http(
        path: str | None = None,
        *,
        method: str | None = None,
        topic: str | None = None,
        channel: str | None = None,
        body: bytes | None = None,
        executed: bool = False,
        where: Callable[[Event], bool] | None = None,
    ) -> Match:
        """A request: acts instead of it; with executed on its answer, once all has been done.

        The body is not known before that.

        Raises:
            ValueError: If a body is asked for before the request has been executed, or the path is none.
        """
        if path is not None and not path.startswith("/"):
            raise ValueError(f"kind is {path!r}, not a path, which begins with /")
        if body is not None and not executed:
            raise ValueError("the body of a request is known once it has been executed: executed=True")
        point = Point.HTTP_ANSWER if executed else Point.HTTP
        return Match(point, path, topic, channel, body=body, method=method, where=where)
