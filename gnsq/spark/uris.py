"""Where a spool or a checkpoint is, as a text for people. PURE."""

from __future__ import annotations

import re

__all__ = ["join_uri", "redact_uri"]

# Greedy up to the last @: a secret that was not percent-encoded may hold anything.
_CREDENTIALS = re.compile(r"^([a-zA-Z][\w+.-]*://).*:.*@")
# Of S3 even a user alone is half of a secret; abfs: has its container there, and hdfs: a name.
_USER = re.compile(r"^(s3[an]?://).*@", re.IGNORECASE)
_URI = re.compile(r"^[a-zA-Z][\w+.-]*://")


def redact_uri(location: str) -> str:
    """Leave out what may be secret in a URI: user and password, and the query; a plain path stays as it is."""
    if not _URI.match(location):
        return location
    return _USER.sub(r"\1***@", _CREDENTIALS.sub(r"\1***@", location)).partition("?")[0]


def join_uri(location: str, path: str) -> str:
    """Name what is below a directory, a path or a URI; a URI's query stays at its end."""
    if not _URI.match(location):
        return f"{location}/{path}"
    base, mark, query = location.partition("?")
    return f"{base.rstrip('/')}/{path}{mark}{query}"
