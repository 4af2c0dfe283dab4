"""Locks of a job's life: one job at a time works in a work directory, and only its own job writes into an output.

Released by the death of the process, however it dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from gnsq.localfiles import open_or_create
from gnsq.spark.errors import JobFailed
from gnsq.spark.spool.storage import LocalStore, open_store
from gnsq.spark.uris import redact_uri

__all__ = ["JobLock", "OutputClaim", "OutputLock", "job_id", "running_job"]

_NAME = "job.json"
_OWNER = "owner.json"
_ID = "id"
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
        # As above.
        self._file: IO[str] = open(open_or_create(output / _OWNER), "a+", encoding="utf-8")  # noqa: SIM115
        locked = _wait_for_lock(self._file, patience)
        self._file.seek(0)
        text = self._file.read()
        owner = _decoded(text)
        if not locked or (text and owner != claim):
            self._file.close()
            raise JobFailed(_taken(str(output), text or "it runs now"))
        _write(self._file, claim)
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


class OutputClaim:
    """OutputLock where there are no locks: the last one to claim has the output, and others learn of it from check().

    Args:
        location: URI of the output.
        claim: As OutputLock's, with the job's id: two machines may have the same paths.

    Raises:
        JobFailed: If it is another job's, or can't be read and written.
    """

    def __init__(self, location: str, claim: Mapping[str, str]) -> None:
        self._shown = redact_uri(location)
        self._claim = dict(claim)
        try:
            self._store = open_store(location, "output")
            # Before it is written, too.
            self.check()
            self._store.put(_OWNER, json.dumps(self._claim).encode())
        except (OSError, ValueError) as error:
            raise JobFailed(f"setting output {self._shown} can't be used: {error}: give a place that can be") from error

    def check(self) -> None:
        """Find out whether the output is still this job's.

        Raises:
            JobFailed: If it is another's.
            OSError: If nobody can tell.
        """
        try:
            with self._store.open(_OWNER) as file:
                text = file.read().decode()
        except FileNotFoundError:
            return
        if _decoded(text) != self._claim:
            raise JobFailed(_taken(self._shown, text))


def job_id(work: Path) -> str:
    """Say by what others know the job whose work directory this is, wherever it lies. Call with the JobLock held.

    Raises:
        OSError: If it can't be kept there.
    """
    store = LocalStore(work)
    if not store.exists(_ID):
        store.put(_ID, uuid.uuid4().hex.encode())
    return (work / _ID).read_text()


def _taken(output: str, owner: str) -> str:
    return (
        f"output {output} belongs to another job ({owner}): give this one an output directory of its own; if that job "
        f"is gone for good or has moved, delete {output.rstrip('/')}/{_OWNER}"
    )


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
