"""Opens a connection: resolves the address, connects, and performs the steps of a handshake.

This module sends neither SUB nor PUB, and owns no greenlet. The caller limits the total time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import TypeVar

import gevent

from gnsq.addresses import format_address, is_port, is_unix
from gnsq.clock import monotonic
from gnsq.concurrency.greenlets import check_is_failure
from gnsq.errors import (
    NSQConnectionClosed,
    NSQErrorCode,
    NSQException,
    NSQFrameError,
    NSQProtocolError,
    NSQSocketError,
    make_error,
)
from gnsq.logs import LogOwner
from gnsq.nsqd.wire_log import logged
from gnsq.options import ConnectionOptions, check_unix
from gnsq.protocol.compression import require_snappy
from gnsq.protocol.frames import DEFAULT_MAX_FRAME_SIZE, ERROR, Frame, FrameDecoder
from gnsq.protocol.handshake import ReadFrame, StartCompression, StartTLS, Step, Write
from gnsq.texts import counted
from gnsq.tracebacks import clears_locals
from gnsq.transport import READ_SIZE, CompressedTransport, Transport, connect, time_limit

__all__ = ["TransportStack", "load_certificates"]

_Result = TypeVar("_Result")

# Limit of a response in bytes. nsqd's responses are shorter than 1 KiB, and an error that quotes a name has up to 17
# KiB. The limit is low because parsed JSON takes much more memory than its text.
MAX_RESPONSE_SIZE = 64 * 1024


def load_certificates(options: ConnectionOptions) -> ConnectionOptions:
    """Check options before connecting, and load the files of tls_options once for all connections. Return the options,
    in which a new tls_context replaces tls_options if TLS is wanted without a tls_context.

    Raises:
        ValueError, TypeError: If tls_options can't be used.
        ImportError: If snappy is wanted and python-snappy can't be imported.
    """
    if options.snappy:
        require_snappy()
    if options.wants_tls and options.tls_context is None:
        from gnsq.tls import client_context  # loads ssl, which takes 8 ms; connections without TLS do not need it

        return dataclasses.replace(options, tls_context=client_context(options), tls_options=None)
    return options


class TransportStack:
    """The transport of one connection: TCP, and the TLS or compression that the handshake has started on top of it.

    Args:
        host, port: Address of nsqd. TLS checks this host, not that of address_resolver, unless server_hostname is set.
        options: The options that load_certificates() has returned.
        on_frame: Called with (type, data) for each frame that a handshake reads.
        owner: The client, for the lines that log commands and frames.

    Attributes:
        transport: The topmost transport; None before connect().
        decoder: Decodes the bytes that the transport receives.
        expected: Describes what connect() or the handshake waits for now, for the error text of a timeout.
        encrypted: True after TLS has started.
    """

    def __init__(
        self,
        host: str,
        port: int,
        options: ConnectionOptions,
        *,
        on_frame: Callable[[int, bytes], None] = lambda frame_type, data: None,
        owner: LogOwner | None = None,
    ) -> None:
        self.transport: Transport | None = None
        self._below_log: Transport | None = None
        # The limit of a frame before SUB. allow_messages() raises this limit.
        self.decoder = FrameDecoder(MAX_RESPONSE_SIZE)
        self.expected = "connection"
        self.encrypted = False
        self._on_frame = on_frame
        self._host = host
        self._port = port
        self._options = options
        self._peer = format_address(host, port)
        self._owner = owner if owner is not None else LogOwner("", monotonic)

    def connect(self, transport: Transport | None = None) -> None:
        """Connect to the address, or to the one that address_resolver returns.

        Args:
            transport: A stream to use instead of a new connection.

        Raises:
            NSQSocketError, NSQTimeout: As gnsq.transport.connect(); NSQTimeout also if address_resolver takes too long.
            NSQException: If address_resolver raises an exception or returns no address.
        """
        self._use(transport if transport is not None else connect(*self._resolve(), self._options.timeout))

    @clears_locals  # of AUTH
    def run_handshake(self, steps: Generator[Step, Frame | None, _Result]) -> _Result:
        """Perform the steps of a handshake, and return its result."""
        before, self.decoder.max_frame_size = self.decoder.max_frame_size, MAX_RESPONSE_SIZE
        try:
            return self._perform(steps)
        except NSQProtocolError as error:
            text = f"does not speak nsqd's TCP protocol: {error.reason}"
            raise type(error)(text, address=self._peer, code="NOT_NSQD", hint=error.hint) from error
        except NSQException as error:
            error.address = error.address or self._peer
            raise
        finally:
            self.decoder.max_frame_size = before

    def _perform(self, steps: Generator[Step, Frame | None, _Result]) -> _Result:
        response: Frame | None = None
        while True:
            try:
                step = steps.send(response)
            except StopIteration as end:
                result: _Result = end.value
                return result
            response = None
            match step:
                case Write(data):
                    self.connected.sendall(data)
                case StartTLS():
                    self.expected = "end of the TLS handshake"
                    self._start_tls()
                case StartCompression(codec):
                    self._use(CompressedTransport(self.below_log, codec, self.decoder.take_remaining()))
                case ReadFrame(expected):
                    self.expected = expected
                    response = self.read_frame()
                    self._on_frame(*response)

    def allow_messages(self) -> None:
        """Accept long frames, too, from now on. Before this call, the limit of a response applies."""
        self.decoder.max_frame_size = DEFAULT_MAX_FRAME_SIZE

    def read_frame(self) -> Frame:
        """Wait for one frame.

        Raises:
            NSQConnectionClosed: If the connection is closed before the frame is complete.
            NSQFrameError: If the bytes are not a frame.
        """
        frame = self.decoder.next_frame()
        while frame is None:
            data = self.connected.recv(READ_SIZE)
            if not data:
                raise NSQConnectionClosed("nsqd closed the connection", address=self._peer)
            frame = self.decoder.next_frame(data)
        return frame

    @property
    def connected(self) -> Transport:
        """The transport after connect()."""
        assert self.transport is not None  # the caller has called connect() before
        return self.transport

    @property
    def below_log(self) -> Transport:
        """The transport without the log of commands and frames, which stays on top of TLS and compression."""
        assert self._below_log is not None  # the caller has called connect() before
        return self._below_log

    def _use(self, transport: Transport) -> None:
        self._below_log, self.transport = transport, logged(transport, self._owner, self._peer)

    def _resolve(self) -> tuple[str, int]:
        resolver = self._options.address_resolver
        if resolver is None:
            return self._host, self._port
        timeout = self._options.timeout
        try:
            with time_limit(timeout, "address_resolver gave no answer", self._peer, code="ETIMEDOUT"):
                found = resolver(self._host, self._port)
                host, port = found
        except (NSQException, gevent.Timeout):
            raise
        except BaseException as error:  # a resolver may raise any exception
            check_is_failure(error)
            raise NSQException(f"address_resolver raised {error!r}", address=self._peer) from error
        if not isinstance(host, str) or not (is_unix(host) or is_port(port)):
            text = f"address_resolver gave {found!r}, expected a host and a port"
            raise NSQException(text, address=self._peer)
        if is_unix(host):
            try:
                check_unix(host)
            except ValueError as error:
                raise NSQException(f"address_resolver: {error}", address=self._peer) from error
        return host, port

    def _start_tls(self) -> None:
        rest = self.decoder.take_remaining()
        if rest:
            raise NSQProtocolError(
                f"received {counted(len(rest), 'byte')} in clear text before TLS began: {rest[:40]!r}"
            )
        from gnsq.tls import TlsTransport, client_context

        context = self._options.tls_context or client_context(self._options)
        name = self._options.server_hostname or (None if is_unix(self._host) else self._host)
        if name is None and context.check_hostname:
            text = "TLS over a unix socket needs the name to check"
            raise NSQException(text, name="server_hostname", hint="give {server_hostname}")
        try:
            transport = TlsTransport(self.below_log, context, server_hostname=name, peer=self._peer)
        except (OSError, ValueError, TypeError) as error:
            raise NSQSocketError(f"TLS can't begin: {error}", address=self._peer) from error
        self._use(transport)
        try:
            transport.handshake()
        except NSQSocketError as error:
            refusal = _error_in_clear_text(transport.first)
            if refusal is None:
                raise
            raise refusal from error
        self.encrypted = True


def _error_in_clear_text(first: bytes) -> NSQErrorCode | None:
    """Decode an error frame, if nsqd sent one in clear text instead of TLS. Source: nsqd protocol_v2.go IDENTIFY."""
    try:
        frame = FrameDecoder(MAX_RESPONSE_SIZE).next_frame(first)
    except NSQFrameError:
        return None
    return make_error(frame[1]) if frame is not None and frame[0] == ERROR else None
