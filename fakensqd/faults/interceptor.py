"""A session that is listened to: its commands, answers and pushed frames pass a Tap, which may change what happens.

Pure, and the same for nsqd's sessions and nsqlookupd's. A session without a tap asks for it once per command and batch,
and does nothing else of this. With one, bodies are read before their command is executed, unless the server would
refuse it without; what leaves goes through a Line.

Order and time of what leaves one connection, where faults delay, swap or hold frames.

Pure: takes ``now``. A delay holds everything behind it, as a slow server would; what is sent later, or behind the next
frame, lets the rest pass.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
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
    SendAfterNext,
    SendLater,
    StartCompression,
    StartTLS,
    Wait,
)
from fakensqd.input_buffer import SIZE, BodyReader, CommandError, InputBuffer, Read
from fakensqd.message import QueuedMessage
from gnsq.protocol.commands import Command, CommandDecoder

__all__ = [
    "Line",
    "Tap",
    "Tapped",
]


class Line:
    """What has been said on one connection and has not left it."""

    def __init__(self) -> None:
        self._ready: list[bytes] = []
        self._end: Close | Reset | None = None
        self._ending = False
        self._stalled: deque[FaultStep] = deque()
        self._until = -math.inf
        self._behind: list[bytes] = []
        self._later: list[tuple[float, int, bytes]] = []
        self._order = itertools.count()

    @property
    def due(self) -> float:
        """When something held will be free; infinity if nothing is."""
        stalled = self._until if self._stalled else math.inf
        return min(stalled, self._later[0][0]) if self._later else stalled

    @property
    def held_until(self) -> float:
        """When all that is stalled so far begins to move; in the past if nothing is."""
        return self._until if self._stalled else -math.inf

    @property
    def ended(self) -> bool:
        """Whether the end of the connection has been said, if only later."""
        return self._end is not None or any(isinstance(step, (Close, Reset)) for step in self._stalled)

    @property
    def busy(self) -> bool:
        """Whether anything that has been said has not left it."""
        return bool(self._ready or self._stalled or self._behind or self._later or self._end)

    def end(self) -> None:
        """Say the end of the connection: behind all that has been said, what is late included."""
        self._ending = True

    def put(self, steps: Iterable[FaultStep], now: float) -> None:
        """Say something; what is not for a connection's output is left out."""
        for step in steps:
            if self._stalled:
                self._stalled.append(step)
            elif isinstance(step, Wait):
                # The wait itself marks the line as stalled until it is over.
                self._until = now + step.seconds
                self._stalled.append(step)
            else:
                self._let_go(step, now)

    def take(self, now: float) -> list[Effect]:
        """Give what may leave now: one Send at most, then the end if it has come."""
        while self._stalled and self._until <= now:
            self._stalled.popleft()  # the wait that is over
            self._move(now)
        while self._later and self._later[0][0] <= now and self._end is None:
            self._ready.append(heapq.heappop(self._later)[2])
        if self._ending and not (self._stalled or self._later):
            self._let_go(Close(), now)
        effects: list[Effect] = []
        if self._ready:
            effects.append(Send(b"".join(self._ready)))
            self._ready.clear()
        if self._end is not None:
            effects.append(self._end)
        return effects

    def _move(self, now: float) -> None:
        """Let go of what stood behind a wait, up to the next one, which begins now."""
        while self._stalled:
            step = self._stalled[0]
            if isinstance(step, Wait):
                self._until = max(self._until, now) + step.seconds
                return
            self._let_go(self._stalled.popleft(), now)

    def _let_go(self, step: FaultStep, now: float) -> None:
        if self._end is not None:
            return
        match step:
            case Send(data):
                self._ready += [data, *self._behind]
                self._behind.clear()
            case SendAfterNext(data):
                self._behind.append(data)
            case SendLater(data, seconds):
                heapq.heappush(self._later, (now + seconds, next(self._order), data))
            case Close() | Reset():
                # Behind it nothing comes, so what waits for the next frame goes now.
                self._ready += self._behind
                self._behind.clear()
                self._end = step
            case _:
                pass


class Tap(Protocol):
    """Who listens to one connection. Each method is given what would happen, and gives back what is to happen."""

    @property
    def active(self) -> bool:
        """Whether anybody wants to know."""

    def command(self, command: Command, now: float) -> Sequence[FaultStep]:
        """Take note of a command that has come; as a rule, give back Execute."""

    def executed(self, command: Command, refusal: bytes | None) -> None:
        """Take note that it has been executed, or how it has been refused."""

    def reply(self, command: Command, steps: Sequence[FaultStep], now: float) -> Sequence[FaultStep]:
        """Take note of what a command is answered with, perhaps nothing."""

    def message(self, message: QueuedMessage, frame: bytes, now: float) -> Sequence[FaultStep]:
        """Take note of a message that is to be pushed."""

    def heartbeat(self, frame: bytes, now: float) -> Sequence[FaultStep]:
        """Take note of a heartbeat that is to be pushed."""


class Tapped:
    """A session's side of its tap.

    Args:
        source: What the client sends.
        output: Frames that the session has not sent; emptied here.
        body_reader: Gives what reads the body of a legal command; None if it has none, or is refused without.
        time_out: Takes a message in flight back, if there is such a thing.
    """

    def __init__(
        self,
        tap: Tap,
        source: InputBuffer,
        output: list[bytes],
        body_reader: Callable[[list[bytes]], BodyReader | None],
        time_out: Callable[[bytes], None] | None = None,
    ) -> None:
        self._tap = tap
        self._input = source
        self._output = output
        self._body_reader = body_reader
        self._time_out = time_out
        self._line = Line()
        # Something is not to wait until the session's buffer is full.
        self._urgent = bool(output)
        self._now = 0.0
        self._sweep(0.0)

    @property
    def idle(self) -> bool:
        """Whether the session can do without: nobody listens any more, and nothing is held."""
        return not (self._tap.active or self._output or self._line.busy)

    # --- output -------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When take() is worth calling; infinity if never."""
        return self._line.due

    def messages(self, messages: Sequence[QueuedMessage], frames: Sequence[bytes], now: float) -> None:
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
            self._line.end()
        if not (flush or closed or self._urgent or self._line.due <= now):
            return []
        self._urgent = False
        return self._line.take(now)

    def _sweep(self, now: float) -> None:
        if self._output:
            self._line.put([Send(b"".join(self._output))], now)
            self._output.clear()

    def _say(self, steps: Sequence[FaultStep], now: float, *, urgent: bool = True) -> bool:
        """Let steps come true; say whether the connection ends with them."""
        self._line.put(steps, now)
        if urgent or len(steps) != 1:
            self._urgent = True
        for step in steps:
            if isinstance(step, ExpireMessage) and self._time_out is not None:
                self._time_out(step.message_id)
        return any(isinstance(step, (Close, Reset)) for step in steps)

    # --- commands -----------------------------------------------------------------------------------------------------

    def execute(
        self,
        words: list[bytes],
        begin: Callable[[], Read[None] | None],
        now: Callable[[], float],
        *,
        legal: bool,
    ) -> Read[bool]:
        """Do what the tap wants done about a command; say whether the connection ends with it.

        Args:
            begin: Begins to execute it.
            legal: Whether it is legal now; if not, its body is never read.
        """
        read = self._body_reader(words) if legal else None
        raw = None if read is None else (yield from read_ahead(read, self._input))
        command = Command(words[0], tuple(words[1:]), None if raw is None else raw[SIZE.size :])
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
                        self._input.unread(raw if body is None else SIZE.pack(len(body)) + body)
                    if (yield from self._execute(command, begin, now)):
                        return True
                case _:
                    if self._say([step], now()):
                        return True
        return False

    def _execute(
        self, command: Command, begin: Callable[[], Read[None] | None], now: Callable[[], float]
    ) -> Read[bool]:
        ended = answered = False
        answer: IoResult = None
        try:
            reading = begin()
            while reading is not None:
                io_request = reading.send(answer)
                if self._output:
                    answered = True
                    ended = self._reply(command, [], now()) or ended
                if isinstance(io_request, (StartTLS, StartCompression)):
                    # What is to be read before the layer begins must be under way.
                    while (seconds := self._line.held_until - now()) > 0:
                        yield Wait(seconds)
                answer = yield io_request
        except StopIteration:
            pass
        except CommandError as refusal:
            self._tap.executed(command, refusal.data)
            steps: list[FaultStep] = [Send(refusal.frame)]
            return self._reply(command, [*steps, Close()] if refusal.fatal else steps, now()) or refusal.fatal
        self._tap.executed(command, None)
        if self._output or not answered:
            ended = self._reply(command, [], now()) or ended
        return ended

    def _reply(self, command: Command, steps: list[FaultStep], now: float) -> bool:
        replies: list[FaultStep] = [Send(frame) for frame in self._output]
        self._output.clear()
        return self._say(self._tap.reply(command, replies + steps, now), now)


class _Recorder(CommandDecoder):
    """Takes from another decoder, and notes what it has taken."""

    __slots__ = ("_source", "taken")

    def __init__(self, source: CommandDecoder) -> None:
        self.taken: list[bytes] = []
        self._source = source

    def take(self, count: int) -> bytes | None:
        """Take exactly count bytes; None, and nothing taken, while there are fewer."""
        data = self._source.take(count)
        if data is not None:
            self.taken.append(data)
        return data


def read_ahead(read: BodyReader, source: InputBuffer) -> Read[bytes | None]:
    """Wait for the body of a command with its size, and leave both where they are.

    Returns:
        Both; None if the server refuses the command before it has it all.
    """
    recorder = _Recorder(source.decoder)
    ahead = InputBuffer(recorder)
    is_whole = True
    try:
        ahead.ended = source.ended
        for io_request in read(ahead):
            yield io_request
            ahead.ended = source.ended
    except CommandError:
        is_whole = False
    data = b"".join(recorder.taken)
    source.unread(data)
    return data if is_whole else None
