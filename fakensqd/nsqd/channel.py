"""One channel: its queue, what is in flight and deferred, and the subscribers that wait for it.

Pure: takes ``now``, calls subscribers, knows no bytes of the wire. Source: nsqd channel.go.

How long messages take from their publishing to FIN: the percentiles of /stats.

Pure. Exact, of as many as are kept; nsqd keeps estimates. Source: nsq internal/quantile.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from fakensqd.message import Backend, MessageQueue, QueuedMessage
from fakensqd.options import NsqdOptions
from gnsq.protocol.names import is_ephemeral

__all__ = [
    "BrokerError",
    "Channel",
    "Subscriber",
    "Latencies",
    "QueuedMessage",
    "human",
    "summary",
]


# Each of the two halves of a window keeps so many, the oldest of it.
_KEPT = 100_000

Summary = dict[str, Any]  # Any: JSON


class Latencies:
    """The latencies of a channel, over a window that moves on by half of itself.

    Args:
        percentiles: What is wanted, each over 0, up to 1.
        window: Seconds.
        now: The time, seconds.
    """

    def __init__(self, percentiles: Sequence[float], window: float, now: float) -> None:
        self.percentiles = percentiles
        self._half = window / 2
        self._halves: tuple[list[int], list[int]] = ([], [])
        self._moved = now

    def add(self, nanoseconds: int, now: float) -> None:
        """Take note of a message that is finished."""
        self._move(now)
        current = self._halves[0]
        if len(current) < _KEPT:
            current.append(nanoseconds)

    def kept(self, now: float) -> list[int]:
        """List those in the window, nanoseconds."""
        self._move(now)
        return self._halves[0] + self._halves[1]

    def _move(self, now: float) -> None:
        if now <= self._moved + self._half:
            return
        recent = now <= self._moved + 2 * self._half
        self._halves = ([], self._halves[0] if recent else [])
        self._moved = self._moved + self._half if recent else now


def summary(latencies: Sequence[Latencies], now: float) -> Summary:
    """Build what /stats says of a channel, or of those of a topic; of none if nobody measures."""
    if not latencies:
        return {"count": 0, "percentiles": None}
    kept = sorted(one for each in latencies for one in each.kept(now))
    wanted = latencies[0].percentiles
    percentiles = [{"quantile": _plain(fraction), "value": _quantile(kept, fraction)} for fraction in wanted]
    return {"count": len(kept), "percentiles": percentiles}


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number


def _quantile(ordered: Sequence[int], fraction: float) -> int:
    if not ordered:
        return 0
    # Rounded up twice. Source: bmizerany/perks quantile.go, query.
    return ordered[min(math.ceil(fraction * len(ordered)), len(ordered) - 1)]


def human(nanoseconds: float) -> str:
    """Write a latency as the text of /stats has it. Source: nsq internal/stringy."""
    for unit, suffix in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if nanoseconds > unit:
            return f"{nanoseconds / unit:.1f}{suffix}"
    return f"{nanoseconds:.1f}ns"


class BrokerError(Exception):
    """A request about a message or channel that cannot be met; the text is nsqd's."""


class Subscriber(Protocol):
    """What a channel tells the connections that subscribe to it. None of these may deliver at once."""

    def wake(self) -> bool:
        """There may be something to deliver, or the channel was paused: come and see, if only later.

        Returns:
            Whether it comes at once. If not (its client does not read), another may have what there is.
        """

    def message_timed_out(self) -> None:
        """One of the messages in flight here has been taken back."""

    def channel_emptied(self) -> None:
        """All messages in flight here have been dropped."""

    def channel_closed(self) -> None:
        """The channel is gone: close without a word."""


class _Timers(Backend, Protocol):
    """What a channel needs of its broker."""

    options: NsqdOptions

    def wall_ns(self, now: float) -> int:
        """The wall clock, in nanoseconds since 1970."""

    def schedule_expiry(self, when: float) -> None:
        """Note that something is to be expired at that time."""

    def on_pause(self) -> None:
        """Note that a channel has been paused, or let on."""


class Channel:
    """A queue of messages, each delivered to one of the subscribers."""

    def __init__(self, timers: _Timers, topic_name: str, name: str, now: float = 0.0) -> None:
        self.topic_name = topic_name
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.paused = False
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        # None: nobody asks for percentiles.
        self.latencies: Latencies | None = None
        options = timers.options
        if options.e2e_processing_latency_percentiles:
            percentiles, window = options.e2e_processing_latency_percentiles, options.e2e_processing_latency_window_time
            self.latencies = Latencies(percentiles, window, now)
        # An ordered set.
        self.subscribers: dict[Subscriber, None] = {}
        self._timers = timers
        self._queue = MessageQueue(timers, topic_name, name, options.mem_queue_size, ephemeral=self.ephemeral)
        self._ready: dict[Subscriber, None] = {}
        # Woken, and not come yet: what is queued is shared with them.
        self._woken: dict[Subscriber, None] = {}
        self._in_flight: dict[bytes, QueuedMessage] = {}
        # Messages in flight by how long they may be, each bucket in order of deadline since now never goes back:
        # the first of each is the only one to look at, and FIN just deletes. A heap would keep what was finished.
        self._buckets: dict[Hashable, dict[bytes, QueuedMessage]] = {}
        self._deferred: list[tuple[float, int, QueuedMessage]] = []
        self._order = itertools.count()

    @property
    def depth(self) -> int:
        """Messages queued; those in flight and deferred are apart."""
        return len(self._queue)

    @property
    def backend_depth(self) -> int:
        """How many of them are on disk, or would be if there is no data path."""
        return self._queue.backend_depth

    @property
    def in_flight_count(self) -> int:
        """Messages delivered and not answered."""
        return len(self._in_flight)

    @property
    def deferred_count(self) -> int:
        """Messages that wait for their delay to end."""
        return len(self._deferred)

    # --- messages come in ---------------------------------------------------------------------------------------------

    def put(self, messages: Sequence[QueuedMessage]) -> None:
        """Queue new messages."""
        self.message_count += len(messages)
        self._enqueue(messages)

    def defer(self, messages: Sequence[QueuedMessage], delay: float, now: float) -> None:
        """Take new messages in, to be queued after the delay."""
        self.message_count += len(messages)
        for message in messages:
            self._defer(message, delay, now)

    def _defer(self, message: QueuedMessage, delay: float, now: float) -> None:
        due = now + delay
        heapq.heappush(self._deferred, (due, next(self._order), message))
        self._timers.schedule_expiry(due)

    def _enqueue(self, messages: Sequence[QueuedMessage]) -> None:
        self._queue.extend(messages)
        self._wake_ready()

    def stored(self) -> list[QueuedMessage]:
        """List what nsqd would write to disk when it stops: queued, in flight and deferred messages."""
        return [*self._queue, *self._in_flight.values(), *(message for _, _, message in sorted(self._deferred))]

    def on_disk(self) -> list[QueuedMessage]:
        """List what is on disk already."""
        return self._queue.on_disk()

    def restore(self, messages: Sequence[QueuedMessage]) -> None:
        """Queue what was stored, and is on disk; it counts as depth, not as messages that came in."""
        self._queue.restore(messages)
        self._wake_ready()

    # --- subscribers come and go --------------------------------------------------------------------------------------

    def add(self, subscriber: Subscriber) -> None:
        """Let a subscriber subscribe.

        Raises:
            BrokerError: If max_channel_consumers are there already.
        """
        limit = self._timers.options.max_channel_consumers
        if limit and len(self.subscribers) >= limit:
            raise BrokerError(f"consumers for {self.topic_name}:{self.name} exceeds limit of {limit}")
        self.subscribers[subscriber] = None

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a subscriber; what it has in flight stays so until its timeout."""
        self.subscribers.pop(subscriber, None)
        self.remove_ready(subscriber)

    def add_ready(self, subscriber: Subscriber) -> None:
        """Wake this subscriber, once, when a message comes; at once if there are some that it has left to others."""
        woken = bool(self._queue) and not self.paused and subscriber.wake()
        if not (woken and subscriber in self._woken):
            self._woken.pop(subscriber, None)
            # Who waits already keeps its place.
            self._ready[subscriber] = None

    def remove_ready(self, subscriber: Subscriber) -> None:
        """Do not wake this subscriber; if it has been woken for what is queued, wake another in its place."""
        self._ready.pop(subscriber, None)
        self._woken.pop(subscriber, None)
        self._wake_ready()

    def _wake_ready(self) -> None:
        """Wake as many as there are messages, those first who have waited longest."""
        waiting = self._ready
        if not waiting or self.paused:
            return
        wanted = len(self._queue)
        while wanted > 0 and waiting:
            subscriber = next(iter(waiting))
            del waiting[subscriber]
            if subscriber.wake():
                self._woken[subscriber] = None
                wanted -= 1

    # --- messages go out ----------------------------------------------------------------------------------------------

    def deliver(
        self, subscriber: Subscriber, limit: int, now: float, timeout: float, keep: Callable[[], bool] | None = None
    ) -> list[QueuedMessage]:
        """Move messages from the queue into flight to this subscriber: its share, and not more than limit.

        One that has not been woken gets nothing while others that have been are to come; then it is one of them.

        Args:
            timeout: Seconds until they are taken back.
            keep: Asked for each message; where it says no the message is dropped, as if finished.
        """
        queue, coming = self._queue, self._woken
        if subscriber not in coming and coming:
            # Who has just given a message back, or published it, leaves it to those who have waited, as nsqd does.
            coming[subscriber] = None
            return []
        coming.pop(subscriber, None)
        # Others that have been woken get as much; rounded up, so that what is left gets less with each turn.
        share = -(-len(queue) // (1 + len(coming)))
        taken = queue.take(min(limit, share))
        if keep is not None:
            taken = [message for message in taken if keep()]
        if not taken:
            return taken
        deadline = now + timeout
        bucket = self._buckets.setdefault(timeout, {})
        in_flight = self._in_flight
        for message in taken:
            message.attempts += 1
            message.owner = subscriber
            message.delivered_at = now
            message.deadline = deadline
            message.bucket = bucket
            in_flight[message.id] = bucket[message.id] = message
        self._timers.schedule_expiry(deadline)
        return taken

    def finish(self, subscriber: Subscriber, message_id: bytes, now: float) -> None:
        """Forget a message that has been dealt with.

        Raises:
            BrokerError: If it is not in flight to this subscriber.
        """
        message = self._owned(subscriber, message_id)
        del self._in_flight[message_id], message.bucket[message_id]
        if self.latencies is not None:
            self.latencies.add(self._timers.wall_ns(now) - message.timestamp, now)

    def requeue(self, subscriber: Subscriber, message_id: bytes, delay: float, now: float) -> None:
        """Take a message back, to be queued at once or after a delay.

        Raises:
            BrokerError: If it is not in flight to this subscriber.
        """
        self._owned(subscriber, message_id)
        message = self._remove_in_flight(message_id)
        self.requeue_count += 1
        if delay > 0:
            self._defer(message, delay, now)
        else:
            self._enqueue([message])

    def touch(self, subscriber: Subscriber, message_id: bytes, timeout: float, now: float) -> None:
        """Begin a message's timeout anew; max_msg_timeout after its delivery is the end.

        Raises:
            BrokerError: If it is not in flight to this subscriber.
        """
        message = self._owned(subscriber, message_id)
        limit = message.delivered_at + self._timers.options.max_msg_timeout
        key: Hashable = timeout
        deadline = now + timeout
        if deadline >= limit:
            deadline = limit
            key = ("until", limit)
        del message.bucket[message_id]
        message.deadline = deadline
        message.bucket = self._buckets.setdefault(key, {})
        message.bucket[message_id] = message
        self._timers.schedule_expiry(deadline)

    def _owned(self, subscriber: Subscriber, message_id: bytes) -> QueuedMessage:
        message = self._in_flight.get(message_id)
        if message is None:
            raise BrokerError("ID not in flight")
        if message.owner is not subscriber:
            raise BrokerError("client does not own message")
        return message

    def _remove_in_flight(self, message_id: bytes) -> QueuedMessage:
        message = self._in_flight.pop(message_id)
        del message.bucket[message_id]
        return message

    # --- time, pause and the end --------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When expire() is worth calling; infinity if never."""
        firsts = [next(iter(bucket.values())).deadline for bucket in self._buckets.values() if bucket]
        return min(firsts + [due for due, _, _ in self._deferred[:1]], default=math.inf)

    def expire(self, now: float) -> list[QueuedMessage]:
        """Queue again what has timed out and what was deferred until now; give back what has timed out."""
        delayed = []
        while self._deferred and self._deferred[0][0] <= now:
            delayed.append(heapq.heappop(self._deferred)[2])
        timed_out = self._timed_out(now)
        self._count_timeouts(timed_out)
        if delayed or timed_out:
            self._enqueue(delayed + timed_out)
        self._timers.schedule_expiry(self.due)
        return timed_out

    def time_out(self, message_id: bytes) -> None:
        """Queue a message again as if it had timed out; does nothing if none of that id is in flight."""
        if message_id in self._in_flight:
            message = self._remove_in_flight(message_id)
            self._count_timeouts([message])
            self._enqueue([message])

    def _count_timeouts(self, messages: Sequence[QueuedMessage]) -> None:
        for message in messages:
            self.timeout_count += 1
            if message.owner in self.subscribers:
                message.owner.message_timed_out()

    def _timed_out(self, now: float) -> list[QueuedMessage]:
        timed_out = []
        for key, bucket in list(self._buckets.items()):
            for message in list(itertools.takewhile(lambda message: message.deadline <= now, bucket.values())):
                timed_out.append(self._remove_in_flight(message.id))
            if not bucket:
                del self._buckets[key]
        return timed_out

    def set_paused(self, paused: bool) -> None:
        """Stop deliveries, or let them on; answers to what is in flight are taken all the same."""
        self.paused = paused
        self._ready.clear()
        self._woken.clear()
        for subscriber in self.subscribers:
            if subscriber.wake():
                self._woken[subscriber] = None
        self._timers.on_pause()

    def empty(self) -> None:
        """Drop everything: queued, in flight, deferred."""
        self._queue.clear()
        self._in_flight.clear()
        self._buckets.clear()
        self._deferred.clear()
        for subscriber in self.subscribers:
            subscriber.channel_emptied()

    def close(self) -> None:
        """Drop everything and hang up on the subscribers."""
        subscribers = list(self.subscribers)
        self.empty()
        self.subscribers.clear()
        self._ready.clear()
        self._woken.clear()
        for subscriber in subscribers:
            subscriber.channel_closed()
