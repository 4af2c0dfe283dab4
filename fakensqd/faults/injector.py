"""What watches a server: its plan of faults and its transcript, and a tap for each of its connections.

Pure. Both are asked about everything that happens; what neither wants to know is not told to anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fakensqd.effects import Execute, FaultStep, Open, Send
from fakensqd.faults.rules import Event, Plan, Point
from fakensqd.message import QueuedMessage
from fakensqd.nsqd.commands import ROWS, CommandRow
from fakensqd.transcript import Entry, Transcript
from gnsq.protocol.commands import Command, split_multipublish_body
from gnsq.protocol.frames import ERROR, HEARTBEAT

__all__ = ["Client", "ConnectionTap", "Watch"]

_EXECUTE: tuple[FaultStep, ...] = (Execute(),)
_OPEN: tuple[FaultStep, ...] = (Open(),)
# The second word of a frame that is an error.
_ERROR_TYPE = ERROR.to_bytes(4, "big")
_UNKNOWN = CommandRow()


class Client(Protocol):
    """What is asked of a session."""

    @property
    def names(self) -> tuple[str, str, str]:
        """Its client id, and the topic and channel that it subscribes to."""


class Watch:
    """The plan and the transcript of one server.

    Attributes:
        transcript: None while nothing is recorded.
    """

    def __init__(self, plan: Plan, transcript: Transcript | None) -> None:
        self.plan = plan
        self.transcript = transcript
        self._connections = 0

    @property
    def active(self) -> bool:
        """Whether anybody wants to know."""
        return self.transcript is not None or bool(self.plan.rules)

    def note(self, entry: Entry) -> Entry:
        """Record something, if that is wanted."""
        return entry if self.transcript is None else self.transcript.append(entry)

    def change(self, event: Event, steps: Sequence[FaultStep]) -> Sequence[FaultStep]:
        """Give back what is to happen where the steps would; record the rule that wants it so."""
        rule, changed = self.plan.change(event, steps)
        if rule is not None:
            self.note(Entry(event.now, event.connection, "fault", rule.name))
        return changed

    def connect(self, address: str, now: float) -> tuple[int, Sequence[FaultStep]]:
        """Take note of a connection: give back its number and what is to become of it."""
        self._connections += 1
        number = self._connections
        self.note(Entry(now, number, "connect", detail=address))
        return number, self.change(Event(Point.CONNECT, "", now, number), _OPEN)

    def end(self, number: int, now: float) -> None:
        """Take note of the end of a connection."""
        self.note(Entry(now, number, "end"))

    def request(self, method: str, path: str, query: Mapping[str, str], now: float) -> tuple[Event, Entry]:
        """Take note of an HTTP request, whose answer is recorded by and by."""
        topic, channel = query.get("topic", ""), query.get("channel", "")
        event = Event(Point.HTTP, path, now, topic=topic, channel=channel, method=method, query=dict(query))
        return event, self.note(Entry(now, 0, "http", f"{method} {path}", topic=topic, channel=channel))


class ConnectionTap:
    """Listens to one connection.

    Args:
        number: That of the connection.
        header: Bytes in front of what an answer says: its size, and its type if it has one.
    """

    def __init__(self, watch: Watch, number: int, client: Client, header: int) -> None:
        self._watch = watch
        self._number = number
        self._client = client
        self._header = header
        # The commands under way: an entry to note the outcome in, and the event that their reply is told as.
        self._entry: Entry | None = None
        self._event = Event(Point.COMMAND, "", 0.0)

    @property
    def active(self) -> bool:
        """Whether anybody wants to know."""
        return self._watch.active

    def command(self, command: Command, now: float) -> Sequence[FaultStep]:
        """Take note of a command that has come."""
        event = self._event = self._command_event(command, now)
        self._entry = self._watch.note(self._entry_of(event, "command", event.kind, detail=_details(command)))
        changed = self._watch.change(event, _EXECUTE)
        if changed is not _EXECUTE:
            self._note_replies(event, changed)
        return changed

    def executed(self, command: Command, refusal: bytes | None) -> None:
        """Take note that it has been executed, or how it has been refused."""
        if refusal is None and self._entry is not None:
            self._entry.executed += 1

    def reply(self, command: Command, steps: Sequence[FaultStep], now: float) -> Sequence[FaultStep]:
        """Take note of what a command is answered with."""
        event = self._event
        event.point, event.now, event.client_id = Point.REPLY, now, self._client.names[0]
        changed = self._watch.change(event, steps)
        self._note_replies(event, changed)
        return changed

    def message(self, message: QueuedMessage, frame: bytes, now: float) -> Sequence[FaultStep]:
        """Take note of a message that is to be pushed."""
        event = Event(
            Point.FRAME,
            "message",
            now,
            self._number,
            *self._client.names,
            (message.body,),
            message_id=message.id,
            attempts=message.attempts,
        )
        return self._pushed(event, frame)

    def heartbeat(self, frame: bytes, now: float) -> Sequence[FaultStep]:
        """Take note of a heartbeat that is to be pushed."""
        return self._pushed(Event(Point.FRAME, "heartbeat", now, self._number, *self._client.names), frame)

    def _pushed(self, event: Event, frame: bytes) -> Sequence[FaultStep]:
        changed = self._watch.change(event, (Send(frame),))
        if self._watch.transcript is not None:
            for step in changed:
                data = getattr(step, "data", None)
                if data is not None:
                    # What was injected is a heartbeat, or it is shown as it is.
                    own = event.kind == "message" and data[8:] != HEARTBEAT
                    if data[4:8] == _ERROR_TYPE:
                        self._note_reply(event, data)
                    elif own or event.kind == "heartbeat":
                        self._watch.note(self._entry_of(event, event.kind, event.kind))
                    else:
                        self._watch.note(self._entry_of(event, "heartbeat", "heartbeat", bare=True))
        return changed

    def _note_replies(self, event: Event, steps: Sequence[FaultStep]) -> None:
        if self._watch.transcript is not None:
            for step in steps:
                data = getattr(step, "data", None)
                if data is not None:
                    self._note_reply(event, data)

    def _note_reply(self, event: Event, data: bytes) -> None:
        said = data[self._header :]
        code, _, rest = (b"", b"", said) if said[:1] == b"{" else said.partition(b" ")
        self._watch.note(self._entry_of(event, "reply", _text(code), bare=True, detail=_text(rest)))

    def _command_event(self, command: Command, now: float) -> Event:
        client_id, topic, channel = self._client.names
        args = command.args
        row = ROWS.get(command.name, _UNKNOWN)
        if row.has_topic and args:
            topic = _text(args[0])
            channel = _text(args[1]) if row.has_channel and len(args) > 1 else ""
        return Event(
            Point.COMMAND,
            _text(command.name),
            now,
            self._number,
            client_id,
            topic,
            channel,
            _bodies(command),
            raw=command.body or b"",
            words=args,
            message_id=args[0] if row.has_message_id and args else b"",
            header=self._header,
        )

    def _entry_of(self, event: Event, kind: str, name: str, *, bare: bool = False, detail: str = "") -> Entry:
        if bare:
            return Entry(event.now, self._number, kind, name, event.client_id, detail=detail)
        return Entry(
            event.now,
            self._number,
            kind,
            name,
            event.client_id,
            event.topic,
            event.channel,
            event.message_id,
            event.attempts,
            event.bodies,
            detail,
        )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _bodies(command: Command) -> tuple[bytes, ...]:
    if command.body is None:
        return ()
    if command.name != b"MPUB":
        return (command.body,)
    try:
        return tuple(split_multipublish_body(command.body))
    except ValueError:
        return (command.body,)


def _details(command: Command) -> str:
    """Give the words that say more than topic, channel and message."""
    row = ROWS.get(command.name, _UNKNOWN)
    return "" if row.details is None else " ".join(map(_text, command.args[row.details :]))
