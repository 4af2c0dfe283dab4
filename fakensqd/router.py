"""HTTP API of nsqd and nsqlookupd: requests, and a Router, which is a function from a Request to an HttpResponse.

Pure. A handler takes a Request and returns text, a value to be encoded as JSON, or None for an empty body. Source: nsq
internal/http_api; httprouter, which both programs use.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from fakensqd.effects import HttpResponse
from fakensqd.golang import encoding_json
from fakensqd.options import DaemonOptions
from gnsq.protocol.names import valid_channel_name, valid_topic_name

__all__ = [
    "JSON_TYPE",
    "NSQ_TYPE",
    "Application",
    "HttpError",
    "Request",
    "Route",
    "Router",
    "make_router",
    "topic_and_channel_names",
]


_TEXT = ("Content-Type", "text/plain; charset=utf-8")
JSON_TYPE = ("Content-Type", "application/json; charset=utf-8")
NSQ_TYPE = ("X-Nsq-Content-Type", "nsq; version=1.0")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")


class HttpError(Exception):
    """An error as response: the status is not 200, and the text goes into the JSON body."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Request:
    """One HTTP request.

    Args:
        environ: That of WSGI.
        socket: The socket of the client; None in tests without sockets.

    Attributes:
        argument: Last part of the path, if the path of the route ends with a colon.
        received: What read() has returned so far.
    """

    def __init__(self, environ: Mapping[str, Any], socket: Any = None) -> None:  # Any: gevent has no types
        self.method: str = environ["REQUEST_METHOD"]
        self.path: str = environ["PATH_INFO"]
        self.query_string: str = environ.get("QUERY_STRING", "")
        self.argument = ""
        self.socket = socket
        self.received: list[bytes] = []
        self._environ = environ

    @cached_property
    def query(self) -> dict[str, str]:
        """Parameters of the query. If several have the same name, the first one counts.

        Raises:
            HttpError: If the query is malformed.
        """
        parameters: dict[str, str] = {}
        for pair in filter(None, self.query_string.split("&")):
            if ";" in pair or _BAD_ESCAPE.search(pair):
                raise HttpError(400, "INVALID_REQUEST")
            key, _, value = pair.partition("=")
            parameters.setdefault(_unquote(key), _unquote(value))
        return parameters

    def required(self, name: str) -> str:
        """Return a parameter.

        Raises:
            HttpError: If there is no such parameter, or the query is malformed.
        """
        if name not in self.query:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
        return self.query[name]

    def header(self, name: str) -> str:
        """Return the value of a header; empty without this header."""
        value: str = self._environ.get(f"HTTP_{name.upper()}", "")
        return value

    @property
    def content_length(self) -> int:
        """Value of the header Content-Length; 0 without this header."""
        return int(self._environ.get("CONTENT_LENGTH") or 0)

    def read(self, limit: int) -> bytes:
        """Read at most this many bytes of the body; with -1, the whole body.

        Raises:
            HttpError: If the client disconnects, or a chunk is malformed.
        """
        try:
            data: bytes = self._environ["wsgi.input"].read(limit)
        except OSError:
            raise HttpError(500, "INTERNAL_ERROR") from None
        self.received.append(data)
        return data


# What a port serves: one function for all requests.
Application = Callable[[Request], HttpResponse]


def _unquote(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ").encode("latin-1")).decode("latin-1")


@dataclass(frozen=True, slots=True)
class Route:
    """A handler of requests. If ``plain``, its responses have no header X-Nsq-Content-Type, except errors."""

    handler: Callable[[Request], object]
    plain: bool = False


class Router:
    """The function that responds to the requests of a daemon.

    Args:
        routes: Routes by path, then by method. The path ``/a/:`` matches ``/a/x``, and x is the request's argument.
        on_error: Called if a handler raises another exception than HttpError, which is a bug of the emulator. Raises
            what must end the greenlet, see is_failure().
    """

    def __init__(self, routes: Mapping[str, Mapping[str, Route]], on_error: Callable[[BaseException], None]) -> None:
        self._routes = routes
        self._on_error = on_error

    def __call__(self, request: Request) -> HttpResponse:
        """Respond to a request."""
        methods, request.argument = self._match(request.path)
        route = methods.get(request.method)
        if route is not None:
            return self._respond(request, route)
        if not methods:
            return self._respond_to_unknown(request)
        if request.method == "OPTIONS":
            return HttpResponse(200, b"", (_allow(methods),))
        refusal = self._error(405, "METHOD_NOT_ALLOWED")
        return replace(refusal, headers=(*refusal.headers, _allow(methods)))

    def _match(self, path: str) -> tuple[Mapping[str, Route], str]:
        if path in self._routes:
            return self._routes[path], ""
        head, _, argument = path.rpartition("/")
        return (self._routes.get(f"{head}/:", {}), argument) if argument else ({}, "")

    def _respond(self, request: Request, route: Route) -> HttpResponse:
        try:
            value = route.handler(request)
        except HttpError as error:
            return self._error(error.status, error.text)
        except BaseException as error:  # noqa: BLE001  # nsqd, too, responds when a handler panics
            self._on_error(error)
            return self._error(500, "INTERNAL_ERROR")
        extra = () if route.plain else (NSQ_TYPE,)
        match value:
            case None | "":
                return HttpResponse(200, b"", extra)
            case str():
                return HttpResponse(200, value.encode(), (_TEXT, *extra))
            case _:
                return HttpResponse(200, encoding_json.encode(value), (JSON_TYPE, *extra))

    def _respond_to_unknown(self, request: Request) -> HttpResponse:
        if request.path == "*" and request.method == "OPTIONS":
            return HttpResponse(200, b"")
        if (path := self._fixed(request)) is None:
            return self._error(404, "NOT_FOUND")
        # As Go writes a path.
        path = quote(path, safe="/:@!$&'()*+,;=~", encoding="latin-1")
        location = f"{path}?{request.query_string}" if request.query_string else path
        if request.method != "GET":
            return HttpResponse(307, b"", (("Location", location),))
        body = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'.encode("latin-1")
        return HttpResponse(301, body, (("Location", location), ("Content-Type", "text/html; charset=utf-8")))

    def _fixed(self, request: Request) -> str | None:
        """Return the path that was meant: in another case, with or without its last slash, or without dots.

        Source: httprouter's RedirectTrailingSlash and RedirectFixedPath.
        """
        if request.path == "/" or request.method == "CONNECT":
            return None
        clean = posixpath.normpath(f"/{request.path.lstrip('/')}")
        for path, methods in self._routes.items():
            if request.method in methods:
                if path.rstrip("/").lower() == clean.lower():
                    return path
                head, _, argument = clean.rpartition("/")
                if path.endswith("/:") and argument and path[:-2].lower() == head.lower():
                    return f"{path[:-1]}{argument}"
        return None

    def _error(self, status: int, text: str) -> HttpResponse:
        return HttpResponse(status, encoding_json.encode({"message": text}), (JSON_TYPE, NSQ_TYPE))


def _allow(methods: Iterable[str]) -> tuple[str, str]:
    return "Allow", ", ".join(sorted([*methods, "OPTIONS"]))


def topic_and_channel_names(request: Request) -> tuple[str, str]:
    """Return the topic and the channel of a request.

    Raises:
        HttpError: If the query is malformed, or a name is missing or not valid; first for the topic, as in nsqd.
    """
    topic_name = request.required("topic")
    if not valid_topic_name(topic_name):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    channel_name = request.required("channel")
    if not valid_channel_name(channel_name):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return topic_name, channel_name


# Current paths, each with the old path that release 1.0 removed.
_LEGACY_PATHS = {
    "/pub": "/put",
    "/mpub": "/mput",
    "/topic/tombstone": "/tombstone_topic_producer",
    **{f"/topic/{verb}": f"/{verb}_topic" for verb in ("create", "delete", "empty", "pause", "unpause")},
    **{f"/channel/{verb}": f"/{verb}_channel" for verb in ("create", "delete", "empty", "pause", "unpause")},
}


class _LegacyRouter(Router):
    """HTTP before nsqd and nsqlookupd 1.0: old paths, which take GET and POST, and JSON inside of an envelope.

    Errors and their status are those of 1.3.0. Source: nsq ChangeLog 0.3.0 and 1.0.0; nsqd http.go at its tags; early
    responses to /lookup in the client guide.

    Args:
        with_current: Add the current paths, which have no envelopes, as releases since 0.2.29 do.
    """

    def __init__(
        self,
        routes: dict[str, Mapping[str, Route]],
        on_error: Callable[[BaseException], None],
        *,
        with_current: bool,
    ) -> None:
        known = {_LEGACY_PATHS.get(path, path): _for_get_and_post(path, methods) for path, methods in routes.items()}
        super().__init__(routes | known if with_current else known, on_error)

    def _respond(self, request: Request, route: Route) -> HttpResponse:
        response = super()._respond(request, route)
        status, body = response.status, response.body
        if request.path in _LEGACY_PATHS or (status == 200 and body and JSON_TYPE not in response.headers):
            return response
        text = "OK" if status == 200 else json.loads(body)["message"]
        data = body if body and status == 200 else b"null"
        envelope = b'{"status_code":%d,"status_txt":%s,"data":%s}' % (status, encoding_json.encode(text), data)
        return HttpResponse(status, envelope, (JSON_TYPE, NSQ_TYPE))


def make_router(
    routes: dict[str, Mapping[str, Route]], on_error: Callable[[BaseException], None], options: DaemonOptions
) -> Router:
    """Make the router of the emulated release."""
    if options.since(1, 0, 0):
        return Router(routes, on_error)
    return _LegacyRouter(routes, on_error, with_current=options.since(0, 2, 29))


def _for_get_and_post(path: str, methods: Mapping[str, Route]) -> Mapping[str, Route]:
    return dict.fromkeys(("GET", "POST"), *methods.values()) if path in _LEGACY_PATHS else methods
