"""Statistics: what stats() of a Consumer or Producer gives. Values only; whoever counts fills them in."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ConnectionStats", "ConsumerStats", "Counts", "Histogram", "LinkStats", "ProducerStats"]


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
class Counts:
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

    def __add__(self, other: Counts) -> Counts:
        return Counts(
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
    counts: Counts
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
    counts: Counts
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
class LinkStats:
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
    connections: tuple[LinkStats, ...] = ()
    failures: dict[str, str] = field(default_factory=dict)
    lookupd_failures: dict[str, str] = field(default_factory=dict)
    not_ready: str = ""
