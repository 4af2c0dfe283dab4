"""Decodes and checks the response of an auth server, and decides whether its grants allow an action.

Pure. The HTTP client is in auth_client.py. Source: nsq internal/auth/authorizations.go.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from fakensqd.golang.encoding_json import INT, STRING, FieldType, decode
from fakensqd.golang.text import int64

__all__ = ["Authorization", "Grant", "decode_authorization"]

_PERMISSIONS = frozenset(["subscribe", "publish"])
_STRINGS = FieldType(list, items=STRING)
_GRANT = FieldType(dict, fields={"topic": STRING, "channels": _STRINGS, "permissions": _STRINGS})
_FIELDS = {
    "ttl": INT,
    "authorizations": FieldType(list, items=_GRANT),
    "identity": STRING,
    "identity_url": STRING,
}


@dataclass(frozen=True, slots=True)
class Grant:
    """Permissions. Topic and channels are regular expressions, not anchored, that mean the same in Go and in Python."""

    topic: str = ".*"
    channels: tuple[str, ...] = (".*",)
    permissions: tuple[str, ...] = ("subscribe", "publish")

    def check(self) -> None:
        """Check the grant as nsqd does.

        Raises:
            ValueError: If a permission is unknown, or a pattern does not compile in Python.
        """
        for permission in self.permissions:
            if permission not in _PERMISSIONS:
                raise ValueError(f"unknown permission {permission}")
        for pattern in (self.topic, *self.channels):
            _compile(pattern)

    def allows(self, topic: str, channel: str) -> bool:
        """Return True if the grant lets a client subscribe to the channel or, if channel is "", publish to topic."""
        return (
            ("subscribe" if channel else "publish") in self.permissions
            and _compile(self.topic).search(topic) is not None
            and any(_compile(pattern).search(channel) for pattern in self.channels)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """A valid response of an auth server. The ttl is in seconds; if it overflows in Go, it may be negative."""

    ttl: float
    identity: str = ""
    identity_url: str = ""
    grants: tuple[Grant, ...] = ()

    def allows(self, topic: str, channel: str) -> bool:
        """Return True if Grant.allows() is true for any of the grants."""
        return any(grant.allows(topic, channel) for grant in self.grants)


def decode_authorization(body: bytes) -> Authorization:
    """Decode the body of an auth server's response.

    Raises:
        ValueError: If nsqd would refuse the body.
    """
    values: dict[str, Any] = decode(body, _FIELDS)  # Any: decode() has checked each type
    grants = tuple(
        Grant(grant.get("topic", ""), tuple(grant.get("channels", ())), tuple(grant.get("permissions", ())))
        for grant in values.get("authorizations", ())
    )
    for grant in grants:
        grant.check()
    ttl = values.get("ttl", 0)
    if ttl <= 0:
        raise ValueError(f"invalid TTL {ttl} (must be >0)")
    return Authorization(
        ttl=int64(ttl * 10**9) / 1e9,
        identity=values.get("identity", ""),
        identity_url=values.get("identity_url", ""),
        grants=grants,
    )


@functools.lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"pattern {pattern!r} does not compile: {error}") from error
