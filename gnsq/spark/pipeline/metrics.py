"""Metrics: aggregates of a table's events by window and keys, counted anew for each window that has got events.

A count reads the files of the table, in four steps:

    added    The table's log says which files were added since the version that the metric's table has, or were removed
             because a deletion has written the rest of them anew. Merges do neither.
    touched  Which windows the events of these files are in: by the times in the log, or else by reading the times.
    counted  Spark aggregates the events of these windows. Only files that may have one are read.
    replaced One commit of the metric's table takes its rows of these windows away, and adds the new ones. With it are
             the version of the table of events, and a hash of the metric's definition.

A kill before the commit leaves the metric's table as it was, and the next count begins at the same version. So no event
is lost or counted twice, however late it comes, and whoever has added it. Two counts at once, of the job and of a
rebuild, commit one after the other: the second one finds that the version has changed, and counts again.

All windows are counted if the metric's table has no version yet or another definition, if the log of the table is not
the one that was counted or lacks an entry, if windows can't be told from it, and by a rebuild. Windows before the first
event of the table keep their rows: their events were deleted.

If a deletion takes all files of a day, hour or month away, the counts of that time and of all before stay as they are:
the metric's table has the bound, and only a rebuild replaces windows that begin before it.

The columns of the metric's table are _window_start, _window_end, the keys and the aggregates.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import datetime as dt
import functools
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from gnsq.spark.errors import JobFailed, root_cause
from gnsq.spark.pipeline.checkpoint import hash_of
from gnsq.spark.pipeline.delta import Table, TableFile
from gnsq.spark.pipeline.events import check_expressions
from gnsq.spark.pipeline.expressions import (
    class_of,
    column_of,
    computed,
    computed_node,
    elements,
    in_backticks,
    java_class,
    nodes,
    parsed,
    quoted,
    sequence,
    sql_column,
    with_children,
)
from gnsq.spark.pipeline.parquet import DataFile, TableTarget, collect_files, conformed, write
from gnsq.spark.pipeline.reading import table_rows
from gnsq.spark.pipeline.settings import JobSettings
from gnsq.spark.pipeline.snapshot import COUNTED, FileTimes, Snapshot, existing_snapshot, open_snapshot, read_rows
from gnsq.spark.pipeline.tables import MetricSettings, SettingError, named_expression
from gnsq.spark.source.pyspark41 import arrow_schema
from gnsq.spark.spool.storage import Store, open_store
from gnsq.texts import counted as counted_text

logger = logging.getLogger(__name__)

__all__ = ["Count", "Metric", "Touched", "aggregated"]

# Applications in the log of a metric's table, of which each commit has the values of _State.
_APPLICATIONS = (COUNTED, "gnsq:entry", "gnsq:definition", "gnsq:kept")
# Limits of the windows that are counted because events have come, and of the files that are read to know them.
MAX_WINDOWS, MAX_READ = 100_000, 100
# Number of tries of a count and of its commit, which others may be first with.
_TRIES = 20
_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
# Microseconds. A window that begins earlier has no name for its day, and is not counted: an event may have Go's zero
# time, which is that of the year 1.
_YEAR_1 = (dt.datetime.min.replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)
_SECOND = 1_000_000
# A star that stands for all columns, in small letters.
_STAR = re.compile(r"(?:[(,.]|distinct)\s*\*")


# --- which windows


@dataclass(frozen=True, slots=True)
class Touched:
    """Windows that are counted anew, by the microseconds since 1970 at which they begin. It is pickled for the tasks.

    Attributes:
        length: Microseconds.
        windows: Sorted; None: all that end after first.
    """

    length: int
    windows: Any = None  # Any: pyarrow has no types
    first: int = 0

    def of_rows(self, rows: Any) -> Any:  # Any: pyarrow has no types
        """Return for each row of a metric's table whether its window is one of these, or overlaps one of all."""
        starts = _micros(rows.column("_window_start"))
        if self.windows is None:
            ends = _micros(rows.column("_window_end"))
            return pc.and_(pc.greater(ends, self.first), pc.greater_equal(starts, _YEAR_1))
        return pc.is_in(starts, value_set=self.windows)

    def of_events(self, events: Any) -> Any:  # Any: pyarrow has no types
        """Return those of some events that the windows may have."""
        if self.windows is None:
            return events
        return events.filter(pc.is_in(_starts(events.column("_time"), self.length), value_set=self.windows))

    def may_have_events(self, lowest: dt.datetime, highest: dt.datetime) -> bool:
        """Return whether an event between two times may be in one of the windows."""
        if self.windows is None:
            return _micro(highest) >= self.first
        return _has_between(self.windows, _micro(lowest) - self.length, _micro(highest))

    def stale(self, table: Snapshot) -> list[TableFile]:
        """Return the files of a metric's table that may have rows of the windows."""
        if self.windows is None:
            return table.where("_window_end", lambda _, highest: _micro(highest) > self.first).files

        def may_have(lowest: dt.datetime, highest: dt.datetime) -> bool:
            return _has_between(self.windows, _micro(lowest) - 1, _micro(highest))

        return table.where("_window_start", may_have).files


def _has_between(values: Any, above: int, highest: int) -> bool:  # Any: pyarrow has no types
    place = bisect.bisect_right(values, above, key=lambda value: value.as_py())
    return place < len(values) and values[place].as_py() <= highest


def _starts(times: Any, length: int) -> Any:  # Any: pyarrow has no types
    """Return the begins of the windows that times are in."""
    micros = _micros(times)
    # It is rounded towards 1970.
    quotient = pc.divide(micros, length)
    is_above = pc.greater(pc.multiply(quotient, length), micros).cast(pa.int64())
    return pc.multiply(pc.subtract(quotient, is_above), length)


def _micros(times: Any) -> Any:  # Any: pyarrow has no types
    return times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())


def _micro(time: dt.datetime) -> int:
    return (time - _EPOCH) // dt.timedelta(microseconds=1)


def _windows_of(store: Store, files: Iterable[FileTimes], length: int) -> set[int] | None:
    """Return the begins of the windows that files have events in, or may have; None if they are unknown or too many."""
    found: set[int] = set()
    read = 0
    for path, lowest, highest in files:
        between = range(0)
        if lowest is not None and highest is not None:
            between = range(_micro(lowest) // length * length, _micro(highest) + 1, length)
        if not 1 <= len(between) <= 2 and read < MAX_READ:
            read += 1
            # A vacuum may have deleted it.
            with contextlib.suppress(FileNotFoundError):
                for rows in read_rows(store, path, ["_time"]):
                    found.update(pc.unique(_starts(rows.column("_time"), length).drop_null()).to_pylist())
                continue
        if not between or len(between) > MAX_WINDOWS:
            return None
        found.update(between)
        if len(found) > MAX_WINDOWS:
            return None
    return found


# --- what is counted


def aggregated(events: DataFrame, metric: MetricSettings) -> DataFrame:
    """Aggregate events by window and keys.

    Returns:
        _window_start, _window_end, and a column for each key and aggregate.
    """
    window = F.window("_time", f"{round(metric.window)} seconds")
    aggregates = _Aggregates(events.sparkSession, metric)
    computed_keys = [computed(named_expression(key)[1]).alias(f"our key {i}") for i, key in enumerate(metric.keys)]
    events = events.select("*", *computed_keys, *aggregates.arguments)
    keys = [F.col(f"our key {i}").alias(named_expression(key)[0]) for i, key in enumerate(metric.keys)]
    found = events.groupBy(window.alias("_window"), *keys).agg(*aggregates.calls)
    start, end = F.col("_window.start").alias("_window_start"), F.col("_window.end").alias("_window_end")
    names = found.columns[1 : len(keys) + 1]
    return found.select(start, end, *(F.col(quoted(name)) for name in names), *aggregates.results)


def _computed(events: DataFrame, metric: MetricSettings) -> Iterator[DataFrame]:
    """Yield the keys and the aggregates as the settings have them, for checks."""
    for texts, compute in ((metric.keys, events.select), (metric.aggregates, events.agg)):
        yield compute(*(sql_column(events.sparkSession, named_expression(text)[1]) for text in texts))


class _Aggregates:
    """The aggregates of a metric in three steps, so that computed() makes null what raises an error, in the arguments
    of aggregate functions and in what is computed of their results.

    Attributes:
        arguments: Arguments that are neither a column nor a constant.
        calls: Calls of aggregate functions, of these.
        results: The columns, of the calls.
    """

    def __init__(self, spark: SparkSession, metric: MetricSettings) -> None:
        self.arguments: list[Column] = []
        self.calls: list[Column] = []
        self.results: list[Column] = []
        self._spark = spark
        for text in metric.aggregates:
            name, sql = named_expression(text)
            root, known = parsed(spark, sql), len(self.calls)
            # The parser resolves some calls itself, such as first(x IGNORE NULLS): then the whole is one call.
            if "AggregateExpression" not in map(class_of, nodes(root)):
                result = self._result(root)
            if len(self.calls) == known:
                result = self._named(self.calls, "our call", column_of(spark, root))
            self.results.append(computed_node(spark, result).alias(name))

    def _result(self, node: Any) -> Any:  # Any: Java
        """Return an expression with a column in the place of each call of an aggregate function."""
        children = elements(node.children())
        if not self._is_call(node):
            return with_children(self._spark, node, [self._result(each) for each in children])
        call = with_children(self._spark, node, [self._argument(each) for each in children])
        if node.nameParts().mkString(".").lower() == "sum":
            # If a sum of whole numbers overflows, try_sum() gives null; sum() would begin again at the lowest number.
            _, *others = (call.productElement(index) for index in range(call.productArity()))
            call = call.copy(sequence(self._spark, ["try_sum"]), *others)
        return self._named(self.calls, "our call", column_of(self._spark, call))

    def _is_call(self, node: Any) -> bool:  # Any: Java
        # Of a function that does not exist, Spark tells later.
        with contextlib.suppress(PySparkException):
            if class_of(node) == "UnresolvedFunction":
                name = java_class(self._spark, "sql.catalyst.FunctionIdentifier")(node.nameParts().last())
                catalog = self._spark._jsparkSession.sessionState().catalog()
                return bool(catalog.lookupFunctionInfo(name).getGroup() == "agg_funcs")
        return False

    def _argument(self, node: Any) -> Any:  # Any: Java
        if class_of(node) == "SortOrder":
            return with_children(self._spark, node, [self._argument(each) for each in elements(node.children())])
        if "UnresolvedAttribute" not in map(class_of, [*nodes(node)][1:]):
            return node
        return self._named(self.arguments, "our argument", computed_node(self._spark, node))

    def _named(self, columns: list[Column], what: str, column: Column) -> Any:  # Any: Java
        """Add a column to a list; return the expression that names it."""
        name = f"{what} {len(columns)}"
        columns.append(column.alias(name))
        return parsed(self._spark, f"`{name}`")


# --- counts


class _State(NamedTuple):
    """What the log of a metric's table says of the last count; None: nothing.

    Attributes:
        counted: Version of the table of events whose events are counted.
        entry: Hash of the log entry of that version, since a table may be set back to an older version.
        definition: Hash of the metric's definition.
        kept: Windows that begin before stay as they are, since events of that time were deleted; in Unix seconds.
    """

    counted: int | None = None
    entry: int | None = None
    definition: int | None = None
    kept: int | None = None

    @classmethod
    def of(cls, table: Snapshot | None) -> _State:
        return cls() if table is None else cls(*map(table.application, _APPLICATIONS))


class Count(NamedTuple):
    """What a count has done: which version of the table it has read, and how many rows it has written."""

    version: int
    rows: int


class Metric:
    """A metric: counts the events of its table. Methods raise JobFailed if a store or Spark fails.

    Args:
        name: One of the settings' metrics.
        take_over: Accept a table of counts that belongs to another table of events.

    Attributes:
        name: Its name.
    """

    def __init__(self, spark: SparkSession, settings: JobSettings, name: str, *, take_over: bool = False) -> None:
        self.name = name
        self._spark = spark
        self._settings = settings.metrics[name]
        self._source = settings.location_of(self._settings.table)
        self._location = settings.location_of(name)
        self._take_over = take_over
        # Id and version of the table whose events are all counted, also if its newest entries have brought none.
        self._seen: tuple[str, int] | None = None

    def check(self, schema: Any) -> None:  # Any: pyarrow has no types
        """Before the first count, check that the metric fits the columns of its table, and its own table.

        Raises:
            SettingError: If it does not.
        """
        events, source = self._spark.createDataFrame([], from_arrow_schema(schema)), open_snapshot(self._source)
        counts = self._aggregated(events)
        try:
            for frame in _computed(events, self._settings):
                check_expressions(elements(frame._jdf.queryExecution().analyzed().expressions()))
        except ValueError as error:
            raise SettingError(f"keys or aggregates: {error}", f"metrics.{self.name}") from error
        self._claim(self._table(counts), None if source is None else source.table_id)

    def count(self, *, is_all: bool = False, is_stopped: Callable[[], bool] = lambda: False) -> Count | None:
        """Count what has come since the last count.

        Args:
            is_all: Count all windows, also those whose events were deleted.
            is_stopped: Asked before each long step. If it returns True, the count is given up: JobFailed.

        Returns:
            None if no event has come.
        """
        for _ in range(_TRIES):
            source = open_snapshot(self._source)
            if source is None:
                return None
            seen = source.table_id, source.version
            if seen == self._seen and not is_all:
                return None
            before = _State.of(open_snapshot(self._location))
            touched, kept = self._touched(source, before, is_all=is_all)
            after = _State(source.version, source.entry_hash(source.version), self._definition(source), kept)
            rows = None if touched is None else self._try_count(source, before, after, touched, is_stopped)
            if touched is None or rows is not None:
                self._seen = seen
                return None if rows is None else Count(source.version, rows)
        raise JobFailed(f"metric {self.name}: others were first in each of {_TRIES} tries: is another job there?")

    def _aggregated(self, events: DataFrame) -> DataFrame:
        metric = self._settings
        try:
            return aggregated(events, metric)
        except (PySparkException, Py4JError) as error:
            hint = in_backticks(" ".join((*metric.keys, *metric.aggregates)), events.columns)
            raise SettingError(f"keys or aggregates: {root_cause(str(error))}{hint}", f"metrics.{self.name}") from error

    def _table(self, counts: DataFrame) -> Table:
        schema = arrow_schema(counts.schema)
        return Table(self.name, self._location, schema, ("_day",), time="_window_start", owned_by="table")

    def _definition(self, source: Snapshot) -> int:
        metric = self._settings
        known = [source.table_id, metric.window, metric.keys, metric.aggregates]
        return hash_of(json.dumps(known).encode())

    def _touched(self, source: Snapshot, before: _State, *, is_all: bool) -> tuple[Touched | None, int]:
        """Return the windows whose events have changed since a count, or all of them, or None if no event has come; and
        what is kept from then on."""
        length = round(self._settings.window * _SECOND)
        kept = _YEAR_1 // _SECOND if before.kept is None else before.kept
        changes, windows, version = None, None, before.counted
        if version is not None and version <= source.version and before.entry == source.entry_hash(version):
            changes = source.changes_since(version)
        if changes is not None:
            dropped = [_micro(file.highest) // _SECOND + 1 for file in changes.dropped if file.highest is not None]
            kept = max([kept, *dropped])
            if before.definition == self._definition(source) and not is_all:
                windows = _windows_of(open_store(self._source), changes.changed, length)
        start = -(-kept * _SECOND // length) * length
        if windows is None:
            lowest, _ = source.bounds("_time")
            first = _YEAR_1 if lowest is None else _micro(lowest)
            if not source.rows:
                return None, kept
            if is_all:
                return Touched(length, first=first), min(kept, first // _SECOND)
            if _YEAR_1 <= first < kept * _SECOND:
                self._tell_of_late("events", kept)
            return Touched(length, first=max(first, start)), kept
        counted = sorted(window for window in windows if window >= max(start, _YEAR_1))
        if late := sum(_YEAR_1 <= window < start for window in windows):
            self._tell_of_late(f"events of {counted_text(late, 'window')}", kept)
        has_come = windows or kept != before.kept
        return Touched(length, pa.array(counted, pa.int64())) if has_come else None, kept

    def _tell_of_late(self, events: str, kept: int) -> None:
        logger.warning(
            "metric %s: %s before %s are not counted, since events of that time were deleted: gnsq-pipeline rebuild %s "
            "counts what is left",
            *(self.name, events, _EPOCH + dt.timedelta(seconds=kept), self.name),
        )

    def _try_count(
        self, source: Snapshot, before: _State, after: _State, touched: Touched, is_stopped: Callable[[], bool]
    ) -> int | None:
        """Count windows, and commit them; return how many rows they have. If another process has counted since the
        state before, return None."""
        read = source.where("_time", touched.may_have_events)
        rows = table_rows(self._spark, read, _needed(self._settings, source.schema.names), touched.of_events)
        counts = self._aggregated(rows)
        target = self._target(counts, source, before)
        # In order, so that each file has few windows: a file with one that is touched is written anew.
        rows = counts.repartition(1).sortWithinPartitions("_window_start")
        self._check_stop(is_stopped)
        files = collect_files(rows, functools.partial(_write_counts, target, touched))
        transactions = [(name, value) for name, value in zip(_APPLICATIONS, after, strict=True) if value is not None]
        for _ in range(_TRIES):
            table = existing_snapshot(self._location)
            if _State.of(table) != before:
                return None
            stale, kept = _divided(table, target, touched)
            self._check_stop(is_stopped)
            if table.commit([*files, *kept], stale, transactions=transactions):
                return sum(file.rows for file in files)
        return None

    def _check_stop(self, is_stopped: Callable[[], bool]) -> None:
        if is_stopped():
            raise JobFailed(f"metric {self.name}: the count was given up, since the job stops")

    def _claim(self, table: Table, owner: str | None) -> None:
        try:
            table.claim(owner, take_over=self._take_over)
        except SettingError as error:
            raise SettingError(error.text, f"metrics.{self.name}") from error
        # Another job may take it later.
        self._take_over &= owner is None

    def _target(self, counts: DataFrame, source: Snapshot, before: _State) -> TableTarget:
        """Make or widen the metric's table, if that is needed. Return where its files go, with all its columns."""
        table = self._table(counts)
        found = open_snapshot(self._location)
        is_ours = before.definition == self._definition(source)
        if found is None or not is_ours or not table.has_columns(found.schema):
            self._claim(table, source.table_id)
            found = existing_snapshot(self._location)
        fields = [field for field in found.schema if field.name not in found.partition_columns]
        return dataclasses.replace(table.target(source.version), schema=pa.schema(fields))


def _needed(metric: MetricSettings, names: Collection[str]) -> list[str]:
    """Return the columns that a metric needs, or some more: those whose names are in its expressions."""
    text = " ".join((*metric.keys, *metric.aggregates)).lower().replace("``", "`")
    needs_all = _STAR.search(text.replace("count(*)", ""))
    return [name for name in names if name == "_time" or name.lower() in text or needs_all]


def _divided(table: Snapshot, target: TableTarget, touched: Touched) -> tuple[list[TableFile], list[DataFile]]:
    """Return the files of a metric's table that may have rows of some windows, and new files with their other rows."""
    store, stale = open_store(table.location), touched.stale(table)

    def route(rows: Any) -> Iterator[tuple[TableTarget, Any]]:  # Any: pyarrow has no types
        rows = conformed(rows, target.schema)
        yield target, rows.filter(pc.invert(touched.of_rows(rows)))

    return stale, list(write((rows for file in stale for rows in read_rows(store, file.path)), route))


# --- in tasks


def _write_counts(target: TableTarget, touched: Touched, batches: Iterator[Any]) -> Iterator[DataFile]:
    """Write rows of aggregated() as files of the metric's table. Rows of other windows lack events."""

    def route(batch: Any) -> Iterator[tuple[TableTarget, Any]]:  # Any: pyarrow has no types
        rows = pa.Table.from_batches([batch])
        yield target, rows.filter(touched.of_rows(rows))

    yield from write(batches, route)
