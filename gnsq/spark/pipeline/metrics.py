"""Queries of metrics: aggregates by window and keys over event time, in Spark's state, in update mode.

A window is kept until ``keep_windows`` after its end; events that come later are left out. The state has one group
more, whose window and keys are null and which is never removed: it counts each event that has entered the aggregation.
This count is exact even if a batch or a task runs again, since it is part of the state. If windows do not overlap, the
number of events that came too late is this count minus the sum of the counts of all windows.

Each batch appends the rows that it has changed to a table, and publishes them. A batch that runs again gives the same
rows. They are not appended again, but published again, since it is unknown which of them were published before.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gnsq.spark.options import WriteOptions
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.delta import BatchIdentity
from gnsq.spark.pipeline.events import well_formed
from gnsq.spark.pipeline.layout import metrics_table
from gnsq.spark.pipeline.parquet import DataFile, TableTarget, collect_files, publish_files, write
from gnsq.spark.pipeline.windows import Metric, value_type, version_of

__all__ = ["MetricsBatches", "aggregated", "metric_body"]

# Spark applies the watermark to the column that has this key in its metadata. explode() loses the key, so set it again.
# Source: EventTimeWatermark.delayKey.
_DELAY_KEY = "spark.watermarkDelayMs"
_MICROSECONDS = 1_000_000
# Table name of the DataFile that has the number of all events that have entered the aggregation.
_ENTERED = "entered"
_AGGREGATES = {
    # If a sum overflows, try_sum() returns null; sum() would end the query, and again after each start.
    "sum": F.try_sum,
    "mean": F.try_avg,
    "count": F.count,
    "min": F.min,
    "max": F.max,
    "approx_distinct": F.approx_count_distinct,
}


class MetricsBatches:
    """Writes the batches of a query of metrics: foreachBatch calls it with the rows of aggregated().

    Args:
        query: Name of the query.
        take_over: Accept a table that belongs to another checkpoint.
        check_lock: Called before anything is committed or published; raises if another job may run this batch.
    """

    def __init__(
        self,
        config: PipelineConfig,
        query: str,
        *,
        take_over: bool = False,
        check_lock: Callable[[], None] = lambda: None,
    ) -> None:
        self._metric = config.metric_queries[query]
        self._table = metrics_table(config, query)
        self._take_over = take_over
        self._check_lock = check_lock
        self._topic = config.metrics_to(query)
        self._sink = WriteOptions.parse(config.sink_options(self._topic))
        self._epoch: int | None = None

    def __call__(self, changed: DataFrame, batch: BatchIdentity) -> list[DataFile]:
        """Append the rows that a batch has changed, then publish them.

        Returns:
            The files that were committed: none if the table has the batch already.
        """
        if self._epoch is None:
            self._epoch = self._table.claim(batch.owner, take_over=self._take_over, committed=batch.unchecked)
            # has() raises if the table has this batch with other settings: the state would not fit the table's rows.
            self._table.has(batch)
        metric, target = self._metric, self._table.target(batch.number)
        found = collect_files(
            changed, functools.partial(_write_changed, target=target, metric=metric, epoch=self._epoch)
        )
        # If the batch has no events, entered is None, and the table keeps the last number.
        entered = next((file.rows for file in found if file.table == _ENTERED), None)
        self._check_lock()
        is_new = self._table.commit(batch, found, entered)
        self._check_lock()
        sources = {target.name: (target, self._topic)}
        publish_files(changed.sparkSession, found, sources, functools.partial(metric_body, metric), self._sink)
        return [file for file in found if is_new and file.table == target.name]


def aggregated(parsed: DataFrame, config: PipelineConfig, query: str) -> DataFrame:
    """Aggregate the rows that events.parse() returns, by window and keys.

    Args:
        query: Name of the query.

    Returns:
        window_start, the keys as strings, count, and a column for each aggregate. In the row that counts all events,
        window_start and the keys are null.
    """
    metric = config.metric_queries[query]
    # Spark removes a group, and leaves out a row, if its window_start is at or before the watermark.
    delay = round((config.windows_kept(metric) + metric.window) * 1000)
    events = well_formed(parsed).withWatermark("event_time", f"{delay} milliseconds")
    if config.deduplicate:
        # Spark allows one watermark in a query. So deduplication uses event_time, and keeps ids as long as windows.
        events = events.dropDuplicatesWithinWatermark(["nsqd", "message_id"])
    # The names of these columns contain a blank, so none is the name of a field.
    values = {aggregate.field: f"value {number}" for number, aggregate in enumerate(metric.aggregates)}
    kinds = {field: value_type(config.schema_of(metric.topic).fields[field]) for field in values}
    groups = events.select(
        F.explode(F.array(*_groups(metric))).alias("group"),
        *(F.col(field).cast(kinds[field]).alias(name) for field, name in values.items()),
    )
    keyed = groups.select(
        F.col("group.window_start").alias("window_start", metadata={_DELAY_KEY: delay}),
        *(F.col(f"group.{name}").alias(name) for name in metric.keys),
        *values.values(),
    )
    return keyed.groupBy("window_start", *metric.keys).agg(
        F.count(F.lit(1)).alias("count"),
        *(_AGGREGATES[each.function](values[each.field]).alias(each.column) for each in metric.aggregates),
    )


def _groups(metric: Metric) -> Iterator[Column]:
    """Build the groups that an event is in: the group of all events, and one for each of the event's windows."""
    nothing = [F.lit(None).cast("string").alias(name) for name in metric.keys]
    yield F.struct(F.lit(None).cast("timestamp").alias("window_start"), *nothing)
    keys = [F.col(name).cast("string").alias(name) for name in metric.keys]
    time, slide = F.unix_micros("event_time"), metric.slide * _MICROSECONDS
    latest = time - F.pmod(time, F.lit(slide))
    for number in range(metric.windows):
        yield F.struct(F.timestamp_micros(latest - F.lit(number * slide)).alias("window_start"), *keys)


# --- in tasks


def _write_changed(batches: Iterator[Any], target: TableTarget, metric: Metric, epoch: int) -> Iterator[DataFile]:
    """Write the rows of windows. Yield the number of all events, too, as a DataFile of _ENTERED, which is no table."""
    entered = 0

    def route(batch: Any) -> Iterator[tuple[TableTarget, Any]]:  # Any: pyarrow has no types
        nonlocal entered
        is_all = pc.is_null(batch.column("window_start"))
        entered += pc.sum(batch.filter(is_all).column("count")).as_py() or 0
        rows = pa.Table.from_batches([batch.filter(pc.invert(is_all))])
        start = rows.column("window_start")
        length = pa.scalar(metric.window * _MICROSECONDS, pa.duration("us"))
        rows = rows.append_column("window_end", pc.add(start, length))
        for name, value in (("epoch", epoch), ("version", version_of(epoch, target.batch_id))):
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        yield target, rows

    yield from write(batches, route)
    if entered:
        yield DataFile(_ENTERED, "", 0, entered, (), "")


def metric_body(metric: Metric, row: dict[str, Any]) -> bytes:
    """Build the message of a row of the table. It has the start of the window, and not the end."""
    names = (*metric.keys, "count", *(each.column for each in metric.aggregates), "epoch", "version")
    values = {"window": row["window_start"].strftime("%Y-%m-%dT%H:%M:%SZ")}
    # Do not escape letters that are not ASCII: a long key could make the message too large for nsqd.
    return json.dumps({**values, **{name: _json_value(row[name]) for name in names}}, ensure_ascii=False).encode()


def _json_value(value: Any) -> Any:  # Any: JSON
    if isinstance(value, Decimal):
        return float(value)
    # JSON has no numbers for infinity and NaN, so they become strings.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
