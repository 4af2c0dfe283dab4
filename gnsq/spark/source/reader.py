"""The readers that Spark calls, for streams and batches. They translate Spark's calls to calls of Planner and Spool.

Spark pickles readers into tasks, so a new reader has only options. The process that plans batches makes all other
objects when it first needs them. gnsq/spark/receiver/receiver.py begins with the way of a row.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from gnsq.errors import NSQException
from gnsq.spark.errors import SpoolError
from gnsq.spark.offsets import Segment, decode_offset, encode_offset
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.receiver import tune_gc
from gnsq.spark.source.planner import Planner, drain_channel
from gnsq.spark.source.pyspark41 import (
    HAS_READ_LIMITS,
    PlannedEnd,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from gnsq.spark.spool.spool import Spool
from gnsq.spark.uris import redact_uri

__all__ = ["NsqBatchReader", "NsqStreamReader", "NsqStreamReader41", "SegmentsPartition", "stream_reader"]

logger = logging.getLogger(__name__)

Offset = dict[str, Any]  # Any: JSON as Spark keeps it
# Seconds between tries if the file system fails and an error would end the query.
RETRY_INTERVAL = 1.0


class SegmentsPartition(InputPartition):  # type: ignore[misc]  # pyspark is not typed here
    """Segments of one spool that one task reads."""

    def __init__(self, location: str, segments: list[Segment]) -> None:
        super().__init__(None)
        self.location = location
        self.segments = segments

    def __repr__(self) -> str:
        return f"SegmentsPartition({redact_uri(self.location)!r}, {[segment.path for segment in self.segments]})"


def read_segments(partition: InputPartition, columns: tuple[str, ...]) -> Iterator[Any]:
    """Yield the record batches of a partition. Changes no segment that can be decoded, so a task may run again.

    A segment that can't be decoded is renamed, logged as ERROR, and left out.

    Raises:
        SpoolIncomplete: If a segment is gone.
    """
    if not isinstance(partition, SegmentsPartition):
        return  # for a batch without partitions, Spark passes a partition of its own
    spool = Spool(partition.location)
    for segment in partition.segments:
        for batch in spool.read(segment):
            yield batch.select(list(columns))


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # no types
    """Reader of ``readStream``. Rows come exactly once from spool to query, but at least once from NSQ to spool."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._planner: Planner | None = None
        # The end of the segments that latestOffset() may delete.
        self._committed: dict[str, int] | None = None
        # True with Trigger.Once.
        self._is_once = False
        self._previous_handler: Any = None  # Any: as signal.signal() returns it

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_planner": None, "_previous_handler": None}

    def initialOffset(self) -> Offset:
        """Return the offset before the first segment. No side effects, since Spark calls initialOffset() repeatedly."""
        return encode_offset({}, self._options.source)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one limit, since Spark takes only one at a time. The planner applies the limits of all options."""
        # Not ReadAllAvailable: latestOffset() recognizes Trigger.Once by that limit, which Spark passes for it.
        return ReadMaxBytes(self._options.max_bytes_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Start the planner, so that the query ends when it has read the messages that exist now."""
        self._started_planner(drain=True)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next batch. Return start if nothing is new, or, unless draining, if the spool fails."""
        self._is_once = isinstance(limit, ReadAllAvailable)
        planner = self._started_planner(drain=self._is_once)
        source = self._options.source
        vector = decode_offset(start, source)
        if self._committed is not None:
            planner.commit(self._committed)
            self._committed = None
        deadline = time.monotonic() + self._options.idle_timeout
        while True:
            try:
                end = planner.all_available(vector) if self._is_once else planner.latest(vector)
                return encode_offset(end, source)
            except SpoolError:
                raise
            except (NSQException, OSError) as error:
                # Do not raise: an error would end the query.
                logger.warning("spool %s: no new offset: %s; trying again", planner.spool.location, error)
                if not planner.is_draining:
                    # Wait here, since Spark calls again within 10 ms.
                    time.sleep(RETRY_INTERVAL)
                    return start
                # While draining, do not return start: the query would end, as if all messages had been read.
                if time.monotonic() >= deadline:
                    raise SpoolError(
                        f"spool {planner.spool.location} can't be listed for {self._options.idle_timeout:g} s "
                        f"(idleTimeout): {error}: repair the file system and start the query again, nothing is lost"
                    ) from error
            time.sleep(RETRY_INTERVAL)

    def reportLatestOffset(self) -> Offset | None:
        """Return the end of the spool and the backlog, for query.lastProgress.

        The backlog: rows and bytes of the spool that are in no batch yet, rows of segments that can't be decoded,
        messages that are waiting and in flight at nsqd, and, as "trouble", the reason why no messages come.
        """
        if self._planner is None:
            return None
        vector, backlog = self._planner.progress()
        return {**encode_offset(vector, self._options.source), **backlog}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Divide the segments between two offsets into tasks. After a restart, partitions() may be called first."""
        source = self._options.source
        shares = self._started_planner().partitions(decode_offset(start, source), decode_offset(end, source))
        return [SegmentsPartition(self._options.spool, share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one partition, in a task."""
        return read_segments(partition, self._columns)

    def commit(self, end: Offset) -> None:
        """Let the next latestOffset() delete the segments up to end. With Trigger.Once, delete them now.

        Spark calls commit() after it has added the batch to its commit log, and before the next batch. Spark does not
        sync the log; code in the next batch can do that. If the entry is lost, Spark reads the segments again.
        """
        vector = decode_offset(end, self._options.source)
        if self._is_once:
            # A run with Trigger.Once calls latestOffset() only once, before commit(), so no later call could delete.
            # Spark added the entry in the run before. It can be lost only in a power failure soon after that run.
            self._started_planner().commit(vector)
        else:
            self._committed = vector

    def stop(self) -> None:
        """Shut down. Spark calls stop() when the input of this process ends; in other cases Spark sends SIGTERM."""
        if self._previous_handler is not None:
            # A signal must not interrupt the shutdown. The process ends after it in any case.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        planner, self._planner = self._planner, None
        try:
            if planner is not None:
                planner.stop()
        finally:
            self._restore_handler()

    def _started_planner(self, *, drain: bool = False) -> Planner:
        if self._planner is None:
            if self._options.receives_here:
                # tune_gc() may change the whole process, since Spark gives the reader of each query its own process.
                tune_gc()
            # Assign the planner before it starts: a signal may come during the start, and must stop this planner.
            self._planner = planner = Planner(self._options)
            if threading.current_thread() is threading.main_thread():
                self._previous_handler = signal.signal(signal.SIGTERM, self._on_sigterm)
            try:
                planner.start(drain=drain)
                self._use_planned_end(PlannedEnd(self._options))
            except BaseException:
                planner.stop()
                self._planner = None
                self._restore_handler()
                raise
        return self._planner

    def _use_planned_end(self, planned: PlannedEnd) -> None:
        """Delete the file, which this PySpark does not need, once the spool is locked."""
        planned.remove()

    def _restore_handler(self) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Shut down, then end the process by the same signal, as the sender of the signal expects.

        StopSignals would not do: it wakes a hub, and this thread waits for Spark in a plain read of a socket.
        """
        # Spark sends the signal twice. The second signal must not interrupt the shutdown.
        signal.signal(number, signal.SIG_IGN)
        try:
            self.stop()
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class NsqStreamReader41(NsqStreamReader):
    """Reader of ``readStream`` for PySpark 4.1, which calls latestOffset() without arguments."""

    # The end of the last planned batch.
    _end: Offset | None = None

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Return the end of the next batch, as in later releases. With the option drain, return the end of all messages
        that exist now, when they are in the spool. PySpark 4.1 gives no arguments."""
        drain = self._options.drain
        self._started_planner(drain=drain)
        assert self._end is not None  # _use_planned_end() has read it
        return super().latestOffset(
            self._end if start is None else start,
            limit or (ReadAllAvailable() if drain else self.getDefaultReadLimit()),
        )

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Divide the segments between two offsets into tasks, and keep the end in the spool before the tasks begin."""
        found = super().partitions(start, end)
        PlannedEnd(self._options).write(end)
        self._end = end
        return found

    def _started_planner(self, *, drain: bool = False) -> Planner:
        if self._planner is None:
            PlannedEnd(self._options).prepare(self.initialOffset())
        return super()._started_planner(drain=drain)

    def _use_planned_end(self, planned: PlannedEnd) -> None:
        """Read the file, once the spool is locked."""
        self._end = planned.read()


def stream_reader(options: ReadOptions, columns: tuple[str, ...]) -> NsqStreamReader:
    """Make the reader of ``readStream`` for the installed PySpark."""
    if not HAS_READ_LIMITS:
        return NsqStreamReader41(options, columns)
    return NsqStreamReader(options, columns)


class NsqBatchReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed here
    """Reader of ``spark.read``: drains the channel into a spool, or at most maxRows rows of it, and reads the spool.

    Every action on the DataFrame plans again, and so receives again: cache the DataFrame. The spool remains as a copy
    of the messages that were finished, until the user deletes it. Without the option spool, the spool is in Spark's
    local directory, which Spark deletes when the application ends; until then a task may read the spool again.
    """

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Receive messages into segments, and divide these into tasks. All messages are durable and finished."""
        options = self._options
        if not options.spool:
            parent = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
            spool = tempfile.mkdtemp(prefix="gnsq-spool-", dir=parent)
            os.chmod(spool, options.spool_permissions)
            options = dataclasses.replace(options, spool=spool)
        return [SegmentsPartition(options.spool, share) for share in drain_channel(options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one partition, in a task."""
        return read_segments(partition, self._columns)
