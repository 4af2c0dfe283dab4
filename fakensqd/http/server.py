"""An HTTP or HTTPS port on gevent: listens, serves a WSGI function, stops at once.

Owns the socket and the greenlets of its requests. Knows no endpoint.

Which heads of HTTP requests are refused before anybody looks at path and query, and in which words.

Pure. Source: Go's net/http: server.go readRequest, request.go readRequest, transfer.go; net/textproto ReadMIMEHeader;
golang.org/x/net/http/httpguts. Compared with the real nsqd.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import gevent
from gevent import socket
from gevent.pool import Pool
from gevent.pywsgi import MAX_REQUEST_LINE, WSGIHandler, WSGIServer

from fakensqd.addresses import bound_address, join_address, listen, listen_address, remove_socket_file

if TYPE_CHECKING:
    import ssl

__all__ = [
    "MAX_HEAD",
    "SOCKET_KEY",
    "Application",
    "HeadRefusal",
    "HttpPort",
    "check_head",
    "check_request_line",
    "origin_form",
]


# Bytes of a first line and headers together. Source: net/http DefaultMaxHeaderBytes, initialReadLimitSize.
MAX_HEAD = (1 << 20) + 4096

BAD_REQUEST = "400 Bad Request"
_VERSION = re.compile(r"HTTP/[0-9]\.[0-9]\Z")
_TARGET = re.compile(r"/|\*\Z|\w+://")
_ORIGIN = re.compile(r"\w+://[^/?]*")
_BAD_ESCAPE = re.compile(r"[^?]*%(?![0-9a-fA-F]{2})")
_TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_NAME = re.compile(_TOKEN + rb"\Z")
# What is read as a name; one with spaces in it is refused later, and is another one until then.
_READABLE_NAME = re.compile(_TOKEN.replace(rb"[-", rb"[- ") + rb"\Z")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*\Z")
_HOST = re.compile(rb"[-!$%&()*+,.:;=\[\]'_~0-9A-Za-z]*\Z")
_LENGTH = re.compile(rb"[0-9]+\Z")
_MAX_LENGTH = 2**63 - 1


class HeadRefusal(ValueError):
    """A request that is answered before it is one.

    Args:
        status: Of the answer.
        text: Its body; default: the status. None: there is no body.
    """

    def __init__(self, status: str = BAD_REQUEST, text: str | None = "") -> None:
        super().__init__(status)
        about = "Content-Length: 0" if text is None else "Content-Type: text/plain; charset=utf-8"
        body = "" if text is None else text or status
        self.answer = f"HTTP/1.1 {status}\r\n{about}\r\nConnection: close\r\n\r\n{body}".encode()


def check_request_line(line: str) -> None:
    """Check the first line of a request.

    Raises:
        HeadRefusal: If nsqd would not take it, whatever follows.
    """
    words = line.rstrip("\r\n").split(" ")
    if len(words) != 3 or not _VERSION.match(words[2]) or not _NAME.match(words[0].encode("latin-1")):
        raise HeadRefusal
    if _BAD_ESCAPE.match(words[1]) or (not _TARGET.match(words[1]) and words[0] != "CONNECT"):
        raise HeadRefusal


def origin_form(target: str) -> str:
    """Give the path and query of a target, which a client that takes this for a proxy sends with scheme and host."""
    origin = _ORIGIN.match(target)
    if origin is None:
        return target
    path = target[origin.end() :]
    return path if path.startswith("/") else f"/{path}"


def check_head(request_line: str, lines: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Check the headers of a request, each a line with its end, given its first line, which is right.

    Returns:
        Names, in small letters, and values.

    Raises:
        HeadRefusal: If nsqd would not take them.
    """
    method, _, version = request_line.rstrip("\r\n").split(" ")
    major, minor = version[-3], version[-1]
    headers = _headers(lines)
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise HeadRefusal
    _check_body(headers)
    if major != "1":
        raise HeadRefusal("505 HTTP Version Not Supported: unsupported protocol version")
    if not hosts and minor != "0" and method != "CONNECT":
        raise HeadRefusal(f"{BAD_REQUEST}: missing required Host header")
    if hosts and not _HOST.match(hosts[0]):
        raise HeadRefusal(f"{BAD_REQUEST}: malformed Host header")
    if not all(_NAME.match(name) for name, _ in headers):
        raise HeadRefusal(f"{BAD_REQUEST}: invalid header name")
    expected = next((value for name, value in headers if name == b"expect"), b"")
    if expected and b"100-continue" not in expected.lower():
        raise HeadRefusal("417 Expectation Failed", None)
    return headers


def _headers(lines: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Split lines into names, in small letters, and values; one that begins with a space goes on with the last."""
    unfolded: list[bytes] = []
    for line in lines:
        text = line.rstrip(b"\r\n")
        if not line.startswith((b" ", b"\t")):
            unfolded.append(text)
        elif unfolded:
            unfolded[-1] += b" " + text.strip()
        else:
            raise HeadRefusal
    headers = []
    for line in unfolded:
        name, colon, value = line.partition(b":")
        if not colon or not _READABLE_NAME.match(name) or not _VALUE.match(value):
            raise HeadRefusal
        headers.append((name.lower(), value.strip(b" \t")))
    return headers


def _check_body(headers: list[tuple[bytes, bytes]]) -> None:
    encodings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if encodings not in ([], [b"chunked"]):
        raise HeadRefusal("501 Not Implemented", "Unsupported transfer encoding")
    lengths = {value for name, value in headers if name == b"content-length"}
    if not encodings and (len(lengths) > 1 or not all(map(_is_length, lengths))):
        raise HeadRefusal


def _is_length(value: bytes) -> bool:
    return _LENGTH.match(value) is not None and int(value) <= _MAX_LENGTH


Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]  # Any: WSGI's environ holds anything

# Where a request's environ has its socket.
SOCKET_KEY = "fakensqd.socket"
# Source: Go's net/http server.go serve, tlsRecordHeaderLooksLikeHTTP.
_NOT_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
# What is read of such a request before it is hung up on: unread bytes would turn the answer into a reset.
_PEEKED = 16384
# What may be left of a body before its client is hung up on. Source: net/http maxPostHandlerReadBytes.
_MAX_UNREAD = 256 * 1024
# How long such a client has to read its answer, seconds. Source: net/http rstAvoidanceDelay.
_LINGER = 0.5
_HEAD_TOO_LARGE = "431 Request Header Fields Too Large"
# The headers that anybody here looks at.
_HEEDED = (b"accept", b"connection", b"content-length", b"content-type", b"expect", b"host", b"transfer-encoding")
_METHODS = (b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO")


class _Body:
    """The body of a request, in the place of gevent's own: knows what has been read.

    Args:
        source: gevent's.
        length: Bytes; None if it comes in chunks.
        awaited: The client sends it only when it is told to.
    """

    def __init__(self, source: Any, length: int | None, *, awaited: bool) -> None:  # Any: gevent has no types
        self._source = source
        self._left = length
        self._awaited = awaited
        self._broken = False

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes, or all.

        Raises:
            OSError: If the client breaks off, or its chunks are none.
        """
        try:
            data: bytes = self._source.read(size)
        except OSError:
            self._broken = True
            raise
        if self._left is not None:
            self._left -= len(data)
        elif len(data) < size or size < 0:
            self._left = 0
        return data

    def finish(self) -> bool:
        """Read what is left, if that is not much; say whether a request may come behind it.

        Source: Go's net/http server.go, chunkWriter.writeHeader.
        """
        with contextlib.suppress(OSError):
            if self._left != 0 and not self._broken and not self._awaited and (self._left or 0) < _MAX_UNREAD:
                self.read(_MAX_UNREAD + 1)
        return self._left == 0 and not self._broken

    def _discard(self) -> None:  # gevent's name, called behind each answer
        """Do nothing: finish() has."""


class _Handler(WSGIHandler):  # type: ignore[misc]  # gevent has no types
    """gevent's handler of requests; what is no HTTP/1 gets the answer that Go gives."""

    wsgi_input: Any  # Any: gevent has no types

    def handle_one_request(self) -> bool | None:
        """Answer a request; say whether another may come."""
        self._reusable = True
        result = super().handle_one_request()
        if isinstance(result, tuple):
            self.socket.sendall(result[1])
        if result is not True and (isinstance(result, tuple) or not self._reusable):
            self._linger()
        return True if result is True else None

    def _linger(self) -> None:
        """Let the client read its answer: unread bytes of its own would turn that into a reset."""
        with contextlib.suppress(OSError), gevent.Timeout(_LINGER, False):
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(_PEEKED):
                pass

    def read_requestline(self) -> str:
        """Read the first line."""
        self._room = MAX_HEAD
        self._line = self._read_line().decode("latin-1")
        # gevent refuses long ones; the whole is at hand when it asks for it to be read on.
        return self._line[: MAX_REQUEST_LINE - 1]

    def read_request(self, raw_requestline: str) -> bool:
        """Parse a request.

        Raises:
            ValueError: If it is none.
        """
        if self._room <= 0:
            raise HeadRefusal(_HEAD_TOO_LARGE)
        check_request_line(self._line)
        lines = list(iter(self._read_header_line, b""))
        headers = check_head(self._line, lines)
        # gevent takes 100 headers, of 64 KiB each.
        self._head = b"".join(b"%s: %s\r\n" % header for header in headers if header[0] in _HEEDED)
        method, target, version = self._line.rstrip("\r\n").split(" ")
        read = super().read_request(f"{method} {origin_form(target)} {version}\r\n")
        asked = [word for name, value in headers if name == b"connection" for word in value.lower().split(b",")]
        if b"close" in (word.strip() for word in asked):
            self.close_connection = True
        return bool(read)

    def MessageClass(self, *_: object) -> object:  # gevent's name
        """Parse the headers, which have been read."""
        return super().MessageClass(io.BytesIO(self._head), 0)

    def _read_header_line(self) -> bytes:
        """Read a line; b"" behind the last."""
        line = self._read_line()
        if self._room <= 0:
            raise HeadRefusal(_HEAD_TOO_LARGE)
        return b"" if line in (b"\r\n", b"\n") else line

    def _read_line(self) -> bytes:
        line: bytes = self.rfile.readline(self._room)
        self._room -= len(line)
        return line

    def get_environ(self) -> dict[str, Any]:  # Any: WSGI's environ holds anything
        """Describe a request; with the socket it came through."""
        environ: dict[str, Any] = super().get_environ()
        chunked = "HTTP_TRANSFER_ENCODING" in environ
        awaited = "HTTP_EXPECT" in environ
        length = None if chunked else self.content_length or 0
        self.wsgi_input = environ["wsgi.input"] = _Body(self.wsgi_input, length, awaited=awaited)
        environ[SOCKET_KEY] = self.socket
        return environ

    def start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:  # Any: WSGI's
        """Begin an answer, once what is left of the request has been read, if it is."""
        self._reusable = self.wsgi_input.finish()
        if not self._reusable:
            self.close_connection = True
        named = any(name.lower() == "connection" for name, _ in headers)
        if self.close_connection and not named and self.request_version != "HTTP/1.0":
            headers = [*headers, ("Connection", "close")]
        return super().start_response(status, headers, exc_info)

    def handle_error(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:  # Any: a traceback
        """Answer a request that failed; one that a stop has ended is hung up on, as when a process ends."""
        if issubclass(kind, gevent.GreenletExit):
            self.close_connection = True
            return
        super().handle_error(kind, error, trace)

    def _handle_client_error(self, error: Exception) -> tuple[str, bytes]:
        return "400", (error if isinstance(error, HeadRefusal) else HeadRefusal()).answer


class _Server(WSGIServer):  # type: ignore[misc]  # gevent has no types
    """gevent's HTTP server, not alarmed by clients that go away while they are answered, or speak no TLS."""

    handler_class = _Handler

    def handle(self, sock: socket.socket, address: tuple[str, int]) -> None:
        """Serve one connection."""
        if sock.family != socket.AF_UNIX:
            # gevent sends headers and body apart; otherwise the body waits 40 ms for the ack of the headers.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):
            super().handle(sock, address)

    def wrap_socket_and_handle(self, sock: socket.socket, address: tuple[str, int]) -> None:
        """Serve one connection inside TLS; who speaks HTTP in clear is told."""
        import ssl

        with contextlib.suppress(ConnectionError, ssl.SSLError):
            if sock.recv(len(_METHODS[0]), socket.MSG_PEEK) in _METHODS:
                sock.sendall(_NOT_TLS)
                sock.recv(_PEEKED)
                sock.close()
                return
            super().wrap_socket_and_handle(sock, address)


class HttpPort:
    """One address; after a stop, start() takes the same port again.

    Args:
        address: ``host:port``; port 0 takes a free one. Or the path of a unix socket; empty: there is no such port.
        context: gevent's SSLContext for HTTPS; None for HTTP.

    Raises:
        ValueError: If it is no address.
    """

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        self._bind = listen_address(address) if address else ("", 0)
        self._off = not address
        self._context = context
        self._listener: socket.socket | None = None
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        """``host:port``, or the path; port 0 before it was bound for the first time. Empty if there is none."""
        return "" if self._off else join_address(*self._bind)

    @property
    def port(self) -> int:
        """The port of address; -1 for a unix socket, 0 if there is none."""
        return self._bind[1]

    @property
    def is_serving(self) -> bool:
        """Whether requests are answered."""
        return self._server is not None

    def bind(self) -> None:
        """Take the port, and answer nobody yet.

        Raises:
            OSError: If the address cannot be listened on.
        """
        if not self._off:
            self._listener = listen(self._bind)
            self._bind = bound_address(self._listener)

    def serve(self, application: Application) -> None:
        """Answer requests on the port that bind() took."""
        if self._off:
            return
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
            remove_socket_file(self._bind)

    def stop(self) -> None:
        """Hang up on everybody. Does nothing if it is stopped."""
        self.close()
        server, self._server, self._listener = self._server, None, None
        if server is not None:
            server.stop(timeout=0)
