"""Fault rules. A rule is a condition on events, and actions: ``on.reply("PUB", topic="orders").nth(3), drop()``.

Pure: events carry the time. FaultControl decides which rule of a server acts on an event.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, Self, TypedDict, Unpack, get_args

from fakensqd.effects import FaultStep
from gnsq.texts import nearest

__all__ = [
    "Action",
    "ActionFunction",
    "Event",
    "Match",
    "Matchers",
    "Point",
    "Rule",
    "Scenario",
    "ServerProtocol",
    "Steps",
    "Times",
    "on",
]

# --- events -----------------------------------------------------------------------------------------------------------


class Point(enum.Enum):
    """Kind of event that a rule acts on."""

    COMMAND = "command"
    REPLY = "reply"
    FRAME = "frame"
    CONNECT = "connect"
    HTTP = "http"
    HTTP_ANSWER = "http_answer"


@dataclass(frozen=True, slots=True)
class ServerProtocol:
    """The events of a kind of server.

    Attributes:
        commands: For each command of the server, the names of the Event fields for its first parameters.
        has_frame_types: True for nsqd, whose frames have a type. nsqlookupd only sends replies: their size and text.
    """

    commands: Mapping[str, tuple[str, ...]]
    has_frame_types: bool

    @property
    def header_size(self) -> int:
        """Bytes before the text of a reply."""
        return 8 if self.has_frame_types else 4

    def kinds(self, point: Point) -> Iterable[str] | None:
        """Return the kinds of the events at a point; None if there is any number of kinds."""
        if point in (Point.COMMAND, Point.REPLY):
            return self.commands
        return (get_args(FrameName) if self.has_frame_types else ()) if point is Point.FRAME else None


FrameName = Literal["message", "heartbeat"]
# Of nsqd and nsqlookupd.
CommandName = Literal[
    "AUTH", "CLS", "DPUB", "FIN", "IDENTIFY", "MPUB", "NOP", "PING", "PUB", "RDY", "REGISTER", "REQ", "SUB", "TOUCH",
    "UNREGISTER",
]  # fmt: skip


@dataclass(slots=True)
class Event:
    """An event, which conditions and actions get.

    Attributes:
        kind: Name of the command; "message" or "heartbeat"; path of the request. Empty for a connection.
        connection: Number of the connection, from 1, in the order of accepting; 0 for HTTP.
        client_id: That of IDENTIFY; before IDENTIFY, the client's IP address. On nsqlookupd, ``host:port`` of the nsqd.
        topic, channel: Names in the command or request, else of the subscription; empty if there are none.
        bodies: Bodies of the messages, or the body of IDENTIFY, AUTH or a request.
        raw: The body of a command as received.
        words: The words after a command's name.
        attempts: Attempts of a message.
        method, query: Method and query arguments of a request.
        header_size: Bytes before the text of a reply: 8 from nsqd, 4 from nsqlookupd.
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
    header_size: int = 8


# --- conditions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Times:
    """Which of the matching events a rule fires on. The events are counted from 1.

    Attributes:
        first, last: Number of the first and of the last event on which the rule may fire.
        step: Fire only if the event's number is a multiple of the step.
        probability: Probability of firing on such an event, from 0 to 1.
        after: Do not count events in the first ``after`` seconds after the rule was armed.
    """

    first: int = 1
    last: float = 1
    step: int = 1
    probability: float = 1.0
    after: float = 0.0

    def includes(self, count: int, rng: Random) -> bool:
        """Return True if the rule fires on the event with this number."""
        if not (self.first <= count <= self.last and count % self.step == 0):
            return False
        return self.probability >= 1 or rng.random() < self.probability

    @property
    def is_unbounded(self) -> bool:
        """True if there is no last event."""
        return math.isinf(self.last)

    def __str__(self) -> str:
        after = f".after({self.after:g})" if self.after else ""
        if self.probability < 1:
            return f"{after}.sometimes({self.probability:g})"
        if self.is_unbounded:
            return f"{after}.every({self.step})" if self.step > 1 else f"{after}.always()"
        if self.first == self.last:
            return f"{after}.nth({self.first})" if self.first > 1 else after
        return f"{after}.first({self.last:g})"


# Fields of Match that are compared with the event's field of the same name.
_EQUAL_FIELDS = ("kind", "topic", "channel", "connection", "client_id", "method")


@dataclass(frozen=True, slots=True)
class Match:
    """Condition on events, and on their number. A field that is None matches every value.

    Use ``on`` to make a Match. Methods that set ``times``, such as nth(), do not change it but return another Match.
    """

    point: Point
    kind: str | None = None
    topic: str | None = None
    channel: str | None = None
    connection: int | None = None
    client_id: str | None = None
    method: str | None = None
    body: bytes | None = None
    where: Callable[[Event], bool] | None = None
    times: Times = Times()

    def nth(self, number: int) -> Match:
        """Fire only on the matching event with this number, counted from 1."""
        return self._timed(first=_positive("nth", number), last=number)

    def first(self, count: int) -> Match:
        """Fire on this many matching events, beginning with the first."""
        return self._timed(last=_positive("first", count))

    def every(self, count: int) -> Match:
        """Fire on every matching event whose number is a multiple of the count."""
        return self._timed(last=math.inf, step=_positive("every", count))

    def always(self) -> Match:
        """Fire on every matching event."""
        return self._timed(last=math.inf)

    def sometimes(self, probability: float) -> Match:
        """Fire on each matching event with this probability, from 0 to 1. The server's seed decides on which events."""
        if not 0 <= probability <= 1:
            raise ValueError(f"sometimes({probability!r}): a probability is from 0 to 1")
        return self._timed(last=math.inf, probability=probability)

    def after(self, seconds: float) -> Match:
        """Ignore events in the first ``seconds`` after the rule was armed, by the emulator's clock."""
        if not 0 <= seconds < math.inf:
            raise ValueError(f"after({seconds!r}): seconds are 0 or more")
        return dataclasses.replace(self, times=dataclasses.replace(self.times, after=seconds))

    def _timed(self, **changes: float) -> Match:
        times = dataclasses.replace(Times(after=self.times.after), **changes)  # type: ignore[arg-type]  # ints are floats
        return dataclasses.replace(self, times=times)

    def mismatches(self, event: Event) -> list[str]:
        """Describe what does not match: the point; else the fields; else where(). Empty: the event matches."""
        if event.point is not self.point:
            return [f"it is {event.point.value}, not {self.point.value}"]
        found = [
            f"{name} is {getattr(event, name)!r}, not {wanted!r}"
            for name in _EQUAL_FIELDS
            if (wanted := getattr(self, name)) is not None and wanted != getattr(event, name)
        ]
        if self.body is not None and self.body not in event.bodies:
            found.append(f"body is {_short(event.bodies)}, not {self.body!r}")
        if not found and self.where is not None and not self.where(event):
            found.append("where() says no")
        return found

    def __str__(self) -> str:
        arguments = [repr(self.kind)] if self.kind is not None else []
        for name in (*_EQUAL_FIELDS[1:], "body"):
            if (value := getattr(self, name)) is not None:
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


class Matchers(TypedDict, total=False):
    """Conditions on an event of a connection. None matches every value; ``body`` must equal one of the bodies."""

    topic: str | None
    channel: str | None
    connection: int | None
    client_id: str | None
    body: bytes | None
    where: Callable[[Event], bool] | None


class on:  # lower case, since rules read as sentences: ``on.command(...)``; never instantiated
    """Makes a Match: ``on.command("PUB", topic="orders")``. The rule fires once if no first(), always() ... follows."""

    @staticmethod
    def command(kind: CommandName | None = None, **matchers: Unpack[Matchers]) -> Match:
        """Match a received command, before it is executed. The actions may replace the execution."""
        return _match(Point.COMMAND, _known(kind), matchers)

    @staticmethod
    def reply(kind: CommandName | None = None, **matchers: Unpack[Matchers]) -> Match:
        """Match the server's reply to a command: also an error, or no frame at all, as nsqd's reply to a valid FIN."""
        return _match(Point.REPLY, _known(kind), matchers)

    @staticmethod
    def frame(kind: FrameName | None = None, **matchers: Unpack[Matchers]) -> Match:
        """Match a frame that the server pushes: "message" or "heartbeat"."""
        return _match(Point.FRAME, kind, matchers)

    @staticmethod
    def connect(*, connection: int | None = None, where: Callable[[Event], bool] | None = None) -> Match:
        """Match an accepted TCP connection."""
        return Match(Point.CONNECT, connection=connection, where=where)

    @staticmethod
    def http(
        kind: str | None = None,
        *,
        method: str | None = None,
        topic: str | None = None,
        channel: str | None = None,
        body: bytes | None = None,
        executed: bool = False,
        where: Callable[[Event], bool] | None = None,
    ) -> Match:
        """Match an HTTP request before it is executed, or, with ``executed=True``, the response after the execution.

        Args:
            kind: The path.

        Raises:
            ValueError: If the path does not begin with /, or a body is given without ``executed=True``: before the
                execution, the body is unknown.
        """
        if kind is not None and not kind.startswith("/"):
            raise ValueError(f"kind is {kind!r}, not a path, which begins with /")
        if body is not None and not executed:
            raise ValueError("the body of a request is not known before it is executed: use executed=True")
        point = Point.HTTP_ANSWER if executed else Point.HTTP
        return Match(point, kind, topic, channel, body=body, method=method, where=where)


def _known(kind: str | None) -> str | None:
    if kind is not None and kind not in (names := get_args(CommandName)):
        raise ValueError(f"{kind!r} is no command of nsqd or nsqlookupd{nearest([kind], names, 'commands are')}")
    return kind


def _match(point: Point, kind: str | None, matchers: Matchers) -> Match:
    unknown = set(matchers) - set(Matchers.__annotations__)
    if unknown:
        raise TypeError(f"on.{point.value}() has no {min(unknown)}; it has {', '.join(Matchers.__annotations__)}")
    return Match(point, kind, **matchers)


# --- rules ------------------------------------------------------------------------------------------------------------

Steps = list[FaultStep]
# A function that gets the steps for an event, and returns the steps to take instead of them.
ActionFunction = Callable[[Steps, Event], Steps]


@dataclass(frozen=True, slots=True)
class Action:
    """An action of ``fakensqd.faults`` with its arguments.

    Attributes:
        points: The kinds of events that the action can change.
        nsqd_only: True if the action needs messages, heartbeats or frame types, which nsqlookupd does not have.
    """

    name: str
    function: ActionFunction = field(compare=False, repr=False)
    points: frozenset[Point]
    arguments: dict[str, Any] = field(default_factory=dict)  # Any: of all types
    nsqd_only: bool = False

    def __call__(self, steps: Steps, event: Event) -> Steps:
        """Return the steps to take instead of the given steps."""
        return self.function(steps, event)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


class Rule:
    """A condition with its actions, and a count of how often the rule has fired.

    Args:
        optional: Do not report the rule if it never fires.
        name: Name in the transcript; default: the rule as Python code.

    Attributes:
        fitting: How many events matched while the rule was armed and not spent, without those that ``after`` ignores.
        fired: How often the rule has fired.
        is_told: True if somebody was told that the rule has never fired.
        armed_at: Time at which the rule was armed; None: the rule is not armed, and ignores all events.

    Raises:
        TypeError: If there is no action, or the arguments are in another order.
        ValueError: If an action is not allowed for the events of the match.
    """

    def __init__(self, match: Match, *actions: Action | ActionFunction, optional: bool = False, name: str = "") -> None:
        if not isinstance(match, Match) or not all(map(callable, actions)):
            given = ", ".join(map(_name, (match, *actions)))
            raise TypeError(f"({given}): a condition comes first, as on.reply('PUB'), and actions after it, as drop()")
        if not actions:
            raise TypeError(f"{match}: a rule needs an action, such as drop()")
        for action in actions:
            if not isinstance(action, Action) and getattr(action, "__module__", "") == "fakensqd.faults.actions":
                raise TypeError(f"{match}: {_name(action)} is not called: write {_name(action)}(...)")
            if isinstance(action, Action) and match.point not in action.points:
                points = ", ".join(sorted(point.value for point in action.points))
                raise ValueError(f"{match}: {action} is for {points}")
        self.match = match
        self.actions = actions
        self.optional = optional
        self.name = name or f"{match}, {', '.join(map(_name, actions))}"
        self.fitting = 0
        self.fired = 0
        self.is_told = False
        self.armed_at: float | None = None
        # The event that came closest to a match, and its mismatches.
        self._nearest: tuple[Event, list[str]] | None = None
        self._distance = 0
        self._early = 0

    @property
    def is_spent(self) -> bool:
        """True if the rule cannot fire any more."""
        return self.fitting >= self.match.times.last

    @property
    def is_finished(self) -> bool:
        """True if the next rule may be armed: this rule is spent, or may fire without end and has fired."""
        return self.is_spent or (self.match.times.is_unbounded and self.fired > 0)

    def fires(self, event: Event, rng: Random) -> bool:
        """Compare an event with the condition, and count it if it matches. Return True if the rule fires."""
        times = self.match.times
        if event.point is not self.match.point or self.armed_at is None or self.is_spent:
            return False
        if mismatches := self.match.mismatches(event):
            self._record_mismatch(event, mismatches)
            return False
        if event.now < self.armed_at + times.after:
            self._early += 1
            return False
        self.fitting += 1
        if not times.includes(self.fitting, rng):
            return False
        self.fired += 1
        return True

    def apply(self, steps: Sequence[FaultStep], event: Event) -> list[FaultStep]:
        """Let each action change the steps for an event, one after another; return the steps to take."""
        changed = list(steps)
        for action in self.actions:
            changed = list(action(changed, event))
        return changed

    def explain(self) -> str:
        """Explain why the rule has never fired."""
        if self.armed_at is None:
            return f"{self.name}: never armed, those before it have not fired"
        if self.fitting or self._early:
            return f"{self.name}: {self.fitting + self._early} fitted, and its time did not come"
        if self._nearest is None:
            return f"{self.name}: nothing of that kind happened"
        event, mismatches = self._nearest
        words = [event.kind or event.point.value]
        words += [f"{name}={value!r}" for name, value in (("topic", event.topic), ("channel", event.channel)) if value]
        if event.connection:
            words.append(f"on connection {event.connection}")
        return f"{self.name}: nearest was {' '.join(words)}: {'; '.join(mismatches)}"

    def _record_mismatch(self, event: Event, mismatches: list[str]) -> None:
        # Another command is farther from a match than another topic; PUB, MPUB and DPUB are near to each other.
        distance, kind = len(mismatches), self.match.kind
        if kind not in (None, event.kind):
            distance += 5 if event.kind.endswith(kind) or kind.endswith(event.kind) else 10
        if not self.fired and (self._nearest is None or distance < self._distance):
            self._nearest, self._distance = (event, mismatches), distance


def _name(action: object) -> str:
    return str(action) if isinstance(action, (Action, Match)) else str(getattr(action, "__name__", repr(action)))


class Scenario:
    """A sequence of rules. A rule after the first is armed when the rule before it is finished (Rule.is_finished)."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def then(self, match: Match, *actions: Action | ActionFunction, optional: bool = False, name: str = "") -> Self:
        """Append a rule, and return this scenario."""
        self.rules.append(Rule(match, *actions, optional=optional, name=name))
        return self
