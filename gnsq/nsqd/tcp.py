"""NsqdTCPClient: a connection driven by hand, in the pull style of gnsq 1.0.

No greenlet of its own: who calls read_response() or listen() reads. Consumer and Producer use Connection instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import gevent
from blinker import Signal

from gnsq.errors import (
    NSQConnectionClosed,
    NSQErrorCode,
    NSQException,
    NSQFrameError,
    NSQSocketError,
    NSQTimeout,
    make_error,
)
from gnsq.message import Message
from gnsq.options import ConnectionOptions
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, HEARTBEAT, MESSAGE, OK, RESPONSE, FrameDecoder
from gnsq.protocol.handshake import Identity, identification
from gnsq.transport import READ_SIZE, Transport, connect, perform

__all__ = ["NsqdTCPClient"]


class NsqdTCPClient:
    """One connection to nsqd's TCP port.

    Args:
        address, port: Where nsqd listens.
        options: Those of ConnectionOptions; timeout bounds connecting, and each read.

    Raises:
        ValueError, TypeError: For an option that is out of bounds or does not exist.
    """

    def __init__(self, address: str = "127.0.0.1", port: int = 4150, **options: Any) -> None:  # Any: each its own type
        self.address = address
        self.port = int(port)
        self.options = ConnectionOptions.of("NsqdTCPClient", options)
        self.identity = Identity()
        self.ready_count = 0
        self.in_flight = 0
        self.last_response = time.time()
        self.last_message = time.time()
        self.on_message = Signal()
        self.on_response = Signal()
        self.on_error = Signal()
        self.on_finish = Signal()
        self.on_requeue = Signal()
        self.on_close = Signal()
        self._transport: Transport | None = None
        self._was_closed = False
        self._decoder = FrameDecoder(self.options.max_frame_size)

    def __str__(self) -> str:
        return self.nsqd

    def __repr__(self) -> str:
        return f"<NsqdTCPClient {self.nsqd}>"

    # --- life

    @property
    def nsqd(self) -> str:
        """``address:port`` of nsqd."""
        return f"{self.address}:{self.port}"

    @property
    def is_connected(self) -> bool:
        """Whether connect() has succeeded and close_stream() was not called."""
        return self._transport is not None

    @property
    def max_ready_count(self) -> int:
        """The largest RDY that nsqd takes; 2500 until IDENTIFY says otherwise."""
        return self.identity.max_rdy_count

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
        if self._was_closed:
            raise NSQException(f"{self.nsqd}: connection was closed; make a new client")
        self._transport = connect(self.address, self.port, self.options.timeout)
        self.send(commands.MAGIC_V2)

    def close_stream(self) -> None:
        """Close the socket; no-op when not connected."""
        if self._transport is None:
            return
        self._transport.close()
        self._transport = None
        self._was_closed = True
        self.on_close.send(self)

    def identify(self) -> dict[str, object] | None:
        """Send IDENTIFY. Returns nsqd's answer, None if it was a plain OK.

        Raises:
            NSQErrorCode: What nsqd said instead; the connection is closed.
            NSQTimeout, NSQSocketError, NSQProtocolError: If no good answer came; the connection is closed.
        """
        transport = self._connected()
        deadline = gevent.Timeout(self.options.timeout)
        try:
            with deadline:
                self.identity = perform(identification(self.options), transport, self._decoder)
        except gevent.Timeout as expired:
            self.close_stream()
            if expired is not deadline:
                raise
            raise NSQTimeout(f"{self.nsqd}: no answer to IDENTIFY within {self.options.timeout} s") from None
        except NSQException:
            self.close_stream()
            raise
        return dict(self.identity.answer) or None

    # --- reading

    def read_response(self) -> tuple[int, bytes | NSQErrorCode | Message]:
        """Read one frame: its type and its data, an NSQErrorCode, or a Message. Heartbeats are answered and returned.

        Fatal errors close the connection, and are returned.

        Raises:
            NSQTimeout: If nothing came within options.timeout.
            NSQConnectionClosed: If nsqd has closed; we do, too.
            NSQFrameError: If what came is no frame; the connection is closed.
        """
        frame_type, data = self._read_frame()
        if frame_type == MESSAGE:
            return frame_type, self._handle_message(data)
        if frame_type == ERROR:
            return frame_type, self._handle_error(make_error(data))
        if frame_type != RESPONSE:
            self.close_stream()
            raise NSQFrameError(f"{self.nsqd}: frame type {frame_type} is not one of 0, 1, 2")
        self.last_response = time.time()
        if data == HEARTBEAT:
            self.nop()
        self.on_response.send(self, response=data)
        return frame_type, data

    def check_ok(self, expected: bytes = OK) -> None:
        """Read one frame, which must be the expected response.

        Raises:
            NSQErrorCode: What nsqd said instead.
            NSQException: If it is something else.
        """
        frame_type, data = self.read_response()
        if isinstance(data, NSQErrorCode):
            raise data
        if frame_type != RESPONSE or data != expected:
            raise NSQException(f"{self.nsqd}: answer {data!r}, {expected!r} was due")

    def listen(self) -> None:
        """Read until the connection is closed; what comes goes to the signals.

        Raises:
            NSQTimeout: If nothing came within options.timeout.
        """
        while self.is_connected:
            try:
                self.read_response()
            except NSQSocketError:
                return

    def _read_frame(self) -> tuple[int, bytes]:
        transport = self._connected()
        deadline = gevent.Timeout(self.options.timeout)
        try:
            with deadline:
                frame = self._decoder.take_one()
                while frame is None:
                    data = transport.recv(READ_SIZE)
                    if not data:
                        raise NSQConnectionClosed(f"{self.nsqd}: nsqd closed the connection")
                    frame = self._decoder.take_one(data)
        except gevent.Timeout as expired:
            if expired is not deadline:
                raise
            raise NSQTimeout(f"{self.nsqd}: nothing came within {self.options.timeout} s") from None
        except NSQException:
            self.close_stream()
            raise
        return frame

    def _handle_message(self, data: bytes) -> Message:
        try:
            message = Message.from_frame(data, self)
        except NSQFrameError:
            self.close_stream()
            raise
        self.last_message = time.time()
        self.in_flight += 1
        self.on_message.send(self, message=message)
        return message

    def _handle_error(self, error: NSQErrorCode) -> NSQErrorCode:
        self.on_error.send(self, error=error)
        if error.fatal:
            self.close_stream()
        return error

    # --- commands: these only send

    def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            NSQSocketError: If the connection is closed or breaks.
        """
        try:
            self._connected().sendall(data)
        except NSQException:
            self.close_stream()
            raise

    def subscribe(self, topic: str, channel: str) -> None:
        """Send SUB; nsqd answers OK."""
        self.send(commands.subscribe(topic, channel))

    def publish(self, topic: str, data: bytes, defer: int | None = None) -> None:
        """Send PUB, or DPUB with a delay in milliseconds; nsqd answers OK."""
        self.send(commands.publish(topic, data) if defer is None else commands.deferpublish(topic, data, defer))

    def multipublish(self, topic: str, messages: Iterable[bytes]) -> None:
        """Send MPUB; nsqd answers OK."""
        self.send(commands.multipublish(topic, messages))

    def ready(self, count: int) -> None:
        """Send RDY."""
        self.send(commands.ready(count))
        self.ready_count = count

    def finish(self, message_id: bytes) -> None:
        """Send FIN."""
        self.send(commands.finish(message_id))
        self.in_flight -= 1
        self.on_finish.send(self, message_id=message_id)

    def requeue(self, message_id: bytes, timeout: int = 0, backoff: bool = True) -> None:
        """Send REQ; timeout in milliseconds."""
        self.send(commands.requeue(message_id, timeout))
        self.in_flight -= 1
        self.on_requeue.send(self, message_id=message_id, timeout=timeout, backoff=backoff)

    def touch(self, message_id: bytes) -> None:
        """Send TOUCH."""
        self.send(commands.touch(message_id))

    def close(self) -> None:
        """Send CLS; nsqd answers CLOSE_WAIT."""
        self.send(commands.close())

    def nop(self) -> None:
        """Send NOP."""
        self.send(commands.NOP)

    def _connected(self) -> Transport:
        if self._transport is None:
            raise NSQConnectionClosed(f"{self.nsqd}: not connected")
        return self._transport
