"""The client of nsqd's TCP port that gnsq 1.0 had: its user sends each command and reads each response.

The client has no greenlet of its own. Consumer and Producer use Connection instead.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TypeVar, Unpack

from gevent.lock import BoundedSemaphore

from gnsq import states
from gnsq.addresses import format_address, is_host, is_unix, parse_address
from gnsq.clock import RealClock, monotonic
from gnsq.concurrency.forks import register_after_fork
from gnsq.errors import NSQConnectionClosed, NSQErrorCode, NSQException, NSQFrameError, NSQTimeout, make_error
from gnsq.logs import LogOwner
from gnsq.message import Message
from gnsq.nsqd.connect import TransportStack, load_certificates
from gnsq.nsqd.in_flight import AnswerListener, InFlightMessages
from gnsq.options import ConnectionOptions, Milliseconds, MoreConnectionOptionsDict, TlsOptionsDict
from gnsq.protocol import commands, handshake
from gnsq.protocol.compression import Deflate, Snappy
from gnsq.protocol.frames import ERROR, HEARTBEAT, MESSAGE, OK, RESPONSE, Frame, decode_message
from gnsq.protocol.handshake import Identity, StartCompression, StartTLS, Step
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name
from gnsq.signals import (
    CloseReceiver,
    ErrorReceiver,
    FinishReceiver,
    MessageReceiver,
    ResponseReceiver,
    TcpAuthReceiver,
    TcpRequeueReceiver,
    TypedSignal,
)
from gnsq.tracebacks import clears_locals
from gnsq.transport import Transport, time_limit

__all__ = ["NsqdTCPClient"]

logger = logging.getLogger(__name__)


_Result = TypeVar("_Result")

_IDENTIFY = b"IDENTIFY\n"
# Bytes before the body of IDENTIFY: the line, and the four bytes of the body's size.
_IDENTIFY_HEAD = len(_IDENTIFY) + 4


@functools.total_ordering
class NsqdTCPClient:
    """One connection to nsqd's TCP port. Two clients are equal if their addresses are equal.

    Args:
        address, port: Address of nsqd's TCP port.
        timeout: Seconds for connecting, for each read and for each write.
        heartbeat_interval: Seconds. The attribute heartbeat_interval is in milliseconds, though, as in gnsq 1.0.
        options: Other options; ConnectionOptions describes them. output_buffer_timeout is in milliseconds.

    Attributes:
        state: One of gnsq.states: INIT, CONNECTED, DISCONNECTED.
        identity: The result of identify(); before it, defaults.
        ready_count: The RDY count that was sent last.
        last_response, last_message: ``time.time()`` of the last response and message; at first the time of creation.

    Raises:
        ValueError, TypeError, ImportError: For an option that does not exist, is out of bounds or can't be used.
    """

    @clears_locals
    def __init__(
        self,
        address: str = "127.0.0.1",
        port: int = 4150,
        timeout: float | timedelta = ConnectionOptions.timeout,
        client_id: str | None = ConnectionOptions.client_id,
        hostname: str | None = ConnectionOptions.hostname,
        heartbeat_interval: float | timedelta = ConnectionOptions.heartbeat_interval,
        output_buffer_size: int = ConnectionOptions.output_buffer_size,
        output_buffer_timeout: int | timedelta = ConnectionOptions.output_buffer_timeout,
        tls_v1: bool | None = ConnectionOptions.tls_v1,
        tls_options: TlsOptionsDict | None = ConnectionOptions.tls_options,
        snappy: bool = ConnectionOptions.snappy,
        deflate: bool = ConnectionOptions.deflate,
        deflate_level: int = ConnectionOptions.deflate_level,
        sample_rate: int = ConnectionOptions.sample_rate,
        auth_secret: bytes | None = ConnectionOptions.auth_secret,
        user_agent: str = ConnectionOptions.user_agent,
        **options: Unpack[MoreConnectionOptionsDict],
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "address", "port", "options")}
        if isinstance(address, str) and address and not is_unix(address) and not is_host(address):
            # The error does not show the address, which may be a URL with a password.
            raise ValueError("address must be a host name or an IP address: the port is an argument of its own")
        # parse_address() checks address and port. gnsq 1.0 accepted a port as str.
        self.address, self.port = parse_address(format_address(address, port))
        checked = ConnectionOptions.from_keywords("NsqdTCPClient", {**given, **options})
        self.options = load_certificates(checked)
        identify_body = handshake.identify_body(self.options)
        for name in given:
            # An attribute has the value that IDENTIFY sends, if any: hostname is not None, heartbeat_interval is in ms.
            setattr(self, name, identify_body.get(name, getattr(checked, name)))
        self.state = states.INIT
        self.ready_count = 0
        self.identity = Identity()
        self.last_response = time.time()
        self.last_message = time.time()
        self.on_message: TypedSignal[MessageReceiver] = TypedSignal()
        """A message was received."""
        self.on_response: TypedSignal[ResponseReceiver] = TypedSignal()
        """nsqd sent a response frame."""
        self.on_error: TypedSignal[ErrorReceiver] = TypedSignal()
        """nsqd sent an error frame."""
        self.on_finish: TypedSignal[FinishReceiver] = TypedSignal()
        """FIN was sent."""
        self.on_requeue: TypedSignal[TcpRequeueReceiver] = TypedSignal()
        """REQ was sent. ``timeout`` is its delay in milliseconds."""
        self.on_auth: TypedSignal[TcpAuthReceiver] = TypedSignal()
        """nsqd has accepted AUTH."""
        self.on_close: TypedSignal[CloseReceiver] = TypedSignal()
        """The connection was closed."""
        self._logger = LogOwner("", monotonic).log(logger, nsqd=self.nsqd)
        self._sending = BoundedSemaphore(1)
        self._stack: TransportStack | None = None
        self._messages: InFlightMessages | None = None

    def __str__(self) -> str:
        return self.nsqd

    def __repr__(self) -> str:
        return f"<NsqdTCPClient {self.nsqd}>"

    def __hash__(self) -> int:
        return hash(self.nsqd)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NsqdTCPClient) and self.nsqd == other.nsqd

    def __lt__(self, other: NsqdTCPClient) -> bool:
        return self.nsqd < other.nsqd

    # --- open and close

    @property
    def nsqd(self) -> str:
        """``address:port`` of nsqd."""
        return format_address(self.address, self.port)

    @property
    def is_connected(self) -> bool:
        """True after connect() and before close_stream()."""
        return self.state == states.CONNECTED

    @property
    def stream(self) -> Transport | None:
        """The transport, with TLS and compression; None while not connected."""
        return self._stack.transport if self._stack is not None and self.is_connected else None

    @property
    def max_ready_count(self) -> int:
        """nsqd's limit of the RDY count; 2500 before IDENTIFY."""
        return self.identity.max_rdy_count

    @property
    def in_flight(self) -> int:
        """Number of messages in flight: received and not answered."""
        return 0 if self._messages is None else self._messages.in_flight

    @property
    def is_starved(self) -> bool:
        """True if at least 85 % of the messages that RDY allows, and at least one message, are in flight."""
        return commands.is_starved(self.in_flight, self.ready_count)

    def connect(self) -> None:
        """Connect and send the magic ("  V2"). Do nothing if connected.

        Raises:
            NSQException: If the client was closed, another greenlet is connecting, or address_resolver fails.
            NSQSocketError, NSQTimeout: If no connection can be made.
        """
        if self.is_connected:
            return
        if self.state != states.INIT:
            raise NSQException("connection was closed; make a new client", address=self.nsqd)
        if self._stack is not None:
            raise NSQException("another greenlet is connecting", address=self.nsqd)
        stack = self._stack = TransportStack(self.address, self.port, self.options, on_frame=self._handle_handshake)
        try:
            stack.connect()
        except BaseException:
            self._stack = None
            raise
        register_after_fork(self)
        # Make this object here: it sends the answers of other threads in the hub of the thread that has made it.
        self._messages = InFlightMessages(
            *(self.nsqd, self.send, self._check_connected, RealClock()), listener=_AnswerSignals(), source=self
        )
        self.state = states.CONNECTED
        self.send(commands.MAGIC_V2)

    def close_stream(self) -> None:
        """Close the socket. Do nothing if not connected."""
        if not self.is_connected:
            return
        if self.stream is not None:
            self.stream.close()
        self.state = states.DISCONNECTED
        self.on_close.send(self)

    def after_fork_in_child(self, parent: int) -> None:
        """Close this process's copy of the connection. The parent still uses the connection. See concurrency.forks."""
        self._logger.debug("opened in process %d; after a fork, make and connect a new client", parent)
        self.close_stream()

    def identify(self) -> dict[str, object] | None:
        """Send IDENTIFY, start TLS and compression if wanted, and send AUTH if nsqd requires it. Return the
        response to IDENTIFY, or None if it was a plain OK.

        Raises:
            NSQErrorCode: If nsqd refuses IDENTIFY or AUTH. Every exception closes the connection.
            NSQException: If nsqd does not offer the wanted TLS, or requires AUTH and there is no auth_secret.
            NSQTimeout, NSQSocketError, NSQProtocolError: If no valid response came.
        """
        identity = self.identity = self._perform(handshake.identify_steps(self.options), "IDENTIFY")
        for warning in identity.warnings:
            self._logger.warning("%s", warning)
        if identity.auth:
            self.on_auth.send(self, response=dict(identity.auth))
        self._logger.info("connected, %s", identity.summary)
        messages = self._in_flight_messages
        messages.msg_timeout = identity.msg_timeout or self.options.msg_timeout
        messages.max_msg_timeout = identity.max_msg_timeout
        return dict(identity.response) or None

    def auth(self) -> dict[str, object]:
        """Send AUTH. identify() sends AUTH, too, but only if nsqd requires it. Return nsqd's response: ``identity``,
        ``identity_url``, ``permission_count``.

        Raises:
            ValueError: If there is no auth_secret.
            NSQException: In the cases of identify().
        """
        if self.options.auth_secret is None:
            raise ValueError("AUTH needs a secret: give auth_secret")
        self._check_may_send(b"AUTH")
        response = dict(self._perform(handshake.auth_steps(self.options.auth_secret), "AUTH"))
        self.on_auth.send(self, response=response)
        return response

    def upgrade_to_tls(self) -> None:
        """Start TLS. The caller must have sent IDENTIFY and read its response before. identify() does all of this."""
        self._perform(handshake.upgrade_steps(StartTLS()), "TLS")

    def upgrade_to_snappy(self) -> None:
        """Start snappy. The caller must have sent IDENTIFY and read its response before."""
        self._perform(handshake.upgrade_steps(StartCompression(Snappy())), "snappy")

    def upgrade_to_defalte(self) -> None:
        """Start deflate, under the same conditions as upgrade_to_snappy(). gnsq 1.0 misspelled this name, too."""
        self._perform(handshake.upgrade_steps(StartCompression(Deflate(self.options.deflate_level))), "deflate")

    def _perform(self, steps: Generator[Step, Frame | None, _Result], subject: str) -> _Result:
        stack = self._connected
        with self._close_on_error(), self._time_limit(f"no end of {subject}"):
            return stack.run_handshake(steps)

    # --- reading

    def read_response(self) -> tuple[int, bytes | NSQErrorCode | Message]:
        """Read one frame. Return its type, and the data of a response, the NSQErrorCode of an error, or a Message. NOP
        is sent before a heartbeat is returned; the connection is closed before a fatal error is returned.

        Raises:
            NSQTimeout: If no complete frame came within options.timeout.
            NSQSocketError: If the connection broke; NSQConnectionClosed: if nsqd has closed it. The client is closed.
            NSQFrameError: If the bytes are not a frame. Then the connection is closed.
        """
        stack = self._connected
        with self._close_on_error(resumable=True), self._time_limit("nothing came"):
            frame_type, data = stack.read_frame()
        if frame_type == MESSAGE:
            return frame_type, self.handle_message(data)
        if frame_type == ERROR:
            return frame_type, self.handle_error(data)
        if frame_type == RESPONSE:
            return frame_type, self.handle_response(data)
        self.close_stream()
        raise NSQFrameError(f"frame type {frame_type} is not one of 0, 1, 2", address=self.nsqd)

    def check_ok(self, expected: bytes = OK) -> None:
        """Read the expected response. If heartbeats come first, answer them with NOP.

        Raises:
            NSQErrorCode: If nsqd sends an error instead.
            NSQTimeout: If no response came within options.timeout.
            NSQException: If another frame came, or read_response() raises it.
        """
        with self._time_limit(f"no response {expected!r}"):
            frame_type, data = self.read_response()
            while frame_type == RESPONSE and data == HEARTBEAT != expected:
                frame_type, data = self.read_response()
        if isinstance(data, NSQErrorCode):
            raise data
        if frame_type != RESPONSE or data != expected:
            raise NSQException(f"response {data!r}, expected {expected!r}", address=self.nsqd)

    def listen(self) -> None:
        """Read until the connection is closed, and send the signals.

        Raises:
            NSQTimeout: If no complete frame came within options.timeout.
            NSQSocketError, NSQFrameError: If the connection broke, or the bytes are not a frame.
        """
        while self.is_connected:
            try:
                self.read_response()
            except NSQConnectionClosed:
                return

    def handle_response(self, data: bytes) -> bytes:
        """Send the signal on_response, for a heartbeat after answering it with NOP."""
        self.last_response = time.time()
        if data == HEARTBEAT:
            self.nop()
        self.on_response.send(self, response=data)
        return data

    def handle_error(self, data: bytes) -> NSQErrorCode:
        """Send the signal on_error, and close the connection if the error is fatal."""
        error = make_error(data, self.nsqd)
        self.on_error.send(self, error=error)
        if error.fatal:
            self.close_stream()
        return error

    def handle_message(self, data: bytes) -> Message:
        """Count a message as in flight, and send the signal on_message."""
        messages = self._in_flight_messages
        with self._close_on_error():
            message = Message(*decode_message(data), messages, messages.now())
        self.last_message = time.time()
        messages.in_flight += 1
        self.on_message.send(self, message=message)
        return message

    def handle_finish(self, message: Message) -> None:
        """Send FIN."""
        self.finish(message.id)

    def handle_requeue(self, message: Message, timeout: int, backoff: bool) -> None:
        """Send REQ."""
        self.requeue(message.id, timeout, backoff)

    def handle_touch(self, message: Message) -> None:
        """Send TOUCH."""
        self.touch(message.id)

    def finish_inflight(self) -> None:
        """Reduce the number of messages in flight by one."""
        self._in_flight_messages.in_flight -= 1

    def _handle_handshake(self, frame_type: int, data: bytes) -> None:
        if frame_type == RESPONSE:
            self.last_response = time.time()
            self.on_response.send(self, response=data)
        elif frame_type == ERROR:
            self.on_error.send(self, error=make_error(data, self.nsqd))

    # --- commands. Each method raises the errors of send(). It checks arguments first: ValueError, TypeError.

    def subscribe(self, topic: str, channel: str) -> None:
        """Send SUB; nsqd responds with OK."""
        assert_valid_topic_name(topic)
        assert_valid_channel_name(channel)
        self.send(commands.subscribe(topic, channel))

    def publish(self, topic: str, data: bytes, defer: Milliseconds | None = None) -> None:
        """Send PUB, or DPUB with a delay in milliseconds above 0; nsqd responds with OK."""
        assert_valid_topic_name(topic)
        if defer is not None:
            defer = commands.checked_milliseconds("defer", defer)
        self.send(commands.deferpublish(topic, data, defer) if defer else commands.publish(topic, data))

    def multipublish(self, topic: str, messages: Iterable[bytes]) -> None:
        """Send MPUB; nsqd responds with OK."""
        assert_valid_topic_name(topic)
        self.send(commands.multipublish(topic, messages))

    def ready(self, count: int) -> None:
        """Send RDY."""
        self.send(commands.ready(count))
        self.ready_count = count

    def finish(self, message_id: bytes) -> None:
        """Send FIN. Any thread may call this method, but the thread that has called connect() sends FIN."""
        self._in_flight_messages.finish(message_id)

    def finish_all(self, message_ids: Sequence[bytes]) -> None:
        """Send FIN for each message. Any thread may call this method; see finish()."""
        commands.finish_all(message_ids)  # raises if an id is not valid
        self._in_flight_messages.finish_all(message_ids)

    def requeue(self, message_id: bytes, timeout: Milliseconds = 0, backoff: bool = True) -> None:
        """Send REQ; the timeout is in milliseconds. Any thread may call this method; see finish()."""
        delay = commands.checked_milliseconds("requeue timeout", timeout)
        self._in_flight_messages.requeue(message_id, delay, backoff)

    def touch(self, message_id: bytes) -> None:
        """Send TOUCH. Any thread may call this method; see finish()."""
        self._in_flight_messages.touch(message_id)

    def close(self) -> None:
        """Send CLS; nsqd responds with CLOSE_WAIT. If TLS is wanted and has not started, close the socket instead."""
        if self._connected.encrypted or not self.options.wants_tls:
            self.send(commands.close())
        else:
            self.close_stream()

    def nop(self) -> None:
        """Send NOP."""
        self.send(commands.NOP)

    # --- sending

    def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            NSQException: If TLS is wanted and has not started, and the bytes are neither the magic nor IDENTIFY.
            NSQTimeout: If nsqd does not read the bytes within options.timeout; the connection is closed.
            NSQSocketError: If the connection is closed or breaks.
        """
        self._check_may_send(data)
        stack = self._connected
        # Several greenlets may call send(), for example that of touching(). _sending lets only one send at a time.
        with self._close_on_error(), self._time_limit("nsqd has not read what was sent"), self._sending:
            stack.connected.sendall(data)
        if data.startswith(b"SUB "):
            stack.allow_messages()

    def _check_may_send(self, data: bytes) -> None:
        """If TLS is wanted and has not started, refuse everything except the magic and one IDENTIFY."""
        if self._connected.encrypted or not self.options.wants_tls or data == commands.MAGIC_V2:
            return
        if data.startswith(_IDENTIFY) and len(data) == _IDENTIFY_HEAD + int.from_bytes(data[len(_IDENTIFY) :][:4]):
            return
        raise NSQException(
            "TLS was asked for (tls_v1 or tls_context) and is not on yet; nothing was sent: call identify() first, "
            "which begins TLS",
            address=self.nsqd,
        )

    def _check_connected(self) -> None:
        if not self.is_connected:
            text = "not connected" if self._stack is not None else "not connected: call connect() first"
            raise NSQConnectionClosed(text, address=self.nsqd)

    @property
    def _connected(self) -> TransportStack:
        self._check_connected()
        assert self._stack is not None  # connect() has made it
        return self._stack

    @property
    def _in_flight_messages(self) -> InFlightMessages:
        if self._messages is None:
            raise NSQConnectionClosed("not connected", address=self.nsqd)
        return self._messages

    @contextlib.contextmanager
    def _close_on_error(self, *, resumable: bool = False) -> Iterator[None]:
        """Close the connection if the block raises. If resumable, only an NSQException other than NSQTimeout closes it:
        after all other exceptions, such as NSQTimeout, the caller may read again. Errors get nsqd's address."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, NSQException):
                error.address = error.address or self.nsqd
            if not resumable or (isinstance(error, NSQException) and not isinstance(error, NSQTimeout)):
                self.close_stream()
            raise

    def _time_limit(self, what: str) -> AbstractContextManager[None]:
        return time_limit(self.options.timeout, what, self.nsqd)


class _AnswerSignals(AnswerListener[NsqdTCPClient]):
    """Sends the signals on_finish and on_requeue of a client."""

    wants_finishes = True

    def on_finish(self, client: NsqdTCPClient, message_id: bytes) -> None:
        client.on_finish.send(client, message_id=message_id)

    def on_requeue(self, client: NsqdTCPClient, message_id: bytes, timeout: int, backoff: bool) -> None:
        client.on_requeue.send(client, message_id=message_id, timeout=timeout, backoff=backoff)
