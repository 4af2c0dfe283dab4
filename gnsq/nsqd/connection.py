"""One connection to nsqd's TCP port. Owns its three greenlets: reader, writer and liveness check.

Consumer decides about messages and RDY, Producer about publishes, ConnectionPool when to reconnect.
"""

# The way of a message, from the socket to the handler and back as FIN:
#
#  1. `Connection._read_loop` waits in `TcpTransport.recv` or `TcpTransport.recv_unless_handled` in transport.py. If few
#     bytes come, the hub itself takes steps 2 to 6 in `Connection._handle_few`, without a switch to the reader; with
#     one message in flight `ReplyPoller.poll` in concurrency/reply_poller.py may then read again at once, instead of
#     sleeping until the next message comes.
#  2. `FrameDecoder.feed` in protocol/frames.py splits the bytes into frames. At a message frame it, or the hub, calls
#     `decode_messages` in protocol/frames.py, which makes a Message of each message frame.
#  3. `deliver` in message.py completes the messages. `InFlightMessages.add` in nsqd/in_flight.py counts the messages.
#  4. `ConsumerRuntime.on_messages` in consumer/runtime.py is called with the list of messages.
#  5. `RdyController.on_messages` in consumer/rdy_controller.py sends a new RDY count, mostly in the next callback of
#     the hub, if one is needed: `RdyPolicy.on_messages` and `RdyPolicy.decide` in consumer/rdy_policy.py say so.
#  6. `WorkerPool.put` in consumer/worker_pool.py queues the messages and wakes a parked worker. `WorkerPool._work` in
#     consumer/worker_pool.py takes them from the queue in the worker's greenlet.
#  7. `HandlerRunner.handle` in consumer/handler_runner.py calls the handler.
#  8. `Message.finish_if_unanswered` in message.py is called after the handler has returned.
#  9. `InFlightMessages.finish` in nsqd/in_flight.py reduces the number of messages in flight.
# 10. `Writer.finish` in nsqd/writer.py queues the message id. After the handlers, `Writer.release` in nsqd/writer.py
#     sends the FINs of a read that the hub handles. Otherwise the greenlet of `Writer.run` in nsqd/writer.py is woken;
#     but if no other message is in flight, FIN is sent at once, in the worker's greenlet.
# 11. `finish_all` in protocol/commands.py builds FIN for all queued ids; `TcpTransport.sendall` or
#     `TcpTransport.send_nowait` in transport.py sends the FINs together.
#
# The states of a connection:
#
#     INIT ---open()---> CONNECTED ---subscribe()---> SUBSCRIBED
#       |                    |                            |
#       |                    +----------close()-----------+---> CLOSING
#       |                    |                            |        |
#       +--------------------+------abort(), errors-------+--------+---> CLOSED

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sized
from typing import Self

import gevent
from gevent.event import AsyncResult, Event

from gnsq.addresses import format_address
from gnsq.clock import Clock, RealClock
from gnsq.concurrency.forks import register_after_fork
from gnsq.concurrency.greenlets import is_failure, spawn
from gnsq.concurrency.hub_monitor import HubMonitor
from gnsq.errors import (
    NSQConnectionClosed,
    NSQErrorCode,
    NSQException,
    NSQProtocolError,
    NSQTimeout,
    NSQUnauthorized,
    make_error,
)
from gnsq.logs import LogOwner
from gnsq.message import Message, deliver
from gnsq.nsqd.connect import TransportStack
from gnsq.nsqd.in_flight import AnswerListener, InFlightMessages
from gnsq.nsqd.pending import PendingCall, PendingRequest, connection_lost_error
from gnsq.nsqd.writer import Writer
from gnsq.options import ConnectionOptions
from gnsq.protocol import commands
from gnsq.protocol.frames import CLOSE_WAIT, ERROR, HEARTBEAT, MESSAGE, MESSAGE_FRAME, OK, RESPONSE, decode_messages
from gnsq.protocol.handshake import Identity, handshake
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name
from gnsq.stats import ConnectionStats, LatencyRecorder
from gnsq.texts import counted
from gnsq.transport import READ_SIZE, TcpTransport, Transport

__all__ = ["HUB_ROUND", "Connection", "ConnectionListener", "ConnectionState", "InternalError"]

logger = logging.getLogger(__name__)

# Seconds; enough for the event loop to look at all sockets once, so that the reader reads the data that has arrived.
HUB_ROUND = 0.01
# A connection is closed if more commands wait to be sent than the first number, and the second for each message that
# may be in flight: the peer sends more and more to answer, and does not read the answers, which would fill the memory.
MAX_UNSENT, UNSENT_PER_MESSAGE = 125_000, 50
# Seconds in which the reader may still receive nsqd's error after a send has failed.
ERROR_FRAME_GRACE = 1.0
# Seconds without a message after which nsqd perhaps counts one too many in flight, see _liveness_loop().
MISCOUNT_LIMIT = 30.0
_MESSAGE_TYPE = MESSAGE.to_bytes(4)
# Bytes of one read. Up to this number, the hub itself handles messages: about 17 of 200 bytes, FEW_MESSAGES at most.
# That saves 7 us of a message's 36 us of CPU time if one is in flight, and 0.9 us of 5.4 us if ten are.
FEW_BYTES = 4096
FEW_MESSAGES = FEW_BYTES // MESSAGE_FRAME.size


class ConnectionState(enum.Enum):
    """The state of a connection. It changes only to a state that follows in this list."""

    INIT = "init"
    CONNECTED = "connected"
    SUBSCRIBED = "subscribed"
    CLOSING = "closing"
    CLOSED = "closed"


class InternalError(NSQException):
    """A bug in gnsq or in a callback has ended a connection. ``__cause__`` is the exception that the bug has raised.

    What to do: report the traceback in the log, if no receiver or resolver of yours is in it.
    """

    @classmethod
    def of(cls, bug: BaseException, when: str = "") -> Self:
        """Make the error for what a bug has raised."""
        error = cls(f"internal error{when}: {bug!r}")
        error.__cause__ = bug
        return error


class ConnectionListener(AnswerListener["Connection"]):
    """Is told what happens on connections, in their thread. This class itself ignores it.

    Attributes:
        response_receivers: While this collection is empty, on_response() is called only during the handshake.
    """

    response_receivers: Sized = (True,)

    def on_messages(self, connection: Connection, messages: list[Message]) -> None:
        """One read contained these messages."""

    def may_handle_in_hub(self) -> bool:
        """Return True if on_messages() does not wait now: then the hub itself may call it."""
        return False

    def on_oks(self, connection: Connection, requests: list[PendingRequest]) -> None:
        """nsqd sent OK to these requests, which was read in the hub or by poll_reply(). Not called with
        response_receivers."""
        for request in requests:
            request.on_response(OK)

    def on_response(self, connection: Connection, data: bytes) -> None:
        """nsqd sent a response, or a heartbeat."""

    def on_error(self, connection: Connection, error: NSQErrorCode) -> None:
        """nsqd sent an error."""

    def on_closed(self, connection: Connection) -> None:
        """The connection is closed. Its pending requests fail after this call."""


class Connection:
    """A connection. It is opened once and closed once.

    A connection logs why it was lost only if that happens in close(). Otherwise the caller of open() logs the reason.

    Args:
        host, port: Address of nsqd's TCP port.
        options: The features that IDENTIFY requests, and the time limits.
        listener: Is told of messages, responses, errors and the end, and of FINs and REQs.
        latency: Records the times of async messages; default: a recorder of its own.

    Attributes:
        writer: Sends commands; has the requests without a response. Raises NSQConnectionClosed after the end.
        submit: That of the writer.
        poll_reply: Handles the response to the only pending request now, if it is worth polling for it.
        in_flight_messages: Messages in flight.
        ready_count, highest_ready_count: The RDY count that was sent last, and the highest one that was sent.
        last_read: Monotonic time at which something has come from nsqd last, also a heartbeat.
    """

    def __init__(
        self,
        host: str,
        port: int,
        options: ConnectionOptions | None = None,
        clock: Clock | None = None,
        *,
        listener: ConnectionListener | None = None,
        owner: LogOwner | None = None,
        latency: LatencyRecorder | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.address = format_address(host, port)
        self.options = options if options is not None else ConnectionOptions()
        self.state = ConnectionState.INIT
        self.identity = Identity()
        self.error: NSQException | None = None
        self.ready_count = self.highest_ready_count = 0
        self.last_message = 0.0
        self._listener = listener if listener is not None else ConnectionListener()
        self._clock = clock if clock is not None else RealClock()
        self._now = self._clock.monotonic
        owner = owner if owner is not None else LogOwner("", self._now)
        self._logger = owner.log(logger, nsqd=self.address)
        self._opened = False
        self._stack = TransportStack(host, port, self.options, on_frame=self._handle_handshake, owner=owner)
        self.writer = Writer(self._now, self._check_open)
        self.submit = self.writer.submit
        self.in_flight_messages = InFlightMessages(
            *(self.address, self.writer.send, self._check_open, self._clock, owner),
            finish=self.writer.finish,
            listener=self._listener,
            source=self,
            latency=latency,
        )
        self._hub_monitor: HubMonitor | None = None
        self._closed = Event()
        self.last_read = 0.0
        self._write_shut_down = False
        self._greenlets: list[gevent.Greenlet] = []
        self.poll_reply: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<Connection {self.address} {self.state.value}>"

    # --- open and close

    def open(self, transport: Transport | None = None) -> Identity:
        """Connect, perform the handshake, and start to read and write. A failure closes the connection.

        Args:
            transport: A stream to use instead of a new TCP connection.

        Raises:
            NSQSocketError: If nothing listens, TLS can't begin, or the connection breaks or is aborted.
            NSQTimeout: If connecting and the handshake together take longer than options.timeout.
            NSQErrorCode, NSQProtocolError: If nsqd refuses the handshake, or the peer is not nsqd.
            NSQException: If nsqd lacks the wanted TLS, AUTH needs a secret, or the connection was opened before.
        """
        if self._opened or self.state is not ConnectionState.INIT:
            raise NSQException("connection was opened before; make a new one", address=self.address)
        self._opened = True
        register_after_fork(self)
        deadline = self._clock.timeout(self.options.timeout)
        try:
            with deadline:
                self._stack.connect(transport)
                # An abort() during connect() could not close the transport, which did not exist yet: close it now.
                self._check_not_aborted()
                self.identity = self._stack.run_handshake(handshake(self.options))
                self._check_not_aborted()
        except gevent.Timeout as expired:
            self.abort()
            if expired is not deadline:
                raise
            text = f"no {self._stack.expected} within {self.options.timeout:g} s"
            # Until something was received, the address may be that of no server.
            code = "ETIMEDOUT" if self._stack.expected == "connection" else ""
            raise NSQTimeout(text, address=self.address, code=code) from None
        except BaseException as error:
            self.abort(error if isinstance(error, NSQException) else None)
            raise
        self.in_flight_messages.msg_timeout = self.identity.msg_timeout or self.options.msg_timeout
        self.in_flight_messages.max_msg_timeout = self.identity.max_msg_timeout
        if self.identity.auth:
            self.writer.pending.check_topics()
        if isinstance(self._stack.transport, TcpTransport):
            self.poll_reply = self._stack.transport.poll_reply
        self.last_read = self._now()
        self.state = ConnectionState.CONNECTED
        self._hub_monitor = HubMonitor.acquire()
        for name, loop in (("read", self._read_loop), ("write", self._write_loop), ("liveness", self._liveness_loop)):
            name = f"gnsq-{name}-{self.address}"
            self._greenlets.append(spawn(name, self._run, loop, on_failure=self._lose))
        for warning in self.identity.warnings:
            self._logger.limited(logging.WARNING, f"{self.address} {warning}", "%s", warning)
        self._logger.info("connected, %s", self.identity.summary)
        return self.identity

    def subscribe(self, topic: str, channel: str) -> None:
        """Send SUB and wait for OK.

        Raises:
            ValueError: If a name is not valid; nothing was sent.
            NSQErrorCode: If nsqd refuses the SUB. The connection is closed then.
            NSQTimeout, NSQConnectionClosed, NSQProtocolError: If no response came, or another one than OK.
        """
        assert_valid_topic_name(topic)
        assert_valid_channel_name(channel)
        self.call(commands.subscribe(topic, channel), expected=OK)
        if self.state is not ConnectionState.CONNECTED:
            raise connection_lost_error(self.address, self.error)
        # Messages need a higher limit than responses. Raise it before RDY is sent, since nsqd sends messages after RDY.
        self._stack.allow_messages()
        self.state = ConnectionState.SUBSCRIBED
        self._logger.info("subscribed to %s/%s", topic, channel)

    def close(self, timeout: float) -> None:
        """Drain and close: stop new messages (CLS), wait for pending requests and messages in flight, send all queued
        commands, then close.

        Args:
            timeout: Seconds, after which the connection is aborted; nsqd delivers unanswered messages again.
        """
        if self.state is ConnectionState.INIT:
            self.abort()
        if self.state is ConnectionState.CLOSED:
            return
        subscribed = self.state is ConnectionState.SUBSCRIBED
        self.state = ConnectionState.CLOSING
        deadline = self._clock.timeout(timeout)
        try:
            with deadline:
                if subscribed:
                    self.call(commands.close(), expected=CLOSE_WAIT)
                # Check in a loop: another message may arrive after drained is set and before wait() returns.
                while self.in_flight > 0 and self.is_closing:
                    self.in_flight_messages.drained.clear()
                    self.in_flight_messages.drained.wait()
                self.writer.pending.wait()
                self.writer.wait_flushed()
                self._write_shut_down = True
                # nsqd reads all that was sent before the shutdown, and closes only then. So the last FINs arrive.
                self._stack.connected.shutdown_write()
                self._closed.wait()
        except gevent.Timeout as expired:
            if expired is not deadline:
                raise
            text = "not closed gracefully within %.3g s, %s in flight"
            self._logger.warning(text, timeout, counted(self.in_flight, "message"))
        except NSQException as error:
            self._log_loss_while_closing(error)
        finally:
            self.abort()

    def abort(self, error: NSQException | None = None) -> None:
        """Close immediately. Pending requests fail with NSQConnectionClosed. A second call does nothing.

        Args:
            error: The reason, for the errors of pending requests; None for a close without an error.
        """
        if self.state is ConnectionState.CLOSED:
            return
        self.state = ConnectionState.CLOSED
        self.error = error
        if error is not None:
            error.address = error.address or self.address
        self._close_transport()
        self.writer.close()
        self.in_flight_messages.drained.set()
        self._closed.set()
        self._listener.on_closed(self)
        self.writer.pending.fail(self.address, error)
        if self._hub_monitor is not None:
            self._hub_monitor.release()

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the connection is closed. Return False if it was not closed within the timeout (seconds)."""
        return bool(self._closed.wait(timeout))

    def owns_greenlet(self, greenlet: gevent.Greenlet) -> bool:
        """Return True if a greenlet is one of the connection's own."""
        return greenlet in self._greenlets

    @property
    def is_open(self) -> bool:
        """True after open(), until the connection is lost, or close() or abort() is called."""
        return self.state in (ConnectionState.CONNECTED, ConnectionState.SUBSCRIBED)

    @property
    def is_closing(self) -> bool:
        """True while close() drains the connection."""
        return self.state is ConnectionState.CLOSING

    @property
    def in_flight(self) -> int:
        """Number of messages in flight: delivered, and neither answered nor counted as timed out."""
        return self.in_flight_messages.in_flight

    @property
    def pending(self) -> int:
        """Number of requests that have no response: unsent and sent ones."""
        return len(self.writer.pending)

    @property
    def is_over_ready(self) -> bool:
        """True if many more messages are in flight than RDY has ever allowed, so that nsqd may ignore RDY. A few more
        are normal, and the hub itself may receive FEW_MESSAGES."""
        return self.in_flight_messages.in_flight > self.highest_ready_count + FEW_MESSAGES

    def stats(self) -> ConnectionStats:
        """Return the statistics at this moment."""
        messages = self.in_flight_messages
        return ConnectionStats(
            address=self.address,
            state=self.state.value,
            version=self.identity.version,
            rdy=self.ready_count,
            in_flight=messages.in_flight,
            idle=messages.now() - self.last_message if messages.received else None,
            counts=messages.totals,
            msg_timeout=messages.msg_timeout,
            max_rdy_count=self.identity.max_rdy_count,
        )

    def after_fork_in_child(self, parent: int) -> None:
        """Close this process's copy of the connection. The parent still uses the connection. See concurrency.forks."""
        self.abort_without_owner(
            NSQConnectionClosed(f"opened in process {parent}; after a fork, make and start a new client")
        )

    def abort_without_owner(self, error: NSQException) -> None:
        """Abort although the thread that opened the connection may have ended, or is not in this process."""
        if self.in_flight_messages.is_other_thread:  # with state CLOSED, abort() wakes no greenlets of that thread
            self.state = ConnectionState.CLOSED
            self._close_transport()
        self.abort(error)

    def _check_not_aborted(self) -> None:
        if self.state is ConnectionState.CLOSED:
            self._close_transport()
            self._check_open()

    def _check_open(self) -> None:
        if self.state is ConnectionState.CLOSED:
            raise connection_lost_error(self.address, self.error)

    def _close_transport(self) -> None:
        if self._stack.transport is not None:
            self._stack.transport.close()

    # --- commands

    def request(self, command: bytes) -> AsyncResult:
        """Send a command that has a response. Return an AsyncResult that later has the response's data or an error.

        Raises:
            NSQConnectionClosed: If the connection is closed.
        """
        call = PendingCall(command)
        self.submit(call)
        return call

    def call(self, command: bytes, expected: bytes | None = None) -> bytes:
        """Send a command and wait for its response.

        Raises:
            NSQErrorCode: If nsqd refuses the command.
            NSQProtocolError: If the response is not the expected one.
            NSQTimeout: If no response came within options.timeout.
            NSQConnectionClosed: If the connection is closed before or during the call.
        """
        reply = self.request(command)
        # Do not use get(timeout=...): its gevent.Timeout could be confused with a gevent.Timeout of the caller.
        word = command.split(None, 1)[0].decode()
        if not self._clock.wait(reply, self.options.timeout):
            raise NSQTimeout(f"no response to {word} within {self.options.timeout:g} s", address=self.address)
        response: bytes = reply.get()
        if expected is not None and response != expected:
            text = f"response {response[:80]!r} to {word}, expected {expected!r}"
            raise NSQProtocolError(text, address=self.address)
        return response

    def send(self, command: bytes) -> None:
        """Queue a command that has no response. The writer joins queued commands into larger sends. Raises
        NSQConnectionClosed if the connection is closed."""
        self.writer.send(command)

    def ready(self, count: int) -> None:
        """Send RDY. Raise the errors of send(), too.

        Raises:
            ValueError: If the count is negative or above nsqd's max_rdy_count; nothing was sent.
        """
        if count > self.identity.max_rdy_count:
            raise ValueError(f"RDY {count} exceeds max_rdy_count {self.identity.max_rdy_count} of {self.address}")
        self.send(commands.ready(count))
        self.ready_count = count
        if count > self.highest_ready_count:
            self.highest_ready_count = count

    # --- loops

    def _run(self, loop: Callable[[], None]) -> None:
        """Run a loop in its greenlet. If that is killed, close the connection: callers may wait for responses."""
        try:
            loop()
        except BaseException as error:
            if not is_failure(error):
                self.abort()
            raise

    def _lose(self, error: BaseException) -> None:
        failure = error if isinstance(error, NSQException) else InternalError.of(error)
        self._log_loss_while_closing(failure)
        self.abort(failure)

    def _log_loss_while_closing(self, error: NSQException) -> None:
        """Log why the connection was lost, if it was lost during close(). Other code logs all other losses."""
        if not self.is_closing:
            return
        bug = error.__cause__ if isinstance(error, InternalError) else None
        level = logging.ERROR if bug else logging.INFO
        self._logger.log(level, "lost while closing: %s", error.explanation, exc_info=bug)

    def _read_loop(self) -> None:
        transport, decoder = self._stack.connected, self._stack.decoder
        recv, feed = transport.recv, decoder.feed
        data = decoder.take_remaining()  # bytes that came with the last response of the handshake
        while True:
            messages: list[Message] = []
            for frame_type, payload in feed(data, messages, Message):
                if frame_type == RESPONSE:
                    self._handle_response(payload)
                else:
                    self._handle_error(make_error(payload, self.address))
            if messages:
                self._deliver(messages, self.last_read)
            if decoder.failure is not None:
                raise decoder.failure
            if self._has_too_many_unsent:
                raise NSQTimeout(f"nsqd does not read: {self.writer.unsent} commands wait to be sent")
            if len(data) > FEW_BYTES or decoder.pending or not isinstance(transport, TcpTransport):
                data = recv(READ_SIZE)
            else:
                # Usually no more data waits now.
                data = transport.recv_unless_handled(READ_SIZE, self._handle_few, self._expects_message)
            if not data and self._write_shut_down:
                self.abort()
                return
            if not data:
                raise NSQConnectionClosed("nsqd closed the connection")
            self.last_read = self._now()

    def _handle_few(self, data: bytes) -> bool:
        """Handle, in the hub itself or in a greenlet that has polled, data that has only a few complete messages or OK
        frames. Return False if it has something else, or can't be handled now: then the reader's greenlet handles it.

        OK frames are handled here only if the listener wants no responses. The decoder must have no bytes left.
        """
        if data[4:8] != _MESSAGE_TYPE:
            listener = self._listener
            if listener.response_receivers or not (requests := self.writer.pending.take_confirmed(data)):
                return False
            self.last_read = self._now()
            listener.on_oks(self, requests)
            return True
        if len(data) > FEW_BYTES or not self._listener.may_handle_in_hub():
            return False
        if self.in_flight > self.highest_ready_count:
            return False  # the listener may have to look why
        if not self.writer.is_idle and self._has_too_many_unsent:
            return False
        messages: list[Message] = []
        if decode_messages(Message, data, 0, self._stack.decoder.max_frame_size, messages) != len(data):
            return False
        self.last_read = self._now()
        is_held = self.writer.hold()
        try:
            self._deliver(messages, self.last_read)
        finally:
            if is_held:
                self.writer.release()
        return True

    @property
    def _has_too_many_unsent(self) -> bool:
        return self.writer.unsent > MAX_UNSENT + UNSENT_PER_MESSAGE * self.highest_ready_count

    def _deliver(self, messages: list[Message], received: float) -> None:
        self.last_message = received
        deliver(messages, self.in_flight_messages, received)
        self.in_flight_messages.add(len(messages))
        self._listener.on_messages(self, messages)

    def _expects_message(self) -> bool:
        """Return True if the next message soon follows the FIN that was just sent, and nothing else is to be sent."""
        return self.ready_count > 0 and not self.in_flight and self.writer.is_idle

    def _handle_handshake(self, frame_type: int, data: bytes) -> None:
        """Tell the listener of a frame that was read during the handshake. The handshake itself uses the frame."""
        if frame_type == RESPONSE:
            self._listener.on_response(self, data)
        elif frame_type == ERROR:
            self._listener.on_error(self, make_error(data, self.address))

    def _handle_response(self, data: bytes) -> None:
        if data == HEARTBEAT:
            self.send(commands.NOP)
        elif self.writer.pending.sent:
            self.writer.pending.resolve(data)
        else:
            raise NSQProtocolError(f"response {data[:80]!r}, but no command waits for one")
        if self._listener.response_receivers:
            self._listener.on_response(self, data)

    def _handle_error(self, error: NSQErrorCode) -> None:
        if isinstance(error, NSQUnauthorized) and self.identity.auth:
            error.hint = f"the secret has {self.identity.account}; the auth server has the list, nsqd does not tell it"
        self._listener.on_error(self, error)
        if not error.fatal:
            # nsqd has refused a FIN, REQ or TOUCH. These have no response, so the error belongs to no pending request.
            self.in_flight_messages.record_refused_answer(error)
            return
        self.writer.pending.refuse(error)
        raise error

    def _write_loop(self) -> None:
        try:
            self.writer.run(self._stack.connected)
        except NSQException:
            # nsqd may refuse a body before it has read all of it. Then the send fails before nsqd's error arrives.
            self._clock.wait(self._closed, ERROR_FRAME_GRACE)
            raise

    def _liveness_loop(self) -> None:
        """End the connection if nsqd sends nothing for two heartbeat intervals, or does not read for the timeout; or if
        it may send no message for ever.

        After a kill, nsqd may read a message twice from its disk. If both are in flight at once, it counts two, and
        takes only one answer: for as long as the connection lives, it counts one too many, and with RDY 1 it sends no
        further message. Source: nsqd channel.go, pushInFlightMessage(), whose error protocol_v2.go ignores.

        The time between two checks counts as one pause, however long it was: if this process itself did not run
        meanwhile, nsqd's silence proves nothing.
        """
        timeout, interval = self.options.timeout, self.identity.heartbeat_interval
        pause = min(timeout, interval or timeout) / 2
        silent = stuck = starved = 0.0
        last_read, last_message, sending_since = self.last_read, self.last_message, self.writer.sending_since
        messages = self.in_flight_messages
        while not self._clock.wait(self._closed, pause):
            # After a time in which this process did not run, data may wait in the socket: let the reader read it first.
            self._clock.sleep(HUB_ROUND)
            silent = silent + pause if self.last_read == last_read else 0.0
            is_same_send = sending_since is not None and self.writer.sending_since == sending_since
            stuck = stuck + pause if is_same_send else 0.0
            if messages.in_flight or self.last_message != last_message:
                starved = 0.0
            elif 0 < self.ready_count <= messages.refused:
                starved += pause
            last_read, last_message, sending_since = self.last_read, self.last_message, self.writer.sending_since
            if interval and silent >= 2 * interval:
                raise NSQConnectionClosed(f"no word from nsqd for {silent:.0f} s, 2 heartbeat intervals")
            if stuck >= timeout:
                raise NSQTimeout(f"nsqd has not read what was sent for {stuck:.0f} s, timeout is {timeout} s")
            if starved >= MISCOUNT_LIMIT:
                raise NSQConnectionClosed(
                    f"no message for {starved:.0f} s with RDY {self.ready_count}, after nsqd has refused "
                    f"{counted(messages.refused, 'answer')}: it may count such a message as in flight until the "
                    "connection ends"
                )
