"""What FakeNsqd and FakeLookupd have in common: two listeners, their connections, start and stop.

Owns the sockets and every greenlet. Knows no command and no endpoint.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import gevent
from gevent import socket
from gevent.pool import Group, Pool
from gevent.pywsgi import WSGIServer
from gevent.server import StreamServer

from fakensqd.clock import Clock, RealClock
from fakensqd.connection import Connection, ConnectionSession

__all__ = ["Daemon", "join_address", "split_address"]

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]  # Any: WSGI's environ holds anything


class _HttpServer(WSGIServer):  # type: ignore[misc]  # gevent has no types
    """gevent's HTTP server, not alarmed by clients that go away while they are answered."""

    def handle(self, sock: socket.socket, address: tuple[str, int]) -> None:
        """Serve one connection."""
        with contextlib.suppress(ConnectionError):
            super().handle(sock, address)


class Daemon(ABC):
    """A server with a TCP and an HTTP port, started with start() or ``with``.

    Attributes:
        errors: What should not have happened: exceptions inside of the emulator.
        clock: What it asks for time.
    """

    def __init__(self, tcp_address: str, http_address: str, clock: Clock | None) -> None:
        self.clock: Clock = clock or RealClock()
        self.errors: list[BaseException] = []
        # After a stop, start() takes the same ports again: clients reconnect to where they were.
        self._tcp_bind = split_address(tcp_address)
        self._http_bind = split_address(http_address)
        self._connections: dict[Connection, None] = {}
        self._greenlets = Group()
        self._tcp_server: StreamServer | None = None
        self._http_server: WSGIServer | None = None

    # --- for subclasses -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _open_session(self, remote_address: str, wake: Callable[[], bool]) -> ConnectionSession:
        """Make the session of a new TCP connection."""

    @abstractmethod
    def _application(self) -> Application:
        """Give the WSGI function of the HTTP port."""

    def _started(self) -> None:  # noqa: B027  # a subclass may have nothing to do here
        """Do what is to be done once both ports are known."""

    def _spawn(self, function: Callable[..., None], *args: object) -> gevent.Greenlet:
        """Run something in a greenlet that ends with this daemon."""
        greenlet = gevent.Greenlet(self._logged, function, *args)
        self._greenlets.start(greenlet)
        return greenlet

    def _logged(self, function: Callable[..., None], *args: object) -> None:
        try:
            function(*args)
        except Exception as error:
            logging.getLogger(type(self).__module__).exception("internal error of the emulator")
            self.errors.append(error)

    # --- public -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen on both ports. Does nothing if it does already.

        Raises:
            OSError: If an address cannot be listened on.
        """
        if self._tcp_server is not None:
            return
        application = self._application()
        tcp_listener = _listen(self._tcp_bind)
        try:
            http_listener = _listen(self._http_bind)
        except OSError:
            tcp_listener.close()
            raise
        self._tcp_bind = tcp_listener.getsockname()[:2]
        self._http_bind = http_listener.getsockname()[:2]
        self._tcp_server = StreamServer(tcp_listener, self._serve, spawn=Pool())
        # Requests are not logged: a fake logs errors only, and those go through the application.
        self._http_server = _HttpServer(http_listener, application, log=None, error_log=None, spawn=Pool())
        self._tcp_server.start()
        self._http_server.start()
        self._started()

    def stop(self) -> None:
        """Close everything at once: listeners, connections, greenlets. Does nothing if it is stopped."""
        if self._tcp_server is None or self._http_server is None:
            return
        tcp_server, http_server = self._tcp_server, self._http_server
        self._tcp_server = self._http_server = None
        for server in (tcp_server, http_server):
            server.close()
        for server in (tcp_server, http_server):
            server.stop(timeout=0)
        self._greenlets.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it listens."""
        return self._tcp_server is not None

    @property
    def tcp_address(self) -> str:
        """``host:port`` that clients of the TCP protocol connect to; port 0 before the first start."""
        return join_address(*self._tcp_bind)

    @property
    def http_address(self) -> str:
        """``host:port`` that HTTP clients connect to; port 0 before the first start."""
        return join_address(*self._http_bind)

    @property
    def tcp_port(self) -> int:
        """The port of tcp_address."""
        return self._tcp_bind[1]

    @property
    def http_port(self) -> int:
        """The port of http_address."""
        return self._http_bind[1]

    # --- connections --------------------------------------------------------------------------------------------------

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(
            sock, self.clock, lambda wake: self._open_session(join_address(*address[:2]), wake), self.errors.append
        )
        self._connections[connection] = None
        try:
            connection.run()
        finally:
            del self._connections[connection]


def _listen(address: tuple[str, int]) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A restart takes the port again while old connections linger.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``; an IPv6 host stands in brackets.

    Raises:
        ValueError: If there is no port from 0 to 65535.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"address {address!r} is not host:port with a port of 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Join host and port, the host in brackets if it is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
