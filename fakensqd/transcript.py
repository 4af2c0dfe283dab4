"""Transcript of a server's events, as text and as JSON lines; wait_until() waits until a value is as expected.

The events are commands, replies, pushed frames, connections, HTTP requests, calls of publish(), and rules that fired.
An entry for a frame is made before the connection sends the bytes. Above a limit, the oldest entries are dropped.
wait_until() waits in the hub; the rest is pure.
"""

from __future__ import annotations

import base64
import dataclasses
import difflib
import json
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gevent.event import Event

from gnsq.clock import monotonic
from gnsq.texts import counted, nearest

__all__ = [
    "Entry",
    "Transcript",
    "difference",
    "failure",
    "shown_body",
    "wait_until",
]

# Limits of what a failure shows: bytes of a body, the last entries, kinds of entries, characters of a value, items of a
# list.
_SHOWN_BYTES = 60
_SHOWN_ENTRIES = 40
_SHOWN_KINDS = 6
_SHOWN_CHARACTERS = 300
_SHOWN_ITEMS = 20


@dataclass(slots=True)
class Entry:
    """One event.

    Attributes:
        time: Monotonic time of the server's clock, in seconds.
        connection: Number of the connection, from 1; 0 for HTTP and FakeNsqd.publish().
        kind: "connect", "end", "command", "reply", "message", "heartbeat", "http", "fault", or "publish" for
            FakeNsqd.publish().
        name: Name of the command; first word of a reply; method and path of a request; name of the rule.
        detail: Other words of the command or reply; for "connect", the client's address; for "publish", the delay.
        executed: How often the command was executed with success; for publishing over HTTP or by publish(), 0 or 1.
        status: Status of the response to a request; 0 if there was no response.
    """

    time: float
    connection: int
    kind: str
    name: str = ""
    client_id: str = ""
    topic: str = ""
    channel: str = ""
    message_id: bytes = b""
    attempts: int = 0
    bodies: tuple[bytes, ...] = ()
    detail: str = ""
    executed: int = 0
    status: int = 0

    def __str__(self) -> str:
        words = [f"{self.time:10.3f}", f"#{self.connection}" if self.connection else "  ", self.kind]
        if self.name and self.name != self.kind:
            words.append(self.name)
        if self.topic:
            words.append(f"{self.topic}/{self.channel}" if self.channel else self.topic)
        if self.message_id:
            words.append(self.message_id.decode("latin-1"))
        if self.attempts:
            words.append(f"attempt {self.attempts}")
        # Tests print the transcript, also in the log of a CI server: the secret of AUTH is in bodies alone.
        words += [shown_body(body) if self.name != "AUTH" else "..." for body in self.bodies[:3]]
        if len(self.bodies) > 3:
            words.append(f"and {len(self.bodies) - 3} more")
        if self.status:
            words.append(str(self.status))
        if self.detail:
            words.append(self.detail)
        return " ".join(words)


class Transcript:
    """Entries in order, with methods that select them. Each returns a list; its length is the count.

    Args:
        max_entries, max_bytes: Limits of the number of entries, and of the bytes of all bodies in them. The oldest
            entries are dropped above these limits.

    Attributes:
        dropped: How many entries were dropped.
        on_entry: Called after each append().
    """

    def __init__(self, *, max_entries: int = 100_000, max_bytes: int = 64 * 1024 * 1024) -> None:
        self.dropped = 0
        self.on_entry: Callable[[], None] | None = None
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes

    def append(self, entry: Entry) -> Entry:
        """Append an entry, and return it."""
        self._entries.append(entry)
        self._bytes += sum(map(len, entry.bodies))
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._bytes -= sum(map(len, self._entries.popleft().bodies))
            self.dropped += 1
        if self.on_entry is not None:
            self.on_entry()
        return entry

    def clear(self) -> None:
        """Remove all entries, and set dropped to 0."""
        self._entries.clear()
        self._bytes = self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    # --- selecting ----------------------------------------------------------------------------------------------------

    def select(self, kind: str | None = None, **wanted: object) -> list[Entry]:
        """Return the entries of this kind that have these attributes: ``select("command", name="PUB", topic="t")``."""
        return [
            entry
            for entry in self._entries
            if (kind is None or entry.kind == kind)
            and all(getattr(entry, name) == value for name, value in wanted.items())
        ]

    def delivered(self, topic: str, channel: str | None = None) -> list[bytes]:
        """Return the body of each message that was pushed, once for each push."""
        return [body for entry in self._of("message", topic=topic, channel=channel) for body in entry.bodies]

    def finished(self, topic: str | None = None, channel: str | None = None) -> list[bytes]:
        """Return the id of the message of each FIN that was accepted."""
        return self._answered("FIN", topic, channel)

    def requeued(self, topic: str | None = None, channel: str | None = None) -> list[bytes]:
        """Return the id of the message of each REQ that was accepted."""
        return self._answered("REQ", topic, channel)

    def touched(self, topic: str | None = None, channel: str | None = None) -> list[bytes]:
        """Return the id of the message of each TOUCH that was accepted."""
        return self._answered("TOUCH", topic, channel)

    def commands(self, name: str | None = None) -> list[str]:
        """Return the name of each received command, executed or not. With a name, only of commands with this name."""
        return [entry.name for entry in self._of("command", name=name)]

    def errors(self) -> list[str]:
        """Return the text of each error frame that was sent, by the server or by a fault."""
        replies = self.select("reply")
        return [f"{entry.name} {entry.detail}".rstrip() for entry in replies if entry.name.startswith("E_")]

    def requests(self, path: str | None = None) -> list[str]:
        """Return method and path of each HTTP request. With a path, only of requests with this path."""
        names = [entry.name for entry in self.select("http")]
        return [name for name in names if path is None or name.partition(" ")[2] == path]

    def connected(self) -> list[int]:
        """Return the numbers of the open connections."""
        ended = {entry.connection for entry in self.select("end")}
        return [entry.connection for entry in self.select("connect") if entry.connection not in ended]

    def fired(self) -> list[str]:
        """Return the names of the rules that fired, one name each time that a rule fired."""
        return [entry.name for entry in self.select("fault")]

    def _answered(self, name: str, topic: str | None, channel: str | None) -> list[bytes]:
        entries = self._of("command", name=name, topic=topic, channel=channel)
        return [entry.message_id for entry in entries if entry.executed]

    def _of(self, kind: str, **wanted: str | None) -> list[Entry]:
        """Return the entries of this kind with the wanted values. A wanted None matches every value."""
        return self.select(kind, **{name: value for name, value in wanted.items() if value is not None})

    # --- text and JSON lines ------------------------------------------------------------------------------------------

    def text(self, last: int | None = None) -> str:
        """Format all entries, or only the last ones, one per line."""
        entries = list(self._entries)
        shown = entries if last is None else entries[max(0, len(entries) - last) :]
        before = self.dropped + len(entries) - len(shown)
        lines = [f"({counted(before, 'entry', 'entries')} before)"] if before else []
        return "\n".join([*lines, *map(str, shown)])

    __str__ = text

    def end(self) -> str:
        """Format the last entries, for the text of a failure."""
        return self.text(_SHOWN_ENTRIES)

    def __repr__(self) -> str:
        """Say what happened most often: pytest shows this beside a value of the transcript that is not as expected."""
        # A copy, since another thread may append meanwhile.
        happened = Counter(
            " ".join(filter(None, [entry.name or entry.kind, "/".join(filter(None, [entry.topic, entry.channel]))]))
            for entry in list(self._entries)
            if entry.kind != "reply"
        )
        parts = [f"{number} x {name}" for name, number in happened.most_common(_SHOWN_KINDS)]
        return f"<Transcript of {counted(len(self._entries), 'entry', 'entries')}: {', '.join(parts) or 'nothing'}>"

    def dump(self) -> str:
        """Encode as JSON lines: a header, then one line per entry, without the fields that have their default."""
        head = {"transcript": 1, "dropped": self.dropped}
        return "".join(json.dumps(line) + "\n" for line in [head, *map(_encoded, self._entries)])


def shown_body(body: bytes, around: int = 0) -> str:
    """Format a body; of a long body, only the part around this position."""
    if len(body) <= _SHOWN_BYTES:
        return repr(body)
    begin = max(0, around - _SHOWN_BYTES // 2)
    part = repr(body[begin : begin + _SHOWN_BYTES])
    return f"{'... ' if begin else ''}{part}{' ...' if begin + _SHOWN_BYTES < len(body) else ''} ({len(body)} bytes)"


def _encoded(entry: Entry) -> dict[str, Any]:  # Any: JSON
    row = {
        field.name: value
        for field in dataclasses.fields(entry)
        if (value := getattr(entry, field.name)) != field.default
    }
    if "message_id" in row:
        row["message_id"] = entry.message_id.decode("latin-1")
    if "bodies" in row:
        row["bodies"] = [_encode_bytes(body) for body in entry.bodies]
    return row


def _encode_bytes(data: bytes) -> str | dict[str, str]:
    """Encode bytes as JSON: a string if the bytes are UTF-8, else an object with base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


# --- waiting ----------------------------------------------------------------------------------------------------------

_Value = TypeVar("_Value")
# Seconds between calls of a predicate if no entry is appended: some values change without an entry, such as depths.
_POLL_INTERVAL = 0.005


def failure(text: str, transcript: str) -> AssertionError:
    """Make the error of an assertion; the transcript's end becomes a note, unless it is empty."""
    error = AssertionError(text)
    if transcript:
        error.add_note(transcript)
    return error


class UnknownChannel(LookupError):
    """A test has asked for the messages of a channel that does not exist: its name may be misspelt.

    wait_until() waits for a channel that does not exist yet.
    """

    def __init__(self, topic: str, channel: str, topics: Mapping[str, Collection[str]]) -> None:
        if topic not in topics:
            text = f"there is no topic {topic!r}"
            text += nearest([topic], sorted(topics), "topics are") if topics else ", nor any other"
        else:
            text, names = f"topic {topic!r} has no channel {channel!r}", sorted(topics[topic])
            text += nearest([channel], names, "channels are") if names else ", nor any other"
        super().__init__(text)


# What ends the waits of the running test: a pytest.fail() of a handler. Changed by the pytest plugin.
outcomes: list[BaseException] = []


def wait_until(
    predicate: Callable[[], _Value], expected: object = True, *, timeout: float, transcript: Transcript | None = None
) -> _Value:
    """Wait until a predicate returns the expected value; return the value.

    Args:
        predicate: While it raises UnknownChannel, the value is not there yet.
        expected: The wanted value; True accepts every value that is true.
        timeout: Seconds of real time.
        transcript: If given, a new entry causes the next call of the predicate, and the AssertionError shows the end.

    Raises:
        AssertionError: If the time is over.
    """
    __tracebackhide__ = True
    deadline = monotonic() + timeout
    recorded = Event()
    closest: _Value | None = None
    shortest, unknown = math.inf, ""
    before = transcript.on_entry if transcript is not None else None
    if transcript is not None:
        transcript.on_entry = recorded.set
    try:
        while True:
            if outcomes:
                raise outcomes[0]
            try:
                value = predicate()
            except UnknownChannel as error:
                unknown = str(error)
            else:
                unknown = ""
                if value == expected or (expected is True and value):
                    return value
                if (distance := _distance(value, expected)) <= shortest:
                    shortest, closest = distance, value
            if monotonic() > deadline:
                break
            recorded.clear()
            recorded.wait(_POLL_INTERVAL)
    finally:
        if transcript is not None:
            transcript.on_entry = before
    text = f"not so within {timeout:g} s: {unknown or difference(expected, closest)}"
    raise failure(text, transcript.end() if transcript is not None else "")


def difference(expected: object, nearest: object) -> str:
    """Describe how a value differs from the expected one; for lists, line by line from the first difference on."""
    head = f"expected {_shown(expected)}, nearest was {_shown(nearest)}"
    if not isinstance(expected, (list, tuple)) or not isinstance(nearest, (list, tuple)):
        return head
    differs = next((at for at, pair in enumerate(zip(expected, nearest, strict=False)) if pair[0] != pair[1]), None)
    begin = max(0, (min(len(expected), len(nearest)) if differs is None else differs) - 1)
    part = slice(begin, begin + _SHOWN_ITEMS)
    lines = difflib.ndiff(list(map(_shown, expected[part])), list(map(_shown, nearest[part])))
    after = max(len(expected), len(nearest)) - begin - _SHOWN_ITEMS
    return "\n".join(
        [
            head,
            *([f"  ({counted(begin, 'equal item')} before)"] if begin else []),
            *(line for line in lines if not line.startswith("?")),
            *([f"  ({after} more after)"] if after > 0 else []),
        ]
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"


def _distance(value: object, expected: object) -> float:
    """Return how far a value is from the expected one: the difference of numbers, 0 to 1 for sequences, else inf."""
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        return abs(expected - value)
    if isinstance(value, Sequence) and isinstance(expected, Sequence):
        return 1 - difflib.SequenceMatcher(None, list(map(repr, value)), list(map(repr, expected))).ratio()
    return math.inf
