"""Base class of the sessions of nsqd and nsqlookupd: takes received bytes and the time, and returns effects.

Pure: knows no socket, no clock and no command. A generator executes the client's commands one after another, as the
loops of both daemons do; it pauses while bytes are missing.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from fakensqd.effects import Close, Effect, IoRequest, IoResult, Send
from fakensqd.faults.control import FaultControl
from fakensqd.faults.interceptor import InterceptableSession, InterceptedSession
from fakensqd.input_buffer import CommandError, InputBuffer, Read
from gnsq.protocol.commands import CommandDecoder

__all__ = ["ConnectionSession", "Handler"]

# A function that gets a session and a command's words. It executes the command, or returns a generator that does so.
Handler = Callable[[Any, list[bytes]], Read[None] | None]  # Any: a subclass of ConnectionSession


class ConnectionSession(InterceptableSession):
    """The server's side of one connection.

    Args:
        now: Time at which the client connected, in seconds.
        decoder: Splits the bytes of the client; default: as nsqd does.

    Attributes:
        now: The time in seconds, which each call by the connection sets.
        input: Bytes from the client.
        output: Frames that no call has returned in a Send yet.
    """

    magic: ClassVar[bytes]
    # The frame that is sent to a client whose magic differs from ``magic``.
    bad_magic: ClassVar[bytes]

    def __init__(self, now: float = 0.0, decoder: CommandDecoder | None = None) -> None:
        self.now = now
        self.input = InputBuffer(decoder)
        self.output: list[bytes] = []
        # True: send the output now, and do not wait for more.
        self._flush = False
        self._handlers: Mapping[bytes, Handler] = {}
        # The IoRequest whose result the session waits for.
        self._request: IoRequest | None = None
        self._executed = False
        self._closed = False
        self._intercepted: InterceptedSession | None = None
        self._command_loop = self._execute_commands()

    # --- called by the connection -------------------------------------------------------------------------------------

    def attach(self, faults: FaultControl, number: int) -> None:
        """Ask a FaultControl about each event from the next command or pushed frame on, unless one is attached already.

        Args:
            number: Number of the connection.
        """
        if self._intercepted is None:
            self._intercepted = InterceptedSession(faults, number, self)

    def receive(self, data: bytes, now: float) -> list[Effect]:
        """Take bytes that the client has sent, and execute the commands in them."""
        self.input.decoder.feed(data)
        return self._advance(now)

    def end_of_input(self, now: float) -> list[Effect]:
        """Note that the client sends nothing more."""
        self.input.ended = True
        return self._advance(now)

    def resume(self, result: IoResult, now: float) -> list[Effect]:
        """Continue after an IoRequest, with the result of this request."""
        self._request = None
        return self._advance(now, result)

    def pump(self, now: float) -> list[Effect]:
        """Return the output that need not wait for more. The connection calls pump() after its writer was woken."""
        self.now = now
        return self._effects()

    def tick(self, now: float) -> list[Effect]:
        """Process deadlines that have passed, and return the output."""
        return self.pump(now)

    def disconnected(self) -> None:
        """Note that the connection ends, and release what the session holds. Earlier output may still be sent."""
        self._closed = True

    @property
    def due(self) -> float:
        """Time in seconds at which tick() must be called; infinity: never. Each call of a method may change it."""
        return math.inf if self._intercepted is None else self._intercepted.due

    def expire_message(self, message_id: bytes) -> None:
        """Do nothing: only nsqd has messages."""

    # --- for subclasses -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _refuse(self, words: list[bytes]) -> None:
        """Raise the CommandError for a command that has no handler in the session's present state."""

    def _on_connected(self) -> None:
        """Prepare for commands: the client has sent the right magic."""

    def _on_advanced(self) -> None:
        """Act each time that the execution of commands has paused or ended."""

    def respond(self, frame: bytes) -> None:
        """Send a frame, with all output before it."""
        self.output.append(frame)
        self._flush = True

    # --- input and output ---------------------------------------------------------------------------------------------

    def _advance(self, now: float, result: IoResult = None) -> list[Effect]:
        self.now = now
        if self._closed or self._request is not None:
            return self._effects()
        self._executed = False
        try:
            request = self._request = self._command_loop.send(result)
        except StopIteration:
            request = None
            self.disconnected()
        self._on_advanced()
        effects = self._effects()
        if request is not None:
            effects.append(request)
        return effects

    def _execute_commands(self) -> Read[None]:
        """Execute the client's commands. Pauses while bytes are missing. Returns when the connection must be closed."""
        source, decoder, refuse = self.input, self.input.decoder, type(self)._refuse
        while (magic := decoder.take(len(self.magic))) is None:
            if source.ended:
                return
            yield None
        if magic != self.magic:
            self.respond(self.bad_magic)
            return
        self._on_connected()
        self._executed = True
        while True:
            try:
                line = decoder.take_line()
            except ValueError:  # the line is too long: nsqd closes the connection without an error
                return
            if line is None:
                if source.ended:
                    return
                yield None
                continue
            if self._intercepted is not None and self._intercepted.is_idle:
                self._intercepted = None
            try:
                words = line.split(b" ")
                handler = self._handlers.get(words[0], refuse)
                if self._intercepted is not None:
                    begin = partial(handler, self, words)
                    if (yield from self._intercepted.execute(words, begin, legal=handler is not refuse)):
                        return
                elif (steps := handler(self, words)) is not None:
                    yield from steps
            except CommandError as error:
                self.output += error.frames
                self._flush = True
                if error.fatal:
                    return
            self._executed = True

    def _effects(self) -> list[Effect]:
        flush, self._flush = self._flush, False
        if self._intercepted is not None:
            return self._intercepted.take(flush=flush, closed=self._closed)
        effects: list[Effect] = []
        if self.output and flush:
            effects.append(Send(b"".join(self.output)))
            self.output.clear()
        if self._closed:
            effects.append(Close())
        return effects
