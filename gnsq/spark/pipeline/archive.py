"""Batches of a table's query: events go to the table, malformed messages to its table of dead letters.

A batch is one pass over its messages: tasks write the files of both tables, the driver commits the files of the events,
then those of the dead letters. A kill may come after any step. Then the batch runs again:

    its files are written again, and the files of the killed run stay unused until a vacuum deletes them
    a table whose log already has the batch is not changed

With a sink, the rows go to the user's function instead of the table of events.
"""

# A body, from the spool to the commit of its batch, and the deletion of its segment:
#
#  1. `JobQuery._plan` in spark/pipeline/query.py plans the query once: `plan` in spark/pipeline/events.py says in
#     Spark's expressions which columns a body has, and whether it is malformed.
#  2. `Planner.latest` in spark/source/planner.py chooses the segments of a batch. Spark writes the offset into its
#     checkpoint, and calls write() of `JobQuery.start` in spark/pipeline/query.py. `identify` in
#     spark/pipeline/checkpoint.py makes the batch's identity, and `sync_checkpoint` in spark/pipeline/durable.py syncs
#     the checkpoint's files that it depends on.
#  3. `ArchiveBatches.__call__` makes one pass. The tasks get rows by `read_segments` in spark/source/reader.py, with
#     what step 1 says, in `write_rows`.
#  4. In a task, `_route` gives events to the table, with the columns that `_finished` adds, and malformed messages to
#     the dead letters, with the reason that `explain` in spark/pipeline/types.py finds.
#  5. `write_file` in spark/pipeline/parquet.py writes a file for each partition, and `put_new` in
#     spark/pipeline/durable.py makes it durable. If the job is killed before the next step, the batch runs again and
#     writes other files. These stay, in no table.
#  6. `collect_files` in spark/pipeline/parquet.py brings the descriptions of the files to the driver. `Table.commit` in
#     spark/pipeline/delta.py adds them by one entry of the log that names the batch, unless `Table.has` in
#     spark/pipeline/delta.py finds it there. `sync_log` in spark/pipeline/durable.py syncs the entry.
#     The dead letters are committed to their table next, in the same way.
#  7. Spark notes in its checkpoint that the batch is done. `Status.finish` in spark/pipeline/status.py records it. If
#     the job is killed between 6 and 7, the batch runs again, and changes nothing in the tables.
#  8. Before the next batch begins, Spark calls `NsqStreamReader.commit` in spark/source/reader.py. Then `Spool.prune`
#     in spark/spool/spool.py deletes the segments.

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from gnsq.spark.pipeline.delta import BatchIdentity, Table
from gnsq.spark.pipeline.events import Events
from gnsq.spark.pipeline.expressions import quoted
from gnsq.spark.pipeline.parquet import DataFile, TableTarget, collect_files, map_in_arrow, write
from gnsq.spark.pipeline.settings import Query
from gnsq.spark.pipeline.tables import SettingError, TableSettings
from gnsq.spark.pipeline.types import Shape, explain, rescued
from gnsq.spark.source.pyspark41 import arrow_schema

__all__ = ["DEAD_SCHEMA", "ArchiveBatches", "Task", "archive_schema", "dead_table", "write_rows"]

# If a batch has written to more partitions of the table than this, Spark shuffles the rows of the next batch, so that
# one task gets all rows of a partition. Without a shuffle, each task writes a file for each partition that it has.
SPREAD = 200
_UTC = pa.timestamp("us", tz="UTC")
_OWN = (
    ("_message_id", pa.string()),
    ("_nsqd", pa.string()),
    ("_topic", pa.string()),
    ("_attempts", pa.int32()),
    ("_published_at", _UTC),
    ("_time", _UTC),
)
# Rows of a table of dead letters. _time is that of the publishing.
DEAD_SCHEMA = pa.schema([("_reason", pa.string()), ("_body", pa.binary()), *_OWN])
_UNITS = {"_day": "day", "_hour": "hour", "_month": "month"}


def archive_schema(events: Events, settings: TableSettings) -> Any:  # Any: pyarrow has no types
    """Build the Arrow schema of the table of events: the events' columns, what is kept of the body, and our own."""
    kept = [("_body", pa.binary())] if settings.keep == "body" else []
    extra = [("_rescued", pa.string())] if settings.mismatch == "rescue" else []
    own = pa.schema([*extra, *kept, *_OWN])
    return pa.schema([*arrow_schema(events.columns), *own])


def dead_table(query: Query) -> Table:
    """Build the table of a query's dead letters."""
    return Table(f"{query.name}_dead", query.dead_location, DEAD_SCHEMA, ("_day",))


class ArchiveBatches:
    """Writes the batches of a table's query: foreachBatch calls it with the rows of events.plan().

    Args:
        sink: The user's function that takes the rows in place of a table.

    Attributes:
        take_over: Accept tables that belong to another checkpoint.

    Raises:
        SettingError: If the table can't be partitioned as the settings say.
    """

    def __init__(
        self,
        query: Query,
        events: Events,
        *,
        sink: Callable[[DataFrame, int], object] | None = None,
        take_over: bool = False,
    ) -> None:
        settings = query.events
        self._query = query
        self._shape = events.shape
        self._schema = archive_schema(events, settings)
        self._sink = sink
        self.take_over = take_over
        try:
            self._table = None if sink else Table(query.name, query.location, self._schema, settings.partition_by)
        except ValueError as error:
            raise SettingError(f"partition_by: {error}", f"tables.{settings.name}") from error
        self._dead = dead_table(query) if query.dead_location else None
        self._is_claimed = False
        self._is_spread = False

    @property
    def tables(self) -> list[Table]:
        """The tables that the query writes."""
        return [table for table in (self._table, self._dead) if table is not None]

    def __call__(self, rows: DataFrame, batch: BatchIdentity) -> list[DataFile]:
        """Write one batch.

        Returns:
            The files that were committed: none of a table that has the batch already.
        """
        if not self._is_claimed:
            for table in self.tables:
                table.claim(batch.owner, take_over=self.take_over, committed=batch.unchecked)
                # has() raises if the batch was committed with other settings: with these, an event of the table may
                # now be a dead letter, and be in both tables, or in none.
                table.has(batch)
            self._is_claimed = True
        files = self._sunk(rows, batch) if self._sink else self._written(rows, batch)
        # The log of each table takes a batch once, also if it runs again after a kill.
        committed = [table.name for table in self.tables if table.commit(batch, files)]
        return [file for file in files if file.table in committed]

    def _written(self, rows: DataFrame, batch: BatchIdentity) -> list[DataFile]:
        """Write the files of both tables in one pass."""
        if self._is_spread:
            rows = rows.repartition(*_partition_keys(self._query.events.partition_by))
        files = collect_files(rows, functools.partial(write_rows, self._task(batch)))
        self._is_spread = len({tuple(file.partition) for file in files}) > SPREAD
        return files

    def _sunk(self, rows: DataFrame, batch: BatchIdentity) -> list[DataFile]:
        """Give the events to the user's function; then write the files of the dead letters."""
        assert self._sink is not None  # the caller has checked it
        task = self._task(batch)
        # Both passes must read the same rows, and parse them once.
        rows = rows.persist()
        try:
            good = rows.where(F.col("_wrong").isNull())
            finish = functools.partial(_finish_all, task)
            self._sink(map_in_arrow(good, finish, from_arrow_schema(self._schema)), batch.number)
            if self._dead is None:
                return []
            return collect_files(rows.where(F.col("_wrong").isNotNull()), functools.partial(write_rows, task))
        finally:
            rows.unpersist()

    def _task(self, batch: BatchIdentity) -> Task:
        table = None if self._table is None else self._table.target(batch.number)
        dead = None if self._dead is None else self._dead.target(batch.number)
        return Task(table, dead, self._shape, self._schema)


def _partition_keys(partition_by: tuple[str, ...]) -> list[Column]:
    """Build the values by which the rows of a table are divided."""
    return [F.date_trunc(_UNITS[name], "_time") if name in _UNITS else F.col(quoted(name)) for name in partition_by]


# --- in tasks


@dataclass(frozen=True)
class Task:
    """What a task needs: where the rows of a batch go, and how rows are completed. It is pickled for the tasks."""

    table: TableTarget | None
    dead: TableTarget | None
    shape: Shape
    schema: Any  # Any: pyarrow has no types


def write_rows(task: Task, batches: Iterator[Any]) -> Iterator[DataFile]:
    """Write rows of events.plan() as files of both tables."""
    yield from write(batches, functools.partial(_route, task))


def _route(task: Task, rows: Any) -> Iterator[tuple[TableTarget, Any]]:  # Any: pyarrow has no types
    wrong = rows.column("_wrong")
    if wrong.null_count < len(wrong):
        if task.dead is not None:
            yield task.dead, _dead_rows(task, rows.filter(pc.is_valid(wrong)))
        rows = rows.filter(pc.is_null(wrong))
    if task.table is not None and rows.num_rows:
        yield task.table, _finished(task, rows)


def _dead_rows(task: Task, rows: Any) -> Any:  # Any: pyarrow has no types
    pairs = zip(rows.column("_body").to_pylist(), rows.column("_wrong").to_pylist(), strict=True)
    reasons = pa.array([explain(body, wrong, task.shape) for body, wrong in pairs], pa.string())
    own = {name: rows.column(name) for name in DEAD_SCHEMA.names if name not in ("_reason", "_time")}
    columns = {**own, "_reason": reasons, "_time": rows.column("_published_at")}
    return pa.table({name: columns[name].cast(DEAD_SCHEMA.field(name).type) for name in DEAD_SCHEMA.names})


def _finish_all(task: Task, batches: Iterator[Any]) -> Iterator[Any]:  # Any: pyarrow has no types
    for rows in batches:
        yield from _finished(task, rows).select(task.schema.names).to_batches()


def _finished(task: Task, rows: Any) -> Any:  # Any: pyarrow has no types
    """Add the columns that are computed of the body, for rows that are events."""
    table = pa.table(rows) if isinstance(rows, pa.RecordBatch) else rows
    if "_rescued" in task.schema.names:
        found = zip(table.column("_body").to_pylist(), table.column("_misfit").to_pylist(), strict=True)
        values = [rescued(body, task.shape) if misfit else None for body, misfit in found]
        table = table.append_column("_rescued", pa.array(values, pa.string()))
    return table
