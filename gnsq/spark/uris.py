"""Locations of spools and checkpoints as paths or URIs: without secrets, and joined. Pure."""

from __future__ import annotations

import re

__all__ = ["join_uri", "redact_uri"]

# Greedy up to the last @: a secret that is not percent-encoded may have any character.
_CREDENTIALS = re.compile(r"^([a-zA-Z][\w+.-]*://).*:.*@")
# S3 has half of a secret before the @. abfs: has the container there, and hdfs: a user name.
_USER = re.compile(r"^(s3[an]?://).*@", re.IGNORECASE)
_URI = re.compile(r"^[a-zA-Z][\w+.-]*://")


def redact_uri(location: str) -> str:
    """Remove user, password and query from a URI, which may be secret; a path stays as it is."""
    if not _URI.match(location):
        return location
    return _USER.sub(r"\1***@", _CREDENTIALS.sub(r"\1***@", location)).partition("?")[0]


def join_uri(location: str, path: str) -> str:
    """Append a relative path to a path or URI. The query of a URI stays at its end."""
    if not _URI.match(location):
        return f"{location}/{path}"
    base, mark, query = location.partition("?")
    return f"{base.rstrip('/')}/{path}{mark}{query}"
