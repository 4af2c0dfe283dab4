"""Parquet files named by batch: a batch that runs again overwrites its own files and nothing else.

Spark writes into a staging directory; the files are then renamed into place. Local and mounted directories.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pyspark.sql import DataFrame

__all__ = ["BatchFiles"]

_STAGING = "_staging"


class BatchFiles:
    """A directory of Parquet files ``batch-000000000012-0.parquet``, below ``column=value`` directories if there is a
    column to partition by.

    Readers may see some of a batch's files before the others. Directories that begin with ``_`` are not for them.
    """

    def __init__(self, root: str, partition_by: str | None = None) -> None:
        self.root = Path(root).absolute()
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
        if self._first:
            # Only the first batch after a start can have run before, with other files than now.
            for path in self.root.rglob(f"batch-{batch_id:012d}-*.parquet"):
                path.unlink()
            self._first = False
        directories = {self.root}
        for index, path in enumerate(sorted(staging.rglob("part-*.parquet"))):
            directory = self.root / path.parent.relative_to(staging)
            directory.mkdir(parents=True, exist_ok=True)
            _sync(path)
            path.rename(directory / f"batch-{batch_id:012d}-{index}.parquet")
            directories.add(directory)
        for directory in directories:
            _sync(directory)
        shutil.rmtree(staging)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
