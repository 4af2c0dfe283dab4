"""Connection: one live connection to nsqd's TCP port, with a reader, an outbox and one writer.

Owns its greenlets, the order of requests and the count of what is in flight. Knows no policy: what becomes of
messages, how much RDY there is and when to connect again is decided by those who own connections.

When nsqd is dead to us: silent for too long, or no longer reading. Decides only: reads no clock, closes nothing.
"""

from __future__ import annotations

import enum
import functools
import logging
from collections.abc import Callable, Sized

import gevent
from gevent.event import AsyncResult, Event

from gnsq.addresses import format_address
from gnsq.clock import Clock, RealClock
from gnsq.concurrency.forks import register_after_fork
from gnsq.concurrency.greenlets import CooperativeYield
from gnsq.concurrency.hub_monitor import HubMonitor
from gnsq.errors import (
    NSQConnectionClosed,
    NSQErrorCode,
    NSQException,
    NSQProtocolError,
    NSQTimeout,
    make_error,
)
from gnsq.logs import LogOwner
from gnsq.message import Message, read_messages
from gnsq.nsqd.connect import TransportStack
from gnsq.nsqd.in_flight import InFlightMessages
from gnsq.nsqd.pending import PendingCall, connection_lost_error
from gnsq.nsqd.writer import Writer
from gnsq.options import ConnectionOptions
from gnsq.protocol import commands
from gnsq.protocol.frames import CLOSE_WAIT, ERROR, HEARTBEAT, OK, RESPONSE, FrameDecoder
from gnsq.protocol.handshake import Identity, handshake, with_hint
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name
from gnsq.stats import ConnectionStats
from gnsq.texts import counted, without_address
from gnsq.transport import READ_SIZE, TcpTransport, Transport

__all__ = [
    "OWN_DELAY",
    "Connection",
    "ConnectionState",
    "InternalError",
    "LivenessMonitor",
]

logger = logging.getLogger(__name__)


# Seconds between two looks at least.
MIN_INTERVAL = 0.01
# A greenlet that wakes this much later than it asked for was held up by our own process, not by the peer.
OWN_DELAY = 1.0


class LivenessMonitor:
    """Told the time whenever its pause is over; what our own stalls cost is not held against nsqd.

    Args:
        timeout: Of a send, in seconds.
        heartbeat_interval: Seconds, two of which nsqd may be silent for; 0 without heartbeats.
    """

    def __init__(self, timeout: float, heartbeat_interval: float) -> None:
        self._interval = heartbeat_interval
        self._timeout = timeout
        self._pause = min(timeout, self._interval or timeout) / 2
        # Up to here silence counts for nothing.
        self._excused = 0.0
        self._look_due = 0.0

    def start(self, now: float) -> None:
        """Take note of the time of the first pause."""
        self._look_due = self._excused = now

    def next_check(self, now: float, last_read: float) -> float:
        """Say how many seconds later to look again: where silence goes on, just when it has lasted too long."""
        left = max(last_read, self._excused) + 2 * self._interval - now if self._interval else self._pause
        self._look_due = now + max(min(self._pause, left), MIN_INTERVAL)
        return self._look_due - now

    def check(self, now: float, last_read: float, sending_since: float | None) -> NSQException | None:
        """Say why the connection must end, None if it need not.

        Args:
            last_read: When something came last.
            sending_since: When the send under way began; None if there is none.
        """
        if now > self._look_due + OWN_DELAY:
            self._excused = self._look_due = now
        silence = now - max(last_read, self._excused)
        if self._interval and silence >= 2 * self._interval:
            return NSQConnectionClosed(f"no word from nsqd for {silence:.0f} s, 2 heartbeat intervals")
        waited = 0.0 if sending_since is None else now - max(sending_since, self._excused)
        if waited > self._timeout:
            return NSQTimeout(f"nsqd has not read what was sent for {waited:.0f} s, timeout is {self._timeout} s")
        return None


# Seconds in which the event loop comes round and the reader has its turn.
HUB_ROUND = 0.01
# An nsqd that has so many more messages in flight than the highest RDY it was sent does not keep to RDY. Some more may
# be right: nsqd counts anew when a message times out or its channel is emptied, we when that is seen.
IN_FLIGHT_MARGIN = 2500
# How long the reader may look for nsqd's reason after a send has failed, seconds.
ERROR_FRAME_GRACE = 1.0


class ConnectionState(enum.Enum):
    """Where a connection is in its life; it only ever moves down this list."""

    INIT = "init"
    CONNECTED = "connected"
    SUBSCRIBED = "subscribed"
    CLOSING = "closing"
    CLOSED = "closed"


class InternalError(NSQException):
    """A bug, ours or a callback's, ended a connection; its cause is what was raised."""


class Connection:
    """One connection; opened once, closed once. Why it was lost it leaves to its owner to log: that knows what is next.

    Args:
        host, port: Where nsqd listens.
        options: What IDENTIFY asks for, and the time limits.
        clock: Replaceable time.
        owner: Consumer or Producer that log lines name.

    Attributes:
        on_messages: Called with (connection, messages) for each chunk that held some.
        on_response: Called with (connection, data) for every response, heartbeats included; None: nobody asks.
        listeners: While it is empty on_response is not called.
        on_error: Called with (connection, NSQErrorCode) for every error frame.
        on_closed: Called with (connection) when it is closed, before requests are told.
        pending: What has no answer yet.
        submit: Queues a request; raises NSQConnectionClosed if the connection is closed.
        in_flight_messages: What is in flight, and who is told of FIN and REQ.
        ready_count, highest_ready_count: The RDY that was sent last, and the highest one.
        in_flight_limit: The highest RDY and IN_FLIGHT_MARGIN together.
    """

    def __init__(
        self,
        host: str,
        port: int,
        options: ConnectionOptions | None = None,
        clock: Clock | None = None,
        *,
        owner: LogOwner | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.address = format_address(host, port)
        self.options = options if options is not None else ConnectionOptions()
        self.state = ConnectionState.INIT
        self.identity = Identity()
        self.error: NSQException | None = None
        self.ready_count = self.highest_ready_count = 0
        self.in_flight_limit = IN_FLIGHT_MARGIN
        self.last_message = 0.0
        self.on_messages: Callable[[Connection, list[Message]], None] | None = None
        self.on_response: Callable[[Connection, bytes], None] | None = None
        self.listeners: Sized = (True,)
        self.on_error: Callable[[Connection, NSQErrorCode], None] | None = None
        self.on_closed: Callable[[Connection], None] | None = None
        self._clock = clock if clock is not None else RealClock()
        self._owner = owner if owner is not None else LogOwner("", self._clock.monotonic)
        self._subject = self._owner.at(self.address)
        self._layers: TransportStack | None = None
        self._writer = Writer(self._clock.monotonic, self._check_open)
        self.pending = self._writer.pending
        self.submit = self._writer.submit
        self.in_flight_messages = InFlightMessages(
            self.address, self._writer.put, self._check_open, self._clock, self._owner, finish=self._writer.finish
        )
        self._hub_monitor: HubMonitor | None = None
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
        if self._layers is not None or self.state is not ConnectionState.INIT:
            raise NSQException(f"{self.address}: connection was opened before; make a new one")
        layers = self._layers = TransportStack(self.host, self.port, self.options, transport)
        layers.on_frame = self._handle_handshake
        register_after_fork(self)
        deadline = self._clock.timeout(self.options.timeout)
        try:
            with deadline:
                layers.connect()
                # Aborted while it connected? abort() had no transport to close.
                self._check_not_aborted()
                self.identity = layers.run_handshake(handshake(self.options))
                self._check_not_aborted()
                self.in_flight_messages.msg_timeout = self.identity.msg_timeout or self.options.msg_timeout
                self.in_flight_messages.max_msg_timeout = self.identity.max_msg_timeout
                if self.identity.auth:
                    self.pending.check_topics()
        except gevent.Timeout as expired:
            self.abort()
            if expired is not deadline:
                raise
            raise NSQTimeout(f"{self.address}: no {layers.due} within {self.options.timeout} s") from None
        except BaseException as error:
            self.abort(error if isinstance(error, NSQException) else None)
            raise
        self._last_read = self._clock.monotonic()
        self._enter(ConnectionState.CONNECTED)
        self._hub_monitor = HubMonitor.acquire()
        for name, loop in (("read", self._read_loop), ("write", self._write_loop), ("watch", self._watch_loop)):
            greenlet = gevent.spawn(self._run, loop)
            greenlet.name = f"gnsq-{name}-{self.address}"
            self._greenlets.append(greenlet)
        for warning in self.identity.warnings:
            text = "%s: %s"
            self._owner.rate_limited(logger).log(
                logging.WARNING, f"{self.address} {warning}", text, self._subject, warning
            )
        logger.info("%s: connected, %s", self._subject, self.identity.summary)
        return self.identity

    def subscribe(self, topic: str, channel: str) -> None:
        """Send SUB and wait for its OK.

        Raises:
            ValueError: If a name is not valid; nothing was sent.
            NSQErrorCode: What nsqd said instead; it closes the connection.
            NSQTimeout, NSQConnectionClosed: If no answer came.
        """
        assert_valid_topic_name(topic, self.options.max_name_length)
        assert_valid_channel_name(channel, self.options.max_name_length)
        answer = self.call(commands.subscribe(topic, channel))
        if answer != OK:
            raise NSQProtocolError(f"{self.address}: answer {answer[:80]!r} to SUB, OK was due")
        if self.state is not ConnectionState.CONNECTED:
            raise connection_lost_error(self.address, self.error)
        assert self._layers is not None  # open() has made them
        # Before RDY, which lets nsqd send messages.
        self._layers.take_messages()
        self._enter(ConnectionState.SUBSCRIBED)
        logger.info("%s: subscribed to %s/%s", self._subject, topic, channel)

    def close(self, timeout: float) -> None:
        """End in order: no new messages (CLS), wait until what is in flight is answered and what waits for a reply
        has one, send all that is queued, then close.

        Args:
            timeout: Seconds; then the connection is cut, and nsqd delivers again what was not answered.
        """
        if self.state is ConnectionState.INIT:
            self.abort()
        if self.state is ConnectionState.CLOSED:
            return
        subscribed = self.state is ConnectionState.SUBSCRIBED
        self._enter(ConnectionState.CLOSING)
        deadline = self._clock.timeout(timeout)
        try:
            with deadline:
                if subscribed:
                    self.call(commands.close(), expected=CLOSE_WAIT)
                # Each may have to wait again: messages still come until nsqd has read the CLS.
                while self.in_flight > 0 and self.state is ConnectionState.CLOSING:
                    self.in_flight_messages.drained.clear()
                    self.in_flight_messages.drained.wait()
                self.pending.wait()
                self._writer.wait_flushed()
                self._ended = True
                if self._layers is not None and self._layers.transport is not None:
                    # nsqd reads up to our end before it closes, so the last FINs arrive.
                    self._layers.transport.shutdown_write()
                self._closed.wait()
        except gevent.Timeout as expired:
            if expired is not deadline:
                raise
            text = "%s: not closed in order within %s s, %s in flight"
            logger.warning(text, self._subject, timeout, counted(self.in_flight, "message"))
        except NSQException as error:
            self._log_end(error)
        finally:
            self.abort()

    def abort(self, error: NSQException | None = None) -> None:
        """Close at once. What has no answer yet fails with NSQConnectionClosed; a second call does nothing.

        Args:
            error: Why, for those who wait; None if nobody is to blame.
        """
        if self.state is ConnectionState.CLOSED:
            return
        self._enter(ConnectionState.CLOSED)
        self.error = error
        self._close_transport()
        self._writer.close()
        self.in_flight_messages.drained.set()
        self._closed.set()
        if self.on_closed is not None:
            self.on_closed(self)
        self.pending.fail(self.address, error)
        if self._hub_monitor is not None:
            self._hub_monitor.release()
        for greenlet in self._greenlets:
            # Reader and writer end by the closed socket; the watch may be asleep for a heartbeat interval.
            if greenlet is not gevent.getcurrent() and greenlet.name.startswith("gnsq-watch"):
                greenlet.kill(block=False)

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the connection is closed, by whomever; False if the timeout (seconds) ended first."""
        return bool(self._closed.wait(timeout))

    def owns_greenlet(self, greenlet: gevent.Greenlet) -> bool:
        """Whether a greenlet is one of the connection's own."""
        return greenlet in self._greenlets

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self.state in (ConnectionState.CONNECTED, ConnectionState.SUBSCRIBED)

    @property
    def in_flight(self) -> int:
        """Messages delivered and not yet answered."""
        return self.in_flight_messages.in_flight

    def stats(self) -> ConnectionStats:
        """Return the statistics at this moment."""
        answers = self.in_flight_messages
        return ConnectionStats(
            address=self.address,
            state=self.state.value,
            version=self.identity.version,
            rdy=self.ready_count,
            in_flight=answers.in_flight,
            idle=answers.now() - self.last_message if answers.received else None,
            counts=answers.totals,
            msg_timeout=answers.msg_timeout,
            max_rdy_count=self.identity.max_rdy_count,
        )

    def _enter(self, state: ConnectionState) -> None:
        self.state = state

    def after_fork_in_child(self, parent: int) -> None:
        """Close this process's copy of the connection: the parent goes on using it. See concurrency.forks."""
        self.abort_without_owner(
            NSQConnectionClosed(f"opened in process {parent}; after a fork, make and start a new client")
        )

    def abort_without_owner(self, error: NSQException) -> None:
        """Abort although the thread that opened the connection may have ended, or is not in this process."""
        if self.in_flight_messages.is_other_thread:  # abort() would wake greenlets of that thread
            self.state = ConnectionState.CLOSED
            self._close_transport()
        self.abort(error)

    def _check_not_aborted(self) -> None:
        if self.state is ConnectionState.CLOSED:
            self._close_transport()
            raise connection_lost_error(self.address, self.error)

    def _check_open(self) -> None:
        if self.state is ConnectionState.CLOSED:
            raise connection_lost_error(self.address, self.error)

    def _close_transport(self) -> None:
        if self._layers is not None and self._layers.transport is not None:
            self._layers.transport.close()

    # --- commands

    def request(self, command: bytes) -> AsyncResult:
        """Send a command that has an answer; the result holds the answer's data, or what went wrong.

        Raises:
            NSQConnectionClosed: If the connection is closed.
        """
        call = PendingCall(command)
        self.submit(call)
        return call

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
        if not self._clock.wait(reply, self.options.timeout):
            word = command.split(None, 1)[0].decode()
            raise NSQTimeout(f"{self.address}: no answer to {word} within {self.options.timeout} s")
        answer: bytes = reply.get()
        if expected is not None and answer != expected:
            raise NSQProtocolError(f"{self.address}: answer {answer[:80]!r}, {expected!r} was due")
        return answer

    def send(self, command: bytes) -> None:
        """Queue a command; the writer sends all that is queued at once. As request(), if the connection is closed."""
        self._writer.put(command)

    def ready(self, count: int) -> None:
        """Send RDY.

        Raises:
            ValueError: If the count is negative or above what nsqd said it allows; nothing was sent.
        """
        if count > self.identity.max_rdy_count:
            raise ValueError(f"RDY {count} exceeds max_rdy_count {self.identity.max_rdy_count} of {self.address}")
        self.send(commands.ready(count))
        self.ready_count = count
        if count > self.highest_ready_count:
            self.highest_ready_count = count
            self.in_flight_limit = count + IN_FLIGHT_MARGIN

    # --- loops

    def _run(self, loop: Callable[[], None]) -> None:
        """Run a loop as a greenlet: however it ends, the connection is closed and everyone who waits is told."""
        try:
            loop()
        except NSQException as error:
            self._log_end(error)
            self.abort(error)
        except Exception as error:  # noqa: BLE001  # top of a greenlet: a bug here must not leave anyone waiting
            failure = InternalError(f"internal error: {error!r}")
            failure.__cause__ = error
            self._log_end(failure)
            self.abort(failure)
        except BaseException:
            self.abort()
            raise

    def _log_end(self, error: NSQException) -> None:
        """Log why the connection was lost while it closed. Its owner does not log that."""
        if self.state is not ConnectionState.CLOSING:
            return
        bug = error.__cause__ if isinstance(error, InternalError) else None
        level = logging.ERROR if bug else logging.INFO
        text = "%s: lost while closing: %s"
        logger.log(level, text, self._subject, without_address(error, self.address), exc_info=bug)

    def _read_loop(self) -> None:
        transport, decoder = self._opened
        recv, feed, answers = transport.recv, decoder.feed, self.in_flight_messages
        data = decoder.take_remaining()  # what came behind the last answer of the handshake
        pause = CooperativeYield()
        while True:
            messages: list[Message] = []
            for frame_type, payload in feed(data, functools.partial(read_messages, messages, answers, self._last_read)):
                if frame_type == RESPONSE:
                    self._handle_response(payload)
                else:
                    self._handle_error(with_hint(make_error(payload)))
            if messages:
                self.last_message = self._last_read
                answers.add(len(messages))
                if self.on_messages is not None:
                    self.on_messages(self, messages)
            if decoder.failure is not None:
                raise decoder.failure
            # recv() does not yield while data waits; without this the writer, timers and handlers starve.
            if messages or not isinstance(transport, TcpTransport):
                pause()
                data = recv(READ_SIZE)
            else:
                # Behind answers there rarely is more, and what comes next rarely is anything else.
                data = transport.recv_unless_handled(READ_SIZE, self._resolve_oks)
            if not data and self._ended:
                self.abort()
                return
            if not data:
                raise NSQConnectionClosed("nsqd closed the connection")
            self._last_read = self._clock.monotonic()

    def _resolve_oks(self, data: bytes) -> bool:
        """Take OKs without anything else, uncut, unless somebody listens: who only publishes hears little else."""
        if self.listeners or self._opened[1].pending or not self.pending.resolve_oks(data):
            return False
        self._last_read = self._clock.monotonic()
        return True

    def _handle_handshake(self, frame_type: int, data: bytes) -> None:
        """Tell those who ask for responses and errors; what they mean is the handshake's business."""
        if frame_type == RESPONSE and self.on_response is not None:
            self.on_response(self, data)
        elif frame_type == ERROR and self.on_error is not None:
            self.on_error(self, make_error(data))

    def _handle_response(self, data: bytes) -> None:
        if data == HEARTBEAT:
            self.send(commands.NOP)
        elif self.pending.sent:
            self.pending.resolve(data)
        else:
            raise NSQProtocolError(f"response {data[:80]!r}, but no command waits for one")
        if self.on_response is not None and self.listeners:
            self.on_response(self, data)

    def _handle_error(self, error: NSQErrorCode) -> None:
        if self.on_error is not None:
            self.on_error(self, error)
        if not error.fatal:
            # FIN, REQ and TOUCH have no answer, so this is nobody's reply.
            self.in_flight_messages.record_refused_answer(error)
            return
        self.pending.refuse(error)
        raise error

    def _write_loop(self) -> None:
        try:
            self._writer.run(self._opened[0])
        except NSQException:
            # nsqd refuses a body before it has read it: its reason is on its way while our send breaks.
            self._closed.wait(ERROR_FRAME_GRACE)
            raise

    def _watch_loop(self) -> None:
        watch = LivenessMonitor(self.options.timeout, self.identity.heartbeat_interval)
        watch.start(self._clock.monotonic())
        while True:
            self._clock.sleep(watch.next_check(self._clock.monotonic(), self._last_read))
            if watch.check(self._clock.monotonic(), self._last_read, self._writer.sending_since) is not None:
                # What came meanwhile may still wait in the socket, if it was we who were held up.
                self._clock.sleep(HUB_ROUND)
                error = watch.check(self._clock.monotonic(), self._last_read, self._writer.sending_since)
                if error is not None:
                    raise error

    @property
    def _opened(self) -> tuple[Transport, FrameDecoder]:
        assert self._layers is not None  # open() has made them
        assert self._layers.transport is not None
        return self._layers.transport, self._layers.decoder
