"""Faults on HTTP: applies rules to requests."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace

from fakensqd.clock import Clock
from fakensqd.effects import Close, Execute, FaultStep, HttpResponse, Reset, Wait
from fakensqd.faults.control import FaultControl
from fakensqd.faults.interceptor import multipublish_bodies
from fakensqd.faults.link import set_reset_on_close, wait_for_end
from fakensqd.faults.rules import Event, Point
from fakensqd.router import Application, HttpError, Request
from fakensqd.transcript import Entry

__all__ = ["FaultyApplication"]

_PUBLISH_PATHS = ("/pub", "/mpub")
_CLOSE = ("Connection", "close")


class FaultyApplication:
    """An application around another one: applies rules to each request; records it if there is a transcript."""

    def __init__(self, application: Application, faults: FaultControl, clock: Clock) -> None:
        self._application = application
        self._faults = faults
        self._clock = clock

    def __call__(self, request: Request) -> HttpResponse:
        """Respond to a request."""
        if not self._faults.is_active:
            return self._application(request)
        try:
            query = request.query
        except HttpError:
            query = {}
        method, path, now = request.method, request.path, self._clock.monotonic()
        topic, channel = query.get("topic", ""), query.get("channel", "")
        event = Event(Point.HTTP, path, now, topic=topic, channel=channel, method=method, query=query)
        entry = self._faults.record(Entry(now, 0, "http", f"{method} {path}", topic=topic, channel=channel))
        response = self._do(self._faults.apply_rules(event, (Execute(),)), event, entry, request)
        entry.status = response.status
        return response

    def _do(self, steps: Sequence[FaultStep], event: Event, entry: Entry, request: Request) -> HttpResponse:
        """Do the steps for a request.

        Raises:
            ConnectionResetError: If there is no response: a step ended the connection, or no step responded.
        """
        response: HttpResponse | None = None
        for step in steps:
            match step:
                case Wait(seconds):
                    self._clock.sleep(seconds)
                case Execute():
                    response = self._execute(event, entry, request)
                case HttpResponse():
                    response = step
                case Close() | Reset():
                    if isinstance(step, Reset):
                        set_reset_on_close(request.socket)
                    if response is None:
                        raise _connection_ended()
                    return replace(response, headers=(*response.headers, _CLOSE))
        if response is None:
            wait_for_end(request.socket)
            raise _connection_ended()
        return response

    def _execute(self, event: Event, entry: Entry, request: Request) -> HttpResponse:
        response = self._application(request)
        if event.method in ("POST", "PUT"):
            entry.bodies = event.bodies = _bodies(event, b"".join(request.received))
        if event.kind in _PUBLISH_PATHS and response.status == 200:
            entry.executed = 1
        event.point, event.now = Point.HTTP_ANSWER, self._clock.monotonic()
        return self._do(self._faults.apply_rules(event, (response,)), event, entry, request)


def _bodies(event: Event, data: bytes) -> tuple[bytes, ...]:
    if event.kind != "/mpub":
        return (data,) if data else ()
    if event.query.get("binary", "false") in ("false", "0"):
        return tuple(line for line in data.split(b"\n") if line)
    return multipublish_bodies(data)


def _connection_ended() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "a fault ends this connection")
