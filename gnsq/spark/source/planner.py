"""Planner: everything that a query's reader needs while it runs: the lock of the spool, the receiver, the next offsets.

Knows offsets as vectors, and no Spark. Its methods are called from one plain thread, which may block natively between
calls. Connections run on a hub thread.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

from gnsq.concurrency.hub_thread import HubThread
from gnsq.spark.errors import SpoolError, SpoolIncomplete
from gnsq.spark.offsets import (
    Segment,
    Vector,
    advance,
    describe_missing,
    distribute,
    missing,
    positions_of,
    read_after,
    take_up_to,
    with_new_revision,
)
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.buffer import SEGMENT_BYTES, SEGMENT_ROWS, grown_age
from gnsq.spark.receiver.receiver import Receiver
from gnsq.spark.source.channel import ChannelMonitor
from gnsq.spark.source.drain import DepthSample, Drain, DrainResult, EmptyBatchTrigger, Outcome
from gnsq.spark.spool.index import Totals
from gnsq.spark.spool.listing import SpoolListing
from gnsq.spark.spool.ownership import END_TIMEOUT, SpoolLock
from gnsq.spark.spool.spool import Spool
from gnsq.texts import counted

__all__ = ["Planner", "drain_channel"]

logger = logging.getLogger(__name__)

# Seconds that latest() waits for new segments if it does not drain: Spark calls latestOffset() again at once. With
# ten idle queries, a call each 0.5 s took 0.21 of a core in Spark's JVM, a call each 2 s takes 0.03 to 0.11.
NEW_DATA_TIMEOUT = 2.0
# Longest wait between two checks of what is due, such as the end of maxTriggerDelay.
MAX_WAIT = 0.5
# Seconds between listings of the spool, on local file systems, and on others, where a listing costs requests. In each
# pair, the first is for receivers in other processes, the second for the planner's receiver, which reports segments.
LOCAL_INTERVALS, REMOTE_INTERVALS = (0.02, 0.2), (0.5, 5.0)
# While the segments of a whole batch are known, the pause after a listing is this many times its duration.
# A listing of 100,000 known segments takes 0.1 s on a local disk.
LISTING_PAUSE = 10.0
# While draining: seconds between listings, and seconds for which segments are gathered to a batch.
DRAIN_LISTING_INTERVAL, GATHER_SECONDS = 0.1, 2.0


# Seconds between checks that no other run has taken the spool.
OWNER_CHECK_INTERVAL = 5.0


class Planner:
    """Plans the batches of one query, and owns the spool's lock and the receiver. Nothing happens before start().

    Args:
        is_batch: Read the segments of the planner's own receiver once, at most options.max_rows rows; delete nothing.
        now: The clock of its waits, in seconds.
    """

    def __init__(
        self, options: ReadOptions, *, is_batch: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self.spool = Spool(options.spool, options.spool_permissions)
        self.receiver: Receiver | None = None
        self._options = options
        self._is_batch = is_batch
        self._limit = options.max_spool_bytes
        self._lock: SpoolLock | None = None
        self._hub: HubThread | None = None
        self._monitor: ChannelMonitor | None = None
        # Set when the receiver has written a segment.
        self._changed = threading.Event()
        self._checked_at = self._listed_at = 0.0
        self._listing = SpoolListing()
        # Seconds that the last listing took.
        self._listing_took = 0.0
        # The end of the spool, and the time of the last listing that found new segments.
        self._end: dict[str, int] = {}
        self._grown_at = self._now()
        self._planned: Vector = {}
        # The end of the last empty batch that latest() has planned.
        self._renewed: dict[str, int] | None = None
        # Number of batches that were planned, for take_up_to().
        self._turn = 0
        self._trigger = EmptyBatchTrigger()
        # When a batch with rows was planned. The first one of a run never waits: when the one before was is not known.
        self._last_batch = -math.inf
        # While draining: the policy, the last offset once it is known, the end of the counted segments, and their rows.
        self._drain: Drain | None = None
        self._drain_end: Vector | None = None
        self._counted: dict[str, int] = {}
        self._counted_rows = 0
        self._has_reached_nsqd = False
        elsewhere, own = LOCAL_INTERVALS if self.spool.is_local else REMOTE_INTERVALS
        self._interval = own if options.receives_here else elsewhere

    @property
    def is_draining(self) -> bool:
        """True if the query ends when all messages are read: latest() or all_available() then returns start."""
        return self._drain is not None

    # --- life

    def start(self, *, drain: bool = False) -> None:
        """Lock the spool, create the channel by HTTP, start the planner's receiver if any. A second call does nothing.

        Args:
            drain: Read the messages that are there now, and end; else go on for ever.

        Raises:
            SpoolInUse: If another query uses the spool.
            SpoolError: If the spool can't be written.
        """
        if self._lock is not None:
            return
        options = self._options
        try:
            self._lock = self.spool.lock(options.spool_owner, options.source, END_TIMEOUT)
            self._checked_at = self._now()
            self.spool.remove_leftovers()
            self._hub = HubThread("gnsq-spark-receiver")
            self._monitor = ChannelMonitor(self._hub, options, self.spool.location)
            self._monitor.start()
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
        """Shut down: write what is received, or requeue it, disconnect, and release the spool.

        May be called from a signal handler, and twice.
        """
        lock, self._lock = self._lock, None
        hub, self._hub = self._hub, None
        try:
            if hub is not None:
                if self.receiver is not None:
                    hub.call(self.receiver.close)
                if self._monitor is not None:
                    self._monitor.close()
                hub.stop()
        finally:
            # Last, since others take a free lock to mean that nothing is written any more.
            if lock is not None:
                lock.release()

    def _start_receiver(self) -> None:
        options = dataclasses.replace(self._options, max_spool_bytes=self._limit)
        # Assign the receiver before it starts: a start may take long, and stop() must be able to close the receiver.
        self.receiver = Receiver(
            options,
            self.spool,
            self._changed.set,
            max_rows=options.max_rows if self._is_batch else None,
            # Segments are not divided, so none may be larger than a batch.
            segment_rows=min(SEGMENT_ROWS, options.max_rows_per_batch or SEGMENT_ROWS),
            segment_bytes=min(SEGMENT_BYTES, options.max_bytes_per_batch),
        )
        self.receiver.start()

    # --- offsets

    def latest(self, start: Vector) -> dict[str, int]:
        """Compute the end of the next batch. If nothing is new: start, or with_new_revision(start) for an empty batch.

        Waits up to two seconds for new segments. A drain waits until messages come or it ends, then 2 s for more.

        Raises:
            SpoolError: If the receiver or the drain has failed, or another run has taken the spool.
            OSError: If the spool can't be listed.
        """
        self._note_start(start)
        since = self._now()
        if self._drain is not None:
            self._drain.begin(since)
        while True:
            self._poll(start)
            waiting = self._totals_after(start)
            if self._is_too_small(start, waiting):
                waiting = Totals()
            if not waiting.segments and self._is_trigger_due(start):
                if self._drain is None or start != self._renewed:
                    self._renewed = with_new_revision(start)
                    return self._renewed
                # The segments could not be deleted after the empty batch. Another empty batch would not help, and a
                # drain must end.
                self.commit(start)
            if not self._should_wait(waiting, self._now() - since):
                return self._plan_batch(start) if waiting.segments else self._plan_up_to(start, [])
            self._wait()

    def all_available(self, start: Vector) -> dict[str, int]:
        """Compute the end of one batch with all messages that are there now, for Trigger.Once; wait until they came.

        Raises:
            SpoolError, OSError: In the same cases as latest().
        """
        self._note_start(start)
        if self._drain is None:
            self._start_drain()
        for _ in self._poll_until_drained():
            if self._is_trigger_due(start):
                # Not after an empty batch, since Trigger.Once has only one batch: see NsqStreamReader.commit().
                self.commit(start)
            if self._is_full() and self._totals_after(start).segments:
                logger.warning(
                    "spool %s is full (maxSpoolBytes): this batch ends there, the next one goes on with the rest",
                    self.spool.location,
                )
                break
        return self._plan_up_to(start, self._listing.segments.between(start, self._drain_end))

    def partitions(self, start: Vector, end: Vector) -> list[list[Segment]]:
        """Divide the segments between two offsets into tasks.

        Raises:
            SpoolIncomplete: If any of these segments is gone.
            OSError: If the spool can't be listed.
        """
        self._note_start(start)
        segments, gaps = self._segments_between(start, end)
        if gaps:
            # The listing may be older than the batch; or, after a restart of the query, there is no listing yet.
            self._list(is_whole=True)
            segments, gaps = self._segments_between(start, end)
        if gaps:
            raise SpoolIncomplete(
                f"spool {self.spool.location} lacks {describe_missing(gaps)} of this batch: was the spool deleted, or "
                "is the checkpoint another query's? Bring the spool back, or go on without the messages that were in "
                "it, with a new checkpoint"
            )
        self._planned = dict(end)
        options = self._options
        return distribute(segments, options.partitions, options.max_partition_bytes)

    def commit(self, end: Vector) -> None:
        """Delete the segments up to an offset.

        If that fails, a warning is logged: the next commit does it, too.

        Raises:
            SpoolInUse: If another run has taken the spool.
        """
        try:
            self._check_owner(0.0)
            self.spool.prune(self._listing, end)
        except OSError as error:
            logger.warning("spool %s not pruned: %s", self.spool.location, error)

    def progress(self) -> tuple[dict[str, int], dict[str, int | str]]:
        """Return the end of the spool, and the backlog for query.lastProgress, as the last listings have shown them."""
        listing, depth = self._listing, self._monitor.depth if self._monitor else None
        waiting = self._totals_after(self._planned)
        backlog: dict[str, int | str] = {
            "spool_rows": waiting.rows,
            "spool_bytes": waiting.size,
            "quarantined": listing.rows_quarantined,
        }
        if depth is not None and depth.exact:
            backlog |= {"waiting": depth.waiting, "in_flight": depth.in_flight}
        if error := self._receiver_error():
            backlog["trouble"] = error
        return self._end, backlog

    def drain(self) -> list[Segment]:
        """Wait until all messages, or max_rows, have come. Then stop, and list the segments of the planner's receiver.

        Raises:
            SpoolError: In the same cases as latest(), and if the messages take more than max_spool_bytes.
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
        return [segment for segment in self.spool.listing().segments if segment.receiver == receiver.id]

    def _plan_batch(self, start: Vector) -> dict[str, int]:
        options, waiting = self._options, self._listing.segments.waiting(start, self._drain_end)
        return self._plan_up_to(
            start, take_up_to(waiting, options.max_rows_per_batch, options.max_bytes_per_batch, self._turn)
        )

    def _plan_up_to(self, start: Vector, taken: list[Segment]) -> dict[str, int]:
        self._planned = advance(start, taken, self._listing.receivers)
        if taken:
            self._turn += 1
            self._last_batch = self._now()
        return dict(self._planned)

    def _totals_after(self, start: Vector) -> Totals:
        """Sum up the segments after start that the last listing has found."""
        return self._listing.segments.totals(start, self._drain_end)

    def _is_too_small(self, start: Vector, waiting: Totals) -> bool:
        """Return True if the batch of the segments after start must wait for more rows (minRowsPerBatch)."""
        least = self._options.min_rows_per_batch
        # If a limit of a batch leaves segments out, the batch can't get more rows. A drain ends with the last rows. No
        # more rows come while receivers wait for space.
        if least is None or waiting.rows >= least or self._drain is not None or self._exceeds_batch(waiting):
            return False
        return self._now() - self._last_batch < self._options.max_trigger_delay and not self._is_paused()

    def _exceeds_batch(self, waiting: Totals) -> bool:
        """Return True if these segments are more than one batch may have."""
        max_rows, max_bytes = self._options.max_rows_per_batch, self._options.max_bytes_per_batch
        is_over = waiting.size > max_bytes or (max_rows is not None and waiting.rows > max_rows)
        return is_over and waiting.segments > 1

    def _segments_between(self, start: Vector, end: Vector) -> tuple[list[Segment], list[tuple[str, int]]]:
        """List the segments of a batch that the last listing has found, and name those that it has not found."""
        segments = self._listing.segments.between(read_after(start, end), end)
        return segments, missing([*segments, *self._listing.quarantined], start, end)

    def _should_wait(self, waiting: Totals, waited: float) -> bool:
        """Return True if it is worth waiting for more segments.

        While draining, small batches are avoided: each batch costs as much time as receiving some 10,000 messages.
        """
        if self._drain is None:
            return not waiting.segments and waited < NEW_DATA_TIMEOUT
        if self._drain_end is not None or self._exceeds_batch(waiting):
            return False
        return not waiting.segments or (waited < GATHER_SECONDS and self._listing.size < self._limit // 2)

    def _wait(self) -> None:
        """Wait briefly for a new segment; while draining, then for more, since a listing lists the whole spool."""
        if self._changed.wait(min(self._interval, MAX_WAIT)) and self._drain is not None:
            time.sleep(DRAIN_LISTING_INTERVAL)

    def _is_trigger_due(self, start: Vector) -> bool:
        """Return True if the segments up to start must be deleted now, since receivers may wait for space.

        An empty batch is needed for that: before it Spark calls commit() for the last batch, and code in it can sync
        Spark's commit log. With Trigger.Once there is none, and the planner deletes the segments itself.
        """
        segments, now, depth = self._listing.segments, self._now(), None
        if self._channel_monitor.asked_at > self._grown_at:
            depth = self._channel_monitor.depth
        read = segments.totals({}, start).size
        waiting = depth.waiting if depth is not None and (depth.exact or depth.waiting) else None
        idle = now - self._grown_at
        due = self._drain_end is None and self._trigger.is_due(read, waiting, idle, now, is_paused=self._is_paused())
        if due and self._trigger.is_ineffective:
            logger.warning(
                "spool %s: %s read and can't be deleted, receivers may be waiting for space; trying again, "
                "ever more slowly",
                self.spool.location,
                counted(read, "byte was", "bytes were"),
            )
        return due

    def _note_start(self, start: Vector) -> None:
        if self._monitor is not None and positions_of(start):
            # The query has read the topic before, so the topic is not misspelled.
            self._monitor.may_be_missing = True

    # --- draining

    def _start_drain(self) -> None:
        """Record the depth of the channel, then list the spool: in this order every message counts at least once."""
        depth = self._channel_monitor.ask(0.0)
        self._list()
        self._counted = self._listing.segments.last()
        if self._is_batch:
            # Segments of other receivers are neither read nor deleted, so they do not count for the limit.
            self._limit += self._listing.size
        options, has_http = self._options, self._channel_monitor.has_http
        # As old as segments may get now: later, the drain reads what waits.
        wait = grown_age(options.segment_wait, len(self._listing.segments))
        self._drain = Drain(options.idle_timeout, self._now(), has_http=has_http, segment_wait=wait)
        if depth is not None:
            self._drain.record(0, depth)

    def _poll_until_drained(self) -> Iterator[None]:
        assert self._drain is not None  # _start_drain() has made it
        self._drain.begin(self._now())
        self._poll()
        while self._drain_end is None:
            yield
            self._wait()
            self._poll()

    def _end_drain(self, result: DrainResult) -> None:
        error, options = self._receiver_error(), self._options
        reason = "; ".join(filter(None, (error, result.reason)))
        receives_nothing = result.outcome is Outcome.LEFT and error and not self._is_receiving()
        if result.outcome is Outcome.FAILED or receives_nothing:
            raise SpoolError(f"channel {options.source} is not drained, nothing is received: {reason}")
        self._drain_end = self._listing.segments.last()
        if self.receiver is not None and self._hub is not None:
            # Pause, since this run would not read later messages: they stay at nsqd for others, or for the next run.
            self._hub.call(self.receiver.pause, "drained")
        if result.outcome is Outcome.DRAINED:
            logger.info("channel %s drained: %s", options.source, result.reason)
        else:
            logger.warning("channel %s may have messages left, for the next run: %s", options.source, reason)

    # --- state of receiver, spool and channel

    def _poll(self, start: Vector | None = None) -> None:
        """List the spool if the last listing is old enough; while draining, also update the drain.

        Args:
            start: If a whole batch after this offset is known, the spool is listed less often.

        Raises:
            SpoolError: If the receiver or the drain has failed, or another run has taken the spool.
        """
        if self.receiver is not None and self.receiver.error is not None:
            raise SpoolError(
                f"the receiver has ended: {self.receiver.error!r}, its traceback is in the log: start the query again, "
                "nothing is lost"
            )
        self._check_owner(OWNER_CHECK_INTERVAL)
        age = self._now() - self._listed_at
        is_recent = age < LISTING_PAUSE * self._listing_took
        if is_recent and start is not None and self._exceeds_batch(self._totals_after(start)):
            return
        has_changed = self._changed.is_set()
        self._changed.clear()
        if self._drain is None or self._drain_end is not None:
            if has_changed or age >= self._interval:
                self._list()
            return
        # Ask for the depth, then list the spool: each message that nsqd no longer counts is then in the listing.
        depth = self._channel_monitor.ask()
        self._list()
        self._counted_rows += self._listing.segments.totals(self._counted).rows
        self._counted |= self._listing.segments.last()
        sample = DepthSample(
            self._counted_rows, depth, is_paused=self._is_paused(), is_reached=self._has_ever_reached_nsqd()
        )
        result = self._drain.update(sample, self._now())
        if result is not None:
            self._end_drain(result)

    def _list(self, *, is_whole: bool = False) -> None:
        began = self._now()
        self.spool.update(self._listing, is_whole=is_whole)
        self._listed_at = self._now()
        self._listing_took = self._listed_at - began
        end = self._listing.segments.last()
        if any(number > self._end.get(receiver, 0) for receiver, number in end.items()):
            self._grown_at = self._listed_at
        self._end = end

    def _check_owner(self, interval: float) -> None:
        """Check that no other run has taken the spool: on a file system without locks, that is possible."""
        now = self._now()
        if self._lock is not None and now - self._checked_at >= interval:
            self._lock.check()
            self._checked_at = now

    def _receiver_error(self) -> str:
        """Describe what keeps messages out of the spool; "" if nothing does."""
        receiver = self.receiver
        if receiver is not None and receiver.failing:
            return f"spool {self.spool.location} can't be written, see the log"
        if self._is_full():
            return f"spool {self.spool.location} is full ({self._listing.size} bytes, see maxSpoolBytes)"
        if receiver is None or self._hub is None:
            return ""
        failures = self._hub.call(receiver.subscriptions.failures)
        return "; ".join(f"{address} not connected: {text}" for address, text in failures.items())

    def _is_receiving(self) -> bool:
        receiver = self.receiver
        if receiver is None or self._hub is None:
            return True
        return not receiver.failing and bool(self._hub.call(lambda: receiver.subscriptions.nsqds))

    def _has_ever_reached_nsqd(self) -> bool:
        """Return True if any nsqd was ever reached. Receivers in other processes do not report this: without HTTP
        addresses, they count as connected."""
        if not self._has_reached_nsqd:
            monitor = self._channel_monitor
            is_connected = not monitor.has_http if self.receiver is None else self._is_receiving()
            self._has_reached_nsqd = is_connected or self._counted_rows > 0 or monitor.depth is not None
        return self._has_reached_nsqd

    def _is_paused(self) -> bool:
        return self._is_full() or (self.receiver is not None and self.receiver.is_paused)

    def _is_full(self) -> bool:
        return self._listing.size >= self._limit

    @property
    def _channel_monitor(self) -> ChannelMonitor:
        assert self._monitor is not None  # start() has made it
        return self._monitor


def drain_channel(options: ReadOptions) -> list[list[Segment]]:
    """Receive the messages of a channel into options.spool, and divide their segments into tasks.

    Raises:
        SpoolError: In the same cases as Planner.start() and Planner.drain().
    """
    planner = Planner(dataclasses.replace(options, receivers="driver"), is_batch=True)
    planner.start(drain=True)
    try:
        segments = planner.drain()
    finally:
        planner.stop()
    return distribute(segments, options.partitions, options.max_partition_bytes)
