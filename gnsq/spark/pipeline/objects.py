"""Parquet files named by batch, on an object store: what files.py does where files can be renamed and locked.

An object is there whole or not at all, but nothing is renamed, and no two objects change together. So the driver takes
a batch's rows (max_rows_per_batch bounds them) and puts each file under its name itself: no attempt of a task that
outlives its job can write where readers look. Steps, of which each may be the last before a kill:

    note     write into _batch.json the batch and the names that it is going to have
    put      each file, in one request
    clear    delete what an earlier run of the batch had noted, and this one has not

The rows of one hour are one file, whatever the division of the batch: a batch that runs again puts the same rows under
the same names. Where they are not the same, since a segment of the spool has become unreadable in between or a setting
is another one, the note of the run before says which names may have to go. Readers see what they see of files.py: some
of a batch's files before the others.

There are no locks: that the output is one job's is a claim (owner.json) with an id that is kept in the job's work
directory, read again when Spark is up and before each batch. Of two jobs that claim at the same moment the last one
wins, and the other one ends before its first batch.

Not there: compaction. It needs an hour's files to be exchanged at once; readers would see rows twice, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from gnsq.spark.pipeline.files import BatchFiles, batch_name
from gnsq.spark.spool.storage import open_store

__all__ = ["ObjectFiles", "open_files"]

_NOTE = "_batch.json"
# Requests at a time.
_PUTS = 16


class ObjectFiles:
    """What BatchFiles is, below the URI of an object store."""

    def __init__(self, root: str, partition_by: str | None = None) -> None:
        self._store = open_store(root, "output")
        self._partition_by = partition_by
        self._first = True

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch durably.

        Raises:
            OSError: If the store fails; the batch has to run again.
        """
        files = {directory + batch_name(batch_id, 0): table for directory, table in self._divided(rows.toArrow())}
        # A failed batch ends its query: only the first batch after a start can have run before.
        before = self._noted(batch_id) if self._first else set()
        stale = before - set(files)
        if files or stale:
            note = {"batch": batch_id, "files": sorted(before | set(files))}
            self._store.put(_NOTE, json.dumps(note).encode())
            with ThreadPoolExecutor(_PUTS) as pool:
                # list() lets what a thread has raised be raised here.
                list(pool.map(self._put, files, files.values()))
            self._store.remove(*stale)
        self._first = False

    def _divided(self, table: Any) -> Iterator[tuple[str, Any]]:  # Any: pyarrow has no types
        """Yield directories, and the rows of each; none without rows."""
        column = self._partition_by
        if column is None:
            if table.num_rows:
                yield "", table
            return
        values = table.column(column)
        for value in pc.unique(values).to_pylist():
            yield f"{column}={value}/", table.filter(pc.equal(values, value)).drop_columns([column])

    def _put(self, path: str, table: Any) -> None:  # Any: as above
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        self._store.put(path, sink.getvalue())

    def _noted(self, batch_id: int) -> set[str]:
        try:
            with self._store.open(_NOTE) as file:
                note = json.loads(file.read())
        except FileNotFoundError:
            return set()
        return set(note["files"]) if note["batch"] == batch_id else set()


def open_files(location: str, partition_by: str | None = None) -> BatchFiles | ObjectFiles:
    """Take the class that fits the location: a path, or the URI of an object store."""
    return (ObjectFiles if "://" in location else BatchFiles)(location, partition_by)
