"""Ports of servers, for TCP, HTTP and HTTPS: listen, serve, stop without waiting for connections.

Owns the sockets and the greenlets of connections and requests. Knows no command and no endpoint.
"""

from __future__ import annotations

import contextlib
import io
import weakref
from collections.abc import Callable, Iterable
from http.client import responses
from typing import TYPE_CHECKING, Any

import gevent
from gevent import socket
from gevent.pool import Pool
from gevent.pywsgi import WSGIServer
from gevent.server import StreamServer

from fakensqd.addresses import (
    UNIX_PORT,
    bound_address,
    is_listening,
    join_address,
    listen,
    listen_address,
    open_socket,
    remove_socket_file,
)
from fakensqd.http_head import MAX_HEAD_SIZE, RefusedRequest, is_last, parse_head
from fakensqd.router import Application, Request
from gnsq.concurrency.forks import disown, register_after_fork
from gnsq.concurrency.greenlets import OwnedGreenlet
from gnsq.concurrency.sockets import CooperativeHandler
from gnsq.concurrency.threads import get_hub_if_exists

if TYPE_CHECKING:
    import ssl

__all__ = ["HttpPort", "Port", "TcpPort"]

# Those of Go; Python 3.13 has newer ones for some.
_REASONS = {**responses, 413: "Request Entity Too Large"}
# Key of the handler in the environ of a request.
_HANDLER_KEY = "fakensqd.handler"
# Bytes of a body that are read after the answer. Source: Go's net/http server.go, maxPostHandlerReadBytes.
MAX_DISCARDED = 256 << 10
# Seconds. Source: Go's net/http server.go, rstAvoidanceDelay.
RESET_DELAY = 0.5


class _Handler(CooperativeHandler):
    """Reads requests as Go does, and closes the connection in the cases in which Go closes it."""

    wsgi_input: Any  # gevent has no types
    _lines: list[bytes] | None = None

    def read_requestline(self) -> str:
        """Read the whole head, since gevent's limits are others than Go's. Return "" if there is none."""
        is_first, self._lines, size = self._lines is None, [], 0
        while size <= MAX_HEAD_SIZE:
            line: bytes = self.rfile.readline(MAX_HEAD_SIZE + 1)
            size += len(line)
            if not line.strip(b"\r\n") and line.endswith(b"\n"):
                break
            self._lines.append(line)
            if is_last(self._lines):
                break
        # After an answer, Go waits for four bytes before it reads a head.
        return "head" if size >= (1 if is_first else 4) else ""

    def read_request(self, raw_requestline: str) -> bool:
        """Take over the head.

        Raises:
            RefusedRequest: If Go refuses it.
        """
        head = parse_head(self._lines or ())
        self.command, self.path = head.method, head.target
        self.request_version = "HTTP/1.0" if head.is_old else "HTTP/1.1"
        self.close_connection = head.closes
        self.content_length = head.length
        self.headers = self.MessageClass(io.BytesIO())
        for name, value in head.headers:
            self.headers[name] = value
        if head.length is None:
            self.headers["Transfer-Encoding"] = "chunked"
        elif head.length:
            self.headers["Content-Length"] = str(head.length)
        if head.expects:
            self.headers["Expect"] = "100-continue"
        return True

    def _connection_upgrade_requested(self) -> bool:
        return False

    def get_environ(self) -> dict[str, Any]:  # Any: WSGI's environ holds anything
        environ: dict[str, Any] = super().get_environ()
        # Weak, since a cycle would keep the socket's files until after the end of its hub.
        environ[_HANDLER_KEY] = weakref.ref(self)
        return environ

    def leaves_body(self) -> bool:
        """Return True if so much of the body is not read that Go closes the connection instead of reading it."""
        body = self.wsgi_input
        if self.content_length is None:
            try:
                is_left = len(body.read(MAX_DISCARDED + 1)) > MAX_DISCARDED
            except OSError:
                is_left = True
        else:
            is_left = self.content_length - body.position > MAX_DISCARDED
        if is_left:
            self.close_connection = True
            self.wsgi_input = _Left()
        return is_left

    def handle_one_response(self) -> None:
        super().handle_one_response()
        if isinstance(self.wsgi_input, _Left):
            self._close_gently()

    def _close_gently(self) -> None:
        """Let the client read the answer first, since a socket that is closed with unread bytes is reset."""
        with contextlib.suppress(OSError), gevent.Timeout(RESET_DELAY, False):
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(65536):
                pass

    def handle_error(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:  # Any: a traceback
        """Respond to a request that failed. Close the connection without a response if stop() ended the request."""
        if issubclass(kind, gevent.GreenletExit):
            self.close_connection = True
        else:
            super().handle_error(kind, error, trace)

    def _handle_client_error(self, error: Exception) -> tuple[str, bytes] | None:
        refusal = error if isinstance(error, RefusedRequest) else RefusedRequest()
        if not isinstance(error, RefusedRequest):
            return "400", refusal.encode()
        self.socket.sendall(refusal.encode())
        self._close_gently()
        return None


class _Left:
    """Takes the place of the body that is not read."""

    def _discard(self) -> None:
        pass


class _Server(WSGIServer):  # type: ignore[misc]  # gevent has no types
    """Serves one listening socket. A client that disconnects early or does not speak TLS causes no error."""

    handler_class = _Handler
    accepted: weakref.WeakSet[socket.socket]

    def handle(self, sock: socket.socket, address: tuple[str, int]) -> None:
        self.accepted.add(sock)
        if sock.family != socket.AF_UNIX:
            # gevent sends headers and body separately. Without TCP_NODELAY, the body waits 40 ms for the headers' ack.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):
            super().handle(sock, address)

    def wrap_socket_and_handle(self, sock: socket.socket, address: tuple[str, int]) -> None:
        import ssl

        with contextlib.suppress(ConnectionError, ssl.SSLError):
            super().wrap_socket_and_handle(sock, address)


def _wsgi(application: Application) -> Callable[..., Iterable[bytes]]:
    """Make the WSGI function of an application. Source: PEP 3333."""

    def respond(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        handler = environ[_HANDLER_KEY]()
        request = Request(environ, handler.socket)
        response = application(request)
        size = len(response.body) if response.size is None else response.size
        headers = [*response.headers, ("Content-Length", str(size))]
        if handler.leaves_body() or handler.close_connection or response.size is not None:
            headers.append(("Connection", "close"))
        start_response(f"{response.status} {_REASONS.get(response.status, 'Status')}", headers)
        return [] if request.method == "HEAD" else [response.body]

    return respond


class Port:
    """A port of a server. After stop(), bind() takes the same port again.

    While it is open, a second socket is bound to it that does not listen: Linux lets a socket listen beside it. So no
    other process gets the port by chance while the server is down.

    Args:
        address: ``host:port``, or the path of a unix socket. Port 0 takes a free port; "" opens no port.

    Raises:
        ValueError: If the address is not valid.
    """

    def __init__(self, address: str) -> None:
        self._bind = listen_address(address) if address else ("", 0)
        self._is_off = not address
        self._socket: socket.socket | None = None
        self._reserved: socket.socket | None = None
        self._server: StreamServer | None = None
        self._hub: Any = None  # gevent has no types
        # True in a child that was forked while the port was open: the file of a unix socket is the parent's.
        self._is_inherited = False
        self._accepted: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    @property
    def address(self) -> str:
        """``host:port``, the path of the unix socket, or "". bind() replaces port 0 by the port that was taken."""
        return "" if self._is_off else join_address(*self._bind)

    @property
    def port(self) -> int:
        """The port number in ``address``; -1 for a unix socket, 0 if the address is ""."""
        return self._bind[1]

    @property
    def is_serving(self) -> bool:
        """True between serve() and stop(); always False if the address is ""."""
        return self._server is not None

    def bind(self) -> None:
        """Listen. Clients that connect wait until serve() is called.

        Raises:
            OSError: If the server can't listen on the address.
        """
        self.close(keeps_port=True)
        if self._is_off:
            return
        try:
            self._reserve()
            self._socket = listen(self._bind)
        except OSError:
            self.close()
            raise
        self._bind = bound_address(self._socket)

    def _reserve(self) -> None:
        # A socket that was opened before the start listens already.
        if self._reserved is None and self.port != UNIX_PORT and not is_listening(self._bind):
            self._reserved = open_socket(self._bind, listening=False)
            self._bind = bound_address(self._reserved)

    def _start(self, server: StreamServer) -> None:
        self._server, self._hub = server, gevent.get_hub()
        register_after_fork(self)
        server.start()

    def after_fork_in_child(self, parent: int) -> None:
        """Leave the port and its connections to the parent, which could not close them while this process has them."""
        server, self._server = self._server, None
        for sock in (self._socket, self._reserved, *self._accepted):
            if sock is not None:
                disown(sock)
        self._is_inherited = True
        if server is not None:
            server.stop_accepting()
            if self._hub is get_hub_if_exists():  # no other thread's greenlets are here
                server.pool.kill(block=False)

    def close(self, *, keeps_port: bool = False) -> None:
        """Accept no more connections.

        Args:
            keeps_port: Keep the port until bind() or another close(); connections are refused.
        """
        if self._server is not None:
            self._server.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            if not self._is_inherited:
                remove_socket_file(self._bind)
            if keeps_port:
                self._reserve()
        if self._reserved is not None and not keeps_port:
            self._reserved.close()
            self._reserved = None

    def stop(self, *, keeps_port: bool = False) -> None:
        """Close the port, as close(), and all its connections. Does nothing if they are closed."""
        self.close(keeps_port=keeps_port)
        server, self._server = self._server, None
        if server is not None:
            server.stop(timeout=0)
            # stop() waits at most 1 s for the greenlets that it kills; kill() waits until all have ended.
            server.pool.kill()


class TcpPort(Port):
    """A port whose connections a function serves, each in its greenlet."""

    def __init__(self, address: str) -> None:
        super().__init__(join_address(*listen_address(address)))  # "" is no address

    def serve(self, handle: Callable[..., object]) -> None:
        """Call a function with each connection and its address. bind() must have been called."""

        def accept(sock: socket.socket, address: object) -> None:
            self._accepted.add(sock)
            handle(sock, address)

        self._start(StreamServer(self._socket, accept, spawn=Pool(None, OwnedGreenlet)))


class HttpPort(Port):
    """A port for HTTP or HTTPS.

    Args:
        context: gevent's SSLContext for HTTPS; None: HTTP.
    """

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        super().__init__(address)
        self._context = context

    def serve(self, application: Application) -> None:
        """Answer requests from now on. bind() must have been called."""
        arguments = {} if self._context is None else {"ssl_context": self._context}
        # log=None: requests are not logged. error_log=None: the application records its errors itself.
        pool = Pool(None, OwnedGreenlet)
        server = _Server(self._socket, _wsgi(application), log=None, error_log=None, spawn=pool, **arguments)
        server.accepted = self._accepted
        self._start(server)
