"""Query metrics: one-minute counts by page over event time, in update mode.

The counts are carried in a state of our own instead of Spark's: Spark's windowed aggregation drops what is later than
the watermark without showing it, and a streaming query has one output. Here late events are split off first and
written to late/, so that none is dropped unseen. The state of batch N is made of that of batch N-1 and the batch, so
that a batch that runs again gives the same; open windows times keys have to fit into the driver's memory.

A row has window, key, count and version: the same window comes again with a higher version when its count has
grown, and readers keep the highest.
"""

from __future__ import annotations

import datetime as dt
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from gnsq.spark.errors import SpoolError
from gnsq.spark.options import WriteOptions
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.counts import EMPTY, Count, State, advance, decode_state, encode_state, updates, watermark
from gnsq.spark.pipeline.events import parse, well_formed
from gnsq.spark.pipeline.files import BatchFiles
from gnsq.spark.sink import publish
from gnsq.spark.store import open_store

__all__ = ["MetricsBatches", "metric_body"]

WINDOW = dt.timedelta(minutes=1)
_STATE = re.compile(r"state-(\d{12})\.json")
# The state before the last is needed when the last batch runs again.
_KEPT = 2


class MetricsBatches:
    """What foreachBatch calls."""

    def __init__(self, config: PipelineConfig, publish_addresses: tuple[str, ...]) -> None:
        self._config = config
        self._delay = dt.timedelta(seconds=config.watermark_delay)
        self._addresses = publish_addresses
        self._late = BatchFiles(f"{config.output}/late")
        self._store = open_store(f"{config.work}/metrics/state")
        self._metrics = open_store(f"{config.output}/metrics")
        for store in (self._store, self._metrics):
            store.make_directory("")

    def __call__(self, messages: DataFrame, batch_id: int) -> None:
        """Count one batch."""
        before = self._state_before(batch_id)
        closed = watermark(before, self._delay)
        events = well_formed(parse(messages, self._config.max_ahead)).persist()
        try:
            rows = _counted(events, closed)
            late = sum(row["events"] for row in rows if row["late"])
            if late:
                self._late.write(events.where(_is_late(closed)).drop("body"), batch_id)
        finally:
            events.unpersist()
        on_time = [(_utc(row["start"]), row["page"], row["events"]) for row in rows if not row["late"]]
        latest = max((_utc(row["latest"]) for row in rows), default=None)
        state = advance(before, batch_id, on_time, late, latest, closed, WINDOW)
        self._store.put(f"state-{batch_id:012d}.json", encode_state(state))
        self._emit(state)
        self._prune(batch_id)

    def _emit(self, state: State) -> None:
        """Write what has changed, then publish it: a batch that runs again gives the same rows."""
        changed = updates(state)
        if not changed:
            return
        sink = pa.BufferOutputStream()
        pq.write_table(_table(changed), sink)
        self._metrics.put(f"batch-{state.batch_id:012d}.parquet", sink.getvalue())
        options = WriteOptions(topic=self._config.metrics_to, nsqd_tcp_addresses=self._addresses)
        bodies = pa.array([metric_body(count) for count in changed], pa.binary())
        publish(iter([pa.RecordBatch.from_arrays([bodies], names=["body"])]), options)

    def _states(self) -> dict[int, str]:
        matches = (_STATE.fullmatch(path) for path, _ in self._store.list())
        return {int(match[1]): match[0] for match in matches if match is not None}

    def _state_before(self, batch_id: int) -> State:
        earlier = {number: path for number, path in self._states().items() if number < batch_id}
        if not earlier and batch_id == 0:
            return EMPTY
        if not earlier:
            raise SpoolError(
                f"no state before batch {batch_id} in {self._config.work}/metrics/state: bring it back, or start anew "
                f"with an empty {self._config.work}/metrics"
            )
        with self._store.open(earlier[max(earlier)]) as file:
            return decode_state(file.read())

    def _prune(self, batch_id: int) -> None:
        for number, path in self._states().items():
            if number <= batch_id - _KEPT:
                self._store.remove(path)


def metric_body(count: Count) -> bytes:
    """Write a count as it is published."""
    return json.dumps(
        {
            "window": count.start.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "key": count.key,
            "count": count.count,
            "version": count.version,
        }
    ).encode()


def _counted(events: DataFrame, closed: dt.datetime | None) -> list[Row]:
    start = F.date_trunc("minute", "event_time").alias("start")
    grouped = events.groupBy(start, "page", _is_late(closed).alias("late"))
    rows: list[Row] = grouped.agg(F.count("*").alias("events"), F.max("event_time").alias("latest")).collect()
    return rows


def _is_late(closed: dt.datetime | None) -> Column:
    """Whether an event's window ended at or before the watermark."""
    if closed is None:
        return F.lit(False)
    end = F.date_trunc("minute", "event_time") + F.expr("INTERVAL 1 MINUTE")
    return end <= F.lit(closed)


def _utc(time: dt.datetime) -> dt.datetime:
    """Spark hands over naive times of the driver's zone."""
    return time.astimezone(dt.UTC)


def _table(counts: list[Count]) -> pa.Table:
    stamp = pa.timestamp("us", tz="UTC")
    return pa.table(
        {
            "window_start": pa.array([count.start for count in counts], stamp),
            "window_end": pa.array([count.start + WINDOW for count in counts], stamp),
            "key": pa.array([count.key for count in counts], pa.string()),
            "count": pa.array([count.count for count in counts], pa.int64()),
            "version": pa.array([count.version for count in counts], pa.int64()),
        }
    )
