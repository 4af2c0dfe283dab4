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


def archive_tables(config: PipelineConfig, topic: str) -> tuple[Table, ...]:
    """Describe the tables archive and dead of a topic; with raw, archive alone; if it fits no entry, dead alone."""
    entry = config.entry_of(topic)
    dead = _table(config, topic, "dead", _DEAD, Partition("day", "published_at"))
    if entry is None:
        return (dead,)
    by = entry.partition_by
    if entry.raw:
        partition = None if by == "none" else Partition(by, "published_at")
        return (_table(config, topic, "archive", pa.schema([("body", pa.binary()), *_ORIGIN]), partition),)
    fields = [(name, _arrow_type(kind)) for name, kind in entry.schema.fields.items()]
    schema = pa.schema([("event_time", _TIME), *fields, ("body", pa.string()), *_ORIGIN])
    partition = None if by == "none" else Partition(by, "event_time" if by in ("day", "hour") else by)
    return (_table(config, topic, "archive", schema, partition), dead)


def metrics_table(config: PipelineConfig, query: str) -> Table:
    """Describe the table of a query's metric."""
    metric = config.metric_queries[query]
    schema = metric.schema(config.schema_of(metric.topic).fields)
    return _table(config, metric.topic, f"metrics/{metric.name}", schema, Partition("day", "window_start"))


def query_tables(config: PipelineConfig, query: str) -> tuple[Table, ...]:
    """Describe the tables that a query writes, as far as their topics are known."""
    if query != "archive":
        return (metrics_table(config, query),)
    topics = dict.fromkeys([*config.named_topics, *config.placed.tables])
    return tuple(table for topic in topics for table in archive_tables(config, topic))


def _table(config: PipelineConfig, topic: str, path: str, schema: Any, partition: Partition | None) -> Table:
    """Describe a table. Its name is its path relative to output."""
    directory = config.placed.directory(topic)
    name = f"{directory}/{path}" if directory else path
    return Table(name, join_uri(config.output, name), schema, partition)


def _arrow_type(kind: str) -> Any:  # Any: pyarrow has no types
    plain = plain_type(kind)
    match = _DECIMAL.fullmatch(plain)
    return pa.decimal128(int(match[1]), int(match[2])) if match is not None else _TYPES[plain]
