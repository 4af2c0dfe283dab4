"""StatsCollector: statistics of consumers and producers as metrics of Prometheus.

    from prometheus_client import REGISTRY, start_http_server

    REGISTRY.register(StatsCollector(consumer, producer))
    start_http_server(9100)

StatsCollector keeps the counts of closed connections and removed sources, so that counters never fall.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

from gnsq.stats import ConsumerStats, Histogram, MessageCounts, ProducerStats

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError as error:
    raise ImportError("prometheus_client is not installed; it comes with: pip install gnsq[prometheus]") from error

__all__ = ["StatsCollector"]

# Value of the label nsqd for counts of a connection between its last scrape and its close.
CLOSED = "closed"

_BACKOFF_STATES = ("off", "waiting", "probing")


class Source(Protocol):
    """A Consumer or a Producer."""

    def stats(self) -> Any:  # Any: ConsumerStats or ProducerStats
        """Return the statistics of the source; called in any thread."""


@dataclass(frozen=True, slots=True)
class _Family:
    """A metric.

    Attributes:
        name: Name after ``gnsq_``.
        attribute: Attribute of stats() that is the value, or whose length is the value. None: computed by other code.
    """

    kind: str
    name: str
    labels: tuple[str, ...]
    meaning: str
    attribute: str | None = None

    def make(self) -> Any:  # Any: one of three classes of prometheus_client
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        return kinds[self.kind](f"gnsq_{self.name}", self.meaning, labels=self.labels)

    def merge(self, first: float, second: float) -> float:
        """Combine the gauges of two sources that have the same labels."""
        return max(first, second) if self.name in _MAXIMA else first + second


_MAXIMA = ("consumer_backoff_failures", "consumer_backoff_remaining_seconds")


class _Key(NamedTuple):
    """Identifies a value. In a histogram, ``bucket`` is the upper bound of a bucket; None: the sum of all durations."""

    family: str
    labels: tuple[str, ...]
    bucket: float | None = None


class _Sample(NamedTuple):
    """A value.

    Attributes:
        is_total: True if this is the value of all nsqds together. This sample comes after those of single nsqds.
    """

    key: _Key
    value: float
    is_total: bool = False


# Metrics by the label that they have besides the labels of their source: kind, name, meaning, attribute of _Family.
_Table = dict[str, list[tuple[str, str, str, str | None]]]

_CONSUMER: _Table = {
    "": [
        ("counter", "messages_given_up", "Messages delivered more often than max_tries.", "given_up"),
        ("counter", "handler_failures", "Handlers that raised.", "failed"),
        ("counter", "handlers_timed_out", "Messages that timed out in a handler.", "handlers_timed_out"),
        ("counter", "async_timed_out", "Async messages that timed out.", "async_timed_out"),
        ("histogram", "message_latency_seconds", "Time from the delivery of a message to its answer.", None),
        ("gauge", "connections", "Open connections.", "connections"),
        ("gauge", "unreachable_nsqds", "Known nsqds without a connection.", "failures"),
        ("gauge", "failing_lookupds", "nsqlookupds whose last answer could not be used.", "lookupd_failures"),
        ("gauge", "max_in_flight", "Limit of the messages in flight.", "max_in_flight"),
        ("gauge", "messages_waiting", "Messages in flight that no handler has yet.", "waiting"),
        ("gauge", "handlers_running", "Running handlers.", "handling"),
        ("gauge", "handlers_overdue", "Handlers whose message has timed out.", "handlers_overdue"),
        ("gauge", "backoff_failures", "Failures in a row, minus successes since.", "backoff_failures"),
        ("gauge", "backoff_remaining_seconds", "Time until the next message is tried.", "backoff_remaining"),
    ],
    "state": [("gauge", "backoff_state", "Consumers in this phase of backoff.", None)],
    "nsqd": [
        ("counter", "messages_received", "Messages delivered, each delivery counted.", None),
        ("counter", "messages_finished", "Messages that FIN was sent for.", None),
        ("counter", "messages_requeued", "Messages that REQ was sent for.", None),
        ("counter", "messages_touched", "TOUCH commands that were sent.", None),
        ("counter", "messages_timed_out", "Messages that timed out before their answer.", None),
        ("gauge", "messages_in_flight", "Messages delivered and not answered.", None),
        ("gauge", "rdy", "RDY count that was sent last.", None),
    ],
}
_PRODUCER: _Table = {
    "": [
        ("counter", "messages_confirmed", "Messages that nsqd has confirmed.", "confirmed"),
        ("counter", "messages_refused", "Messages that nsqd has refused.", "refused"),
        ("counter", "messages_not_sent", "Messages that nsqd does not have.", "not_sent"),
        ("counter", "messages_unknown", "Sent messages without an answer: nsqd may have them.", "unknown"),
        ("counter", "messages_sent_again", "Messages sent again.", "sent_again"),
        ("counter", "messages_repeated", "Messages sent again that nsqd may have twice.", "repeated"),
        ("histogram", "publish_latency_seconds", "Time from publish() to the OK of nsqd.", None),
        ("gauge", "pending", "Publishes that have no outcome yet.", "pending"),
        ("gauge", "pending_bytes", "Bytes of the publishes that have no outcome yet.", "pending_bytes"),
        ("gauge", "connections", "Open connections.", "connections"),
        ("gauge", "stalled_connections", "Connections that do not answer.", None),
        ("gauge", "unreachable_nsqds", "Known nsqds without a connection.", "failures"),
        ("gauge", "failing_lookupds", "nsqlookupds whose last answer could not be used.", "lookupd_failures"),
    ],
    "nsqd": [
        ("counter", "nsqd_messages_confirmed", "Messages that this nsqd has confirmed.", None),
        ("gauge", "nsqd_pending", "Publishes that this nsqd has not answered.", None),
    ],
}

_FAMILIES = {
    f"{side}_{name}": _Family(kind, f"{side}_{name}", (*own, label) if label else own, meaning, attribute)
    for side, own, tables in (("consumer", ("topic", "channel"), _CONSUMER), ("producer", (), _PRODUCER))
    for label, table in tables.items()
    for kind, name, meaning, attribute in table
}


def _consumer_samples(stats: ConsumerStats) -> Iterator[_Sample]:
    own = (stats.topic, stats.channel)
    for connection in stats.connections:
        labels = (*own, connection.address)
        yield from _counts_samples(labels, connection.counts)
        yield _Sample(_Key("consumer_messages_in_flight", labels), connection.in_flight)
        yield _Sample(_Key("consumer_rdy", labels), connection.rdy)
    yield from _counts_samples((*own, CLOSED), stats.counts, is_total=True)
    for state in _BACKOFF_STATES:
        yield _Sample(_Key("consumer_backoff_state", (*own, state)), state == stats.backoff)
    yield from _source_samples("consumer", own, stats)
    yield from _histogram_samples("consumer_message_latency_seconds", own, stats.latency)


def _producer_samples(stats: ProducerStats) -> Iterator[_Sample]:
    yield from _source_samples("producer", (), stats)
    yield from _histogram_samples("producer_publish_latency_seconds", (), stats.latency)
    yield _Sample(_Key("producer_stalled_connections", ()), sum(connection.stalled for connection in stats.connections))
    confirmed: dict[str, int] = defaultdict(int)
    for connection in stats.connections:
        # Add up, since there may be several connections to one nsqd.
        confirmed[connection.address] += connection.confirmed
        yield _Sample(_Key("producer_nsqd_pending", (connection.address,)), connection.pending)
    for address, count in confirmed.items():
        yield _Sample(_Key("producer_nsqd_messages_confirmed", (address,)), count)
    yield _Sample(_Key("producer_nsqd_messages_confirmed", (CLOSED,)), stats.confirmed, is_total=True)


def _source_samples(side: str, labels: tuple[str, ...], stats: object) -> Iterator[_Sample]:
    for name, family in _FAMILIES.items():
        if family.attribute is not None and name.startswith(side):
            value = getattr(stats, family.attribute)
            yield _Sample(_Key(name, labels), value if isinstance(value, (int, float)) else len(value))


def _histogram_samples(family: str, labels: tuple[str, ...], histogram: Histogram) -> Iterator[_Sample]:
    for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        yield _Sample(_Key(family, labels, bound), count)
    yield _Sample(_Key(family, labels), histogram.total)


def _counts_samples(labels: tuple[str, ...], counts: MessageCounts, *, is_total: bool = False) -> Iterator[_Sample]:
    for field in fields(counts):
        yield _Sample(_Key(f"consumer_messages_{field.name}", labels), getattr(counts, field.name), is_total)


class StatsCollector:
    """Collector of prometheus_client. Each scrape reads stats() of consumers and producers.

    Metrics of consumers begin with ``gnsq_consumer_`` and have the labels ``topic`` and ``channel``, some also ``nsqd``
    or ``state``. Consumers of the same topic and channel are added up, except for the gauges in _MAXIMA. Metrics of
    producers begin with ``gnsq_producer_`` and have no label except ``nsqd``; all producers are added up.

    Counters never fall. The counters of an nsqd stay when its connection is closed, and continue with its next
    connection. The counts of a connection between its last scrape and its close have the label ``nsqd="closed"``. So
    the counters of one nsqd may be a little too low, but the sum of all nsqds, "closed" included, is exact.

    Args:
        sources: Consumers and producers. add() adds others later.
    """

    def __init__(self, *sources: Source) -> None:
        # Counters at the last scrape, by source.
        self._seen: dict[Source, dict[_Key, float]] = {}
        self._totals: dict[_Key, float] = {}
        # A lock for threads: the server of prometheus_client calls collect() in a thread of its own.
        self._lock = threading.Lock()
        for source in sources:
            self.add(source)

    def add(self, source: Source) -> None:
        """Add a consumer or a producer, unless it was added before."""
        with self._lock:
            self._seen.setdefault(source, {})

    def remove(self, source: Source) -> None:
        """Remove a consumer or a producer, for example after its close. Its counters stay. Ignores unknown sources."""
        with self._lock:
            if source in self._seen:
                self._read(source, {})
                del self._seen[source]

    def describe(self) -> list[Any]:  # Any: families of prometheus_client, as in collect()
        """Return all metrics without values. prometheus_client calls this when the collector is registered."""
        return [family.make() for family in _FAMILIES.values()]

    def collect(self) -> list[Any]:
        """Read the statistics of all sources, and return the metrics with their values."""
        with self._lock:
            gauges: dict[_Key, float] = {}
            for source in self._seen:
                self._read(source, gauges)
            values = self._totals | gauges
        by_family: dict[str, dict[_Key, float]] = defaultdict(dict)
        for key, value in values.items():
            by_family[key.family][key] = value
        return [_filled(family, by_family[family.name]) for family in _FAMILIES.values() if family.name in by_family]

    def _read(self, source: Source, gauges: dict[_Key, float]) -> None:
        """Add the growth of a source's counters to the totals, and merge its gauges."""
        stats = source.stats()
        before = self._seen[source]
        now: dict[_Key, float] = {}
        samples = list(_consumer_samples(stats) if isinstance(stats, ConsumerStats) else _producer_samples(stats))
        # Growth of the total of each family with nsqds. The counters of its single nsqds together can't grow by more.
        left = {key.family: value - before.get(key, 0) for key, value, is_total in samples if is_total}
        for key, value, is_total in samples:
            family = _FAMILIES[key.family]
            if family.kind == "gauge":
                gauges[key] = family.merge(gauges[key], value) if key in gauges else value
                continue
            now[key] = value
            # A value that has fallen belongs to a new connection to the same nsqd. The new connection began at 0.
            growth = value - before.get(key, 0) if value >= before.get(key, 0) else value
            if key.family in left:
                growth = left[key.family] if is_total else min(growth, left[key.family])
                left[key.family] -= growth
            self._totals[key] = self._totals.get(key, 0) + growth
        # Closed connections are not in ``now``, so they are forgotten: the next connection to their nsqd begins at 0.
        self._seen[source] = now


def _filled(family: _Family, values: dict[_Key, float]) -> Any:
    metric = family.make()
    if family.kind != "histogram":
        for key, value in values.items():
            metric.add_metric(key.labels, value)
        return metric
    for key, total in values.items():
        if key.bucket is None:
            bounds = sorted(other.bucket for other in values if other.labels == key.labels and other.bucket is not None)
            counts = itertools.accumulate(values[key._replace(bucket=bound)] for bound in bounds)
            names = ["+Inf" if bound == math.inf else str(bound) for bound in bounds]
            metric.add_metric(key.labels, list(zip(names, counts, strict=True)), total)
    return metric
