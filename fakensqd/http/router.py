"""HTTP as nsqd and nsqlookupd speak it: routes, error bodies, redirects; a WSGI function around handlers.

Pure. Handlers take a Request and return text, bytes, something to be written as JSON, or None for an empty answer.
Source: nsq internal/http_api; httprouter, which both use.

HTTP as it was before nsqd and nsqlookupd 1.0: other names, and JSON inside of an envelope.

Pure. Which errors there are, and their status, is as in 1.3.0. Source: nsq ChangeLog 0.3.0 and 1.0.0; nsqd http.go at
its tags; the client guide's early answers to /lookup, in status_code, status_txt and data.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from fakensqd.golang import encoding_json
from fakensqd.options import LATEST, Release

__all__ = [
    "JSON_TYPE",
    "NSQ_TYPE",
    "Headers",
    "HttpError",
    "LegacyRouter",
    "Request",
    "Route",
    "Router",
    "profiling_routes",
    "topic_and_channel_names",
]


Headers = list[tuple[str, str]]

_REASONS = {
    200: "200 OK",
    301: "301 Moved Permanently",
    307: "307 Temporary Redirect",
    400: "400 Bad Request",
    403: "403 Forbidden",
    404: "404 Not Found",
    405: "405 Method Not Allowed",
    413: "413 Request Entity Too Large",
    500: "500 Internal Server Error",
    503: "503 Service Unavailable",
}
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
JSON_TYPE = ("Content-Type", "application/json; charset=utf-8")
# As Go writes it.
NSQ_TYPE = ("X-Nsq-Content-Type", "nsq; version=1.0")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")


class HttpError(Exception):
    """An answer that is not 200; the text goes into its JSON body."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Request:
    """One request, as handlers see it."""

    def __init__(self, environ: Mapping[str, Any]) -> None:  # Any: WSGI's environ holds anything
        self.method: str = environ["REQUEST_METHOD"]
        self.path: str = environ["PATH_INFO"]
        self.query_string: str = environ.get("QUERY_STRING", "")
        self.argument = ""
        self._environ = environ

    @cached_property
    def query(self) -> dict[str, str]:
        """The parameters, the first of equal ones.

        Raises:
            HttpError: If the query does not parse.
        """
        parameters: dict[str, str] = {}
        for pair in filter(None, self.query_string.split("&")):
            if ";" in pair or _BAD_ESCAPE.search(pair):
                raise HttpError(400, "INVALID_REQUEST")
            key, _, value = pair.partition("=")
            parameters.setdefault(_unquoted(key), _unquoted(value))
        return parameters

    def required(self, name: str) -> str:
        """Give back a parameter that must be there."""
        if name not in self.query:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
        return self.query[name]

    @property
    def content_length(self) -> int:
        """What the client announces; 0 if it does not."""
        return int(self._environ.get("CONTENT_LENGTH") or 0)

    def read(self, limit: int) -> bytes:
        """Read the body, up to limit bytes of it.

        Raises:
            HttpError: If the client breaks off, or its chunks are none.
        """
        try:
            data: bytes = self._environ["wsgi.input"].read(limit)
        except OSError:
            raise HttpError(500, "INTERNAL_ERROR") from None
        return data


def _unquoted(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ").encode("latin-1")).decode("latin-1")


@dataclass(frozen=True, slots=True)
class Route:
    """A handler, and whether its answers go without the X-NSQ header."""

    handler: Callable[[Request], object]
    plain: bool = False


class Router:
    """The WSGI function of a daemon.

    Args:
        routes: By path, then by method. A path that ends in ``/:`` takes one more word as the request's argument.
        on_error: Called with an exception that no handler should have raised.
    """

    def __init__(self, routes: Mapping[str, Mapping[str, Route]], on_error: Callable[[BaseException], None]) -> None:
        self._routes = routes
        self._on_error = on_error

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request. Source: PEP 3333."""
        request = Request(environ)
        status, headers, body = self._answer(request)
        headers.append(("Content-Length", str(len(body))))
        start_response(_REASONS[status], headers)
        return [] if request.method == "HEAD" else [body]

    def _answer(self, request: Request) -> tuple[int, Headers, bytes]:
        if request.path == "*":
            return self._answer_for_all(request)
        methods, request.argument = self._match(request.path)
        route = methods.get(request.method)
        if route is not None:
            return self._respond(request, route)
        if (path := self._right_path(request)) is not None:
            return _redirect(request, path)
        if not methods:
            return _error(HttpError(404, "NOT_FOUND"))
        allow = ("Allow", ", ".join(sorted([*methods, "OPTIONS"])))
        if request.method == "OPTIONS":
            return 200, [allow], b""
        status, headers, body = _error(HttpError(405, "METHOD_NOT_ALLOWED"))
        return status, [*headers, allow], body

    def _answer_for_all(self, request: Request) -> tuple[int, Headers, bytes]:
        """Answer what is asked of the server, not of a path. Source: net/http globalOptionsHandler; httprouter."""
        if request.method == "OPTIONS":
            return 200, [], b""
        methods = {method for methods in self._routes.values() for method in methods}
        status, headers, body = _error(HttpError(405, "METHOD_NOT_ALLOWED"))
        return status, [*headers, ("Allow", ", ".join(sorted([*methods, "OPTIONS"])))], body

    def _match(self, path: str) -> tuple[Mapping[str, Route], str]:
        if path in self._routes:
            return self._routes[path], ""
        head, _, argument = path.rpartition("/")
        return (self._routes.get(f"{head}/:", {}), argument) if argument else ({}, "")

    def _respond(self, request: Request, route: Route) -> tuple[int, Headers, bytes]:
        try:
            value = route.handler(request)
        except HttpError as error:
            return _error(error)
        except Exception as error:  # noqa: BLE001  # the top of a request: recorded, and answered as nsqd would
            self._on_error(error)
            return _error(HttpError(500, "INTERNAL_ERROR"))
        extra = [] if route.plain else [NSQ_TYPE]
        match value:
            case None | "":
                return 200, extra, b""
            case str():
                return 200, [_TEXT, *extra], value.encode()
            case _:
                return 200, [JSON_TYPE, *extra], encoding_json.encode(value)

    def _right_path(self, request: Request) -> str | None:
        """Find the path that was meant: without a trailing slash, double slashes, dots, in the right case."""
        cleaned = posixpath.normpath(re.sub("/+", "/", request.path))
        head, _, argument = cleaned.rpartition("/")
        for path, methods in self._routes.items():
            if request.method in methods:
                if path.lower() == cleaned.lower():
                    return path
                if argument and path.lower() == f"{head}/:".lower():
                    return path[:-1] + quote(argument.encode("latin-1"))
        return None


def _error(error: HttpError) -> tuple[int, Headers, bytes]:
    return error.status, [JSON_TYPE, NSQ_TYPE], encoding_json.encode({"message": error.text})


def _redirect(request: Request, path: str) -> tuple[int, Headers, bytes]:
    location = f"{path}?{request.query_string}" if request.query_string else path
    if request.method != "GET":
        return 307, [("Location", location)], b""
    body = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'
    return 301, [("Location", location), ("Content-Type", "text/html; charset=utf-8")], body.encode("latin-1")


def profiling_routes(index: str) -> dict[str, dict[str, Route]]:
    """Give the paths under which Go shows its profiles, of which there are none here.

    Args:
        index: The first of them, which the two programs spell in their own ways.
    """
    route = Route(lambda request: "no Go program, no profiles\n", plain=True)
    names = ("cmdline", "symbol", "profile", "heap", "goroutine", "block", "threadcreate")
    routes = {index: {"GET": route}} | {f"/debug/pprof/{name}": {"GET": route} for name in names}
    return routes | {"/debug/pprof/symbol": {"GET": route, "POST": route}}


def topic_and_channel_names(request: Request, release: Release = LATEST) -> tuple[str, str]:
    """Give back both names of a request that must have them, checked in nsqd's order."""
    topic_name = request.required("topic")
    if not release.is_topic_name(topic_name):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    channel_name = request.required("channel")
    if not release.is_channel_name(channel_name):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return topic_name, channel_name


# By the names of today, which the oldest releases did not know.
_OLD_NAMES = {
    "/pub": "/put",
    "/mpub": "/mput",
    "/topic/tombstone": "/tombstone_topic_producer",
    **{f"/topic/{verb}": f"/{verb}_topic" for verb in ("create", "delete", "empty", "pause", "unpause")},
    **{f"/channel/{verb}": f"/{verb}_channel" for verb in ("create", "delete", "empty", "pause", "unpause")},
}
# The names of today that came first, and with envelopes; the others came without.
_PUBLISHING = ("/pub", "/mpub")


class LegacyRouter(Router):
    """A Router with the old names, each for GET and POST, and with envelopes.

    Args:
        release: Which of the names of today are known as well: /pub and /mpub since 0.2.22, the others since 0.2.29,
            answered without an envelope. None: none of them.
    """

    def __init__(
        self,
        routes: Mapping[str, Mapping[str, Route]],
        on_error: Callable[[BaseException], None],
        release: Release | None = None,
    ) -> None:
        known = {_OLD_NAMES.get(path, path): _any(path, methods) for path, methods in routes.items()}
        if release is not None and release.since(0, 2, 22):
            known |= {path: _any(path, routes[path]) for path in _PUBLISHING}
        if release is not None and release.since(0, 2, 29):
            known |= {path: methods for path, methods in routes.items() if path not in known}
        super().__init__(known, on_error)

    def _respond(self, request: Request, route: Route) -> tuple[int, Headers, bytes]:
        status, headers, body = super()._respond(request, route)
        if request.path in _OLD_NAMES and request.path not in _PUBLISHING:
            return status, headers, body
        if status == 200 and body and JSON_TYPE not in headers:
            return status, headers, body
        text = "OK" if status == 200 else json.loads(body)["message"]
        data = body if body and status == 200 else b"null"
        envelope = b'{"status_code":%d,"status_txt":%s,"data":%s}' % (status, encoding_json.encode(text), data)
        return status, [JSON_TYPE, NSQ_TYPE], envelope


def _any(path: str, methods: Mapping[str, Route]) -> Mapping[str, Route]:
    return dict.fromkeys(("GET", "POST"), *methods.values()) if path in _OLD_NAMES else methods
