"""The tables of a job: where they are, and their columns and partitions. Does no I/O; knows no Spark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gnsq.spark.pipeline.batches import BatchTable
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.datafiles import Partition
from gnsq.spark.pipeline.schema import plain_type
from gnsq.spark.pipeline.tables import Table
from gnsq.spark.uris import join_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def archive_tables(config: PipelineConfig, topic: str, spark: SparkSession | None = None) -> tuple[BatchTable, ...]:
    """Describe the tables archive and dead of a topic; with raw, archive alone; if it fits no entry, dead alone.

    Args:
        spark: For tables that Spark writes. Without it, such a table only tells its status.
    """

    def table(path: str, schema: Any, partition: Partition | None) -> BatchTable:  # Any: pyarrow has no types
        return _table(config, "archive", topic, path, schema, partition, spark)

    entry = config.entry_of(topic)
    dead = table("dead", _DEAD, Partition("day", "published_at"))
    if entry is None:
        return (dead,)
    by = entry.partition_by
    if entry.raw:
        partition = None if by == "none" else Partition(by, "published_at")
        return (table("archive", pa.schema([("body", pa.binary()), *_ORIGIN]), partition),)
    fields = [(name, _arrow_type(kind)) for name, kind in entry.schema.fields.items()]
    schema = pa.schema([("event_time", _TIME), *fields, ("body", pa.string()), *_ORIGIN])
    partition = None if by == "none" else Partition(by, "event_time" if by in ("day", "hour") else by)
    return (table("archive", schema, partition), dead)


def metrics_table(config: PipelineConfig, query: str, spark: SparkSession | None = None) -> BatchTable:
    """Describe the table of a query's metric; ``spark`` as in archive_tables()."""
    metric = config.metric_queries[query]
    schema = metric.schema(config.schema_of(metric.topic).fields)
    path = f"metrics/{metric.name}"
    return _table(config, query, metric.topic, path, schema, Partition("day", "window_start"), spark)


def query_tables(config: PipelineConfig, query: str, spark: SparkSession | None = None) -> tuple[BatchTable, ...]:
    """Describe the tables that a query writes, as far as their topics are known; ``spark`` as in archive_tables()."""
    if query != "archive":
        return (metrics_table(config, query, spark),)
    topics = dict.fromkeys([*config.named_topics, *config.placed.tables])
    return tuple(table for topic in topics for table in archive_tables(config, topic, spark))


def _table(
    config: PipelineConfig,
    query: str,
    topic: str,
    path: str,
    schema: Any,  # Any: pyarrow has no types
    partition: Partition | None,
    spark: SparkSession | None,
) -> BatchTable:
    """Describe a table. Its name is its path relative to output; in a catalog, it has the name of this path."""
    directory = config.placed.directory(topic)
    name = f"{directory}/{path}" if directory else path
    if not config.is_spark_writer:
        return Table(name, join_uri(config.output, name), schema, partition)
    from gnsq.spark.pipeline.sparktables import SparkTable, catalog_table, path_table

    return SparkTable(
        name,
        catalog_table(config.catalog, name) if config.catalog else path_table(join_uri(config.output, name)),
        schema,
        partition,
        form=config.table_writer.removeprefix("spark-"),
        staged=join_uri(config.staged_of(query), name),
        note=config.notes_of(query),
        spark=spark,
    )


def _arrow_type(kind: str) -> Any:  # Any: pyarrow has no types
    plain = plain_type(kind)
    match = _DECIMAL.fullmatch(plain)
    return pa.decimal128(int(match[1]), int(match[2])) if match is not None else _TYPES[plain]
