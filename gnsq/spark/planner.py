"""Planner: all that lives behind a query's reader: the spool's lock, the receiver, and what there is to read.

Knows offsets as vectors and no Spark. Its methods are called from one plain thread, which may be blocked natively
between calls; what is connected runs on a hub thread.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time

import gevent

from gnsq.errors import NSQException
from gnsq.hubthread import HubThread
from gnsq.spark.channel import ChannelClient
from gnsq.spark.drain import Depth, Drain
from gnsq.spark.errors import SpoolError, SpoolIncomplete
from gnsq.spark.offsets import Segment, Vector, cut, latest, missing, pending, share_out
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver import Receiver, ReceiverOptions
from gnsq.spark.spool import Contents, Spool
from gnsq.spark.spoollock import SpoolLock

__all__ = ["Planner", "drain_channel"]

logger = logging.getLogger(__name__)

# Seconds: Spark asks again at once, so an idle stream waits here; between two looks at the spool; and at the depth.
PATIENCE = 0.5
# A planner that was told to end lets go of the lock at once; a restarted query may still have to wait a moment.
LOCK_PATIENCE = 3.0
LOOK_LOCAL, LOOK_REMOTE = 0.02, 0.25
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
        self._asked_at = 0.0
        self._contents = Contents()
        # AvailableNow: when to stop, how far, and what has been counted on the way.
        self._drain: Drain | None = None
        self._ceiling: Vector | None = None
        self._counted: dict[str, int] = {}
        self._counted_rows = 0

    # --- life

    @property
    def is_started(self) -> bool:
        """Whether start() has succeeded, and stop() was not called."""
        return self._hub is not None

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
            self._lock = self.spool.lock(options.spool_owner, options.topic, options.channel, LOCK_PATIENCE)
            self.spool.remove_leftovers()
            self._hub = HubThread("gnsq-spark-receiver")
            self._hub.call(self._start_channel)
            if drain:
                self._start_drain()
            if options.receivers == "driver":
                self._hub.call(self._start_receiver)
        except OSError as error:
            self.stop()
            raise SpoolError(
                f"spool {options.spool} can't be used: {error}: give a directory that can be written"
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
        self._channel = ChannelClient(
            options.topic, options.channel, options.nsqd_http_addresses, options.lookupd_http_addresses
        )
        if not self._channel.can_ask:
            return
        try:
            self._channel.create()
        except NSQException as error:
            # The consumer's SUB will create it; until then it is not seen in the depth.
            logger.warning("channel %s/%s not created: %s", options.topic, options.channel, error)
        gevent.spawn(self._watch_depth).name = f"gnsq-depth-{options.topic}"

    def _start_receiver(self) -> None:
        options = self._options
        fields = {field.name for field in dataclasses.fields(ReceiverOptions)} - {"max_rows"}
        common = {name: value for name, value in dataclasses.asdict(options).items() if name in fields}
        receiver = Receiver(ReceiverOptions(**common, max_rows=self._max_rows), self.spool, self._changed.set)
        receiver.start()
        self.receiver = receiver

    # --- planning

    def latest(self, start: Vector, max_rows: int | None, max_bytes: int | None) -> dict[str, int]:
        """Say how far the next batch may read: start itself if there is nothing new.

        Waits up to half a second for something new; while draining, until there is something new or nothing more to
        wait for.

        Raises:
            SpoolError: If the receiver has failed for good.
            OSError: If the spool can't be listed.
        """
        deadline = time.monotonic() + PATIENCE
        look = LOOK_LOCAL if self.spool.is_local else LOOK_REMOTE
        while True:
            self._changed.clear()
            self._look()
            waiting = pending(self._contents.segments, start, self._ceiling)
            if waiting:
                return latest(start, cut(waiting, max_rows, max_bytes), self._contents.receivers)
            over = self._ceiling is not None if self._drain is not None else time.monotonic() >= deadline
            if over:
                return dict(start)
            self._changed.wait(look)

    def shares(self, start: Vector, end: Vector) -> list[list[tuple[str, int]]]:
        """Divide what lies between two offsets for parallel reading, as (receiver, number).

        Raises:
            SpoolIncomplete: If some of it is gone.
            OSError: If the spool can't be listed.
        """
        contents = self.spool.contents()
        gaps = missing(contents.present(), start, end)
        if gaps:
            raise SpoolIncomplete(
                f"spool {self.spool.location} lacks {len(gaps)} segments of this batch, first {gaps[0]}: "
                "was the spool deleted, or is the checkpoint another query's? Bring the spool back, or start with a "
                "new checkpoint, without the messages that were in it"
            )
        segments = pending(contents.segments, start, end)
        groups = share_out(segments, self._options.partitions)
        return [[(segment.receiver, segment.number) for segment in group] for group in groups]

    def commit(self, end: Vector) -> None:
        """Delete what has been read for good. A failure is logged: the next commit covers it."""
        try:
            self.spool.prune(end)
        except OSError as error:
            logger.warning("spool %s not pruned: %s", self.spool.location, error)

    def newest(self) -> tuple[dict[str, int], Depth | None]:
        """Say what the last looks have seen: the end of the spool, and what is still at nsqd."""
        return _end_of(self._contents.segments), self._depth

    def drained(self, max_rows: int | None) -> list[Segment]:
        """Wait until nothing more is to be waited for, stop, and list what this planner's own receiver wrote."""
        receiver = self.receiver
        assert receiver is not None  # start() has made it
        look = LOOK_LOCAL if self.spool.is_local else LOOK_REMOTE
        while self._ceiling is None and not (max_rows is not None and receiver.rows >= max_rows):
            self._changed.clear()
            self._look()
            self._changed.wait(look)
        self.stop()
        own = [segment for segment in self.spool.contents().segments if segment.receiver == receiver.id]
        return pending(own, {})

    # --- looking

    def _look(self) -> None:
        """List the spool; while draining, find out whether that was the last of it."""
        if self.receiver is not None and self.receiver.error is not None:
            raise SpoolError(f"the receiver has ended: {self.receiver.error!r}; its traceback is in the log")
        if self._drain is None or self._ceiling is not None:
            self._contents = self.spool.contents()
            return
        # In this order: what nsqd no longer has is in the spool when that is listed.
        depth = self._ask_depth()
        self._contents = self.spool.contents()
        self._count(self._contents.segments)
        reason = self._drain.is_done(self._counted_rows, depth, time.monotonic())
        if reason:
            self._ceiling = _end_of(self._contents.segments)
            logger.info("channel %s/%s drained: %s", self._options.topic, self._options.channel, reason)

    def _start_drain(self) -> None:
        """Note what is there: in the channel first, then in the spool, so that nothing is counted in neither."""
        self._asked_at = 0.0
        depth = self._ask_depth()
        self._contents = self.spool.contents()
        self._counted = _end_of(self._contents.segments)
        self._drain = Drain(depth.total if depth else None, self._options.idle_timeout, time.monotonic())

    def _count(self, segments: list[Segment]) -> None:
        for segment in pending(segments, self._counted):
            self._counted_rows += segment.rows
            self._counted[segment.receiver] = segment.number

    def _ask_depth(self) -> Depth | None:
        now = time.monotonic()
        if self._hub is None or self._channel is None or not self._channel.can_ask or now - self._asked_at < ASK:
            return None
        self._asked_at = now
        try:
            self._depth = self._hub.call(self._channel.depth)
        except NSQException as error:
            logger.warning("depth of %s/%s unknown: %s", self._options.topic, self._options.channel, error)
            return None
        return self._depth

    def _watch_depth(self) -> None:
        assert self._channel is not None  # it is started behind that
        while True:
            try:
                self._depth = self._channel.depth()
            except NSQException as error:
                logger.debug("depth unknown: %s", error)
                self._depth = None
            gevent.sleep(REPORT)


def _end_of(segments: list[Segment]) -> dict[str, int]:
    end: dict[str, int] = {}
    for segment in segments:
        end[segment.receiver] = max(segment.number, end.get(segment.receiver, 0))
    return end


def drain_channel(options: ReadOptions) -> list[list[tuple[str, int]]]:
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
    groups = share_out(segments, options.partitions)
    return [[(segment.receiver, segment.number) for segment in group] for group in groups]
