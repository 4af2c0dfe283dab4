"""Streams of bytes: a TCP or unix connection, and a compressed stream over another stream. Knows no NSQ commands.

Only this module translates errors of the operating system into NSQSocketError.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import socket as stdlib_socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import gevent
from gevent import monkey, socket

from gnsq.addresses import format_address, is_unix
from gnsq.clock import monotonic
from gnsq.concurrency.greenlets import CooperativeYield
from gnsq.concurrency.reply_poller import ReplyPoller
from gnsq.concurrency.threads import get_hub_if_exists
from gnsq.errors import NSQConnectionClosed, NSQSocketError, NSQTimeout
from gnsq.protocol.compression import Codec
from gnsq.texts import reason_of

__all__ = [
    "READ_SIZE",
    "CompressedTransport",
    "TcpTransport",
    "Transport",
    "connect",
    "is_expired",
    "open_socket",
    "share_of_address",
    "time_limit",
    "translate_os_error",
    "tried_text",
]

# Limit of the bytes of one read; about 280 messages of 200 bytes.
READ_SIZE = 64 * 1024
# Seconds. An address that does not answer in this time is left for the next one of its name. Linux sends a SYN that was
# lost again after 1 s.
ADDRESS_LIMIT = 2.0

# The number of the event "readable" in libev and libuv.
_READ = 1
# The original poll(), since gevent's poll() lets other greenlets run.
_poll: Any = monkey.get_original("select", "poll")  # Any: gevent has no type hints


class Transport(Protocol):
    """A reliable stream of bytes. At most one greenlet at a time may call recv(), and at most one sendall().

    recv() lets other greenlets run, even if bytes have arrived already: gevent's own recv() does not, so a peer that
    sends faster than a loop reads would block the hub, and no deadline would ever end the loop.
    """

    def recv(self, size: int) -> bytes:
        """Wait for bytes, and return up to size bytes; b"" if the peer has closed its sending side.

        Raises:
            NSQSocketError: If the connection broke or was closed by this side.
        """

    def sendall(self, data: bytes) -> None:
        """Send all bytes. Raises NSQSocketError in the cases of recv()."""

    def shutdown_write(self) -> None:
        """Shut down the sending side. The receiving side stays open."""

    def close(self) -> None:
        """Close immediately. A greenlet that waits in recv() or sendall() gets an NSQConnectionClosed."""


class TcpTransport:
    """A connected gevent socket.

    Args:
        peer: Address for error texts.
    """

    def __init__(self, sock: Any, peer: str) -> None:  # Any: gevent has no type hints
        self._socket = sock
        # After close() it is -1: another socket may get the same descriptor.
        self._fd: int = sock.fileno()
        self._peer = peer
        self._let_others_run = CooperativeYield()
        self._poller = ReplyPoller()
        self._readable: Any = None  # Any: a watcher of gevent's
        self._reader: Any = None  # Any: a greenlet; gevent has no types
        # While the reader waits: what reads without waiting, and what handles the bytes.
        self._read_now: Callable[[], bytes] = bytes
        self._handle: Callable[[bytes], bool] = bool

    def recv(self, size: int) -> bytes:
        # Before the read, not after it: if a timeout of the caller is raised here, no bytes are lost.
        self._let_others_run()
        try:
            data: bytes = self._socket.recv(size)
        except OSError as error:
            raise translate_os_error(error, self._peer) from error
        return data

    def recv_unless_handled(
        self, size: int, handle: Callable[[bytes], bool], expects_reply: Callable[[], bool] = lambda: False
    ) -> bytes:
        """Pass received bytes to handle(); return the first that it does not handle, or b"" at the end.

        Only one greenlet at a time may call this method. handle() is called in the hub itself, or by poll_reply(), so
        it must not wait. Bytes that it handles need no switch of greenlets and no new watcher: a publish takes a
        quarter less time.

        Args:
            handle: Called with received bytes, never with b"". Returns True if it has handled them, else False.
            expects_reply: Called after handle(). Returns True if handle() has sent something to which the peer replies,
                and nothing else is to be sent: then it may be worth polling for the reply.

        Raises:
            NSQSocketError: In the cases of recv().
        """
        reader = gevent.getcurrent()
        hub, fd = gevent.get_hub(), self._fd
        if fd < 0:
            return self.recv(size)  # raises
        if self._readable is None:
            self._readable = hub.loop.io(fd, _READ)

        watcher, poller, read_now = self._readable, self._poller, functools.partial(os.read, fd, size)

        def read() -> None:
            try:
                data: bytes | None = os.read(fd, size)
                poller.record_reply()
                while data and handle(data):
                    # handle() may have closed the socket, and another one may have its descriptor now.
                    if self._readable is not watcher or not expects_reply():
                        return
                    data = poller.poll(read_now)
                if data is None:
                    return
            except BlockingIOError:
                return
            except BaseException as error:  # noqa: BLE001  # raised in the reader
                reader.throw(type(error), error, error.__traceback__)
                return
            reader.switch(data)

        self._reader, self._read_now, self._handle = reader, read_now, handle
        watcher.start(read)
        try:
            data: bytes = hub.switch()  # returns after read() or close()
        except OSError as error:
            raise translate_os_error(error, self._peer) from error
        finally:
            self._reader = None
            if self._readable is watcher:
                watcher.stop()
        return data

    def poll_reply(self) -> None:
        """If it is worth it, poll for the reply to what was just sent, and handle it as recv_unless_handled() does.

        Does nothing while no greenlet waits in recv_unless_handled(), which returns what is not handled.
        """
        reader, watcher = self._reader, self._readable
        if reader is None or watcher is None:
            return
        try:
            data = self._poller.poll(self._read_now)
        except OSError:
            return  # the reader finds the same error
        if data is None or (data and self._handle(data)):
            return
        # The bytes are no longer in the socket: nothing else may be read before the reader has got them.
        self._reader = None
        watcher.stop()
        reader.parent.loop.run_callback(reader.switch, data)

    def sendall(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise translate_os_error(error, self._peer) from error

    def send_nowait(self, data: bytes) -> int:
        """Send as much as possible without waiting. Return the number of sent bytes; 0 if the buffer is full, or
        after an error, which a later sendall() raises."""
        try:
            # If the send buffer is full, os.write() fails at once, but the socket's send() would wait.
            return os.write(self._fd, data)
        except OSError:
            return 0

    def peer_has_closed(self) -> bool:
        """Return True if the peer has closed its side, or the connection is broken. Bytes may still be unread."""
        poller = _poll()
        try:
            poller.register(self._fd, select.POLLRDHUP)
            return bool(poller.poll(0))
        except (OSError, ValueError):
            return True

    def shutdown_write(self) -> None:
        try:
            self._socket.shutdown(stdlib_socket.SHUT_WR)
        except OSError as error:
            raise translate_os_error(error, self._peer) from error

    def close(self) -> None:
        if self._readable is not None:
            # Stop the watcher before the socket is closed: after the close, a new socket may get the same descriptor.
            watcher, self._readable = self._readable, None
            watcher.stop()
            watcher.close()
            # Wake the reader only from its own thread: in a forked child, the reader's thread may not exist.
            if self._reader is not None and self._reader.parent is get_hub_if_exists():
                self._reader.parent.loop.run_callback(self._wake_reader, self._reader)
        self._fd = -1
        self._socket.close()

    def _wake_reader(self, reader: Any) -> None:  # Any: a greenlet; gevent has no types
        if self._reader is reader:
            reader.throw(NSQConnectionClosed("connection was closed", address=self._peer))


class CompressedTransport:
    """A stream of compressed bytes over another transport.

    Args:
        inner: The transport of the compressed bytes.
        first: Compressed bytes that the caller has already received from inner.
    """

    def __init__(self, inner: Transport, codec: Codec, first: bytes = b"") -> None:
        self._inner = inner
        self._codec = codec
        self._first = first
        self._let_others_run = CooperativeYield()

    def recv(self, size: int) -> bytes:
        # A few received bytes may decompress to very many, for which the inner transport is not asked.
        self._let_others_run()
        received, self._first = self._first, b""
        while not (data := self._codec.decompress(received, size)):
            received = self._inner.recv(READ_SIZE)
            if not received:
                return b""
        return data

    def sendall(self, data: bytes) -> None:
        self._inner.sendall(self._codec.compress(data))

    def shutdown_write(self) -> None:
        self._inner.shutdown_write()

    def close(self) -> None:
        self._inner.close()


def connect(host: str, port: int, timeout: float) -> TcpTransport:
    """Connect over TCP, without Nagle's delay and with keepalive, or to a unix socket.

    Args:
        host: Name, address, or the path of a unix socket. For a path, which begins with a slash, port is ignored.
        timeout: Seconds for all addresses of the name together.

    Raises:
        NSQTimeout: If no address accepted the connection in time.
        NSQSocketError: If the name is not valid or unknown, or connecting failed; has the errno, if there is one.
    """
    peer = format_address(host, port)
    tried: dict[str, str] = {}
    try:
        with time_limit(timeout, "no connection", peer, code="ETIMEDOUT", hint=lambda: tried_text(tried)):
            return TcpTransport(_unix_socket(host) if is_unix(host) else _tcp_socket(host, port, timeout, tried), peer)
    except UnicodeError as error:
        text = f"can't connect: host name {host!r} is not valid: {error}"
        raise NSQSocketError(text, address=peer, code="HOST_UNKNOWN") from error
    except OSError as error:
        hint = tried_text(tried)
        if is_expired(error):
            text = f"no connection within {timeout:g} s"
            raise NSQTimeout(text, address=peer, code="ETIMEDOUT", hint=hint) from None
        raise translate_os_error(error, peer, "can't connect: ", hint) from error


@contextlib.contextmanager
def time_limit(
    seconds: float, what: str, address: str = "", *, code: str = "", hint: Callable[[], str] = str
) -> Iterator[None]:
    """Limit the time of a block.

    Args:
        what: What has not happened within the time, for the error.
        address, code: Of the error.
        hint: Returns that of the error.

    Raises:
        NSQTimeout: If the block takes longer. A gevent.Timeout of the caller is not caught.
    """
    deadline = gevent.Timeout(seconds)
    try:
        with deadline:
            yield
    except gevent.Timeout as expired:
        if expired is not deadline:
            raise
        raise NSQTimeout(f"{what} within {seconds:g} s", address=address, code=code, hint=hint()) from None


def _tcp_socket(host: str, port: int, timeout: float, tried: dict[str, str]) -> Any:  # Any: gevent has no type hints
    sock = open_socket(host, port, timeout, tried)
    sock.settimeout(None)
    sock.setsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_NODELAY, 1)
    sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_KEEPALIVE, 1)
    return sock


def open_socket(host: str, port: int, timeout: float, tried: dict[str, str]) -> Any:  # Any: gevent has no type hints
    """Connect to the first address of a name that accepts; for nsqd's protocol and for HTTP.

    Args:
        timeout: Seconds for all addresses together, after the name is resolved.
        tried: Gets each address that is tried, and why it has failed. Empty after success.

    Raises:
        OSError: That of the last address.
    """
    found = socket.getaddrinfo(host, port, type=stdlib_socket.SOCK_STREAM)
    end = monotonic() + timeout
    for index, (family, kind, protocol, _, address) in enumerate(found):
        limit = share_of_address(max(end - monotonic(), 0.001), len(found) - index)
        name = format_address(address[0], address[1])
        tried[name] = "no answer"
        try:
            sock = _connected(socket.socket(family, kind, protocol), address, limit)
        except OSError as error:
            tried[name] = f"no answer within {limit:.2g} s" if is_expired(error) else reason_of(error)
            if index == len(found) - 1:
                raise
        else:
            tried.clear()
            return sock
    raise OSError(errno.EADDRNOTAVAIL, f"host {host!r} has no address")


def share_of_address(seconds: float, count: int) -> float:
    """Return how many of the seconds that are left the first of so many addresses gets, since it may not answer."""
    return seconds if count == 1 else min(seconds / count, ADDRESS_LIMIT)


def _connected(sock: Any, address: Any, limit: float | None) -> Any:  # Any: gevent has no type hints
    try:
        sock.settimeout(limit)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def is_expired(error: OSError) -> bool:
    """Return True if a limit of this process has ended a call, and not the system, whose errors have a number."""
    return isinstance(error, TimeoutError) and error.errno is None


def tried_text(tried: Mapping[str, str]) -> str:
    """Return the addresses of a name that were tried, for an error; empty if it is one, which the error is about."""
    return f"tried {'; '.join(f'{name}: {reason}' for name, reason in tried.items())}" if len(tried) > 1 else ""


def _unix_socket(path: str) -> Any:  # Any: as above
    return _connected(socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM), path, None)


def translate_os_error(error: OSError, peer: str, doing: str = "", hint: str = "") -> NSQSocketError:
    """Make the error of gnsq for one of the operating system.

    Args:
        doing: What has failed, as the beginning of the reason.
        hint: Of the error.
    """
    # Another greenlet of this process has closed the socket.
    if error.errno == errno.EBADF or (error.errno is None and not doing):
        return NSQConnectionClosed("connection was closed", address=peer)
    code = "HOST_UNKNOWN" if isinstance(error, stdlib_socket.gaierror) else ""
    number = () if error.errno is None else (error.errno,)
    return NSQSocketError(*number, f"{doing}{reason_of(error)}", address=peer, code=code, hint=hint)
