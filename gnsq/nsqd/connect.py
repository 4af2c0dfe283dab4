"""From an address to a connection that may SUB and PUB: connect, and do what the handshake asks for.

Owns no greenlet and keeps nothing. Who calls sets the time limit for all of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import TypeVar

from gnsq.addresses import format_address, is_port, is_unix
from gnsq.concurrency.greenlets import CooperativeYield
from gnsq.errors import (
    NSQConnectionClosed,
    NSQErrorCode,
    NSQException,
    NSQFrameError,
    NSQProtocolError,
    NSQSocketError,
    make_error,
)
from gnsq.options import ConnectionOptions
from gnsq.protocol.compression import Codec, require_snappy
from gnsq.protocol.frames import ERROR, Frame, FrameDecoder
from gnsq.protocol.handshake import ReadFrame, StartCompression, StartTLS, Step, Write, with_hint
from gnsq.texts import counted
from gnsq.transport import READ_SIZE, Transport, connect, time_limit

__all__ = ["TransportStack", "load_certificates"]

_Result = TypeVar("_Result")

# Bytes of an answer; nsqd's have less than 1 KiB, an error that quotes a name 17. One of a handshake is read as JSON,
# which takes many times its size.
MAX_ANSWER = 64 * 1024


def load_certificates(options: ConnectionOptions) -> ConnectionOptions:
    """Check what can be checked before connecting, and read the files of TLS once for all connections.

    Raises:
        ValueError, TypeError: If tls_options can't be used.
        ImportError: If snappy is asked for and python-snappy can't be imported.
    """
    if options.snappy:
        require_snappy()
    if options.wants_tls and options.tls_context is None:
        from gnsq.tls import client_context  # ssl takes 8 ms to load: only who uses TLS pays for it

        return dataclasses.replace(options, tls_context=client_context(options), tls_options=None)
    return options


class TransportStack:
    """The transport of one connection, and the layers that are put over it.

    Args:
        host, port: Where nsqd was announced; TLS checks this host.
        options: Prepared ones.
        transport: A stream to use in place of a new connection.

    Attributes:
        transport: The topmost layer; None before connect().
        decoder: Takes what it receives.
        on_frame: Called with (type, data) for each frame that a handshake reads.
        due: What is waited for: where time runs out, the text says so.
        encrypted: Whether TLS is on.
    """

    def __init__(self, host: str, port: int, options: ConnectionOptions, transport: Transport | None = None) -> None:
        self.transport = transport
        # Raised by take_messages().
        self.decoder = FrameDecoder(min(MAX_ANSWER, options.max_frame_size))
        self.on_frame: Callable[[int, bytes], None] | None = None
        self.due = "connection"
        self.encrypted = False
        self._cooperative_yield = CooperativeYield()
        self._host = host
        self._port = port
        self._options = options

    def connect(self) -> None:
        """Connect, where the resolver says if there is one; no-op with a transport that was given.

        Raises:
            NSQSocketError, NSQTimeout: As transport.connect(), and if the resolver takes longer than the timeout.
            NSQException: If the resolver raises or gives no address.
        """
        self.due = "connection"
        if self.transport is None:
            host, port = self._resolved()
            self.transport = connect(host, port, self._options.timeout)

    def run_handshake(self, steps: Generator[Step, Frame | None, _Result]) -> _Result:
        """Do what a handshake asks for, and give what it returns.

        Raises:
            NSQException: What the handshake, the transport or the decoder raise.
        """
        before = self.decoder.set_max_frame_size(min(MAX_ANSWER, self._options.max_frame_size))
        try:
            return self._run_steps(steps)
        except NSQErrorCode:
            raise
        except NSQProtocolError as error:
            raise type(error)(f"{self._peer} does not speak nsqd's TCP protocol: {error}") from error
        except NSQException as error:
            if type(error) is not NSQException:
                raise
            raise NSQException(f"{self._peer}: {error}") from error
        finally:
            self.decoder.set_max_frame_size(before)

    def _run_steps(self, steps: Generator[Step, Frame | None, _Result]) -> _Result:
        answer: Frame | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                result: _Result = end.value
                return result
            answer = None
            match step:
                case Write(data):
                    self._connected.sendall(data)
                case StartTLS():
                    self.due = "end of the TLS handshake"
                    self._start_tls()
                case StartCompression(codec):
                    self._start_compression(codec)
                case ReadFrame(due):
                    self.due = due
                    answer = self.read_frame()
                    self._cooperative_yield()
                    if self.on_frame is not None:
                        self.on_frame(*answer)

    def take_messages(self) -> None:
        """Take frames of up to max_frame_size from now on. Before SUB none is longer than an answer."""
        self.decoder.set_max_frame_size(self._options.max_frame_size)

    def read_frame(self) -> Frame:
        """Wait for one frame.

        Raises:
            NSQConnectionClosed: If the connection ends first.
            NSQFrameError: If what comes is no frame.
        """
        frame = self.decoder.next_frame()
        while frame is None:
            data = self._connected.recv(READ_SIZE)
            if not data:
                raise NSQConnectionClosed(f"{self._peer}: nsqd closed the connection")
            frame = self.decoder.next_frame(data)
        return frame

    @property
    def _connected(self) -> Transport:
        assert self.transport is not None  # connect() came first
        return self.transport

    def _resolved(self) -> tuple[str, int]:
        resolver = self._options.address_resolver
        if resolver is None:
            return self._host, self._port
        timeout = self._options.timeout
        try:
            with time_limit(timeout, f"{self._peer}: address_resolver gave no answer within {timeout} s"):
                found = resolver(self._host, self._port)
                host, port = found
        except NSQException:
            raise
        except Exception as error:  # a hook may raise anything
            raise NSQException(f"{self._peer}: address_resolver raised {error!r}") from error
        if not isinstance(host, str) or not (is_unix(host) or is_port(port)):
            raise NSQException(f"{self._peer}: address_resolver gave {found!r}, a host and a port were due")
        return host, port

    def _start_tls(self) -> None:
        rest = self.decoder.take_remaining()
        if rest:
            raise NSQProtocolError(
                f"{counted(len(rest), 'byte')} came in clear text where TLS was to begin: {rest[:40]!r}"
            )
        from gnsq.tls import TlsTransport, client_context

        context = self._options.tls_context or client_context(self._options)
        name = self._options.server_hostname or (None if is_unix(self._host) else self._host)
        if name is None and context.check_hostname:
            raise NSQException("TLS over a unix socket needs server_hostname, the name to check")
        try:
            transport = TlsTransport(self._connected, context, server_hostname=name, peer=self._peer)
        except (OSError, ValueError, TypeError) as error:
            raise NSQSocketError(f"{self._peer}: TLS can't begin: {error}") from error
        self.transport = transport
        try:
            transport.handshake()
        except NSQSocketError as error:
            refusal = _clear_error(transport.first)
            if refusal is None:
                raise
            raise refusal from error
        self.encrypted = True

    @property
    def _peer(self) -> str:
        return format_address(self._host, self._port)

    def _start_compression(self, codec: Codec) -> None:
        from gnsq.tls import CompressedTransport

        self.transport = CompressedTransport(self._connected, codec, self.decoder.take_remaining())


def _clear_error(first: bytes) -> NSQErrorCode | None:
    """Read an error that nsqd says in clear text where TLS was to begin. Source: nsqd protocol_v2.go IDENTIFY."""
    try:
        frame = FrameDecoder(MAX_ANSWER).next_frame(first)
    except NSQFrameError:
        return None
    return with_hint(make_error(frame[1])) if frame is not None and frame[0] == ERROR else None
