"""Faults and HTTP. FaultyApplication applies rules to HTTP requests. FaultsEndpoint serves ``/faults``, with which
another process or language sets rules, toxics and states of a daemon.

json_rules decodes and encodes the JSON documents; it is imported at its first use.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from gevent.lock import BoundedSemaphore

from fakensqd.clock import Clock
from fakensqd.effects import Close, Execute, FaultStep, HttpResponse, Reset, Wait
from fakensqd.faults.control import FaultControl, RuleNeverActed
from fakensqd.faults.interceptor import multipublish_bodies
from fakensqd.faults.link import Link, set_reset_on_close, wait_for_end
from fakensqd.faults.rules import Event, Point
from fakensqd.router import Application, HttpError, Request, Route, Router
from fakensqd.transcript import Entry

__all__ = ["STATE_METHODS", "FaultsEndpoint", "FaultyApplication"]

_PUBLISH_PATHS = ("/pub", "/mpub")
_CLOSE = ("Connection", "close")
_ROOT = "/faults"
# Maximum number of digits in the id of a rule or toxic.
_MAX_DIGITS = 19
# Methods of FakeNsqd that change its state. FakeLookupd does not have all of them.
STATE_METHODS = (
    "down",
    "up",
    "restart",
    "reset",
    "stop_reading",
    "resume_reading",
    "pause_heartbeats",
    "resume_heartbeats",
    "set_processing_delay",
)
# These methods close the connections of the daemon's HTTP port.
_CLOSING_METHODS = ("down", "restart", "reset")


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


# --- /faults ----------------------------------------------------------------------------------------------------------


class ControlledServer(Protocol):
    """The part of Daemon that a FaultsEndpoint uses, besides the STATE_METHODS that the daemon has."""

    errors: list[BaseException]
    faults: FaultControl
    link: Link

    @property
    def faults_http_address(self) -> str: ...
    def now(self) -> float: ...
    def states(self) -> dict[str, bool | float]: ...


class FaultsEndpoint(Router):
    """The application of a port that has ``/faults``.

    Args:
        application: Responds to all other paths; None: the port serves only ``/faults``.
    """

    def __init__(self, server: ControlledServer, application: Application | None) -> None:
        self._server = server
        self._application = application
        # A request that changes a state waits until earlier changes are complete: starts and stops take time.
        self._state_lock = BoundedSemaphore(1)
        handlers: dict[str, dict[str, Callable[[Request], object]]] = {
            _ROOT: {"GET": self._rules, "POST": self._add_rules, "DELETE": self._remove_rules},
            f"{_ROOT}/toxics": {"GET": self._toxics, "POST": self._add_toxic, "DELETE": self._remove_toxics},
            f"{_ROOT}/state": {"GET": lambda request: server.states()},
        }
        for name in STATE_METHODS:
            if hasattr(server, name):
                handlers[f"{_ROOT}/{name}"] = {"POST": partial(self._change_state, name)}
        routes = {
            path: {method: Route(partial(_checked, handler)) for method, handler in methods.items()}
            for path, methods in handlers.items()
        }
        super().__init__(routes, server.errors.append)

    def __call__(self, request: Request) -> HttpResponse:
        """Respond to a request."""
        if self._application is not None and request.path != _ROOT and not request.path.startswith(f"{_ROOT}/"):
            return self._application(request)
        return super().__call__(request)

    def _not_found_text(self, request: Request) -> str:
        return f"there is no {request.path}; {type(self._server).__name__} has {', '.join(self._routes)}"

    def _not_allowed_text(self, request: Request, methods: Iterable[str]) -> str:
        return f"{request.path} takes {', '.join(methods)}, not {request.method}"

    def _rules(self, request: Request) -> object:
        from fakensqd.faults.json_rules import encode_rule

        sequences = self._server.faults.sequences.items()
        return {"rules": [{"id": number} | encode_rule(rule) for number, rules in sequences for rule in rules]}

    def _add_rules(self, request: Request) -> object:
        from fakensqd.faults.json_rules import decode_rules

        return {"id": self._server.faults.add(decode_rules(_document(request)), self._server.now())}

    def _remove_rules(self, request: Request) -> object:
        number, faults = _number(request, "rule"), self._server.faults
        if number is None:
            faults.clear()
        elif number in faults.sequences:
            faults.remove(faults.sequences[number])
        else:
            raise HttpError(404, f"no rule has the id {number}")
        return {}

    def _toxics(self, request: Request) -> object:
        from fakensqd.faults.json_rules import encode_toxic

        return {"toxics": [encode_toxic(toxic) for toxic in self._server.link.toxics]}

    def _add_toxic(self, request: Request) -> object:
        from fakensqd.faults.json_rules import decode_toxic

        toxic, target = decode_toxic(_document(request))
        return {"id": self._server.link.add(toxic, **target).number}

    def _remove_toxics(self, request: Request) -> object:
        number = _number(request, "toxic")
        found = [toxic for toxic in self._server.link.toxics if number in (None, toxic.number)]
        if not found and number is not None:
            raise HttpError(404, f"no toxic has the id {number}")
        for toxic in found:
            toxic.remove()
        return {}

    def _change_state(self, name: str, request: Request) -> object:
        from fakensqd.faults.json_rules import decode_state

        change = getattr(self._server, name)
        arguments = decode_state(name, _document(request, if_empty=b"{}"), change)
        if self._application is not None and name in _CLOSING_METHODS:
            address = self._server.faults_http_address
            where = f"http://{address}{request.path}" if address else "the port of faults_http_address"
            raise ValueError(f"{name} would end this connection, too; POST it to {where}, which stays up")
        with self._state_lock:
            try:
                change(**arguments)
            except RuleNeverActed as told:  # by reset(), which is complete
                raise HttpError(409, str(told)) from None
        return self._server.states()


def _checked(handler: Callable[[Request], object], request: Request) -> object:
    """Call a handler, and make responses of its errors."""
    try:
        is_delete = request.method == "DELETE"
        if unknown := [name for name in request.query if name != "id" or not is_delete]:
            allowed = "has an id at most" if is_delete else "is empty: arguments are JSON, in the body"
            raise ValueError(f"the query has no {unknown[0]}; it {allowed}")
        return handler(request)
    except ValueError as error:
        raise HttpError(400, str(error)) from None
    except OSError as error:
        raise HttpError(500, str(error)) from None


def _document(request: Request, if_empty: bytes = b"") -> object:
    try:
        return json.loads(request.read(-1) or if_empty)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is not JSON: {error}") from None


def _number(request: Request, owner: str) -> int | None:
    """Return the id in the query; None if there is none."""
    text = request.query.get("id")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise ValueError(f"id is {text!r}, not the number of a {owner}")
    return int(text)
