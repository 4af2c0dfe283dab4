"""HTTP API of nsqd and nsqlookupd: routes, error bodies and redirects, as a WSGI function around handlers.

Pure. A handler takes a Request and returns text, a value to be encoded as JSON, or None for an empty body. Source: nsq
internal/http_api; httprouter, which both programs use.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
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
    """One HTTP request."""

    def __init__(self, environ: Mapping[str, Any]) -> None:  # Any: WSGI's environ holds anything
        self.method: str = environ["REQUEST_METHOD"]
        self.path: str = environ["PATH_INFO"]
        self.query_string: str = environ.get("QUERY_STRING", "")
        self.argument = ""
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
        return data


def _unquote(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ").encode("latin-1")).decode("latin-1")


@dataclass(frozen=True, slots=True)
class Route:
    """A handler of requests. If ``plain``, its responses have no header X-Nsq-Content-Type, except errors."""

    handler: Callable[[Request], object]
    plain: bool = False


class Router:
    """The WSGI function of a daemon.

    Args:
        routes: Routes by path, then by method. The path ``/a/:`` matches ``/a/x``, and x is the request's argument.
        on_error: Called if a handler raises another exception than HttpError, which is a bug of the emulator.
    """

    def __init__(self, routes: Mapping[str, Mapping[str, Route]], on_error: Callable[[BaseException], None]) -> None:
        self._routes = routes
        self._on_error = on_error

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Respond to a request. Source: PEP 3333."""
        request = Request(environ)
        status, headers, body = self._answer(request)
        headers.append(("Content-Length", str(len(body))))
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [] if request.method == "HEAD" else [body]

    def _answer(self, request: Request) -> tuple[int, Headers, bytes]:
        if request.path == "*":
            # ``OPTIONS *`` asks about the server, not about a path. Source: net/http globalOptionsHandler; httprouter.
            known = {method for methods in self._routes.values() for method in methods}
            return (200, [], b"") if request.method == "OPTIONS" else _not_allowed(known)
        methods, request.argument = self._match(request.path)
        route = methods.get(request.method)
        if route is not None:
            return self._respond(request, route)
        if (path := self._correct_path(request)) is not None:
            return _redirect(request, path)
        if not methods:
            return _error(HttpError(404, "NOT_FOUND"))
        return (200, [_allow(methods)], b"") if request.method == "OPTIONS" else _not_allowed(methods)

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
        except Exception as error:  # noqa: BLE001  # nsqd, too, responds when a handler panics
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

    def _correct_path(self, request: Request) -> str | None:
        """Find a path that has this method and differs from the request's only in slashes, ``.``, ``..`` or case."""
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


def _allow(methods: Iterable[str]) -> tuple[str, str]:
    return "Allow", ", ".join(sorted([*methods, "OPTIONS"]))


def _not_allowed(methods: Iterable[str]) -> tuple[int, Headers, bytes]:
    status, headers, body = _error(HttpError(405, "METHOD_NOT_ALLOWED"))
    return status, [*headers, _allow(methods)], body


def _redirect(request: Request, path: str) -> tuple[int, Headers, bytes]:
    location = f"{path}?{request.query_string}" if request.query_string else path
    if request.method != "GET":
        return 307, [("Location", location)], b""
    body = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'
    return 301, [("Location", location), ("Content-Type", "text/html; charset=utf-8")], body.encode("latin-1")


def profiling_routes(index: str) -> dict[str, dict[str, Route]]:
    """Make routes for the paths of Go's profiles. Each of them responds with the same fixed text.

    Args:
        index: Path of the index. It is not the same in nsqd and nsqlookupd.
    """
    route = Route(lambda request: "no Go program, no profiles\n", plain=True)
    names = ("cmdline", "symbol", "profile", "heap", "goroutine", "block", "threadcreate")
    routes = {index: {"GET": route}} | {f"/debug/pprof/{name}": {"GET": route} for name in names}
    return routes | {"/debug/pprof/symbol": {"GET": route, "POST": route}}


def topic_and_channel_names(request: Request, release: Release = LATEST) -> tuple[str, str]:
    """Return the topic and the channel of a request.

    Raises:
        HttpError: If the query is malformed, or a name is missing or not valid; first for the topic, as in nsqd.
    """
    topic_name = request.required("topic")
    if not release.is_topic_name(topic_name):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    channel_name = request.required("channel")
    if not release.is_channel_name(channel_name):
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
# Of these current paths, only two have envelopes in old releases. The others never had envelopes.
_PUBLISHING = ("/pub", "/mpub")


class LegacyRouter(Router):
    """HTTP before nsqd and nsqlookupd 1.0: old paths, which take GET and POST, and JSON inside of an envelope.

    Errors and their status are those of 1.3.0. Source: nsq ChangeLog 0.3.0 and 1.0.0; nsqd http.go at its tags; early
    responses to /lookup in the client guide.

    Args:
        release: Release whose current paths are added to the old paths: /pub and /mpub since 0.2.22; the others, which
            have no envelope, since 0.2.29. None: only the old paths.
    """

    def __init__(
        self,
        routes: Mapping[str, Mapping[str, Route]],
        on_error: Callable[[BaseException], None],
        release: Release | None = None,
    ) -> None:
        known = {_LEGACY_PATHS.get(path, path): _for_get_and_post(path, methods) for path, methods in routes.items()}
        if release is not None and release.since(0, 2, 22):
            known |= {path: _for_get_and_post(path, routes[path]) for path in _PUBLISHING}
        if release is not None and release.since(0, 2, 29):
            known |= {path: methods for path, methods in routes.items() if path not in known}
        super().__init__(known, on_error)

    def _respond(self, request: Request, route: Route) -> tuple[int, Headers, bytes]:
        status, headers, body = super()._respond(request, route)
        if request.path in _LEGACY_PATHS and request.path not in _PUBLISHING:
            return status, headers, body
        if status == 200 and body and JSON_TYPE not in headers:
            return status, headers, body
        text = "OK" if status == 200 else json.loads(body)["message"]
        data = body if body and status == 200 else b"null"
        envelope = b'{"status_code":%d,"status_txt":%s,"data":%s}' % (status, encoding_json.encode(text), data)
        return status, [JSON_TYPE, NSQ_TYPE], envelope


def _for_get_and_post(path: str, methods: Mapping[str, Route]) -> Mapping[str, Route]:
    return dict.fromkeys(("GET", "POST"), *methods.values()) if path in _LEGACY_PATHS else methods
