"""One run of the job: the checks before Spark is used, the job's lock, its queries, and their end.

run() uses a Spark that runs already. The command line, in __main__.py, starts Spark.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.report import Batch, Summary, batch_line, summary_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gnsq.spark.pipeline.job import Job
    from gnsq.spark.pipeline.view import LiveView

__all__ = ["run", "run_queries"]

logger = logging.getLogger(__name__)


def run(
    spark: SparkSession,
    config: PipelineConfig,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
    report: Callable[[str], object] | None = None,
    new_topic: bool = False,
    take_over: bool = False,
) -> Summary:
    """Run the job in a Spark that runs already, in a new session with settings of its own, until the job ends.

    May be called from any thread, also for several jobs at the same time. Neither starts nor stops Spark, and changes
    no setting of the given session. The settings master and log_file are not for this Spark: its messages go where it
    writes them, and only the messages of the maintenance process go to log_file.

    Args:
        spark: A classic session; Spark Connect has none of the JVM's objects that the job needs.
        once: End after all messages that exist now have been read. Otherwise run until stopped.
        stop: Stops the job in order when it is set. KeyboardInterrupt also stops the queries, and is raised again.
        report: Called, in the calling thread, with a line of text for each batch and for the summary, such as print;
            None: the lines are logged as INFO.
        new_topic: Start although no nsqd has the topic yet.
        take_over: Go on with tables that belong to another checkpoint, whose job must not run.

    Returns:
        What the run has done. finished is False if stop has ended it.

    Raises:
        NSQException, OSError, ValueError: If the job can't start, or fails (mostly JobFailed).
    """
    from gnsq.spark.pipeline.session import borrow_session, check_classic  # these load pyspark

    check_classic(spark)
    return run_queries(
        config,
        lambda: borrow_session(spark, config.spark),
        stop=stop or threading.Event(),
        report=report or logger.info,
        log="Spark's log",
        once=once,
        new_topic=new_topic,
        take_over=take_over,
    )


class Stop(Protocol):
    """What asks a job to stop: a threading.Event, or StopSignals."""

    def is_set(self) -> bool:
        """Return True if the job must stop."""

    def wait(self, timeout: float) -> bool:
        """Wait up to timeout seconds; return True if the job must stop."""


def run_queries(
    config: PipelineConfig,
    open_spark: Callable[[], AbstractContextManager[SparkSession]],
    *,
    stop: Stop,
    report: Callable[[str], object],
    log: str,
    once: bool,
    new_topic: bool,
    take_over: bool,
    observe: Callable[[Batch], object] | None = None,
    has_view: bool = False,
) -> Summary:
    """Check everything, lock the work directory, open Spark, and run the queries; the other arguments are run()'s.

    Args:
        open_spark: Makes the session, and ends its queries. It is called after all checks.
        log: Where Spark's messages are, for warnings.
        observe: Called with each progress of a query, also of an idle one.
        has_view: While the queries run, show them live on stdout if that is a terminal, instead of a line for each
            batch.
    """
    # Import these slow modules here: --help and errors in the settings do not need them.
    from gnsq.spark.pipeline.layout import with_layout
    from gnsq.spark.pipeline.lock import LeaseLost, WorkLock
    from gnsq.spark.pipeline.preflight import check_nsq, check_places, check_work, create_channels, survey

    if once and not config.nsqd_http_addresses and not config.lookupd_http_addresses:
        raise ValueError("once needs nsqd_http_addresses or lookupd_http_addresses, to know when all is read")
    config = with_layout(config)
    # Check nsqd first, so that a typing error in the topic leaves no directories behind.
    check_nsq(config, survey(config), once=once, new_topic=new_topic)
    check_work(config)
    with WorkLock(config.work, stop.wait) as lock, contextlib.ExitStack() as stack:
        if not lock.is_held:
            return Summary()
        # Another run may have decided the layout before the lock was free.
        config = with_layout(config)
        check_places(config, take_over=take_over)
        record = _recorder(config, report, stack)
        create_channels(config, once=once, wait=stop.wait, new_topic=new_topic)
        if stop.is_set():
            return Summary()
        from gnsq.spark.pipeline.job import Job

        view = _view(config) if has_view else None

        def take(batch: Batch) -> None:
            record(batch)
            if observe is not None:
                observe(batch)
            if view is not None:
                view.record(batch)
            elif batch.rows:
                report(batch_line(batch))

        with open_spark() as spark:
            job = Job(
                *(spark, config, take),
                log=log,
                check_lock=lock.check,
                take_over=take_over,
            )
            try:
                if not stop.is_set():
                    with view or contextlib.nullcontext():
                        job.start(once=once)
                        job.summary.finished = job.wait(stop.is_set, _nothing if view is None else view.refresh)
                if job.summary.finished:
                    job.maintain()
                else:
                    report("stopping in order")
            except (KeyboardInterrupt, LeaseLost):
                # Lose no time with a summary: after LeaseLost the queries must end before another job begins.
                job.release()
                raise
            except BaseException:
                _sum_up(job, config, report)
                raise
            _sum_up(job, config, report)
        if job.summary.finished:
            job.check_drained()
        return job.summary


def _view(config: PipelineConfig) -> LiveView | None:
    # Output that is no terminal does not need rich, which is slow to load.
    if not sys.stdout.isatty():
        return None
    from gnsq.spark.pipeline.view import terminal_view

    return terminal_view(f"gnsq-pipeline {', '.join(entry.name for entry in config.entries)}", config.queries)


def _recorder(
    config: PipelineConfig, report: Callable[[str], object], stack: contextlib.ExitStack
) -> Callable[[Batch], object]:
    """Start to serve metrics if there is a metrics_address. Return a function that takes each progress for them.

    Args:
        stack: Ends the server.
    """
    if not config.metrics_address:
        return _nothing
    try:
        from gnsq.spark.pipeline.exporter import PipelineCollector, serving
    except ImportError as error:
        raise JobFailed(f"setting metrics_address: {error}") from error
    collector = PipelineCollector(config.queries)
    report(f"metrics are at {stack.enter_context(serving(config.metrics_address, collector))}")
    return collector.record


def _nothing(*args: object) -> None:
    """Stand in for a function that is not needed."""


def _sum_up(job: Job, config: PipelineConfig, report: Callable[[str], object]) -> None:
    for line in summary_lines(job.close(), config.queries):
        report(line)
