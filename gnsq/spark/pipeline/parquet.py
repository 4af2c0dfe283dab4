"""Parquet files of tables: tasks write rows as files, and return descriptions, which the driver commits.

The driver calls collect_files(), which starts the tasks. Knows nothing of a table's log. A file is
durable before its task returns the description. No reader sees a file before the driver has committed it to the
table's log. A file that is never committed, such as one of a killed task, is deleted by the table's vacuum.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import itertools
import json
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.durable import put_new, sync_directories
from gnsq.spark.spool.storage import Store, open_store
from gnsq.spark.uris import redact_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "DERIVED",
    "DISTINCT",
    "MAX_PARTITIONS",
    "DataFile",
    "Partitioning",
    "Route",
    "TableTarget",
    "check_partition_by",
    "check_partitions",
    "collect_files",
    "conformed",
    "file_prefix",
    "file_stats",
    "partition_text",
    "stats_columns",
    "store_error",
    "write",
    "write_file",
]

# A task collects rows in memory until they have at least this many bytes, and then writes them. This bounds its memory.
HELD_BYTES = 64 * 1024 * 1024
# Largest number of files that a task writes and syncs at the same time.
_CONCURRENT_WRITES = 16
# Limit of the values of each column that a table is partitioned by, and of the partitions in one task's rows: a batch
# writes a file for each of its partitions. A column computed from the time has no limit, so that old events can come.
MAX_PARTITIONS = 10_000
# A longer text is cut to so many characters in statistics: whole long texts would make the log large.
_STATS_STRING = 64
# Columns in which almost every row has its own value: a Parquet dictionary and statistics would cost and bring nothing.
DISTINCT = frozenset({"_message_id", "_body", "_rescued"})

# Colours, arrows, stack frames and XML headers in errors of the stores' libraries.
_NOISE = re.compile(r"\x1b\[[0-9;]*m|↳|\n[ \t]*(\d+: |at \./).*|<\?xml[^<>]*>")
_ERROR_LENGTH = 600
# Words in the text of an error, in small letters -> what to do about it. Not words in the path of a file.
_ADVICE = tuple(
    (re.compile(rf"(?<![\w./-])(?:{words})(?![\w.=-]{{0,255}}/)"), what)
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
# Partition columns that are computed from a time -> the type of their values, and how many characters of an ISO time
# their texts have.
DERIVED: Mapping[str, Any] = {"_day": pa.date32(), "_hour": pa.string(), "_month": pa.string()}
_LENGTHS = {"_day": 10, "_hour": 13, "_month": 7}


# --- partitions


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Division of the rows of a table by the values of any number of columns.

    Attributes:
        columns: _day, _hour, _month (computed from a time in UTC), or columns of the rows. Empty: no division.
        time: The column, a timestamp in UTC, that _day, _hour and _month are computed from.
    """

    columns: tuple[str, ...] = ()
    time: str = "_time"

    @property
    def own(self) -> list[str]:
        """The columns of the rows among the partition columns. Files lack them."""
        return [name for name in self.columns if name not in DERIVED]

    def keys(self, table: Any) -> Any:  # Any: pyarrow has no types
        """Compute the partition columns of rows; returns a table. For values(), of each partition one row is enough."""
        keys = []
        for name in self.columns:
            if name in DERIVED:
                time = table.column(self.time).cast(pa.timestamp("us"))
                keys.append(pc.floor_temporal(time, unit=name[1:]))
            else:
                keys.append(table.column(name))
        return pa.table(keys, names=list(self.columns))

    def values(self, row: Mapping[str, Any]) -> tuple[str | None, ...]:
        """Format a row of keys() as a table's log does."""
        times = {name: value.isoformat() for name, value in row.items() if name in DERIVED and value is not None}
        return tuple(
            times[name][: _LENGTHS[name]] if name in times else partition_text(row[name]) for name in self.columns
        )

    def directory(self, values: Sequence[str | None]) -> str:
        """Name the directory of a partition as Hive does, such as _day=2026-11-20/country=de; "" without columns.

        The table's log has the values, too, but Polars takes them from the path. Readers decode %2F and the like there,
        but not in names.

        Args:
            values: As values() or the table's log has them.
        """
        return "/".join(
            f"{name}={_NULL if value is None else quote(value, safe='')}"
            for name, value in zip(self.columns, values, strict=True)
        )


def partition_text(value: Any) -> str | None:  # Any: as the partition column's type is
    """Format a value of a partition column as a table's log does. Delta has one partition for "" and null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    # str() of a decimal may have an exponent.
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def check_partition_by(schema: Any, partition_by: Sequence[str], time: str = "_time") -> None:  # Any: pyarrow's
    """Check that rows with these columns can be divided.

    Raises:
        ValueError: If they can't; the text begins with partition_by.
    """
    kinds = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, pa.types.is_decimal)
    for name in partition_by:
        if name in DERIVED:
            if name in schema.names or time not in schema.names:
                raise ValueError(f"partition_by {name} is computed from {time}, and has to be no column itself")
        elif not name.isprintable() or set(name) & set("/%=?#"):
            raise ValueError(
                f"partition_by {name!r} has a character that not every reader finds in the path of a file, such as / % "
                "= ? #: give the column another name, by AS in select"
            )
        elif name not in schema.names:
            raise ValueError(f"partition_by {name} is no column: give {', '.join(DERIVED)}, or a column of the table")
        elif not any(kind(schema.field(name).type) for kind in kinds):
            raise ValueError(
                f"partition_by {name} is of type {schema.field(name).type}: give a column of texts, whole numbers, "
                "truth values, dates or decimals"
            )
    if not set(schema.names) - set(partition_by):
        raise ValueError("partition_by has all columns of the table: leave one out, since files need a column")


def check_partitions(partitioning: Partitioning, count: int, column: str = "") -> None:
    """Check the number of partitions of a task's rows, or of the values of one partition column in the table.

    Raises:
        JobFailed: If there are more than 10,000, and not only times divide the rows.
    """
    if partitioning.own and count > MAX_PARTITIONS:
        raise JobFailed(
            f"setting partition_by {column or ', '.join(partitioning.columns)}: there are {count:,} "
            f"{'values' if column else 'partitions'}, the limit is {MAX_PARTITIONS:,}, since each is a file in each "
            "batch: give _day, _hour or columns with fewer values, and an output of its own"
        )


# --- tasks write files


@dataclass(frozen=True)
class TableTarget:
    """Data that a task needs to write into a table. It is pickled for the tasks.

    Attributes:
        name: The table's name, for descriptions and errors.
        location: Path or URI of its directory, which exists.
        schema: Columns of the rows, without _day, _hour and _month. Timestamps are in UTC.
        batch_id: For the names of files.
    """

    name: str
    location: str
    schema: Any  # Any: pyarrow has no types
    partitioning: Partitioning
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
        partition: Values of the partition columns, as the table's log has them.
        stats: Delta's statistics, JSON.
    """

    table: str
    path: str
    size: int
    rows: int
    partition: tuple[str | None, ...]
    stats: str


_DESCRIPTION = "table string, path string, size bigint, rows bigint, partition array<string>, stats string"


def map_in_arrow(
    rows: DataFrame, function: Callable[[Iterator[Any]], Iterator[Any]], schema: Any
) -> DataFrame:  # Any: pyarrow has no types
    """Call mapInArrow() for columns of any names: PySpark would look for the part b of a column a, by the name a.b."""
    names = rows.columns

    def call(batches: Iterator[Any]) -> Iterator[Any]:
        return function(pa.RecordBatch.from_arrays(each.columns, names=names) for each in batches)

    return rows.toDF(*map(str, range(len(names)))).mapInArrow(call, schema)


def collect_files(rows: DataFrame, write_task: Callable[[Iterator[Any]], Iterator[DataFile]]) -> list[DataFile]:
    """Call a function with the record batches of each task of a DataFrame; return the descriptions of all files."""
    kinds = {"string": pa.string(), "bigint": pa.int64(), "array<string>": pa.list_(pa.string())}
    schema = pa.schema([(name, kinds[kind]) for name, kind in map(str.split, _DESCRIPTION.split(", "))])

    def describe(batches: Iterator[Any]) -> Iterator[Any]:  # Any: pyarrow has no types
        for file in write_task(batches):
            yield pa.RecordBatch.from_pylist([dataclasses.asdict(file)], schema=schema)

    found = map_in_arrow(rows, describe, _DESCRIPTION).collect()
    return [DataFile(**{**row.asDict(), "partition": tuple(row.partition)}) for row in found]


def write(batches: Iterable[Any], route: Route) -> Iterator[DataFile]:
    """Write record batches to the tables that route() returns for them, with bounded memory.

    Raises:
        JobFailed: If a store can't be written, or there are too many partitions.
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
    """Give rows the columns of a schema, in its order. A column or a field that they lack is null."""
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
            for rows, partition in _divided(pa.concat_tables(tables), target.partitioning):
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


def _divided(
    table: Any, partitioning: Partitioning
) -> Iterator[tuple[Any, tuple[str | None, ...]]]:  # Any: pyarrow has no types
    """Yield for each partition its rows, without the columns that divide them, and its values."""
    if not partitioning.columns:
        yield table, ()
        return
    keys = partitioning.keys(table)
    codes = _codes(keys)
    order = pc.sort_indices(codes)
    ends = pc.run_end_encode(codes.take(order)).run_ends.to_pylist()
    check_partitions(partitioning, len(ends))
    runs = list(itertools.pairwise([0, *ends]))
    rows = keys.take(order.take([start for start, _ in runs])).to_pylist()
    if len(ends) > 1:
        table = table.take(order)
    table = table.drop_columns(partitioning.own)
    for row, (start, end) in zip(rows, runs, strict=True):
        yield table.slice(start, end - start), partitioning.values(row)


def _codes(keys: Any) -> Any:  # Any: pyarrow has no types
    """Number the rows, so that rows with the same keys, and only these, have the same number."""
    first, *others = (_code(column.combine_chunks()) for column in keys.columns)
    for each in others:
        # The product is below the square of the number of rows.
        first = _code(pc.add(pc.multiply(first, (pc.max(each).as_py() or 0) + 1), each))
    return first


def _code(array: Any) -> Any:  # Any: pyarrow has no types
    return pc.dictionary_encode(array, null_encoding="encode").indices.cast(pa.int64())


def write_file(store: Store, target: TableTarget, tables: Iterable[Any], partition: Sequence[str | None]) -> DataFile:
    """Write and sync a file of one partition's rows: each pyarrow.Table is a row group.

    The caller calls sync_directories() afterwards.

    Raises:
        OSError: If the store can't be written.
    """
    sink = pa.BufferOutputStream()
    with contextlib.ExitStack() as stack:
        writer = None
        for table in tables:
            if writer is None:
                schema = table.schema
                dictionaries = [leaf.column for leaf in _leaves(schema) if leaf.path[0] not in DISTINCT]
                writer = stack.enter_context(
                    pq.ParquetWriter(sink, schema, compression="zstd", use_dictionary=dictionaries, store_schema=False)
                )
            writer.write_table(table)
    data = sink.getvalue()
    stats = file_stats(data, schema)
    # The name is unique, so a task that runs again, or twice at once, never touches the file of another attempt.
    name = f"{file_prefix(target.batch_id)}{uuid.uuid4().hex}.parquet"
    path = "/".join(filter(None, [target.partitioning.directory(partition), name]))
    put_new(store, path, data)
    # Without escapes such as \ud840\udc00: delta-rs decodes them to a wrong character, and readers would skip the file.
    encoded = json.dumps(stats, ensure_ascii=False, separators=(",", ":"))
    return DataFile(target.name, path, data.size, stats["numRecords"], tuple(partition), encoded)


def file_prefix(batch_id: int) -> str:
    """Return how the names of the files begin that a batch has written."""
    return f"part-{batch_id:012d}-"


# --- statistics


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of a Parquet file.

    Attributes:
        column: Its name in the file.
        path: Names of the column of the table and of the fields of objects that lead to it.
        kind: Its type; None inside of an array or a map, which have no statistics.
    """

    column: str
    path: tuple[str, ...]
    kind: Any  # Any: pyarrow has no types

    @property
    def has_bounds(self) -> bool:
        """True if its least and greatest value are in statistics.

        Not of floating point numbers, since NaN is above all others for Spark, and Parquet leaves it out; nor of
        decimals, since JSON's numbers are floating point for some readers.
        """
        kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_date, pa.types.is_timestamp)
        return self.kind is not None and any(kind(self.kind) for kind in kinds)


def _leaves(schema: Any) -> Iterator[_Leaf]:  # Any: pyarrow has no types
    """Yield the columns of a Parquet file with this schema, in the order of the file."""
    for field in schema:
        yield from _leaves_of(field.name, (field.name,), field.type, has_stats=True)


def _leaves_of(column: str, path: tuple[str, ...], kind: Any, *, has_stats: bool) -> Iterator[_Leaf]:
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves_of(f"{column}.{field.name}", (*path, field.name), field.type, has_stats=has_stats)
    elif pa.types.is_list(kind):
        yield from _leaves_of(f"{column}.list.element", path, kind.value_type, has_stats=False)
    elif pa.types.is_map(kind):
        yield from _leaves_of(f"{column}.key_value.key", path, kind.key_type, has_stats=False)
        yield from _leaves_of(f"{column}.key_value.value", path, kind.item_type, has_stats=False)
    else:
        yield _Leaf(column, path, kind if has_stats else None)


def stats_columns(schema: Any, without: Set[str]) -> list[tuple[str, ...]]:  # Any: pyarrow has no types
    """List the columns and fields that have a minimum and a maximum in statistics, unless all values are null.

    The table's log must name the same: if it names a column, and the statistics of a file lack that column, pandas and
    pyarrow find no rows in the file.
    """
    return [leaf.path for leaf in _leaves(schema) if leaf.has_bounds and leaf.path[0] not in without]


def file_stats(data: Any, schema: Any) -> dict[str, Any]:  # Any: pyarrow has no types
    """Make Delta's statistics of a Parquet file from those that the file has. Readers use them to skip files.

    Args:
        data: The file, as pyarrow.Buffer.

    Source: Delta protocol, Per-file Statistics.
    """
    file = pq.ParquetFile(pa.BufferReader(data))
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    stats: dict[str, Any] = {"numRecords": file.metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for index, leaf in enumerate(_leaves(schema)):
        if leaf.kind is None:
            continue
        chunks = [group.column(index).statistics for group in groups]
        nulls = sum(chunk.null_count for chunk in chunks)
        _put(stats["nullCount"], leaf.path, nulls)
        if leaf.has_bounds and leaf.path[0] not in DISTINCT and nulls < file.metadata.num_rows:
            lowest, highest = _texts(leaf.kind, *_bounds(file, leaf, chunks))
            _put(stats["minValues"], leaf.path, lowest)
            _put(stats["maxValues"], leaf.path, highest)
    return stats


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *parents, name = path
    for parent in parents:
        values = values.setdefault(parent, {})
    values[name] = value


def _bounds(file: Any, leaf: _Leaf, chunks: Iterable[Any]) -> tuple[Any, Any]:  # Any: pyarrow has no types
    """Return the least and the greatest value of a column, as Parquet stores them."""
    filled = [chunk for chunk in chunks if chunk.num_values]
    if all(chunk.has_min_max for chunk in filled):
        return min(chunk.min_raw for chunk in filled), max(chunk.max_raw for chunk in filled)
    # Parquet leaves out long texts.
    values = file.read(columns=[leaf.column]).column(leaf.path[0])
    for name in leaf.path[1:]:
        values = pc.struct_field(values, name)
    found = pc.min_max(values)
    return found["min"].as_py().encode(), found["max"].as_py().encode()


def _texts(kind: Any, lowest: Any, highest: Any) -> tuple[Any, Any]:  # Any: JSON, and pyarrow has no types
    """Return a lower and an upper bound for statistics. Times that Python can't name become its first or last."""
    if pa.types.is_string(kind):
        first, last = lowest.decode()[:_STATS_STRING], highest.decode()
        cut = last[:_STATS_STRING]
        # max(): the highest text may itself have that last character of Unicode after the cut, and more after that.
        return first, last if cut == last else max(last, cut + chr(sys.maxunicode))
    if pa.types.is_date(kind):
        return _milliseconds(lowest * _DAY_MS)[:10], _milliseconds(highest * _DAY_MS)[:10]
    if pa.types.is_timestamp(kind):
        # Whole milliseconds: JVM readers take no more digits. The lower is rounded down, the upper is rounded up.
        zone = "Z" if kind.tz else ""
        return _milliseconds(lowest // 1000) + zone, _milliseconds(-(-highest // 1000)) + zone
    return lowest, highest


def _milliseconds(time: int) -> str:
    try:
        found = _EPOCH + dt.timedelta(milliseconds=time)
    except OverflowError:
        found = dt.datetime.max if time > 0 else dt.datetime.min
    return found.isoformat(timespec="milliseconds")


# --- errors


def store_error(location: str, error: Exception) -> JobFailed:
    """Make the JobFailed that says in one line why a table's store can't be used, and what to do."""
    words = " ".join(_NOISE.sub(" ", str(error)).split())
    advice = next((what for signs, what in _ADVICE if signs.search(words.lower())), "mend that")
    return JobFailed(
        f"table {redact_uri(location)}: {words[:_ERROR_LENGTH]}: {advice}. Nothing is lost: a job that runs tries again"
    )
