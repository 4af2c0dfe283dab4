"""Makes events of a connection's commands, replies and pushed frames, if there are rules or a transcript.

Pure, and the same for sessions of nsqd and nsqlookupd. A session gets an InterceptedSession if there are rules or a
transcript, and drops an idle InterceptedSession before the next command. An InterceptedSession waits for the body of a
command before it executes the command, unless the server refuses the command before it has read the whole body. All
output goes through an OutputScheduler.
"""

from __future__ import annotations

import heapq
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from fakensqd.effects import (
    Close,
    Effect,
    Execute,
    ExpireMessage,
    FaultStep,
    IoResult,
    Reset,
    Send,
    StartCompression,
    StartTLS,
    Wait,
)
from fakensqd.faults.control import FaultControl
from fakensqd.faults.rules import Event, Point
from fakensqd.input_buffer import SIZE, BodyReader, CommandError, InputBuffer, Read
from fakensqd.message import QueuedMessage
from fakensqd.transcript import Entry
from gnsq.protocol.commands import Command, CommandDecoder, split_multipublish_body
from gnsq.protocol.frames import ERROR, HEARTBEAT

__all__ = ["InterceptableSession", "InterceptedSession", "OutputScheduler", "multipublish_bodies"]

_EXECUTE: Sequence[FaultStep] = (Execute(),)
# The bytes of the frame type of an error.
_ERROR_TYPE = ERROR.to_bytes(4, "big")


class InterceptableSession(Protocol):
    """The part of a session that an InterceptedSession uses.

    Attributes:
        now: The time, seconds.
        input: Bytes from the client.
        output: Frames that the session has not sent. The InterceptedSession takes them out.
    """

    now: float
    input: InputBuffer
    output: list[bytes]

    @property
    @abstractmethod
    def names(self) -> tuple[str, str, str]:
        """The client_id of events (see Event), and the topic and channel of the subscription, or empty texts."""

    @abstractmethod
    def body_reader(self, words: list[bytes]) -> BodyReader | None:
        """Return the reader of a legal command's body; None if there is no body, or the server does not read it."""

    def expire_message(self, message_id: bytes) -> None:
        """Let a message in flight time out now. Does nothing if no message with this id is in flight."""


class InterceptedSession:
    """Asks a FaultControl about each event of one session, and does the steps that the FaultControl returns.

    Args:
        number: Number of the connection.
    """

    def __init__(self, faults: FaultControl, number: int, session: InterceptableSession) -> None:
        self._faults = faults
        self._protocol = faults.protocol
        self._number = number
        self._session = session
        self._scheduler = OutputScheduler()
        # The command in progress, and the entry that counts its executions.
        self._event = Event(Point.COMMAND, "", 0.0)
        self._entry = Entry(0.0, number, "command")
        # True: take() returns the output even without ``flush``.
        self._flush = bool(session.output)
        self._schedule_output()

    @property
    def is_idle(self) -> bool:
        """True if the session does not need this object: there are no rules, no transcript and no unsent output."""
        return not (self._faults.is_active or self._session.output or self._scheduler.is_busy)

    # --- output -------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """Time at which take() returns delayed output; infinity if no output is delayed."""
        return self._scheduler.due

    def push(self, frame: bytes, message: QueuedMessage | None = None) -> None:
        """Push a message that has just become in flight, or a heartbeat."""
        facts = self._session.now, self._number, *self._session.names
        if message is None:
            event = Event(Point.FRAME, "heartbeat", *facts)
        else:
            event = Event(
                Point.FRAME, "message", *facts, (message.body,), message_id=message.id, attempts=message.attempts
            )
        steps = self._faults.apply_rules(event, (Send(frame),))
        for data in self._frames(steps):
            if data[4:8] == _ERROR_TYPE:
                self._record_reply(event, data)
            elif event.kind == "heartbeat" or data[8:] != HEARTBEAT:
                self._record(event, event.kind, event.kind)
            else:  # a heartbeat that a rule injected beside a message
                self._faults.record(Entry(event.now, self._number, "heartbeat", "heartbeat", event.client_id))
        self._do(steps, flush=message is None)

    def take(self, *, flush: bool, closed: bool) -> list[Effect]:
        """Return the effects whose time has come. Without ``flush``, messages may wait for a later call."""
        self._schedule_output()
        if closed:
            self._scheduler.close()
        now = self._session.now
        if not (flush or closed or self._flush or self.due <= now):
            return []
        self._flush = False
        return self._scheduler.take(now)

    def _schedule_output(self) -> None:
        output = self._session.output
        if output:
            self._scheduler.put([Send(b"".join(output))], self._session.now)
            output.clear()

    def _do(self, steps: Sequence[FaultStep], *, flush: bool = True) -> bool:
        """Do steps. Return True if one of them ends the connection."""
        self._scheduler.put(steps, self._session.now)
        if flush or len(steps) != 1:
            self._flush = True
        for step in steps:
            if isinstance(step, ExpireMessage):
                self._session.expire_message(step.message_id)
        return any(isinstance(step, (Close, Reset)) for step in steps)

    # --- commands -----------------------------------------------------------------------------------------------------

    def execute(self, words: list[bytes], begin: Callable[[], Read[None] | None], *, legal: bool) -> Read[bool]:
        """Do the steps for a command. Return True if they end the connection.

        Args:
            begin: Function that begins to execute the command.
            legal: False: the command is refused, and its body is not read.
        """
        source = self._session.input
        read = self._session.body_reader(words) if legal else None
        raw = None if read is None else (yield from _peek_body(read, source))
        steps = self._command_steps(Command(words[0], tuple(words[1:]), None if raw is None else raw[SIZE.size :]))
        unchanged = steps is _EXECUTE or steps == list(_EXECUTE)
        if raw is not None and not unchanged:
            source.decoder.take(len(raw))
        for step in steps:
            match step:
                case Wait():
                    yield step
                case Execute(body):
                    if not unchanged and raw is not None:
                        source.unread(raw if body is None else SIZE.pack(len(body)) + body)
                    if (yield from self._execute(begin)):
                        return True
                case _:
                    if self._do([step]):
                        return True
        return False

    def _command_steps(self, command: Command) -> Sequence[FaultStep]:
        """Record a received command; return the steps to take. Without a rule, the only step is Execute."""
        client_id, topic, channel = self._session.names
        name, args, message_id = _text(command.name), command.args, b""
        parameters = self._protocol.commands.get(name, ())
        if parameters == ("message_id",) and args:
            message_id = args[0]
        elif parameters and args:
            topic, channel = _text(args[0]), _text(args[1]) if len(parameters) > 1 and len(args) > 1 else ""
        event = self._event = Event(
            Point.COMMAND,
            name,
            self._session.now,
            self._number,
            client_id,
            topic,
            channel,
            _bodies(command),
            raw=command.body or b"",
            words=args,
            message_id=message_id,
            header_size=self._protocol.header_size,
        )
        detail = " ".join(map(_text, args[len(parameters) :]))
        self._entry = self._record(event, "command", name, detail=detail)
        steps = self._faults.apply_rules(event, _EXECUTE)
        if steps is not _EXECUTE:
            self._record_replies(steps)
        return steps

    def _execute(self, begin: Callable[[], Read[None] | None]) -> Read[bool]:
        session = self._session
        ended = answered = False
        result: IoResult = None
        try:
            reading = begin()
            while reading is not None:
                io_request = reading.send(result)
                if session.output:
                    answered = True
                    ended = self._reply() or ended
                if isinstance(io_request, (StartTLS, StartCompression)):
                    # Replies that a Wait delays must be sent before TLS or compression begins.
                    while (seconds := self._scheduler.blocked_until - session.now) > 0:
                        yield Wait(seconds)
                result = yield io_request
        except StopIteration:
            pass
        except CommandError as error:
            session.output += error.frames
            return self._reply([Close()] if error.fatal else []) or error.fatal
        self._entry.executed += 1
        if session.output or not answered:
            ended = self._reply() or ended
        return ended

    def _reply(self, end: Sequence[FaultStep] = ()) -> bool:
        """Do the steps for the reply to the command in progress. Return True if they end the connection."""
        event, output = self._event, self._session.output
        event.point, event.now, event.client_id = Point.REPLY, self._session.now, self._session.names[0]
        steps = self._faults.apply_rules(event, [*map(Send, output), *end])
        output.clear()
        self._record_replies(steps)
        return self._do(steps)

    # --- transcript ---------------------------------------------------------------------------------------------------

    def _record_replies(self, steps: Sequence[FaultStep]) -> None:
        for data in self._frames(steps):
            self._record_reply(self._event, data)

    def _frames(self, steps: Sequence[FaultStep]) -> list[bytes]:
        """Return the frames that steps send; none if nothing is recorded."""
        if self._faults.transcript is None:
            return []
        return [step.data for step in steps if isinstance(step, Send)]

    def _record_reply(self, event: Event, data: bytes) -> None:
        text = data[self._protocol.header_size :]
        code, _, rest = (b"", b"", text) if text[:1] == b"{" else text.partition(b" ")
        self._faults.record(Entry(event.now, self._number, "reply", _text(code), event.client_id, detail=_text(rest)))

    def _record(self, event: Event, kind: str, name: str, *, detail: str = "") -> Entry:
        return self._faults.record(
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


class OutputScheduler:
    """Schedules the output of one connection, because rules may delay or reorder its frames.

    A Wait delays all later output, as a slow server does. A Send with a delay or after_next delays no other frame.
    """

    def __init__(self) -> None:
        self._ready: list[bytes] = []
        self._end: Close | Reset | None = None
        self._closing = False
        self._blocked: list[FaultStep] = []
        self._until = -math.inf
        self._after_next: list[bytes] = []
        self._later: list[tuple[float, int, bytes]] = []
        self._order = itertools.count()

    @property
    def due(self) -> float:
        """Time at which delayed output can be sent; infinity if there is none."""
        blocked = self._until if self._blocked else math.inf
        return min(blocked, self._later[0][0]) if self._later else blocked

    @property
    def blocked_until(self) -> float:
        """Time at which the current Wait ends; minus infinity if there is none."""
        return self._until if self._blocked else -math.inf

    @property
    def is_busy(self) -> bool:
        """True if take() has not returned all output yet."""
        return bool(self._ready or self._blocked or self._after_next or self._later or self._end)

    def close(self) -> None:
        """End the connection after all output, unless its end is scheduled already."""
        self._closing = self._end is None and not any(isinstance(step, (Close, Reset)) for step in self._blocked)

    def put(self, steps: Iterable[FaultStep], now: float) -> None:
        """Schedule each Send, Wait, Close and Reset; other steps are ignored."""
        for step in steps:
            if self._blocked:
                self._blocked.append(step)
            elif isinstance(step, Wait):
                # The wait stays first in the queue until it is over.
                self._until = now + step.seconds
                self._blocked.append(step)
            else:
                self._release(step, now)

    def take(self, now: float) -> list[Effect]:
        """Return the effects to perform now: at most one Send, then a Close or Reset if its time has come."""
        while self._blocked and self._until <= now:
            _, *rest = self._blocked  # the wait that is over, and the steps that it has delayed
            self._blocked.clear()
            self.put(rest, now)
        while self._later and self._later[0][0] <= now and self._end is None:
            self._ready.append(heapq.heappop(self._later)[2])
        if self._closing and not (self._blocked or self._later):
            self._release(Close(), now)
        effects: list[Effect] = []
        if self._ready:
            effects.append(Send(b"".join(self._ready)))
            self._ready.clear()
        if self._end is not None:
            effects.append(self._end)
        return effects

    def _release(self, step: FaultStep, now: float) -> None:
        if self._end is not None:
            return
        match step:
            case Send(data, delay) if delay > 0:
                heapq.heappush(self._later, (now + delay, next(self._order), data))
            case Send(data, after_next=True):
                self._after_next.append(data)
            case Send(data):
                self._ready += [data, *self._after_next]
                self._after_next.clear()
            case Close() | Reset():
                # No next frame will come, so the frames that wait for it are sent now.
                self._ready += self._after_next
                self._after_next.clear()
                self._end = step
            case _:
                pass


class _RecordingDecoder(CommandDecoder):
    """Takes bytes from another decoder, and keeps a copy."""

    __slots__ = ("_source", "taken")

    def __init__(self, source: CommandDecoder) -> None:
        self.taken: list[bytes] = []
        self._source = source

    def take(self, count: int) -> bytes | None:
        data = self._source.take(count)
        if data is not None:
            self.taken.append(data)
        return data

    def take_sized(self, count: int, limit: int) -> list[bytes]:
        bodies = self._source.take_sized(count, limit)
        for body in bodies:
            self.taken += (SIZE.pack(len(body)), body)
        return bodies


def _peek_body(read: BodyReader, source: InputBuffer) -> Read[bytes | None]:
    """Wait for the body of a command, without taking it from the input.

    Returns:
        The size and the body; None if the server refuses the command before it has read the whole body.
    """
    decoder = _RecordingDecoder(source.decoder)
    peeking = InputBuffer(decoder)
    is_whole = True
    try:
        peeking.ended = source.ended
        for io_request in read(peeking):
            yield io_request
            peeking.ended = source.ended
    except CommandError:
        is_whole = False
    data = b"".join(decoder.taken)
    source.unread(data)
    return data if is_whole else None
