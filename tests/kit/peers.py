"""Peers that a test scripts: of sockets, of HTTP, and a transport of lists; ports where nobody answers."""

from __future__ import annotations

import atexit
import contextlib
import socket
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent.event import Event
from gevent.server import StreamServer

from gnsq.errors import NSQConnectionClosed
from gnsq.protocol.frames import RESPONSE, encode_frame


class MemoryTransport:
    """A transport whose peer is the test: it reads ``sent`` and calls feed()."""

    def __init__(self, *chunks: bytes) -> None:
        self.sends: list[bytes] = []
        self.ended = False
        self.closed = False
        self._chunks = list(chunks)
        self._answers: list[bytes] = []
        self._filled = Event()
        if chunks:
            self._filled.set()

    @property
    def sent(self) -> bytes:
        return b"".join(self.sends)

    def feed(self, chunk: bytes) -> None:
        """Let the client receive a chunk; b"" is the end."""
        self._chunks.append(chunk)
        self._filled.set()

    def answer(self, chunk: bytes) -> None:
        """Let the client receive a chunk after its next send."""
        self._answers.append(chunk)

    def recv(self, size: int) -> bytes:
        while not self._chunks:
            if self.closed:
                raise NSQConnectionClosed("closed")
            self._filled.clear()
            self._filled.wait()
        return self._chunks.pop(0)

    def sendall(self, data: bytes) -> None:
        if self.closed:
            raise NSQConnectionClosed("closed")
        assert not self.ended, "sent after the end"
        self.sends.append(data)
        if self._answers:
            self.feed(self._answers.pop(0))

    def shutdown_write(self) -> None:
        self.ended = True
        self.feed(b"")

    def close(self) -> None:
        self.closed = True
        self._filled.set()


@contextlib.contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen on 127.0.0.1, and call a function with the socket of each client; returns the address."""

    def handle(sock: socket.socket, address: object) -> None:
        with contextlib.suppress(OSError):
            answer(sock)

    server = StreamServer(("127.0.0.1", 0), handle)
    server.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.stop(timeout=0)


def silent_nsqd() -> contextlib.AbstractContextManager[str]:
    """Respond to IDENTIFY and to no other command; returns the address."""

    def answer(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(encode_frame(RESPONSE, b"OK"))
        while sock.recv(4096):
            pass

    return peer(answer)


def refused_port() -> int:
    """Return a port of 127.0.0.1 on which no server listens, but one that the test starts.

    It stays bound until the end of this process, so no other program gets it by chance. Linux lets a server listen on
    it nevertheless, if both have SO_REUSEADDR, which all servers here set.
    """
    sock = socket.socket()
    atexit.register(sock.close)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    port: int = sock.getsockname()[1]
    return port


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port of 127.0.0.1 that answers no attempt to connect, as if a firewall swallowed it."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        # Fill the queue of connections that are not accepted: further ones get no answer.
        waiting = [stack.enter_context(socket.socket()) for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        yield full.getsockname()[1]


def resolve_to(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let each name have as many addresses, which are these ports of 127.0.0.1."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
    monkeypatch.setattr(gevent.socket, "getaddrinfo", lambda *arguments, **keywords: found)
