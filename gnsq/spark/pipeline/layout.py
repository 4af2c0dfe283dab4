"""The tables of a job: where they are, and their columns and partitions. Does no I/O; knows no Spark."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.datafiles import Partition
from gnsq.spark.pipeline.schema import plain_type
from gnsq.spark.pipeline.tables import Table
from gnsq.spark.uris import join_uri

__all__ = ["archive_tables", "metrics_table", "query_tables"]

_TIME = pa.timestamp("us", tz="UTC")
_ORIGIN = [("message_id", pa.string()), ("nsqd", pa.string()), ("published_at", _TIME)]
_DEAD = pa.schema([("reason", pa.string()), ("body", pa.binary()), *_ORIGIN])
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_TYPES = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": _TIME,
}


def archive_tables(config: PipelineConfig) -> tuple[Table, ...]:
    """Describe the tables archive and dead; with raw, archive alone."""
    by, location = config.partition_by, join_uri(config.output, "archive")
    if config.raw:
        partition = None if by == "none" else Partition(by, "published_at")
        return (Table("archive", location, pa.schema([("body", pa.binary()), *_ORIGIN]), partition),)
    fields = [(name, _arrow_type(kind)) for name, kind in config.fields.items()]
    schema = pa.schema([("event_time", _TIME), *fields, ("body", pa.string()), *_ORIGIN])
    partition = None if by == "none" else Partition(by, "event_time" if by in ("day", "hour") else by)
    return (
        Table("archive", location, schema, partition),
        Table("dead", join_uri(config.output, "dead"), _DEAD, Partition("day", "published_at")),
    )


def metrics_table(config: PipelineConfig) -> Table:
    """Describe the table of the metric."""
    metric = config.metric
    location = join_uri(config.output, f"metrics/{metric.name}")
    return Table("metrics", location, metric.schema(config.fields), Partition("day", "window_start"))


def query_tables(config: PipelineConfig) -> dict[str, tuple[Table, ...]]:
    """Describe the tables that each query writes."""
    return {
        query: archive_tables(config) if query == "archive" else (metrics_table(config),) for query in config.queries
    }


def _arrow_type(kind: str) -> Any:  # Any: pyarrow has no types
    plain = plain_type(kind)
    match = _DECIMAL.fullmatch(plain)
    return pa.decimal128(int(match[1]), int(match[2])) if match is not None else _TYPES[plain]
