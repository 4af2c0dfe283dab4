"""A client of the emulator's sockets, as plain as can be: bytes out, frames in."""

from __future__ import annotations

import http.client
import io
import json
import ssl
from typing import Any, ClassVar

import gevent
from gevent import socket

from fakensqd.router import Application, Request
from gnsq.errors import NSQSocketError
from gnsq.protocol import commands
from gnsq.protocol.compression import Codec
from gnsq.protocol.frames import Frame, FrameDecoder
from gnsq.tls import TlsTransport
from gnsq.transport import CompressedTransport, TcpTransport, Transport

LIMIT = 10.0


class Client:
    """One connection to nsqd; all are closed after each test."""

    opened: ClassVar[list[Client]] = []
    magic: ClassVar[bytes] = commands.MAGIC_V2

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=LIMIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.opened.append(self)
        self.transport: Transport = TcpTransport(self.socket, address)
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []
        self.send(self.magic)

    def send(self, data: bytes) -> None:
        self.transport.sendall(data)

    def identify(self, **fields: object) -> dict[str, Any]:
        """Send IDENTIFY with feature_negotiation; return the response. Frames after it stay unread."""
        self.send(commands.identify({"feature_negotiation": True, **fields}))
        answer = None
        while answer is None:
            answer = self._decoder.next_frame(self.transport.recv(65536))
        assert answer[0] == 0, answer
        return json.loads(answer[1])

    def start_tls(self, context: ssl.SSLContext) -> TlsTransport:
        transport = TlsTransport(self.transport, context, server_hostname="localhost")
        with gevent.Timeout(LIMIT):
            transport.handshake()
        self.transport = transport
        return transport

    def compress(self, codec: Codec) -> None:
        self.transport = CompressedTransport(self.transport, codec, self._decoder.take_remaining())

    def frame(self) -> Frame:
        """Wait for a frame.

        Raises:
            EOFError: If the connection ends instead.
        """
        while not self._frames:
            data = self.transport.recv(65536)
            if not data:
                raise EOFError
            self._frames += self._decoder.feed(data)
            if self._decoder.failure is not None and not self._frames:
                raise self._decoder.failure
        return self._frames.pop(0)

    def ended(self) -> bool:
        """Wait for the end of the connection; false if something else comes."""
        try:
            self.frame()
        except EOFError:
            return True
        except NSQSocketError as error:
            return isinstance(error.__cause__, ConnectionError)
        return False


def consumer(address: str, *, ready: int = 1, channel: str = "c") -> Client:
    """Connect and subscribe to topic t."""
    client = Client(address)
    client.send(commands.subscribe("t", channel))
    assert client.frame() == (0, b"OK")
    client.send(commands.ready(ready))
    return client


def request(
    address: str, method: str, target: str, body: bytes | None = None, *, context: ssl.SSLContext | None = None
) -> Any:
    """Do an HTTP request, with a context of gevent's inside TLS; return the JSON, or text, of its answer."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port))
    connection.sock = socket.create_connection((host, int(port)), timeout=LIMIT)
    try:
        if context is not None:
            connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
        connection.request(method, target, body)
        data = connection.getresponse().read().decode()
    finally:
        connection.close()
    return json.loads(data) if data[:1] in ("{", "[") else data


def environ(method: str, path: str, query: str = "", body: bytes = b"") -> dict[str, Any]:
    """Make the environ of a request."""
    return {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_LENGTH": str(len(body)) if body else "",
        "wsgi.input": io.BytesIO(body),
    }


def call(
    application: Application, method: str, path: str, query: str = "", body: bytes = b""
) -> tuple[int, dict[str, str], bytes]:
    """Call an application without a socket; return status, headers and body."""
    response = application(Request(environ(method, path, query, body)))
    return response.status, {name.lower(): value for name, value in response.headers}, response.body
