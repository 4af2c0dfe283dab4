"""The process of a job: a lock keeps other jobs out of its work directory, and signals ask it to stop in order.

On a local or mounted disk, the end of the process releases the lock, however it ends. On an object store, the lock is a
lease, see lease.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Self

from gnsq.localfiles import open_or_create
from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.lease import Lease, read_holder
from gnsq.spark.spool.ownership import try_lock, wait_for_lock, write_text

__all__ = ["JobStopped", "StopRequest", "describe_job", "lock_job", "lock_work", "running_job"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NAME = "job.json"
_OWNER = "owner.json"
# Seconds that lock_job() waits for another job that was told to stop just before.
TIMEOUT = 5.0


class JobStopped(JobFailed):
    """A signal has stopped a job before it was done.

    What to do: start the job again to go on.
    """


@contextlib.contextmanager
def lock_work(config: PipelineConfig, wait: Callable[[float], bool]) -> Iterator[Callable[[], None] | None]:
    """Keep other jobs out of the work directory, which must exist and be writable, during the block.

    Args:
        wait: Waits the given seconds; returns True to give up. A job that was killed may have a lease that is not over.

    Yields:
        A function that raises LeaseLost when the block must end at once; None if wait() has returned True.

    Raises:
        JobFailed: If another job uses the directory.
    """
    if config.is_work_remote:
        with Lease(config.work, _OWNER) as lease:
            yield lease.check if lease.acquire(wait) else None
    else:
        with lock_job(Path(config.work)):
            yield _never_lost


def _never_lost() -> None:
    """Stand in for Lease.check()."""


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


def describe_job(config: PipelineConfig) -> str:
    """Describe, for --status, whether a job uses the work directory.

    Raises:
        OSError, JobFailed: If that can't be found out.
    """
    if not config.is_work_remote:
        pid = running_job(Path(config.work))
        return "not running" if pid is None else f"running, process {pid or 'unknown'}"
    holder = read_holder(config.work, _OWNER)
    if holder is None:
        return "not running"
    return f"{holder}, which runs or was killed; it has renewed its lease at {holder.renewed_at[:19]} UTC by its clock"


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
