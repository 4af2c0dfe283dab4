"""An HTTP or HTTPS port on gevent: listens, serves a WSGI function, stops at once.

Owns the socket and the greenlets of its requests. Knows no endpoint.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from gevent import socket
from gevent.pool import Pool
from gevent.pywsgi import WSGIServer

__all__ = ["Application", "HttpPort", "join_address", "listen", "split_address"]

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]  # Any: WSGI's environ holds anything


class _Server(WSGIServer):  # type: ignore[misc]  # gevent has no types
    """gevent's HTTP server, not alarmed by clients that go away while they are answered, or speak no TLS."""

    def handle(self, sock: socket.socket, address: tuple[str, int]) -> None:
        """Serve one connection."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            super().handle(sock, address)

    def wrap_socket_and_handle(self, sock: socket.socket, address: tuple[str, int]) -> None:
        """Serve one connection inside TLS."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            super().wrap_socket_and_handle(sock, address)


class HttpPort:
    """One address; after a stop, start() takes the same port again.

    Args:
        address: ``host:port``; port 0 takes a free one.
        context: gevent's SSLContext for HTTPS; None for HTTP.

    Raises:
        ValueError: If it is no address.
    """

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        self._bind = split_address(address)
        self._context = context
        self._listener: socket.socket | None = None
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        """``host:port``; port 0 before it was bound for the first time."""
        return join_address(*self._bind)

    @property
    def port(self) -> int:
        """The port of address."""
        return self._bind[1]

    def bind(self) -> None:
        """Take the port, and answer nobody yet.

        Raises:
            OSError: If the address cannot be listened on.
        """
        self._listener = listen(self._bind)
        self._bind = self._listener.getsockname()[:2]

    def serve(self, application: Application) -> None:
        """Answer requests on the port that bind() took."""
        arguments = {} if self._context is None else {"ssl_context": self._context}
        # Requests are not logged: a fake logs errors only, and those go through the application.
        self._server = _Server(self._listener, application, log=None, error_log=None, spawn=Pool(), **arguments)
        self._server.start()

    def close(self) -> None:
        """Take no new connection."""
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            self._listener.close()

    def stop(self) -> None:
        """Hang up on everybody. Does nothing if it is stopped."""
        self.close()
        server, self._server, self._listener = self._server, None, None
        if server is not None:
            server.stop(timeout=0)


def listen(address: tuple[str, int]) -> socket.socket:
    """Open a listening socket.

    Raises:
        OSError: If the address cannot be listened on.
    """
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
