"""The auth server of the recorded sessions: its answer depends on the secret, ``RUN:NAME`` or ``RUN:NAME:REST``.

Source: tests/vectors/transcripts/README.md, "Auth server".
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import gevent

from fakensqd.auth_server import AuthAnswer, AuthQuery


def grant(**fields: object) -> dict[str, object]:
    return {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]} | fields


def document(*grants: dict[str, object], **fields: object) -> dict[str, Any]:
    plain = {"ttl": 3600, "authorizations": list(grants), "identity": "me", "identity_url": "http://example/me"}
    return plain | fields


ANSWERS: dict[str, dict[str, Any] | bytes] = {
    "all": document(grant()),
    "two-grants": document(grant(topic="_a$"), grant(topic="_b$")),
    "no-identity": {"ttl": 60, "authorizations": [grant()]},
    "extra-keys": document(grant(), more=[1, 2]),
    "publish": document(grant(permissions=["publish"])),
    "subscribe": document(grant(permissions=["subscribe"])),
    "no-permission": document(grant(permissions=[])),
    "topic": document(grant(topic="_good$")),
    "topic-substring": document(grant(topic="oo")),
    "channel": document(grant(channels=["^good$"])),
    "channel-list": document(grant(channels=["^one$", "^two$"])),
    "no-channels": document(grant(channels=[])),
    "empty": document(),
    "no-grants-key": {"ttl": 60},
    "ttl-0": document(grant(), ttl=0),
    "ttl-negative": document(grant(), ttl=-1),
    "ttl-text": document(grant(), ttl="60"),
    "no-ttl": {"authorizations": [grant()]},
    "odd-permission": document(grant(permissions=["publish", "admin"])),
    "bad-topic-regex": document(grant(topic="(")),
    "bad-channel-regex": document(grant(channels=["("])),
    "not-json": b"nope",
}
SECOND_ANSWERS = {"denied": document(), "error": 500, "fine": document(grant())}


class RecordedAnswers:
    """Returns the answers of the recorded server; for some secrets the second answer differs."""

    def __init__(self) -> None:
        self._queries: Counter[str] = Counter()

    def __call__(self, query: AuthQuery) -> AuthAnswer:
        _, _, name = query.secret.partition(":")
        name, _, rest = name.partition(":")
        self._queries[query.secret] += 1
        if name == "echo":
            fields = [f"{key}={value}" for key, value in sorted(query.parameters.items()) if key != "secret"]
            return document(grant(), identity=",".join(fields), identity_url=query.accept)
        if name == "hex":
            return document(grant(), identity=rest.encode("utf-8", "surrogateescape").hex())
        if name.startswith("short-then-"):
            if self._queries[query.secret] == 1:
                return document(grant(), ttl=1)
            return SECOND_ANSWERS[name.removeprefix("short-then-")]
        if name == "slow":
            gevent.sleep(7)
            return document(grant())
        if name.startswith("status-"):
            return int(name.removeprefix("status-"))
        return ANSWERS.get(name)
