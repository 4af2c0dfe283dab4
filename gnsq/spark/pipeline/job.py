"""The job: checks everything, locks its work directory, then starts, watches, restarts and ends its queries.

run() uses a Spark that runs already. The command line, in __main__.py, starts Spark. Each table of the settings is one
query. Queries know nothing of each other: one that fails is started again alone, after a growing pause. Metrics are
counted beside them, see counting.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.checkpoint import check_state
from gnsq.spark.pipeline.checks import check_nsq, check_places, check_work, create_channels, note_queries, survey
from gnsq.spark.pipeline.counting import Counting
from gnsq.spark.pipeline.functions import SetupSession
from gnsq.spark.pipeline.lock import locked
from gnsq.spark.pipeline.maintenance import DAY, RETENTION, Maintenance
from gnsq.spark.pipeline.metrics import Metric
from gnsq.spark.pipeline.query import JobQuery, load_function
from gnsq.spark.pipeline.settings import JobSettings
from gnsq.spark.pipeline.spark_session import borrow_session, check_classic
from gnsq.spark.pipeline.status import (
    CountStatus,
    MetricStatus,
    QueryStatus,
    Summary,
    batch_line,
    count_line,
    longest_batch,
    summary_lines,
)
from gnsq.spark.pipeline.tables import SettingError
from gnsq.spark.spool.ownership import END_TIMEOUT
from gnsq.spark.spool.spool import Spool
from gnsq.spark.uris import redact_uri

if TYPE_CHECKING:
    from gnsq.running import StopSignals

__all__ = ["Job", "run", "run_queries"]

logger = logging.getLogger(__name__)

# Seconds to wait for the next event of Spark, at most, before the job looks whether it is to stop.
EVENT_WAIT = 0.2
# Seconds until each query is asked again whether it runs, unless an event tells its end: that is a call to Java.
QUESTION_INTERVAL = 1.0
# Seconds to wait, at most, for the last progress events of queries that have ended: Spark sends them late.
LAST_EVENTS = 10.0


class _Listener(StreamingQueryListener):  # type: ignore[misc]  # pyspark is not typed here
    """Puts Spark's events into a queue: (run id of a query, its progress as JSON). The progress is "" if the query is
    idle, and None after the query's end. Counts put their records there."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[tuple[str, str | None] | MetricStatus] = queue.SimpleQueue()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.events.put((str(event.progress.runId), event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.events.put((str(event.runId), ""))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.events.put((str(event.runId), None))


class Job:
    """The queries of a job.

    Args:
        report: Called with a line of text for each batch with rows, and each count with events, in the thread that
            calls wait().
        log: Where Spark's messages are, for warnings.

    Attributes:
        queries: In the order of the settings.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: JobSettings,
        report: Callable[[str], object],
        *,
        once: bool,
        take_over: bool = False,
        log: str = "Spark's log",
        check_lock: Callable[[], None] = lambda: None,
    ) -> None:
        self._spark = spark
        self._report = report
        self._once = once
        self._started_at = time.monotonic()
        if (setup := load_function(settings.setup, "setup")) is not None:
            setup(SetupSession(spark))
        self.queries = [
            JobQuery(spark, query, once=once, take_over=take_over, log=log, check_lock=check_lock)
            for query in settings.queries
        ]
        for query in self.queries:
            query.settle()
        check_state(settings.queries)
        metrics = [
            (Metric(spark, settings, name, take_over=take_over), CountStatus(name, settings.notes_of(name)))
            for name in settings.metrics
        ]
        events = {query.query.name: query.tables for query in self.queries}
        for metric, _ in metrics:
            metric.check(events[settings.metrics[metric.name].table][0].whole_schema())
        self._listener = _Listener()
        self.counting = Counting(
            spark, metrics, self._listener.events.put, every=None if once else settings.count_every
        )
        self._settings = settings
        self._maintenance = Maintenance(self._tables, every=settings.maintain_every, log=settings.log)
        self._is_listening = False

    @property
    def records(self) -> list[QueryStatus | MetricStatus]:
        """The present records of queries and metrics."""
        return [*(query.status.record for query in self.queries), *self.counting.records]

    def _tables(self) -> tuple[list[str], float]:
        """Return the locations of all tables, and for how many seconds files are kept that no version needs."""
        age = longest_batch((query.status.record for query in self.queries), time.time())
        return self._settings.locations, max(RETENTION, age + DAY)

    def start(self) -> None:
        """Start the queries. Call create_channels() before.

        Raises:
            JobFailed: If Spark refuses a query; with once, also if nsqd does not answer.
        """
        if self._once:
            for query in self.queries:
                query.look_for_messages()
        self._spark.streams.addListener(self._listener)
        self._is_listening = True
        for query in self.queries:
            query.look(time.monotonic())
        self.counting.start()

    def wait(self, is_stopping: Callable[[], bool]) -> bool:
        """Wait until all queries have ended and the metrics are counted, or until is_stopping() returns True.

        Returns:
            True if the queries ended by themselves.

        Raises:
            JobFailed: If the JVM has ended, or a query is due to start and another job has begun.
        """
        asked_at = time.monotonic()
        while not is_stopping():
            has_ended = self._handle_events(EVENT_WAIT)
            now = time.monotonic()
            if not has_ended and now - asked_at < QUESTION_INTERVAL:
                continue
            asked_at = now
            try:
                for query in self.queries:
                    query.look(now)
            except (Py4JError, ConnectionError) as error:
                raise JobFailed(
                    "Spark's JVM has ended by itself: was it killed, or out of memory ('spark.driver.memory')?"
                ) from error
            if all(query.is_done for query in self.queries):
                self._handle_last_events()
                return self._wait_for_counts(is_stopping)
        return False

    def _wait_for_counts(self, is_stopping: Callable[[], bool]) -> bool:
        """Count the metrics a last time. Return False if is_stopping() returns True before the end."""
        self.counting.finish()
        while not self.counting.is_done:
            if is_stopping():
                return False
            self._handle_events(EVENT_WAIT)
        self._handle_events(0.0)
        return True

    def _handle_last_events(self) -> None:
        """Handle the events that Spark sends after the queries have ended."""
        deadline = time.monotonic() + LAST_EVENTS
        while any(query.run_ids for query in self.queries) and time.monotonic() < deadline:
            self._handle_events(EVENT_WAIT)

    def _handle_events(self, timeout: float) -> bool:
        """Handle all events of Spark and all counts that have come; wait up to timeout seconds for the first.

        Returns:
            True if a query has ended.
        """
        has_ended = False
        with contextlib.suppress(queue.Empty):
            event = self._listener.events.get(timeout=timeout)
            while True:
                if isinstance(event, MetricStatus):
                    self._report(count_line(event))
                else:
                    self._handle_event(*event)
                    has_ended |= event[1] is None
                event = self._listener.events.get_nowait()
        return has_ended

    def _handle_event(self, run: str, text: str | None) -> None:
        query = next((each for each in self.queries if run in each.run_ids), None)
        if query is None:
            return  # a query of another job in the same session
        if text is None:
            query.run_ids.remove(run)
            return
        if not text:
            query.handle_idleness()
            return
        progress = json.loads(text)
        query.handle_progress(progress)
        if progress["numInputRows"]:
            self._maintenance.committed()
            self._report(batch_line(query.status.record))

    def maintain(self) -> None:
        """Empty the spools, and maintain the tables if a vacuum is due (once a day), after the queries have ended."""
        for query in self.queries:
            query.empty_spool()
        self._maintenance.run_daily()

    def release(self) -> None:
        """Stop the maintenance and the counts, and remove the listener. The session stops the queries meanwhile."""
        self._maintenance.stop()
        self.counting.stop()
        if self._is_listening:
            with contextlib.suppress(Py4JError, ConnectionError):
                self._spark.streams.removeListener(self._listener)
        for query in self.queries:
            query.status.stopped()

    def close(self, *, finished: bool) -> Summary:
        """Call release(), then return the summary of the run."""
        self.release()
        return Summary(
            finished=finished,
            queries={query.query.name: query.status.record for query in self.queries},
            metrics={record.name: record for record in self.counting.records},
            due={query.query.name: query.due for query in self.queries} if self._once else {},
            merged=self._maintenance.merged,
            seconds=time.monotonic() - self._started_at,
        )

    def check_drained(self) -> None:
        """With once, check that the queries have read all, as JobQuery.check_drained() does, and that the metrics are
        counted; one error for all."""
        reasons = []
        for query in self.queries:
            try:
                query.check_drained()
            except JobFailed as error:
                reasons.append(str(error))
        reasons += [f"metric {each.name}: {each.failure}" for each in self.counting.records if each.failure]
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
    has_functions = settings.setup or any(table.sink for table in settings.tables.values())
    if has_functions and (time.timezone or time.daylight):
        logger.warning(
            "this process has the time zone %s, and PySpark gives times of it to sinks and to functions of setup: "
            "start it with TZ=UTC, and Spark with spark.executorEnv.TZ=UTC",
            time.tzname[0],
        )
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
    with locked(settings.work, stop.wait) as check_lock, contextlib.ExitStack() as stack:
        if check_lock is None:
            return Summary()
        check_places(settings)
        jobs: list[Job] = []

        def records() -> list[QueryStatus | MetricStatus]:
            return [record for job in jobs for record in job.records]

        # After Spark has ended, and before another job may have the lock.
        stack.callback(_wait_for_sources, settings)
        stack.callback(_wait_for_counts, jobs)
        if settings.metrics_address:
            report(f"metrics are at {stack.enter_context(_serving(settings.metrics_address, records))}")
        while_starting(True)
        with open_spark() as spark:
            job = Job(spark, settings, report, once=once, take_over=take_over, log=log, check_lock=check_lock)
            while_starting(False)
            jobs.append(job)
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


def _wait_for_counts(jobs: Iterable[Job]) -> None:
    """Wait until no count may commit any more."""
    for job in jobs:
        job.counting.join()


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


def _serving(address: str, records: Callable[[], list[QueryStatus | MetricStatus]]) -> AbstractContextManager[str]:
    try:
        from gnsq.spark.pipeline.exporter import PipelineCollector, serving
    except ImportError as error:
        raise JobFailed(f"setting metrics_address: {error}") from error
    return serving(address, PipelineCollector(records))


def _sum_up(summary: Summary, settings: JobSettings, report: Callable[[str], object]) -> None:
    for line in summary_lines(summary, settings, time.time()):
        report(line)
