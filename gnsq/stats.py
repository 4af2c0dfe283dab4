"""Types of what stats() of a Consumer, a Producer and an NsqdHTTPClient returns; and the recorder of latencies.

A field with a Metric is also a metric of Prometheus.
"""

from __future__ import annotations

import functools
import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal, NotRequired, TypedDict, get_type_hints

__all__ = [
    "BOUNDS",
    "ConnectionStats",
    "ConsumerStats",
    "MessageCounts",
    "Metric",
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
    "metrics_of",
]


@dataclass(frozen=True, slots=True)
class Metric:
    """What a field of statistics counts, and how Prometheus shows it.

    A value that is a collection is shown as its length.

    Attributes:
        kind: A counter never falls.
        name: Name after that of the side, such as ``gnsq_consumer_``.
        meaning: What the value is.
        label: Of a field that is a dict: the label whose values are the keys.
        is_maximum: True: if consumers of the same topic and channel are shown together, the largest value is shown, and
            not the sum.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    meaning: str
    label: str = ""
    is_maximum: bool = False


counter = functools.partial(Metric, "counter")
gauge = functools.partial(Metric, "gauge")
histogram = functools.partial(Metric, "histogram")


def metrics_of(statistics: type) -> dict[str, Metric]:
    """Return the metrics of a class of statistics by the names of their fields."""
    hints = get_type_hints(statistics, include_extras=True)
    return {
        name: each
        for name, hint in hints.items()
        for each in getattr(hint, "__metadata__", ())
        if isinstance(each, Metric)
    }


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

    def __add__(self, other: Histogram) -> Histogram:
        """Add the durations of another histogram with the same bounds."""
        counts = map(operator.add, self.counts, other.counts)
        return Histogram(self.bounds, tuple(counts), self.total + other.total)

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
    """Numbers of messages since a connection was opened, or since a Consumer was started."""

    received: Annotated[int, counter("messages_received", "Messages delivered, each delivery counted.")] = 0
    finished: Annotated[int, counter("messages_finished", "Messages that FIN was sent for.")] = 0
    requeued: Annotated[int, counter("messages_requeued", "Messages that REQ was sent for.")] = 0
    touched: Annotated[int, counter("messages_touched", "TOUCH commands that were sent.")] = 0
    timed_out: Annotated[
        int, counter("messages_timed_out", "Messages that timed out before their answer; nsqd requeues them.")
    ] = 0

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
        idle: Seconds since the last message; None before the first one.
        counts: Numbers of messages since the connection was opened.
        msg_timeout: Seconds until nsqd requeues an unanswered message; None if unknown.
        max_rdy_count: Highest RDY count that the nsqd allows.
    """

    address: str
    state: str
    version: str | None
    rdy: Annotated[int, gauge("rdy", "RDY count that was sent last.")]
    in_flight: Annotated[int, gauge("messages_in_flight", "Messages delivered and not answered.")]
    idle: float | None
    counts: MessageCounts
    msg_timeout: float | None = None
    max_rdy_count: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """State of a Consumer. All counts are since the start, also those of closed connections.

    Attributes:
        state: init, running, closing or closed.
        connections: The open connections.
        counts: Numbers of messages.
        counts_by_nsqd: The same by the address of the nsqd.
        backoff: off, waiting (RDY 0 until the delay is over) or probing (RDY 1 on one connection).
        failures: By address of an nsqd without a connection: its last error.
        lookupd_failures: By address of an nsqlookupd: why its last answer could not be used.
        not_ready: Why the Consumer does not run or no connection is subscribed; empty if it runs and one is. Not empty
            although the Consumer is ready: while it waits for its topic.
        unanswered: Number of messages that close() did not see answered: requeued after close_timeout, timed out, or in
            flight at the end.
    """

    topic: str
    channel: str
    state: str
    max_in_flight: Annotated[int, gauge("max_in_flight", "Limit of the messages in flight.")]
    connections: Annotated[tuple[ConnectionStats, ...], gauge("connections", "Open connections.")]
    counts: MessageCounts
    given_up: Annotated[int, counter("messages_given_up", "Messages that were given up.")]
    failed: Annotated[
        int, counter("handler_failures", "Handlers that raised anything but NSQRequeueMessage and NSQGiveUp.")
    ]
    waiting: Annotated[int, gauge("messages_waiting", "Messages in flight that no handler has yet.")]
    handling: Annotated[int, gauge("handlers_running", "Messages whose handlers are running.")]
    backoff: Annotated[str, gauge("backoff_state", "Consumers in this phase of backoff.", "state")]
    backoff_failures: Annotated[
        int,
        gauge("backoff_failures", "Failures that have made the pause longer, minus successes since.", is_maximum=True),
    ]
    backoff_remaining: Annotated[
        float, gauge("backoff_remaining_seconds", "Time until the next message is tried; 0: now.", is_maximum=True)
    ]
    latency: Annotated[
        Histogram,
        histogram(
            "message_latency_seconds",
            "Time from the delivery of a message to the return of its handler; if async, to its answer.",
        ),
    ]
    failures: Annotated[dict[str, str], gauge("unreachable_nsqds", "Known nsqds without a connection.")] = field(
        default_factory=dict
    )
    handlers_overdue: Annotated[int, gauge("handlers_overdue", "Running handlers whose message has timed out.")] = 0
    handlers_timed_out: Annotated[int, counter("handlers_timed_out", "Messages that timed out in a handler.")] = 0
    async_timed_out: Annotated[
        int, counter("async_timed_out", "Async messages that timed out before their answer.")
    ] = 0
    lookupd_failures: Annotated[
        dict[str, str], gauge("failing_lookupds", "nsqlookupds whose last answer could not be used.")
    ] = field(default_factory=dict)
    not_ready: str = ""
    unanswered: int = 0
    counts_by_nsqd: dict[str, MessageCounts] = field(default_factory=dict)

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
        address: ``host:port`` of the nsqd.
    """

    address: str
    pending: Annotated[int, gauge("nsqd_pending", "Publishes that this nsqd has not answered.")]
    stalled: Annotated[
        bool, gauge("stalled_connections", "Connections with a late response; publishes use others, if there are.")
    ]


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """State of a Producer. Counters count messages since its start.

    Attributes:
        state: init, running, closing or closed.
        connections: The open connections.
        failures: By address of an nsqd without a connection: its last error.
        lookupd_failures: By address of an nsqlookupd: why its last answer could not be used.
        not_ready: Why the Producer does not run or has no connection; empty if it runs and has one.
    """

    state: str
    confirmed: Annotated[int, counter("messages_confirmed", "Messages that nsqd has confirmed with OK.")]
    refused: Annotated[int, counter("messages_refused", "Messages that nsqd has refused with an error.")]
    not_sent: Annotated[
        int, counter("messages_not_sent", "Messages that ended with NSQNotSent: nsqd does not have them.")
    ]
    unknown: Annotated[int, counter("messages_unknown", "Messages that ended with NSQUnknown: nsqd may have them.")]
    retried: Annotated[int, counter("messages_retried", "Messages sent again, once or more often.")]
    possibly_duplicated: Annotated[
        int,
        counter(
            "messages_possibly_duplicated",
            "Messages sent again that nsqd may have twice (option allow_duplicates).",
        ),
    ]
    pending: Annotated[int, gauge("pending", "Publishes that have no outcome yet.")]
    pending_bytes: Annotated[int, gauge("pending_bytes", "Bytes of the publishes that have no outcome yet.")]
    latency: Annotated[Histogram, histogram("publish_latency_seconds", "Time from publish() to the OK of nsqd.")]
    connections: Annotated[tuple[ProducerConnectionStats, ...], gauge("connections", "Open connections.")] = ()
    failures: Annotated[dict[str, str], gauge("unreachable_nsqds", "Known nsqds without a connection.")] = field(
        default_factory=dict
    )
    lookupd_failures: Annotated[
        dict[str, str], gauge("failing_lookupds", "nsqlookupds whose last answer could not be used.")
    ] = field(default_factory=dict)
    not_ready: str = ""
    confirmed_by_nsqd: Annotated[
        dict[str, int], counter("nsqd_messages_confirmed", "Messages that this nsqd has confirmed.", "nsqd")
    ] = field(default_factory=dict)


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
    depth: Annotated[int, gauge("channel_depth", "Messages of a channel that wait for a consumer.")]
    backend_depth: int
    in_flight_count: Annotated[int, gauge("channel_in_flight", "Messages that were delivered and not answered.")]
    deferred_count: Annotated[int, gauge("channel_deferred", "Messages that wait for their time.")]
    message_count: Annotated[int, counter("channel_messages", "Messages that came into a channel.")]
    requeue_count: Annotated[int, counter("channel_requeued", "Messages that consumers have requeued.")]
    timeout_count: Annotated[int, counter("channel_timed_out", "Messages that timed out.")]
    clients: list[NsqdClientStats] | None
    paused: Annotated[bool, gauge("channel_paused", "1 if the channel is paused.")]
    client_count: Annotated[NotRequired[int], gauge("channel_clients", "Consumers of a channel.")]
    e2e_processing_latency: NotRequired[NsqdLatencies]


class NsqdTopicStats(TypedDict):
    """A topic with its channels."""

    topic_name: str
    channels: list[NsqdChannelStats]
    depth: Annotated[int, gauge("topic_depth", "Messages of a topic that no channel has yet.")]
    backend_depth: int
    message_count: Annotated[int, counter("topic_messages", "Messages that were published to a topic.")]
    message_bytes: NotRequired[int]
    paused: Annotated[NotRequired[bool], gauge("topic_paused", "1 if the topic is paused.")]
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


# From 1 ms to 70 minutes.
BOUNDS = tuple(2**number / 1000 for number in range(23))


class LatencyRecorder:
    """Counts durations in buckets. Each upper bound is twice the one before. add() takes 0.2 us.

    Attributes:
        counts: Number of durations in each bucket; BOUNDS has the upper bounds.
        total: Sum of all durations, in seconds.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float, number: int = 1) -> None:
        """Count a duration, or several equal ones."""
        self.total += seconds * number
        self.counts[bisect_right(BOUNDS, seconds)] += number

    def add_since(self, now: float, times: Iterable[float]) -> None:
        """Count the durations from some times until now. Equal times, such as those of one read, cost one add()."""
        for time, number in Counter(times).items():
            self.add(now - time, number)

    def histogram(self) -> Histogram:
        """Return a copy of the counts."""
        return Histogram(BOUNDS, tuple(self.counts), self.total)
