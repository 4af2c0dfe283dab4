"""Query metrics: aggregates by window and keys over event time, in Spark's state, in update mode.

A window is kept until ``keep_windows`` after its end: what comes later than that is left out. The state has one group
more, whose window and keys are null and which is never let go: it counts each event that has entered the aggregation.
Its count is exact however often a batch or a task runs again, since it is part of the state. So the number of events
that came too late is entered minus counted.

Each batch appends the rows that it has changed to a table, and publishes them. A batch that runs again gives the same
rows; they are not appended again, but published again, since nobody knows how far the run before came.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gnsq.spark.options import WriteOptions
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.datafiles import DataFile, TableTarget, collect_files, publish_files, write
from gnsq.spark.pipeline.events import well_formed
from gnsq.spark.pipeline.layout import ENTERED, metrics_table
from gnsq.spark.pipeline.windows import Metric, value_type, version_of

__all__ = ["MetricsBatches", "aggregated", "metric_body"]

# Spark takes a column with this key in its metadata for the time that its watermark is about.
# Source: EventTimeWatermark.delayKey. explode() loses it.
_DELAY_KEY = "spark.watermarkDelayMs"
_MICROSECONDS = 1_000_000
_AGGREGATES = {
    # Of too large numbers try_sum() makes null; sum() would end the query, again at each start.
    "sum": F.try_sum,
    "mean": F.try_avg,
    "count": F.count,
    "min": F.min,
    "max": F.max,
    "approx_distinct": F.approx_count_distinct,
}


class MetricsBatches:
    """What foreachBatch calls with the rows of aggregated().

    Args:
        take_over: The table may belong to another checkpoint.
    """

    def __init__(self, config: PipelineConfig, *, take_over: bool = False) -> None:
        self._metric = config.metric
        self._table = metrics_table(config)
        self._take_over = take_over
        self._sink = WriteOptions.parse(config.sink_options(config.metrics_to))
        self._epoch: int | None = None
        # By epoch.
        self._entered: dict[str, int] = {}

    def __call__(self, changed: DataFrame, batch_id: int, owner: str) -> None:
        """Append the rows that a batch has changed, then publish them.

        Args:
            owner: Spark's id of the query.
        """
        if self._epoch is None:
            self._epoch = self._table.claim(owner, take_over=self._take_over)
            facts = self._table.status().facts
            self._entered = {name: int(value) for name, value in facts.items() if name.startswith(f"{ENTERED}.")}
        metric, target = self._metric, self._table.target(batch_id)
        found = collect_files(
            changed, functools.partial(_write_changed, target=target, metric=metric, epoch=self._epoch)
        )
        # Without events there is no such row, and nothing has changed.
        self._entered |= {f"{ENTERED}.{self._epoch}": file.rows for file in found if file.table == ENTERED}
        facts = {name: str(number) for name, number in self._entered.items()}
        facts[ENTERED] = str(sum(self._entered.values()))
        self._table.commit(owner, batch_id, found, facts if found else None)
        publish_files(changed.sparkSession, found, target, functools.partial(metric_body, metric), self._sink)


def aggregated(parsed: DataFrame, config: PipelineConfig) -> DataFrame:
    """Aggregate what events.parse() returns.

    Returns:
        window_start, the keys as strings, count, and a column for each aggregate. One row has null in window_start and
        in the keys.
    """
    metric = config.metric
    # Spark lets go of a group, and leaves out a row, whose start is at or before the watermark.
    delay = round((config.windows_kept + metric.window) * 1000)
    events = well_formed(parsed).withWatermark("event_time", f"{delay} milliseconds")
    if config.deduplicate:
        # Spark allows one watermark in a query. So the event time decides here, and ids are kept as long as windows.
        events = events.dropDuplicatesWithinWatermark(["nsqd", "message_id"])
    # With a blank in their names, which no field has.
    values = {aggregate.field: f"value {number}" for number, aggregate in enumerate(metric.aggregates)}
    kinds = {field: value_type(config.fields[field]) for field in values}
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
    """Build the groups that an event is in: that of all events, and one for each of its windows."""
    nothing = [F.lit(None).cast("string").alias(name) for name in metric.keys]
    yield F.struct(F.lit(None).cast("timestamp").alias("window_start"), *nothing)
    keys = [F.col(name).cast("string").alias(name) for name in metric.keys]
    time, slide = F.unix_micros("event_time"), metric.slide * _MICROSECONDS
    latest = time - F.pmod(time, F.lit(slide))
    for number in range(metric.windows):
        yield F.struct(F.timestamp_micros(latest - F.lit(number * slide)).alias("window_start"), *keys)


# --- in tasks


def _write_changed(batches: Iterator[Any], target: TableTarget, metric: Metric, epoch: int) -> Iterator[DataFile]:
    """Write the rows of windows; describe the row of all events as a file of no table, with their number."""
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
        yield DataFile(ENTERED, "", 0, entered, None, "")


def metric_body(metric: Metric, row: dict[str, Any]) -> bytes:
    """Write a row of the table as it is published: with the start of its window, and without the end."""
    names = (*metric.keys, "count", *(each.column for each in metric.aggregates), "epoch", "version")
    values = {"window": row["window_start"].strftime("%Y-%m-%dT%H:%M:%SZ")}
    # Escaped, a key of many letters of one script could exceed what nsqd takes.
    return json.dumps({**values, **{name: _json_value(row[name]) for name in names}}, ensure_ascii=False).encode()


def _json_value(value: Any) -> Any:  # Any: JSON
    if isinstance(value, Decimal):
        return float(value)
    # JSON has no other word for these.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
