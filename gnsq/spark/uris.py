"""Removes secrets from locations of spools and checkpoints (paths or URIs), and appends paths to locations. Pure."""

from __future__ import annotations

import re

__all__ = ["is_object_store", "join_uri", "redact_uri"]

# Match greedily up to the last @: a secret that is not percent-encoded may contain an @.
_CREDENTIALS = re.compile(r"^([a-zA-Z][\w+.-]*://)[^:]*:.*@")
# In a URI of S3, the text before the @ is a key even without a password. In abfs it is the container, in hdfs a user.
_USER = re.compile(r"^(s3[an]?://).*@", re.IGNORECASE)
_URI = re.compile(r"^[a-zA-Z][\w+.-]*://")
_OBJECT_STORE = re.compile(r"(s3|gs|gcs|abfss?)://", re.IGNORECASE)


def redact_uri(location: str) -> str:
    """Replace user and password, or the key of S3, by ***, and remove the query of a URI. Return a path unchanged."""
    if not _URI.match(location):
        return location
    return _USER.sub(r"\1***@", _CREDENTIALS.sub(r"\1***@", location)).partition("?")[0]


def is_object_store(location: str) -> bool:
    """Return True if a location is a URI of an object store, where each file costs a request."""
    return _OBJECT_STORE.match(location) is not None


def join_uri(location: str, path: str) -> str:
    """Append a relative path to a path or URI. The query of a URI stays at its end."""
    if not _URI.match(location):
        return f"{location}/{path}"
    base, mark, query = location.partition("?")
    return f"{base.rstrip('/')}/{path}{mark}{query}"
