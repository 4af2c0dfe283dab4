"""Planner: all that lives behind a query's reader: the spool's lock, the receiver, and what there is to read.

Knows offsets as vectors and no Spark. Its methods are called from one plain thread, which may be blocked natively
between calls; what is connected runs on a hub thread.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

import gevent

from gnsq.errors import NSQException
from gnsq.hubthread import HubThread
from gnsq.spark.channel import ChannelClient
from gnsq.spark.drain import Depth, Drain, Unattended
from gnsq.spark.errors import SpoolError, SpoolIncomplete
from gnsq.spark.offsets import Segment, Vector, cut, latest, missing, nudged, pending, share_out
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver import Receiver
from gnsq.spark.spool import Contents, Spool
from gnsq.spark.spoollock import SpoolLock

__all__ = ["Planner", "drain_channel"]

logger = logging.getLogger(__name__)

# Seconds: Spark asks again at once, so an idle stream waits here.
PATIENCE = 0.5
# A planner that was told to end lets go of the lock at once; a restarted query may still have to wait a moment.
LOCK_PATIENCE = 3.0
# Between two listings of the spool, if nobody tells of something new: of a directory, and of one that costs a request.
LOOK_LOCAL, LOOK_REMOTE, LOOK_REMOTE_TOLD = 0.02, 0.5, 5.0
# While draining: between two listings where much comes in, and to gather a batch.
LOOK_DRAIN = 0.1
GATHER = 2.0
# Between two looks at who owns the spool; at the depth while draining, and otherwise.
CHECK = 5.0
ASK = 0.2
REPORT = 2.0


class Planner:
    """One query's hold on its spool. Nothing happens before start().

    Args:
        options: The query's.
        max_rows: Rows to receive altogether; None for no limit.
    """

    def __init__(self, options: ReadOptions, max_rows: int | None = None) -> None:
        self.spool = Spool(options.spool)
        self.receiver: Receiver | None = None
        self._options = options
        self._max_rows = max_rows
        self._lock: SpoolLock | None = None
        self._hub: HubThread | None = None
        self._channel: ChannelClient | None = None
        self._changed = threading.Event()
        self._depth: Depth | None = None
        self._depth_failed = False
        self._asked_at = self._checked_at = self._listed_at = 0.0
        self._contents = Contents()
        self._planned: Vector = {}
        # AvailableNow and Once: when to stop, how far, and what has been counted on the way.
        self._drain: Drain | None = None
        self._ceiling: Vector | None = None
        self._counted: dict[str, int] = {}
        self._counted_rows = 0
        if not self.spool.is_local:
            self._interval = LOOK_REMOTE_TOLD if options.receives_here else LOOK_REMOTE
        else:
            self._interval = LOOK_LOCAL

    # --- life

    def start(self, *, drain: bool = False) -> None:
        """Take the spool, create the channel, and begin to receive. A second call does nothing.

        Args:
            drain: Read what is there now, and say when that is done; else go on for ever.

        Raises:
            SpoolInUse: If another query has the spool.
            SpoolError: If the spool can't be written.
        """
        if self._hub is not None:
            return
        options = self._options
        try:
            self._lock = self.spool.lock(options.spool_owner, options.source, LOCK_PATIENCE)
            self._checked_at = time.monotonic()
            self.spool.remove_leftovers()
            self._hub = HubThread("gnsq-spark-receiver")
            self._hub.call(self._start_channel)
            if drain:
                self._start_drain()
            if options.receives_here:
                self._hub.call(self._start_receiver)
        except OSError as error:
            self.stop()
            raise SpoolError(
                f"spool {self.spool.location} can't be used: {error}: give a directory that can be written"
            ) from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End in order: let go of the spool, give back what is not in it, disconnect. May be called from a signal
        handler, and twice."""
        # First, so that the query can be started again at once; a receiver's own directory needs no lock.
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
        hub, self._hub = self._hub, None
        if hub is None:
            return
        if self.receiver is not None:
            hub.call(self.receiver.close)
        if self._channel is not None:
            hub.call(self._channel.close)
        hub.stop()

    def _start_channel(self) -> None:
        options = self._options
        self._channel = ChannelClient(options)
        if not self._channel.can_ask:
            return
        try:
            self._channel.create()
        except NSQException as error:
            # The consumer's SUB will create it; until then it is not seen in the depth.
            logger.warning("channel %s not created: %s", options.source, error)
        gevent.spawn(self._watch_depth).name = f"gnsq-depth-{options.source}"

    def _start_receiver(self) -> None:
        options = self._options
        if options.max_rows_per_batch is not None:
            # Segments are not divided: one that is larger than a batch would be a batch over the limit.
            rows = min(options.segment_rows, options.max_rows_per_batch)
            options = dataclasses.replace(options, segment_rows=rows)
        receiver = Receiver(options, self.spool, self._changed.set, max_rows=self._max_rows)
        receiver.start()
        self.receiver = receiver

    # --- planning

    def latest(self, start: Vector, max_rows: int | None, max_bytes: int | None) -> dict[str, int]:
        """Say how far the next batch may read: start itself if there is nothing new.

        Waits up to half a second for something new; while draining, until there is enough for a batch or nothing more
        to wait for.

        Raises:
            SpoolError: If the receiver has failed for good, or another run has taken the spool.
            OSError: If the spool can't be listed.
        """
        since = time.monotonic()
        while True:
            self._look()
            waiting = pending(self._contents.segments, start, self._ceiling)
            taken = cut(waiting, max_rows, max_bytes)
            if not self._is_waited_for(waiting, taken, time.monotonic() - since):
                return self._planned_to(start, taken)
            if not waiting and self._is_full():
                # All of it was read, but Spark says so only behind the next batch, and nothing more is received.
                return nudged(start)
            self._pause()

    def everything(self, start: Vector) -> dict[str, int]:
        """Say how far one batch reads that holds all that is there now, for Trigger.Once; waits until it has come.

        Raises:
            SpoolError, OSError: As latest().
        """
        if self._drain is None:
            self._start_drain()
        self._await_drain(lambda: False)
        return self._planned_to(start, pending(self._contents.segments, start, self._ceiling))

    def shares(self, start: Vector, end: Vector) -> list[list[Segment]]:
        """Divide what lies between two offsets for parallel reading.

        Raises:
            SpoolIncomplete: If some of it is gone.
            OSError: If the spool can't be listed.
        """
        contents = self._contents
        if missing(contents.present(), start, end):
            # The last look may be older than the batch, or there was none since the query was started again.
            contents = self._contents = self.spool.contents()
        gaps = missing(contents.present(), start, end)
        if gaps:
            raise SpoolIncomplete(
                f"spool {self.spool.location} lacks {len(gaps)} segments of this batch, first {gaps[0]}: "
                "was the spool deleted, or is the checkpoint another query's? Bring the spool back, or start with a "
                "new checkpoint, without the messages that were in it"
            )
        self._planned = dict(end)
        return share_out(pending(contents.segments, start, end), self._options.partitions)

    def commit(self, end: Vector) -> None:
        """Delete what has been read for good. A failure is logged: the next commit covers it.

        Raises:
            SpoolInUse: If another run has taken the spool.
        """
        try:
            self._check_owner(0.0)
            self.spool.prune(end)
            self._contents.segments = pending(self._contents.segments, end)
        except OSError as error:
            logger.warning("spool %s not pruned: %s", self.spool.location, error)

    def newest(self) -> tuple[dict[str, int], dict[str, int]]:
        """Say what the last looks have seen: the end of the spool, and the backlog as names and numbers."""
        contents, depth = self._contents, self._depth
        waiting = pending(contents.segments, self._planned)
        backlog = {
            "spool_rows": sum(segment.rows for segment in waiting),
            "spool_bytes": sum(segment.size for segment in waiting),
            "set_aside": contents.rows_set_aside,
        }
        if depth is not None:
            backlog |= {"waiting": depth.waiting, "in_flight": depth.in_flight}
        return _end_of(contents.segments), backlog

    def drained(self, max_rows: int | None) -> list[Segment]:
        """Wait until nothing more is to be waited for, stop, and list what this planner's own receiver wrote."""
        receiver = self.receiver
        assert receiver is not None  # start() has made it
        self._await_drain(lambda: max_rows is not None and receiver.rows >= max_rows)
        self.stop()
        own = [segment for segment in self.spool.contents().segments if segment.receiver == receiver.id]
        return pending(own, {})

    def _is_waited_for(self, waiting: list[Segment], taken: list[Segment], waited: float) -> bool:
        """Whether something is to come yet that belongs into this batch.

        While draining, batches are gathered: each costs as much as receiving some ten thousand messages, and nobody
        waits for the first.
        """
        if self._drain is None:
            return not waiting and waited < PATIENCE
        if self._ceiling is not None or len(taken) < len(waiting):
            return False
        return not waiting or (waited < GATHER and self._contents.size < self._options.max_spool_bytes // 2)

    def _pause(self) -> None:
        """Wait for something new; while draining for some of it, as each look lists all that is there."""
        if self._changed.wait(min(self._interval, PATIENCE)) and self._drain is not None:
            time.sleep(LOOK_DRAIN)

    def _planned_to(self, start: Vector, taken: list[Segment]) -> dict[str, int]:
        self._planned = latest(start, taken, self._contents.receivers)
        return dict(self._planned)

    # --- looking

    def _look(self) -> None:
        """List the spool, if it is time; while draining, find out whether that was the last of it."""
        if self.receiver is not None and self.receiver.error is not None:
            raise SpoolError(
                f"the receiver has ended: {self.receiver.error!r}, its traceback is in the log: start the query again, "
                "nothing is lost"
            )
        self._check_owner(CHECK)
        told = self._changed.is_set()
        self._changed.clear()
        if self._drain is None or self._ceiling is not None:
            if told or time.monotonic() - self._listed_at >= self._interval:
                self._list()
            return
        # In this order: what nsqd no longer has is in the spool when that is listed.
        depth = self._ask_depth()
        self._list()
        self._count(self._contents.segments)
        reason = self._drain.is_done(self._counted_rows, depth, time.monotonic())
        if reason:
            self._ceiling = _end_of(self._contents.segments)
            logger.info("channel %s drained: %s", self._options.source, reason)

    def _is_full(self) -> bool:
        return self._contents.size >= self._options.max_spool_bytes

    def _list(self) -> None:
        self._contents = self.spool.contents()
        self._listed_at = time.monotonic()

    def _check_owner(self, interval: float) -> None:
        """Where nothing locks the spool, another run of the query may have taken it."""
        now = time.monotonic()
        if self._lock is not None and now - self._checked_at >= interval:
            self._lock.check()
            self._checked_at = now

    def _start_drain(self) -> None:
        """Note what is there: in the channel first, then in the spool, so that nothing is counted in neither."""
        self._asked_at = 0.0
        depth = self._ask_depth()
        self._list()
        self._counted = _end_of(self._contents.segments)
        askable = self._channel is not None and self._channel.can_ask
        self._drain = Drain(
            depth.total if depth else None, self._options.idle_timeout, time.monotonic(), askable=askable
        )

    def _await_drain(self, enough: Callable[[], bool]) -> None:
        """Wait until all has come, or enough, or as much as the spool takes: nothing is read meanwhile."""
        while self._ceiling is None and not enough():
            if self._is_full():
                logger.warning(
                    "spool %s is full (maxSpoolBytes): this batch ends there, the next one goes on with the rest",
                    self.spool.location,
                )
                return
            self._look()
            self._pause()

    def _count(self, segments: list[Segment]) -> None:
        for segment in pending(segments, self._counted):
            self._counted_rows += segment.rows
            self._counted[segment.receiver] = segment.number

    def _ask_depth(self) -> Depth | None:
        now = time.monotonic()
        if self._hub is None or self._channel is None or not self._channel.can_ask or now - self._asked_at < ASK:
            return None
        self._asked_at = now
        return self._hub.call(self._read_depth)

    def _read_depth(self) -> Depth | None:
        assert self._channel is not None  # _start_channel() has made it
        try:
            self._depth = self._channel.depth()
        except NSQException as error:
            # Once, not at each look.
            level = logging.DEBUG if self._depth_failed else logging.WARNING
            logger.log(level, "depth of %s unknown: %s", self._options.source, error)
            self._depth = None
        self._depth_failed = self._depth is None
        return self._depth

    def _watch_depth(self) -> None:
        unattended = Unattended(time.monotonic())
        while True:
            depth = self._read_depth()
            if self.receiver is None and unattended.is_due(depth, time.monotonic()):
                self._warn_unattended()
            gevent.sleep(REPORT)

    def _warn_unattended(self) -> None:
        options = self._options
        remedy = "start receivers: python -m gnsq.spark.receiver --help"
        if options.receiver_count:
            remedy = "has the application cores for its receivers, do they fail? See its log, or use receivers=driver"
        logger.warning(
            "channel %s has messages waiting and no consumer, the spool %s gets nothing: %s",
            options.source,
            self.spool.location,
            remedy,
        )


def _end_of(segments: list[Segment]) -> dict[str, int]:
    end: dict[str, int] = {}
    for segment in segments:
        end[segment.receiver] = max(segment.number, end.get(segment.receiver, 0))
    return end


def drain_channel(options: ReadOptions) -> list[list[Segment]]:
    """Receive what is in a channel now into options.spool, and divide it for parallel reading.

    Raises:
        SpoolError: As Planner.start().
    """
    planner = Planner(dataclasses.replace(options, receivers="driver"), options.max_rows)
    planner.start(drain=True)
    try:
        segments = planner.drained(options.max_rows)
    finally:
        planner.stop()
    return share_out(segments, options.partitions)
