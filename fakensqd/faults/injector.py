"""Decides which rule acts on an event of one server, and records events in the transcript.

Pure: events carry the time. The first armed rule that fires takes the event; the rules after it do not see it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from fakensqd.effects import Execute, FaultStep, Send
from fakensqd.faults.rules import Event, Point, Rule
from fakensqd.message import QueuedMessage
from fakensqd.nsqd.commands import ROWS, CommandRow
from fakensqd.transcript import Entry, Transcript
from gnsq.protocol.commands import Command, split_multipublish_body
from gnsq.protocol.frames import ERROR, HEARTBEAT

__all__ = ["ConnectionInjector", "FaultInjector", "InjectableSession", "multipublish_bodies"]

_EXECUTE: tuple[FaultStep, ...] = (Execute(),)
# The bytes of the frame type of an error.
_ERROR_TYPE = ERROR.to_bytes(4, "big")
_UNKNOWN = CommandRow()


class FaultInjector:
    """Rules and transcript of one server.

    Args:
        seed: Seed for random numbers.

    Attributes:
        transcript: The transcript; None while nothing is recorded.
        sequences: The rules, by the number of their sequence.
    """

    def __init__(self, seed: int, transcript: Transcript | None = None) -> None:
        self.transcript = transcript
        self.sequences: dict[int, list[Rule]] = {}
        self._rng = random.Random(seed)
        self._added: list[Rule] = []
        self._points: frozenset[Point] = frozenset()
        self._sequence_numbers = itertools.count(1)
        self._connection_numbers = itertools.count(1)

    @property
    def is_active(self) -> bool:
        """Whether there are rules or a transcript."""
        return self.transcript is not None or bool(self.sequences)

    # --- rules --------------------------------------------------------------------------------------------------------

    def add(self, rules: Sequence[Rule], now: float) -> int:
        """Append a sequence of rules and arm its first; return the number of the sequence."""
        number = next(self._sequence_numbers)
        self.sequences[number] = list(rules)
        self._added += rules
        self._update_points()
        _arm(rules, now)
        return number

    def remove(self, rules: Iterable[Rule]) -> None:
        """Remove rules."""
        removed = set(map(id, rules))
        left = {
            number: [rule for rule in sequence if id(rule) not in removed]
            for number, sequence in self.sequences.items()
        }
        self.sequences = {number: sequence for number, sequence in left.items() if sequence}
        self._update_points()

    def unfired(self) -> list[str]:
        """Describe each required rule that never fired, and the event that came closest to a match."""
        return [rule.explain() for rule in self._added if not rule.fired and not rule.optional]

    def apply_rules(self, event: Event, steps: Sequence[FaultStep]) -> Sequence[FaultStep]:
        """Let the first rule that fires on an event change its steps; record the rule. Return the steps to take."""
        if event.point not in self._points:
            return steps
        for sequence in self.sequences.values():
            for rule in sequence:
                if rule.fires(event, self._rng):
                    _arm(sequence, event.now)
                    changed = rule.apply(steps, event)
                    self.record(Entry(event.now, event.connection, "fault", rule.name))
                    return changed
        return steps

    def _update_points(self) -> None:
        self._points = frozenset(rule.match.point for rules in self.sequences.values() for rule in rules)

    # --- events -------------------------------------------------------------------------------------------------------

    def record(self, entry: Entry) -> Entry:
        """Append an entry to the transcript, if there is one."""
        return entry if self.transcript is None else self.transcript.append(entry)

    def open_connection(self, address: str, now: float) -> tuple[int, Sequence[FaultStep]]:
        """Record a connection; return its number and the steps to take."""
        number = next(self._connection_numbers)
        self.record(Entry(now, number, "connect", detail=address))
        return number, self.apply_rules(Event(Point.CONNECT, "", now, number), _EXECUTE)

    def open_request(self, method: str, path: str, query: Mapping[str, str], now: float) -> tuple[Event, Entry]:
        """Record an HTTP request; return its event and its entry, in which the caller sets the response's status."""
        topic, channel = query.get("topic", ""), query.get("channel", "")
        event = Event(Point.HTTP, path, now, topic=topic, channel=channel, method=method, query=dict(query))
        return event, self.record(Entry(now, 0, "http", f"{method} {path}", topic=topic, channel=channel))


def _arm(sequence: Sequence[Rule], now: float) -> None:
    """Arm the rules of a sequence up to the first one that is not finished."""
    for rule in sequence:
        if rule.armed_at is None:
            rule.armed_at = now
        if not rule.is_finished:
            return


class InjectableSession(Protocol):
    """Session of one connection, on which rules can act."""

    @property
    def names(self) -> tuple[str, str, str]:
        """Id of the client, and the topic and channel that it subscribes to."""

    def attach(self, injector: ConnectionInjector) -> None:
        """Ask an injector about each event from now on, unless the session asks one already."""


class ConnectionInjector:
    """Asks a FaultInjector about the commands, replies and pushed frames of one connection.

    Args:
        number: Number of the connection.
        header_size: Bytes before the text of a reply.
    """

    def __init__(self, injector: FaultInjector, number: int, session: InjectableSession, header_size: int) -> None:
        self._injector = injector
        self._number = number
        self._session = session
        self._header_size = header_size
        # The command in progress: its event, and the entry that counts its executions.
        self._event = Event(Point.COMMAND, "", 0.0)
        self._entry: Entry | None = None

    @property
    def is_active(self) -> bool:
        """Whether there are rules or a transcript."""
        return self._injector.is_active

    def command(self, command: Command, now: float) -> Sequence[FaultStep]:
        """Record a received command; return the steps to take: Execute, unless a rule changes it."""
        event = self._event = self._command_event(command, now)
        self._entry = self._record(event, "command", event.kind, detail=_details(command))
        changed = self._injector.apply_rules(event, _EXECUTE)
        if changed is not _EXECUTE:
            self._record_replies(event, changed)
        return changed

    def executed(self) -> None:
        """Record that the command in progress was executed with success."""
        if self._entry is not None:
            self._entry.executed += 1

    def reply(self, steps: Sequence[FaultStep], now: float) -> Sequence[FaultStep]:
        """Record the reply to the command in progress, which may be empty; return the steps to take."""
        event = self._event
        event.point, event.now, event.client_id = Point.REPLY, now, self._session.names[0]
        changed = self._injector.apply_rules(event, steps)
        self._record_replies(event, changed)
        return changed

    def message(self, message: QueuedMessage, frame: bytes, now: float) -> Sequence[FaultStep]:
        """Record the push of a message; return the steps to take."""
        event = Event(
            Point.FRAME,
            "message",
            now,
            self._number,
            *self._session.names,
            (message.body,),
            message_id=message.id,
            attempts=message.attempts,
        )
        return self._push(event, frame)

    def heartbeat(self, frame: bytes, now: float) -> Sequence[FaultStep]:
        """Record the push of a heartbeat; return the steps to take."""
        return self._push(Event(Point.FRAME, "heartbeat", now, self._number, *self._session.names), frame)

    def _push(self, event: Event, frame: bytes) -> Sequence[FaultStep]:
        changed = self._injector.apply_rules(event, (Send(frame),))
        for data in self._frames(changed):
            if data[4:8] == _ERROR_TYPE:
                self._record_reply(event, data)
            elif event.kind == "heartbeat" or data[8:] != HEARTBEAT:
                self._record(event, event.kind, event.kind)
            else:  # injected beside a message
                self._injector.record(Entry(event.now, self._number, "heartbeat", "heartbeat", event.client_id))
        return changed

    def _record_replies(self, event: Event, steps: Sequence[FaultStep]) -> None:
        for data in self._frames(steps):
            self._record_reply(event, data)

    def _frames(self, steps: Sequence[FaultStep]) -> list[bytes]:
        """Return the frames that steps send; none if nothing is recorded."""
        if self._injector.transcript is None:
            return []
        return [step.data for step in steps if hasattr(step, "data")]

    def _record_reply(self, event: Event, data: bytes) -> None:
        text = data[self._header_size :]
        code, _, rest = (b"", b"", text) if text[:1] == b"{" else text.partition(b" ")
        self._injector.record(Entry(event.now, self._number, "reply", _text(code), event.client_id, detail=_text(rest)))

    def _record(self, event: Event, kind: str, name: str, *, detail: str = "") -> Entry:
        return self._injector.record(
            Entry(
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
        )

    def _command_event(self, command: Command, now: float) -> Event:
        client_id, topic, channel = self._session.names
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
            header_size=self._header_size,
        )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _bodies(command: Command) -> tuple[bytes, ...]:
    if command.body is None:
        return ()
    return multipublish_bodies(command.body) if command.name == b"MPUB" else (command.body,)


def multipublish_bodies(body: bytes) -> tuple[bytes, ...]:
    """Return the bodies of the messages in an MPUB body; the body itself if it is invalid."""
    try:
        return tuple(split_multipublish_body(body))
    except ValueError:
        return (body,)


def _details(command: Command) -> str:
    """Join the words of a command that are not in the other fields of an Entry."""
    row = ROWS.get(command.name, _UNKNOWN)
    return "" if row.details is None else " ".join(map(_text, command.args[row.details :]))
