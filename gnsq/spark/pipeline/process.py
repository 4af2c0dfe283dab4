"""The process of a job: a lock keeps other jobs out of its work directory, and signals ask it to stop in order.

The lock is released by the end of the process, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Self

from gnsq.localfiles import open_or_create
from gnsq.spark.errors import JobFailed
from gnsq.spark.spool.ownership import try_lock, wait_for_lock, write_text

__all__ = ["JobStopped", "StopRequest", "lock_job", "running_job"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NAME = "job.json"
# Seconds that lock_job() waits for another job that was told to stop just before.
TIMEOUT = 5.0


class JobStopped(JobFailed):
    """A signal has stopped a job before it was done."""


def lock_job(work: Path, timeout: float = TIMEOUT) -> IO[str]:
    """Lock a work directory until the returned file is closed. The directory must exist and be writable.

    Raises:
        JobFailed: If another job has locked the directory.
    """
    file = open(open_or_create(work / _NAME), "a+", encoding="utf-8")  # noqa: SIM115  # the caller closes it
    if not wait_for_lock(file, timeout):
        file.close()
        raise JobFailed(
            f"work {work} is in use by another job, process {running_job(work)}: stop that one, or give this one "
            "directories and channels of its own"
        )
    write_text(file, json.dumps({"pid": os.getpid()}))
    return file


def running_job(work: Path) -> int | None:
    """Return the id of the process whose job has locked a work directory; None if no job has, 0 if unknown."""
    try:
        with open(work / _NAME, encoding="utf-8") as file:
            # A shared lock, released when the file is closed. It can't stop a job that starts now: lock_job() retries.
            if try_lock(file, fcntl.LOCK_SH):
                return None
            return int(json.load(file)["pid"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return 0


class StopRequest:
    """Sets an event, ``asked``, at the first SIGINT or SIGTERM. Context manager, for the main thread."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._before: dict[int, Any] = {}  # Any: as signal.signal() returns it

    def install(self) -> None:
        """Install the signal handlers. Call again if another library has replaced one (SparkContext takes SIGINT)."""
        for number in _SIGNALS:
            before = signal.signal(number, self._ask)
            self._before.setdefault(number, before)

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked.set()
        for each in _SIGNALS:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
