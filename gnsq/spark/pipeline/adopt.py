"""Make tables of the files of an earlier release: ``gnsq-pipeline adopt``, with the job stopped.

The archive's files, which are partitioned by hour, become files of the table archive without a copy; the table stays
partitioned by hour. The files in dead/, which have the long malformed bodies, are copied, since the table dead is
partitioned by day. One commit makes a table with all its files, so a killed adoption may run again, and changes no
table that it has made.

Not adopted: late/, whose events are in the archive, too; and the metrics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.datafiles import DataFile, file_stats, stats_columns, with_null_counts, write
from gnsq.spark.pipeline.layout import archive_tables, with_layout
from gnsq.spark.pipeline.maintenance import lock_tables
from gnsq.spark.pipeline.progress import checkpoint_id, last_batch
from gnsq.spark.pipeline.tables import HOURLY, Table
from gnsq.spark.spool.storage import LocalStore, open_store
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted

__all__ = ["adopt"]

_LETTERS = re.compile(r"batch-(\d{12})-\d+\.parquet")
# Owner of the tables if there is no checkpoint.
_NOBODY = "adopted"
_ROWS = 10_000


def adopt(config: PipelineConfig) -> Iterator[str]:
    """Make the tables archive and dead of existing files; yield a line of text for each table.

    Raises:
        JobFailed: If files, a table, the checkpoint or the store can't be used, or another process maintains them.
        ValueError: If only Spark can read the checkpoint.
        OSError: If a file or the checkpoint can't be read.
    """
    config = with_layout(config)
    flat = config.placed.flat
    entry = config.entry_of(flat)
    if entry is None or entry.raw:
        raise JobFailed(
            "an earlier release has kept the parsed events of one topic: give its settings, without raw and without "
            "other topics, to adopt its files"
        )
    if entry.partition_by != "hour":
        raise JobFailed(
            f"setting partition_by is {entry.partition_by}, and the files of an earlier release are by hour: set "
            "partition_by to hour"
        )
    location = config.checkpoint_of("archive")
    owner = checkpoint_id(location)
    # Leave out files of batches after the last committed batch: such a batch runs again, and writes all its rows.
    committed = last_batch(location) if owner is not None else None
    if config.is_spark_writer:
        raise JobFailed(
            f"setting table_writer {config.table_writer}: only delta-rs can take files into tables where they are: let "
            "Spark read them and write them into the tables, or give table_writer delta-rs"
        )
    archive, dead = (table for table in archive_tables(config, flat) if isinstance(table, Table))
    with lock_tables(config) as is_locked:
        if not is_locked:
            raise JobFailed("another process maintains the tables: adopt the files when it has ended")
        files, archive = _archived(archive, committed)
        yield _added(archive, owner, committed, lambda: files)
        yield _added(dead, owner, committed, lambda: _letters(dead, committed))


def _added(table: Table, owner: str | None, committed: int | None, find: Callable[[], list[DataFile]]) -> str:
    files = table.adopt(owner or _NOBODY, -1 if committed is None else committed, find)
    if files is None:
        return f"{table.name}: the table is there already; nothing is changed"
    rows = counted(sum(file.rows for file in files), "row", spec=",")
    return f"{table.name}: {counted(len(files), 'file', spec=',')} with {rows}"


def _archived(table: Table, committed: int | None) -> tuple[list[DataFile], Table]:
    """Describe the archive's files up to batch ``committed``. Return them, and the table with their columns added."""
    store = open_store(table.location, "output")
    if isinstance(store, LocalStore):
        _finish_exchanges(store.root)
    schema, found = table.schema, []
    for path, size in sorted(store.list()):
        match = HOURLY.fullmatch(path)
        if match is None or _is_late(match[2], committed):
            continue
        with store.open(path) as opened, pq.ParquetFile(opened) as parquet:
            schema = _joined(schema, parquet.schema_arrow, f"{redact_uri(table.location)}/{path}")
            names = stats_columns(parquet.schema_arrow)
            batches = parquet.iter_batches(_ROWS, columns=names, use_threads=False)
            stats = file_stats(pa.Table.from_batches([batch]) for batch in batches)
            found.append(DataFile(table.name, path, size, parquet.metadata.num_rows, match[1], stats))
    found = [replace(file, stats=with_null_counts(file, schema)) for file in found]
    return found, Table(table.name, table.location, schema, table.partition)


def _letters(table: Table, committed: int | None) -> list[DataFile]:
    """Copy the files in dead/, but none of batches after ``committed``, into new files; describe the new files."""
    store, target = open_store(table.location, "output"), table.target(0)

    def batches() -> Iterator[Any]:  # Any: pyarrow has no types
        for path, _ in sorted(store.list()):
            match = _LETTERS.fullmatch(path)
            if match is not None and not _is_late(match[1], committed):
                with store.open(path) as opened, pq.ParquetFile(opened) as parquet:
                    yield from parquet.iter_batches(1, use_threads=False)

    return list(write(batches(), lambda rows: [(target, rows)]))


def _is_late(batch: str | None, committed: int | None) -> bool:
    return batch is not None and committed is not None and int(batch) > committed


def _finish_exchanges(root: Path) -> None:
    """Move back directories of hours that a merge of the earlier release moved aside, if it was killed then."""
    for aside in root.glob("_replaced/hour=*"):
        if not (root / aside.name).exists():
            aside.rename(root / aside.name)


def _joined(schema: Any, found: Any, shown: str) -> Any:  # Any: pyarrow has no types
    for field in found:
        if field.name not in schema.names:
            schema = schema.append(pa.field(field.name, field.type))
        elif schema.field(field.name).type != field.type:
            raise JobFailed(
                f"{shown} has column {field.name} of type {field.type}, and the settings say "
                f"{schema.field(field.name).type}: give the field the type that it had"
            )
    return schema
