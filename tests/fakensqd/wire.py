"""A client of the emulator's sockets, as plain as can be: bytes out, frames in."""

from __future__ import annotations

import http.client
import json
from typing import Any, ClassVar

from gevent import socket

from gnsq.protocol import commands
from gnsq.protocol.frames import Frame, FrameDecoder

LIMIT = 10.0


class Client:
    """One connection to nsqd; all are closed after each test."""

    opened: ClassVar[list[Client]] = []

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=LIMIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.opened.append(self)
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []
        self.send(commands.MAGIC_V2)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> Frame:
        """Wait for a frame.

        Raises:
            EOFError: If the connection ends instead.
        """
        while not self._frames:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def ended(self) -> bool:
        """Wait for the end of the connection; false if something else comes."""
        try:
            self.frame()
        except (EOFError, ConnectionError):
            return True
        return False


def consumer(address: str, *, ready: int = 1, channel: str = "c") -> Client:
    """Connect and subscribe to topic t."""
    client = Client(address)
    client.send(commands.subscribe("t", channel))
    assert client.frame() == (0, b"OK")
    client.send(commands.ready(ready))
    return client


def request(address: str, method: str, target: str, body: bytes | None = None) -> Any:
    """Do an HTTP request; give back the JSON, or text, of its answer."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port))
    connection.sock = socket.create_connection((host, int(port)), timeout=LIMIT)
    try:
        connection.request(method, target, body)
        data = connection.getresponse().read().decode()
    finally:
        connection.close()
    return json.loads(data) if data[:1] in ("{", "[") else data
