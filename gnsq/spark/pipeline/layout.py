"""The tables of a job: where they are, and their columns and partitions; and what was decided about that at the first
start, which is noted in the work directory. Knows no Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.delta import Table
from gnsq.spark.pipeline.maintenance import DAY, RETENTION
from gnsq.spark.pipeline.parquet import TableTarget
from gnsq.spark.pipeline.progress import checkpoint_id, read_note
from gnsq.spark.pipeline.schema import plain_type
from gnsq.spark.pipeline.topics import Layout, is_topic
from gnsq.spark.spool.ownership import read_owner
from gnsq.spark.spool.storage import open_store
from gnsq.spark.uris import join_uri, redact_uri

__all__ = [
    "archive_tables",
    "archive_targets",
    "former_tables",
    "maintained",
    "metrics_table",
    "note_layout",
    "note_tables",
    "query_tables",
    "topic_of",
    "topics_with_tables",
    "with_layout",
]

# The layout, in the work directory.
_LAYOUT = "layout.json"

_TIME = pa.timestamp("us", tz="UTC")
_ORIGIN = [("message_id", pa.string()), ("nsqd", pa.string()), ("published_at", _TIME)]
_DEAD = pa.schema([("reason", pa.string()), ("body", pa.binary()), *_ORIGIN])
# Columns in which almost every row has its own value.
_DISTINCT = {"body", "message_id"}
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
    """Describe the tables archive and dead of a topic; with raw, archive alone; if it fits no entry, left-JOB.

    Another job may read a topic that fits no entry now, and may own its tables. So messages that are left of it in the
    spool go to a table that has a hash of the job's work directory in its name, and the columns of the table dead.
    """
    return tuple(_table(config, *each) for each in _described(config, topic))


def archive_targets(config: PipelineConfig, topic: str, batch_id: int) -> tuple[TableTarget, ...]:
    """Build the TableTargets of archive_tables(), for tasks, which may meet a topic that the driver does not know."""
    return tuple(table.target(batch_id) for table in archive_tables(config, topic))


def former_tables(config: PipelineConfig, topic: str) -> tuple[Table, ...]:
    """Describe the tables of a topic while it had an entry; if it has one now, the table while it had none.

    Only to read their logs: the columns are not known.
    """
    names = ("archive", "dead") if config.entry_of(topic) is None else (_left(config),)
    return tuple(_table(config, _path(config, topic, name), pa.schema([("reason", pa.string())])) for name in names)


def metrics_table(config: PipelineConfig, query: str) -> Table:
    """Describe the table of a query's metric."""
    metric = config.metric_queries[query]
    schema = metric.schema(config.schema_of(metric.topic).fields)
    name = _path(config, metric.topic, f"metrics/{metric.name}")
    return _table(config, name, schema, ["_day"], "window_start")


def query_tables(config: PipelineConfig, query: str) -> tuple[Table, ...]:
    """Describe the tables that a query writes, as far as their topics are known."""
    if query != "archive":
        return (metrics_table(config, query),)
    topics = dict.fromkeys([*config.named_topics, *topics_with_tables(config)])
    return tuple(table for topic in topics for table in archive_tables(config, topic))


def maintained(config: PipelineConfig) -> tuple[list[str], float]:
    """Return the locations of the tables, and the retention for their maintenance: more than a running batch's age."""
    # Topics may have come since the job's start.
    config = with_layout(config)
    retention = RETENTION
    for query in config.queries:
        with contextlib.suppress(OSError, ValueError):
            note = read_note(config, query)
            if note.begun > note.committed and note.begun_at is not None:
                retention = max(retention, time.time() - note.begun_at.timestamp() + DAY)
    return [table.location for query in config.queries for table in query_tables(config, query)], retention


def topic_of(config: PipelineConfig, table: str) -> str:
    """Return the topic of a table archive or dead by the table's name."""
    return table.rpartition("/")[0] or config.placed.flat


def topics_with_tables(config: PipelineConfig) -> tuple[str, ...]:
    """Return the topics that have tables, as it was noted."""
    return tuple(dict.fromkeys(topic_of(config, table) for table in config.placed.tables))


def _path(config: PipelineConfig, topic: str, path: str) -> str:
    """Return the path of a table relative to output, which is its name."""
    directory = config.placed.directory(topic)
    return f"{directory}/{path}" if directory else path


def _left(config: PipelineConfig) -> str:
    """Return the name of the job's tables for messages of topics that fit no entry."""
    return f"left-{hashlib.sha256(config.notes_of('archive').encode()).hexdigest()[:8]}"


def _described(config: PipelineConfig, topic: str) -> Iterator[tuple[str, Any, list[str], str]]:
    """Yield the tables of archive_tables(): name, columns, partition columns, and the time that some are made from."""
    entry = config.entry_of(topic)
    if entry is not None:
        by, since = entry.partition_by, "published_at" if entry.raw else "event_time"
        fields = [(name, _arrow_type(kind)) for name, kind in entry.schema.fields.items()]
        columns = [("body", pa.binary())] if entry.raw else [("event_time", _TIME), *fields, ("body", pa.string())]
        divided = {"none": [], "day": ["_day"], "hour": ["_hour"]}.get(by, [by])
        yield _path(config, topic, "archive"), pa.schema([*columns, *_ORIGIN]), divided, since
    if entry is None or not entry.raw:
        yield _path(config, topic, _left(config) if entry is None else "dead"), _DEAD, ["_day"], "published_at"


def _table(
    config: PipelineConfig,
    name: str,
    schema: Any,  # Any: pyarrow has no types
    partition_by: Sequence[str] = (),
    time: str = "",
) -> Table:
    """Describe a table by its path relative to output."""
    return Table(name, join_uri(config.output, name), schema, partition_by, time=time, distinct=_DISTINCT)


def _arrow_type(kind: str) -> Any:  # Any: pyarrow has no types
    plain = plain_type(kind)
    match = _DECIMAL.fullmatch(plain)
    return pa.decimal128(int(match[1]), int(match[2])) if match is not None else _TYPES[plain]


# --- the layout, in the work directory


def with_layout(config: PipelineConfig) -> PipelineConfig:
    """Return the configuration with the layout that was decided at the job's first start, if the job has started.

    Raises:
        OSError: If the layout can't be read.
        ValueError: If it is damaged, or the settings do not fit it.
    """
    layout = _read_layout(config) or _earlier_layout(config)
    if layout is None:
        return config
    plain = layout.plain
    ids = {metric.id for metric in config.all_metrics}
    if ids and plain is not None and plain not in ids and _is_unused(config):
        plain = None
    if plain is None and config.all_metrics:
        first, *others = config.all_metrics
        plain = "" if others or first.id in layout.metrics else first.id
    return dataclasses.replace(config, layout=dataclasses.replace(layout, plain=plain))


def note_layout(config: PipelineConfig) -> None:
    """Note the layout and what the job has now, for with_layout() at later starts."""
    metrics = {metric.id: config.channel(query) for query, metric in config.metric_queries.items()}
    names = tuple(entry.name for entry in config.entries)
    outputs = tuple(dict.fromkeys([*config.placed.outputs, *config.outputs]))
    _write_layout(config, dataclasses.replace(config.placed, topics=names, metrics=metrics, outputs=outputs))


def note_tables(config: PipelineConfig, topic: str) -> None:
    """Note that the tables archive_tables() of a topic are made."""
    layout = _read_layout(config) or config.placed
    tables = tuple(dict.fromkeys([*layout.tables, *(name for name, *_ in _described(config, topic))]))
    if tables != layout.tables:
        _write_layout(config, dataclasses.replace(layout, tables=tables))


def _read_layout(config: PipelineConfig) -> Layout | None:
    try:
        with open_store(config.work, "work").open(_LAYOUT) as file:
            return Layout.from_json(file.read())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(
            f"{redact_uri(config.work)}/{_LAYOUT} can't be used: {error}: bring it back from a copy; it says where "
            "the tables lie"
        ) from error


def _write_layout(config: PipelineConfig, layout: Layout) -> None:
    store = open_store(config.work, "work")
    store.make_directory("")
    store.put(_LAYOUT, layout.to_json().encode())


def _earlier_layout(config: PipelineConfig) -> Layout | None:
    """Find out the layout of a job of an earlier release, which had one topic, and one metric or none."""
    source = str(read_owner(open_store(config.spool_of("archive"))).get("source", ""))
    topic = source.rpartition("/")[0]
    if not source:
        return None
    if not is_topic(topic):
        raise ValueError(
            f"{redact_uri(config.work)}/{_LAYOUT} is missing, and the job has read {source}: bring it back from a "
            "copy; it says where the tables lie"
        )
    try:
        with open_store(config.notes_of("metrics"), "work").open("made-with.json") as file:
            name = json.loads(file.read()).get("name")
    except (FileNotFoundError, ValueError):
        name = None
    if name is None:
        return Layout(topic, None, (topic,), {}, ("archive",))
    counted = str(read_owner(open_store(config.spool_of("metrics"))).get("source", ""))
    metric, channel = f"{topic}/{name}", counted.rpartition("/")[2] or config.metrics_channel
    outputs = (config.metrics_topic or f"{topic}-metrics", config.dead_letter_topic or f"{topic}-dead")
    return Layout(topic, metric, (topic,), {metric: channel}, ("archive",), outputs)


def _is_unused(config: PipelineConfig) -> bool:
    """Return True if the checkpoint of the query metrics is gone, so that another metric may have the query."""
    try:
        return checkpoint_id(config.checkpoint_of("metrics")) is None
    except (ValueError, JobFailed):
        return False
