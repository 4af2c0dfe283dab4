"""Statistics: what stats() of a Consumer, a Producer or an NsqdHTTPClient returns. Values only; others count.

Latency: how long things took, counted into buckets that double.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    """How often something took how long.

    Attributes:
        bounds: Upper bounds of the buckets, seconds, rising; the last bucket has none.
        counts: One more than bounds.
        total: Seconds, over all; exact to the width of the buckets.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How often, over all."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Tell within how many seconds this share (0 to 1) was done: the upper bound of its bucket, so at most twice
        too much; inf beyond the last bound, None while there is nothing to tell."""
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
    """How many messages, since the start.

    Attributes:
        received: Delivered to us, each delivery counted.
        finished, requeued: FIN and REQ that were sent.
        touched: TOUCH that were sent.
        timed_out: Taken back by nsqd before they were answered: those it said so of, and those that we dropped
            unhandled because their time was over.
    """

    received: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    timed_out: int = 0

    def __add__(self, other: MessageCounts) -> MessageCounts:
        return MessageCounts(
            self.received + other.received,
            self.finished + other.finished,
            self.requeued + other.requeued,
            self.touched + other.touched,
            self.timed_out + other.timed_out,
        )


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """One connection.

    Attributes:
        address: ``host:port`` of its nsqd.
        state: init, connected, subscribed, closing or closed.
        version: nsqd's; None if it did not say.
        rdy: The RDY sent last.
        in_flight: Messages delivered and not yet answered.
        idle: Seconds since the last message; None before the first.
        counts: Since it was opened.
        msg_timeout: Seconds until nsqd takes an unanswered message back; None if it did not say.
        max_rdy_count: The highest RDY that its nsqd allows.
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
    """A Consumer, at one moment.

    Attributes:
        state: init, running, closing or closed.
        connections: Those that are open now.
        counts: Since the start, over all connections, also those that ended.
        given_up: Messages that were delivered more often than max_tries.
        failed: Handlers that raised, NSQRequeueMessage aside.
        waiting: Messages that no handler has yet.
        handling: Handlers that run.
        backoff: off, waiting (RDY 0 until its time is over) or probing (RDY 1 on one connection).
        backoff_failures: In a row; each success takes one off.
        backoff_remaining: Seconds until the next probe; 0 unless waiting.
        latency: From the delivery of each message to its answer.
        failures: Why nsqds have no connection, by address.
        handlers_overdue: Handlers that run although nsqd has taken their message back.
        handlers_timed_out: Messages that nsqd took back while their handler ran.
        async_timed_out: Asynchronous messages that nsqd took back because nobody had answered them.
        lookupd_failures: Why the last answers of nsqlookupds could not be used, by address.
        not_ready: Why no nsqd is connected and subscribed to; empty if one is.
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

    @property
    def in_flight(self) -> int:
        """Messages delivered and not yet answered, over all connections."""
        return sum(connection.in_flight for connection in self.connections)

    @property
    def rdy(self) -> int:
        """RDY sent last, over all connections."""
        return sum(connection.rdy for connection in self.connections)


@dataclass(frozen=True, slots=True)
class ProducerConnectionStats:
    """What one connection of a producer does.

    Attributes:
        address: ``host:port`` of its nsqd, or a URL.
        pending: Publishes without an answer.
        confirmed: Messages that nsqd has taken, since it was opened.
        stalled: Whether it is left out, since it owes an answer for too long.
    """

    address: str
    pending: int
    confirmed: int
    stalled: bool


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """A Producer, at one moment. Counts are of messages, since the start.

    Attributes:
        state: init, running, closing or closed.
        confirmed: nsqd said OK.
        refused: nsqd said no.
        not_sent: Not executed, as who published was told.
        unknown: Sent, and no answer came in time.
        sent_again: Given to a connection another time, since the one before had not sent them, or nsqd had not executed
            them, or though it may have (repeated).
        repeated: Those of the former that nsqd may have executed, with allow_duplicates.
        pending, pending_bytes: Publishes that have not ended.
        latency: From publish() to nsqd's OK.
        connections: Those that are open now.
        failures: Why nsqds have no connection, by address.
        lookupd_failures: Why the last answers of nsqlookupds could not be used, by address.
        not_ready: Why nothing can be published at this moment; empty if it can.
    """

    state: str
    confirmed: int
    refused: int
    not_sent: int
    unknown: int
    sent_again: int
    repeated: int
    pending: int
    pending_bytes: int
    latency: Histogram
    connections: tuple[ProducerConnectionStats, ...] = ()
    failures: dict[str, str] = field(default_factory=dict)
    lookupd_failures: dict[str, str] = field(default_factory=dict)
    not_ready: str = ""


# --- what nsqd 1.3.0 answers; older servers leave out what is NotRequired. Source: nsqd stats.go, http.go -------------


class NsqdLatencies(TypedDict):
    """How long messages took from their publishing to FIN, where nsqd was asked for percentiles of it.

    Attributes:
        percentiles: Each with ``quantile`` and ``value``, nanoseconds.
    """

    count: int
    percentiles: list[dict[str, float]] | None


class PublishCount(TypedDict):
    """How many messages a connection has published to a topic."""

    topic: str
    count: int


class NsqdClientStats(TypedDict):
    """A connection of a consumer or a producer.

    Attributes:
        state: 3: subscribed; 4: closing.
        connect_ts: Unix time, seconds.
        name: What servers before 1.0 call client_id.
        pub_counts: Of a producer.
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
    """A channel.

    Attributes:
        clients: None with include_clients=False.
    """

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
    """The memory of nsqd's process; bytes, microseconds, numbers."""

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
    """The statistics of an nsqd.

    Attributes:
        topics: None if nsqd does not know the topic that was asked for.
        start_time: Unix time, seconds.
        memory: Left out with include_mem=False.
        producers: None if there are none, or with include_clients=False.
    """

    topics: list[NsqdTopicStats] | None
    version: NotRequired[str]
    health: NotRequired[str]
    start_time: NotRequired[int]
    memory: NotRequired[NsqdMemoryStats]
    producers: NotRequired[list[NsqdClientStats] | None]


# Milliseconds whose number has n bits are below 2**n: from 1 ms to 70 minutes, beyond any max_msg_timeout in use.
_BITS = 22
_LAST = _BITS + 1
BOUNDS = tuple(2**bits / 1000 for bits in range(_BITS + 1))


class LatencyRecorder:
    """Counts; adding costs 0.2 us.

    Attributes:
        counts: By bucket of BOUNDS.
        total: Seconds.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (_BITS + 2)
        self.total = 0.0

    def add(self, seconds: float, number: int = 1) -> None:
        """Count one, or some that took the same time."""
        self.total += seconds * number
        bits = int(seconds * 1000).bit_length()
        self.counts[bits if bits < _LAST else _LAST] += number  # min() costs 0.06 us

    def histogram(self) -> Histogram:
        """Copy what was counted."""
        return Histogram(BOUNDS, tuple(self.counts), self.total)
