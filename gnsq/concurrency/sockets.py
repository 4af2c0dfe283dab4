"""Sockets for libraries that read until they have all they want, such as http.client, urllib3 and gevent's HTTP server.

gevent's recv() yields only while there is nothing to read. So without these classes, a peer that sends faster than such
a library reads would block the hub for ever: no timer, not even that of a deadline, would run.
"""

from __future__ import annotations

import io
from typing import Any, Self

from gevent import socket
from gevent.pywsgi import WSGIHandler

from gnsq.concurrency.greenlets import CooperativeYield

__all__ = ["CooperativeHandler", "CooperativeSocket"]


class CooperativeSocket(socket.socket):  # type: ignore[misc]  # gevent has no types
    """A gevent socket that lets other greenlets run before each read."""

    @classmethod
    def take_over(cls, sock: Any) -> Self:  # Any: gevent has no types
        """Make a socket of the connection of another gevent socket, which can't be used any more."""
        taken = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        taken.settimeout(sock.gettimeout())
        return taken

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: arguments of gevent's socket
        super().__init__(*args, **kwargs)
        self._let_others_run = CooperativeYield()

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._let_others_run()
        data: bytes = super().recv(size, flags)
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:  # Any: a buffer
        data = self.recv(size or len(buffer), flags)
        buffer[: len(data)] = data
        return len(data)


class CooperativeHandler(WSGIHandler):  # type: ignore[misc]  # gevent has no types
    """A handler for gevent's WSGIServer that lets other greenlets run before each read, also with TLS."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: arguments of WSGIHandler
        super().__init__(*args, **kwargs)
        received: io.BufferedReader = self.__dict__["rfile"]
        self.rfile = io.BufferedReader(_CooperativeReader(received.detach()))


class _CooperativeReader(io.RawIOBase):
    def __init__(self, inner: io.RawIOBase) -> None:
        self._inner = inner
        self._let_others_run = CooperativeYield()
        self._interrupted = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # Any: a buffer
        if self._interrupted:
            return 0  # the handler was killed; gevent would still read the rest of the request, which may not end
        try:
            self._let_others_run()
            return self._inner.readinto(buffer)
        except BaseException:
            self._interrupted = True
            raise

    def close(self) -> None:
        self._inner.close()
        super().close()
