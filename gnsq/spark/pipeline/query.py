"""One query of the job: plans it, starts it, and starts it again when it has failed. Knows nothing of the others."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gnsq.errors import NSQException
from gnsq.spark import register
from gnsq.spark.errors import JobFailed, root_cause
from gnsq.spark.offsets import decode_offset
from gnsq.spark.pipeline.archive import ArchiveBatches
from gnsq.spark.pipeline.checkpoint import (
    checkpoint_id,
    delete_read,
    identify,
    last_batch,
    settings_hash,
)
from gnsq.spark.pipeline.delta import Table
from gnsq.spark.pipeline.durable import mend_checkpoint
from gnsq.spark.pipeline.events import check_streaming, deduplicated, plan
from gnsq.spark.pipeline.settings import Query
from gnsq.spark.pipeline.status import OBSERVED, Status, depth_of
from gnsq.spark.pipeline.tables import SettingError
from gnsq.spark.spool.index import SegmentIndex
from gnsq.spark.spool.spool import Spool
from gnsq.texts import counted

__all__ = ["JobQuery", "load_function"]

logger = logging.getLogger(__name__)

# Seconds until a query that has failed is started again: doubled with each failure, and reset by a committed batch.
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
# With once: how often a query is started, at most, and the seconds between.
TRIES, TRY_PAUSE = 3, 2.0


class JobQuery:
    """One query: its plan, its batches, and its life in Spark: started, failed, started again, at its end.

    Args:
        take_over: Accept tables that belong to other checkpoints.
        log: Where Spark's messages are, for warnings.
        check_lock: Raises JobFailed if another job has begun, see lock.py.

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
        *,
        once: bool,
        take_over: bool,
        log: str,
        check_lock: Callable[[], None],
    ) -> None:
        self.query = query
        self.status = Status(query, log=log)
        self.due = 0
        self.is_done = False
        self._spark = spark
        self._once = once
        self._check_lock = check_lock
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

    @property
    def tables(self) -> list[Table]:
        """The tables that the query writes."""
        return self._batches.tables

    def _plan(self, take_over: bool) -> tuple[DataFrame, ArchiveBatches]:
        """Plan what Spark computes, without starting anything."""
        query, settings = self.query, self.query.events
        options = {**query.source, "drain": str(self._once)}
        messages = _loaded_source(self._spark, options)
        if query.deduplicate:
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
        check_streaming(rows, query.section)
        sink = load_function(settings.sink, "sink", query.section)
        return rows, ArchiveBatches(query, events, sink=sink, take_over=take_over)

    def settle(self) -> None:
        """Check that the checkpoint and the tables fit, and make the tables. Reads no message.

        Call this after all queries are planned: with a wrong setting of another one, no table is made.

        Raises:
            SettingError: If a table does not fit the settings.
            JobFailed: If a table or the checkpoint can't be used.
        """
        query = self.query
        try:
            mend_checkpoint(query.checkpoint)
            owner, committed = checkpoint_id(query.checkpoint), last_batch(query.checkpoint)
        except ValueError as error:
            logger.debug("%s", error)  # only Spark can open this checkpoint: the first batch checks
            return
        except OSError as error:
            raise JobFailed(f"query {query.name}: its checkpoint can't be read: {error}") from error
        try:
            for table in self.tables:
                table.claim(owner, take_over=self._batches.take_over, committed=committed)
        except SettingError as error:
            raise SettingError(error.text, query.section) from error

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
        writer = self._rows.writeStream.queryName(query.name).option("checkpointLocation", query.checkpoint)
        if self._once:
            writer = writer.trigger(availableNow=True)
        # Spark may call write() before start() returns the query, so write() must wait for the query's id.
        owner: Future[str] = Future()

        def write(rows: DataFrame, batch_id: int) -> None:
            self._check_lock()
            self.status.begin(batch_id)
            batch = identify(query.checkpoint, owner.result(), batch_id, self._settings_hash)
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
            JobFailed: If it is due to start, and another job has begun.
            Py4JError, ConnectionError: If the JVM has ended.
        """
        if self.is_done:
            return
        if self._running is None:
            if now >= self._next_start:
                # It would take the spool back from the job that runs now. If the store fails, the start fails, too.
                with contextlib.suppress(OSError):
                    self._check_lock()
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
        self._fail(root_cause(str(failure)), now)

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
            delete_read(self.query)
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
