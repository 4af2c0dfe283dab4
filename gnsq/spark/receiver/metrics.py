"""Metrics of a receiver for Prometheus: what /metrics answers beside /live."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from gnsq.consumer import Consumer
from gnsq.contrib.prometheus import StatsCollector
from gnsq.spark.receiver.receiver import Receiver

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError as error:
    raise ImportError("prometheus_client is not installed; it comes with: pip install 'gnsq[prometheus]'") from error

__all__ = ["METRICS", "ReceiverCollector", "application"]

# Name after gnsq_receiver_, kind, meaning, and attribute of Receiver. All have the label channel.
METRICS = [
    ("rows", "counter", "Messages that were written into the spool.", "rows"),
    ("segments", "counter", "Segments that were written into the spool.", "segments"),
    ("not_finished", "counter", "Messages that come again: their connection was lost before FIN.", "not_finished"),
    ("spool_bytes", "gauge", "Unread bytes of the spool, of all its receivers; partly an estimate.", "spool_bytes"),
    ("spool_limit_bytes", "gauge", "The spool is full with so many unread bytes.", "options.max_spool_bytes"),
    ("spool_full", "gauge", "1 while no messages are asked for, since the spool is full, else 0.", "is_spool_full"),
    ("spool_failing", "gauge", "1 while the receiver can't write into the spool, else 0.", "failing"),
]


class ReceiverCollector:
    """Collector of prometheus_client for one receiver, with the metrics of its consumers."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._consumers: set[Consumer] = set()
        self._stats = StatsCollector()

    def collect(self) -> list[Any]:  # Any: families of prometheus_client
        """Return all metrics with their values."""
        receiver = self._receiver
        families: list[Any] = []
        for name, kind, meaning, attribute in METRICS:
            make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = make(f"gnsq_receiver_{name}", meaning, labels=("channel",))
            family.add_metric((receiver.options.channel,), float(attrgetter(attribute)(receiver)))
            families.append(family)
        return families + self._consumer_families()

    def _consumer_families(self) -> list[Any]:
        # Topics and connections come and go.
        consumers = set(self._receiver.subscriptions.consumers)
        for consumer in consumers - self._consumers:
            self._stats.add(consumer)
        for consumer in self._consumers - consumers:
            self._stats.remove(consumer)
        self._consumers = consumers
        return self._stats.collect()


def application(receiver: Receiver) -> Any:  # Any: a WSGI application
    """Make the WSGI application that answers with the metrics of a receiver."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ReceiverCollector(receiver))
    return make_wsgi_app(registry)
