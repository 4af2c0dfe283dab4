"""Data files of tables: tasks write rows as Parquet files, and return descriptions, which the driver commits.

The driver calls collect_files() and publish_files(), which start the tasks. Knows nothing of a table's log. A file is
durable before its task returns the description. No reader sees a file before the driver has committed it to the
table's log. A file that is never committed, such as one of a killed task, is deleted by the table's vacuum.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import itertools
import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnsq.localfiles import sync_directory
from gnsq.spark.errors import JobFailed
from gnsq.spark.spool.storage import LocalStore, Store, open_store
from gnsq.spark.uris import redact_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gnsq.spark.options import WriteOptions

__all__ = [
    "MAX_FIELD_VALUES",
    "DataFile",
    "Partition",
    "Route",
    "TableTarget",
    "check_field_values",
    "collect_files",
    "conformed",
    "file_prefix",
    "file_stats",
    "hive_directory",
    "partition_text",
    "publish_files",
    "read_bodies",
    "stats_columns",
    "store_error",
    "sync_directories",
    "write",
    "write_file",
]

# A task collects rows in memory until they have at least this many bytes, and then writes them. This bounds its memory.
HELD_BYTES = 64 * 1024 * 1024
# Largest number of files that a task writes and syncs at the same time.
_CONCURRENT_WRITES = 16
# Limit of the different values of a field that a table is partitioned by: a batch writes a file for each of its values.
MAX_FIELD_VALUES = 10_000
# A longer text is cut to so many characters in statistics: whole long texts would make the log large.
_STATS_STRING = 64
# Columns in which almost every row has its own value: a Parquet dictionary would cost time and save no bytes.
_DISTINCT = frozenset({"body", "message_id"})
# Largest number of rows that read_bodies() has in memory at a time. A body may have 5 MiB.
_READ_ROWS = 64

# Colours, arrows, stack frames and XML headers in errors of the stores' libraries.
_NOISE = re.compile(r"\x1b\[[0-9;]*m|↳|\n\s*(\d+: |at \./).*|<\?xml[^>]*>")
_ERROR_LENGTH = 600
# Words in the text of an error, in small letters -> what to do about it. Not words in the path of a file.
_ADVICE = tuple(
    (re.compile(rf"(?<![\w./-])(?:{words})(?![\w.=-]*/)"), what)
    for words, what in (
        ("expired|invalid_?token", "renew the credentials"),
        ("no space left|quota", "make room"),
        ("403|access_?denied|permission denied", "let the job read, write and list there"),
    )
)

# Hive's name for a null in a path.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_EPOCH = dt.datetime(1970, 1, 1)
_DAY_MS = 86_400_000
# Name of a partition column -> its period in microseconds, type of the column, and format of its values.
_PERIODS: dict[str, tuple[int, Any, str]] = {
    "day": (86_400_000_000, pa.date32(), "%Y-%m-%d"),
    "hour": (3_600_000_000, pa.string(), "%Y-%m-%dT%H"),
}


@dataclass(frozen=True, slots=True)
class Partition:
    """Division of the rows of a table: by the day or the hour of a time, or by a field.

    Attributes:
        column: "day", "hour", or the field.
        source: Column that the partition's value is computed from: the field itself, or a timestamp in UTC.
    """

    column: str
    source: str

    @property
    def is_field(self) -> bool:
        """True if the rows are divided by a field."""
        return self.column == self.source

    def type(self, schema: Any) -> Any:  # Any: pyarrow has no types
        """Return the partition column's type in a table with this schema."""
        return schema.field(self.column).type if self.is_field else _PERIODS[self.column][1]

    def keys(self, table: Any) -> Any:
        """Compute a key for each row. Rows with the same key are in the same partition."""
        values = table.column(self.source).combine_chunks()
        if self.is_field:
            return values
        return pc.divide(values.cast(pa.int64()), _PERIODS[self.column][0])

    def text(self, key: Any) -> str | None:
        """Format a key as a table's log does."""
        if self.is_field or key is None:
            return partition_text(key)
        length, _, form = _PERIODS[self.column]
        return (_EPOCH + dt.timedelta(microseconds=key * length)).strftime(form)


def partition_text(value: Any) -> str | None:  # Any: as the partition column's type is
    """Format a value of a partition column as a table's log does. Delta has one partition for "" and null."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def hive_directory(partition: Partition | None, value: str | None) -> str:
    """Name the directory of a partition's files as Hive does, such as day=2026-11-20; "" if there is no partition.

    The table's log has the value, too, but Polars takes it from the path. Readers decode %2F and the like there.

    Args:
        value: As partition_text() returns it.
    """
    if partition is None:
        return ""
    return f"{quote(partition.column, safe='')}={_NULL if value is None else quote(value, safe='')}"


@dataclass(frozen=True)
class TableTarget:
    """Data that a task needs to write into a table. It is pickled for the tasks.

    Attributes:
        name: The table's name, for descriptions and errors.
        location: Path or URI of its directory, which exists.
        schema: Columns of the rows, without a partition column day or hour. Timestamps are in UTC.
        batch_id: For the names of files.
    """

    name: str
    location: str
    schema: Any  # Any: pyarrow has no types
    partition: Partition | None
    batch_id: int


# Divides rows between tables.
Route = Callable[[Any], Iterable[tuple[TableTarget, Any]]]  # Any: pyarrow has no types


@dataclass(frozen=True, slots=True)
class DataFile:
    """Description of a data file that was written: what the commit that adds it to a table needs.

    Attributes:
        table: Name of its TableTarget.
        path: Relative to the table's directory.
        size, rows: Bytes and rows.
        partition: Value of the partition column, as the table's log has it; None: null, or no such column.
        stats: Delta's statistics, JSON.
    """

    table: str
    path: str
    size: int
    rows: int
    partition: str | None
    stats: str


_DESCRIPTION = "table string, path string, size bigint, rows bigint, partition string, stats string"


def collect_files(rows: DataFrame, write_task: Callable[[Iterator[Any]], Iterator[DataFile]]) -> list[DataFile]:
    """Call a function with the record batches of each task of a DataFrame; return the descriptions of all files."""
    kinds = {"string": pa.string(), "bigint": pa.int64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in map(str.split, _DESCRIPTION.split(", "))])

    def describe(batches: Iterator[Any]) -> Iterator[Any]:  # Any: pyarrow has no types
        for file in write_task(batches):
            yield pa.RecordBatch.from_pylist([dataclasses.asdict(file)], schema=schema)

    return [DataFile(**row.asDict()) for row in rows.mapInArrow(describe, _DESCRIPTION).collect()]


def write(batches: Iterable[Any], route: Route) -> Iterator[DataFile]:
    """Write record batches to the tables that route() returns for them, with bounded memory.

    Raises:
        JobFailed: If a store can't be written, or a field has too many values to be partitioned by.
    """
    held: dict[str, tuple[TableTarget, list[Any]]] = {}
    size = 0
    for batch in batches:
        for target, rows in route(batch):
            if rows.num_rows:
                table = conformed(rows, target.schema)
                held.setdefault(target.name, (target, []))[1].append(table)
                size += table.nbytes
        if size >= HELD_BYTES:
            yield from _write_held(held)
            size = 0
    yield from _write_held(held)


def conformed(rows: Any, schema: Any) -> Any:  # Any: pyarrow has no types
    """Give rows the columns of a schema, in its order. A column that they lack is null."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _write_held(held: dict[str, tuple[TableTarget, list[Any]]]) -> Iterator[DataFile]:
    # Each table may get one small file only, so the files of all tables are synced side by side.
    with ThreadPoolExecutor(_CONCURRENT_WRITES) as pool:
        written = []
        for target, tables in held.values():
            store = open_store(target.location, "output")
            for rows, partition in _divided(pa.concat_tables(tables), target):
                written.append((target, store, pool.submit(write_file, store, target, [rows], partition)))
        files = []
        for target, _, future in written:
            with _store_errors(target):
                files.append(future.result())
        for target, store in {target.name: (target, store) for target, store, _ in written}.values():
            with _store_errors(target):
                sync_directories(store, (file.path for file in files if file.table == target.name), pool)
    yield from files
    held.clear()


@contextlib.contextmanager
def _store_errors(target: TableTarget) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise store_error(target.location, error) from error


def _divided(table: Any, target: TableTarget) -> Iterator[tuple[Any, str | None]]:  # Any: pyarrow has no types
    """Yield for each partition its rows, and its value as text."""
    partition = target.partition
    if partition is None:
        yield table, None
        return
    keys = partition.keys(table)
    order = pc.sort_indices(keys)
    runs = pc.run_end_encode(keys.take(order))
    values, ends = runs.values.to_pylist(), runs.run_ends.to_pylist()
    check_field_values(partition, len(values))
    if len(values) > 1:
        table = table.take(order)
    if partition.is_field:
        table = table.drop_columns([partition.column])
    for value, (start, end) in zip(values, itertools.pairwise([0, *ends]), strict=True):
        yield table.slice(start, end - start), partition.text(value)


def check_field_values(partition: Partition, count: int) -> None:
    """Check the number of values of the field that a table is partitioned by, if it is partitioned by a field.

    Raises:
        JobFailed: If the field has more than 10,000 values.
    """
    if partition.is_field and count > MAX_FIELD_VALUES:
        raise JobFailed(
            f"setting partition_by {partition.column}: the field has {count:,} values, the limit is "
            f"{MAX_FIELD_VALUES:,}, since each is a file in each batch: give day, hour, none, or a field with fewer "
            "values, and an output of its own"
        )


def write_file(store: Store, target: TableTarget, tables: Iterable[Any], partition: str | None) -> DataFile:
    """Write and sync a file of one partition's rows: each pyarrow.Table is a row group.

    The caller calls sync_directories() for files on a local disk.

    Raises:
        OSError: If the store can't be written.
    """
    sink = pa.BufferOutputStream()
    all_stats = []
    with contextlib.ExitStack() as stack:
        writer = None
        for table in tables:
            if writer is None:
                dictionaries = [name for name in table.column_names if name not in _DISTINCT]
                writer = stack.enter_context(
                    pq.ParquetWriter(
                        sink, table.schema, compression="zstd", use_dictionary=dictionaries, store_schema=False
                    )
                )
            writer.write_table(table)
            all_stats.append(_stats(table))
    data = sink.getvalue()
    # The name is unique, so a task that runs again, or twice at once, never touches the file of another attempt.
    name = f"{file_prefix(target.batch_id)}{uuid.uuid4().hex}.parquet"
    path = str(PurePosixPath(hive_directory(target.partition, partition), name))
    if isinstance(store, LocalStore):
        if target.partition is not None:
            # Not its parents: a table's directory that is missing may be on a disk that is not mounted.
            (store.root / path).parent.mkdir(exist_ok=True)
        with open(store.root / path, "xb", buffering=0) as file:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
    else:
        store.put(path, data)
    stats = functools.reduce(_joined_stats, all_stats)
    return DataFile(target.name, path, data.size, stats["numRecords"], partition, _encoded(stats))


def sync_directories(store: Store, paths: Iterable[str], pool: ThreadPoolExecutor) -> None:
    """Sync the directories of a table's files on a local disk, so that the files keep their names."""
    if isinstance(store, LocalStore):
        # The table's own directory, too: another task may have made a directory there, and not synced it yet.
        directories = {store.root, *((store.root / path).parent for path in paths)}
        for _ in pool.map(sync_directory, directories):
            pass


def file_prefix(batch_id: int) -> str:
    """Return how the names of the files begin that a batch has written."""
    return f"part-{batch_id:012d}-"


def file_stats(tables: Iterable[Any]) -> str:  # Any: pyarrow has no types
    """Compute the statistics of a file from its rows: one or more instances of pyarrow.Table."""
    return _encoded(functools.reduce(_joined_stats, map(_stats, tables)))


def _encoded(stats: dict[str, Any]) -> str:  # Any: JSON
    return json.dumps(stats, separators=(",", ":"))


def stats_columns(schema: Any) -> list[str]:  # Any: pyarrow has no types
    """List the columns that have a minimum and a maximum in statistics, unless all of a file's values are null.

    The table's log must name the same columns: if it names a column, and the statistics of a file lack that column,
    pandas and pyarrow find no rows in the file.
    """
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_date, pa.types.is_timestamp)
    return [each.name for each in schema if each.name not in _DISTINCT and any(kind(each.type) for kind in kinds)]


def _stats(table: Any) -> dict[str, Any]:  # Any: pyarrow has no types
    """Compute Delta's statistics of rows. Readers use them to skip files.

    Source: Delta protocol, Per-file Statistics.
    """
    lowest, highest = {}, {}
    for name in stats_columns(table.schema):
        column = table.column(name)
        if column.null_count < len(column):
            lowest[name], highest[name] = _bounds(column)
    nulls = {name: table.column(name).null_count for name in table.column_names}
    return {"numRecords": table.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _joined_stats(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
    # min() and max() may compare texts of dates and times, which are ordered as the dates and times themselves.
    joined: dict[str, Any] = {"numRecords": one["numRecords"] + other["numRecords"]}
    for kind, choose in (("minValues", min), ("maxValues", max)):
        both = {**other[kind], **one[kind]}
        joined[kind] = {name: choose(value, other[kind].get(name, value)) for name, value in both.items()}
    joined["nullCount"] = {name: number + other["nullCount"][name] for name, number in one["nullCount"].items()}
    return joined


def _bounds(column: Any) -> tuple[Any, Any]:  # Any: JSON
    """Return a lower and an upper bound of a column's values. Times that Python can't name become its first or last."""
    if pa.types.is_date(column.type):
        lowest, highest = _min_max(column.cast(pa.int32()))
        return _milliseconds(lowest * _DAY_MS)[:10], _milliseconds(highest * _DAY_MS)[:10]
    if pa.types.is_timestamp(column.type):
        lowest, highest = _min_max(column.cast(pa.int64()))
        # Whole milliseconds: JVM readers take no more digits. The lower is rounded down, the upper is rounded up.
        return _milliseconds(lowest // 1000), _milliseconds(-(-highest // 1000))
    lowest, highest = _min_max(column)
    if pa.types.is_string(column.type):
        # max(): the highest text may itself have that last character of Unicode after the cut, and more after that.
        cut = highest[:_STATS_STRING]
        return lowest[:_STATS_STRING], highest if cut == highest else max(highest, cut + chr(sys.maxunicode))
    return lowest, highest


def _min_max(column: Any) -> tuple[Any, Any]:  # Any: pyarrow has no types
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def _milliseconds(time: int) -> str:
    try:
        found = _EPOCH + dt.timedelta(milliseconds=time)
    except OverflowError:
        found = dt.datetime.max if time > 0 else dt.datetime.min
    return found.isoformat(timespec="milliseconds") + "Z"


def read_bodies(target: TableTarget, path: str, body: Callable[[dict[str, Any]], bytes]) -> Iterator[Any]:
    """Read a file that was just written, and yield record batches with a message body for each row.

    Args:
        body: Makes a message body from a row, which is a dict: column name -> value.
    """
    try:
        with open_store(target.location, "output").open(path) as file, pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(_READ_ROWS, use_threads=False):
                bodies = pa.array([body(row) for row in batch.to_pylist()], pa.binary())
                yield pa.RecordBatch.from_arrays([bodies], names=["body"])
    except OSError as error:
        raise store_error(target.location, error) from error


def publish_files(
    spark: SparkSession,
    files: list[DataFile],
    sources: Mapping[str, tuple[TableTarget, str]],
    body: Callable[[dict[str, Any]], bytes],
    sink: WriteOptions,
) -> None:
    """Publish the rows of files that were just written, and return after nsqd has confirmed each row.

    Args:
        sources: Table -> its target, and the topic for its rows. Files of other tables are left out.
        body: Makes a message body from a row; it is pickled for the tasks.
    """
    paths = [(file.table, file.path) for file in files if file.table in sources]
    if paths:
        used = {table: sources[table] for table, _ in paths}
        task = functools.partial(_publish, used, body, sink)
        spark.createDataFrame(paths, "table string, path string").mapInArrow(task, "rows bigint").collect()


def _publish(
    sources: Mapping[str, tuple[TableTarget, str]],
    body: Callable[[dict[str, Any]], bytes],
    sink: WriteOptions,
    batches: Iterator[Any],
) -> Iterator[Any]:
    from gnsq.spark.sink import publish  # loads pyspark, which programs without Spark do not need

    def messages() -> Iterator[Any]:
        for row in (row for batch in batches for row in batch.to_pylist()):
            target, topic = sources[row["table"]]
            for bodies in read_bodies(target, row["path"], body):
                columns = [bodies.column(0), pa.repeat(topic, bodies.num_rows)]
                yield pa.RecordBatch.from_arrays(columns, names=["body", "topic"])

    published = publish(messages(), sink)
    yield pa.RecordBatch.from_pydict({"rows": pa.array([published.rows], pa.int64())})


def store_error(location: str, error: Exception) -> JobFailed:
    """Make the JobFailed that says in one line why a table's store can't be used, and what to do."""
    words = " ".join(_NOISE.sub(" ", str(error)).split())
    advice = next((what for signs, what in _ADVICE if signs.search(words.lower())), "mend that")
    return JobFailed(
        f"table {redact_uri(location)}: {words[:_ERROR_LENGTH]}: {advice}, then start the job again: nothing is lost"
    )
