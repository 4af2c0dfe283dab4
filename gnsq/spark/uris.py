"""Removes secrets from locations of spools and checkpoints (paths or URIs), and appends paths to locations. Pure."""

from __future__ import annotations

import re

__all__ = ["join_uri", "redact_uri"]

# Match greedily up to the last @: a secret that is not percent-encoded may contain an @.
_CREDENTIALS = re.compile(r"^([a-zA-Z][\w+.-]*://).*:.*@")
# Only in URIs of S3 is the text before the @ a part of a secret: in abfs it is the container, in hdfs a user name.
_USER = re.compile(r"^(s3[an]?://).*@", re.IGNORECASE)
_URI = re.compile(r"^[a-zA-Z][\w+.-]*://")


def redact_uri(location: str) -> str:
    """Remove the credentials and the query of a URI, since they may be secret. A path is returned unchanged."""
    if not _URI.match(location):
        return location
    return _USER.sub(r"\1***@", _CREDENTIALS.sub(r"\1***@", location)).partition("?")[0]


def join_uri(location: str, path: str) -> str:
    """Append a relative path to a path or URI. The query of a URI stays at its end."""
    if not _URI.match(location):
        return f"{location}/{path}"
    base, mark, query = location.partition("?")
    return f"{base.rstrip('/')}/{path}{mark}{query}"
