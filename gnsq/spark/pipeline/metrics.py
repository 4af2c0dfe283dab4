"""Batches of a metric's query: aggregates of a table's events by window and keys, in Spark's state, in update mode.

A window is kept until ``keep_windows`` after its end; events that come later are left out. Each batch appends the rows
that it has changed to the metric's table. A batch that runs again gives the same rows, which are not appended again.

The table's columns are _window_start, _window_end, the keys, the aggregates, _epoch and _version. A new checkpoint
begins a new epoch with an empty state, and so does a rebuild. Epochs are not added up, since most aggregates can't be.
valid_rows_sql() says which rows are valid.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from gnsq.spark.pipeline.delta import BatchIdentity, Table
from gnsq.spark.pipeline.expressions import (
    class_of,
    column_of,
    computed,
    computed_node,
    elements,
    java_class,
    nodes,
    parsed,
    quoted,
    sequence,
    with_children,
)
from gnsq.spark.pipeline.parquet import DataFile, TableTarget, collect_files, write
from gnsq.spark.pipeline.settings import Query
from gnsq.spark.pipeline.tables import MetricSettings, named_expression
from gnsq.spark.source.pyspark41 import arrow_schema

__all__ = ["MetricBatches", "aggregated", "metric_table", "valid_rows_sql", "version_of"]

# Number of the lower bits of a version, which have the batch's number. 23 bits are left for the epoch.
EPOCH_BITS = 40


def aggregated(
    events: DataFrame, metric: MetricSettings, *, deduplicate: bool = False, is_stream: bool = True
) -> DataFrame:
    """Aggregate events by window and keys.

    Args:
        events: The columns of a table and our own, without malformed messages.
        deduplicate: Leave out what nsqd delivers again while windows are kept. Spark allows one watermark in a query,
            so this uses the time of the events.
        is_stream: False for rows that are all there: then no window is closed.

    Returns:
        _window_start, _window_end, and a column for each key and aggregate.
    """
    if is_stream:
        events = events.withWatermark("_time", f"{round(metric.keep_windows * 1000)} milliseconds")
        if deduplicate:
            events = events.dropDuplicatesWithinWatermark(["_nsqd", "_topic", "_message_id"])
    window = F.window("_time", _interval(metric.window), _interval(metric.slide))
    aggregates = _Aggregates(events.sparkSession, metric)
    computed_keys = [computed(named_expression(key)[1]).alias(f"our key {i}") for i, key in enumerate(metric.keys)]
    events = events.select("*", *computed_keys, *aggregates.arguments)
    keys = [F.col(f"our key {i}").alias(named_expression(key)[0]) for i, key in enumerate(metric.keys)]
    found = events.groupBy(window.alias("_window"), *keys).agg(*aggregates.calls)
    start, end = F.col("_window.start").alias("_window_start"), F.col("_window.end").alias("_window_end")
    names = found.columns[1 : len(keys) + 1]
    return found.select(start, end, *(F.col(quoted(name)) for name in names), *aggregates.results)


def _interval(seconds: float) -> str:
    return f"{round(seconds * 1000)} milliseconds"


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


def metric_table(query: Query, counts: DataFrame) -> Table:
    """Build the table of a metric, for the rows of aggregated()."""
    fields = [*arrow_schema(counts.schema)]
    schema = pa.schema([*fields, ("_epoch", pa.int64()), ("_version", pa.int64())])
    return Table(query.name, query.location, schema, ("_day",), time="_window_start")


def version_of(epoch: int, batch_id: int) -> int:
    """Compute the version of the rows of a batch: it grows with each batch and with each epoch."""
    return (epoch << EPOCH_BITS) + batch_id


class MetricBatches:
    """Writes the batches of a metric's query: foreachBatch calls it with the rows of aggregated().

    Args:
        counts: The rows, for their types.

    Attributes:
        take_over: Accept a table that belongs to another checkpoint.
    """

    def __init__(self, query: Query, counts: DataFrame, *, take_over: bool = False) -> None:
        self._table = metric_table(query, counts)
        self.take_over = take_over
        self._epoch: int | None = None

    @property
    def tables(self) -> list[Table]:
        """The tables that the query writes."""
        return [self._table]

    def __call__(self, changed: DataFrame, batch: BatchIdentity) -> list[DataFile]:
        """Append the rows that a batch has changed.

        Returns:
            The files that were committed: none if the table has the batch already.
        """
        if self._epoch is None:
            self._epoch = self._table.claim(batch.owner, take_over=self.take_over, committed=batch.unchecked)
            # has() raises if the table has this batch with other settings: the state would not fit the table's rows.
            self._table.has(batch)
        target = self._table.target(batch.number)
        # One file: otherwise each partition of the state would have one of a few rows.
        files = collect_files(changed.repartition(1), functools.partial(write_counts, target=target, epoch=self._epoch))
        return files if self._table.commit(batch, files) else []


# --- in tasks


def write_counts(batches: Iterator[Any], target: TableTarget, epoch: int) -> Iterator[DataFile]:
    """Write rows of aggregated() as files of the metric's table."""
    version = version_of(epoch, target.batch_id)

    def route(batch: Any) -> Iterator[tuple[TableTarget, Any]]:  # Any: pyarrow has no types
        rows = pa.Table.from_batches([batch])
        for name, value in (("_epoch", epoch), ("_version", version)):
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows))
        yield target, rows

    yield from write(batches, route)


# --- reading


def valid_rows_sql(table: str, keys: Sequence[str], quote: str = '"') -> str:
    """Return a query in SQL, for a view, of a metric's valid rows.

    Of each window the rows of its newest epoch are valid; of these, for the same keys, that with the highest version.

    Args:
        table: Name of the table in the SQL engine, or a call that reads the table, such as ``delta_scan('...')``.
        keys: Names of the metric's keys.
        quote: Character that the SQL engine has around names: in Spark a backtick.
    """
    columns = ", ".join(f"{quote}{name.replace(quote, 2 * quote)}{quote}" for name in ("_window_start", *keys))
    window = f"{quote}_window_start{quote}"
    epoch, version = f"{quote}_epoch{quote}", f"{quote}_version{quote}"
    rows = (
        f"SELECT *, MAX({epoch}) OVER (PARTITION BY {window}) AS {quote}_newest{quote}, "
        f"ROW_NUMBER() OVER (PARTITION BY {columns} ORDER BY {version} DESC) AS {quote}_place{quote} FROM {table}"
    )
    return f"SELECT * FROM ({rows}) AS found WHERE {epoch} = {quote}_newest{quote} AND {quote}_place{quote} = 1"
