"""Transport: a TCP connection as recv, sendall, close; the one place where OS errors become ours. And perform(),
which lets a handshake use one.

Knows no command and no state. A transport can be handed in: tests use a list of byte strings.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
from typing import Any, Protocol

import gevent
from gevent import socket

from gnsq.errors import NSQConnectionClosed, NSQSocketError, NSQTimeout
from gnsq.protocol.frames import FrameDecoder
from gnsq.protocol.handshake import Handshake, Identity, Write

__all__ = ["READ_SIZE", "TcpTransport", "Transport", "connect", "perform"]

# Bytes asked for at once; some 250 messages of 200 bytes.
READ_SIZE = 64 * 1024


class Transport(Protocol):
    """A reliable stream of bytes. recv() and sendall() may be used by one greenlet each at a time."""

    def recv(self, size: int) -> bytes:
        """Wait for up to size bytes; b"" when the peer has closed.

        Raises:
            NSQSocketError: If the connection broke or was closed by us.
        """

    def sendall(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            NSQSocketError: As recv().
        """

    def end(self) -> None:
        """Say that nothing more will be sent; what the peer still sends can be read."""

    def close(self) -> None:
        """Close at once; whoever waits in recv() or sendall() gets an NSQConnectionClosed."""


class TcpTransport:
    """A connected gevent socket."""

    def __init__(self, sock: Any, peer: str) -> None:  # Any: gevent has no type hints
        self._socket = sock
        self._peer = peer

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._socket.recv(size)
        except OSError as error:
            raise _translated(error, self._peer) from error
        return data

    def sendall(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise _translated(error, self._peer) from error

    def end(self) -> None:
        try:
            self._socket.shutdown(stdlib_socket.SHUT_WR)
        except OSError as error:
            raise _translated(error, self._peer) from error

    def close(self) -> None:
        self._socket.close()


def connect(host: str, port: int, timeout: float) -> TcpTransport:
    """Open a TCP connection, without Nagle's delay and with keepalive.

    Args:
        timeout: Seconds, for all addresses that the name has.

    Raises:
        NSQTimeout: If no address answered in time.
        NSQSocketError: If the name is unknown or the connection was refused; has errno.
    """
    peer = f"{host}:{port}"
    deadline = gevent.Timeout(timeout)
    try:
        with deadline:
            sock = socket.create_connection((host, port))
    except gevent.Timeout as expired:
        if expired is not deadline:
            raise
        raise NSQTimeout(f"{peer}: no connection within {timeout} s") from None
    except UnicodeError as error:
        raise NSQSocketError(f"{peer}: can't connect: host name {host!r} is not valid: {error}") from error
    except OSError as error:
        raise _translated(error, peer, "can't connect: ") from error
    sock.setsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_NODELAY, 1)
    sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_KEEPALIVE, 1)
    return TcpTransport(sock, peer)


def perform(steps: Handshake, transport: Transport, decoder: FrameDecoder) -> Identity:
    """Do what a handshake asks for, up to its Identity.

    Raises:
        NSQException: What the handshake, the transport or the decoder raise.
    """
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            identity: Identity = end.value
            return identity
        answer = None
        if isinstance(step, Write):
            transport.sendall(step.data)
            continue
        answer = decoder.take_one()
        while answer is None:
            data = transport.recv(READ_SIZE)
            if not data:
                raise NSQConnectionClosed("nsqd closed the connection during the handshake")
            answer = decoder.take_one(data)


def _translated(error: OSError, peer: str, doing: str = "") -> NSQSocketError:
    # EBADF: another greenlet of ours has closed the socket.
    if error.errno is None or error.errno == errno.EBADF:
        return NSQConnectionClosed(f"{peer}: connection was closed")
    return NSQSocketError(error.errno, f"{peer}: {doing}{error.strerror}")
