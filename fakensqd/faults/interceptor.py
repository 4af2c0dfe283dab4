"""The session of a connection with rules or a transcript. A ConnectionInjector gets its commands, replies and frames.

Pure, and the same for sessions of nsqd and nsqlookupd. A session without rules and transcript has no
InterceptedSession, and checks that once per command and batch. An InterceptedSession reads the body of a command before
it executes the command, unless the server would refuse the command without reading the body. All output goes through an
OutputScheduler.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

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
from fakensqd.faults.injector import ConnectionInjector
from fakensqd.input_buffer import SIZE, BodyReader, CommandError, InputBuffer, Read
from fakensqd.message import QueuedMessage
from gnsq.protocol.commands import Command, CommandDecoder

__all__ = ["InterceptedSession", "OutputScheduler"]


class InterceptedSession:
    """Does the steps that a ConnectionInjector returns for the events of one session.

    Args:
        source: Input of the session.
        output: Frames that the session has not sent. This class takes them out of the list.
        body_reader: Returns the reader of a legal command's body; None if the command has no body, or is refused
            before its body is read.
        expire_message: Times out a message in flight; None on nsqlookupd.
    """

    def __init__(
        self,
        injector: ConnectionInjector,
        source: InputBuffer,
        output: list[bytes],
        body_reader: Callable[[list[bytes]], BodyReader | None],
        expire_message: Callable[[bytes], None] | None = None,
    ) -> None:
        self._injector = injector
        self._input = source
        self._output = output
        self._body_reader = body_reader
        self._expire_message = expire_message
        self._scheduler = OutputScheduler()
        # Whether output must be sent before the session's buffer is full.
        self._flush = bool(output)
        self._schedule_output(0.0)

    @property
    def is_idle(self) -> bool:
        """Whether the session does not need this object: there are no rules, no transcript and no delayed output."""
        return not (self._injector.is_active or self._output or self._scheduler.is_busy)

    # --- output -------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """Time of the next output for take(); infinity if there is none."""
        return self._scheduler.due

    def push_messages(self, messages: Sequence[QueuedMessage], frames: Sequence[bytes], now: float) -> None:
        """Push messages that have just become in flight."""
        for message, frame in zip(messages, frames, strict=True):
            self._do(self._injector.message(message, frame, now), now, flush=False)

    def push_heartbeat(self, frame: bytes, now: float) -> None:
        """Push a heartbeat."""
        self._do(self._injector.heartbeat(frame, now), now)

    def take(self, now: float, *, flush: bool, closed: bool) -> list[Effect]:
        """Return the effects that are due now. Without ``flush``, messages stay in the buffer."""
        self._schedule_output(now)
        if closed:
            self._scheduler.close()
        if not (flush or closed or self._flush or self.due <= now):
            return []
        self._flush = False
        return self._scheduler.take(now)

    def _schedule_output(self, now: float) -> None:
        if self._output:
            self._scheduler.put([Send(b"".join(self._output))], now)
            self._output.clear()

    def _do(self, steps: Sequence[FaultStep], now: float, *, flush: bool = True) -> bool:
        """Do steps; return whether one of them ends the connection."""
        self._scheduler.put(steps, now)
        if flush or len(steps) != 1:
            self._flush = True
        for step in steps:
            if isinstance(step, ExpireMessage) and self._expire_message is not None:
                self._expire_message(step.message_id)
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
        """Do the steps for a command; return whether they end the connection.

        Args:
            begin: Begins to execute the command.
            legal: Whether the command is legal now; if not, its body is not read.
        """
        read = self._body_reader(words) if legal else None
        raw = None if read is None else (yield from _peek_body(read, self._input))
        command = Command(words[0], tuple(words[1:]), None if raw is None else raw[SIZE.size :])
        steps = self._injector.command(command, now())
        unchanged = len(steps) == 1 and steps[0] == Execute()
        if raw is not None and not unchanged:
            self._input.decoder.take(len(raw))
        for step in steps:
            match step:
                case Wait():
                    yield step
                case Execute(body):
                    if not unchanged and raw is not None:
                        self._input.unread(raw if body is None else SIZE.pack(len(body)) + body)
                    if (yield from self._execute(begin, now)):
                        return True
                case _:
                    if self._do([step], now()):
                        return True
        return False

    def _execute(self, begin: Callable[[], Read[None] | None], now: Callable[[], float]) -> Read[bool]:
        ended = answered = False
        result: IoResult = None
        try:
            reading = begin()
            while reading is not None:
                io_request = reading.send(result)
                if self._output:
                    answered = True
                    ended = self._reply(now()) or ended
                if isinstance(io_request, (StartTLS, StartCompression)):
                    # The client must get the delayed replies before TLS or compression begins.
                    while (seconds := self._scheduler.blocked_until - now()) > 0:
                        yield Wait(seconds)
                result = yield io_request
        except StopIteration:
            pass
        except CommandError as error:
            self._output.append(error.frame)
            return self._reply(now(), [Close()] if error.fatal else []) or error.fatal
        self._injector.executed()
        if self._output or not answered:
            ended = self._reply(now()) or ended
        return ended

    def _reply(self, now: float, end: Sequence[FaultStep] = ()) -> bool:
        steps: list[FaultStep] = [*map(Send, self._output), *end]
        self._output.clear()
        return self._do(self._injector.reply(steps, now), now)


class OutputScheduler:
    """Schedules the output of one connection whose frames rules may delay or reorder.

    A Wait delays all later output, as a slow server does. SendLater and SendAfterNext do not delay other frames.
    """

    def __init__(self) -> None:
        self._ready: list[bytes] = []
        self._end: Close | Reset | None = None
        self._closing = False
        self._blocked: deque[FaultStep] = deque()
        self._until = -math.inf
        self._after_next: list[bytes] = []
        self._later: list[tuple[float, int, bytes]] = []
        self._order = itertools.count()

    @property
    def due(self) -> float:
        """Time when delayed output can be sent; infinity if there is none."""
        blocked = self._until if self._blocked else math.inf
        return min(blocked, self._later[0][0]) if self._later else blocked

    @property
    def blocked_until(self) -> float:
        """When the current wait ends; a time in the past if there is none."""
        return self._until if self._blocked else -math.inf

    @property
    def is_busy(self) -> bool:
        """Whether there is output that has not been taken."""
        return bool(self._ready or self._blocked or self._after_next or self._later or self._end)

    def close(self) -> None:
        """End the connection after all output, unless its end is scheduled already."""
        self._closing = self._end is None and not any(isinstance(step, (Close, Reset)) for step in self._blocked)

    def put(self, steps: Iterable[FaultStep], now: float) -> None:
        """Schedule output; other steps are ignored."""
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
        """Return the output that is due now: at most one Send, then the end of the connection if it is due."""
        while self._blocked and self._until <= now:
            self._blocked.popleft()  # the wait that is over
            self._release_to_next_wait(now)
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

    def _release_to_next_wait(self, now: float) -> None:
        while self._blocked:
            step = self._blocked[0]
            if isinstance(step, Wait):
                self._until = max(self._until, now) + step.seconds
                return
            self._release(self._blocked.popleft(), now)

    def _release(self, step: FaultStep, now: float) -> None:
        if self._end is not None:
            return
        match step:
            case Send(data):
                self._ready += [data, *self._after_next]
                self._after_next.clear()
            case SendLater(data, seconds):
                heapq.heappush(self._later, (now + seconds, next(self._order), data))
            case SendAfterNext(data):
                self._after_next.append(data)
            case Close() | Reset():
                # There is no next frame any more.
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
