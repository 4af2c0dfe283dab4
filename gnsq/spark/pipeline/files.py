"""Parquet files named by batch: a batch that runs again overwrites its own files and nothing else.

Spark writes into a staging directory; the files are then renamed into place. Local and mounted directories: objects.py
does it on object stores.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from pathlib import Path

from pyspark.sql import DataFrame

__all__ = ["BatchFiles", "batch_name", "batch_of", "sync"]

_STAGING = "_staging"
_BATCH = re.compile(r"batch-(\d{12})-\d+\.parquet")


def batch_name(batch_id: int, index: int) -> str:
    """Name a file of a batch."""
    return f"batch-{batch_id:012d}-{index}.parquet"


def batch_of(name: str) -> int | None:
    """Say which batch has written a file; None if it is not a batch's."""
    match = _BATCH.fullmatch(name)
    return int(match[1]) if match is not None else None


class BatchFiles:
    """A directory of Parquet files ``batch-000000000012-0.parquet``, below ``column=value`` directories if there is a
    column to partition by.

    Readers may see some of a batch's files before the others. Directories that begin with ``_`` are not for them.

    Attributes:
        lock: Held while files come and go; whoever replaces a directory takes it, too.
    """

    def __init__(self, root: str, partition_by: str | None = None) -> None:
        self.root = Path(root).absolute()
        self.lock = threading.Lock()
        self._partition_by = partition_by
        self._first = True

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch durably.

        Raises:
            OSError: If a file can't be renamed; the batch has to run again.
        """
        staging = self.root / _STAGING / str(batch_id)
        writer = rows.write.mode("overwrite")
        if self._partition_by is not None:
            writer = writer.partitionBy(self._partition_by)
        writer.parquet(str(staging))
        with self.lock:
            self._publish(staging, batch_id)
        shutil.rmtree(staging)

    def _publish(self, staging: Path, batch_id: int) -> None:
        if self._first:
            # A failed batch ends its query: only the first batch after a start can have run before, with other files
            # than now. Whatever part of them is there, these are all replaced.
            pattern = f"batch-{batch_id:012d}-*.parquet"
            for path in [*self.root.glob(pattern), *self.root.glob(f"*=*/{pattern}")]:
                path.unlink()
            self._first = False
        directories = {self.root}
        for index, path in enumerate(sorted(staging.rglob("part-*.parquet"))):
            directory = self.root / path.parent.relative_to(staging)
            directory.mkdir(parents=True, exist_ok=True)
            sync(path)
            path.rename(directory / batch_name(batch_id, index))
            directories.add(directory)
        for directory in directories:
            sync(directory)


def sync(path: Path) -> None:
    """Make a file or directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
