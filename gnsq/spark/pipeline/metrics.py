"""Query metrics: counts by window and key over event time, in update mode.

The counts are carried in a state of our own instead of Spark's: Spark's windowed aggregation drops what is later than
the watermark without showing it, and a streaming query has one output. Here late events are split off first and
written to late/, so that none is dropped unseen. The state of batch N is made of that of batch N-1 and the batch, so
that a batch that runs again gives the same; open windows times keys have to fit into the driver's memory, and are
bounded by a setting. Times are whole numbers here: Spark's driver hands over naive ones of its own zone.

A row has window, key, count and version: the same window comes again with a higher version when its count has
grown, and readers keep the highest.
"""

from __future__ import annotations

import datetime as dt
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gnsq.spark.errors import JobFailed
from gnsq.spark.options import WriteOptions
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.counts import EMPTY, Count, State, advance, decode_state, encode_state, updates, watermark
from gnsq.spark.pipeline.events import well_formed
from gnsq.spark.pipeline.objects import open_files
from gnsq.spark.sink import publish
from gnsq.spark.spool.storage import open_store
from gnsq.spark.uris import join_uri

__all__ = ["MetricsBatches", "metric_body"]

_STATE = re.compile(r"state-(\d{12})\.json")
# The state before the last is needed when the last batch runs again.
_KEPT = 2
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class MetricsBatches:
    """What foreachBatch calls."""

    def __init__(self, config: PipelineConfig) -> None:
        self.late = 0
        self._delay = dt.timedelta(seconds=config.watermark_delay)
        self._window = dt.timedelta(seconds=config.window_length)
        self._key = config.key_field
        self._bound = config.max_open_counts
        self._sink = WriteOptions.parse(config.sink_options(config.metrics_to))
        self._late = open_files(join_uri(config.output, "late"))
        self._location = f"{config.work}/metrics"
        self._store = open_store(f"{self._location}/state")
        self._metrics = open_store(join_uri(config.output, "metrics"), "output")
        for store in (self._store, self._metrics):
            store.make_directory("")

    def __call__(self, parsed: DataFrame, batch_id: int, owner: str) -> None:
        """Count one batch of what events.parse() returns."""
        before = self._state_before(batch_id)
        closed = watermark(before, self._delay)
        start = _start(self._window).alias("start")
        is_late = _is_late(start, self._window, closed)
        events = well_formed(parsed).persist()
        try:
            grouped = events.groupBy(start, F.col(self._key).cast("string").alias("key"), is_late.alias("late"))
            latest = F.max(F.unix_micros("event_time")).alias("latest")
            rows = grouped.agg(F.count("*").alias("events"), latest).collect()
            late = sum(row["events"] for row in rows if row["late"])
            if late:
                self._late.write(events.where(is_late).drop("body"), batch_id)
        finally:
            events.unpersist()
        on_time = [(_time(row["start"]), row["key"], row["events"]) for row in rows if not row["late"]]
        newest = max((_time(row["latest"]) for row in rows), default=None)
        state = advance(before, batch_id, on_time, late, newest, closed, self._window)
        self._check_bound(state)
        self._store.put(f"state-{batch_id:012d}.json", encode_state(state))
        self._emit(state)
        self._prune(batch_id)
        self.late += late

    def _check_bound(self, state: State) -> None:
        if len(state.counts) > self._bound:
            raise JobFailed(
                f"{len(state.counts)} windows and keys are open, max_open_counts is {self._bound}: choose a key_field "
                f"with fewer values than {self._key}, a shorter watermark_delay, or a higher max_open_counts"
            )

    def _emit(self, state: State) -> None:
        """Write what has changed, then publish it: a batch that runs again gives the same rows."""
        changed = updates(state)
        if not changed:
            return
        sink = pa.BufferOutputStream()
        pq.write_table(_table(changed, self._window), sink)
        self._metrics.put(f"batch-{state.batch_id:012d}.parquet", sink.getvalue())
        bodies = pa.array([metric_body(count) for count in changed], pa.binary())
        publish(iter([pa.RecordBatch.from_arrays([bodies], names=["body"])]), self._sink)

    def _states(self) -> dict[int, str]:
        matches = (_STATE.fullmatch(path) for path, _ in self._store.list())
        return {int(match[1]): match[0] for match in matches if match is not None}

    def _state_before(self, batch_id: int) -> State:
        earlier = {number: path for number, path in self._states().items() if number < batch_id}
        if not earlier and batch_id == 0:
            return EMPTY
        if not earlier:
            raise JobFailed(
                f"no state before batch {batch_id} in {self._location}/state: bring it back, or start anew with an "
                f"empty {self._location}"
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
        },
        # Escaped, a key of many letters of one script could exceed what nsqd takes.
        ensure_ascii=False,
    ).encode()


def _start(window: dt.timedelta) -> Column:
    """Compute the start of an event's window, in microseconds."""
    micros = window // _MICROSECOND
    time = F.unix_micros("event_time")
    return time - F.pmod(time, F.lit(micros))


def _is_late(start: Column, window: dt.timedelta, closed: dt.datetime | None) -> Column:
    """Whether an event's window ended at or before the watermark."""
    if closed is None:
        return F.lit(False)
    return start + F.lit(window // _MICROSECOND) <= F.lit((closed - _EPOCH) // _MICROSECOND)


def _time(micros: int) -> dt.datetime:
    return _EPOCH + micros * _MICROSECOND


def _table(counts: list[Count], window: dt.timedelta) -> pa.Table:
    stamp = pa.timestamp("us", tz="UTC")
    return pa.table(
        {
            "window_start": pa.array([count.start for count in counts], stamp),
            "window_end": pa.array([count.start + window for count in counts], stamp),
            "key": pa.array([count.key for count in counts], pa.string()),
            "count": pa.array([count.count for count in counts], pa.int64()),
            "version": pa.array([count.version for count in counts], pa.int64()),
        }
    )
