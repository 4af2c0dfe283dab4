"""Which hours of the archive are closed, and which of their files to merge. PURE: names in, names out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

__all__ = ["closed_hours", "mergeable"]

_HOUR = dt.timedelta(hours=1)


def closed_hours(directories: Iterable[str], watermark_delay: float) -> list[str]:
    """List the directories ``hour=2026-01-01T10`` into which only late events still come.

    Args:
        directories: Names; others are left out.
        watermark_delay: Seconds; an hour is closed when it ended so long before the latest hour began.
    """
    hours = {name: hour for name in directories if (hour := _hour_of(name)) is not None}
    if not hours:
        return []
    latest, delay = max(hours.values()), dt.timedelta(seconds=watermark_delay)
    return sorted(name for name, hour in hours.items() if latest - hour >= _HOUR + delay)


def mergeable(files: Iterable[tuple[str, int | None]], committed: int, least: int) -> list[str]:
    """List the files to merge into one: all, but those of a batch that may run again and would write them again.

    Args:
        files: (name, batch that wrote it, or None for a merged one).
        committed: Last batch that is in the query's commit log.
        least: Fewer are not worth it.
    """
    names = sorted(name for name, batch in files if batch is None or batch <= committed)
    return names if len(names) >= max(least, 2) else []


def _hour_of(directory: str) -> dt.datetime | None:
    try:
        return dt.datetime.strptime(directory, "hour=%Y-%m-%dT%H")
    except ValueError:
        return None
