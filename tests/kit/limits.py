"""The limit of open files, which may be low."""

from __future__ import annotations

import resource

import pytest


def allow_open_files(count: int) -> int:
    """Raise the limit of open files, if it is smaller, as far as this user may; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return max(soft, count)
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (count, hard if hard == resource.RLIM_INFINITY else max(hard, count))
        )
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return count


def need_open_files(count: int) -> None:
    """Allow so many open files; skip the test if this user may not."""
    if (limit := allow_open_files(count)) < count:
        pytest.skip(f"{count:,} open files are needed, and {limit:,} are allowed: ulimit -n")
