"""HTTP under watch: requests are recorded, and faults act on them.

A shell around a WSGI function: it sleeps by the server's clock and breaks the sockets of requests.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fakensqd.clock import Clock
from fakensqd.effects import Close, Execute, HttpAnswer, Reset, Step, Wait
from fakensqd.faults.match import Event, Point
from fakensqd.faults.watch import Watch
from fakensqd.http_api import HttpError, Request
from fakensqd.http_server import SOCKET, Application
from fakensqd.transcript import Entry
from gnsq.protocol.commands import split_multipublish_body

__all__ = ["WatchedApplication"]

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}
_PUBLISHING = ("/pub", "/mpub")
_CLOSE = ("Connection", "close")


class WatchedApplication:
    """The WSGI function of a server whose requests are watched."""

    def __init__(self, application: Application, watch: Watch, clock: Clock) -> None:
        self._application = application
        self._watch = watch
        self._clock = clock

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:  # Any: WSGI
        """Answer a request."""
        if not self._watch.active:
            return self._application(environ, start_response)
        request = Request(environ)
        try:
            query = request.query
        except HttpError:
            query = {}
        event, entry = self._watch.request(request.method, request.path, query, self._clock.monotonic())
        steps = self._watch.change(event, (Execute(),))
        answer = self._performed(steps, event, entry, environ)
        entry.status = answer.status
        return _answered(answer, environ, start_response)

    def _performed(self, steps: Sequence[Step], event: Event, entry: Entry, environ: dict[str, Any]) -> HttpAnswer:
        """Do what is to be done.

        Raises:
            ConnectionResetError: If there is to be no answer, once the client has been told so, or has gone.
        """
        answer: HttpAnswer | None = None
        for step in steps:
            match step:
                case Wait(seconds):
                    self._clock.sleep(seconds)
                case Execute():
                    answer = self._executed(event, entry, environ)
                case HttpAnswer():
                    answer = step
                case Close() | Reset():
                    if isinstance(step, Reset):
                        _set_reset(environ[SOCKET])
                    if answer is None:
                        raise _broken_off()
                    return HttpAnswer(answer.status, answer.body, (*answer.headers, _CLOSE), answer.size)
        if answer is None:
            _wait_for_end(environ[SOCKET])
            raise _broken_off()
        return answer

    def _executed(self, event: Event, entry: Entry, environ: dict[str, Any]) -> HttpAnswer:
        source = environ["wsgi.input"] = _Recorded(environ["wsgi.input"])
        answer = _captured(self._application, environ)
        if event.method in ("POST", "PUT"):
            entry.bodies = event.bodies = _bodies(event, source.data)
        if event.kind in _PUBLISHING and answer.status == 200:
            entry.executed = 1
        event.point, event.now = Point.HTTP_ANSWER, self._clock.monotonic()
        return self._performed(self._watch.change(event, (answer,)), event, entry, environ)


class _Recorded:
    """A request's body, and what has been read of it."""

    def __init__(self, source: Any) -> None:  # Any: WSGI's input
        self._source = source
        self._read = bytearray()

    @property
    def data(self) -> bytes:
        """All of it."""
        return bytes(self._read)

    def read(self, size: int = -1) -> bytes:
        """Read on."""
        data: bytes = self._source.read(size)
        self._read += data
        return data


def _bodies(event: Event, data: bytes) -> tuple[bytes, ...]:
    if event.kind != "/mpub":
        return (data,) if data else ()
    if event.query.get("binary", "false") in ("false", "0"):
        return tuple(line for line in data.split(b"\n") if line)
    try:
        return tuple(split_multipublish_body(data))
    except ValueError:
        return (data,)


def _captured(application: Application, environ: dict[str, Any]) -> HttpAnswer:
    begun: list[tuple[str, list[tuple[str, str]]]] = []
    body = b"".join(application(environ, lambda status, headers, exc_info=None: begun.append((status, headers))))
    ((status, headers),) = begun
    return HttpAnswer(int(status.partition(" ")[0]), body, tuple(headers))


def _answered(answer: HttpAnswer, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    headers = [(name, value) for name, value in answer.headers if name != "Content-Length"]
    length = len(answer.body) if answer.size is None else answer.size
    if environ["REQUEST_METHOD"] == "HEAD":
        length = next((int(value) for name, value in answer.headers if name == "Content-Length"), length)
    if answer.size is not None:
        headers.append(_CLOSE)
    headers.append(("Content-Length", str(length)))
    start_response(f"{answer.status} {_REASONS.get(answer.status, 'Status')}", headers)
    return [answer.body] if answer.body else []


def _wait_for_end(sock: Any) -> None:  # Any: gevent has no types
    try:
        while sock.recv(4096):
            pass
    except OSError:
        pass


def _set_reset(sock: Any) -> None:  # Any: gevent has no types
    """Let the end of a connection be a RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _broken_off() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "a fault ends this connection")
