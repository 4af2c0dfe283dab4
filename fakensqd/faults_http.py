"""``/faults`` over HTTP: rules, toxics and states of a daemon, for tests in another process or language.

A WSGI function; what JSON means is jsonform's. It stands in front of the daemon's HTTP API, and on a port of its own,
which answers while the daemon is down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from gevent.lock import BoundedSemaphore

from fakensqd.faults.scenario import Rule
from fakensqd.http_api import JSON_TYPE, HttpError, Request
from fakensqd.http_server import Application

if TYPE_CHECKING:
    from fakensqd.link import Link

__all__ = ["STATES", "FaultsApplication", "Steering"]

_ROOT = "/faults"
# Of the number of a rule or toxic, at most.
_MAX_DIGITS = 19
# The methods that bring a state about, or end it; a daemon has some of them.
STATES = ("down", "up", "restart", "deaf", "hearing", "pause_heartbeats", "resume_heartbeats", "slow")
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
        from fakensqd.faults.jsonform import encode_rule

        return {"rules": [{"id": number} | encode_rule(rule) for number, rule in self._steering.numbered_rules()]}

    def _add_rules(self, request: Request) -> object:
        from fakensqd.faults.jsonform import decode_rules

        return {"id": self._steering.add_rules(decode_rules(_document(request)))}

    def _remove_rules(self, request: Request) -> object:
        number = _number(request, "rule")
        if not self._steering.remove_rules(number) and number is not None:
            raise HttpError(404, f"no rule has the id {number}")
        return {}

    # --- toxics -------------------------------------------------------------------------------------------------------

    def _toxics(self, request: Request) -> object:
        from fakensqd.faults.jsonform import encode_toxic

        return {"toxics": [encode_toxic(placed) for placed in self._steering.link.placed]}

    def _add_toxic(self, request: Request) -> object:
        from fakensqd.faults.jsonform import decode_toxic

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
        from fakensqd.faults.jsonform import decode_state

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
