"""The lock of a job's life: one job at a time works in a work directory.

Released by the death of the process, however it dies.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import IO

from gnsq.localfiles import open_or_create
from gnsq.spark.errors import JobFailed
from gnsq.spark.spool.ownership import try_lock, wait_for_lock, write_text

__all__ = ["lock_job", "running_job"]

_NAME = "job.json"
# Seconds for a job that was told to stop just now.
TIMEOUT = 5.0


def lock_job(work: Path, timeout: float = TIMEOUT) -> IO[str]:
    """Lock a work directory, which exists and can be written, until the file that is returned is closed.

    Raises:
        JobFailed: If a job works there.
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
    """Return the id of the process that works there; None if there is none. Delays no other process."""
    try:
        with open(work / _NAME, encoding="utf-8") as file:
            # Shared, and released at once: a job that starts now tries again.
            if try_lock(file, fcntl.LOCK_SH):
                return None
            return int(json.load(file)["pid"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return 0
