"""HTTP as it was before nsqd and nsqlookupd 1.0: other names, and JSON inside of an envelope.

Pure. Which errors there are, and their status, is as in 1.3.0. Source: nsq ChangeLog 0.3.0 and 1.0.0; nsqd http.go at
its tags; the client guide's early answers to /lookup, in status_code, status_txt and data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from fakensqd import gojson
from fakensqd.http_api import JSON_TYPE, NSQ_TYPE, Headers, Request, Route, Router
from fakensqd.options import Release

__all__ = ["OldRouter"]

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


class OldRouter(Router):
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
        envelope = b'{"status_code":%d,"status_txt":%s,"data":%s}' % (status, gojson.encode(text), data)
        return status, [JSON_TYPE, NSQ_TYPE], envelope


def _any(path: str, methods: Mapping[str, Route]) -> Mapping[str, Route]:
    return dict.fromkeys(("GET", "POST"), *methods.values()) if path in _OLD_NAMES else methods
