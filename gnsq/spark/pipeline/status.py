"""Status: one record for each query and each metric, and the texts that are made of it.

The job's threads keep the records by `Status` and `CountStatus`. They are read by the lines for batches and counts, the
summary and the exporter, and those of queries by ``--status`` from files in the notes. Reads Spark's JSON, but does not
import Spark, since ``--status`` does not start it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from gevent.pool import Pool

from gnsq.errors import NSQException
from gnsq.spark.errors import JobFailed
from gnsq.spark.offsets import decode_offset
from gnsq.spark.pipeline.delta import Table
from gnsq.spark.pipeline.durable import open_location
from gnsq.spark.pipeline.lock import describe
from gnsq.spark.pipeline.parquet import DataFile
from gnsq.spark.pipeline.settings import JobSettings, Query
from gnsq.spark.pipeline.snapshot import COUNTED, open_snapshot
from gnsq.spark.source.channel import ChannelClient
from gnsq.spark.spool.spool import Spool
from gnsq.spark.spool.storage import open_store
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted, without_secrets

if TYPE_CHECKING:
    from gnsq.spark.pipeline.metrics import Count  # loads pyspark

__all__ = [
    *["OBSERVED", "CountStatus", "Counts", "MetricStatus", "QueryStatus", "Status", "Summary", "batch_line"],
    *["count_line", "depth_of", "longest_batch", "read_status", "status_lines", "summary_lines"],
    "table_text",
]

logger = logging.getLogger(__name__)

# Name of the observation of a query's events, by DataFrame.observe(): malformed, rescued and entered as in Counts, and
# latest, the newest published_at in microseconds.
OBSERVED = "gnsq"
_NAME = "status.json"
# In the notes of a metric: why its last count has failed.
_FAILURE = "failure.txt"
# Fields of a record that belong to the checkpoint. All others are of one run of the job.
_OF_CHECKPOINT = ("begun", "begun_at", "committed", "committed_at", "offset", "state_rows", "state_bytes")
# Requests to nsqd at the same time: an nsqd that does not answer delays --status once, not once for each query.
_CONCURRENT_REQUESTS = 10


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of events.

    Attributes:
        rows: Messages that the source gave.
        entered: Events that reached the table: they are right, and the setting where keeps them.
        malformed: Events that do not fit, and are dead letters.
        rescued: Events of which some values did not fit and are in _rescued.
        duplicates: Messages left out since they came before (setting deduplicate).
    """

    rows: int = 0
    entered: int = 0
    malformed: int = 0
    rescued: int = 0
    duplicates: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sums of both."""
        return Counts(*map(sum, zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStatus:
    """Where a query stands. Times are Unix times.

    Attributes:
        is_running: False while it waits to be started again, and after its end.
        failure: Why it has failed; "" after its next committed batch.
        restart_at, restarts: When it is started again, if it waits for that; how often that was done in this run.
        begun, begun_at: Its last batch that has begun, and when; -1 if the checkpoint has none.
        committed, committed_at: Its last batch that Spark has committed, and when by Spark's clock; -1 likewise.
        offset: The source's offset at the end of the last committed batch.
        state_rows, state_bytes: Size of the query's state in Spark; bytes on disk and in memory.
        started_at: When this run of the job began.
        total, batches: Sum of all batches of the run, and number of those with rows.
        last, seconds: Numbers of the last batch with rows, and how long it took.
        tables: Table -> numbers of rows and of files that this batch has committed to it.
        lag: Seconds from the publishing of its newest message to its end; 0 after all is read; None if unknown.
        progress_at: When Spark has told of the query last, also while it is idle; at first, when the run began.
        rate: Rows per second of the last batch; 0 while there is nothing to read; None before the first progress.
        waiting: Messages that nsqd still has for the query, also in flight; None if unknown.
        spooled: Messages in the spool that are in no committed batch; None if unknown.
        trouble: What keeps messages from being received; "" for nothing.
    """

    name: str
    is_running: bool = False
    failure: str = ""
    restart_at: float | None = None
    restarts: int = 0
    begun: int = -1
    begun_at: float = 0.0
    committed: int = -1
    committed_at: float = 0.0
    offset: Any = None  # Any: JSON
    state_rows: int = 0
    state_bytes: int = 0
    started_at: float = 0.0
    total: Counts = Counts()
    batches: int = 0
    last: Counts = Counts()
    seconds: float | None = None
    tables: Mapping[str, Sequence[int]] = field(default_factory=dict)
    lag: float | None = None
    progress_at: float = 0.0
    rate: float | None = None
    waiting: int | None = None
    spooled: int | None = None
    trouble: str = ""

    @property
    def backlog(self) -> int | None:
        """Messages at nsqd and in the spool; None if neither is known."""
        known = [number for number in (self.waiting, self.spooled) if number is not None]
        return sum(known) if known else None

    @property
    def has_trouble(self) -> bool:
        """True if the query fails, or something keeps messages from it."""
        return bool(self.failure or self.trouble)

    def problem(self, now: float) -> str:
        """Describe the trouble; "" for none."""
        if self.restart_at is None:
            return self.failure or self.trouble
        return f"{self.failure}; starts again in {max(self.restart_at - now, 0.0):.0f} s"


class Status:
    """Keeps the record of a query, and writes it to the query's notes. Any thread may call it.

    The file may be one batch behind if the job is killed just after Spark's commit. While the query is idle, it is
    written only when the trouble changes, since each writing may be a request to an object store.

    Args:
        log: Where Spark's messages are, for warnings.
        now: Returns the Unix time.

    Attributes:
        record: The present status. Another object takes its place with each change.
    """

    def __init__(self, query: Query, *, log: str = "Spark's log", now: Callable[[], float] = time.time) -> None:
        self._query = query
        self._log = log
        self._now = now
        self._lock = threading.Lock()
        self._store = open_store(query.notes, "work")
        self._store.make_directory("")
        # Without an HTTP address, nobody is asked for the number of waiting messages.
        options = query.read_options
        self._is_asked = bool(options.nsqd_http_addresses or options.lookupd_http_addresses)
        # Number of progresses in a row that had no rows though something should have come.
        self._silent = 0
        new = QueryStatus(name=query.name, started_at=now(), progress_at=now())
        self.record = _with_checkpoint_of(read_status(query), new)

    def running(self) -> None:
        """Record that the query was started; if it was waiting, started again."""
        restarts = self.record.restarts + (self.record.restart_at is not None)
        self._change(is_running=True, restart_at=None, restarts=restarts)

    def failed(self, reason: str, retry_in: float | None = None) -> None:
        """Record that the query has failed, and is started again after some seconds; None: it is not."""
        restart_at = None if retry_in is None else self._now() + retry_in
        self._change(is_running=False, failure=reason, restart_at=restart_at)

    def stopped(self) -> None:
        """Record that the query has ended, or is not started again."""
        self._change(is_running=False, restart_at=None)

    def _change(self, **values: Any) -> None:  # Any: fields of the record
        with self._lock:
            self._silent = 0
            self._write(dataclasses.replace(self.record, rate=0.0, trouble="", **values))

    def begin(self, batch_id: int) -> None:
        """Record that a batch begins."""
        with self._lock:
            record = self._after(batch_id - 1)
            self._write(dataclasses.replace(record, begun=batch_id, begun_at=self._now()))

    def finish(self, progress: Any, files: Sequence[DataFile] = ()) -> None:  # Any: Spark's JSON
        """Record a batch that Spark has committed, with or without rows.

        Args:
            files: What the batch has committed to tables.
        """
        batch_id, counts = progress["batchId"], _counts(progress)
        if late := sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"]):
            logger.error(
                "query %s, batch %d: Spark has dropped %s as late, since the driver's clock was set back "
                "by more than the setting deduplicate; the results lack what was dropped",
                *(self._query.name, batch_id, counted(late, "row")),
            )
        with self._lock:
            record = self._after(batch_id)
            # For a batch without rows, begin() is not called.
            values = {"failure": "", "committed": batch_id, "begun": max(batch_id, record.begun)}
            values |= {"committed_at": _ended_at(progress), "offset": _json(progress["sources"][0]["endOffset"])}
            if counts.rows:
                rows: dict[str, list[int]] = {}
                for file in files:
                    rows.setdefault(file.table, []).append(file.rows)
                tables = {table: (sum(numbers), len(numbers)) for table, numbers in rows.items()}
                values |= {"last": counts, "seconds": _seconds(progress), "tables": tables}
                values |= {"total": record.total.plus(counts), "batches": record.batches + 1}
            self._write(dataclasses.replace(self._told(record, progress), **values))

    def idle(self, progress: Any) -> None:  # Any: Spark's JSON
        """Record the last progress of an idle query."""
        # It may be that of the next batch already, which finish() gets.
        if progress["numInputRows"]:
            return
        with self._lock:
            before, self.record = self.record, self._told(self.record, progress)
            if self.record.trouble != before.trouble:
                self._write(self.record)

    def _after(self, committed: int) -> QueryStatus:
        """Return the record, if this batch of its checkpoint may be committed. A record of later batches is another
        checkpoint's: then return it without what belongs to that."""
        if committed >= self.record.committed:
            return self.record
        return _with_checkpoint_of(QueryStatus(name=self._query.name), self.record)

    def _told(self, record: QueryStatus, progress: Any) -> QueryStatus:  # Any: Spark's JSON
        """Return the record with what each progress tells: backlog, trouble, rate, lag and size of the state."""
        source = _json(progress["sources"][0]["latestOffset"]) or {}
        rows, seconds, operators = progress["numInputRows"], _seconds(progress), progress["stateOperators"]
        waiting = source["waiting"] + source["in_flight"] if "waiting" in source else None
        spooled, trouble, lag = source.get("spool_rows"), self._trouble(rows, source), record.lag
        if rows:
            latest = _observed(progress).get("latest")
            lag = None if latest is None else max(_ended_at(progress) - latest / 1e6, 0.0)
        elif lag is not None and not (waiting or spooled or trouble):
            lag = 0.0
        return dataclasses.replace(
            record,
            progress_at=self._now(),
            rate=rows / seconds if seconds else 0.0,
            lag=lag,
            waiting=waiting,
            spooled=spooled,
            trouble=trouble,
            state_rows=sum(operator["numRowsTotal"] for operator in operators),
            state_bytes=sum(operator["memoryUsedBytes"] for operator in operators)
            + _custom(operators, "rocksdbSstFileSize"),
        )

    def _trouble(self, rows: int, source: Mapping[str, Any]) -> str:
        """Return what keeps messages from being received. Log it once if a query gets none though it should.

        Without rows it counts from the second progress in a row: the first may show a message that is just on its way.
        """
        text = str(source.get("trouble", ""))
        if rows:
            self._silent = 0
            return text
        # Without spool_rows the source has not told yet. PySpark 4.1 never asks it.
        if not text and self._is_asked and "spool_rows" in source and "waiting" not in source:
            options = self._query.read_options
            servers = (*options.nsqd_http_addresses, *options.lookupd_http_addresses)
            asked = ", ".join(map(without_secrets, servers))
            text = f"no rows, and what waits at nsqd is not known: no full answer of {asked}, or of the nsqds it knows"
        if not text and source.get("waiting"):
            waiting = counted(source["waiting"], "message waits", "messages wait", spec=",")
            text = (
                f"{waiting} at nsqd, and none comes: is the topic or channel paused, or have other consumers them all?"
            )
        self._silent = self._silent + 1 if text else 0
        if self._silent == 2:
            logger.warning("query %s: %s; see %s", self._query.name, text, self._log)
        return text if self._silent >= 2 else ""

    def _write(self, record: QueryStatus) -> None:
        self.record = record
        try:
            self._store.put(_NAME, json.dumps(dataclasses.asdict(record)).encode())
        except OSError as error:
            # Nothing depends on the file, so the job goes on.
            logger.warning("status of %s not written: %s", record.name, error)


def _with_checkpoint_of(other: QueryStatus, record: QueryStatus) -> QueryStatus:
    return dataclasses.replace(record, **{name: getattr(other, name) for name in _OF_CHECKPOINT})


def read_status(query: Query) -> QueryStatus:
    """Read a query's record; an empty one if there is none yet, or if the file is damaged. May raise OSError."""
    try:
        with open_store(query.notes, "work").open(_NAME) as file:
            fields = json.loads(file.read())
        return QueryStatus(**{**fields, **{name: Counts(**fields[name]) for name in ("total", "last")}})
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        path = f"{redact_uri(query.notes)}/{_NAME}"
        logger.warning("%s is not a status of the job, the next batch writes it anew: %r", path, error)
    return QueryStatus(name=query.name)


# --- metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricStatus:
    """What the counts of a metric have done in this run.

    Attributes:
        version: Version of the table of events that the last count with events has read; -1: none.
        counted_at: Unix time before which all events of the table are counted that were committed; None: not yet.
        rows, seconds: How many rows the last count with events has written, and how long it took.
        failure: Why the last count has failed; "" for nothing.
    """

    name: str
    version: int = -1
    counted_at: float | None = None
    rows: int = 0
    seconds: float | None = None
    failure: str = ""

    @property
    def has_trouble(self) -> bool:
        """True if the last count has failed."""
        return bool(self.failure)


class CountStatus:
    """Keeps the record of a metric, during a run, and notes for ``--status`` why its last count has failed.

    Args:
        notes: Directory of the note.

    Attributes:
        record: The present status.
    """

    def __init__(self, name: str, notes: str) -> None:
        self.record = MetricStatus(name=name)
        self._notes = notes
        # What the note says; None: not known.
        self._noted: str | None = None

    def counted(self, count: Count | None, looked_at: float) -> None:
        """Record a count that began at this Unix time; None: it has found no event."""
        self.record = dataclasses.replace(self.record, counted_at=looked_at)
        if count is not None:
            seconds = time.time() - looked_at
            self.record = dataclasses.replace(self.record, version=count.version, rows=count.rows, seconds=seconds)
        self.failed("")

    def failed(self, reason: str) -> None:
        """Record that a count has failed; "": that it has not."""
        self.record = dataclasses.replace(self.record, failure=reason)
        if reason != self._noted:
            try:
                store = open_store(self._notes, "work")
                store.make_directory("")
                store.put(_FAILURE, reason.encode())
                self._noted = reason
            except OSError as error:
                # Nothing depends on the file, so the job goes on.
                logger.warning("status of %s not written: %s", self.record.name, error)


def _noted_failure(notes: str) -> str:
    try:
        with open_store(notes, "work").open(_FAILURE) as file:
            text: str = file.read().decode(errors="replace")
            return text
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error)


def longest_batch(records: Iterable[QueryStatus], now: float) -> float:
    """Return for how many seconds the oldest batch has run that is not committed; 0 if there is none."""
    return max((now - record.begun_at for record in records if record.begun > record.committed), default=0.0)


# --- Spark's progress, in its JSON


def _counts(progress: Any) -> Counts:
    observed, operators = _observed(progress), progress["stateOperators"]
    return Counts(
        rows=progress["numInputRows"],
        **{name: observed.get(name) or 0 for name in ("entered", "malformed", "rescued")},
        duplicates=_custom(operators, "numDroppedDuplicateRows"),
    )


def _observed(progress: Any) -> Any:
    return progress.get("observedMetrics", {}).get(OBSERVED) or {}


def _seconds(progress: Any) -> float:
    return float(progress["durationMs"].get("triggerExecution", 0)) / 1000


def _ended_at(progress: Any) -> float:
    return dt.datetime.fromisoformat(progress["timestamp"]).timestamp() + _seconds(progress)


def _custom(operators: Any, name: str) -> int:
    return sum(operator.get("customMetrics", {}).get(name, 0) for operator in operators)


def _json(text: Any) -> Any:
    # Spark has an offset as a text with JSON, or as JSON.
    return json.loads(text) if isinstance(text, str) else text


# --- texts of a record


def batch_line(record: QueryStatus) -> str:
    """Format the last batch of a query as one line of text."""
    rows = counted(record.last.rows, "row", spec="9,")
    parts = [f"{record.name:8} batch {record.committed:6}: {rows} in {record.seconds or 0.0:6,.1f} s"]
    parts += [f"{table} {_rows_in_files(*numbers)}" for table, numbers in sorted(record.tables.items())]
    places = ((record.waiting, "at nsqd"), (record.spooled, "in the spool"))
    backlog = " + ".join(f"{number:,} {place}" for number, place in places if number is not None)
    parts += [backlog and f"backlog {backlog}", _lag_text(record), _state_text(record), record.trouble]
    return ", ".join(filter(None, parts))


def count_line(record: MetricStatus) -> str:
    """Format the last count of a metric as one line of text."""
    rows = counted(record.rows, "row", spec="9,")
    return f"{record.name:8} count {record.version:6}: {rows} in {record.seconds or 0.0:6,.1f} s"


def _metric_texts(settings: JobSettings, name: str, failure: str, now: float) -> Iterator[str]:
    """Describe a metric by its table, whose log says what is counted."""
    location = settings.location_of(name)
    try:
        table = open_snapshot(location)
    except (JobFailed, OSError, ValueError) as error:
        yield f"unknown: {error}"
        return
    version = None if table is None else table.application(COUNTED)
    counted_table = settings.metrics[name].table
    yield "not counted yet" if version is None else f"counted up to version {version} of table {counted_table}"
    yield failure
    if text := table_text(name, location, now):
        yield f"table {name} {text}"


def _record_texts(record: QueryStatus, now: float) -> Iterator[str]:
    """Describe a record by some texts. Numbers that are 0 are left out, except rows and batches."""
    if record.begun < 0:
        progress = ["no batch yet"]
    elif record.committed < 0:
        progress = ["no batch committed"]
    else:
        progress = [f"batch {record.committed} committed{_at(record.committed_at, now)}", _lag_text(record)]
    if record.begun > record.committed:
        progress.append(f"batch {record.begun} begun{_at(record.begun_at, now)}")
    yield ", ".join(filter(None, ["running" if record.is_running else "", *progress]))
    yield record.problem(now)
    total, restarts = record.total, counted(record.restarts, "time")
    if record.batches or record.restarts:
        texts = [
            (total.entered, f"{total.entered:,} entered"),
            (total.malformed, f"{total.malformed:,} malformed"),
            (total.rescued, f"{total.rescued:,} with rescued values"),
            (total.duplicates, f"{counted(total.duplicates, 'duplicate', spec=',')} left out"),
            (record.restarts, f"started again {restarts}"),
        ]
        rows = f"{counted(total.rows, 'row', spec=',')} in {counted(record.batches, 'batch', 'batches', spec=',')}"
        told = ", ".join([rows, *(text for number, text in texts if number)])
        yield f"{told}, since{_at(record.started_at, now)}"
    yield _state_text(record)


def _lag_text(record: QueryStatus) -> str:
    return "" if record.lag is None else f"lag {record.lag:,.1f} s"


def _state_text(record: QueryStatus) -> str:
    rows = counted(record.state_rows, "row", spec=",")
    return f"state {rows}, {record.state_bytes / 2**20:,.1f} MiB" if record.state_rows else ""


def _rows_in_files(rows: int, files: int) -> str:
    return f"{counted(rows, 'row', spec=',')} in {counted(files, 'file', spec=',')}"


def _at(unix: float, now: float) -> str:
    return f" {dt.datetime.fromtimestamp(unix, dt.UTC):%Y-%m-%d %H:%M:%S} UTC ({_age(unix, now)} ago)"


def _age(unix: float, now: float) -> str:
    return str(dt.timedelta(seconds=max(round(now - unix), 0)))


# --- spool, tables and nsqd


def _places(query: Query, offset: Any, now: float) -> Iterator[str]:  # Any: JSON
    """Describe the spool and the tables of a query.

    Args:
        offset: The source's offset up to which committed batches have read; None: they have read nothing.
    """
    try:
        yield f"spool {_spool_text(query, offset, now)}"
    except (NSQException, OSError, ValueError) as error:
        yield f"spool {redact_uri(query.spool)}: {error}"
    for name, location in ((query.name, query.location), (f"{query.name}_dead", query.dead_location)):
        if location and (text := table_text(name, location, now)):
            yield f"table {name} {text}"


def _spool_text(query: Query, offset: Any, now: float) -> str:  # Any: JSON
    contents = Spool(query.spool).listing()
    vector = decode_offset(offset, query.read_options.source) if offset is not None else {}
    waiting = contents.segments.totals(vector)
    parts = [f"{counted(waiting.rows, 'row', spec=',')}, {counted(waiting.size, 'byte', spec=',')} waiting"]
    filesystem, root = open_location(query.spool)
    first = [f"{root}/{next(segments).path}" for segments in contents.segments.waiting(vector).values()]
    # A segment that the query has just deleted has no time.
    if times := [info.mtime.timestamp() for info in filesystem.get_file_info(first) if info.mtime is not None]:
        parts.append(f"the oldest for {_age(min(times), now)}")
    if contents.quarantined:
        segments = counted(len(contents.quarantined), "segment", spec=",")
        rows = counted(contents.rows_quarantined, "row", spec=",")
        parts.append(f"{segments} with {rows} set aside as unreadable")
    return ", ".join(parts)


def table_text(name: str, location: str, now: float) -> str:
    """Describe a table: its size, its last commit, its maintenance. Return "" if it does not exist."""
    try:
        # Which columns it has does not matter.
        table = Table(name, location, pa.schema([("_time", pa.timestamp("us", tz="UTC"))]))
        if not table.exists():
            return ""
        status = table.status()
    except (JobFailed, OSError, ValueError) as error:
        return f"unknown: {error}"
    text = f"{_rows_in_files(status.rows, status.files)}, {status.size / 2**20:,.1f} MiB"
    for what, at in (("committed", status.committed_at), ("files merged", status.maintained_at)):
        text += "" if at is None else f", {what}{_at(at.timestamp(), now)}"
    return text


def depth_of(query: Query) -> int:
    """Ask how many messages nsqd has for a query, waiting and in flight.

    Raises:
        NSQException: If an nsqd does not answer, or none is known.
        ValueError: If an address or a TLS file can't be used.
    """
    client = ChannelClient(query.read_options)
    try:
        # Before the job starts, it refuses a topic that no nsqd has and that it has never read.
        return client.depth(may_be_missing=True).total
    finally:
        client.close()


def _depth_text(query: Query) -> str:
    try:
        return f"nsqd {counted(depth_of(query), 'message', spec=',')} waiting or in flight"
    except (NSQException, ValueError) as error:
        return f"nsqd unknown: {error}"


# --- --status, and the summary


@dataclass(slots=True, kw_only=True)
class Summary:
    """Result of a run.

    Attributes:
        queries: Name of a query -> its last record.
        metrics: Name of a metric -> its last record.
        finished: True if the queries have ended by themselves: with once, all messages have been read.
        due: With once, name of a query -> number of messages that existed at the start.
        merged: Number of files of tables that maintenance has merged.
        seconds: How long the run took.
    """

    queries: dict[str, QueryStatus] = field(default_factory=dict)
    metrics: dict[str, MetricStatus] = field(default_factory=dict)
    finished: bool = False
    due: dict[str, int] = field(default_factory=dict)
    merged: int = 0
    seconds: float = 0.0

    def progress(self) -> str:
        """Describe, for a run with once that was stopped, how many of its messages each query has read."""
        return ", ".join(f"{name} {self.queries[name].total.rows:,} of {due:,}" for name, due in self.due.items())


def summary_lines(summary: Summary, settings: JobSettings, now: float) -> Iterable[str]:
    """Format the summary as some lines for each query and each metric, and one for the job."""
    for query in settings.queries:
        record = summary.queries[query.name]
        yield from _block(query.name, [*_record_texts(record, now), *_places(query, record.offset, now)])
    for name, counts in summary.metrics.items():
        yield from _block(name, _metric_texts(settings, name, counts.failure, now))
    merged = f"{counted(summary.merged, 'file', spec=',')} merged, " if summary.merged else ""
    yield f"{'job':8} {merged}{summary.seconds:,.0f} s"


def status_lines(settings: JobSettings, now: float) -> Iterable[str]:
    """Format the state of each query and each metric as some lines. If a fact can't be found out, a line says so."""
    try:
        job = describe(settings.work)
    except (OSError, ValueError) as error:
        job = f"unknown: {error}"
    yield f"{'job':8} {job}"
    queries = settings.queries
    depths = Pool(_CONCURRENT_REQUESTS).map(_depth_text, queries) if settings.is_asked else [""] * len(queries)
    for query, depth in zip(queries, depths, strict=True):
        record, told = QueryStatus(name=query.name), []
        try:
            record = read_status(query)
        except OSError as error:
            told.append(str(error))
        if job == "not running":  # it may have been killed
            record = dataclasses.replace(record, is_running=False, restart_at=None, trouble="")
        told = told or [*_record_texts(record, now)]
        yield from _block(query.name, [*told, *_places(query, record.offset, now), depth])
    for name in settings.metrics:
        yield from _block(name, _metric_texts(settings, name, _noted_failure(settings.notes_of(name)), now))


def _block(name: str, texts: Iterable[str]) -> Iterator[str]:
    """Put the name of a query before the first text, and blanks before the others. Leave out empty texts."""
    for index, text in enumerate(filter(None, texts)):
        yield f"{name if index == 0 else '':8} {text}"
