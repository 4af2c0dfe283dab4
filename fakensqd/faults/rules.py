"""Which events a fault is for, and which of those it strikes: ``on.reply("PUB", topic="orders").nth(3)``.

Pure: takes events and ``now``. An event is whatever rules may act on: a command, its reply, a pushed frame, a
connection, an HTTP request.

Rules in order: which of them strikes, what became of each, and how near it came.

Pure: takes events, which carry the time, and a generator of random numbers. The first armed rule that strikes takes the
event; those behind it do not see it.

What an action is, apart from the actions there are: a server needs to know no more until it is given one.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from fakensqd.effects import FaultStep
from fakensqd.nsqd.commands import LOOKUPD_ROWS, NSQD_ROWS, ROWS

__all__ = [
    "LOOKUPD_COMMANDS",
    "NSQD_COMMANDS",
    "Action",
    "Change",
    "Event",
    "Match",
    "Plan",
    "Point",
    "Rule",
    "Scenario",
    "Steps",
    "Times",
    "on",
]


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


Steps = list[FaultStep]
Change = Callable[[Steps, Event], Steps]


@dataclass(frozen=True, slots=True)
class Action:
    """An action of the table below, with what it was called with.

    Attributes:
        points: Where it can be done.
        nsqd_only: Whether it is about what nsqlookupd does not have: messages, heartbeats, types of frames.
    """

    name: str
    change: Change = field(compare=False, repr=False)
    points: frozenset[Point]
    arguments: dict[str, Any] = field(default_factory=dict)  # Any: of all types
    nsqd_only: bool = False

    def __call__(self, steps: Steps, event: Event) -> Steps:
        """Give back what is to happen."""
        return self.change(steps, event)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


class Rule:
    """A condition with its actions, and how often it has struck.

    Args:
        optional: It need not strike.
        name: What a transcript calls it; default: how it is written.

    Attributes:
        fitting: Events that fitted while it was armed.
        fired: How often it has struck.
        armed_at: Since when events are held against it; None if not yet, or no more.
        nearest: What did not fit of the event that came closest, and that event.

    Raises:
        TypeError: If there is no action, or the arguments are in another order.
        ValueError: If one of the actions cannot be done there.
    """

    def __init__(self, match: Match, *actions: Action | Change, optional: bool = False, name: str = "") -> None:
        if not isinstance(match, Match) or not all(map(callable, actions)):
            given = ", ".join(map(_name, (match, *actions)))
            raise TypeError(f"({given}): a condition comes first, as on.reply('PUB'), and actions after it, as drop()")
        if not actions:
            raise TypeError(f"{match}: a rule needs an action")
        for action in actions:
            if isinstance(action, Action) and match.point not in action.points:
                points = ", ".join(sorted(point.value for point in action.points))
                raise ValueError(f"{match}: {action} is for {points}")
        self.match = match
        self.actions = actions
        self.optional = optional
        self.name = name or f"{match}, {', '.join(map(_name, actions))}"
        self.fitting = 0
        self.fired = 0
        self.armed_at: float | None = None
        self.nearest: tuple[list[str], Event] | None = None
        self._distance = 0
        self._early = 0

    @property
    def over(self) -> bool:
        """Whether it can strike nothing any more."""
        return self.match.times.over_after(self.fitting)

    @property
    def done(self) -> bool:
        """Whether the next one of a scenario is to be armed: it is over, or has struck and is never over."""
        return self.over or (self.match.times.endless and self.fired > 0)

    def strikes(self, event: Event, chance: Callable[[], float]) -> bool:
        """Hold an event against it, and count it if it fits."""
        times = self.match.times
        if self.armed_at is None or self.over:
            return False
        if event.point is not self.match.point:
            return False
        if misses := self.match.mismatches(event):
            self._note_miss(misses, event)
            return False
        if event.now < self.armed_at + times.after:
            self._early += 1
            return False
        self.fitting += 1
        if not times.strikes(self.fitting, chance() if times.chance < 1 else 0.0):
            return False
        self.fired += 1
        return True

    def apply(self, steps: Sequence[FaultStep], event: Event) -> list[FaultStep]:
        """Let its actions say what is to happen."""
        changed = list(steps)
        for action in self.actions:
            changed = list(action(changed, event))
        return changed

    def account(self) -> str:
        """Say why it has never struck."""
        if self.armed_at is None:
            return f"{self.name}: never armed, those before it have not fired"
        if self.fitting or self._early:
            return f"{self.name}: {self.fitting + self._early} fitted, and its time did not come"
        if self.nearest is None:
            return f"{self.name}: nothing of that kind happened"
        misses, event = self.nearest
        return f"{self.name}: nearest was {_event_text(event)}: {'; '.join(misses)}"

    def _note_miss(self, misses: list[str], event: Event) -> None:
        # The kind is what a rule is about: another command is farther away than another topic.
        distance = len(misses) + 10 * any(miss.startswith("kind") for miss in misses)
        if not self.fired and (self.nearest is None or distance < self._distance):
            self.nearest = misses, event
            self._distance = distance


class Scenario:
    """Rules in sequence, each armed when the one before has fired as often as it may (once, if that has no end)."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def then(self, match: Match, *actions: Action | Change, optional: bool = False, name: str = "") -> Self:
        """Append a rule."""
        self.rules.append(Rule(match, *actions, optional=optional, name=name))
        return self


class Plan:
    """All rules of one server.

    Args:
        seed: Of its random numbers.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)
        self._sequences: list[list[Rule]] = []
        self._points: frozenset[Point] = frozenset()

    @property
    def rules(self) -> list[Rule]:
        """All, in order."""
        return [rule for sequence in self._sequences for rule in sequence]

    def watches(self, point: Point) -> bool:
        """Whether any rule is about such events."""
        return point in self._points

    def add(self, rules: Sequence[Rule], now: float) -> None:
        """Append a sequence of rules and arm its first."""
        sequence = list(rules)
        self._sequences.append(sequence)
        self._changed()
        _arm(sequence, now)

    def remove(self, rules: Iterable[Rule]) -> None:
        """Forget rules."""
        gone = set(map(id, rules))
        self._sequences = [
            kept for sequence in self._sequences if (kept := [rule for rule in sequence if id(rule) not in gone])
        ]
        self._changed()

    def change(self, event: Event, steps: Sequence[FaultStep]) -> tuple[Rule | None, Sequence[FaultStep]]:
        """Give back what is to happen where the steps would, and the rule that wanted it so."""
        if event.point not in self._points:
            return None, steps
        for sequence in self._sequences:
            for rule in sequence:
                if rule.strikes(event, self._random.random):
                    _arm(sequence, event.now)
                    return rule, rule.apply(steps, event)
        return None, steps

    def _changed(self) -> None:
        self._points = frozenset(rule.match.point for rule in self.rules)


def _arm(sequence: list[Rule], now: float) -> None:
    for rule in sequence:
        if rule.armed_at is None:
            rule.armed_at = now
        if not rule.done:
            return


def _name(action: object) -> str:
    return str(action) if isinstance(action, (Action, Match)) else str(getattr(action, "__name__", repr(action)))


def _event_text(event: Event) -> str:
    words = [event.kind or event.point.value]
    words += [f"{name}={value!r}" for name, value in (("topic", event.topic), ("channel", event.channel)) if value]
    return f"{' '.join(words)} on connection {event.connection}" if event.connection else " ".join(words)
