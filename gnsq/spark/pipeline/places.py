"""Places of a job: paths and URIs that settings name, and what is at or below them. Pure, except for symbolic links."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from urllib.parse import urlsplit

from gnsq.spark.uris import join_uri, redact_uri

__all__ = ["below", "check_apart", "check_object_store", "is_uri", "resolved"]

_OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss")


def is_uri(place: str) -> bool:
    """Return True for a URI, False for a path."""
    return ":/" in place


def below(base: str, path: str) -> str:
    """Return the place at a relative path below a base."""
    return join_uri(base, path) if is_uri(base) else str(Path(base, path).absolute())


def resolved(place: str) -> PurePath:
    """Return a path by which two places can be compared."""
    # Drop the query of a URI: it has options of the connection, and is not part of the place.
    return PurePath(place.partition("?")[0]) if is_uri(place) else Path(place).resolve()


def check_object_store(setting: str, location: str) -> None:
    """Check that a URI is one of an object store.

    Raises:
        ValueError: If it is not.
    """
    if urlsplit(location).scheme not in _OBJECT_STORES:
        raise ValueError(
            f"setting {setting} {redact_uri(location)!r} is not an object store ({', '.join(_OBJECT_STORES)}): give "
            "one, or a local or mounted directory as a path"
        )


def check_apart(places: Mapping[str, str]) -> None:
    """Check that no place is at or in another one, which would use its files.

    Args:
        places: What is there -> the place.

    Raises:
        ValueError: If one is.
    """
    found = {name: resolved(place) for name, place in places.items()}
    for name, place in found.items():
        for other, outer in found.items():
            if name != other and place.is_relative_to(outer):
                raise ValueError(
                    f"directories overlap: {name} ({redact_uri(places[name])}) is in {other} "
                    f"({redact_uri(places[other])}): give output, work, spool and checkpoint places of their own"
                )
