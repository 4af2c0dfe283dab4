"""Job: starts the queries and watches them. archive.py and metrics.py process their batches; session.py stops them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import itertools
import json
import logging
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from gnsq.errors import NSQException
from gnsq.spark.errors import JobFailed, root_cause
from gnsq.spark.offsets import Segment, decode_offset, pending
from gnsq.spark.pipeline.archive import ArchiveBatches
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.delta import BatchIdentity
from gnsq.spark.pipeline.events import NO_ENTRY, deduplicated, parse, parse_topics
from gnsq.spark.pipeline.layout import maintained, query_tables, with_layout
from gnsq.spark.pipeline.maintenance import Maintenance
from gnsq.spark.pipeline.metrics import MetricsBatches, aggregated
from gnsq.spark.pipeline.parquet import DataFile
from gnsq.spark.pipeline.preflight import note_partitions
from gnsq.spark.pipeline.progress import OBSERVED, Notebook, batch_of, identify, source_of, start_of
from gnsq.spark.pipeline.report import Batch, Silence, Summary
from gnsq.spark.pipeline.status import depth_of, spool_state, table_state
from gnsq.spark.source.pyspark41 import HAS_READ_LIMITS
from gnsq.spark.spool.spool import Spool
from gnsq.texts import counted

__all__ = ["Job"]

logger = logging.getLogger(__name__)

LOOK = 0.2
_PARTITIONS = "spark.sql.shuffle.partitions"
# Seconds to wait, at most, for the last progress events of queries that have ended: Spark sends them late.
LAST_EVENTS = 10.0


class _Listener(StreamingQueryListener):  # type: ignore[misc]  # pyspark is not typed here
    """Puts Spark's events into a queue: (run id of a query, its progress as JSON). The progress is "" if the query is
    idle, and None after the query's end."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.events.put((str(event.progress.runId), event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.events.put((str(event.runId), ""))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.events.put((str(event.runId), None))


class Job:
    """The queries of one configuration.

    Args:
        report: Called with each progress of a query, in the thread that calls wait(): after a batch, and regularly
            while the query is idle. The Batch of an idle query has no rows, and shows what waits and the trouble.
        log: Where Spark's messages are, for warnings.
        check_lock: Raises LeaseLost when the queries must end, since another job may use the work directory.
        take_over: Accept tables that belong to other checkpoints.

    Attributes:
        summary: What the run has done. close() completes it.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: PipelineConfig,
        report: Callable[[Batch], object],
        *,
        log: str = "Spark's log",
        check_lock: Callable[[], None] = lambda: None,
        take_over: bool = False,
    ) -> None:
        self._spark = spark
        self._config = config
        self._report = report
        self._log = log
        self._check_lock = check_lock
        self._take_over = take_over
        self.summary = Summary()
        self._started_at = time.monotonic()
        self._queries: dict[str, StreamingQuery] = {}
        self._listener = _Listener()
        self._is_listening = False
        # Spark's run id -> name of the query. An entry is removed when the query's last event was handled.
        self._runs: dict[str, str] = {}
        self._notebooks: dict[str, Notebook] = {}
        # PySpark 4.1 does not ask the source for its backlog.
        asked = bool(config.nsqd_http_addresses or config.lookupd_http_addresses) and HAS_READ_LIMITS
        self._silence = {query: Silence(is_asked=asked) for query in config.queries}
        # Query -> what kept messages from being received, as of its last batch with rows; "" for nothing.
        self._troubles: dict[str, str] = {}
        self._maintenance = Maintenance(
            functools.partial(maintained, config), every=config.maintain_every, log=config.log
        )
        # Query and batch -> files that the batch has committed, until the batch's progress event comes.
        self._committed: dict[tuple[str, int], list[DataFile]] = {}
        # With once: the segments that the spool of a query had at the start. The first progress event says which of
        # these were read before; the rows of the others are added to summary.due.
        self._spooled: dict[str, tuple[Segment, ...]] = {}

    def start(self, *, once: bool) -> None:
        """Start the queries. Call preflight.create_channels() before.

        Args:
            once: End each query after it has read the messages that exist now. Otherwise run until stopped.

        Raises:
            JobFailed: If Spark refuses a query; with once, also if nsqd does not answer.
            NSQException, OSError, ValueError: If a directory, or a file of the job in it, can't be used.
        """
        config = self._config
        if once:
            for query in config.queries:
                self._look_for_messages(query)
        take_over, check_lock = self._take_over, self._check_lock
        archive = ArchiveBatches(config, take_over=take_over, check_lock=check_lock)
        metrics = {
            query: MetricsBatches(config, query, take_over=take_over, check_lock=check_lock)
            for query in config.metric_queries
        }
        self._notebooks = {query: Notebook(config, query) for query in config.queries}
        self._spark.streams.addListener(self._listener)
        self._is_listening = True
        with self._state_partitions():
            self._start("archive", archive, once)
            for query, batches in metrics.items():
                self._start(query, batches, once)

    @contextlib.contextmanager
    def _state_partitions(self) -> Iterator[None]:
        """Set the number of state partitions for queries that are started in this context; then restore the number."""
        before = self._spark.conf.get(_PARTITIONS)
        partitions = self._config.state_partitions or int(before)
        for query in self._config.queries:
            note_partitions(self._config, query, partitions)
        self._spark.conf.set(_PARTITIONS, str(partitions))
        try:
            yield
        finally:
            self._spark.conf.set(_PARTITIONS, before)

    def wait(self, is_stopping: Callable[[], bool], refresh: Callable[[], object] = lambda: None) -> bool:
        """Wait until all queries have ended, or until is_stopping() returns True.

        Args:
            refresh: Called several times a second.

        Returns:
            True if the queries ended by themselves.

        Raises:
            JobFailed: If a query has failed, the JVM has ended, or the lock of the work directory is lost.
        """
        while not is_stopping():
            self._check_lock()
            self._handle_events(LOOK)
            refresh()
            try:
                ended = {name: query for name, query in self._queries.items() if not query.isActive}
                for name, query in ended.items():
                    _raise_failure(name, query)
            except (Py4JError, ConnectionError) as error:
                raise JobFailed(
                    "Spark's JVM has ended by itself: was it killed, or out of memory ('spark.driver.memory')?"
                ) from error
            if len(ended) == len(self._queries):
                self._handle_last_events()
                return True
        return False

    def _handle_last_events(self) -> None:
        """Handle the events that Spark sends after the queries have ended."""
        deadline = time.monotonic() + LAST_EVENTS
        while self._runs and time.monotonic() < deadline:
            self._handle_events(LOOK)

    def _handle_events(self, timeout: float) -> None:
        """Handle all events of Spark that have come; wait up to timeout seconds for the first."""
        with contextlib.suppress(queue.Empty):
            run, text = self._listener.events.get(timeout=timeout)
            while True:
                self._handle_event(run, text)
                run, text = self._listener.events.get_nowait()

    def _handle_event(self, run: str, text: str | None) -> None:
        name = self._runs.get(run)
        if name is None:
            return  # a query of another job in the same session
        if text is None:
            del self._runs[run]
            return
        if text:
            progress = json.loads(text)
            self._handle_progress(name, progress)
        else:
            # The event of an idle query has no progress, so ask the query for its last progress.
            with contextlib.suppress(Py4JError, ConnectionError):
                progress = self._queries[name].lastProgress
                if progress is not None:
                    # By its JSON: PySpark 4.1 has offsets in the object as texts that are no JSON.
                    self._handle_idleness(name, json.loads(progress.json))

    def maintain(self) -> None:
        """Maintain the tables if a vacuum is due (once a day). Call this after queries have ended without failure."""
        self._maintenance.run_daily()

    def release(self) -> None:
        """Stop the maintenance and remove the listener. The session stops the queries."""
        self._maintenance.stop()
        if self._is_listening:
            with contextlib.suppress(Py4JError, ConnectionError):
                self._spark.streams.removeListener(self._listener)

    def close(self) -> Summary:
        """Call release(), then complete the summary of the run and return it."""
        self.release()
        self.summary.merged = self._maintenance.merged
        config = self._config
        try:
            # Topics that have come since the start have tables, too.
            config = with_layout(config)
        except (OSError, ValueError) as error:
            logger.warning("%s", error)
        for table in itertools.chain.from_iterable(query_tables(config, query) for query in config.queries):
            if text := table_state(table, dt.datetime.now(dt.UTC)):
                self.summary.tables[table.name] = text
        for query in self._config.queries:
            try:
                state = spool_state(self._config, query, None)
            except (NSQException, OSError) as error:
                logger.warning("spool of %s: %s", query, error)
                continue
            self.summary.set_aside[query] = (state.set_aside, state.rows_set_aside)
        self.summary.seconds = time.monotonic() - self._started_at
        return self.summary

    def check_drained(self) -> None:
        """With once, check that the queries, which have ended, have read all messages that existed at the start.

        Raises:
            JobFailed: If a query has read fewer messages and nsqd has some left, or if nsqd does not answer.
        """
        for query, due in self.summary.due.items():
            read = self.summary.rows.get(query, 0)
            try:
                left = depth_of(self._config, query)
            except NSQException as error:
                raise JobFailed(f"query {query}: whether all is read is not known: {error}") from error
            if left and read < due:
                trouble = (
                    self._troubles.get(query)
                    or "was nsqd connected, as the log tells, or does another consumer hold them?"
                )
                raise JobFailed(
                    f"query {query} has ended with {counted(left, 'message', spec=',')} left at nsqd: it has "
                    f"read {read:,} of {due:,}, then nothing came for idleTimeout: {trouble}"
                )

    def _look_for_messages(self, query: str) -> None:
        try:
            self.summary.due[query] = depth_of(self._config, query)
            self._spooled[query] = tuple(Spool(self._config.spool_of(query)).listing().segments)
        except NSQException as error:
            raise JobFailed(f"query {query}: what is there to read is not known: {error}") from error

    def _start(self, name: str, batches: Callable[[DataFrame, BatchIdentity], list[DataFile]], once: bool) -> None:
        config = self._config
        options = {**config.source_options(name), "drain": str(once)}
        # The query's thread takes this property from the thread that starts it; see session.py.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        messages = self._spark.readStream.format("nsq").options(**options).load()
        metric = config.metric_queries.get(name)
        if metric is not None:
            entry = config.entry_of(metric.topic)
            assert entry is not None  # the configuration has checked it
            events = parse(messages, entry.schema, entry.max_ahead)
        else:
            if config.deduplicate:
                messages = deduplicated(messages, config.deduplicate, config.placed.flat)
            events = parse_topics(messages, config.rules)
        # Of messages whose topic fits no entry, the bodies are not looked at, and no dead letters are published.
        is_malformed = F.col("reason") != NO_ENTRY
        events = events.observe(
            OBSERVED,
            F.count_if(is_malformed).alias("malformed"),
            F.max(F.unix_micros("published_at")).alias("latest"),
        )

        if metric is not None:
            writer = aggregated(events, config, name).writeStream.outputMode("update")
        else:
            writer = events.writeStream
        writer = writer.queryName(name).option("checkpointLocation", config.checkpoint_of(name))
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{config.trigger_interval} seconds")
        self._start_writer(name, writer, batches)

    def _start_writer(
        self, name: str, writer: DataStreamWriter, batches: Callable[[DataFrame, BatchIdentity], list[DataFile]]
    ) -> None:
        # Spark may call write() before start() returns the query, so write() must wait for the query's id.
        owner: Future[str] = Future()

        def write(rows: DataFrame, batch_id: int) -> None:
            self._check_lock()
            self._notebooks[name].begin(batch_id)
            batch = identify(self._config, name, owner.result(), batch_id)
            self._committed[name, batch_id] = batches(rows, batch)

        try:
            query = self._queries[name] = writer.foreachBatch(write).start()
            self._runs[str(query.runId)] = name
            owner.set_result(str(query.id))
        except (PySparkException, Py4JError) as error:
            raise JobFailed(f"query {name} did not start: {root_cause(str(error))}") from error
        finally:
            # If start() has failed, a write() must not wait for ever. cancel() does nothing if the id was set.
            owner.cancel()

    def _handle_progress(self, name: str, progress: Any) -> None:  # Any: Spark's JSON
        if name in self._spooled:
            start = start_of(progress)
            vector = decode_offset(start, self._config.read_options(name).source) if start is not None else {}
            self.summary.due[name] += sum(segment.rows for segment in pending(self._spooled.pop(name), vector))
        batch = batch_of(name, progress)
        tables: dict[str, list[int]] = {}
        for file in self._committed.pop((name, batch.batch_id), ()):
            tables.setdefault(file.table, []).append(file.rows)
        batch = dataclasses.replace(batch, tables=tables)
        trouble = self._notice_silence(name, batch.rows, source_of(progress))
        self._notebooks[name].finish(progress, batch)
        if not batch.rows:
            self._report(dataclasses.replace(batch, trouble=trouble))
            return
        if name == "archive":
            self._maintenance.committed()
        if batch.dropped and name == "archive":
            logger.error(
                "query %s, batch %d: Spark has dropped %s as late, since the driver's clock was set back "
                "by more than the setting deduplicate; the results lack what was dropped",
                *(name, batch.batch_id, counted(batch.dropped, "row")),
            )
        self.summary.add(batch)
        self._troubles[name] = batch.trouble
        self._report(batch)

    def _handle_idleness(self, name: str, progress: Any) -> None:  # Any: Spark's JSON
        trouble = self._notice_silence(name, 0, source_of(progress))
        idle = batch_of(name, progress)
        # lastProgress may be that of the next batch already, which has an event of its own.
        if not idle.rows:
            self._report(dataclasses.replace(idle, trouble=trouble))

    def _notice_silence(self, name: str, rows: int, source: Any) -> str:  # Any: Spark's JSON
        """Log a warning if a query gets no messages though it should: without batches, no report would show it.

        Returns:
            The present trouble, "" for none.
        """
        silence = self._silence[name]
        if silence.notice(rows, source):
            logger.warning("query %s: %s; see %s", name, silence.trouble, self._log)
        return silence.trouble


def _raise_failure(name: str, query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise JobFailed(f"query {name}: {root_cause(str(failure))}")
