"""Locks of a job's life: one job at a time works in a work directory, and only its own job writes into an output.

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

from gnsq.spark.errors import JobFailed

__all__ = ["JobLock", "OutputLock", "running_job"]

_NAME = "job.json"
_OWNER = "owner.json"
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
        self._file: IO[str] = open(work / _NAME, "a+", encoding="utf-8")  # noqa: SIM115  # open as long as it is locked
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


class OutputLock:
    """The claim on an output directory: files there are named by batch, so a second job would replace them. Use as a
    context manager.

    Args:
        output: Exists and can be written.
        claim: What tells this job from others: its work directory, its topic.

    Raises:
        JobFailed: If it is another job's.
    """

    def __init__(self, output: Path, claim: Mapping[str, str], patience: float = PATIENCE) -> None:
        self._file: IO[str] = open(output / _OWNER, "a+", encoding="utf-8")  # noqa: SIM115  # as above
        locked = _wait_for_lock(self._file, patience)
        self._file.seek(0)
        text = self._file.read()
        owner = _decoded(text)
        if not locked or (text and owner != claim):
            self._file.close()
            raise JobFailed(
                f"output {output} belongs to another job ({text or 'it runs now'}): give this one an output directory "
                f"of its own; if that job is gone for good or has moved, delete {output / _OWNER}"
            )
        _write(self._file, claim)
        os.fsync(self._file.fileno())

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


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


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
