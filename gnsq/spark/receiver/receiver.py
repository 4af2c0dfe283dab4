"""Receiver: writes the messages of consumers into a spool, and finishes them once they are durable there.

At least once: a message is finished only when its segment is on disk, so one that is lost on the way is delivered
again; one whose FIN is lost is in the spool twice. Lives in one gevent hub; knows no Spark.

SpoolSizeEstimator: how full a spool is, by what was written and what listings say. PURE: is told both, and the time.

BlockingIOThread: one thread for what blocks on a file system, so that the hub's heartbeats go on.
"""

from __future__ import annotations

import gc
import logging
import math
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import gevent
from gevent.event import Event
from gevent.threadpool import ThreadPool

from gnsq import Consumer, Message, finish_all
from gnsq.errors import NSQException
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.buffer import BufferedMessages, SegmentBuffer, SegmentLimits
from gnsq.spark.receiver.subscriptions import Subscriptions
from gnsq.texts import counted

if TYPE_CHECKING:
    from gnsq.spark.spool.spool import Spool, SpoolWriter

__all__ = [
    "BlockingIOThread",
    "Receiver",
    "SpoolSizeEstimator",
    "tune_gc",
]

logger = logging.getLogger(__name__)


# Between two listings a receiver adds at most this part of the limit.
LISTINGS_PER_LIMIT = 4


class SpoolSizeEstimator:
    """Counts what its own receiver writes. Others write too and the reader deletes, and there may be much from the
    start, so now and then it asks for a listing: more often the more was written, and as long as the spool is full.

    Args:
        limit: Bytes.
        interval: Seconds between listings, at least.
        longest: Seconds between listings, at most: others write, too.
    """

    def __init__(self, limit: int, interval: float, longest: float) -> None:
        self.size = 0
        self.is_full = False
        self._limit = limit
        self._interval = interval
        self._longest = longest
        self._added = 0
        self._looked_at = -math.inf

    def add(self, size: int) -> None:
        """Count a segment that was written."""
        self.size += size
        self._added += size

    def is_due(self, now: float) -> bool:
        """Whether the spool is to be listed now."""
        if self.size >= self._limit and not self.is_full:
            # Not to be put off: what comes meanwhile is over the limit.
            return True
        hurried = self.is_full or self._added >= self._limit / LISTINGS_PER_LIMIT
        return now - self._looked_at >= (self._interval if hurried else self._longest)

    def record_listing(self, size: int, now: float) -> None:
        """Take over what a listing has found."""
        self.size = size
        self.is_full = size >= self._limit
        self._added = 0
        self._looked_at = now


P = ParamSpec("P")
T = TypeVar("T")


class BlockingIOThread:
    """Calls functions one after the other, in a thread that is made at the first call; for the greenlets of one hub."""

    def __init__(self) -> None:
        self._pool: ThreadPool | None = None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function and wait for it, letting other greenlets run; what it raises is raised here."""
        if self._pool is None:
            # Not the hub's own pool, which resolves host names and has ten threads: order matters here.
            self._pool = ThreadPool(1)
        value, error = self._pool.apply(_caught, (function, args, kwargs))
        if error is not None:
            raise error
        return cast("T", value)  # gevent's pool has no types

    def close(self) -> None:
        """End the thread. One that still works, for a caller that was killed, ends when it has done that."""
        pool, self._pool = self._pool, None
        if pool is not None and not len(pool):
            pool.kill()
        elif pool is not None:
            # kill() would wait for it.
            pool.task_queue.put(None)


def _caught(
    function: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[T | None, Exception | None]:
    """Call a function; gevent's pool prints the traceback of what is raised in it, so errors come as a value."""
    try:
        return function(*args, **kwargs), None
    except Exception as error:  # noqa: BLE001  # handed over to the caller, whatever it is
        return None, error


# Answers are sent in runs, with a yield between: heartbeats and the reader go on.
FINISH_CHUNK = 1000
# Seconds between tries of a segment that could not be written, and between looks at a spool that is too big.
RETRY_INITIAL, RETRY_MAXIMUM = 0.5, 10.0
CHECK_INTERVAL = 0.5
# Seconds between listings of a spool that is not, at most: others write into it, too.
MAX_LISTING_INTERVAL = 10.0
# Seconds between looks at whether a segment is due since nsqd waits for answers.
STARVED_CHECK = 0.01
# Seconds for an orderly end; of a write that is under way, and of the last one.
CLOSE_TIMEOUT = 10.0
WRITE_TIMEOUT = 5.0
# Segments whose bytes may be in memory, by segment_bytes: above that no more is asked for until half is written.
MAX_BUFFERED_SEGMENTS = 8
# Objects that are there more than at the last search for cycles, until the next: above what messages in flight are.
GC_THRESHOLD = 50_000


def tune_gc() -> None:
    """Let Python search for cycles less often, in a process that does nothing but receive. Each time it looks at all
    messages in flight, which are in none: an eighth of what receiving costs."""
    first, *others = gc.get_threshold()
    if first:  # 0: not at all
        gc.set_threshold(max(first, GC_THRESHOLD), *others)


class Receiver:
    """One run of receiving, into a directory of the spool that is new each time.

    Args:
        options: What and how much.
        spool: Where to.
        on_segment: Called in the receiver's hub behind each durable segment; must not block.
        max_rows: Take so many and no more; None for no limit.

    Attributes:
        id: Its directory in the spool.
        rows, segments: What is durable so far. May be read from any thread.
        not_finished: Messages that are durable, but whose connection was lost before FIN: they will come twice.
        failing: Whether the last write failed.
        is_stuck: Whether close() has left a write that does not end; the end of the process may wait for that.
        finished: Set when max_rows are durable, and when there is an error.
        error: What ended the writing for good; None while all is well.
        subscriptions: The topics, and the connections.

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
    ) -> None:
        self.options = options
        self._max_rows = max_rows
        self.id = uuid.uuid4().hex
        self.rows = 0
        self.segments = 0
        self.not_finished = 0
        self.failing = False
        self.is_stuck = False
        self.finished = Event()
        self.error: Exception | None = None
        self._spool = spool
        self._on_segment = on_segment
        self._buffer = SegmentBuffer(
            SegmentLimits(options.segment_rows, options.segment_bytes, max(options.segment_time, 0.001))
        )
        # Of the segment that is being written; whoever breaks that off gives them back.
        self._writing: Sequence[Message] = ()
        self._writing_size = 0
        self._accepted = 0
        self._closing = False
        self._paused: set[str] = set()
        self._wake = Event()
        self._spool_size = SpoolSizeEstimator(options.max_spool_bytes, CHECK_INTERVAL, MAX_LISTING_INTERVAL)
        self._writer: SpoolWriter | None = None
        self._loop: gevent.Greenlet | None = None
        self._io_thread = BlockingIOThread()
        self.subscriptions = Subscriptions(options, self._on_messages, CLOSE_TIMEOUT)

    # --- life

    def start(self) -> None:
        """Make the spool's directory and begin to receive.

        Raises:
            OSError: If the spool can't be written.
            SpoolInUse: If the spool is that of a query which reads something else.
        """
        try:
            self._writer = self._io_thread.call(self._open_writer)
        except (OSError, NSQException):
            self._io_thread.close()
            raise
        if self._spool_size.is_full:
            self._pause_for_size()
        self._loop = gevent.spawn(self._run)
        self._loop.name = f"gnsq-spool-{self.options.source}"
        self.subscriptions.start()

    def close(self) -> None:
        """End in order: what is durable is finished, the rest is given back to nsqd (REQ 0). Waits for it."""
        if self._closing or self._loop is None:
            return
        self._closing = True
        self.subscriptions.close()
        while len(self._buffer):
            self._requeue_all(self._buffer.take().messages)
        self._wake.set()
        self._loop.join(WRITE_TIMEOUT)
        self.is_stuck = not self._loop.ready()
        self._loop.kill()
        # Should the write succeed yet, they are in the spool twice.
        self._requeue_writing()
        self.subscriptions.join(CLOSE_TIMEOUT + 1)
        if not self.is_stuck:
            self._close_writer()
        self._io_thread.close()
        what = counted(self.rows, "row"), counted(self.segments, "segment")
        logger.info("receiver %s: closed, %s in %s", self.id, *what)

    def _close_writer(self) -> None:
        assert self._writer is not None  # start() has made it
        try:
            with gevent.Timeout(WRITE_TIMEOUT, TimeoutError(f"not within {WRITE_TIMEOUT:g} s")):
                self._io_thread.call(self._writer.close, self.segments)
        except OSError as error:
            self.is_stuck = isinstance(error, TimeoutError)
            logger.warning("spool %s: closed.json not written: %s", self._spool.location, error)

    def _open_writer(self) -> SpoolWriter:
        self._spool.prepare()
        self._spool.check_source(self.options.source)
        self._spool_size.record_listing(self._spool.size(), time.monotonic())
        return self._spool.writer(self.id)

    # --- in

    def _on_messages(self, consumer: Consumer, messages: list[Message]) -> None:
        """Let messages wait for a segment; they are answered when that is durable."""
        room = len(messages) if self._max_rows is None else self._max_rows - self._accepted
        if self._closing:
            room = 0
        if room < len(messages):
            self._requeue_all(messages[room:])
            del messages[room:]
        if not messages:
            return
        self._accepted += len(messages)
        collector = self._buffer
        if len(collector):
            collector.switch_topic(consumer.topic)
        else:
            ready_count, time_left = self.subscriptions.ready_count, messages[0].time_left
            collector.begin(time.monotonic(), consumer.topic, ready_count, time_left)
            self._wake.set()
        is_full = collector.add(messages)
        if collector.size + self._writing_size > MAX_BUFFERED_SEGMENTS * self.options.segment_bytes:
            self._pause("memory")
        if self._accepted == self._max_rows:
            self._pause("maxRows")
            is_full = True
        if is_full:
            self._wake.set()

    @property
    def is_paused(self) -> bool:
        """Whether no more messages are asked for, for any reason that may last longer than a write."""
        return bool(self._paused - {"memory"})

    def pause(self, reason: str) -> None:
        """Ask for no more messages, for good; what is on its way is still written."""
        self._pause(reason)

    def _pause(self, reason: str) -> None:
        if not self._paused:
            self.subscriptions.pause()
        self._paused.add(reason)

    def _resume(self, reason: str) -> None:
        if reason in self._paused:
            self._paused.discard(reason)
            if not self._paused and not self._closing:
                self.subscriptions.resume()

    # --- out

    def _run(self) -> None:
        try:
            self._write_loop()
        except Exception as error:  # top of a greenlet: nothing is finished any more, and whoever owns it is told
            logger.exception("receiver %s: internal error, nothing more is written", self.id)
            self.error = error
            self._pause("error")
            self._requeue_writing()
            self.finished.set()

    def _write_loop(self) -> None:
        while not self._closing:
            if not len(self._buffer):
                self._wake.wait(CHECK_INTERVAL)
                self._wake.clear()
            self._check_size()
            if len(self._buffer) and self._wait_due():
                if self._buffer.is_full:
                    self.subscriptions.add_connection()
                self._write(self._buffer.take())

    def _wait_due(self) -> bool:
        """Wait until the segment is full or old enough; False if the receiver is closing: the rest is given back."""
        while not self._closing:
            left = self._buffer.seconds_to_flush(time.monotonic())
            if not left or self._buffer.is_full or "maxRows" in self._paused:
                return True
            if self.subscriptions.is_starved():
                # One of many nsqds or topics has all that is due: the sum that makes a full segment may never come.
                # What has just been read is not here yet; it is behind this.
                gevent.sleep(0)
                return not self._closing
            self._wake.wait(min(left, STARVED_CHECK))
            self._wake.clear()
        return False

    def _write(self, waiting: BufferedMessages) -> None:
        """Write one segment and finish its messages. Tries until it succeeds or the receiver closes."""
        messages = self._writing = waiting.messages
        self._writing_size = waiting.size
        number = self.segments + 1
        retry = RETRY_INITIAL
        while True:
            try:
                size = self._io_thread.call(self._write_segment, number, waiting)
            except OSError as error:
                # nsqd keeps the messages; no more are taken, or a full disk would fill the memory too.
                self.failing = True
                self._pause("disk")
                logger.error(
                    "spool %s: segment %d of %s not written: %s. No message is finished until this succeeds; "
                    "free space or repair the file system. Next try in %.1f s",
                    self._spool.location,
                    number,
                    counted(len(messages), "message"),
                    error,
                    retry,
                )
                if self._wait_closing(retry):
                    self._requeue_writing()
                    return
                retry = min(retry * 2, RETRY_MAXIMUM)
                continue
            break
        self._writing, self._writing_size = (), 0
        self.failing = False
        self._resume("disk")
        if self._buffer.size <= MAX_BUFFERED_SEGMENTS // 2 * self.options.segment_bytes:
            self._resume("memory")
        self.segments = number
        self.rows += len(messages)
        self._spool_size.add(size)
        self._finish_all(messages)
        if self._on_segment is not None:
            self._on_segment()
        if self.rows == self._max_rows:
            self.finished.set()

    def _write_segment(self, number: int, waiting: BufferedMessages) -> int:
        from gnsq.spark.spool.segments import segment_columns  # as Spool

        assert self._writer is not None  # start() has made it
        return self._writer.write(number, segment_columns(waiting.messages, waiting.topics, time.time_ns()))

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
                # Its connection is gone; those of other nsqds can still be given back.
                lost += 1
        if lost:
            logger.info(
                "%d of %s not given back, their connection is gone: nsqd delivers them again when their timeout ends",
                lost,
                counted(len(messages), "message"),
            )

    # --- backpressure

    def _check_size(self) -> None:
        """Stop above max_spool_bytes, go on below."""
        gauge = self._spool_size
        now = time.monotonic()
        if not gauge.is_due(now):
            return
        try:
            size = self._io_thread.call(self._spool.size)
        except OSError as error:
            logger.warning("spool %s can't be listed: %s", self._spool.location, error)
            size = gauge.size
        was_full = gauge.is_full
        gauge.record_listing(size, now)
        if gauge.is_full and not was_full:
            self._pause_for_size()
        elif was_full and not gauge.is_full:
            logger.info("spool %s is below maxSpoolBytes again: resumed", self._spool.location)
            self._resume("spool")

    def _pause_for_size(self) -> None:
        logger.info("spool %s has %d bytes, over maxSpoolBytes: paused", self._spool.location, self._spool_size.size)
        self._pause("spool")
