"""Receiver: writes the messages of a channel into a spool, and finishes each message after its segment is durable.

At least once: if a message is lost before its segment is durable, nsqd delivers the message again. A message whose FIN
is lost is in the spool twice. A receiver runs in one gevent hub. It knows no Spark.
"""

# A row, from nsqd to Spark:
#
#  1. A consumer of `Subscriptions._make_consumer` in spark/receiver/subscriptions.py passes all messages that it has
#     read to `Receiver._on_messages`.
#  2. `SegmentBuffer.add` in spark/receiver/buffer.py buffers them for a segment. nsqd counts them as in flight.
#  3. `Receiver._write_loop` waits in `Receiver._wait_until_due`, takes the segment by `SegmentBuffer.take` in
#     spark/receiver/buffer.py, and writes it by `Receiver._write`.
#  4. In the I/O thread of the receiver, `segment_columns` in spark/spool/segments.py lays the messages out as Arrow
#     columns, and `SpoolWriter.write` in spark/spool/spool.py names the file.
#  5. `LocalStore.put` in spark/spool/storage.py, or put() of another store, makes the file durable. If the receiver is
#     killed before this, nothing is lost: nsqd delivers the messages again.
#  6. `Receiver._finish_all` sends FIN by `finish_all` in message.py. If the receiver is killed between 5 and 6, nsqd
#     delivers the messages again, and their rows are in the spool twice.
#  7. The callback on_segment wakes the planner. Spark calls `NsqStreamReader.latestOffset` in spark/source/reader.py.
#     `Planner.latest` in spark/source/planner.py lists new segments by `SpoolListing.update` in spark/spool/listing.py.
#  8. `take_up_to` and `advance` in spark/offsets.py choose the segments of the next batch. Spark writes the offset into
#     its checkpoint.
#  9. `NsqStreamReader.partitions` in spark/source/reader.py divides the segments into tasks. Each task yields rows by
#     `read_segments` in spark/source/reader.py. `Spool.read` in spark/spool/spool.py decodes and checks the rows.
# 10. After the batch Spark calls `NsqStreamReader.commit` in spark/source/reader.py. Then `Spool.prune` in
#     spark/spool/spool.py deletes the segments: in the next latestOffset(), or at once with Trigger.Once.
#
# States of a receiver, and the reasons to pause:
#
#     new -- start() --> receiving -- pause() --> paused     spool: it is full       memory: too many segments wait
#                           |    <-- _resume() --   |        disk: a write failed    maxRows: all are received
#                           |                       |        drained: the planner needs no more
#                           |-- internal error -----|--> failed (error is set)
#                           |                       |      |
#                           +------- close() -------+------+--> closed (is_stuck, if a write has not returned)

from __future__ import annotations

import gc
import logging
import math
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import gevent
from gevent.event import Event

from gnsq import Consumer, Message, finish_all
from gnsq.backofftimer import exponential_delay
from gnsq.concurrency.greenlets import spawn
from gnsq.concurrency.io_thread import BlockingIOThread
from gnsq.errors import NSQException
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.buffer import SEGMENT_BYTES, SEGMENT_ROWS, BufferedMessages, SegmentBuffer, grown_age
from gnsq.spark.receiver.subscriptions import Subscriptions
from gnsq.spark.source.channel import ChannelClient
from gnsq.spark.spool.listing import SpoolListing
from gnsq.texts import counted

if TYPE_CHECKING:
    from gnsq.spark.spool.spool import Spool, SpoolWriter

__all__ = ["Receiver", "SpoolSizeEstimator", "tune_gc"]

logger = logging.getLogger(__name__)

# How many messages are finished before other greenlets run, such as the greenlets that read from connections.
FINISH_CHUNK = 1000
# Seconds between tries to write a segment: the first pause, and the longest.
RETRY_INITIAL, RETRY_MAXIMUM = 0.5, 10.0
# Seconds between a receiver's listings of a spool that is full or to which it has written much, and of any other spool.
MIN_LISTING_INTERVAL, MAX_LISTING_INTERVAL = 0.5, 10.0
# A receiver lists the spool early after it has written max_spool_bytes divided by this number.
LISTINGS_PER_LIMIT = 4
# Seconds between checks whether an nsqd waits for FINs: if so, the segment is written before it is full.
STARVED_CHECK_INTERVAL = 0.01
# Seconds that close() waits: for FINs, after which consumers requeue, and have 1 s to disconnect; and for the writes of
# what is buffered, then for that of closed.json.
CLOSE_TIMEOUT = 10.0
WRITE_TIMEOUT = 5.0
# Messages in memory may have the bytes of this many full segments. Above it, receiving pauses until half are left.
MAX_BUFFERED_SEGMENTS = 8
# After tune_gc(), Python searches for cycles after so many new objects: more than max_in_flight, 10,000 by default.
GC_THRESHOLD = 50_000


def tune_gc() -> None:
    """Let Python search for cycles less often, in a process that only receives.

    A search visits all messages in flight, which are in no cycle. Without tune_gc(), searches take 1/8 of the time.
    """
    first, *others = gc.get_threshold()
    if first:  # 0: no search at all
        gc.set_threshold(max(first, GC_THRESHOLD), *others)


class Receiver:
    """One run of a receiver, which writes into a new directory of the spool. Must be made in the hub that runs it.

    Args:
        on_segment: Called in the receiver's hub after each durable segment; must not block.
        max_rows: The most messages to write; None: no limit.
        segment_rows, segment_bytes: Most rows and bytes of bodies in one segment.

    Attributes:
        id: Name of the receiver's directory in the spool.
        rows, segments: Numbers of durable rows and segments. May be read from any thread.
        not_finished: Number of durable messages whose connection was lost before FIN: nsqd delivers them again.
        failing: True if the last try to write a segment has failed.
        is_stuck: True if close() has left a write that does not return. The end of the process may wait for that write.
        finished: Set after max_rows are durable, and after an internal error.
        error: The internal error that ended the receiving; None if there is none.
        subscriptions: The topics and their connections.

    Raises:
        ValueError: If an address is not valid, or a file that an option names can't be used.
    """

    def __init__(
        self,
        options: ReadOptions,
        spool: Spool,
        on_segment: Callable[[], None] | None = None,
        *,
        max_rows: int | None = None,
        segment_rows: int = SEGMENT_ROWS,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.options = options
        self.id = uuid.uuid4().hex
        self.rows = self.segments = self.not_finished = 0
        self.failing = self.is_stuck = False
        self.finished = Event()
        self.error: BaseException | None = None
        self._spool = spool
        self._on_segment = on_segment
        self._max_rows = max_rows
        self._segment_bytes = segment_bytes
        self._buffer = SegmentBuffer(segment_rows, segment_bytes, options.segment_wait)
        # The messages of the segment that is being written. If the write is abandoned, they must be requeued.
        self._writing: Sequence[Message] = ()
        self._writing_size = 0
        self._accepted = 0
        self._closing = self._is_starting = False
        self._has_started = Event()
        # The greenlet that waits until close() has closed all connections.
        self._disconnecting: gevent.Greenlet | None = None
        # True after close() has stopped the writes: what still arrives is requeued.
        self._is_drained = False
        # The present reasons to pause.
        self._paused: set[str] = set()
        self._wake = Event()
        self._spool_size = SpoolSizeEstimator(options.max_spool_bytes)
        self._listing = SpoolListing()
        self._writer: SpoolWriter | None = None
        self._write_greenlet: gevent.Greenlet | None = None
        self._io_thread = BlockingIOThread()
        # Only a new topic of a pattern may have no channel yet: those of other topics are created before.
        self._channels = ChannelClient(options) if options.topic_pattern and options.other_channels else None
        create = None if self._channels is None else self._channels.create
        self.subscriptions = Subscriptions(options, self._on_messages, CLOSE_TIMEOUT, create_channels=create)

    # --- life

    def start(self) -> None:
        """Make the directory in the spool, and begin to receive.

        Raises:
            OSError: If the spool can't be written or listed.
            SpoolInUse: If the spool belongs to a query that reads something else.
        """
        self._is_starting = True
        try:
            self._open()
        finally:
            self._has_started.set()

    def _open(self) -> None:
        try:
            self._writer = self._io_thread.call(self._open_writer)
        except (OSError, NSQException):
            self._io_thread.close()
            raise
        if self._closing:
            self._close_writer()
            self._io_thread.close()
            return
        if self._spool_size.is_full:
            self._pause_for_size()
        name = f"gnsq-spool-{self.options.source}"
        self._write_greenlet = spawn(name, self._write_loop, on_failure=self._fail)
        self.subscriptions.start()

    def _open_writer(self) -> SpoolWriter:
        self._spool.prepare()
        self._spool.check_source(self.options.source)
        self._spool_size.record_listing(self._list_spool(), time.monotonic())
        return self._spool.writer(self.id)

    def close(self) -> None:
        """Receive no more, write what is buffered, finish it, and disconnect. Each wait has a limit.

        A requeue instead of the write would cost each message an attempt, and nsqd would deliver it to another
        receiver, which may be the next one to stop. After WRITE_TIMEOUT, or if writes fail, messages that are not
        durable are requeued (REQ 0).
        """
        if self._closing or not self._is_starting:
            return
        self._closing = True
        # A start makes directories, which nothing may do after this.
        self.is_stuck = not self._has_started.wait(WRITE_TIMEOUT)
        if self._write_greenlet is None:
            return
        self._disconnecting = spawn(
            "gnsq-disconnect", self.subscriptions.close, on_failure="some connections are still open"
        )
        # _write_loop() then ends at once, if nothing is buffered.
        self._disconnecting.rawlink(lambda _: self._wake.set())
        self._wake.set()
        self._write_greenlet.join(WRITE_TIMEOUT)
        self._is_drained = True
        self.is_stuck = self.io_seconds is not None
        self._write_greenlet.kill()
        # If the write still succeeds after this, these messages will be in the spool twice.
        self._requeue_writing()
        while len(self._buffer):
            self._requeue_all(self._buffer.take().messages)
        self._disconnecting.join()
        if not self.is_stuck:
            self._close_writer()
        self._io_thread.close()
        rows, segments = counted(self.rows, "row"), counted(self.segments, "segment")
        logger.info("receiver %s: closed, %s in %s", self.id, rows, segments)

    @property
    def io_seconds(self) -> float | None:
        """Seconds for which the present call of the file system has not returned; None if there is none."""
        return self._io_thread.busy_seconds

    @property
    def spool_bytes(self) -> int:
        """Unread bytes of the spool, of all its receivers: as last listed, and what this receiver has written since."""
        return self._spool_size.size

    @property
    def is_spool_full(self) -> bool:
        """True while no messages are asked for, since the spool is full."""
        return self._spool_size.is_full

    @property
    def is_started(self) -> bool:
        """True after start() has opened the spool."""
        return self._write_greenlet is not None

    @property
    def is_closing(self) -> bool:
        """True after close() was called."""
        return self._closing

    def _close_writer(self) -> None:
        assert self._writer is not None  # start() has made it
        try:
            with gevent.Timeout(WRITE_TIMEOUT, TimeoutError(f"not within {WRITE_TIMEOUT:g} s")):
                self._io_thread.call(self._writer.close, self.segments)
        except OSError as error:
            self.is_stuck = self.io_seconds is not None
            logger.warning("spool %s: closed.json not written: %s", self._spool.location, error)

    # --- pause

    @property
    def is_paused(self) -> bool:
        """True if no more messages are asked for, for a reason that may last longer than a write."""
        return bool(self._paused - {"memory"})

    def pause(self, reason: str) -> None:
        """Ask for no more messages. Messages that nsqd has sent already still come to _on_messages()."""
        if not self._paused:
            self.subscriptions.pause()
        self._paused.add(reason)

    def _resume(self, reason: str) -> None:
        if reason in self._paused:
            self._paused.discard(reason)
            if not self._paused and not self._closing:
                self.subscriptions.resume()

    # --- messages in

    def _on_messages(self, consumer: Consumer, messages: list[Message]) -> None:
        """Buffer messages, which are finished after their segment is durable. Requeue those above max_rows.

        While close() drains the buffer, messages still come that nsqd sent before: they are buffered, too.
        """
        accepted = len(messages) if self._max_rows is None else self._max_rows - self._accepted
        if self._is_drained:
            accepted = 0
        if accepted < len(messages):
            self._requeue_all(messages[accepted:])
            del messages[accepted:]
        if not messages:
            return
        self._accepted += len(messages)
        buffer = self._buffer
        if not len(buffer):
            buffer.begin(time.monotonic(), self.subscriptions.ready_count, messages[0].time_left)
            self._wake.set()
        is_full = buffer.add(consumer.topic, messages)
        if buffer.size + self._writing_size > MAX_BUFFERED_SEGMENTS * self._segment_bytes:
            self.pause("memory")
        if self._accepted == self._max_rows:
            self.pause("maxRows")
            is_full = True
        if is_full:
            self._wake.set()

    # --- segments out

    def _fail(self, error: BaseException) -> None:
        """End with an error that the owner reads: no message is finished any more."""
        logger.error("receiver %s: internal error, no more segments are written", self.id, exc_info=error)
        self.error = error
        self.pause("error")
        self._requeue_writing()
        self.finished.set()

    def _write_loop(self) -> None:
        while not self._closing:
            if not len(self._buffer):
                self._wake.wait(MIN_LISTING_INTERVAL)
                self._wake.clear()
            self._check_size()
            if len(self._buffer) and self._wait_until_due():
                if self._buffer.is_full:
                    self.subscriptions.add_connections()
                self._write(self._buffer.take())
        self._drain()

    def _drain(self) -> None:
        """Write what is buffered until close() has closed all connections; end early if a write fails."""
        while not self.failing:
            if len(self._buffer):
                self._write(self._buffer.take())
            elif self._disconnecting is not None and self._disconnecting.ready():
                return
            else:
                self._wake.wait(MIN_LISTING_INTERVAL)
                self._wake.clear()

    def _wait_until_due(self) -> bool:
        """Wait until the segment is full or old enough, all of max_rows are received, or a topic is starved.

        Returns:
            False if the receiver is closing: then _drain() writes the buffered messages.
        """
        while not self._closing:
            left = self._buffer.seconds_to_flush(time.monotonic())
            if not left or self._buffer.is_full or "maxRows" in self._paused:
                return True
            if self.subscriptions.is_starved():
                # An nsqd has delivered nearly all messages that RDY allows, so the buffer may never get full.
                # Messages that were just read are added during this yield.
                gevent.sleep(0)
                return not self._closing
            self._wake.wait(min(left, STARVED_CHECK_INTERVAL))
            self._wake.clear()
        return False

    def _write(self, segment: BufferedMessages) -> None:
        """Write one segment and finish its messages; try until it succeeds or the receiver is closing."""
        self._writing, self._writing_size = segment.messages, segment.size
        number, count = self.segments + 1, len(segment.messages)
        # The same for each try: a try that has failed may leave a file, which the next one replaces.
        received_at_ns = time.time_ns()
        failures = 0
        while True:
            try:
                size = self._io_thread.call(self._write_segment, number, segment, received_at_ns)
                break
            except OSError as error:
                # nsqd keeps the messages. Without the pause a full disk would fill the memory, too.
                self.failing = True
                self.pause("disk")
                failures += 1
                retry = exponential_delay(failures, RETRY_INITIAL, RETRY_MAXIMUM)
                logger.error(
                    "spool %s: segment %d of %s not written: %s. No message is finished until this succeeds; "
                    "free space or repair the file system. Next try in %.1f s",
                    self._spool.location,
                    number,
                    counted(count, "message"),
                    error,
                    retry,
                )
            if self._wait_closing(retry):
                self._requeue_writing()
                return
        self._writing, self._writing_size = (), 0
        self.failing = False
        self._resume("disk")
        if self._buffer.size <= MAX_BUFFERED_SEGMENTS // 2 * self._segment_bytes:
            self._resume("memory")
        self.segments = number
        self.rows += count
        self._spool_size.add(size)
        self._finish_all(segment.messages)
        if self._on_segment is not None:
            self._on_segment()
        if self.rows == self._max_rows:
            self.finished.set()

    def _write_segment(self, number: int, segment: BufferedMessages, received_at_ns: int) -> int:
        from gnsq.spark.spool.segments import segment_columns  # loads pyarrow

        assert self._writer is not None  # start() has made it
        return self._writer.write(number, segment_columns(segment.messages, segment.topics, received_at_ns))

    def _wait_closing(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._closing and (left := deadline - time.monotonic()) > 0:
            self._wake.wait(left)
            self._wake.clear()
        return self._closing

    def _finish_all(self, messages: Sequence[Message]) -> None:
        lost = 0
        for first in range(0, len(messages), FINISH_CHUNK):
            lost += len(finish_all(messages[first : first + FINISH_CHUNK]))
            gevent.sleep(0)
        if lost:
            self.not_finished += lost
            logger.warning(
                "%d of %s of a durable segment not finished, their connection is gone: nsqd delivers them "
                "again, and they will be in the spool twice",
                lost,
                counted(len(messages), "message"),
            )

    def _requeue_writing(self) -> None:
        messages, self._writing = self._writing, ()
        self._requeue_all(messages)

    def _requeue_all(self, messages: Sequence[Message]) -> None:
        lost = 0
        for message in messages:
            try:
                message.requeue(0, backoff=False)
            except NSQException:
                # The connection of this message is lost. Messages of other nsqds can still be requeued.
                lost += 1
        if lost:
            logger.info(
                "%d of %s not requeued, their connection is gone: nsqd delivers them again when their timeout ends",
                lost,
                counted(len(messages), "message"),
            )

    # --- size of the spool

    def _check_size(self) -> None:
        """List the spool if that is due. Pause if it has max_spool_bytes or more; resume if it has less."""
        estimate = self._spool_size
        now = time.monotonic()
        if not estimate.is_due(now):
            return
        try:
            size = self._io_thread.call(self._list_spool)
        except OSError as error:
            logger.warning("spool %s can't be listed: %s", self._spool.location, error)
            size = estimate.size
        was_full = estimate.is_full
        estimate.record_listing(size, now)
        if estimate.is_full and not was_full:
            self._pause_for_size()
        elif was_full and not estimate.is_full:
            logger.info("spool %s is below maxSpoolBytes again: resumed", self._spool.location)
            self._resume("spool")

    def _list_spool(self) -> int:
        """Return the unread bytes of the spool. Let segments grow if many wait there. Called in the I/O thread."""
        self._spool.update(self._listing, sees_deletions=True)
        waiting = self._listing.segments.totals({})
        self._buffer.max_age = grown_age(self.options.segment_wait, waiting.segments)
        return waiting.size

    def _pause_for_size(self) -> None:
        logger.info("spool %s has %d bytes, over maxSpoolBytes: paused", self._spool.location, self._spool_size.size)
        self.pause("spool")


class SpoolSizeEstimator:
    """Estimates the size of a spool between two listings, and decides when to list the spool. Pure: reads no clock.

    The estimate counts only what this receiver writes. Since other receivers write, too, and the query deletes,
    listings correct the estimate: more often if much is written or the spool is full.

    Args:
        limit: A spool with this many bytes or more is full.
    """

    def __init__(self, limit: int) -> None:
        self.size = 0
        self.is_full = False
        self._limit = limit
        self._added = 0
        self._listed_at = -math.inf

    def add(self, size: int) -> None:
        """Count a segment that was written."""
        self.size += size
        self._added += size

    def is_due(self, now: float) -> bool:
        """Return True if the spool must be listed now."""
        if self.size >= self._limit and not self.is_full:
            # List at once: all messages that come before the listing exceed the limit.
            return True
        is_urgent = self.is_full or self._added >= self._limit / LISTINGS_PER_LIMIT
        return now - self._listed_at >= (MIN_LISTING_INTERVAL if is_urgent else MAX_LISTING_INTERVAL)

    def record_listing(self, size: int, now: float) -> None:
        """Take the size that a listing has found."""
        self.size = size
        self.is_full = size >= self._limit
        self._added = 0
        self._listed_at = now
