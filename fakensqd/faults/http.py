"""HTTP under watch: requests are recorded, and faults act on them.

A shell around a WSGI function: it sleeps by the server's clock and breaks the sockets of requests.

``/faults`` over HTTP: rules, toxics and states of a daemon, for tests in another process or language.

A WSGI function; what JSON means is jsonform's. It stands in front of the daemon's HTTP API, and on a port of its own,
which answers while the daemon is down.
"""

from __future__ import annotations

import errno
import json
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from gevent.lock import BoundedSemaphore

from fakensqd.clock import Clock
from fakensqd.effects import Close, Execute, FaultStep, HttpResponse, Reset, Wait
from fakensqd.faults.injector import Watch
from fakensqd.faults.rules import Event, Point, Rule
from fakensqd.http.router import JSON_TYPE, HttpError, Request
from fakensqd.http.server import SOCKET_KEY, Application
from fakensqd.transcript import Entry
from gnsq.protocol.commands import split_multipublish_body

if TYPE_CHECKING:
    from fakensqd.faults.link import Link

__all__ = [
    "STATES",
    "FaultsApplication",
    "Steering",
    "WatchedApplication",
]


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

    def _performed(
        self, steps: Sequence[FaultStep], event: Event, entry: Entry, environ: dict[str, Any]
    ) -> HttpResponse:
        """Do what is to be done.

        Raises:
            ConnectionResetError: If there is to be no answer, once the client has been told so, or has gone.
        """
        answer: HttpResponse | None = None
        for step in steps:
            match step:
                case Wait(seconds):
                    self._clock.sleep(seconds)
                case Execute():
                    answer = self._executed(event, entry, environ)
                case HttpResponse():
                    answer = step
                case Close() | Reset():
                    if isinstance(step, Reset):
                        _set_reset(environ[SOCKET_KEY])
                    if answer is None:
                        raise _broken_off()
                    return HttpResponse(answer.status, answer.body, (*answer.headers, _CLOSE), answer.size)
        if answer is None:
            _wait_for_end(environ[SOCKET_KEY])
            raise _broken_off()
        return answer

    def _executed(self, event: Event, entry: Entry, environ: dict[str, Any]) -> HttpResponse:
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


def _captured(application: Application, environ: dict[str, Any]) -> HttpResponse:
    begun: list[tuple[str, list[tuple[str, str]]]] = []
    body = b"".join(application(environ, lambda status, headers, exc_info=None: begun.append((status, headers))))
    ((status, headers),) = begun
    return HttpResponse(int(status.partition(" ")[0]), body, tuple(headers))


def _answered(answer: HttpResponse, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
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


_ROOT = "/faults"
# Of the number of a rule or toxic, at most.
_MAX_DIGITS = 19
# The methods that bring a state about, or end it; a daemon has some of them.
STATES = (
    "down",
    "up",
    "restart",
    "stop_reading",
    "resume_reading",
    "pause_heartbeats",
    "resume_heartbeats",
    "set_processing_delay",
)
# They end the connections of the daemon's own HTTP port.
_ENDING = ("down", "restart")

_Handler = Callable[[Request], object]


class Steering(Protocol):
    """What ``/faults`` asks of a daemon, which has some of the methods named in STATES as well."""

    link: Link

    @property
    def faults_http_address(self) -> str:
        """Where ``/faults`` answers in every state; empty if nowhere."""

    def add_rules(self, rules: Sequence[Rule]) -> int:
        """Add a sequence of rules; give back the number of the first."""

    def remove_rules(self, number: int | None) -> bool:
        """Remove the rules of that number, or all; say whether there were any."""

    def numbered_rules(self) -> list[tuple[int, Rule]]:
        """All, each with the number of its sequence."""

    def states(self) -> dict[str, bool | float]:
        """Say which states it is in."""


class FaultsApplication:
    """The WSGI function of a port that has ``/faults``.

    Args:
        application: Answers all other paths; None: this is the port of ``/faults`` alone.
    """

    def __init__(self, steering: Steering, application: Application | None) -> None:
        self._steering = steering
        self._application = application
        # One change of state after the other: starting and stopping takes a moment.
        self._changing = BoundedSemaphore(1)
        rules = {"GET": self._rules, "POST": self._add_rules, "DELETE": self._remove_rules}
        toxics = {"GET": self._toxics, "POST": self._add_toxic, "DELETE": self._remove_toxics}
        self._routes: dict[str, Mapping[str, _Handler]] = {
            _ROOT: rules,
            f"{_ROOT}/toxics": toxics,
            f"{_ROOT}/state": {"GET": lambda request: steering.states()},
        }
        for name in STATES:
            if hasattr(steering, name):
                self._routes[f"{_ROOT}/{name}"] = {"POST": partial(self._change_state, name)}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:  # Any: WSGI
        """Answer a request."""
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
            known = f"{type(self._steering).__name__} has {', '.join(self._routes)}"
            return HTTPStatus.NOT_FOUND, _message(f"there is no {request.path}; {known}")
        handler = handlers.get(request.method)
        if handler is None:
            *most, last = handlers
            methods = f"{', '.join(most)} or {last}" if most else last
            text = f"{request.path} takes {methods}, not {request.method}"
            return HTTPStatus.METHOD_NOT_ALLOWED, _message(text)
        try:
            unknown = [name for name in request.query if name != "id" or request.method != "DELETE"]
            if unknown:
                where = (
                    "has an id at most" if request.method == "DELETE" else "is empty: arguments are JSON, in the body"
                )
                return HTTPStatus.BAD_REQUEST, _message(f"the query has no {unknown[0]}; it {where}")
            return HTTPStatus.OK, handler(request)
        except HttpError as error:
            return HTTPStatus(error.status), _message(error.text)
        except ValueError as error:
            return HTTPStatus.BAD_REQUEST, _message(str(error))
        except OSError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, _message(str(error))

    # --- rules --------------------------------------------------------------------------------------------------------

    def _rules(self, request: Request) -> object:
        from fakensqd.faults.json_rules import encode_rule

        return {"rules": [{"id": number} | encode_rule(rule) for number, rule in self._steering.numbered_rules()]}

    def _add_rules(self, request: Request) -> object:
        from fakensqd.faults.json_rules import decode_rules

        return {"id": self._steering.add_rules(decode_rules(_document(request)))}

    def _remove_rules(self, request: Request) -> object:
        number = _number(request, "rule")
        if not self._steering.remove_rules(number) and number is not None:
            raise HttpError(404, f"no rule has the id {number}")
        return {}

    # --- toxics -------------------------------------------------------------------------------------------------------

    def _toxics(self, request: Request) -> object:
        from fakensqd.faults.json_rules import encode_toxic

        return {"toxics": [encode_toxic(placed) for placed in self._steering.link.placed]}

    def _add_toxic(self, request: Request) -> object:
        from fakensqd.faults.json_rules import decode_toxic

        toxic, placement = decode_toxic(_document(request))
        return {"id": self._steering.link.add(toxic, **placement).number}

    def _remove_toxics(self, request: Request) -> object:
        number = _number(request, "toxic")
        found = [placed for placed in self._steering.link.placed if number in (None, placed.number)]
        if not found and number is not None:
            raise HttpError(404, f"no toxic has the id {number}")
        for placed in found:
            placed.remove()
        return {}

    # --- states -------------------------------------------------------------------------------------------------------

    def _change_state(self, name: str, request: Request) -> object:
        from fakensqd.faults.json_rules import decode_state

        change = getattr(self._steering, name)
        given = request.read(-1)
        arguments = decode_state(name, _parsed(given) if given else {}, change)
        if self._application is not None and name in _ENDING:
            address = self._steering.faults_http_address
            where = f"http://{address}{request.path}" if address else "the port of faults_http_address"
            raise ValueError(f"{name} would end this connection, too; POST it to {where}, which stays up")
        with self._changing:
            change(**arguments)
        return self._steering.states()


def _document(request: Request) -> object:
    return _parsed(request.read(-1))


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is no JSON: {error}") from None


def _number(request: Request, owner: str) -> int | None:
    """Give the id of a query, None without one."""
    text = request.query.get("id")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise ValueError(f"id is {text!r}, not the number of a {owner}")
    return int(text)


def _message(text: str) -> object:
    return {"message": text}
