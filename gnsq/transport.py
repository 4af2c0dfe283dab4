"""Transport: a TCP or unix connection as recv, sendall, close; the one place where OS errors become ours.

Knows no command and no state. A transport can be handed in: tests use a list of byte strings. What lies over it, TLS
and compression, is in layers.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket as stdlib_socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import gevent
from gevent import monkey, socket

from gnsq.addresses import format_address, is_unix
from gnsq.concurrency.threads import get_hub_if_exists
from gnsq.errors import NSQConnectionClosed, NSQSocketError, NSQTimeout

__all__ = ["READ_SIZE", "TcpTransport", "Transport", "connect", "time_limit"]

# Bytes asked for at once; some 250 messages of 200 bytes.
READ_SIZE = 64 * 1024

# What libev and libuv call it.
_READ = 1
# gevent's would let others run.
_poll: Any = monkey.get_original("select", "poll")  # Any: gevent has no type hints


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

    def shutdown_write(self) -> None:
        """Say that nothing more will be sent; what the peer still sends can be read."""

    def close(self) -> None:
        """Close at once; whoever waits in recv() or sendall() gets an NSQConnectionClosed."""


class TcpTransport:
    """A connected gevent socket; peer is for error texts."""

    def __init__(self, sock: Any, peer: str) -> None:  # Any: gevent has no type hints
        self._socket = sock
        self._peer = peer
        self._readable: Any = None  # Any: a watcher of gevent's
        self._reading: Any = None  # Any: a greenlet

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._socket.recv(size)
        except OSError as error:
            raise _translate_os_error(error, self._peer) from error
        return data

    def recv_unless_handled(self, size: int, take: Callable[[bytes], bool]) -> bytes:
        """Wait for up to size bytes that take() does not want; lets others run even where they have come already.

        For one greenlet. Take is called in the hub itself, so that what it wants costs no switch and no watcher: a
        quarter of a lone publish. It must not wait.

        Raises:
            NSQSocketError: As recv().
        """
        reading = gevent.getcurrent()
        hub, fd = gevent.get_hub(), self._socket.fileno()
        if fd < 0:
            return self.recv(size)  # raises
        if self._readable is None:
            self._readable = hub.loop.io(fd, _READ)

        def read() -> None:
            try:
                data = os.read(fd, size)
                if data and take(data):
                    return
            except BlockingIOError:
                return
            except BaseException as error:  # noqa: BLE001  # the reader's, wherever it was raised
                reading.throw(error)
                return
            reading.switch(data)

        watcher, self._reading = self._readable, reading
        watcher.start(read)
        try:
            data: bytes = hub.switch()  # until read(), or close()
        except OSError as error:
            raise _translate_os_error(error, self._peer) from error
        finally:
            self._reading = None
            if self._readable is watcher:
                watcher.stop()
        return data

    def sendall(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise _translate_os_error(error, self._peer) from error

    def send_nowait(self, data: bytes) -> int:
        """Send what can be sent without waiting; gives how many bytes that was. Whoever calls sendall() sees why."""
        try:
            # Not the socket's send(), which waits.
            return os.write(self._socket.fileno(), data)
        except OSError:
            return 0

    def peer_has_closed(self) -> bool:
        """Whether the peer has closed, even if recv() has not come to that yet."""
        watch = _poll()
        try:
            watch.register(self._socket.fileno(), select.POLLRDHUP)
            return bool(watch.poll(0))
        except (OSError, ValueError):
            return True

    def shutdown_write(self) -> None:
        try:
            self._socket.shutdown(stdlib_socket.SHUT_WR)
        except OSError as error:
            raise _translate_os_error(error, self._peer) from error

    def close(self) -> None:
        if self._readable is not None:
            # Before its socket, whose number may be another's next.
            watcher, self._readable = self._readable, None
            watcher.stop()
            watcher.close()
            # In a child process the thread that waits may not be there.
            if self._reading is not None and self._reading.parent is get_hub_if_exists():
                self._reading.parent.loop.run_callback(self._end_reading, self._reading)
        self._socket.close()

    def _end_reading(self, reading: Any) -> None:  # Any: a greenlet
        if self._reading is reading:
            reading.throw(NSQConnectionClosed(f"{self._peer}: connection was closed"))


def connect(host: str, port: int, timeout: float) -> TcpTransport:
    """Open a connection: over TCP, without Nagle's delay and with keepalive, or to the unix socket at a path.

    Args:
        host: Name, address, or the path of a unix socket (it begins with a slash; the port means nothing then).
        timeout: Seconds, for all addresses that the name has.

    Raises:
        NSQTimeout: If no address answered in time.
        NSQSocketError: If the name is unknown or the connection was refused; has errno.
    """
    peer = format_address(host, port)
    try:
        with time_limit(timeout, f"{peer}: no connection within {timeout} s"):
            return TcpTransport(_unix_socket(host) if is_unix(host) else _tcp_socket(host, port, timeout), peer)
    except UnicodeError as error:
        raise NSQSocketError(f"{peer}: can't connect: host name {host!r} is not valid: {error}") from error
    except OSError as error:
        if isinstance(error, TimeoutError) and error.errno is None:
            raise NSQTimeout(f"{peer}: no connection within {timeout} s") from None
        raise _translate_os_error(error, peer, "can't connect: ") from error


@contextlib.contextmanager
def time_limit(seconds: float, text: str) -> Iterator[None]:
    """Let a block take so many seconds.

    Raises:
        NSQTimeout: With the text, if it takes longer. A gevent.Timeout that the caller has set stays the caller's.
    """
    deadline = gevent.Timeout(seconds)
    try:
        with deadline:
            yield
    except gevent.Timeout as expired:
        if expired is not deadline:
            raise
        raise NSQTimeout(text) from None


def _tcp_socket(host: str, port: int, timeout: float) -> Any:  # Any: gevent has no type hints
    """Connect to the first address that answers; each gets its share of the time, or a dead one would have it all."""
    found = socket.getaddrinfo(host, port, type=stdlib_socket.SOCK_STREAM)
    end = time.monotonic() + timeout
    for index, (family, kind, protocol, _, address) in enumerate(found, 1):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(end - time.monotonic(), 0.001) / (len(found) - index + 1))
            sock.connect(address)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError) or index == len(found):
                raise
            continue
        sock.settimeout(None)
        sock.setsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_NODELAY, 1)
        sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_KEEPALIVE, 1)
        return sock
    raise OSError(errno.EADDRNOTAVAIL, f"host {host!r} has no address")


def _unix_socket(path: str) -> Any:  # Any: as above
    sock = socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _translate_os_error(error: OSError, peer: str, doing: str = "") -> NSQSocketError:
    # EBADF: another greenlet of ours has closed the socket.
    if error.errno is None or error.errno == errno.EBADF:
        return NSQConnectionClosed(f"{peer}: connection was closed")
    return NSQSocketError(error.errno, f"{peer}: {doing}{error.strerror or error}")
