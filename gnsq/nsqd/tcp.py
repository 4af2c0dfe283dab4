"""NsqdTCPClient: a connection driven by hand, in the pull style of gnsq 1.0.

No greenlet of its own: who calls read_response() or listen() reads. Consumer and Producer use Connection instead.

The commands of a connection driven by hand: one method each, which checks its arguments and sends.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar, Unpack

from gevent.lock import BoundedSemaphore

from gnsq import states
from gnsq.addresses import format_address, parse_address
from gnsq.clock import RealClock
from gnsq.concurrency.forks import register_after_fork
from gnsq.errors import (
    NSQConnectionClosed,
    NSQErrorCode,
    NSQException,
    NSQFrameError,
    NSQTimeout,
    make_error,
)
from gnsq.message import Message
from gnsq.nsqd.connect import TransportStack, load_certificates
from gnsq.nsqd.in_flight import InFlightMessages
from gnsq.options import USER_AGENT, ConnectionOptions, MoreConnectionOptionsDict, TlsOptionsDict
from gnsq.protocol import commands, handshake
from gnsq.protocol.compression import Deflate, Snappy
from gnsq.protocol.frames import ERROR, HEARTBEAT, MESSAGE, OK, RESPONSE, Frame, decode_message
from gnsq.protocol.handshake import Identity, StartCompression, StartTLS, Step, with_hint
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
from gnsq.transport import Transport, time_limit

__all__ = [
    "NsqdTCPClient",
    "Verbs",
]

logger = logging.getLogger(__name__)


class Verbs(ABC):
    """Base of NsqdTCPClient. Each method raises ValueError or TypeError before a byte is sent, and what send() does.

    Attributes:
        ready_count: The RDY that was sent last.
    """

    options: ConnectionOptions
    ready_count = 0

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send bytes."""

    @property
    @abstractmethod
    def _connected_answers(self) -> InFlightMessages:
        """What is in flight."""

    def subscribe(self, topic: str, channel: str) -> None:
        """Send SUB; nsqd answers OK."""
        assert_valid_topic_name(topic, self.options.max_name_length)
        assert_valid_channel_name(channel, self.options.max_name_length)
        self.send(commands.subscribe(topic, channel))

    def publish(self, topic: str, data: bytes, defer: int | None = None) -> None:
        """Send PUB, or DPUB with a delay in milliseconds; nsqd answers OK."""
        assert_valid_topic_name(topic, self.options.max_name_length)
        self.send(commands.publish(topic, data) if defer is None else commands.deferpublish(topic, data, defer))

    def multipublish(self, topic: str, messages: Iterable[bytes]) -> None:
        """Send MPUB; nsqd answers OK."""
        assert_valid_topic_name(topic, self.options.max_name_length)
        self.send(commands.multipublish(topic, messages))

    def ready(self, count: int) -> None:
        """Send RDY."""
        self.send(commands.ready(count))
        self.ready_count = count

    def finish(self, message_id: bytes) -> None:
        """Send FIN. From another thread than that which connected it is sent there, soon."""
        self._connected_answers.finish(message_id)

    def finish_all(self, message_ids: Sequence[bytes]) -> None:
        """Send FIN for each. Threads as finish()."""
        self._connected_answers.finish_all(message_ids)

    def requeue(self, message_id: bytes, timeout: int = 0, backoff: bool = True) -> None:
        """Send REQ; timeout in milliseconds. Threads as finish()."""
        self._connected_answers.requeue(message_id, timeout, backoff)

    def touch(self, message_id: bytes) -> None:
        """Send TOUCH. Threads as finish()."""
        self._connected_answers.touch(message_id)

    def close(self) -> None:
        """Send CLS; nsqd answers CLOSE_WAIT."""
        self.send(commands.close())

    def nop(self) -> None:
        """Send NOP."""
        self.send(commands.NOP)


_Result = TypeVar("_Result")

_IDENTIFY = b"IDENTIFY\n"
# Bytes: with the size of its body.
_IDENTIFY_HEAD = len(_IDENTIFY) + 4


@functools.total_ordering
class NsqdTCPClient(Verbs):
    """One connection to nsqd's TCP port. Two of them are equal if their addresses are.

    Args:
        address, port: Where nsqd listens.
        timeout: Seconds, for connecting, each read and each write.
        heartbeat_interval: Seconds; the attribute of this name holds milliseconds, as in 1.0.
        options: Further ones of ConnectionOptions, where all are described (output_buffer_timeout in milliseconds).

    Attributes:
        state: One of gnsq.states: INIT, CONNECTED, DISCONNECTED.
        identity: What IDENTIFY settled.
        ready_count: The RDY that was sent last.
        last_response, last_message: When one came last, ``time.time()``.

    Raises:
        ValueError, TypeError: For an option that is out of bounds or does not exist.
    """

    def __init__(
        self,
        address: str = "127.0.0.1",
        port: int = 4150,
        timeout: float = 60.0,
        client_id: str | None = None,
        hostname: str | None = None,
        heartbeat_interval: float = 30,
        output_buffer_size: int = 16384,
        output_buffer_timeout: int = 250,
        tls_v1: bool = False,
        tls_options: TlsOptionsDict | None = None,
        snappy: bool = False,
        deflate: bool = False,
        deflate_level: int = 6,
        sample_rate: int = 0,
        auth_secret: bytes | None = None,
        user_agent: str = USER_AGENT,
        **options: Unpack[MoreConnectionOptionsDict],
    ) -> None:
        # Checks both; 1.0 took a port as text, too.
        self.address, self.port = parse_address(format_address(address, int(port)))
        given: dict[str, object] = {
            "timeout": timeout,
            "client_id": client_id,
            "hostname": hostname,
            "heartbeat_interval": heartbeat_interval,
            "output_buffer_size": output_buffer_size,
            "output_buffer_timeout": output_buffer_timeout,
            "tls_v1": tls_v1,
            "tls_options": tls_options,
            "snappy": snappy,
            "deflate": deflate,
            "deflate_level": deflate_level,
            "sample_rate": sample_rate,
            "auth_secret": auth_secret,
            "user_agent": user_agent,
        }
        self.options = load_certificates(ConnectionOptions.from_keywords("NsqdTCPClient", {**given, **options}))
        identify_body = self.options.identify_body()
        for name in given:
            # What was sent stands in for what was not given: the names of host and client, milliseconds.
            setattr(self, name, identify_body.get(name, given[name]) if name != "deflate_level" else deflate_level)
        self.state = states.INIT
        self.identity = Identity()
        self.last_response = time.time()
        self.last_message = time.time()
        self.on_message: TypedSignal[MessageReceiver] = TypedSignal()
        self.on_response: TypedSignal[ResponseReceiver] = TypedSignal()
        self.on_error: TypedSignal[ErrorReceiver] = TypedSignal()
        self.on_finish: TypedSignal[FinishReceiver] = TypedSignal()
        self.on_requeue: TypedSignal[TcpRequeueReceiver] = TypedSignal()
        self.on_auth: TypedSignal[TcpAuthReceiver] = TypedSignal()
        self.on_close: TypedSignal[CloseReceiver] = TypedSignal()
        self._sending = BoundedSemaphore(1)
        self._layers: TransportStack | None = None
        self._answers: InFlightMessages | None = None

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

    # --- life

    @property
    def nsqd(self) -> str:
        """``address:port`` of nsqd."""
        return format_address(self.address, self.port)

    @property
    def is_connected(self) -> bool:
        """Whether connect() has succeeded and close_stream() was not called."""
        return self.state == states.CONNECTED

    @property
    def stream(self) -> Transport | None:
        """The connection's bytes, with all its layers; None while not connected."""
        return self._layers.transport if self._layers is not None and self.is_connected else None

    @property
    def max_ready_count(self) -> int:
        """The largest RDY that nsqd takes; 2500 until IDENTIFY says otherwise."""
        return self.identity.max_rdy_count

    @property
    def in_flight(self) -> int:
        """Messages received and not yet answered."""
        return 0 if self._answers is None else self._answers.in_flight

    @property
    def is_starved(self) -> bool:
        """Whether nearly all messages that RDY allows are in flight."""
        return self.in_flight >= max(self.ready_count * 0.85, 1)

    def connect(self) -> None:
        """Connect and send the magic; no-op when connected.

        Raises:
            NSQException: If it was closed before.
            NSQSocketError, NSQTimeout: If it fails.
        """
        if self.is_connected:
            return
        if self.state != states.INIT:
            raise NSQException(f"{self.nsqd}: connection was closed; make a new client")
        if self._layers is not None:
            raise NSQException(f"{self.nsqd}: another greenlet is connecting")
        layers = self._layers = TransportStack(self.address, self.port, self.options)
        layers.on_frame = self._handle_handshake
        try:
            layers.connect()
        except BaseException:
            self._layers = None
            raise
        register_after_fork(self)
        # Made here and not before: answers from other threads go to the hub of the thread that reads.
        self._answers = InFlightMessages(self.nsqd, self.send, self._check_connected, RealClock())
        self._answers.on_finish = lambda message_id: self.on_finish.send(self, message_id=message_id)
        self._answers.on_requeue = lambda message_id, timeout, backoff: self.on_requeue.send(
            self, message_id=message_id, timeout=timeout, backoff=backoff
        )
        self.state = states.CONNECTED
        self.send(commands.MAGIC_V2)

    def close_stream(self) -> None:
        """Close the socket; no-op when not connected."""
        if not self.is_connected:
            return
        if self.stream is not None:
            self.stream.close()
        self.state = states.DISCONNECTED
        self.on_close.send(self)

    def after_fork_in_child(self, parent: int) -> None:
        """Close this process's copy of the connection: the parent goes on using it. See concurrency.forks."""
        logger.debug("%s: opened in process %d; after a fork, make and connect a new client", self.nsqd, parent)
        self.close_stream()

    def identify(self) -> dict[str, object] | None:
        """Send IDENTIFY, begin TLS and compression where they were asked for, and AUTH where nsqd requires it.

        Returns:
            nsqd's answer, None if it was a plain OK.

        Raises:
            NSQErrorCode: What nsqd said instead; as with every exception, the connection is closed.
            NSQException: If nsqd does not offer TLS that was asked for, or requires AUTH and there is no auth_secret.
            NSQTimeout, NSQSocketError, NSQProtocolError: If no good answer came.
        """
        identity = self.identity = self._perform(handshake.identify_steps(self.options), "IDENTIFY")
        for warning in identity.warnings:
            logger.warning("%s: %s", self.nsqd, warning)
        if identity.auth:
            self.on_auth.send(self, response=dict(identity.auth))
        answers = self._connected_answers
        answers.msg_timeout = identity.msg_timeout or self.options.msg_timeout
        answers.max_msg_timeout = identity.max_msg_timeout
        return dict(identity.answer) or None

    def auth(self) -> dict[str, object]:
        """Send AUTH; identify() does, where nsqd requires it.

        Returns:
            nsqd's answer: ``identity``, ``identity_url``, ``permission_count``.

        Raises:
            ValueError: If there is no auth_secret.
            NSQException: As identify().
        """
        if self.options.auth_secret is None:
            raise ValueError("AUTH needs a secret: give auth_secret")
        self._check_may_send(b"AUTH")
        answer = dict(self._perform(handshake.auth_steps(self.options.auth_secret), "AUTH"))
        self.on_auth.send(self, response=answer)
        return answer

    def upgrade_to_tls(self) -> None:
        """Begin TLS behind an IDENTIFY that was sent and read by hand; identify() does all this."""
        self._perform(handshake.upgrade_steps(StartTLS()), "TLS")

    def upgrade_to_snappy(self) -> None:
        """Begin snappy, as upgrade_to_tls()."""
        self._perform(handshake.upgrade_steps(StartCompression(Snappy())), "snappy")

    def upgrade_to_defalte(self) -> None:
        """Begin deflate, as upgrade_to_tls(); spelled as in 1.0."""
        self._perform(handshake.upgrade_steps(StartCompression(Deflate(self.options.deflate_level))), "deflate")

    def _perform(self, steps: Generator[Step, Frame | None, _Result], subject: str) -> _Result:
        layers = self._connected
        with self._closing(), self._limited(f"no end of {subject}"):
            return layers.run_handshake(steps)

    # --- reading

    def read_response(self) -> tuple[int, bytes | NSQErrorCode | Message]:
        """Read one frame: its type and its data, an NSQErrorCode, or a Message. Heartbeats are answered and returned.

        Fatal errors close the connection, and are returned.

        Raises:
            NSQTimeout: If nothing came within options.timeout.
            NSQConnectionClosed: If nsqd has closed; we do, too.
            NSQFrameError: If what came is no frame; the connection is closed.
        """
        layers = self._connected
        with self._closing(resumable=True), self._limited("nothing came"):
            frame_type, data = layers.read_frame()
        if frame_type == MESSAGE:
            return frame_type, self.handle_message(data)
        if frame_type == ERROR:
            return frame_type, self.handle_error(data)
        if frame_type == RESPONSE:
            return frame_type, self.handle_response(data)
        self.close_stream()
        raise NSQFrameError(f"{self.nsqd}: frame type {frame_type} is not one of 0, 1, 2")

    def check_ok(self, expected: bytes = OK) -> None:
        """Read the expected response; heartbeats that come before it are answered.

        Raises:
            NSQErrorCode: What nsqd said instead.
            NSQTimeout: If it did not come within options.timeout.
            NSQException: If it is something else.
        """
        with self._limited(f"no answer {expected!r}"):
            frame_type, data = self.read_response()
            while frame_type == RESPONSE and data == HEARTBEAT != expected:
                frame_type, data = self.read_response()
        if isinstance(data, NSQErrorCode):
            raise data
        if frame_type != RESPONSE or data != expected:
            raise NSQException(f"{self.nsqd}: answer {data!r}, {expected!r} was due")

    def listen(self) -> None:
        """Read until the connection is closed; what comes goes to the signals.

        Raises:
            NSQTimeout: If nothing came within options.timeout.
            NSQSocketError: If the connection broke.
        """
        while self.is_connected:
            try:
                self.read_response()
            except NSQConnectionClosed:
                return

    def handle_response(self, data: bytes) -> bytes:
        """Answer a heartbeat, and tell on_response."""
        self.last_response = time.time()
        if data == HEARTBEAT:
            self.nop()
        self.on_response.send(self, response=data)
        return data

    def handle_error(self, data: bytes) -> NSQErrorCode:
        """Tell on_error, and close the connection if the error is fatal."""
        error = with_hint(make_error(data))
        self.on_error.send(self, error=error)
        if error.fatal:
            self.close_stream()
        return error

    def handle_message(self, data: bytes) -> Message:
        """Count a message as in flight, and tell on_message."""
        answers = self._connected_answers
        try:
            message = Message(*decode_message(data), self, answers.now())
        except NSQFrameError:
            self.close_stream()
            raise
        self.last_message = time.time()
        answers.in_flight += 1
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
        """Count one message less as in flight."""
        self._connected_answers.in_flight -= 1

    def _handle_handshake(self, frame_type: int, data: bytes) -> None:
        if frame_type == RESPONSE:
            self.last_response = time.time()
            self.on_response.send(self, response=data)
        elif frame_type == ERROR:
            self.on_error.send(self, error=make_error(data))

    # --- sending

    def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            NSQException: If TLS was asked for and is not on: only IDENTIFY may be sent then.
            NSQTimeout: If nsqd does not read them within options.timeout; the connection is closed.
            NSQSocketError: If the connection is closed or breaks.
        """
        self._check_may_send(data)
        layers = self._connected
        assert layers.transport is not None  # it is connected
        # Beside the one who reads, touching() and answers from other threads send, too.
        with self._closing(), self._limited("nsqd has not read what was sent"), self._sending:
            layers.transport.sendall(data)
        if data.startswith(b"SUB "):
            layers.take_messages()

    def _check_may_send(self, data: bytes) -> None:
        """Refuse everything but the magic and one IDENTIFY while TLS is asked for and not on."""
        if self._connected.encrypted or not self.options.wants_tls or data == commands.MAGIC_V2:
            return
        if data.startswith(_IDENTIFY) and len(data) == _IDENTIFY_HEAD + int.from_bytes(data[len(_IDENTIFY) :][:4]):
            return
        raise NSQException(
            f"{self.nsqd}: TLS was asked for (tls_v1 or tls_context) and is not on yet; nothing was sent: call "
            "identify() first, which begins TLS"
        )

    # --- what a Message asks, see message.Responder

    @property
    def msg_timeout(self) -> float | None:
        """Seconds until nsqd takes an unanswered message back; None if it did not say and was not told."""
        return self.options.msg_timeout if self._answers is None else self._answers.msg_timeout

    @property
    def max_msg_timeout(self) -> float | None:
        """Seconds behind its delivery that touches can keep a message; None if nsqd did not say."""
        return self.identity.max_msg_timeout

    def now(self) -> float:
        """The machine's monotonic time."""
        return self._connected_answers.now()

    def track_async(self, *messages: object) -> None:
        """Nothing: whoever drives this client by hand keeps what it has read."""

    untrack_async = untrack_async_all = mark_timed_out = track_async

    def remove_in_flight(self, message: Message) -> None:
        """Count a message that was taken back as no longer in flight."""
        self._connected_answers.remove_in_flight(message)

    def start_periodic_touch(self, message: Message, interval: float) -> Callable[[], None]:
        """Touch a message every interval seconds; returns what stops it."""
        return self._connected_answers.start_periodic_touch(message, interval)

    def _check_connected(self) -> None:
        if not self.is_connected:
            raise NSQConnectionClosed(f"{self.nsqd}: not connected")

    @property
    def _connected(self) -> TransportStack:
        self._check_connected()
        assert self._layers is not None  # connect() has made them
        return self._layers

    @property
    def _connected_answers(self) -> InFlightMessages:
        if self._answers is None:
            raise NSQConnectionClosed(f"{self.nsqd}: not connected")
        return self._answers

    @contextlib.contextmanager
    def _closing(self, *, resumable: bool = False) -> Iterator[None]:
        """Close the connection where what reads or writes fails; half a frame can be read on, half a command not."""
        try:
            yield
        except BaseException as error:
            if not resumable or (isinstance(error, NSQException) and not isinstance(error, NSQTimeout)):
                self.close_stream()
            raise

    def _limited(self, what: str) -> AbstractContextManager[None]:
        return time_limit(self.options.timeout, f"{self.nsqd}: {what} within {self.options.timeout} s")
