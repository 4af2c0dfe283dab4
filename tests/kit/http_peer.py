"""A small HTTP server that sends the bytes of a test as its responses."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gevent.server import StreamServer

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


@dataclass
class Asked:
    """A received request."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


@dataclass
class Peer:
    """The address of the server, and the requests that it got."""

    address: str = ""
    requests: list[Asked] = field(default_factory=list)
    connections: int = 0

    @property
    def lines(self) -> list[str]:
        return [asked.line for asked in self.requests]


Answer = Callable[[Asked, socket.socket], bytes | None]


def reply(body: bytes = b"OK", status: str = "200 OK", content_type: str = TEXT, *headers: str) -> bytes:
    """Build a response."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def wrapped(data: object, code: int = 200, text: str = "OK", status: str = "200 OK") -> bytes:
    """Build a response of a server before 1.0."""
    return reply(json.dumps({"status_code": code, "status_txt": text, "data": data}).encode(), status, JSON)


OLD_404 = wrapped(None, 404, "NOT_FOUND", "404 Not Found")


def knowing(*paths: str, unknown: bytes = OLD_404, answer: bytes | None = None) -> Answer:
    """Make a server that knows only these paths."""
    return lambda asked, sock: (answer or reply()) if asked.path in paths else unknown


@contextlib.contextmanager
def http_peer(answer: Answer, port: int = 0, **server: Any) -> Iterator[Peer]:
    """Serve requests over persistent connections. A function returns each response, or None to close the connection.

    Args:
        server: Of StreamServer, such as ssl_context.
    """
    peer = Peer()

    def handle(sock: socket.socket, address: object) -> None:
        peer.connections += 1
        number = peer.connections
        with contextlib.suppress(OSError), sock, sock.makefile("rb") as stream:
            while (asked := _request(stream, number)) is not None:
                peer.requests.append(asked)
                answered = answer(asked, sock)
                if answered is None:
                    return
                sock.sendall(answered)

    listener = StreamServer(("127.0.0.1", port), handle, **server)
    listener.start()
    peer.address = f"127.0.0.1:{listener.server_port}"
    try:
        yield peer
    finally:
        listener.stop(timeout=0)


def _request(stream: Any, number: int) -> Asked | None:
    line = stream.readline().decode("latin-1")
    if not line.endswith("\r\n"):
        return None
    headers = {}
    while header := stream.readline().decode("latin-1").strip():
        name, _, value = header.partition(": ")
        headers[name.lower()] = value
    method, target, _ = line.split(" ")
    path, _, query = target.partition("?")
    return Asked(method, path, query, headers, stream.read(int(headers.get("content-length", 0))), number)
