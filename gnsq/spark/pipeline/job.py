"""Job: starts the queries and watches them; the session stops them. What they do is archive.py's and metrics.py's."""

from __future__ import annotations

import datetime as dt
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gnsq.errors import NSQException
from gnsq.spark.errors import JobFailed, root_cause
from gnsq.spark.pipeline.archive import ArchiveBatches
from gnsq.spark.pipeline.checkpoint import Checkpoint
from gnsq.spark.pipeline.compaction import Compaction, Compactor
from gnsq.spark.pipeline.config import QUERIES, PipelineConfig
from gnsq.spark.pipeline.events import deduplicated, parse
from gnsq.spark.pipeline.files import BatchFiles
from gnsq.spark.pipeline.metrics import MetricsBatches
from gnsq.spark.pipeline.preflight import checkpoints
from gnsq.spark.pipeline.report import Batch, Silence, Summary
from gnsq.spark.pipeline.status import depth_of, spool_state
from gnsq.texts import counted

__all__ = ["Job"]

logger = logging.getLogger(__name__)

LOOK = 0.2
_OBSERVED = "gnsq"


class Job:
    """Both queries of one configuration.

    Args:
        report: Called for each finished batch, in the thread that waits.
        check: Called at the start and before each batch; raises if the job may not write any more.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: PipelineConfig,
        report: Callable[[Batch], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._spark = spark
        self._config = config
        self._report = report
        self._check = check
        self._summary = Summary()
        self._started_at = time.monotonic()
        self._queries: dict[str, StreamingQuery] = {}
        self._reported: dict[str, int] = {}
        # When each query's last progress was made, and what is made of those without rows.
        self._heard: dict[str, str] = {}
        asked = bool(config.nsqd_http_addresses or config.lookupd_http_addresses)
        self._silence = {query: Silence(is_asked=asked) for query in QUERIES}
        # By query, as the last batch told it.
        self._troubles: dict[str, str] = {}
        self._metrics: MetricsBatches | None = None
        self._compaction: Compaction | None = None
        self._compactor: Compactor | None = None
        # Messages that were there at the start, and so have to come before a query may end.
        self._due: dict[str, int] = {}

    def start(self, *, once: bool) -> None:
        """Start the queries, whose channels exist.

        Args:
            once: End when what is there now has been worked off; else go on for ever.

        Raises:
            JobFailed: If Spark does not take one; once, also if nsqd does not answer.
            NSQException, OSError, ValueError: If a directory can't be used.
        """
        config = self._config
        self._check()
        before = checkpoints(config)
        if once:
            self._due = {query: self._waiting(query, before[query]) for query in QUERIES}
        archive, self._metrics = ArchiveBatches(config), MetricsBatches(config)
        if isinstance(archive.files, BatchFiles):
            self._start_compaction(archive.files, before["archive"])
        self._start("archive", archive, once)
        self._start("metrics", self._metrics, once)

    def _start_compaction(self, files: BatchFiles, checkpoint: Checkpoint | None) -> None:
        compaction = Compaction(files.root, files.lock, self._config.watermark_delay, self._config.least_to_compact)
        compaction.recover()
        self._compaction, self._compactor = compaction, Compactor(compaction)
        if checkpoint is not None:
            self._compactor.committed(checkpoint.committed)

    def wait(self, is_stopping: Callable[[], bool]) -> bool:
        """Wait until all queries have ended, or until it is time to stop.

        Returns:
            Whether they ended by themselves.

        Raises:
            JobFailed: If one of them failed.
        """
        while not is_stopping():
            running = False
            for name, query in self._queries.items():
                try:
                    active = query.isActive
                    self._report_batches(name, query)
                    if not active:
                        _raise_failure(name, query)
                except (Py4JError, ConnectionError) as error:
                    raise JobFailed(
                        "Spark's JVM has ended by itself: was it killed, or out of memory ('spark.driver.memory')?"
                    ) from error
                running = running or active
            if not running:
                return True
            time.sleep(LOOK)
        return False

    def close(self) -> Summary:
        """End what is the job's own, compact what is left to compact if the queries have ended, and sum up."""
        if self._compactor is not None:
            self._compactor.stop()
        if self._compaction is not None:
            self._summary.compactions = self._compaction.times
            self._summary.compacted_files = self._compaction.files
        if self._metrics is not None:
            self._summary.late = self._metrics.late
        for query in QUERIES:
            try:
                state = spool_state(self._config, query, None)
            except (NSQException, OSError) as error:
                logger.warning("spool of %s: %s", query, error)
                continue
            self._summary.set_aside[query] = (state.set_aside, state.rows_set_aside)
        self._summary.seconds = time.monotonic() - self._started_at
        return self._summary

    def compact(self) -> None:
        """Compact all that can be, now; for queries that have ended in order."""
        if self._compactor is not None and self._compaction is not None:
            self._compactor.stop()
            self._compaction.run(self._compactor.last_committed)

    def check_drained(self) -> None:
        """See whether queries that have ended have really read all that was there at the start.

        Raises:
            JobFailed: If they have not, or nobody can tell.
        """
        for query, due in self._due.items():
            read = self._summary.rows.get(query, 0)
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

    def unread(self) -> str:
        """Say how much of what was there at the start the queries have read, for one that was stopped."""
        return ", ".join(f"{query} {self._summary.rows.get(query, 0):,} of {due:,}" for query, due in self._due.items())

    def _waiting(self, query: str, checkpoint: Checkpoint | None) -> int:
        try:
            return depth_of(self._config, query) + spool_state(self._config, query, checkpoint).rows
        except NSQException as error:
            raise JobFailed(f"query {query}: what is there to read is not known: {error}") from error

    def _start(self, name: str, batches: Callable[[DataFrame, int], None], once: bool) -> None:
        config = self._config
        messages = self._spark.readStream.format("nsq").options(**config.source_options(name)).load()
        if config.deduplicate:
            messages = deduplicated(messages, config.deduplicate)
        events = parse(messages, config.schema, config.ahead_limit).observe(
            _OBSERVED, F.count("reason").alias("malformed"), F.max(F.unix_micros("published_at")).alias("latest")
        )

        def write(rows: DataFrame, batch_id: int) -> None:
            self._check()
            batches(rows, batch_id)

        writer = events.writeStream.queryName(name).foreachBatch(write)
        writer = writer.option("checkpointLocation", config.checkpoint_of(name))
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{config.trigger_interval} seconds")
        try:
            self._queries[name] = writer.start()
        except (PySparkException, Py4JError) as error:
            raise JobFailed(f"query {name} did not start: {root_cause(str(error))}") from error

    def _report_batches(self, name: str, query: StreamingQuery) -> None:
        recent = query.recentProgress
        self._listen(name, recent)
        for progress in recent:
            batch_id, rows = progress["batchId"], progress["numInputRows"]
            if rows and batch_id > self._reported.get(name, -1):
                self._reported[name] = batch_id
                batch = _batch(name, progress)
                if batch.dropped:
                    logger.error(
                        "query %s, batch %d: Spark has dropped %s as late, since the driver's clock was set back "
                        "by more than the setting deduplicate; the results lack what was dropped",
                        *(name, batch_id, counted(batch.dropped, "row")),
                    )
                self._summary.add(batch)
                self._troubles[name] = batch.trouble
                self._report(batch)
                if name == "archive" and self._compactor is not None:
                    # Spark tells of a batch when it is in the commit log.
                    self._compactor.committed(batch_id)

    def _listen(self, name: str, recent: Sequence[Any]) -> None:  # Any: Spark's JSON
        """Tell when a query gets nothing: there are no batches then that would."""
        if not recent or recent[-1]["timestamp"] == self._heard.get(name):
            return
        self._heard[name] = recent[-1]["timestamp"]
        trouble = self._silence[name].notice(recent[-1]["numInputRows"], _source(recent[-1]))
        if trouble:
            logger.warning("query %s: %s; see %s", name, trouble, self._config.log)


def _source(progress: Any) -> Any:  # Any: Spark's JSON
    # A text with JSON, null before the source has told anything.
    return json.loads(progress["sources"][0]["latestOffset"]) or {}


def _batch(name: str, progress: Any) -> Batch:  # Any: Spark's JSON
    seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
    source = _source(progress)
    observed = progress["observedMetrics"].get(_OBSERVED)
    lag = None
    if observed is not None and observed["latest"] is not None:
        end = dt.datetime.fromisoformat(progress["timestamp"]).timestamp() + seconds
        lag = max(end - observed["latest"] / 1e6, 0.0)
    operators = progress["stateOperators"]
    return Batch(
        name,
        progress["batchId"],
        progress["numInputRows"],
        seconds,
        malformed=observed["malformed"] if observed is not None else 0,
        duplicates=sum(operator["customMetrics"].get("numDroppedDuplicateRows", 0) for operator in operators),
        waiting=source["waiting"] + source["in_flight"] if "waiting" in source else None,
        spooled=source.get("spool_rows"),
        lag=lag,
        dropped=sum(operator["numRowsDroppedByWatermark"] for operator in operators),
        trouble=source.get("trouble", ""),
    )


def _raise_failure(name: str, query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise JobFailed(f"query {name}: {root_cause(str(failure))}")
