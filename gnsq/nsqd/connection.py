"""Connection: one live connection to nsqd's TCP port, with a reader, an outbox and one writer.

Owns its greenlets, the order of pending replies and the count of what is in flight. Knows no policy: what becomes of
messages, how much RDY there is and when to connect again is decided by those who own connections.
"""

from __future__ import annotations

import enum
import errno
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import gevent
from gevent.event import AsyncResult, Event

from gnsq.clock import Clock, RealClock
from gnsq.errors import (
    NSQConnectionClosed,
    NSQErrorCode,
    NSQException,
    NSQFrameError,
    NSQProtocolError,
    NSQSocketError,
    NSQTimeout,
    make_error,
)
from gnsq.message import Message
from gnsq.nsqd.outbox import Outbox
from gnsq.options import ConnectionOptions
from gnsq.protocol import commands
from gnsq.protocol.frames import CLOSE_WAIT, ERROR, HEARTBEAT, MESSAGE, OK, RESPONSE, FrameDecoder
from gnsq.protocol.handshake import Identity, handshake
from gnsq.transport import READ_SIZE, Transport, connect, perform

__all__ = ["Connection", "ConnectionState"]

logger = logging.getLogger(__name__)

# A greenlet that wakes this much later than it asked for was held up by our own process, not by the peer.
STALL = 1.0

# So many chunks without a message may follow each other before the reader yields.
SPARED_YIELDS = 8
# A reset is put down to a refused body only where one longer than this waits for its answer, bytes.
SUSPECT_SIZE = 1024
# How long the reader may look for nsqd's reason after a send has failed, seconds.
LAST_WORDS = 1.0


class ConnectionState(enum.Enum):
    """Where a connection is in its life; it only ever moves down this list."""

    INIT = "init"
    CONNECTED = "connected"
    SUBSCRIBED = "subscribed"
    CLOSING = "closing"
    CLOSED = "closed"


class _Pending(NamedTuple):
    """A command that waits for its answer."""

    reply: AsyncResult
    size: int


class Connection:
    """One connection; opened once, closed once.

    Args:
        host, port: Where nsqd listens.
        options: What IDENTIFY asks for, and the time limits.
        clock: Replaceable time.

    Attributes:
        on_messages: Called with (connection, messages) for each chunk that held some.
        on_response: Called with (connection, data) for every response, heartbeats included; None: nobody asks.
        on_error: Called with (connection, NSQErrorCode) for every error frame.
        on_answered: Called with (connection) behind each FIN and REQ; None: nobody asks.
        on_finish, on_requeue: Called with (connection, id[, timeout in ms, backoff]) behind FIN and REQ; None: nobody
            asks.
        on_closed: Called once with (connection, error); error is None after an orderly close().
    """

    def __init__(
        self, host: str, port: int, options: ConnectionOptions | None = None, clock: Clock | None = None
    ) -> None:
        self.host = host
        self.port = port
        self.address = self.nsqd = f"{host}:{port}"
        self.options = options if options is not None else ConnectionOptions()
        self.state = ConnectionState.INIT
        self.identity = Identity()
        self.error: NSQException | None = None
        self.ready_count = 0
        self.in_flight = 0
        self.last_message = 0.0
        self.on_messages: Callable[[Connection, list[Message]], None] | None = None
        self.on_response: Callable[[Connection, bytes], None] | None = None
        self.on_error: Callable[[Connection, NSQErrorCode], None] | None = None
        self.on_answered: Callable[[Connection], None] | None = None
        self.on_finish: Callable[[Connection, bytes], None] | None = None
        self.on_requeue: Callable[[Connection, bytes, int, bool], None] | None = None
        self.on_closed: Callable[[Connection, NSQException | None], None] | None = None
        self._clock = clock if clock is not None else RealClock()
        self._transport: Transport | None = None
        self._decoder = FrameDecoder(self.options.max_frame_size)
        self._outbox = Outbox()
        self._pending: deque[_Pending] = deque()
        self._drained = Event()
        self._closed = Event()
        self._last_read = 0.0
        self._ended = False
        self._greenlets: list[gevent.Greenlet] = []

    def __repr__(self) -> str:
        return f"<Connection {self.address} {self.state.value}>"

    # --- life

    def open(self, transport: Transport | None = None) -> Identity:
        """Connect, negotiate, and start reading and writing.

        Args:
            transport: A stream to use in place of a new TCP connection.

        Raises:
            NSQSocketError: If nobody listens, or the connection breaks.
            NSQTimeout: If it takes longer than options.timeout.
            NSQProtocolError: If what answers is not nsqd.
            NSQErrorCode: If nsqd refuses; every error closes the connection.
        """
        deadline = gevent.Timeout(self.options.timeout)
        try:
            with deadline:
                self._transport = transport or connect(self.host, self.port, self.options.timeout)
                if self.state is ConnectionState.CLOSED:
                    # Aborted while it connected; abort() had no transport to close.
                    self._transport.close()
                    raise self._lost(self.error)
                self.identity = perform(handshake(self.options), self._transport, self._decoder)
        except gevent.Timeout as expired:
            self.abort()
            if expired is not deadline:
                raise
            missing = "connection" if self._transport is None else "answer to IDENTIFY"
            raise NSQTimeout(f"{self.address}: no {missing} within {self.options.timeout} s") from None
        except NSQProtocolError as error:
            self.abort(error)
            raise type(error)(f"{self.address} does not speak nsqd's TCP protocol: {error}") from error
        except BaseException as error:
            self.abort(error if isinstance(error, NSQException) else None)
            raise
        self._last_read = self._clock.monotonic()
        self._enter(ConnectionState.CONNECTED)
        loops = [("read", self._read_loop), ("write", self._write_loop)]
        if self.options.heartbeat_interval > 0:
            loops.append(("watch", self._watch_loop))
        for name, loop in loops:
            greenlet = gevent.spawn(self._run, loop)
            greenlet.name = f"gnsq-{name}-{self.address}"
            self._greenlets.append(greenlet)
        logger.info("%s: connected, nsqd %s", self.address, self.identity.version or "without negotiation")
        return self.identity

    def subscribe(self, topic: str, channel: str) -> None:
        """Send SUB and wait for its OK.

        Raises:
            ValueError: If a name is not valid; nothing was sent.
            NSQErrorCode: What nsqd said instead; it closes the connection.
            NSQTimeout, NSQConnectionClosed: If no answer came.
        """
        answer = self.call(commands.subscribe(topic, channel))
        if answer != OK:
            raise NSQProtocolError(f"{self.address}: answer {answer[:80]!r} to SUB, OK was due")
        if self.state is not ConnectionState.CONNECTED:
            raise self._lost(self.error)
        self._enter(ConnectionState.SUBSCRIBED)
        logger.info("%s: subscribed to %s/%s", self.address, topic, channel)

    def close(self, timeout: float) -> None:
        """End in order: no new messages (CLS), wait until what is in flight is answered and what waits for a reply
        has one, send all that is queued, then close.

        Args:
            timeout: Seconds; then the connection is cut, and nsqd delivers again what was not answered.
        """
        if self.state is ConnectionState.CLOSED:
            return
        subscribed = self.state is ConnectionState.SUBSCRIBED
        self._enter(ConnectionState.CLOSING)
        deadline = gevent.Timeout(timeout)
        try:
            with deadline:
                if subscribed:
                    self.call(commands.close(), expected=CLOSE_WAIT)
                # Each may have to wait again: messages still come until nsqd has read the CLS.
                while self.in_flight > 0 and self.state is ConnectionState.CLOSING:
                    self._drained.clear()
                    self._drained.wait()
                while self._pending:
                    self._pending[-1].reply.wait()
                self._outbox.wait_flushed()
                self._ended = True
                if self._transport is not None:
                    # nsqd reads up to our end before it closes, so the last FINs arrive.
                    self._transport.end()
                self._closed.wait()
        except gevent.Timeout as expired:
            if expired is not deadline:
                raise
            logger.warning("%s: not closed in order within %s s, %d in flight", self.address, timeout, self.in_flight)
        except NSQException as error:
            logger.info("%s: lost while closing: %s", self.address, error)
        finally:
            self.abort()

    def abort(self, error: NSQException | None = None) -> None:
        """Close at once. Pending replies fail with NSQConnectionClosed; a second call does nothing.

        Args:
            error: Why, for those who wait; None if nobody is to blame.
        """
        if self.state is ConnectionState.CLOSED:
            return
        self._enter(ConnectionState.CLOSED)
        self.error = error
        if self._transport is not None:
            self._transport.close()
        self._outbox.close()
        self._drained.set()
        self._closed.set()
        pending, self._pending = self._pending, deque()
        if pending:
            lost = self._lost(error, max(item.size for item in pending))
            for item in pending:
                item.reply.set_exception(lost)
        for greenlet in self._greenlets:
            # Reader and writer end by the closed socket; the watch may be asleep for a heartbeat interval.
            if greenlet is not gevent.getcurrent() and greenlet.name.startswith("gnsq-watch"):
                greenlet.kill(block=False)
        if self.on_closed is not None:
            self.on_closed(self, error)

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the connection is closed, by whomever; False if the timeout (seconds) ended first."""
        return bool(self._closed.wait(timeout))

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self.state in (ConnectionState.CONNECTED, ConnectionState.SUBSCRIBED)

    def _enter(self, state: ConnectionState) -> None:
        self.state = state

    def _lost(self, error: NSQException | None, longest: int = 0) -> NSQConnectionClosed:
        """Say why there is no answer; longest is the size of the longest command that waits for one."""
        text = f"{self.address}: {error or 'connection was closed'}"
        if isinstance(error, NSQErrorCode):
            # Source: nsqd executes nothing behind a fatal error.
            text = f"{self.address}: nsqd refused a command before this one and closed the connection ({error}); "
            text += "this one was not executed"
        elif isinstance(error, NSQSocketError) and error.errno == errno.ECONNRESET and longest > SUSPECT_SIZE:
            text += f"; the longest command without an answer has {longest} bytes, and nsqd resets a connection when "
            text += "it refuses a body: compare with its --max-msg-size and --max-body-size"
        return NSQConnectionClosed(text)

    # --- commands

    def request(self, command: bytes) -> AsyncResult:
        """Send a command that has an answer; the result holds the answer's data, or what went wrong.

        Raises:
            NSQConnectionClosed: If the connection is closed.
        """
        self.send(command)
        pending = _Pending(AsyncResult(), len(command))
        self._pending.append(pending)
        return pending.reply

    def call(self, command: bytes, expected: bytes | None = None) -> bytes:
        """Send a command and wait for its answer.

        Raises:
            NSQErrorCode: What nsqd said instead.
            NSQProtocolError: If the answer is not the expected one.
            NSQTimeout: If none came within options.timeout.
            NSQConnectionClosed: If the connection is closed or gets lost.
        """
        reply = self.request(command)
        # Not get(timeout=...): a gevent.Timeout that the caller has set must stay the caller's.
        reply.wait(self.options.timeout)
        if not reply.ready():
            word = command.split(None, 1)[0].decode()
            raise NSQTimeout(f"{self.address}: no answer to {word} within {self.options.timeout} s")
        answer: bytes = reply.get()
        if expected is not None and answer != expected:
            raise NSQProtocolError(f"{self.address}: answer {answer[:80]!r}, {expected!r} was due")
        return answer

    def send(self, command: bytes) -> None:
        """Queue a command; the writer sends all that is queued at once.

        Raises:
            NSQConnectionClosed: If the connection is closed.
        """
        if self.state is ConnectionState.CLOSED:
            raise self._lost(self.error)
        self._outbox.put(command)

    def ready(self, count: int) -> None:
        """Send RDY.

        Raises:
            ValueError: If the count is negative or above what nsqd said it allows; nothing was sent.
        """
        if count > self.identity.max_rdy_count:
            raise ValueError(f"RDY {count} exceeds max_rdy_count {self.identity.max_rdy_count} of {self.address}")
        self.send(commands.ready(count))
        self.ready_count = count

    def finish(self, message_id: bytes) -> None:
        """Send FIN; a message of this connection is no longer in flight."""
        self.send(commands.finish(message_id))
        self._answered()
        if self.on_finish is not None:
            self.on_finish(self, message_id)

    def requeue(self, message_id: bytes, timeout: int, backoff: bool) -> None:
        """Send REQ, timeout in milliseconds; a message of this connection is no longer in flight."""
        self.send(commands.requeue(message_id, timeout))
        self._answered()
        if self.on_requeue is not None:
            self.on_requeue(self, message_id, timeout, backoff)

    def touch(self, message_id: bytes) -> None:
        """Send TOUCH."""
        self.send(commands.touch(message_id))

    def _answered(self) -> None:
        self.in_flight -= 1
        if self.on_answered is not None:
            self.on_answered(self)
        if not self.in_flight and self.state is ConnectionState.CLOSING:
            self._drained.set()

    # --- loops

    def _run(self, loop: Callable[[], None]) -> None:
        """Run a loop as a greenlet: however it ends, the connection is closed and everyone who waits is told."""
        try:
            loop()
        except NSQException as error:
            if self.state is not ConnectionState.CLOSED:
                level = logging.INFO if self.state is ConnectionState.CLOSING else logging.WARNING
                logger.log(level, "%s: %s", self.address, error)
            self.abort(error)
        except Exception as error:  # top of a greenlet: a bug here must not leave anyone waiting
            logger.exception("%s: internal error, connection closed", self.address)
            self.abort(NSQException(f"internal error: {error!r}"))
        except BaseException:
            self.abort()
            raise

    def _read_loop(self) -> None:
        assert self._transport is not None  # open() has made it
        recv = self._transport.recv
        feed = self._decoder.feed
        # What came behind the last answer of the handshake.
        data = self._decoder.detach()
        spared = 0
        while True:
            messages: list[Message] = []
            for frame_type, payload in feed(data):
                if frame_type == MESSAGE:
                    messages.append(Message.from_frame(payload, self))
                elif frame_type == RESPONSE:
                    self._handle_response(payload)
                elif frame_type == ERROR:
                    self._handle_error(make_error(payload))
                else:
                    raise NSQFrameError(f"frame type {frame_type} is not one of 0, 1, 2")
            if messages:
                self.last_message = self._last_read
                self.in_flight += len(messages)
                if self.on_messages is not None:
                    self.on_messages(self, messages)
            if self._decoder.failure is not None:
                raise self._decoder.failure
            # recv() does not yield while data waits; without this the writer, timers and handlers starve. Behind
            # a few answers there rarely is more, and a lone publisher is 15 us faster without it.
            spared = 0 if messages or spared == SPARED_YIELDS else spared + 1
            if not spared:
                gevent.sleep(0)
            data = recv(READ_SIZE)
            if not data and self._ended:
                self.abort()
                return
            if not data:
                raise NSQConnectionClosed("nsqd closed the connection")
            self._last_read = self._clock.monotonic()

    def _handle_response(self, data: bytes) -> None:
        if data == HEARTBEAT:
            self.send(commands.NOP)
        elif self._pending:
            self._pending.popleft().reply.set(data)
        else:
            raise NSQProtocolError(f"response {data[:80]!r}, but no command waits for one")
        if self.on_response is not None:
            self.on_response(self, data)

    def _handle_error(self, error: NSQErrorCode) -> None:
        if self.on_error is not None:
            self.on_error(self, error)
        if not error.fatal:
            # FIN, REQ and TOUCH have no answer, so this is nobody's reply.
            logger.warning("%s: %s", self.address, error)
            return
        if self._pending:
            self._pending.popleft().reply.set_exception(error)
        raise error

    def _write_loop(self) -> None:
        assert self._transport is not None  # open() has made it
        try:
            self._outbox.run(self._transport)
        except NSQException:
            # nsqd refuses a body before it has read it: its reason is on its way while our send breaks.
            self._closed.wait(LAST_WORDS)
            raise

    def _watch_loop(self) -> None:
        """Declare nsqd dead when nothing has come for two heartbeat intervals; our own stalls do not count."""
        interval = self.options.heartbeat_interval
        pause = interval / 2
        while True:
            before = self._clock.monotonic()
            self._clock.sleep(pause)
            now = self._clock.monotonic()
            if now - before > pause + STALL:
                self._last_read = now
            elif now - self._last_read > 2 * interval:
                raise NSQConnectionClosed(f"no word from nsqd for {now - self._last_read:.0f} s, 2 heartbeat intervals")
