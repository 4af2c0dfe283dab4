"""What FakeNsqd and FakeLookupd have in common: their listeners, connections, start and stop.

Owns the sockets and every greenlet. Knows no command and no endpoint.
"""

from __future__ import annotations

import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

import gevent
from gevent import socket
from gevent.pool import Group, Pool
from gevent.server import StreamServer

from fakensqd.clock import Clock, RealClock
from fakensqd.connection import Connection, ConnectionSession
from fakensqd.effects import Answer, AskAuth
from fakensqd.http_server import Application, HttpPort, join_address, listen, split_address
from fakensqd.layers import Layers
from gnsq.transport import TcpTransport

__all__ = ["Daemon"]


class Daemon(ABC):
    """A server with a TCP and an HTTP port, and perhaps one of HTTPS, started with start() or ``with``.

    Args:
        https_address: Where to listen for HTTPS, if there is a context.
        context: For TLS; None if it is not offered.

    Attributes:
        errors: What should not have happened: exceptions inside of the emulator.
        clock: What it asks for time.
    """

    def __init__(
        self,
        tcp_address: str,
        http_address: str,
        clock: Clock | None,
        *,
        https_address: str = "",
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.clock: Clock = clock or RealClock()
        self.errors: list[BaseException] = []
        # After a stop, start() takes the same ports again: clients reconnect to where they were.
        self._tcp_bind = split_address(tcp_address)
        self._http = HttpPort(http_address)
        self._https = HttpPort(https_address, context) if https_address and context is not None else None
        self._http_ports = [self._http] if self._https is None else [self._http, self._https]
        self._context = context
        # A subclass whose sessions want to know sets it.
        self._ask_auth: Callable[[AskAuth], Answer] | None = None
        self._connections: dict[Connection, None] = {}
        self._greenlets = Group()
        self._tcp_server: StreamServer | None = None

    # --- for subclasses -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _open_session(self, remote_address: str, wake: Callable[[], bool]) -> ConnectionSession:
        """Make the session of a new TCP connection."""

    @abstractmethod
    def _application(self, *, secure: bool) -> Application:
        """Give the WSGI function of the HTTP port, or of the HTTPS port."""

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
        """Listen on all ports. Does nothing if it does already.

        Raises:
            OSError: If an address cannot be listened on.
        """
        if self._tcp_server is not None:
            return
        tcp_listener = listen(self._tcp_bind)
        try:
            for port in self._http_ports:
                port.bind()
        except OSError:
            tcp_listener.close()
            self._http.stop()
            raise
        self._tcp_bind = tcp_listener.getsockname()[:2]
        self._tcp_server = StreamServer(tcp_listener, self._serve, spawn=Pool())
        self._tcp_server.start()
        for port in self._http_ports:
            port.serve(self._application(secure=port is self._https))
        self._started()

    def stop(self) -> None:
        """Close everything at once: listeners, connections, greenlets. Does nothing if it is stopped."""
        if self._tcp_server is None:
            return
        tcp_server, self._tcp_server = self._tcp_server, None
        tcp_server.close()
        for port in self._http_ports:
            port.close()
        tcp_server.stop(timeout=0)
        for port in self._http_ports:
            port.stop()
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
        return self._http.address

    @property
    def tcp_port(self) -> int:
        """The port of tcp_address."""
        return self._tcp_bind[1]

    @property
    def http_port(self) -> int:
        """The port of http_address."""
        return self._http.port

    @property
    def https_address(self) -> str:
        """``host:port`` that HTTPS clients connect to; empty without HTTPS."""
        return self._https.address if self._https is not None else ""

    @property
    def https_port(self) -> int:
        """The port of https_address; 0 without HTTPS."""
        return self._https.port if self._https is not None else 0

    # --- connections --------------------------------------------------------------------------------------------------

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = join_address(*address[:2])
        layers = Layers(TcpTransport(sock, peer), self.clock, addresses=(self.tcp_address, peer), context=self._context)
        connection = Connection(
            layers, self.clock, lambda wake: self._open_session(peer, wake), self.errors.append, self._ask_auth
        )
        self._connections[connection] = None
        try:
            # Who hung up before this client came must be noticed before this one is served, or its messages go to the
            # one that is gone. Connections that are accepted together do not go through the event loop by themselves:
            # the first round reads what the other had still to say, behind which, in the second, its end is seen.
            for _ in range(2):
                socket.wait_read(sock.fileno())
            connection.run()
        finally:
            del self._connections[connection]
