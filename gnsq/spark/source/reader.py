"""The readers that Spark calls: stream and batch. Translates its calls to Planner and Spool, and nothing else.

Readers are pickled into tasks: they hold options only. What lives is made on first use, in the process that plans.
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
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from gnsq.errors import NSQException
from gnsq.spark.errors import SpoolError
from gnsq.spark.offsets import Segment, decode_offset, encode_offset
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver import tune_gc
from gnsq.spark.source.planner import Planner, drain_channel
from gnsq.spark.spool.spool import Spool
from gnsq.spark.uris import redact_uri

__all__ = ["NsqBatchReader", "NsqStreamReader", "SegmentsPartition"]

logger = logging.getLogger(__name__)

Offset = dict[str, Any]  # Any: JSON as Spark keeps it
# Not ReadAllAvailable: that is what Spark asks for with Trigger.Once, and so it is known by that.
_NO_LIMIT = ReadMaxRows(2**63 - 1)
# Seconds between tries of a file system that fails, where giving up would end the query.
RETRY = 1.0


class SegmentsPartition(InputPartition):  # type: ignore[misc]  # pyspark is not typed here
    """Segments of one spool that one task reads."""

    def __init__(self, location: str, segments: list[Segment]) -> None:
        super().__init__(None)
        self.location = location
        self.segments = segments

    def __repr__(self) -> str:
        return f"SegmentsPartition({redact_uri(self.location)!r}, {[segment.path for segment in self.segments]})"


def read_segments(partition: InputPartition, columns: tuple[str, ...]) -> Iterator[Any]:
    """Yield the record batches of a partition. Reads files only: a task may do it again.

    One that can't be read is set aside, logged as ERROR, and left out.
    """
    if not isinstance(partition, SegmentsPartition):
        return  # Spark's stand-in for a batch without partitions
    spool = Spool(partition.location)
    for segment in partition.segments:
        for batch in spool.read(segment):
            yield batch.select(list(columns))


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # as above
    """readStream. Exactly once from the spool to the query; what of NSQ is in the spool is Receiver's business."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._planner: Planner | None = None
        self._previous_handler: Any = None  # Any: as signal.signal() returns it
        self._is_stopping = False
        # A signal that came while stopping.
        self._signal = 0

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_planner": None, "_previous_handler": None}

    def initialOffset(self) -> Offset:
        """Say what nothing consumed looks like. Called more than once: no side effects."""
        return encode_offset({}, self._options.source)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Turn the options into the one limit that Spark passes on."""
        if self._options.max_rows_per_batch is not None:
            return ReadMaxRows(self._options.max_rows_per_batch)
        if self._options.max_bytes_per_batch is not None:
            return ReadMaxBytes(self._options.max_bytes_per_batch)
        return _NO_LIMIT

    def prepareForTriggerAvailableNow(self) -> None:
        """Note how much is there now."""
        self._started_planner(drain=True)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Say how far the next batch reads; start itself, when there is nothing new or the network fails."""
        once = isinstance(limit, ReadAllAvailable)
        planner = self._started_planner(drain=once)
        source = self._options.source
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if isinstance(limit, ReadMaxRows):
            # Spark knows one limit at a time; the other option counts as well.
            max_bytes = self._options.max_bytes_per_batch
        vector = decode_offset(start, source)
        patience = time.monotonic() + self._options.idle_timeout
        while True:
            try:
                return encode_offset(
                    planner.all_available(vector) if once else planner.latest(vector, max_rows, max_bytes), source
                )
            except SpoolError:
                raise
            except (NSQException, OSError) as error:
                # Raised, it would end the query.
                logger.warning("spool %s: no new offset: %s; trying again", planner.spool.location, error)
                if not planner.is_draining:
                    # Spark asks again within 10 ms.
                    time.sleep(RETRY)
                    return start
                # That would end it, too, as if all had been read.
                if time.monotonic() >= patience:
                    raise SpoolError(
                        f"spool {planner.spool.location} can't be listed for {self._options.idle_timeout:g} s "
                        f"(idleTimeout): {error}: repair the file system and start the query again, nothing is lost"
                    ) from error
            time.sleep(RETRY)

    def reportLatestOffset(self) -> Offset | None:
        """Show in query.lastProgress where the spool ends, and the backlog: rows and bytes of the spool that are in no
        batch yet, rows of segments that were set aside, what nsqd has waiting and in flight, and as trouble, if there
        is any, what keeps messages out of the spool."""
        if self._planner is None:
            return None
        vector, backlog = self._planner.progress()
        return {**encode_offset(vector, self._options.source), **backlog}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """List the files between two offsets. After a restart this is Spark's first call: needs the spool alone."""
        source = self._options.source
        shares = self._started_planner().partitions(decode_offset(start, source), decode_offset(end, source))
        return [SegmentsPartition(self._options.spool, share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one partition, in a task."""
        return read_segments(partition, self._columns)

    def commit(self, end: Offset) -> None:
        """Delete what is at or below end."""
        self._started_planner().commit(decode_offset(end, self._options.source))

    def stop(self) -> None:
        """End in order. Spark calls it when the input of this process ends, and sends SIGTERM otherwise."""
        planner = self._planner
        if planner is None or self._is_stopping:
            return
        self._is_stopping = True
        try:
            planner.stop()
        finally:
            self._planner, self._is_stopping = None, False
            if self._signal:
                _end_by_signal(self._signal)
            self._restore_handler()

    def _started_planner(self, *, drain: bool = False) -> Planner:
        if self._planner is None:
            if self._options.receives_here:
                # Spark gives each query's reader a process of its own.
                tune_gc()
            # First: it may have to stop while it starts, with messages in flight already.
            self._planner = planner = Planner(self._options)
            if threading.current_thread() is threading.main_thread():
                self._previous_handler = signal.signal(signal.SIGTERM, self._on_sigterm)
            try:
                planner.start(drain=drain)
            except BaseException:
                self._planner = None
                self._restore_handler()
                raise
        return self._planner

    def _restore_handler(self) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """End in order, then by the signal, as whoever sent it expects."""
        # Spark sends it twice; the second must not cut the first short.
        signal.signal(number, signal.SIG_IGN)
        self._signal = number
        if self._is_stopping:
            # What was interrupted goes on, and ends by it.
            return
        try:
            self.stop()
        finally:
            _end_by_signal(number)


def _end_by_signal(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class NsqBatchReader(DataSourceReader):  # type: ignore[misc]  # as above
    """spark.read: drains the channel, or up to maxRows, into a spool, and reads that.

    Every action on the DataFrame plans anew, and so receives anew: cache it. The spool is left as a copy of what was
    finished at nsqd, for the user to delete; without the option it lies in Spark's local directory, which Spark deletes
    when the application ends: until then a task may read it again.
    """

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Receive; everything that is returned is durable and finished."""
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
