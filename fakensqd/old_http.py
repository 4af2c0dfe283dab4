"""HTTP as it was before nsqd and nsqlookupd 1.0: other names, and JSON inside of an envelope.

Pure. Which errors there are, and their status, is as in 1.3.0. Source: nsq ChangeLog 0.3.0 and 1.0.0; the client
guide's early answers to /lookup, in status_code, status_txt and data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from fakensqd import gojson
from fakensqd.http_api import JSON_TYPE, NSQ_TYPE, Headers, Request, Route, Router

__all__ = ["OldRouter"]

# By the names of today, which were not known then.
_OLD_NAMES = {
    "/pub": "/put",
    "/mpub": "/mput",
    "/topic/tombstone": "/tombstone_topic_producer",
    **{f"/topic/{verb}": f"/{verb}_topic" for verb in ("create", "delete", "empty", "pause", "unpause")},
    **{f"/channel/{verb}": f"/{verb}_channel" for verb in ("create", "delete", "empty", "pause", "unpause")},
}


class OldRouter(Router):
    """A Router with the old names, each for GET and POST, and with envelopes."""

    def __init__(self, routes: Mapping[str, Mapping[str, Route]], on_error: Callable[[BaseException], None]) -> None:
        super().__init__(
            {_OLD_NAMES.get(path, path): _any(path, methods) for path, methods in routes.items()}, on_error
        )

    def _respond(self, request: Request, route: Route) -> tuple[int, Headers, bytes]:
        status, headers, body = super()._respond(request, route)
        if status == 200 and body and JSON_TYPE not in headers:
            return status, headers, body
        text = "OK" if status == 200 else json.loads(body)["message"]
        data = body if body and status == 200 else b"null"
        envelope = b'{"status_code":%d,"status_txt":%s,"data":%s}' % (status, gojson.encode(text), data)
        return status, [JSON_TYPE, NSQ_TYPE], envelope


def _any(path: str, methods: Mapping[str, Route]) -> Mapping[str, Route]:
    return dict.fromkeys(("GET", "POST"), *methods.values()) if path in _OLD_NAMES else methods
