"""The lock of a job's work directory, which keeps other jobs out.

It is a lock of the file job.json, which the end of the process releases, however it ends. On an object store files
can't be locked: there, the job that starts later writes its name into job.json, and takes the spool of each query. The
one before looks at job.json before each batch and before it starts a query again, and ends. A batch that both run is in
the log of each table once, whichever job brings it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import functools
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from gnsq.localfiles import open_or_create
from gnsq.spark.errors import JobFailed
from gnsq.spark.spool.ownership import read_record, try_lock, write_text
from gnsq.spark.spool.storage import LocalStore, Store, open_store
from gnsq.spark.uris import redact_uri

__all__ = ["describe", "locked"]

_NAME = "job.json"
# A job that was told to stop just before still has the lock of the file for a time: seconds of one wait, and how many.
_PAUSE, _PAUSES = 0.05, 100


@contextlib.contextmanager
def locked(work: str, wait: Callable[[float], bool]) -> Iterator[Callable[[], None] | None]:
    """Keep other jobs out of a work directory, which must exist and be writable, during a ``with`` block. On an object
    store, note who has begun.

    Yields a function that raises JobFailed if another job has begun since; None if wait() has returned True.

    Args:
        work: Path, or URI of an object store.
        wait: Waits the given seconds; returns True to give up.

    Raises:
        JobFailed: If another job uses the directory.
        OSError: If the store can't be used.
    """
    store = open_store(work, "work")
    if not isinstance(store, LocalStore):
        begun_at = dt.datetime.now(dt.UTC).isoformat(" ", "seconds")
        run = uuid.uuid4().hex
        begun = {"pid": os.getpid(), "host": socket.gethostname(), "begun_at": begun_at, "run": run}
        store.put(_NAME, json.dumps(begun).encode())
        yield functools.partial(_check, store, work, run)
        return
    lock = _FileLock(store.root)
    try:
        yield (lambda: None) if lock.acquire(wait) else None
    finally:
        lock.release()


def describe(work: str) -> str:
    """Describe, for --status, whether a job uses a work directory.

    Raises:
        OSError: If that can't be found out.
    """
    store = open_store(work, "work")
    if isinstance(store, LocalStore):
        pid = _FileLock(store.root).holder()
        return "not running" if pid is None else f"running, process {pid or 'unknown'}"
    begun = read_record(store, _NAME)
    return f"begun by {_shown(begun)}; whether it runs is not known" if begun else "not running"


def _shown(begun: dict[str, object]) -> str:
    return f"process {begun.get('pid')} on {begun.get('host')} at {begun.get('begun_at')}"


def _check(store: Store, work: str, run: str) -> None:
    begun = read_record(store, _NAME)
    if begun.get("run", run) != run:
        raise JobFailed(
            f"work {redact_uri(work)} was taken by another job, begun by {_shown(begun)}, and this one ends: run one "
            "of them, in Kubernetes by a StatefulSet, or a Deployment with strategy: Recreate"
        )


class _FileLock:
    """A lock of a file in a directory, from acquire() to release(), or the end of the process."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._file: IO[str] | None = None

    def acquire(self, wait: Callable[[float], bool]) -> bool:
        """Take the lock; wait a short time for a job that is about to end. Return False if wait() has returned True.

        Raises:
            JobFailed: If another job keeps the lock.
        """
        self._file = open(open_or_create(self._work / _NAME), "a+", encoding="utf-8")  # noqa: SIM115  # see release()
        for _ in range(_PAUSES):
            if try_lock(self._file):
                write_text(self._file, json.dumps({"pid": os.getpid()}))
                return True
            if wait(_PAUSE):
                return False
        raise JobFailed(
            f"work {self._work} is in use by another job, process {self.holder()}: stop that one, or give this one "
            "directories and channels of its own"
        )

    def release(self) -> None:
        """Release the lock, if it is held; a second call does nothing."""
        if self._file is not None:
            self._file.close()

    def holder(self) -> int | None:
        """Return the id of the process that has the lock; None if no process has it, 0 if unknown."""
        try:
            with open(self._work / _NAME, encoding="utf-8") as file:
                # A shared lock, released when the file is closed. A job that starts now finds it, and tries again.
                return None if try_lock(file, fcntl.LOCK_SH) else int(json.load(file)["pid"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return 0
