"""The shell of a session: one transport, a greenlet that reads and one that writes.

Owns both greenlets and the transport. Knows no command: bytes go to the session, effects come back. Only the writer
sends; while TLS or compression begins, it has nothing to send.

The transports of one accepted connection: TCP, then TLS, then compression.

Owns the stack and the time that a TLS handshake may take. Source: nsqd client_v2.go UpgradeTLS, UpgradeDeflate,
UpgradeSnappy: each begins on top of what is below it, whatever had been there before.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import gevent
from gevent.event import Event

from fakensqd.clock import Clock, Timer, run_with_timeout
from fakensqd.effects import (
    AskAuth,
    Close,
    Effect,
    IoRequest,
    IoResult,
    Reset,
    Send,
    StartCompression,
    StartTLS,
    TlsFailed,
    Wait,
)
from fakensqd.faults.injector import ConnectionInjector
from gnsq.errors import NSQProtocolError
from gnsq.transport import Transport

if TYPE_CHECKING:
    import ssl

__all__ = [
    "DaemonState",
    "Connection",
    "ConnectionSession",
    "TransportStack",
]

logger = logging.getLogger(__name__)


# For the handshake of a client. Source: client_v2.go UpgradeTLS.
_HANDSHAKE_TIMEOUT = 5.0


class TransportStack:
    """A stack of transports.

    Args:
        tcp: The lowest.
        reset: Breaks it in a way that the client notices; default: it is closed.
        addresses: Ours and the client's, for the words about a handshake that does not come.
        context: For TLS; None if it is not offered.

    Attributes:
        top: What the session's bytes go through.
    """

    def __init__(
        self,
        tcp: Transport,
        clock: Clock,
        *,
        addresses: tuple[str, str] = ("", ""),
        context: ssl.SSLContext | None = None,
        reset: Callable[[], None] | None = None,
    ) -> None:
        self.top = self._secured = self._tcp = tcp
        self._clock = clock
        self._addresses = addresses
        self._context = context
        self._reset = reset or tcp.close

    def start(self, layer: StartTLS | StartCompression) -> IoResult:
        """Start a layer on top; return the result of its IoRequest."""
        if isinstance(layer, StartTLS):
            return self._start_tls()
        # What is imported here takes long, and most clients never ask for it.
        from gnsq.tls import CompressedTransport

        self.top = CompressedTransport(self._secured, layer.codec)
        return None

    def close(self) -> None:
        """Close the connection, without a word of TLS: so does nsqd."""
        self._tcp.close()

    def reset(self) -> None:
        """Break the connection: what was sent and is still on its way is lost."""
        self._reset()

    def _start_tls(self) -> IoResult:
        from fakensqd import tls

        context = self._context
        assert context is not None  # the session knows what is offered
        try:
            outcome = run_with_timeout(self._clock, _HANDSHAKE_TIMEOUT, lambda: tls.handshake(self._tcp, context))
        except TimeoutError:
            return TlsFailed(f"read tcp {self._addresses[0]}->{self._addresses[1]}: i/o timeout")
        if isinstance(outcome, TlsFailed):
            return outcome
        self.top, secured = outcome
        self._secured = self.top
        return secured


_RECEIVE_SIZE = 65536
# A client that does not read its answers is not read from either.
_MAX_UNSENT = 4 * 1024 * 1024
# A timer that fires so much later, in seconds, is looked at once more, so much later again.
_STALL = 0.05
_SECOND_LOOK = 0.01
# How long a client may take to read what is sent before a close; nsqd: one heartbeat interval.
_LINGER = 5.0


@dataclass(slots=True)
class DaemonState:
    """The states of a daemon that its connections go by.

    Attributes:
        processing_delay: Seconds that pass before what clients have sent is worked on.
    """

    processing_delay: float = 0.0


class ConnectionSession(Protocol):
    """What a connection carries."""

    @property
    def due(self) -> float:
        """When tick() is worth calling."""

    def receive(self, data: bytes, now: float) -> list[Effect]:
        """Take what the client has sent."""

    def end_of_input(self, now: float) -> list[Effect]:
        """Take note that nothing more will come."""

    def pump(self, now: float) -> list[Effect]:
        """Say what has become due to be sent since wake-up."""

    def tick(self, now: float) -> list[Effect]:
        """Say what time has brought."""

    def resume(self, answer: IoResult, now: float) -> list[Effect]:
        """Take the result of an IoRequest."""

    def disconnected(self) -> None:
        """Take note that the connection is gone."""

    def attach(self, injector: ConnectionInjector) -> None:
        """Ask an injector about each event from now on, unless the session asks one already."""

    @property
    def names(self) -> tuple[str, str, str]:
        """Its client id, and the topic and channel that it subscribes to."""


class Connection:
    """One accepted connection.

    Args:
        stack: Its transport, and what can be put on top.
        open_session: Makes the session, given what it may call to be pumped.
        on_error: Called with an exception that no session should have raised.
        ask_auth: Asks the auth servers, for sessions that want to know.
        state: Those of the daemon.
    """

    def __init__(
        self,
        stack: TransportStack,
        clock: Clock,
        open_session: Callable[[Callable[[], bool]], ConnectionSession],
        on_error: Callable[[BaseException], None],
        ask_auth: Callable[[AskAuth], IoResult] | None = None,
        state: DaemonState | None = None,
    ) -> None:
        self._stack = stack
        self._clock = clock
        self._on_error = on_error
        self._ask_auth = ask_auth
        self._state = state or DaemonState()
        self._awake = Event()
        self._sent = Event()
        self._output: list[bytes] = []
        self._unsent = 0
        self._closing = self._resetting = False
        # Asked by the session; while it is about a new layer, what is to be sent waits for that.
        self._io_request: IoRequest | None = None
        self._held_back: list[bytes] | None = None
        self._timer: Timer | None = None
        self._timer_due = math.inf
        self._looking_again = False
        self.session = open_session(self._wake)

    def run(self) -> None:
        """Serve the client until the connection ends; the calling greenlet is the reader."""
        writer = gevent.spawn(self._write)
        writer.name = "fakensqd-writer"
        try:
            self._guarded(self._read)
            self._closing = True
            self._awake.set()
            lingering = self._clock.call_later(_LINGER, lambda: writer.kill(block=False))
            try:
                writer.join()
            finally:
                lingering.cancel()
        finally:
            writer.kill()
            if self._timer is not None:
                self._timer.cancel()
            self._stack.close()
            self._guarded(self.session.disconnected)

    def _wake(self) -> bool:
        """Let the writer pump the session; say whether it can at once, or is still busy sending."""
        self._awake.set()
        return not self._unsent

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError:
            pass  # the client is gone, or we closed the socket ourselves
        except Exception as error:
            logger.exception("internal error of the emulator")
            self._on_error(error)

    def _read(self) -> None:
        session, clock, state = self.session, self._clock, self._state
        receive = self._stack.top.recv
        while not self._closing:
            try:
                data = receive(_RECEIVE_SIZE)
            except NSQProtocolError:  # nothing that could be decompressed; nsqd takes it for the end
                data = b""
            if state.processing_delay:
                clock.sleep(state.processing_delay)
            if data:
                self._perform(session.receive(data, clock.monotonic()))
            else:
                self._perform(session.end_of_input(clock.monotonic()))
            if self._io_request is not None:
                self._perform_io_requests()
                receive = self._stack.top.recv
            if not data:
                self._wait_for_close()
                return
            while self._unsent > _MAX_UNSENT and not self._closing:
                self._sent.clear()
                self._sent.wait()  # the writer sets it, and closes the socket if it fails
            # recv() does not yield while data waits; without this the writer and all others starve.
            gevent.sleep(0)

    def _perform_io_requests(self) -> None:
        """Do what the session wants done before it reads on."""
        while (io_request := self._io_request) is not None and not self._closing:
            if isinstance(io_request, AskAuth):
                assert self._ask_auth is not None  # what asks has been given whom to ask
                answer = self._ask_auth(io_request)
            elif isinstance(io_request, Wait):
                self._clock.sleep(io_request.seconds)
                answer = None
            else:
                self._wait_until_sent()
                if self._closing:
                    return
                answer = self._stack.start(io_request)
            self._io_request = None
            held_back, self._held_back = self._held_back, None
            self._perform(map(Send, held_back or ()))
            self._perform(self.session.resume(answer, self._clock.monotonic()))

    def _wait_for_close(self) -> None:
        """Let the session say what faults hold back: a client that only shut down its writing side can read it."""
        while not self._closing and self.session.due < math.inf:
            self._sent.clear()
            self._sent.wait()  # the writer sets it, with what has been sent and when it ends

    def _wait_until_sent(self) -> None:
        while self._unsent and not self._closing:
            self._sent.clear()
            self._sent.wait()  # as in _read()

    def _write(self) -> None:
        try:
            self._guarded(self._write_loop)
        finally:
            # Wakes the reader, too, if it is waiting.
            self._closing = True
            self._sent.set()
            if self._resetting:
                self._stack.reset()
            self._stack.close()

    def _write_loop(self) -> None:
        while True:
            self._awake.wait()
            self._awake.clear()
            self._perform(self.session.pump(self._clock.monotonic()))
            while self._output:
                data = b"".join(self._output) if len(self._output) > 1 else self._output[0]
                self._output.clear()
                self._stack.top.sendall(data)
                self._unsent -= len(data)
                self._sent.set()
            if self._closing:
                return

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(data):
                    if self._held_back is not None:
                        self._held_back.append(data)
                        continue
                    self._output.append(data)
                    self._unsent += len(data)
                case Close() | Reset():
                    self._closing = True
                    self._resetting = isinstance(effect, Reset)
                case _:
                    self._io_request = effect
                    if not isinstance(effect, (AskAuth, Wait)):
                        self._held_back = []
            self._awake.set()
        due = self.session.due
        if due < self._timer_due:
            self._arm(due)

    def _arm(self, due: float) -> None:
        # Deadlines mostly move away, with every command. The timer is left where it is and looks again when it fires.
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_later(due - self._clock.monotonic(), self.tick)

    def tick(self) -> None:
        now = self._clock.monotonic()
        late = now - self._timer_due
        self._timer_due = math.inf
        self._timer = None
        self._looking_again = late > _STALL and not self._looking_again
        if self._looking_again:
            # This process was held up: what the client sent meanwhile may still wait in the socket.
            self._arm(now + _SECOND_LOOK)
            return
        if not self._closing:
            self._guarded(lambda: self._perform(self.session.tick(self._clock.monotonic())))
