"""The lock of a job's life: one job at a time works in a work directory.

Released by the death of the process, however it dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from gnsq.localfiles import open_or_create
from gnsq.spark.errors import JobFailed

__all__ = ["JobLock", "running_job"]

_NAME = "job.json"
# Seconds for a job that was told to stop just now.
PATIENCE = 5.0


class JobLock:
    """Use as a context manager.

    Args:
        work: Exists and can be written.

    Raises:
        JobFailed: If a job works there.
    """

    def __init__(self, work: Path, patience: float = PATIENCE) -> None:
        # Open as long as it is locked.
        self._file: IO[str] = open(open_or_create(work / _NAME), "a+", encoding="utf-8")  # noqa: SIM115
        if not _wait_for_lock(self._file, patience):
            self._file.close()
            raise JobFailed(
                f"work {work} is in use by another job, process {running_job(work)}: stop that one, or give this "
                "one directories and channels of its own"
            )
        _write(self._file, {"pid": os.getpid()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


def running_job(work: Path) -> int | None:
    """Say which process works there; None if none does. Holds up nobody."""
    try:
        with open(work / _NAME, encoding="utf-8") as file:
            # Shared and let go at once: a job that starts now tries again.
            if _try_lock(file, fcntl.LOCK_SH):
                return None
            return int(json.load(file)["pid"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return 0


def _write(file: IO[str], content: Mapping[str, object]) -> None:
    file.truncate(0)
    json.dump(content, file)
    file.flush()


def _wait_for_lock(file: IO[str], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not _try_lock(file, fcntl.LOCK_EX):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def _try_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
