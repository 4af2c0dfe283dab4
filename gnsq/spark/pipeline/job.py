"""The job: checks everything, locks its work directory, then starts, watches, restarts and ends its queries.

run() uses a Spark that runs already. The command line, in __main__.py, starts Spark. Each table and each metric of the
settings is one query. Queries know nothing of each other: one that fails is started again alone, after a growing pause.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

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

from gnsq.errors import NSQException
from gnsq.spark import register
from gnsq.spark.errors import JobFailed, SpoolTaken, root_cause
from gnsq.spark.offsets import decode_offset
from gnsq.spark.pipeline.archive import ArchiveBatches
from gnsq.spark.pipeline.checkpoint import (
    checkpoint_id,
    checkpoint_of,
    delete_checkpoint,
    delete_read,
    identify,
    last_batch,
    read_epoch,
    settings_hash,
    settle_epoch,
)
from gnsq.spark.pipeline.checks import check_nsq, check_places, check_work, create_channels, note_queries, survey
from gnsq.spark.pipeline.delta import Table
from gnsq.spark.pipeline.durable import mend_checkpoint
from gnsq.spark.pipeline.events import check_streaming, deduplicated, plan
from gnsq.spark.pipeline.lock import locked
from gnsq.spark.pipeline.maintenance import DAY, RETENTION, Maintenance
from gnsq.spark.pipeline.metrics import MetricBatches, aggregated
from gnsq.spark.pipeline.session import borrow_session, check_classic
from gnsq.spark.pipeline.settings import JobSettings, Query, SettingError
from gnsq.spark.pipeline.status import (
    OBSERVED,
    QueryStatus,
    Status,
    Summary,
    batch_line,
    depth_of,
    longest_batch,
    summary_lines,
)
from gnsq.spark.spool.index import SegmentIndex
from gnsq.spark.spool.ownership import END_TIMEOUT
from gnsq.spark.spool.spool import Spool
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted

if TYPE_CHECKING:
    from gnsq.running import StopSignals

__all__ = ["Job", "load_function", "run", "run_queries"]

logger = logging.getLogger(__name__)

LOOK = 0.2
# Seconds until each query is asked again whether it runs, unless an event tells its end: that is a call to Java.
ASK = 1.0
# Seconds to wait, at most, for the last progress events of queries that have ended: Spark sends them late.
LAST_EVENTS = 10.0
# Seconds until a query that has failed is started again: doubled with each failure, and reset by a committed batch.
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
# With once: how often a query is started, at most, and the seconds between.
TRIES, TRY_PAUSE = 3, 2.0


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


class RunningQuery:
    """One query: its plan, its batches, and its life in Spark. A failed query can be started again.

    Args:
        settings: Of the job.
        take_over: Accept tables that belong to other checkpoints.
        log: Where Spark's messages are, for warnings.

    Attributes:
        status: What is known of it.
        due: With once, number of messages that existed at the start.
        is_done: With once, True after it has read all, or has failed as often as it may.
        run_ids: Spark's ids of its runs whose last event has not come. That of a run that has failed comes after its
            end.

    Raises:
        SettingError: If a setting does not fit the types of the events, or Spark refuses an expression.
        JobFailed: If the source can't be loaded.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: Query,
        settings: JobSettings,
        *,
        once: bool,
        take_over: bool,
        log: str,
    ) -> None:
        self.query = query
        self.status = Status(query, log=log)
        self.due = 0
        self.is_done = False
        self._spark = spark
        self._once = once
        self._settings_hash = settings_hash(query)
        self._running: StreamingQuery | None = None
        self.run_ids: set[str] = set()
        self._committed: dict[int, list[Any]] = {}
        self._failures = 0
        self._next_start = 0.0
        # With once: why it is not started again. That in the status goes if a batch's progress comes late.
        self._failure = ""
        # With once: the segments that the spool had at the start. The first progress says which of these were read
        # before; the rows of the others are added to due.
        self._spooled: SegmentIndex | None = None
        self._rows, self._batches = self._plan(take_over)
        self._location = ""

    @property
    def tables(self) -> list[Table]:
        """The tables that the query writes."""
        return self._batches.tables

    def _plan(self, take_over: bool) -> tuple[DataFrame, ArchiveBatches | MetricBatches]:
        """Plan what Spark computes, without starting anything."""
        query, settings = self.query, self.query.events
        options = {**query.source, "drain": str(self._once)}
        messages = _loaded_source(self._spark, options)
        if query.deduplicate and query.metric is None:
            messages = deduplicated(messages, query.deduplicate)
        events = plan(messages, settings)
        is_right = F.col("_wrong").isNull()
        rows = events.frame.observe(
            OBSERVED,
            F.count_if(~is_right).alias("malformed"),
            F.count_if(F.col("_misfit") if settings.mismatch == "rescue" else F.lit(False)).alias("rescued"),
            F.count_if(is_right).alias("entered"),
            F.max(F.unix_micros("_published_at")).alias("latest"),
        )
        if query.metric is None:
            check_streaming(rows, query.section)
            sink = load_function(settings.sink, "sink", query.section)
            return rows, ArchiveBatches(query, events, sink=sink, take_over=take_over)
        try:
            right = rows.where(is_right).drop("_wrong", "_misfit", "_body")
            counts = aggregated(right, query.metric, deduplicate=query.deduplicate > 0)
        except (PySparkException, Py4JError) as error:
            raise SettingError(f"keys or aggregates: {root_cause(str(error))}", query.section) from error
        check_streaming(counts, query.section, "update")
        return counts, MetricBatches(query, counts, take_over=take_over)

    def settle(self) -> None:
        """Settle the epoch of the checkpoint, and check that the tables fit and belong to it. Reads no message.

        Call this after all queries are planned: a wrong setting of another one must not begin an epoch.

        Raises:
            SettingError: If a table does not fit the settings.
            JobFailed: If a table or the checkpoint can't be used.
        """
        query = self.query
        try:
            with contextlib.suppress(ValueError):
                mend_checkpoint(checkpoint_of(query, read_epoch(query)))
            epoch = settle_epoch(query)
            self._location = checkpoint_of(query, epoch)
            owner, committed = checkpoint_id(self._location), last_batch(self._location)
            # The tables may still belong to the checkpoint of an epoch before.
            places = [checkpoint_of(query, each) for each in range(1, epoch)]
            former = [old for place in places if (old := checkpoint_id(place))]
        except SettingError:
            raise
        except ValueError as error:
            logger.debug("%s", error)  # only Spark can open this checkpoint: the first batch checks
            return
        except OSError as error:
            raise JobFailed(f"query {query.name}: its checkpoint can't be read: {error}") from error
        if any(table.exists() and any(map(table.is_owned, former)) for table in self.tables):
            self._batches.take_over = True
        try:
            for table in self.tables:
                table.claim(owner, take_over=self._batches.take_over, committed=committed)
        except SettingError as error:
            raise SettingError(error.text, query.section) from error
        if committed >= 0:  # the tables belong to this checkpoint
            for place in places:
                delete_checkpoint(place)

    def look_for_messages(self) -> None:
        """With once, before anything is read: note how many messages there are."""
        try:
            self.due = depth_of(self.query)
            self._spooled = Spool(self.query.spool).listing().segments
        except NSQException as error:
            raise JobFailed(f"query {self.query.name}: what is there to read is not known: {error}") from error

    def start(self) -> None:
        """Start the query.

        Raises:
            JobFailed: If Spark refuses it.
        """
        query = self.query
        writer = self._rows.writeStream.queryName(query.name).option("checkpointLocation", self._location)
        if query.metric is not None:
            writer = writer.outputMode("update")
        if self._once:
            writer = writer.trigger(availableNow=True)
        # Spark may call write() before start() returns the query, so write() must wait for the query's id.
        owner: Future[str] = Future()

        def write(rows: DataFrame, batch_id: int) -> None:
            self.status.begin(batch_id)
            batch = identify(self._location, owner.result(), batch_id, self._settings_hash)
            self._committed[batch_id] = self._batches(rows, batch)

        # A large batch of one query must not hold up the others.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", query.name)
        try:
            self._running = writer.foreachBatch(write).start()
            self.run_ids.add(str(self._running.runId))
            owner.set_result(str(self._running.id))
        except (PySparkException, Py4JError) as error:
            raise JobFailed(root_cause(str(error))) from error
        finally:
            # If start() has failed, a write() must not wait for ever. cancel() does nothing if the id was set.
            owner.cancel()
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)
        self.status.running()

    def look(self, now: float) -> None:
        """Look whether the query runs; start it again if it has failed and its pause is over.

        Raises:
            JobFailed: If another job has taken the spool.
            Py4JError, ConnectionError: If the JVM has ended.
        """
        if self.is_done:
            return
        if self._running is None:
            if now >= self._next_start:
                try:
                    self.start()
                except JobFailed as error:
                    self._fail(str(error), now)
            return
        if self._running.isActive:
            return
        failure = self._running.exception()
        if failure is None:
            self.is_done = self._once
            if not self._once:
                self._fail("Spark has stopped it", now)
            return
        reason = root_cause(str(failure))
        _, _, taken = reason.partition(f"{SpoolTaken.__name__}: ")
        if taken:
            # Not started again: it would take the spool back from the job that runs now.
            raise JobFailed(taken)
        self._fail(reason, now)

    def _fail(self, reason: str, now: float) -> None:
        self._running = None
        self._failures += 1
        if self._once and self._failures == TRIES:
            # The others go on. check_drained() fails the job at its end.
            self.is_done, self._failure = True, reason
            self.status.failed(reason)
            logger.warning("query %s has failed %d times, and is not started again: %s", self.query.name, TRIES, reason)
            return
        pause = TRY_PAUSE if self._once else min(FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE)
        self.status.failed(reason, pause)
        logger.warning("query %s has failed, and starts again in %g s: %s", self.query.name, pause, reason)
        self._next_start = now + pause

    def empty_spool(self) -> None:
        """After the end without failure: delete what is read from the spool. Else the next batch would, days later."""
        if self._failure:
            return
        try:
            delete_read(self.query, self._location)
        except (OSError, ValueError) as error:
            logger.warning("query %s: what is read stays in the spool until its next batch: %s", self.query.name, error)

    def handle_progress(self, progress: Any) -> None:  # Any: Spark's JSON
        """Take the progress of a batch."""
        [source] = progress["sources"]
        if self._spooled is not None:
            name = self.query.read_options.source
            start = source["startOffset"]
            offset = json.loads(start) if isinstance(start, str) else start
            vector = decode_offset(offset, name) if offset is not None else {}
            self.due += self._spooled.totals(vector).rows
            self._spooled = None
        if progress["numInputRows"]:
            self._failures = 0
        self.status.finish(progress, self._committed.pop(progress["batchId"], []))

    def handle_idleness(self) -> None:
        """Take the last progress of an idle query: the event has none."""
        with contextlib.suppress(Py4JError, ConnectionError):
            progress = None if self._running is None else self._running.lastProgress
            if progress is not None:
                # By its JSON: PySpark 4.1 has offsets in the object as texts that are no JSON.
                self.status.idle(json.loads(progress.json))

    def check_drained(self) -> None:
        """With once, check that the query, which has ended, has read all messages that existed at the start.

        Raises:
            JobFailed: If it has failed, if it has read fewer messages and nsqd has some left, or if nsqd does not
                answer.
        """
        record, name = self.status.record, self.query.name
        if self._failure:
            raise JobFailed(f"query {name}: {self._failure}")
        try:
            left = depth_of(self.query)
        except NSQException as error:
            raise JobFailed(f"query {name}: whether all is read is not known: {error}") from error
        if left and record.total.rows < self.due:
            trouble = record.trouble or "was nsqd connected, as the log tells, or does another consumer hold them?"
            raise JobFailed(
                f"query {name} has ended with {counted(left, 'message', spec=',')} left at nsqd: it has "
                f"read {record.total.rows:,} of {self.due:,}, then nothing came for idleTimeout: {trouble}"
            )


def _loaded_source(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Load the source. Spark starts a Python process for that, and gives up after 10 s: then try again."""
    # Queries of one registration share a map of Java's, into which each puts variables when it starts, without a lock.
    # Two that start at the same time may spoil it. Then all tasks fail, until Spark itself is started again.
    register(spark)
    for left in reversed(range(TRIES)):
        try:
            return spark.readStream.format("nsq").options(**options).load()
        except PySparkException as error:
            reason = root_cause(str(error))
            if not left or "worker" not in reason.lower():
                raise JobFailed(f"the source can't be loaded: {reason}") from error
            logger.warning("the source is loaded again: %s", reason)
    raise AssertionError("unreachable")


def load_function(name: str, setting: str, section: str = "") -> Callable[..., Any] | None:
    """Import the function of a setting ``module:function``; None for ""."""
    if not name:
        return None
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"{setting} {name!r}: {error}: give a function that Python can import", section) from error
    if not callable(found):
        raise SettingError(f"{setting} {name!r} is not a function", section)
    return found


class Job:
    """The queries of a job.

    Args:
        report: Called with the record of a query after each batch with rows, in the thread that calls wait().
        log: Where Spark's messages are, for warnings.

    Attributes:
        queries: In the order of the settings.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: JobSettings,
        report: Callable[[QueryStatus], object],
        *,
        once: bool,
        take_over: bool = False,
        log: str = "Spark's log",
    ) -> None:
        self._spark = spark
        self._report = report
        self._once = once
        self._started_at = time.monotonic()
        if (setup := load_function(settings.setup, "setup")) is not None:
            setup(spark)
        self.queries = [
            RunningQuery(spark, query, settings, once=once, take_over=take_over, log=log) for query in settings.queries
        ]
        for running in self.queries:
            running.settle()
        self._settings = settings
        self._maintenance = Maintenance(self._tables, every=settings.maintain_every, log=settings.log)
        self._listener = _Listener()
        self._is_listening = False

    def _tables(self) -> tuple[list[str], float]:
        """Return the locations of all tables, and for how many seconds files are kept that no version needs."""
        age = longest_batch((running.status.record for running in self.queries), time.time())
        return self._settings.locations, max(RETENTION, age + DAY)

    def start(self) -> None:
        """Start the queries. Call create_channels() before.

        Raises:
            JobFailed: If Spark refuses a query; with once, also if nsqd does not answer.
        """
        if self._once:
            for running in self.queries:
                running.look_for_messages()
        self._spark.streams.addListener(self._listener)
        self._is_listening = True
        for running in self.queries:
            running.look(time.monotonic())

    def wait(self, is_stopping: Callable[[], bool]) -> bool:
        """Wait until all queries have ended, or until is_stopping() returns True.

        Returns:
            True if the queries ended by themselves.

        Raises:
            JobFailed: If the JVM has ended, or another job has taken a spool.
        """
        asked_at = time.monotonic()
        while not is_stopping():
            has_ended = self._handle_events(LOOK)
            now = time.monotonic()
            if not has_ended and now - asked_at < ASK:
                continue
            asked_at = now
            try:
                for running in self.queries:
                    running.look(now)
            except (Py4JError, ConnectionError) as error:
                raise JobFailed(
                    "Spark's JVM has ended by itself: was it killed, or out of memory ('spark.driver.memory')?"
                ) from error
            if all(running.is_done for running in self.queries):
                self._handle_last_events()
                return True
        return False

    def _handle_last_events(self) -> None:
        """Handle the events that Spark sends after the queries have ended."""
        deadline = time.monotonic() + LAST_EVENTS
        while any(running.run_ids for running in self.queries) and time.monotonic() < deadline:
            self._handle_events(LOOK)

    def _handle_events(self, timeout: float) -> bool:
        """Handle all events of Spark that have come; wait up to timeout seconds for the first.

        Returns:
            True if a query has ended.
        """
        has_ended = False
        with contextlib.suppress(queue.Empty):
            run, text = self._listener.events.get(timeout=timeout)
            while True:
                self._handle_event(run, text)
                has_ended |= text is None
                run, text = self._listener.events.get_nowait()
        return has_ended

    def _handle_event(self, run: str, text: str | None) -> None:
        running = next((each for each in self.queries if run in each.run_ids), None)
        if running is None:
            return  # a query of another job in the same session
        if text is None:
            running.run_ids.remove(run)
            return
        if not text:
            running.handle_idleness()
            return
        progress = json.loads(text)
        running.handle_progress(progress)
        if progress["numInputRows"]:
            self._maintenance.committed()
            self._report(running.status.record)

    def maintain(self) -> None:
        """Empty the spools, and maintain the tables if a vacuum is due (once a day), after the queries have ended."""
        for running in self.queries:
            running.empty_spool()
        self._maintenance.run_daily()

    def release(self) -> None:
        """Stop the maintenance and remove the listener. The session stops the queries."""
        self._maintenance.stop()
        if self._is_listening:
            with contextlib.suppress(Py4JError, ConnectionError):
                self._spark.streams.removeListener(self._listener)
        for running in self.queries:
            running.status.stopped()

    def close(self, *, finished: bool) -> Summary:
        """Call release(), then return the summary of the run."""
        self.release()
        return Summary(
            finished=finished,
            queries={running.query.name: running.status.record for running in self.queries},
            due={running.query.name: running.due for running in self.queries} if self._once else {},
            merged=self._maintenance.merged,
            seconds=time.monotonic() - self._started_at,
        )

    def check_drained(self) -> None:
        """With once, check that the queries have read all, as RunningQuery.check_drained() does; one error for all."""
        reasons = []
        for running in self.queries:
            try:
                running.check_drained()
            except JobFailed as error:
                reasons.append(str(error))
        if reasons:
            raise JobFailed("; ".join(reasons))


def run(
    spark: SparkSession,
    settings: JobSettings,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
    report: Callable[[str], object] | None = None,
    new_topic: bool = False,
    take_over: bool = False,
) -> Summary:
    """Run the job in a Spark that runs already, in a new session with settings of its own, until the job ends.

    May be called from any thread, also for several jobs at the same time. Neither starts nor stops Spark, and changes
    no setting of the given session. Spark's messages go where this Spark writes them.

    Args:
        spark: A classic session; Spark Connect has none of the JVM's objects that the job needs.
        once: End after all messages that exist now have been read. Otherwise run until stopped.
        stop: Stops the job gracefully when it is set. KeyboardInterrupt also stops the queries, and is raised again.
        report: Called, in the calling thread, with a line of text for each batch and for the summary, such as print;
            None: the lines are logged as INFO.
        new_topic: Start although no nsqd has a topic yet.
        take_over: Go on with tables that belong to other checkpoints, whose job must not run.

    Returns:
        What the run has done. finished is False if stop has ended it.

    Raises:
        NSQException, OSError, ValueError: If the job can't start, or fails (mostly JobFailed).
    """
    check_classic(spark)
    return run_queries(
        settings,
        lambda: borrow_session(spark, settings.spark),
        stop=stop or threading.Event(),
        report=report or logger.info,
        log="Spark's log",
        once=once,
        new_topic=new_topic,
        take_over=take_over,
    )


def run_queries(
    settings: JobSettings,
    open_spark: Callable[[], AbstractContextManager[SparkSession]],
    *,
    stop: threading.Event | StopSignals,
    report: Callable[[str], object],
    log: str,
    once: bool,
    new_topic: bool,
    take_over: bool,
    while_starting: Callable[[bool], object] = lambda is_starting: None,
) -> Summary:
    """Check everything, lock the work directory, open Spark, and run the queries; the other arguments are run()'s.

    Args:
        open_spark: Makes the session, and ends its queries. It is called after all checks that need no Spark.
        log: Where Spark's messages are, for warnings.
        while_starting: Called with True before Spark starts, and with False when the queries are planned.
    """
    if once and not settings.is_asked:
        raise SettingError(
            "nsqd_http_addresses or lookupd_http_addresses is required with once, to know when all is read"
        )
    # Check nsqd first, so that a typing error in a topic leaves no directories behind.
    check_nsq(settings, survey(settings), once=once, new_topic=new_topic)
    check_work(settings)
    with locked(settings.work, stop.wait) as is_locked, contextlib.ExitStack() as stack:
        if not is_locked:
            return Summary()
        check_places(settings)
        queries: list[RunningQuery] = []

        def records() -> list[QueryStatus]:
            return [running.status.record for running in queries]

        def report_batch(record: QueryStatus) -> None:
            report(batch_line(record))

        stack.callback(_wait_for_sources, settings)  # after Spark has ended
        if settings.metrics_address:
            report(f"metrics are at {stack.enter_context(_serving(settings.metrics_address, records))}")
        while_starting(True)
        with open_spark() as spark:
            job = Job(spark, settings, report_batch, once=once, take_over=take_over, log=log)
            while_starting(False)
            queries += job.queries
            create_channels(settings, once=once, wait=stop.wait, new_topic=new_topic)
            note_queries(settings)
            finished = False
            try:
                if not stop.is_set():
                    job.start()
                    finished = job.wait(stop.is_set)
                if finished:
                    job.maintain()
                else:
                    report("stopping gracefully")
            except KeyboardInterrupt:
                job.release()
                raise
            except BaseException:
                _sum_up(job.close(finished=False), settings, report)
                raise
            summary = job.close(finished=finished)
            _sum_up(summary, settings, report)
        if finished and once:
            job.check_drained()
        return summary


def _wait_for_sources(settings: JobSettings) -> None:
    """Wait until the processes of all sources have ended, so that the job's directories may be moved or deleted."""
    deadline = time.monotonic() + END_TIMEOUT
    for query in settings.queries:
        try:
            if not Spool(query.spool).wait_for_end(max(0.0, deadline - time.monotonic())):
                logger.warning(
                    "query %s: its source still writes to the spool %s after %g s: move or delete nothing there before "
                    "the process whose number is in owner.json has ended",
                    *(query.name, redact_uri(query.spool), END_TIMEOUT),
                )
        except OSError as error:
            logger.warning("query %s: whether its source has ended is not known: %s", query.name, error)


def _serving(address: str, records: Callable[[], list[QueryStatus]]) -> AbstractContextManager[str]:
    try:
        from gnsq.spark.pipeline.exporter import PipelineCollector, serving
    except ImportError as error:
        raise JobFailed(f"setting metrics_address: {error}") from error
    return serving(address, PipelineCollector(records))


def _sum_up(summary: Summary, settings: JobSettings, report: Callable[[str], object]) -> None:
    for line in summary_lines(summary, settings, time.time()):
        report(line)
