"""Metrics of Prometheus: StatsCollector has those of consumers and producers, NsqdCollector those of nsqds.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

from gevent.pool import Group

from gnsq.addresses import Addresses, format_address
from gnsq.concurrency.hub_thread import HubThread
from gnsq.discovery import AllNodes, parse_lookupds
from gnsq.errors import NSQHttpError
from gnsq.httpclient import HttpOptionsDict
from gnsq.nsqd import NsqdHTTPClient
from gnsq.protocol.names import checked_names
from gnsq.stats import ConsumerStats, Histogram, MessageCounts, ProducerStats

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError as error:
    raise ImportError("prometheus_client is not installed; it comes with: pip install gnsq[prometheus]") from error

__all__ = ["NsqdCollector", "StatsCollector"]

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
        ("counter", "messages_retried", "Messages sent again.", "retried"),
        (
            "counter",
            "messages_possibly_duplicated",
            "Messages sent again that nsqd may have twice.",
            "possibly_duplicated",
        ),
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


# --- nsqds

# Seconds. By default Prometheus waits 10 s for a scrape, which may ask an nsqlookupd and then the nsqds.
NSQD_TIMEOUT = 4.0

# Metrics of an nsqd, of its topics and of their channels: kind, name, meaning, key of the statistics.
_NSQD: _Table = {
    "nsqd": [("gauge", "up", "1 if the nsqd answers.", None)],
    "topic": [
        ("gauge", "topic_depth", "Messages of a topic that no channel has yet.", "depth"),
        ("counter", "topic_messages", "Messages that were published to a topic.", "message_count"),
        ("gauge", "topic_paused", "1 if the topic is paused.", "paused"),
    ],
    "channel": [
        ("gauge", "channel_depth", "Messages of a channel that wait for a consumer.", "depth"),
        ("gauge", "channel_in_flight", "Messages that were delivered and not answered.", "in_flight_count"),
        ("gauge", "channel_deferred", "Messages that wait for their time.", "deferred_count"),
        ("counter", "channel_messages", "Messages that came into a channel.", "message_count"),
        ("counter", "channel_requeued", "Messages that consumers have requeued.", "requeue_count"),
        ("counter", "channel_timed_out", "Messages that timed out.", "timeout_count"),
        ("gauge", "channel_clients", "Consumers of a channel.", None),
        ("gauge", "channel_paused", "1 if the channel is paused.", "paused"),
    ],
}
_NSQD_LABELS = {"nsqd": ("nsqd",), "topic": ("nsqd", "topic"), "channel": ("nsqd", "topic", "channel")}
_NSQD_FAMILIES = {
    name: _Family(kind, f"nsqd_{name}", _NSQD_LABELS[level], meaning, key)
    for level, table in _NSQD.items()
    for kind, name, meaning, key in table
} | {"lookupd_up": _Family("gauge", "nsqlookupd_up", ("nsqlookupd",), "1 if the nsqlookupd answers.")}


class NsqdCollector:
    """Collector of prometheus_client: statistics of nsqds, such as the depth of each channel.

    Only nsqd knows how many messages wait. One program with this collector is enough for all nsqds. Each scrape asks
    all of them at the same time, on a thread of the collector. A server that does not answer has ``gnsq_nsqd_up`` 0, or
    ``gnsq_nsqlookupd_up`` 0, and no other metrics.

    All metrics but gnsq_nsqlookupd_up begin with ``gnsq_nsqd_`` and have the label ``nsqd``, the address of its HTTP
    port; those of topics and channels also have ``topic`` and ``channel``. Ephemeral topics and channels, whose names
    may be random, are left out.

    Args:
        nsqd_http_addresses: URL or ``host[:port]`` of an nsqd, or a list or tuple of them.
        lookupd_http_addresses: URL or ``host[:port]`` of an nsqlookupd, or a list or tuple of them: for all nsqds that
            they know.
        http_options: Options of HttpOptions, for all requests. The default of ``timeout`` is 4 s.

    Raises:
        ValueError: If no address is given, or an address or option is not valid.
        TypeError: If an address or option has the wrong type.
    """

    def __init__(
        self,
        nsqd_http_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        http_options: HttpOptionsDict | None = None,
    ) -> None:
        self._options: HttpOptionsDict = {"timeout": NSQD_TIMEOUT, **(http_options or {})}
        lookupds = parse_lookupds(lookupd_http_addresses, self._options)
        addresses = [nsqd_http_addresses] if isinstance(nsqd_http_addresses, str) else nsqd_http_addresses
        self._given = [NsqdHTTPClient.from_url(address, **self._options) for address in addresses]
        if not self._given and not lookupds:
            raise ValueError("NsqdCollector has no address: give nsqd_http_addresses or lookupd_http_addresses")
        self._lookupds = lookupds
        self._nodes = AllNodes(lookupds, port="http_port")
        # Clients of the nsqds that nsqlookupds name, by address.
        self._found: dict[str, NsqdHTTPClient] = {}
        self._thread = HubThread("gnsq-nsqd-collector")

    def close(self) -> None:
        """End the thread. The collector must not be used any more."""
        self._thread.stop()

    def describe(self) -> list[Any]:  # Any: families of prometheus_client, as in collect()
        """Return all metrics without values. prometheus_client calls this when the collector is registered."""
        return [family.make() for family in _NSQD_FAMILIES.values()]

    def collect(self) -> list[Any]:
        """Ask all servers, and return the metrics with their values."""
        return self._thread.call(self._collect)

    def _collect(self) -> list[Any]:
        families = {name: family.make() for name, family in _NSQD_FAMILIES.items()}
        self._find_nsqds()
        for lookupd in self._lookupds:
            is_up = lookupd.address not in self._nodes.report.failures
            families["lookupd_up"].add_metric((format_address(lookupd.host, lookupd.port),), is_up)
        nsqds = {format_address(client.host, client.port): client for client in (*self._given, *self._found.values())}
        answers = Group().map(_samples_of, nsqds.values())
        for address, samples in zip(nsqds, answers, strict=True):
            families["up"].add_metric((address,), samples is not None)
            for name, labels, value in samples or ():
                families[name].add_metric((address, *labels), value)
        return list(families.values())

    def _find_nsqds(self) -> None:
        new, gone = self._nodes.refresh()
        for address in new:
            self._found[address] = NsqdHTTPClient.from_url(address, **self._options)
        for address in gone:
            self._found.pop(address).close()


# Name of a metric, its labels after that of the nsqd, and its value.
_NsqdSample = tuple[str, tuple[str, ...], float]


def _samples_of(client: NsqdHTTPClient) -> list[_NsqdSample] | None:
    """Return the values of an nsqd's topics and channels; None if it does not answer, or another server does."""
    try:
        topics = client.stats(include_clients=False, include_mem=False)["topics"] or []
        return [sample for topic in topics for sample in _topic_samples(topic)]
    except (NSQHttpError, AttributeError, KeyError, TypeError, ValueError):  # the server may send any JSON
        return None


def _topic_samples(topic: Mapping[str, Any]) -> Iterator[_NsqdSample]:  # Any: JSON
    (name,) = checked_names([topic["topic_name"]], "topic")
    if name.endswith("#ephemeral"):
        return
    yield from _level_samples("topic", (name,), topic)
    for channel in topic["channels"] or ():
        (channel_name,) = checked_names([channel["channel_name"]], "channel")
        if not channel_name.endswith("#ephemeral"):
            labels = (name, channel_name)
            yield from _level_samples("channel", labels, channel)
            # nsqd before 1.2 has no client_count, and sends the list of clients in any case.
            yield "channel_clients", labels, float(channel.get("client_count", len(channel.get("clients") or ())))


def _level_samples(level: str, labels: tuple[str, ...], statistics: Mapping[str, Any]) -> Iterator[_NsqdSample]:
    # Any: JSON
    for _, name, _, key in _NSQD[level]:
        # Old servers do not send all keys.
        if key is not None and key in statistics:
            yield name, labels, float(statistics[key])
