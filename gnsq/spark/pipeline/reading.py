"""Rows of a version of a table, for Spark. Tasks read the files through the stores that the job uses, so Spark needs no
package for Delta or for an object store."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from gnsq.spark.pipeline.parquet import conformed, map_in_arrow
from gnsq.spark.pipeline.snapshot import PATH, Snapshot, read_rows
from gnsq.spark.spool.storage import open_store

__all__ = ["table_rows"]

# Bytes of the files that a task reads, about: other tasks, of batches, wait for its end.
TASK_BYTES = 128 * 2**20


def table_rows(
    spark: SparkSession,
    snapshot: Snapshot,
    columns: Collection[str] | None = None,
    chosen: Callable[[Any], Any] | None = None,  # Any: pyarrow has no types
) -> DataFrame:
    """Read rows of a table.

    Args:
        columns: Default: all.
        chosen: Called in tasks with a pyarrow.Table of these columns; returns those of its rows that are needed.
    """
    schema = pa.schema([field for field in snapshot.schema if columns is None or field.name in columns])
    files = snapshot.listing.select([PATH, *(name for name in snapshot.partition_columns if name in schema.names)])
    size = sum(file.size for file in snapshot.files)
    # A task costs about as much as reading ten small files.
    tasks = max(min(files.num_rows, max(spark.sparkContext.defaultParallelism, -(-size // TASK_BYTES))), 1)
    read = functools.partial(_read, snapshot.location, schema, chosen)
    return map_in_arrow(spark.createDataFrame(files).repartition(tasks), read, from_arrow_schema(schema))


# --- in tasks


def _read(
    location: str, schema: Any, chosen: Callable[[Any], Any] | None, batches: Iterator[Any]
) -> Iterator[Any]:  # Any: pyarrow has no types
    """Read files; each row has the path of one, and the values of its partition."""
    store = open_store(location, "output")
    for row in (row for batch in batches for row in batch.to_pylist()):
        path = row.pop(PATH)
        for rows in read_rows(store, path, schema.names):
            table = pa.Table.from_batches([rows])
            for name, value in row.items():
                values = pa.repeat(pa.scalar(value, schema.field(name).type), table.num_rows)
                table = table.append_column(name, values)
            # Before the choice: Arrow can't choose from strings as files of delta-rs give them.
            table = conformed(table, schema)
            yield from (table if chosen is None else chosen(table)).to_batches()
