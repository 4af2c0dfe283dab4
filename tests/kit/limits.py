"""Limits of this process: of open files, which may be low, and of the size of files."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

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


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as if the disk was full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
