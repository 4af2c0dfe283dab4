"""One accepted connection: its transports, a greenlet that reads and a greenlet that writes.

Owns both greenlets and the transports: TCP, TLS, compression. Knows no command: it gives bytes to the session and
performs the effects that the session returns. Only the writer sends the bytes of the session.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gevent.event import Event

from fakensqd.clock import Clock, Timer, run_with_timeout
from fakensqd.daemon.session import ConnectionSession
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
from gnsq.clock import monotonic
from gnsq.concurrency.greenlets import check_is_failure, spawn
from gnsq.errors import NSQProtocolError
from gnsq.transport import Transport

if TYPE_CHECKING:
    import ssl

__all__ = ["Connection", "TransportStack"]

logger = logging.getLogger(__name__)

# Bytes of one read. With 64 KiB, MPUBs of 200 KB take 9 % more time.
_RECEIVE_SIZE = 128 * 1024
# If the commands of one read take longer than these seconds, the next read is half as long, so that other greenlets run
# in between: 128 KiB of PUBs with a byte each take 0.3 s.
_PROCESSING_SECONDS = 0.01
_MIN_RECEIVE_SIZE = 4 * 1024
# If more bytes than this wait to be sent, the server does not read from the client.
_MAX_UNSENT = 4 * 1024 * 1024
# If a timer is late by more seconds than this, the process may have been suspended, and the socket may have data that
# came in time. The timer then runs again _TIMER_RETRY_DELAY seconds later, so that this data is read first.
_MAX_TIMER_DELAY = 0.05
_TIMER_RETRY_DELAY = 0.01
# Seconds that a client may take to read the last bytes before a close. In nsqd, it may take one heartbeat interval.
_CLOSE_GRACE = 5.0
# Seconds that the TLS handshake with a client may take. Source: client_v2.go UpgradeTLS.
_HANDSHAKE_TIMEOUT = 5.0


class Connection:
    """One accepted connection.

    Args:
        stack: The transports of the connection.
        open_session: Makes the session. Its argument wake() wakes the writer, which then calls the session's pump();
            wake() returns True if no bytes wait to be sent.
        on_error: Called with an exception other than OSError: a bug of the emulator, or of a test's own action.
        ask_auth: Asks the auth servers.
        processing_delay: Seconds between receiving data and processing it. May be changed.
    """

    def __init__(
        self,
        stack: TransportStack,
        clock: Clock,
        open_session: Callable[[Callable[[], bool]], ConnectionSession],
        on_error: Callable[[BaseException], None],
        ask_auth: Callable[[AskAuth], IoResult] | None = None,
        processing_delay: float = 0.0,
    ) -> None:
        self._stack = stack
        self._clock = clock
        self._on_error = on_error
        self._ask_auth = ask_auth
        self.processing_delay = processing_delay
        self._awake = Event()
        self._sent = Event()
        self._output: list[bytes] = []
        self._unsent = 0
        self._closing = self._resetting = False
        # The IoRequest in progress. During StartTLS or StartCompression, output is collected for the new transport.
        self._io_request: IoRequest | None = None
        self._collected: list[bytes] | None = None
        self._timer: Timer | None = None
        self._timer_due = math.inf
        self._is_retrying = False
        self.session = open_session(self._wake)

    def run(self) -> None:
        """Serve the client until the connection ends. The calling greenlet becomes the reader."""
        writer = spawn("fakensqd-writer", self._write, on_failure=self._on_error)
        try:
            self._run_guarded(self._read)
            self._closing = True
            self._awake.set()
            kill_timer = self._clock.call_later(_CLOSE_GRACE, lambda: writer.kill(block=False))
            try:
                writer.join()
            finally:
                kill_timer.cancel()
        finally:
            writer.kill()
            if self._timer is not None:
                self._timer.cancel()
            self._stack.close()
            self._run_guarded(self.session.disconnected)

    def _wake(self) -> bool:
        self._awake.set()
        return not self._unsent

    def _run_guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError:
            pass  # the client has disconnected, or this side has closed the socket
        except BaseException as error:  # noqa: BLE001  # recorded
            check_is_failure(error)
            self._on_error(error)

    def _read(self) -> None:
        session, clock = self.session, self._clock
        receive, size = self._stack.top.recv, _RECEIVE_SIZE
        while not self._closing:
            try:
                data = receive(size)
            except NSQProtocolError:  # data that cannot be decompressed is the end of the input, as in nsqd
                data = b""
            if self.processing_delay:
                clock.sleep(self.processing_delay)
            if data:
                started = monotonic()
                self._perform(session.receive(data, clock.monotonic()))
                is_slow = monotonic() - started > _PROCESSING_SECONDS
                size = max(size // 2, _MIN_RECEIVE_SIZE) if is_slow else min(size * 2, _RECEIVE_SIZE)
            else:
                self._perform(session.end_of_input(clock.monotonic()))
            if self._io_request is not None:
                self._perform_io_requests()
                receive = self._stack.top.recv
            if not data:
                # Wait for frames that faults delay: a client that shut down only its sending side can read them.
                self._wait_while(lambda: session.due < math.inf)
                return
            if self._unsent > _MAX_UNSENT:
                self._wait_while(lambda: self._unsent > _MAX_UNSENT)

    def _perform_io_requests(self) -> None:
        """Perform the IoRequests of the session, one after another, before the session gets more bytes."""
        while (io_request := self._io_request) is not None and not self._closing:
            if isinstance(io_request, AskAuth):
                assert self._ask_auth is not None  # sessions use AskAuth only if there are auth servers
                answer = self._ask_auth(io_request)
            elif isinstance(io_request, Wait):
                self._clock.sleep(io_request.seconds)
                answer = None
            else:
                self._wait_while(lambda: self._unsent > 0)
                if self._closing:
                    return
                answer = self._stack.start(io_request)
            self._io_request = None
            collected, self._collected = self._collected, None
            self._perform(map(Send, collected or ()))
            self._perform(self.session.resume(answer, self._clock.monotonic()))

    def _wait_while(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is false or the connection closes."""
        while condition() and not self._closing:
            self._sent.clear()
            self._sent.wait()  # The writer sets this event after each send, and when the writer ends.

    def _write(self) -> None:
        try:
            self._run_guarded(self._write_loop)
        finally:
            self._closing = True
            self._sent.set()  # wakes the reader
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
                    if self._collected is not None:
                        self._collected.append(data)
                        continue
                    self._output.append(data)
                    self._unsent += len(data)
                case Close() | Reset():
                    self._closing = True
                    self._resetting = isinstance(effect, Reset)
                case _:
                    self._io_request = effect
                    if not isinstance(effect, (AskAuth, Wait)):
                        self._collected = []
            self._awake.set()
        due = self.session.due
        # Most deadlines move to a later time with each command. The timer then stays, and tick() sets the next timer.
        if due < self._timer_due:
            self._arm(due)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_later(due - self._clock.monotonic(), self.tick)

    def tick(self) -> None:
        """Process the deadlines that have passed, and set the next timer. After a late timer, first wait once more."""
        now = self._clock.monotonic()
        late = now - self._timer_due
        self._timer_due = math.inf
        self._timer = None
        self._is_retrying = late > _MAX_TIMER_DELAY and not self._is_retrying
        if self._is_retrying:
            self._arm(now + _TIMER_RETRY_DELAY)
            return
        if not self._closing:
            self._run_guarded(lambda: self._perform(self.session.tick(self._clock.monotonic())))


class TransportStack:
    """The transports of one connection: TCP, then TLS, then compression.

    A second compression replaces the first. Source: nsqd client_v2.go UpgradeTLS, UpgradeDeflate, UpgradeSnappy.

    Args:
        tcp: The lowest transport.
        context: TLS context; None if the server does not offer TLS.
        reset: Ends the connection with a TCP RST; default: close the lowest transport.

    Attributes:
        top: The uppermost transport, by which the session's bytes are sent and received.
    """

    def __init__(
        self,
        tcp: Transport,
        clock: Clock,
        *,
        context: ssl.SSLContext | None = None,
        reset: Callable[[], None] | None = None,
    ) -> None:
        self.top = self._below_compression = self._tcp = tcp
        self._clock = clock
        self._context = context
        self._reset = reset or tcp.close

    def start(self, request: StartTLS | StartCompression) -> IoResult:
        """Start TLS or compression; return the result of the request."""
        if isinstance(request, StartTLS):
            return self._start_tls()
        # Few clients need this import, which is slow.
        from gnsq.transport import CompressedTransport

        self.top = CompressedTransport(self._below_compression, request.codec)
        return None

    def close(self) -> None:
        """Close the connection without an alert of TLS, as nsqd does."""
        self._tcp.close()

    def reset(self) -> None:
        """End the connection with a TCP RST. Data that has not reached the client is lost."""
        self._reset()

    def _start_tls(self) -> IoResult:
        from fakensqd import tls

        context = self._context
        assert context is not None  # sessions request TLS only if it is offered
        try:
            outcome = run_with_timeout(self._clock, _HANDSHAKE_TIMEOUT, lambda: tls.handshake(self._tcp, context))
        except TimeoutError:
            return TlsFailed("i/o timeout")
        if isinstance(outcome, TlsFailed):
            return outcome
        self.top, established = outcome
        self._below_compression = self.top
        return established
