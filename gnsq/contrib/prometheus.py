"""Metrics of Prometheus: StatsCollector has those of consumers and producers, NsqdCollector those of nsqds.

    from prometheus_client import REGISTRY, start_http_server

    REGISTRY.register(StatsCollector(consumer, producer))
    start_http_server(9100)

The metrics of consumers and producers are declared with the fields of gnsq.stats.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol
from urllib.parse import urlsplit

from gnsq.addresses import Addresses
from gnsq.backofftimer import BackoffPhase
from gnsq.census import Census
from gnsq.concurrency.hub_thread import HubThread
from gnsq.httpclient import HttpOptionsDict
from gnsq.protocol.names import is_ephemeral
from gnsq.stats import (
    ConnectionStats,
    ConsumerStats,
    Histogram,
    MessageCounts,
    Metric,
    NsqdChannelStats,
    NsqdTopicStats,
    ProducerConnectionStats,
    ProducerStats,
    metrics_of,
)

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError as error:
    raise ImportError("prometheus_client is not installed; it comes with: pip install gnsq[prometheus]") from error

__all__ = ["NsqdCollector", "StatsCollector"]


class Source(Protocol):
    """A Consumer or a Producer."""

    def stats(self) -> Any:  # Any: ConsumerStats or ProducerStats
        """Return the statistics of the source; called in any thread."""


@dataclass(frozen=True, slots=True)
class _Family:
    """A metric, whose name begins with ``gnsq_``."""

    kind: str
    name: str
    labels: tuple[str, ...]
    meaning: str
    is_maximum: bool = False

    def make(self) -> Any:  # Any: one of three classes of prometheus_client
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        return kinds[self.kind](f"gnsq_{self.name}", self.meaning, labels=self.labels)


def families(metrics: Mapping[str, Metric], side: str, *labels: str) -> dict[str, _Family]:
    """Return the metrics of a side by the names of their attributes."""
    return {
        name: _Family(
            metric.kind,
            f"{side}_{metric.name}",
            (*labels, metric.label) if metric.label else labels,
            metric.meaning,
            metric.is_maximum,
        )
        for name, metric in metrics.items()
    }


def collected(known: Mapping[str, _Family], records: Mapping[tuple[str, ...], object]) -> list[Any]:
    """Return metrics of prometheus_client with the values of records, which are by their labels. A value that is None
    is not shown. The name of an attribute may have dots."""
    metrics = {name: family.make() for name, family in known.items()}
    for labels, record in records.items():
        for name, metric in metrics.items():
            if (value := attrgetter(name)(record)) is not None:
                metric.add_metric(labels, float(value))
    return list(metrics.values())


def metrics_page(collector: Any) -> Callable[[], tuple[str, str, bytes]]:  # Any: it has no base class
    """Return the function of a page of gnsq.contrib.health that answers with the metrics of a collector."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return lambda: ("200 OK", CONTENT_TYPE_LATEST, generate_latest(registry))


_FIELDS: dict[type, dict[str, _Family]] = {
    ConsumerStats: families(metrics_of(ConsumerStats), "consumer", "topic", "channel"),
    ConnectionStats: families(metrics_of(ConnectionStats), "consumer", "topic", "channel", "nsqd"),
    MessageCounts: families(metrics_of(MessageCounts), "consumer", "topic", "channel", "nsqd"),
    ProducerStats: families(metrics_of(ProducerStats), "producer"),
    ProducerConnectionStats: families(metrics_of(ProducerConnectionStats), "producer", "nsqd"),
}
_FAMILIES = {family.name: family for fields in _FIELDS.values() for family in fields.values()}

# Values of metrics, by the name of the metric and its labels.
_Values = dict[str, dict[tuple[str, ...], Any]]  # Any: float or Histogram


def _add(values: _Values, stats: ConsumerStats | ProducerStats, *, gauges: bool = True) -> None:
    """Add the statistics of a consumer or producer to values."""
    if isinstance(stats, ConsumerStats):
        own: tuple[str, ...] = (stats.topic, stats.channel)
        parts: list[tuple[str, object]] = [*stats.counts_by_nsqd.items()]
    else:
        own, parts = (), []
    parts += [(connection.address, connection) for connection in stats.connections]
    _add_fields(values, stats, own, gauges)
    for address, part in parts:
        _add_fields(values, part, (*own, address), gauges)


def _add_fields(values: _Values, stats: object, labels: tuple[str, ...], gauges: bool) -> None:
    for name, family in _FIELDS[type(stats)].items():
        if family.kind == "gauge" and not gauges:
            continue
        value = getattr(stats, name)
        if isinstance(value, str):
            value = {phase.value: phase.value == value for phase in BackoffPhase}
        if len(family.labels) == len(labels):
            value = {"": value if isinstance(value, (int, float, Histogram)) else len(value)}
        known = values.setdefault(family.name, {})
        for key, each in value.items():
            all_labels = (*labels, key)[: len(family.labels)]
            if all_labels in known:
                each = max(known[all_labels], each) if family.is_maximum else known[all_labels] + each
            known[all_labels] = each


class StatsCollector:
    """Collector of prometheus_client. Each scrape reads stats() of consumers and producers.

    Metrics of consumers begin with ``gnsq_consumer_`` and have the labels ``topic`` and ``channel``, some also ``nsqd``
    or ``state``. Consumers of the same topic and channel are added up; of the failures and the remaining time of
    backoff, the largest value is shown. Metrics of producers begin with ``gnsq_producer_`` and have no label except
    ``nsqd``; all producers are added up. Counters never fall, also if connections close or a source is removed.

    Args:
        sources: Consumers and producers. add() adds others later.
    """

    def __init__(self, *sources: Source) -> None:
        self._sources = dict.fromkeys(sources)
        # Counters of removed sources.
        self._removed: _Values = {}
        # A lock for threads: the server of prometheus_client calls collect() in a thread of its own.
        self._lock = threading.Lock()

    def add(self, source: Source) -> None:
        """Add a consumer or a producer, unless it was added before."""
        with self._lock:
            self._sources[source] = None

    def remove(self, source: Source) -> None:
        """Remove a consumer or a producer, for example after its close. Its counters stay. Ignores unknown sources."""
        with self._lock:
            if source in self._sources:
                del self._sources[source]
                _add(self._removed, source.stats(), gauges=False)

    def describe(self) -> list[Any]:  # Any: families of prometheus_client, as in collect()
        """Return all metrics without values. prometheus_client calls this when the collector is registered."""
        return [family.make() for family in _FAMILIES.values()]

    def collect(self) -> list[Any]:
        """Read the statistics of all sources, and return the metrics with their values."""
        with self._lock:
            values = {name: dict(known) for name, known in self._removed.items()}
            for source in self._sources:
                _add(values, source.stats())
        return [_filled(family, values[name]) for name, family in _FAMILIES.items() if name in values]


def _filled(family: _Family, values: dict[tuple[str, ...], Any]) -> Any:  # Any: float or Histogram; as in collect()
    metric = family.make()
    for labels, value in values.items():
        if isinstance(value, Histogram):
            names = [*map(str, value.bounds), "+Inf"]
            metric.add_metric(labels, list(zip(names, itertools.accumulate(value.counts), strict=True)), value.total)
        else:
            metric.add_metric(labels, value)
    return metric


# --- nsqds

# Seconds. By default Prometheus waits 10 s for a scrape, which may ask an nsqlookupd and then the nsqds.
NSQD_TIMEOUT = 4.0

# Of topics, and of channels.
_NSQD = (
    families(metrics_of(NsqdTopicStats), "nsqd", "nsqd", "topic"),
    families(metrics_of(NsqdChannelStats), "nsqd", "nsqd", "topic", "channel"),
)
_UP = _Family("gauge", "nsqd_up", ("nsqd",), "1 if the nsqd answers.")
_LOOKUPD_UP = _Family("gauge", "nsqlookupd_up", ("nsqlookupd",), "1 if the nsqlookupd answers.")
_NSQD_FAMILIES = [_UP, _LOOKUPD_UP, *(family for level in _NSQD for family in level.values())]


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
        addresses = [nsqd_http_addresses] if isinstance(nsqd_http_addresses, str) else nsqd_http_addresses
        self._census = Census(addresses, lookupd_http_addresses, {"timeout": NSQD_TIMEOUT, **(http_options or {})})
        if not self._census.lookupds and not addresses:
            raise ValueError("NsqdCollector has no address: give nsqd_http_addresses or lookupd_http_addresses")
        self._thread = HubThread("gnsq-nsqd-collector")

    def close(self) -> None:
        """End the thread. The collector must not be used any more."""
        self._thread.stop()

    def describe(self) -> list[Any]:  # Any: families of prometheus_client, as in collect()
        """Return all metrics without values. prometheus_client calls this when the collector is registered."""
        return [family.make() for family in _NSQD_FAMILIES]

    def collect(self) -> list[Any]:
        """Ask all servers, and return the metrics with their values."""
        return self._thread.call(self._collect)

    def _collect(self) -> list[Any]:
        metrics = {family: family.make() for family in _NSQD_FAMILIES}
        polled = self._census.poll()
        for address, error in polled.lookupds.items():
            metrics[_LOOKUPD_UP].add_metric((_host_and_port(address),), not error)
        for node in polled.nodes:
            metrics[_UP].add_metric((_host_and_port(node.address),), node.stats is not None)
        for node in polled.reached:
            for names, counts in node.counts.items():
                if any(map(is_ephemeral, names)):
                    continue
                labels = (_host_and_port(node.address), *filter(None, names))
                for key, family in _NSQD[bool(names[1])].items():
                    if counts[key] is not None:
                        metrics[family].add_metric(labels, counts[key])
        return list(metrics.values())


def _host_and_port(url: str) -> str:
    """Return the value of a label: host and port, and the path if several nsqds are behind one proxy."""
    parts = urlsplit(url)
    return parts.netloc + parts.path.rstrip("/")
