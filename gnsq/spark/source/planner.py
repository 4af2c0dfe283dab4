"""Planner: all that lives behind a query's reader: the spool's lock, the receiver, and what there is to read.

Knows offsets as vectors and no Spark. Its methods are called from one plain thread, which may be blocked natively
between calls; what is connected runs on a hub thread.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Iterator

from gnsq.concurrency.hub_thread import HubThread
from gnsq.spark.errors import SpoolError, SpoolIncomplete
from gnsq.spark.offsets import (
    Segment,
    Vector,
    advance,
    distribute,
    end_vector,
    missing,
    pending,
    take_up_to,
    with_new_revision,
)
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver import Receiver
from gnsq.spark.source.channel import ChannelMonitor
from gnsq.spark.source.drain import DepthSample, Drain, DrainResult, EmptyBatchTrigger, Outcome
from gnsq.spark.spool.ownership import SpoolLock
from gnsq.spark.spool.spool import Spool, SpoolListing
from gnsq.texts import counted

__all__ = ["Planner", "drain_channel"]

logger = logging.getLogger(__name__)

# Seconds: Spark asks again at once, so an idle stream waits here.
NEW_DATA_TIMEOUT = 0.5
# A planner that was told to end lets go of the lock at once; a restarted query may still have to wait a moment.
LOCK_TIMEOUT = 3.0
# Between two listings of the spool, if nobody tells of something new: of a directory, and of one that costs a request.
LISTING_INTERVAL_LOCAL, LISTING_INTERVAL_LOCAL_OWN, LISTING_INTERVAL_REMOTE, LISTING_INTERVAL_REMOTE_OWN = (
    0.02,
    0.2,
    0.5,
    5.0,
)
# While draining: between two listings where much comes in, and to gather a batch.
DRAIN_POLL_INTERVAL = 0.1
GATHER_SECONDS = 2.0
# Between two looks at who owns the spool.
OWNER_CHECK_INTERVAL = 5.0


class Planner:
    """One query's hold on its spool. Nothing happens before start().

    Args:
        options: The query's.
        is_batch: Reads once what its own receiver writes, at most options.max_rows; deletes nothing.
    """

    def __init__(self, options: ReadOptions, *, is_batch: bool = False) -> None:
        self.spool = Spool(options.spool, options.spool_permissions)
        self.receiver: Receiver | None = None
        self._options = options
        self._is_batch = is_batch
        self._limit = options.max_spool_bytes
        self._lock: SpoolLock | None = None
        self._hub: HubThread | None = None
        self._channel: ChannelMonitor | None = None
        self._changed = threading.Event()
        self._checked_at = self._listed_at = 0.0
        self._contents = SpoolListing()
        # The end of the spool, and when it was found to be farther than before.
        self._end: dict[str, int] = {}
        self._grown_at = time.monotonic()
        self._planned: Vector = {}
        self._trigger = EmptyBatchTrigger()
        # AvailableNow and Once: when to stop, how far, and what has been counted on the way.
        self._drain: Drain | None = None
        self._ceiling: Vector | None = None
        self._counted: dict[str, int] = {}
        self._counted_rows = 0
        self._reached = False
        local = (LISTING_INTERVAL_LOCAL, LISTING_INTERVAL_LOCAL_OWN)
        remote = (LISTING_INTERVAL_REMOTE, LISTING_INTERVAL_REMOTE_OWN)
        untold, told = local if self.spool.is_local else remote
        self._interval = told if options.receives_here else untold

    @property
    def is_draining(self) -> bool:
        """Whether it reads to an end: then start, given by latest() or everything(), ends the query."""
        return self._drain is not None

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
            self._lock = self.spool.lock(options.spool_owner, options.source, LOCK_TIMEOUT)
            self._checked_at = time.monotonic()
            self.spool.remove_leftovers()
            self._hub = HubThread("gnsq-spark-receiver")
            self._channel = ChannelMonitor(self._hub, options, self.spool.location)
            self._channel.start()
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
            self._channel.close()
        hub.stop()

    def _start_receiver(self) -> None:
        options = dataclasses.replace(self._options, max_spool_bytes=self._limit)
        if options.max_rows_per_batch is not None:
            # Segments are not divided: one that is larger than a batch would be a batch over the limit.
            rows = min(options.segment_rows, options.max_rows_per_batch)
            options = dataclasses.replace(options, segment_rows=rows)
        max_rows = options.max_rows if self._is_batch else None
        # Known before it starts, which may take long: whoever stops this closes it.
        self.receiver = Receiver(options, self.spool, self._changed.set, max_rows=max_rows)
        self.receiver.start()

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
        if self._drain is not None:
            self._drain.begin(since)
        while True:
            self._poll()
            waiting = self._segments_after(start)
            taken = take_up_to(waiting, max_rows, max_bytes)
            if not waiting and self._is_trigger_due(start):
                if self._drain is None:
                    return with_new_revision(start)
                self.commit(start)
            if not self._should_wait(waiting, taken, time.monotonic() - since):
                return self._plan_up_to(start, taken)
            self._wait()

    def all_available(self, start: Vector) -> dict[str, int]:
        """Say how far one batch reads that holds all that is there now, for Trigger.Once; waits until it has come.

        Raises:
            SpoolError, OSError: As latest().
        """
        if self._drain is None:
            self._start_drain()
        for _ in self._poll_until_drained():
            if self._is_trigger_due(start):
                self.commit(start)
            if self._is_full() and self._segments_after(start):
                logger.warning(
                    "spool %s is full (maxSpoolBytes): this batch ends there, the next one goes on with the rest",
                    self.spool.location,
                )
                break
        return self._plan_up_to(start, self._segments_after(start))

    def partitions(self, start: Vector, end: Vector) -> list[list[Segment]]:
        """Divide what lies between two offsets for parallel reading.

        Raises:
            SpoolIncomplete: If some of it is gone.
            OSError: If the spool can't be listed.
        """
        contents = self._contents
        if missing(contents.present(), start, end):
            # The last look may be older than the batch, or there was none since the query was started again.
            contents = self._contents = self.spool.listing()
        gaps = missing(contents.present(), start, end)
        if gaps:
            raise SpoolIncomplete(
                f"spool {self.spool.location} lacks {counted(len(gaps), 'segment')} of this batch, first {gaps[0]}: "
                "was the spool deleted, or is the checkpoint another query's? Bring the spool back, or start with a "
                "new checkpoint, without the messages that were in it"
            )
        self._planned = dict(end)
        return distribute(pending(contents.segments, start, end), self._options.partitions)

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

    def progress(self) -> tuple[dict[str, int], dict[str, int | str]]:
        """Say what the last looks have seen: the end of the spool, and the backlog as names and numbers; as trouble,
        if there is any, what keeps messages out of the spool."""
        contents, depth = self._contents, self._channel.depth if self._channel else None
        waiting = pending(contents.segments, self._planned)
        backlog: dict[str, int | str] = {
            "spool_rows": sum(segment.rows for segment in waiting),
            "spool_bytes": sum(segment.size for segment in waiting),
            "quarantined": contents.rows_quarantined,
        }
        if depth is not None and depth.exact:
            backlog |= {"waiting": depth.waiting, "in_flight": depth.in_flight}
        trouble = self._receiver_error()
        if trouble:
            backlog["trouble"] = trouble
        return end_vector(contents.segments), backlog

    def drain(self) -> list[Segment]:
        """Wait until nothing more is to be waited for, stop, and list what this planner's own receiver wrote.

        Raises:
            SpoolError: As latest(), and if that is more than the spool takes.
        """
        receiver, options = self.receiver, self._options
        assert receiver is not None  # start() has made it
        for _ in self._poll_until_drained():
            if options.max_rows is not None and receiver.rows >= options.max_rows:
                break
            if self._is_full():
                raise SpoolError(
                    f"channel {options.source} holds more than maxSpoolBytes {options.max_spool_bytes}: give maxRows "
                    f"to take a part, or a larger maxSpoolBytes. {counted(receiver.rows, 'row was', 'rows were')} "
                    f"received and finished at nsqd: the spool {self.spool.location} keeps them for spark.readStream"
                )
        self.stop()
        own = [segment for segment in self.spool.listing().segments if segment.receiver == receiver.id]
        return pending(own, {})

    def _poll_until_drained(self) -> Iterator[None]:
        """Look again and again until all has come."""
        assert self._drain is not None  # _start_drain() has made it
        self._drain.begin(time.monotonic())
        self._poll()
        while self._ceiling is None:
            yield
            self._wait()
            self._poll()

    def _should_wait(self, waiting: list[Segment], taken: list[Segment], waited: float) -> bool:
        """Whether something is to come yet that belongs into this batch.

        While draining, batches are gathered: each costs as much as receiving some ten thousand messages, and nobody
        waits for the first.
        """
        if self._drain is None:
            return not waiting and waited < NEW_DATA_TIMEOUT
        if self._ceiling is not None or len(taken) < len(waiting):
            return False
        return not waiting or (waited < GATHER_SECONDS and self._contents.size < self._limit // 2)

    def _wait(self) -> None:
        """Wait for something new; while draining for some of it, as each look lists all that is there."""
        if self._changed.wait(min(self._interval, NEW_DATA_TIMEOUT)) and self._drain is not None:
            time.sleep(DRAIN_POLL_INTERVAL)

    def _segments_after(self, start: Vector) -> list[Segment]:
        """List what is to be read behind start. What a listing lacks in between, as it may be written meanwhile, a
        second one has; if not, it is gone."""
        waiting = pending(self._contents.segments, start, self._ceiling)
        if missing(self._contents.present(), start, end_vector(waiting)):
            self._list()
            waiting = pending(self._contents.segments, start, self._ceiling)
        return waiting

    def _is_trigger_due(self, start: Vector) -> bool:
        """Whether what was read is to be deleted now: Spark tells of it only behind the next batch, which may never
        come as long as nothing more is received. A query that drains may delete it by itself, since with its triggers
        Spark writes a batch down as done before it asks for the next one; another can only ask for an empty batch."""
        size, now = self._contents.size, time.monotonic()
        read = size - sum(segment.size for segment in pending(self._contents.segments, start))
        watch = self._watch
        depth = watch.depth if watch.asked_at > self._grown_at else None
        waiting = depth.waiting if depth is not None and (depth.exact or depth.waiting) else None
        due = self._ceiling is None and self._trigger.is_due(
            read, waiting, now - self._grown_at, now, is_paused=self._is_paused()
        )
        if due and self._trigger.is_ineffective:
            logger.warning(
                "spool %s: %s read and can't be deleted, receivers may be waiting for room; trying again, "
                "ever more slowly",
                self.spool.location,
                counted(read, "byte was", "bytes were"),
            )
        return due

    def _plan_up_to(self, start: Vector, taken: list[Segment]) -> dict[str, int]:
        self._planned = advance(start, taken, self._contents.receivers)
        return dict(self._planned)

    # --- looking

    def _poll(self) -> None:
        """List the spool, if it is time; while draining, find out whether that was the last of it."""
        if self.receiver is not None and self.receiver.error is not None:
            raise SpoolError(
                f"the receiver has ended: {self.receiver.error!r}, its traceback is in the log: start the query again, "
                "nothing is lost"
            )
        self._check_owner(OWNER_CHECK_INTERVAL)
        told = self._changed.is_set()
        self._changed.clear()
        if self._drain is None or self._ceiling is not None:
            if told or time.monotonic() - self._listed_at >= self._interval:
                self._list()
            return
        # In this order: what nsqd no longer has is in the spool when that is listed.
        depth = self._watch.ask()
        self._list()
        self._count(self._contents.segments)
        look = DepthSample(self._counted_rows, depth, is_paused=self._is_paused(), is_reached=self._is_reached())
        end = self._drain.is_done(look, time.monotonic())
        if end is not None:
            self._end_drain(end)

    def _end_drain(self, end: DrainResult) -> None:
        trouble, options = self._receiver_error(), self._options
        said = "; ".join(filter(None, (trouble, end.reason)))
        is_helpless = end.outcome is Outcome.LEFT and trouble and not self._is_receiving()
        if end.outcome is Outcome.FAILED or is_helpless:
            raise SpoolError(f"channel {options.source} is not drained, nothing is received: {said}")
        self._ceiling = end_vector(self._contents.segments)
        if self.receiver is not None and self._hub is not None:
            # What comes later is for others, or for the next run: nobody would read it.
            self._hub.call(self.receiver.pause, "drained")
        if end.outcome is Outcome.DRAINED:
            logger.info("channel %s drained: %s", options.source, end.reason)
        else:
            logger.warning("channel %s may have messages left, for the next run: %s", options.source, said)

    def _receiver_error(self) -> str:
        receiver = self.receiver
        if receiver is not None and receiver.failing:
            return f"spool {self.spool.location} can't be written, see the log"
        if self._is_full():
            return f"spool {self.spool.location} is full ({self._contents.size} bytes, see maxSpoolBytes)"
        if receiver is None or self._hub is None:
            return ""
        failures = self._hub.call(receiver.subscriptions.failures)
        return "; ".join(f"{address} not connected: {text}" for address, text in failures.items())

    def _is_receiving(self) -> bool:
        receiver = self.receiver
        if receiver is None or self._hub is None:
            return True
        return not receiver.failing and bool(self._hub.call(lambda: receiver.subscriptions.nsqds))

    def _is_reached(self) -> bool:
        """Whether anybody was ever reached; external receivers alone would know."""
        if not self._reached:
            if self.receiver is None:
                self._reached = not self._watch.has_http
            else:
                self._reached = self._is_receiving()
            self._reached |= self._counted_rows > 0 or self._watch.depth is not None
        return self._reached

    def _is_paused(self) -> bool:
        return self._is_full() or (self.receiver is not None and self.receiver.is_paused)

    def _is_full(self) -> bool:
        return self._contents.size >= self._limit

    def _list(self) -> None:
        self._contents = self.spool.listing()
        self._listed_at = time.monotonic()
        end = end_vector(self._contents.segments)
        if any(number > self._end.get(receiver, 0) for receiver, number in end.items()):
            self._grown_at = self._listed_at
        self._end = end

    def _check_owner(self, interval: float) -> None:
        """Where nothing locks the spool, another run of the query may have taken it."""
        now = time.monotonic()
        if self._lock is not None and now - self._checked_at >= interval:
            self._lock.check()
            self._checked_at = now

    @property
    def _watch(self) -> ChannelMonitor:
        assert self._channel is not None  # start() has made it
        return self._channel

    def _start_drain(self) -> None:
        """Note what is there: in the channel first, then in the spool, so that nothing is counted in neither."""
        depth = self._watch.ask(0.0)
        self._list()
        self._counted = end_vector(self._contents.segments)
        if self._is_batch:
            # What others have left there is not read, and nobody deletes it.
            self._limit += self._contents.size
        self._drain = Drain(self._options.idle_timeout, time.monotonic(), has_http=self._watch.has_http)
        if depth is not None:
            self._drain.record(0, depth)

    def _count(self, segments: list[Segment]) -> None:
        for segment in pending(segments, self._counted):
            self._counted_rows += segment.rows
            self._counted[segment.receiver] = segment.number


def drain_channel(options: ReadOptions) -> list[list[Segment]]:
    """Receive what is in a channel now into options.spool, and divide it for parallel reading.

    Raises:
        SpoolError: As Planner.start().
    """
    planner = Planner(dataclasses.replace(options, receivers="driver"), is_batch=True)
    planner.start(drain=True)
    try:
        segments = planner.drain()
    finally:
        planner.stop()
    return distribute(segments, options.partitions)
