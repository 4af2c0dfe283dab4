"""``--status``: where each query stands, by notes, spools, tables and nsqd. Starts no Spark, changes nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gnsq.errors import NSQException
from gnsq.spark.errors import JobFailed
from gnsq.spark.offsets import decode_offset
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.delta import Table
from gnsq.spark.pipeline.durable import open_location
from gnsq.spark.pipeline.layout import query_tables, with_layout
from gnsq.spark.pipeline.lock import describe
from gnsq.spark.pipeline.progress import Note, read_note
from gnsq.spark.pipeline.report import state_text, table_text
from gnsq.spark.source.channel import ChannelClient
from gnsq.spark.source.drain import Depth
from gnsq.spark.spool.spool import Spool
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted

__all__ = ["SpoolState", "depth_of", "spool_state", "status_lines", "table_state"]


@dataclass(frozen=True, slots=True)
class SpoolState:
    """Contents of a query's spool.

    Attributes:
        rows, size: Messages and bytes that are in no committed batch.
        oldest: When the oldest segment of these messages was written.
        set_aside, rows_set_aside: Numbers of segments that could not be read, and of their messages.
        receivers: Number of receivers that have not ended in order: they run, or were killed.
    """

    rows: int = 0
    size: int = 0
    oldest: dt.datetime | None = None
    set_aside: int = 0
    rows_set_aside: int = 0
    receivers: int = 0


def spool_state(config: PipelineConfig, query: str, offset: Any) -> SpoolState:  # Any: JSON
    """List the spool of a query.

    Args:
        offset: The source's offset up to which committed batches have read; None: they have read nothing.

    Raises:
        NSQException, OSError: If it can't be read.
        ValueError: If the offset is of another topic or channel.
    """
    location = config.spool_of(query)
    contents = Spool(location).listing()
    vector = decode_offset(offset, config.read_options(query).source) if offset is not None else {}
    waiting = contents.segments.totals(vector)
    filesystem, root = open_location(location)
    first = [next(segments) for segments in contents.segments.waiting(vector).values()]
    times = [info.mtime for info in filesystem.get_file_info([f"{root}/{segment.path}" for segment in first])]
    return SpoolState(
        waiting.rows,
        waiting.size,
        # A segment that the query has just deleted has no time.
        min((time for time in times if time is not None), default=None),
        len(contents.quarantined),
        contents.rows_quarantined,
        len(contents.receivers - contents.closed),
    )


def depth_of(config: PipelineConfig, query: str) -> int:
    """Ask how many messages nsqd has for a query, waiting and in flight.

    Raises:
        NSQException: If an nsqd does not answer, or none is known.
    """
    client = ChannelClient(config.read_options(query))
    try:
        # Before the job starts, it refuses a topic that no nsqd has and that it has never read.
        return client.depth(may_be_missing=True).total
    finally:
        client.close()


def status_lines(config: PipelineConfig, now: dt.datetime) -> Iterable[str]:
    """Format the state of each query as lines. If a fact can't be found out, a line says so."""
    try:
        yield f"job      {describe(config.work)}"
        config = with_layout(config)
    except (OSError, ValueError, JobFailed) as error:
        yield f"job      unknown: {error}"
    if config.topic_pattern and config.receivers == "external":
        yield f"         receivers need --topic-pattern '{config.topic_pattern}'"
    depths = _depths(config)
    for query in config.queries:
        note = Note()
        try:
            note = read_note(config, query)
            yield f"{query:8} {_progress(note, now)}"
        except (OSError, ValueError) as error:
            yield f"{query:8} {error}"
        if note.state_rows:
            yield f"         {state_text(note.state_rows, note.state_bytes)}"
        try:
            yield f"         spool {_spool(spool_state(config, query, note.offset), now)}"
        except (NSQException, OSError, ValueError) as error:
            yield f"         spool {redact_uri(config.spool_of(query))}: {error}"
        for table in query_tables(config, query):
            if text := table_state(table, now):
                yield f"         table {table.name} {text}"
        yield from _nsqd_lines(config, query, depths)


def _depths(config: PipelineConfig) -> dict[tuple[str, str], Depth] | str:
    """Ask nsqd for the depths of all topics and channels. Return the error as text if that fails."""
    if not config.nsqd_http_addresses and not config.lookupd_http_addresses:
        return {}
    try:
        client = ChannelClient(config.read_options("archive"))
        try:
            return client.depths({config.channel(query) for query in config.queries})
        finally:
            client.close()
    except (NSQException, ValueError) as error:
        return str(error)


def _nsqd_lines(config: PipelineConfig, query: str, depths: Mapping[tuple[str, str], Depth] | str) -> Iterator[str]:
    if isinstance(depths, str):
        yield f"         nsqd unknown: {depths}"
        return
    metric = config.metric_queries.get(query)
    is_only = metric is not None or (len(config.entries) == 1 and not config.topic_pattern)
    for (topic, channel), depth in sorted(depths.items()):
        if channel == config.channel(query) and (metric is None or metric.topic == topic):
            name = "" if is_only else f"topic {topic} "
            yield f"         nsqd {name}{counted(depth.total, 'message', spec=',')} waiting or in flight"


def _progress(note: Note, now: dt.datetime) -> str:
    if note.begun < 0:
        return "no batch yet"
    text = "no batch committed"
    if note.committed >= 0:
        text = f"batch {note.committed} committed{_at(note.committed_at, now)}"
        if note.lag is not None:
            text += f", lag {note.lag:,.1f} s"
    if note.begun > note.committed:
        text += f", batch {note.begun} begun{_at(note.begun_at, now)}"
    return text


def table_state(table: Table, now: dt.datetime) -> str:
    """Describe a table: its size, its last commit, its maintenance. Return "" if it does not exist."""
    try:
        if not table.exists():
            return ""
        status = table.status()
    except (JobFailed, OSError, ValueError) as error:
        return f"unknown: {error}"
    text = table_text(status.rows, status.files, status.size)
    if status.entered is not None:
        text += f" of {counted(status.entered, 'event', spec=',')}"
    if status.committed_at is not None:
        text += f", committed{_at(status.committed_at, now)}"
    if status.maintained_at is not None:
        text += f", files merged{_at(status.maintained_at, now)}"
    return text


def _at(time: dt.datetime | None, now: dt.datetime) -> str:
    return "" if time is None else f" {time:%Y-%m-%d %H:%M:%S} UTC ({_age(time, now)} ago)"


def _age(time: dt.datetime, now: dt.datetime) -> str:
    return str(dt.timedelta(seconds=max(round((now - time).total_seconds()), 0)))


def _spool(state: SpoolState, now: dt.datetime) -> str:
    parts = [f"{counted(state.rows, 'row', spec=',')}, {counted(state.size, 'byte', spec=',')} waiting"]
    if state.oldest is not None:
        parts.append(f"the oldest for {_age(state.oldest, now)}")
    if state.set_aside:
        segments, rows = counted(state.set_aside, "segment", spec=","), counted(state.rows_set_aside, "row", spec=",")
        parts.append(f"{segments} with {rows} set aside as unreadable")
    if state.receivers:
        parts.append(f"{counted(state.receivers, 'receiver')} not closed")
    return ", ".join(parts)
