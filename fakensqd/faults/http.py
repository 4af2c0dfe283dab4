"""Faults and HTTP. FaultyApplication applies rules to HTTP requests. FaultsEndpoint serves ``/faults``, with which
another process or language sets rules, toxics and states of a daemon.

Both are WSGI functions. json_rules decodes and encodes the JSON documents; it is imported at its first use.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from http.client import responses
from typing import Any, Protocol

from gevent.lock import BoundedSemaphore

from fakensqd.clock import Clock
from fakensqd.effects import Close, Execute, FaultStep, HttpResponse, Reset, Wait
from fakensqd.faults.control import FaultControl
from fakensqd.faults.interceptor import multipublish_bodies
from fakensqd.faults.link import Link, set_reset_on_close, wait_for_end
from fakensqd.faults.rules import Event, Point
from fakensqd.http.router import JSON_TYPE, HttpError, Request
from fakensqd.http.server import SOCKET_KEY, Application
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
    "stop_reading",
    "resume_reading",
    "pause_heartbeats",
    "resume_heartbeats",
    "set_processing_delay",
)
# These methods close the connections of the daemon's HTTP port.
_CLOSING_METHODS = ("down", "restart")

_Environ = dict[str, Any]  # Any: WSGI's environ holds anything
_StartResponse = Callable[..., Any]  # Any: returns WSGI's write()


class FaultyApplication:
    """WSGI function around an application: applies rules to each request; records it if there is a transcript."""

    def __init__(self, application: Application, faults: FaultControl, clock: Clock) -> None:
        self._application = application
        self._faults = faults
        self._clock = clock

    def __call__(self, environ: _Environ, start_response: _StartResponse) -> Iterable[bytes]:
        """Respond to a request. Source: PEP 3333."""
        if not self._faults.is_active:
            return self._application(environ, start_response)
        request = Request(environ)
        try:
            query = request.query
        except HttpError:
            query = {}
        method, path, now = request.method, request.path, self._clock.monotonic()
        topic, channel = query.get("topic", ""), query.get("channel", "")
        event = Event(Point.HTTP, path, now, topic=topic, channel=channel, method=method, query=query)
        entry = self._faults.record(Entry(now, 0, "http", f"{method} {path}", topic=topic, channel=channel))
        response = self._do(self._faults.apply_rules(event, (Execute(),)), event, entry, environ)
        entry.status = response.status
        return _respond(response, environ, start_response)

    def _do(self, steps: Sequence[FaultStep], event: Event, entry: Entry, environ: _Environ) -> HttpResponse:
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
                    response = self._execute(event, entry, environ)
                case HttpResponse():
                    response = step
                case Close() | Reset():
                    if isinstance(step, Reset):
                        set_reset_on_close(environ[SOCKET_KEY])
                    if response is None:
                        raise _connection_ended()
                    return replace(response, headers=(*response.headers, _CLOSE))
        if response is None:
            wait_for_end(environ[SOCKET_KEY])
            raise _connection_ended()
        return response

    def _execute(self, event: Event, entry: Entry, environ: _Environ) -> HttpResponse:
        source = environ["wsgi.input"] = _RecordingInput(environ["wsgi.input"])
        started: list[tuple[str, list[tuple[str, str]]]] = []
        body = b"".join(
            self._application(environ, lambda status, headers, exc_info=None: started.append((status, headers)))
        )
        ((status, headers),) = started
        response = HttpResponse(int(status.partition(" ")[0]), body, tuple(headers))
        if event.method in ("POST", "PUT"):
            entry.bodies = event.bodies = _bodies(event, bytes(source.data))
        if event.kind in _PUBLISH_PATHS and response.status == 200:
            entry.executed = 1
        event.point, event.now = Point.HTTP_ANSWER, self._clock.monotonic()
        return self._do(self._faults.apply_rules(event, (response,)), event, entry, environ)


class _RecordingInput:
    """Body of a request. Keeps a copy of the data that the application has read."""

    def __init__(self, source: Any) -> None:
        self.data = bytearray()
        self._source = source

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._source.read(size)
        self.data += data
        return data


def _bodies(event: Event, data: bytes) -> tuple[bytes, ...]:
    if event.kind != "/mpub":
        return (data,) if data else ()
    if event.query.get("binary", "false") in ("false", "0"):
        return tuple(line for line in data.split(b"\n") if line)
    return multipublish_bodies(data)


def _respond(response: HttpResponse, environ: _Environ, start_response: _StartResponse) -> Iterable[bytes]:
    headers = [(name, value) for name, value in response.headers if name != "Content-Length"]
    length = len(response.body) if response.size is None else response.size
    if environ["REQUEST_METHOD"] == "HEAD":
        length = next((int(value) for name, value in response.headers if name == "Content-Length"), length)
    if response.size is not None:
        headers.append(_CLOSE)
    headers.append(("Content-Length", str(length)))
    start_response(f"{response.status} {responses.get(response.status, 'Status')}", headers)
    return [response.body] if response.body else []


def _connection_ended() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "a fault ends this connection")


# --- /faults ----------------------------------------------------------------------------------------------------------

_Handler = Callable[[Request], object]


class ControlledServer(Protocol):
    """The part of Daemon that a FaultsEndpoint uses, besides the STATE_METHODS that the daemon has."""

    faults: FaultControl
    link: Link

    @property
    def faults_http_address(self) -> str: ...
    def now(self) -> float: ...
    def states(self) -> dict[str, bool | float]: ...


class FaultsEndpoint:
    """WSGI function of a port that has ``/faults``.

    Args:
        application: Responds to all other paths; None: the port serves only ``/faults``.
    """

    def __init__(self, server: ControlledServer, application: Application | None) -> None:
        self._server = server
        self._application = application
        # A request that changes a state waits until earlier changes are complete: starts and stops take time.
        self._state_lock = BoundedSemaphore(1)
        rules = {"GET": self._rules, "POST": self._add_rules, "DELETE": self._remove_rules}
        toxics = {"GET": self._toxics, "POST": self._add_toxic, "DELETE": self._remove_toxics}
        self._routes: dict[str, Mapping[str, _Handler]] = {
            _ROOT: rules,
            f"{_ROOT}/toxics": toxics,
            f"{_ROOT}/state": {"GET": lambda request: server.states()},
        }
        for name in STATE_METHODS:
            if hasattr(server, name):
                self._routes[f"{_ROOT}/{name}"] = {"POST": partial(self._change_state, name)}

    def __call__(self, environ: _Environ, start_response: _StartResponse) -> Iterable[bytes]:
        """Respond to a request. Source: PEP 3333."""
        path: str = environ["PATH_INFO"]
        if self._application is not None and path != _ROOT and not path.startswith(f"{_ROOT}/"):
            return self._application(environ, start_response)
        request = Request(environ)
        status, document = self._answer(request)
        body = json.dumps(document).encode()
        headers = [JSON_TYPE, ("Content-Length", str(len(body)))]
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", ", ".join(self._routes[request.path])))
        start_response(f"{status.value} {status.phrase}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _answer(self, request: Request) -> tuple[HTTPStatus, object]:
        handlers = self._routes.get(request.path)
        if handlers is None:
            known = f"{type(self._server).__name__} has {', '.join(self._routes)}"
            return HTTPStatus.NOT_FOUND, _message(f"there is no {request.path}; {known}")
        handler = handlers.get(request.method)
        if handler is None:
            *most, last = handlers
            methods = f"{', '.join(most)} or {last}" if most else last
            text = f"{request.path} takes {methods}, not {request.method}"
            return HTTPStatus.METHOD_NOT_ALLOWED, _message(text)
        try:
            is_delete = request.method == "DELETE"
            if unknown := [name for name in request.query if name != "id" or not is_delete]:
                allowed = "has an id at most" if is_delete else "is empty: arguments are JSON, in the body"
                raise ValueError(f"the query has no {unknown[0]}; it {allowed}")
            return HTTPStatus.OK, handler(request)
        except HttpError as error:
            return HTTPStatus(error.status), _message(error.text)
        except ValueError as error:
            return HTTPStatus.BAD_REQUEST, _message(str(error))
        except OSError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, _message(str(error))

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
            change(**arguments)
        return self._server.states()


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


def _message(text: str) -> object:
    return {"message": text}
