"""A session that is listened to: its commands, answers and pushed frames pass a Tap, which may change what happens.

Pure. A session without a tap asks for it once per command and batch, and does nothing else of this. With one, bodies
are read before their command is executed, unless nsqd would refuse it without; what leaves goes through a Line.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from fakensqd import parameters
from fakensqd.channel import Message
from fakensqd.effects import (
    Answer,
    Close,
    Effect,
    Execute,
    Reset,
    Send,
    StartCompression,
    StartTLS,
    Step,
    TimeOut,
    Wait,
)
from fakensqd.line import Line
from fakensqd.options import NsqdOptions
from fakensqd.publishing import Publishing
from fakensqd.reader import Input, Reading, Refusal
from gnsq.protocol.commands import Command
from gnsq.protocol.frames import ERROR, encode_frame

__all__ = ["Tap", "Tapped"]

_SIZE = struct.Struct(">i")


class Tap(Protocol):
    """Who listens to one connection. Each method is given what would happen, and gives back what is to happen."""

    def command(self, command: Command, now: float) -> Sequence[Step]:
        """Take note of a command that has come; as a rule, give back Execute."""

    def executed(self, command: Command, refusal: bytes | None) -> None:
        """Take note that it has been executed, or how it has been refused."""

    def reply(self, command: Command, steps: Sequence[Step], now: float) -> Sequence[Step]:
        """Take note of what a command is answered with, perhaps nothing."""

    def message(self, message: Message, frame: bytes, now: float) -> Sequence[Step]:
        """Take note of a message that is to be pushed."""

    def heartbeat(self, frame: bytes, now: float) -> Sequence[Step]:
        """Take note of a heartbeat that is to be pushed."""


class Tapped:
    """A session's side of its tap.

    Args:
        source: What the client sends.
        output: Frames that the session has not sent; emptied here.
        publishing: Knows whether the client may publish.
        time_out: Takes a message in flight back.
    """

    def __init__(
        self,
        tap: Tap,
        source: Input,
        output: list[bytes],
        publishing: Publishing,
        time_out: Callable[[bytes], None],
    ) -> None:
        self._tap = tap
        self._input = source
        self._output = output
        self._publishing = publishing
        self._time_out = time_out
        self._line = Line()
        # Something is not to wait until the session's buffer is full.
        self._urgent = bool(output)
        self._now = 0.0
        self._sweep(0.0)

    # --- output -------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When take() is worth calling; infinity if never."""
        return self._line.due

    def messages(self, messages: Sequence[Message], frames: Sequence[bytes], now: float) -> None:
        """Push messages that are in flight from now on."""
        for message, frame in zip(messages, frames, strict=True):
            self._say(self._tap.message(message, frame, now), now, urgent=False)

    def heartbeat(self, frame: bytes, now: float) -> None:
        """Push a heartbeat."""
        self._say(self._tap.heartbeat(frame, now), now)

    def take(self, now: float, *, flush: bool, closed: bool) -> list[Effect]:
        """Give what may leave now; without a flush, messages are left to wait for company."""
        self._now = now
        self._sweep(now)
        if closed and not self._line.ended:
            self._line.put([Close()], now)
        if not (flush or closed or self._urgent or self._line.due <= now):
            return []
        self._urgent = False
        return self._line.take(now)

    def _sweep(self, now: float) -> None:
        if self._output:
            self._line.put([Send(b"".join(self._output))], now)
            self._output.clear()

    def _say(self, steps: Sequence[Step], now: float, *, urgent: bool = True) -> bool:
        """Let steps come true; say whether the connection ends with them."""
        self._line.put(steps, now)
        if urgent or len(steps) != 1:
            self._urgent = True
        for step in steps:
            if isinstance(step, TimeOut):
                self._time_out(step.message_id)
        return any(isinstance(step, (Close, Reset)) for step in steps)

    # --- commands -----------------------------------------------------------------------------------------------------

    def execute(
        self,
        words: list[bytes],
        begin: Callable[[], Reading[None] | None],
        now: Callable[[], float],
        *,
        legal: bool,
    ) -> Reading[bool]:
        """Do what the tap wants done about a command; say whether the connection ends with it.

        Args:
            begin: Begins to execute it.
            legal: Whether it is legal now; if not, its body is never read.
        """
        raw = None
        # MPUB is refused before its body is read.
        if legal and (self._publishing.authorized or words[0] != b"MPUB"):
            raw = yield from read_ahead(words, self._input, self._publishing.options)
        command = Command(words[0], tuple(words[1:]), None if raw is None else raw[_SIZE.size :])
        steps = self._tap.command(command, now())
        plain = len(steps) == 1 and steps[0] == Execute()
        if raw is not None and not plain:
            self._input.decoder.take(len(raw))
        for step in steps:
            match step:
                case Wait():
                    yield step
                case Execute(body):
                    if not plain and raw is not None:
                        self._input.give_back(raw if body is None else _SIZE.pack(len(body)) + body)
                    if (yield from self._execute(command, begin, now)):
                        return True
                case _:
                    if self._say([step], now()):
                        return True
        return False

    def _execute(
        self, command: Command, begin: Callable[[], Reading[None] | None], now: Callable[[], float]
    ) -> Reading[bool]:
        ended = answered = False
        answer: Answer = None
        try:
            reading = begin()
            while reading is not None:
                question = reading.send(answer)
                if self._output:
                    answered = True
                    ended = self._reply(command, [], now()) or ended
                if isinstance(question, (StartTLS, StartCompression)):
                    # What is to be read before the layer begins must be under way.
                    while (seconds := self._line.held_until - now()) > 0:
                        yield Wait(seconds)
                answer = yield question
        except StopIteration:
            pass
        except Refusal as refusal:
            self._tap.executed(command, refusal.data)
            steps: list[Step] = [Send(encode_frame(ERROR, refusal.data))]
            return self._reply(command, [*steps, Close()] if refusal.fatal else steps, now()) or refusal.fatal
        self._tap.executed(command, None)
        if self._output or not answered:
            ended = self._reply(command, [], now()) or ended
        return ended

    def _reply(self, command: Command, steps: list[Step], now: float) -> bool:
        replies: list[Step] = [Send(frame) for frame in self._output]
        self._output.clear()
        return self._say(self._tap.reply(command, replies + steps, now), now)


def read_ahead(words: list[bytes], source: Input, options: NsqdOptions) -> Reading[bytes | None]:
    """Wait for the size and body behind a command, and leave them where they are.

    Returns:
        Both; None if there is no body, or nsqd refuses the command before it has it all.
    """
    decoder = source.decoder
    try:
        measure = _MEASURES[words[0]](words, options)
    except (KeyError, Refusal):
        return None
    length = announced = _SIZE.size
    while True:
        # What the size announces is looked at in one piece, as far as it is here; it need not be true.
        while (data := decoder.peek(max(length, min(decoder.buffered, announced)))) is None:
            if source.ended:
                return None
            yield None
        needed = measure(data)
        if needed is None:
            return None
        if needed <= len(data):
            return data[:needed]
        length = needed
        announced = _SIZE.size + int(_SIZE.unpack_from(data)[0])


# How many bytes there are, as far as the first of them tell; None if nsqd refuses them.
_Measure = Callable[[bytes], int | None]


def _body(limit: int) -> _Measure:
    def measure(data: bytes) -> int | None:
        (size,) = _SIZE.unpack_from(data)
        return _SIZE.size + int(size) if 0 < size <= limit else None

    return measure


def _messages(options: NsqdOptions) -> _Measure:
    # nsqd goes by the count and each message's size; that of the whole is checked and forgotten.
    position, left = 2 * _SIZE.size, -1

    def measure(data: bytes) -> int | None:
        nonlocal position, left
        if not 0 < int(_SIZE.unpack_from(data)[0]) <= options.max_body_size:
            return None
        if len(data) < position:
            return position
        if left < 0:
            left = int(_SIZE.unpack_from(data, _SIZE.size)[0])
            if not 0 < left <= (options.max_body_size - 4) // 5:
                return None
        while left:
            if len(data) < position + _SIZE.size:
                return position + _SIZE.size
            size = int(_SIZE.unpack_from(data, position)[0])
            if not 0 < size <= options.max_msg_size:
                return None
            if len(data) < position + _SIZE.size + size:
                return position + _SIZE.size + size
            position += _SIZE.size + size
            left -= 1
        return position

    return measure


def _of_auth(words: list[bytes], options: NsqdOptions) -> _Measure:
    if len(words) != 1:
        raise Refusal(b"E_INVALID AUTH invalid number of parameters")
    return _body(options.max_body_size)


def _of_publish(words: list[bytes], options: NsqdOptions) -> _Measure:
    parameters.publish_topic(words)
    return _body(options.max_msg_size)


def _of_defer(words: list[bytes], options: NsqdOptions) -> _Measure:
    parameters.publish_topic(words, 3)
    parameters.defer_delay(words, options.max_req_timeout)
    return _body(options.max_msg_size)


def _of_multipublish(words: list[bytes], options: NsqdOptions) -> _Measure:
    parameters.publish_topic(words)
    return _messages(options)


_MEASURES: dict[bytes, Callable[[list[bytes], NsqdOptions], _Measure]] = {
    b"IDENTIFY": lambda words, options: _body(options.max_body_size),
    b"AUTH": _of_auth,
    b"PUB": _of_publish,
    b"DPUB": _of_defer,
    b"MPUB": _of_multipublish,
}
