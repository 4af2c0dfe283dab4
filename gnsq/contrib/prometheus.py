"""StatsCollector: statistics of consumers and producers as metrics of Prometheus.

    from prometheus_client import REGISTRY, start_http_server

    REGISTRY.register(StatsCollector(consumer, producer))
    start_http_server(9100)

Owns what must not be forgotten between two scrapes, so that counters never fall. What one kind of statistics is in
metrics, a function in ``_SAMPLES`` says, which knows nothing of Prometheus.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

from gnsq.stats import ConsumerStats, Histogram, MessageCounts, ProducerStats

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError as error:
    raise ImportError("prometheus_client is not installed; it comes with: pip install gnsq[prometheus]") from error

__all__ = ["StatsCollector"]

# The nsqd of what connections did between the last scrape and their end.
CLOSED = "closed"

_CONSUMER = ("topic", "channel")
_CONNECTION = (*_CONSUMER, "nsqd")
_BACKOFF_STATES = ("off", "waiting", "probing")


class Source(Protocol):
    """Who has statistics: a Consumer or a Producer."""

    def stats(self) -> Any:  # Any: one of the classes in _SAMPLES
        """Tell them; called in any thread."""


@dataclass(frozen=True, slots=True)
class _Family:
    """A metric: its name behind ``gnsq_``, its labels, what it means."""

    kind: str
    name: str
    labels: tuple[str, ...]
    meaning: str
    # How gauges of several sources with the same labels make one.
    merge: Callable[[float, float], float] = operator.add

    def make(self) -> Any:  # Any: one of three classes of prometheus_client
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        return kinds[self.kind](f"gnsq_{self.name}", self.meaning, labels=self.labels)


class _Key(NamedTuple):
    """What has a value of its own: of a histogram each bucket, by its upper bound, and with None the sum."""

    family: str
    labels: tuple[str, ...]
    bucket: float | None = None


class _Sample(NamedTuple):
    """A value at this moment; as the rest, that of its whole family, with what the samples before it have taken off."""

    key: _Key
    value: float
    rest: bool = False


_COUNTS = {
    "received": "Messages delivered, each delivery counted.",
    "finished": "FIN sent.",
    "requeued": "REQ sent.",
    "touched": "TOUCH sent.",
    "timed_out": "Messages that nsqd took back before they were answered.",
}
_LATENCY = "consumer_message_latency_seconds"

_NSQD = ("nsqd",)
_OUTCOMES = {
    "confirmed": "Messages that nsqd has taken.",
    "refused": "Messages that nsqd has refused.",
    "not_sent": "Messages that nsqd has not got, as who published them was told.",
    "unknown": "Messages that were sent and had no answer in time: nsqd may have them.",
    "sent_again": "Messages sent another time.",
    "repeated": "Those of them that nsqd may have twice, with allow_duplicates.",
}
_PUBLISH_LATENCY = "producer_publish_latency_seconds"

_FAMILIES = {
    family.name: family
    for family in [
        *[_Family("counter", f"consumer_messages_{name}", _CONNECTION, text) for name, text in _COUNTS.items()],
        _Family("counter", "consumer_messages_given_up", _CONSUMER, "Messages delivered more often than max_tries."),
        _Family("counter", "consumer_handler_failures", _CONSUMER, "Handlers that raised."),
        _Family(
            "counter", "consumer_handlers_timed_out", _CONSUMER, "Messages that timed out while their handler ran."
        ),
        _Family(
            "counter", "consumer_async_timed_out", _CONSUMER, "Asynchronous messages that nobody answered in time."
        ),
        _Family("histogram", _LATENCY, _CONSUMER, "From a message's delivery to its answer."),
        _Family("gauge", "consumer_messages_in_flight", _CONNECTION, "Messages delivered and not yet answered."),
        _Family("gauge", "consumer_rdy", _CONNECTION, "RDY sent last."),
        _Family("gauge", "consumer_connections", _CONSUMER, "Connections that are open."),
        _Family("gauge", "consumer_unreachable_nsqds", _CONSUMER, "Known nsqds that have no connection."),
        _Family("gauge", "consumer_failing_lookupds", _CONSUMER, "nsqlookupds whose last answer could not be used."),
        _Family("gauge", "consumer_max_in_flight", _CONSUMER, "Messages that may be in flight."),
        _Family("gauge", "consumer_messages_waiting", _CONSUMER, "Messages in flight that no handler has yet."),
        _Family("gauge", "consumer_handlers_running", _CONSUMER, "Handlers that run."),
        _Family(
            "gauge", "consumer_handlers_overdue", _CONSUMER, "Handlers that run although their message has timed out."
        ),
        _Family("gauge", "consumer_backoff_state", (*_CONSUMER, "state"), "Consumers in this state of backoff."),
        _Family("gauge", "consumer_backoff_failures", _CONSUMER, "Failures in a row, less successes since.", max),
        _Family("gauge", "consumer_backoff_remaining_seconds", _CONSUMER, "Until a message is tried again.", max),
        *[_Family("counter", f"producer_messages_{name}", (), text) for name, text in _OUTCOMES.items()],
        _Family("histogram", _PUBLISH_LATENCY, (), "From publish() to nsqd's OK."),
        _Family("gauge", "producer_pending", (), "Publishes that have not ended."),
        _Family("gauge", "producer_pending_bytes", (), "Bytes of them."),
        _Family("gauge", "producer_connections", (), "Connections that are open."),
        _Family("gauge", "producer_stalled_connections", (), "Those that owe an answer for too long."),
        _Family("gauge", "producer_unreachable_nsqds", (), "Known nsqds that have no connection."),
        _Family("gauge", "producer_failing_lookupds", (), "nsqlookupds whose last answer could not be used."),
        _Family("counter", "producer_nsqd_messages_confirmed", _NSQD, "Messages that this nsqd has taken."),
        _Family("gauge", "producer_nsqd_pending", _NSQD, "Publishes that this nsqd has not answered."),
    ]
}


def _consumer_samples(stats: ConsumerStats) -> Iterator[_Sample]:
    own = (stats.topic, stats.channel)
    for connection in stats.connections:
        labels = (*own, connection.address)
        yield from _counts_samples(labels, connection.counts)
        yield _Sample(_Key("consumer_messages_in_flight", labels), connection.in_flight)
        yield _Sample(_Key("consumer_rdy", labels), connection.rdy)
    yield from _counts_samples((*own, CLOSED), stats.counts, rest=True)
    for name, value in {
        "messages_given_up": stats.given_up,
        "handler_failures": stats.failed,
        "handlers_timed_out": stats.handlers_timed_out,
        "async_timed_out": stats.async_timed_out,
        "handlers_overdue": stats.handlers_overdue,
        "connections": len(stats.connections),
        "unreachable_nsqds": len(stats.failures),
        "failing_lookupds": len(stats.lookupd_failures),
        "max_in_flight": stats.max_in_flight,
        "messages_waiting": stats.waiting,
        "handlers_running": stats.handling,
        "backoff_failures": stats.backoff_failures,
        "backoff_remaining_seconds": stats.backoff_remaining,
    }.items():
        yield _Sample(_Key(f"consumer_{name}", own), value)
    for state in _BACKOFF_STATES:
        yield _Sample(_Key("consumer_backoff_state", (*own, state)), state == stats.backoff)
    yield from _histogram_samples(_LATENCY, own, stats.latency)


def _histogram_samples(family: str, labels: tuple[str, ...], histogram: Histogram) -> Iterator[_Sample]:
    for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        yield _Sample(_Key(family, labels, bound), count)
    yield _Sample(_Key(family, labels), histogram.total)


def _counts_samples(labels: tuple[str, ...], counts: MessageCounts, *, rest: bool = False) -> Iterator[_Sample]:
    for one in fields(counts):
        yield _Sample(_Key(f"consumer_messages_{one.name}", labels), getattr(counts, one.name), rest)


def _producer_samples(stats: ProducerStats) -> Iterator[_Sample]:
    for name in _OUTCOMES:
        yield _Sample(_Key(f"producer_messages_{name}", ()), getattr(stats, name))
    for name, value in {
        "pending": stats.pending,
        "pending_bytes": stats.pending_bytes,
        "connections": len(stats.connections),
        "stalled_connections": sum(connection.stalled for connection in stats.connections),
        "unreachable_nsqds": len(stats.failures),
        "failing_lookupds": len(stats.lookupd_failures),
    }.items():
        yield _Sample(_Key(f"producer_{name}", ()), value)
    yield from _histogram_samples(_PUBLISH_LATENCY, (), stats.latency)
    confirmed: dict[str, int] = defaultdict(int)
    for connection in stats.connections:
        # Several may lead to one nsqd.
        confirmed[connection.address] += connection.confirmed
        yield _Sample(_Key("producer_nsqd_pending", (connection.address,)), connection.pending)
    for address, count in confirmed.items():
        yield _Sample(_Key("producer_nsqd_messages_confirmed", (address,)), count)
    yield _Sample(_Key("producer_nsqd_messages_confirmed", (CLOSED,)), stats.confirmed, rest=True)


_SAMPLES: dict[type, Callable[[Any], Iterator[_Sample]]] = {
    ConsumerStats: _consumer_samples,
    ProducerStats: _producer_samples,
}


class StatsCollector:
    """A collector for a registry of prometheus_client, over consumers and producers; each scrape reads their stats().

    Consumers' metrics begin with ``gnsq_consumer_`` and have the labels ``topic`` and ``channel``; what is known of
    each nsqd has ``nsqd``, too. Consumers of the same topic and channel are added up. Producers' begin with
    ``gnsq_producer_`` and have no label but ``nsqd``; all producers are added up.

    Counters never fall. Those of an nsqd stay when its connection ends, and go on with the next one. What a connection
    did between the last scrape and its end counts under the nsqd ``closed``. So each nsqd may be a little short, and
    the sum over all is exact.

    Args:
        sources: Consumers and producers, to begin with.
    """

    def __init__(self, *sources: Source) -> None:
        # What counters were at the last scrape, by source.
        self._seen: dict[Source, dict[_Key, float]] = {}
        self._totals: dict[_Key, float] = {}
        # Of threads: Prometheus' server asks on its own.
        self._lock = threading.Lock()
        for source in sources:
            self.add(source)

    def add(self, source: Source) -> None:
        """Show a consumer's or producer's statistics from now on; no-op if that is done."""
        with self._lock:
            self._seen.setdefault(source, {})

    def remove(self, source: Source) -> None:
        """Forget one of them, such as one that was closed. Its counters stay as they are now; no-op if unknown."""
        with self._lock:
            if source in self._seen:
                self._read(source, {})
                del self._seen[source]

    def describe(self) -> list[Any]:  # Any: families of prometheus_client, as in collect()
        """List the metrics, without values."""
        return [family.make() for family in _FAMILIES.values()]

    def collect(self) -> list[Any]:
        """Read the statistics."""
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
        """Add what a source's counters have grown by to the totals, and its gauges to the others'."""
        stats = source.stats()
        before = self._seen[source]
        now: dict[_Key, float] = {}
        samples = list(_SAMPLES[type(stats)](stats))
        # By how much all of a family has grown: its parts can't have more, whatever connections came and went.
        left = {key.family: value - before.get(key, 0) for key, value, rest in samples if rest}
        for key, value, rest in samples:
            family = _FAMILIES[key.family]
            if family.kind == "gauge":
                gauges[key] = family.merge(gauges[key], value) if key in gauges else value
                continue
            now[key] = value
            # Less than before: another connection to the same nsqd, which began at 0.
            growth = value - before.get(key, 0) if value >= before.get(key, 0) else value
            if key.family in left:
                growth = left[key.family] if rest else min(growth, left[key.family])
                left[key.family] -= growth
            self._totals[key] = self._totals.get(key, 0) + growth
        # Without the connections that are gone: the next one to the same nsqd begins at 0.
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
