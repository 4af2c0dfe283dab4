"""Types of what stats() of a Consumer, a Producer and an NsqdHTTPClient returns; and the recorder of latencies."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import NotRequired, TypedDict

__all__ = [
    "BOUNDS",
    "ConnectionStats",
    "ConsumerStats",
    "MessageCounts",
    "Histogram",
    "LatencyRecorder",
    "ProducerConnectionStats",
    "NsqdChannelStats",
    "NsqdClientStats",
    "NsqdLatencies",
    "NsqdMemoryStats",
    "NsqdStats",
    "NsqdTopicStats",
    "ProducerStats",
    "PublishCount",
]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Numbers of durations, counted in buckets. A bucket is a range of durations.

    Attributes:
        bounds: Upper bounds of the buckets in seconds, rising. The last bucket has no upper bound.
        counts: Number of durations in each bucket, not cumulative. Has one item more than bounds.
        total: Sum of all durations, in seconds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """Number of all durations."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Return a number of seconds that a share of the durations does not exceed.

        Args:
            share: Part of all durations, from 0 to 1.

        Returns:
            Upper bound of the bucket of the exact quantile; inf for the last bucket. None if there are no durations.
        """
        left = share * self.count
        if not self.count:
            return None
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            left -= count
            if left <= 0:
                return bound
        return float("inf")


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """Numbers of messages since a connection was opened, or since a Consumer was started.

    Attributes:
        received: Number of deliveries.
        finished, requeued, touched: Number of FIN, REQ and TOUCH that were sent.
        timed_out: Number of messages that timed out before they were answered. nsqd requeues these messages.
    """

    received: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    timed_out: int = 0

    def __add__(self, other: MessageCounts) -> MessageCounts:
        return MessageCounts(*map(operator.add, _numbers(self), _numbers(other)))


_numbers = operator.attrgetter(*(count.name for count in fields(MessageCounts)))


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """State of one connection of a Consumer.

    Attributes:
        address: ``host:port`` of the nsqd.
        state: init, connected, subscribed, closing or closed.
        version: Version of nsqd; None if nsqd did not send its version.
        rdy: RDY count that was sent last.
        in_flight: Number of messages in flight.
        idle: Seconds since the last message; None before the first one.
        counts: Numbers of messages since the connection was opened.
        msg_timeout: Seconds until nsqd requeues an unanswered message; None if unknown.
        max_rdy_count: Highest RDY count that the nsqd allows.
    """

    address: str
    state: str
    version: str | None
    rdy: int
    in_flight: int
    idle: float | None
    counts: MessageCounts
    msg_timeout: float | None = None
    max_rdy_count: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """State of a Consumer.

    Attributes:
        state: init, running, closing or closed.
        connections: The open connections.
        counts: Numbers of messages since the start, over all connections, including closed ones.
        given_up: Number of messages given up after they were delivered more often than max_tries.
        failed: Number of calls of handlers, also give-up handlers, that failed, other than by NSQRequeueMessage.
        waiting: Number of messages that wait for a handler.
        handling: Number of messages whose handlers are running.
        backoff: off, waiting (RDY 0 until the delay is over) or probing (RDY 1 on one connection).
        backoff_failures: Number of failures counted; the success of a probe subtracts one.
        backoff_remaining: Seconds until the next probe; 0 if backoff is not waiting.
        latency: Times from the arrival of each message to the return of its handler; if async, to its answer.
        failures: By address of an nsqd without a connection: its last error.
        handlers_overdue: Number of handlers that run now and whose message has timed out.
        handlers_timed_out: Number of messages that timed out while their handler ran, since the start.
        async_timed_out: Number of async messages that timed out before they were answered, since the start.
        lookupd_failures: By address of an nsqlookupd: why its last answer could not be used.
        not_ready: Why the Consumer does not run or no connection is subscribed; empty if it runs and one is. Not empty
            although the Consumer is ready: while it waits for its topic.
        unanswered: Number of messages that close() did not see answered: requeued after close_timeout, timed out, or in
            flight at the end.
    """

    topic: str
    channel: str
    state: str
    max_in_flight: int
    connections: tuple[ConnectionStats, ...]
    counts: MessageCounts
    given_up: int
    failed: int
    waiting: int
    handling: int
    backoff: str
    backoff_failures: int
    backoff_remaining: float
    latency: Histogram
    failures: dict[str, str] = field(default_factory=dict)
    handlers_overdue: int = 0
    handlers_timed_out: int = 0
    async_timed_out: int = 0
    lookupd_failures: dict[str, str] = field(default_factory=dict)
    not_ready: str = ""
    unanswered: int = 0

    @property
    def in_flight(self) -> int:
        """Messages in flight, over all connections."""
        return sum(connection.in_flight for connection in self.connections)

    @property
    def rdy(self) -> int:
        """Sum of the RDY counts that were sent last, over all connections."""
        return sum(connection.rdy for connection in self.connections)


@dataclass(frozen=True, slots=True)
class ProducerConnectionStats:
    """State of one connection of a Producer.

    Attributes:
        address: ``host:port`` of the nsqd, or a URL.
        pending: Number of publishes that wait for their response.
        confirmed: Number of messages that nsqd has confirmed since the connection was opened.
        stalled: True while a response is late and publishes use other connections, which are not stalled.
    """

    address: str
    pending: int
    confirmed: int
    stalled: bool


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """State of a Producer. All numbers from confirmed to possibly_duplicated count messages since its start.

    Attributes:
        state: init, running, closing or closed.
        confirmed: Messages to which nsqd responded with OK.
        refused: Messages to which nsqd responded with an error.
        not_sent: Messages whose publish ended with NSQNotSent: nsqd has not executed it.
        unknown: Messages whose publish ended with NSQUnknown: nsqd may have executed it.
        retried: Messages whose publish was retried, once or more often.
        possibly_duplicated: Messages whose publish was retried although nsqd may have executed it (option
            allow_duplicates).
        pending, pending_bytes: Publishes that have not ended: their number, and the bytes of their messages.
        latency: Times from publish() to nsqd's OK.
        connections: The open connections.
        failures: By address of an nsqd without a connection: its last error.
        lookupd_failures: By address of an nsqlookupd: why its last answer could not be used.
        not_ready: Why the Producer does not run or has no connection; empty if it runs and has one.
    """

    state: str
    confirmed: int
    refused: int
    not_sent: int
    unknown: int
    retried: int
    possibly_duplicated: int
    pending: int
    pending_bytes: int
    latency: Histogram
    connections: tuple[ProducerConnectionStats, ...] = ()
    failures: dict[str, str] = field(default_factory=dict)
    lookupd_failures: dict[str, str] = field(default_factory=dict)
    not_ready: str = ""


# --- responses of nsqd 1.3.0 to /stats. NotRequired keys may be absent. Source: nsqd stats.go, http.go


class NsqdLatencies(TypedDict):
    """Durations from the publish of a message to its FIN, if nsqd's --e2e-processing-latency-percentile is set.

    Attributes:
        percentiles: Dictionaries with ``quantile`` (0 to 1) and ``value`` in nanoseconds.
    """

    count: int
    percentiles: list[dict[str, float]] | None


class PublishCount(TypedDict):
    """Number of messages that a connection has published to a topic."""

    topic: str
    count: int


class NsqdClientStats(TypedDict):
    """A client of nsqd: a connection that subscribes or publishes.

    Attributes:
        state: 3: subscribed; 4: closing; lower: not subscribed.
        connect_ts: Time of the connection, in seconds of Unix time.
        name: The client_id, under the key that servers before 1.0 use.
        pub_counts: Messages by topic, if the client publishes.
    """

    version: str
    remote_address: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    name: NotRequired[str]
    client_id: NotRequired[str]
    hostname: NotRequired[str]
    sample_rate: NotRequired[int]
    deflate: NotRequired[bool]
    snappy: NotRequired[bool]
    user_agent: NotRequired[str]
    authed: NotRequired[bool]
    auth_identity: NotRequired[str]
    auth_identity_url: NotRequired[str]
    pub_counts: NotRequired[list[PublishCount]]
    tls: NotRequired[bool]
    tls_cipher_suite: NotRequired[str]
    tls_version: NotRequired[str]
    tls_negotiated_protocol: NotRequired[str]
    tls_negotiated_protocol_is_mutual: NotRequired[bool]


class NsqdChannelStats(TypedDict):
    """A channel. clients is None if include_clients=False was given."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    clients: list[NsqdClientStats] | None
    paused: bool
    client_count: NotRequired[int]
    e2e_processing_latency: NotRequired[NsqdLatencies]


class NsqdTopicStats(TypedDict):
    """A topic with its channels."""

    topic_name: str
    channels: list[NsqdChannelStats]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: NotRequired[int]
    paused: NotRequired[bool]
    e2e_processing_latency: NotRequired[NsqdLatencies]


class NsqdMemoryStats(TypedDict):
    """Memory of nsqd's process in bytes; GC pauses in microseconds. heap_objects and gc_total_runs are counts."""

    heap_objects: int
    heap_idle_bytes: int
    heap_in_use_bytes: int
    heap_released_bytes: int
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int
    gc_total_runs: int


class NsqdStats(TypedDict):
    """Statistics of an nsqd.

    Attributes:
        topics: None if nsqd does not know the topic that was asked for.
        start_time: Start of nsqd, in seconds of Unix time.
        memory: Absent if include_mem=False was given.
        producers: None if there are none, or if include_clients=False was given.
    """

    topics: list[NsqdTopicStats] | None
    version: NotRequired[str]
    health: NotRequired[str]
    start_time: NotRequired[int]
    memory: NotRequired[NsqdMemoryStats]
    producers: NotRequired[list[NsqdClientStats] | None]


# A number of milliseconds with n bits is below 2**n, the upper bound of its bucket. The bounds are 1 ms to 70 minutes.
_BITS = 22
_LAST = _BITS + 1
BOUNDS = tuple(2**bits / 1000 for bits in range(_BITS + 1))


class LatencyRecorder:
    """Counts durations in buckets. Each upper bound is twice the one before. add() takes 0.2 us.

    Attributes:
        counts: Number of durations in each bucket; BOUNDS has the upper bounds.
        total: Sum of all durations, in seconds.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (_BITS + 2)
        self.total = 0.0

    def add(self, seconds: float, number: int = 1) -> None:
        """Count a duration, or several equal ones."""
        self.total += seconds * number
        bits = int(seconds * 1000).bit_length()
        self.counts[bits if bits < _LAST else _LAST] += number  # min() would cost 0.06 us more

    def add_since(self, now: float, times: Iterable[float]) -> None:
        """Count the durations from some times until now. Equal times, such as those of one read, cost one add()."""
        for time, number in Counter(times).items():
            self.add(now - time, number)

    def histogram(self) -> Histogram:
        """Return a copy of the counts."""
        return Histogram(BOUNDS, tuple(self.counts), self.total)
