"""Metrics of a receiver, or of all receivers of a supervisor, for Prometheus: what /metrics answers beside /live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnsq.consumer import Consumer
from gnsq.contrib.prometheus import StatsCollector
from gnsq.spark.receiver.receiver import Receiver
from gnsq.spark.receiver.supervisor import Supervisor

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    raise ImportError("prometheus_client is not installed; it comes with: pip install 'gnsq[prometheus]'") from error

__all__ = ["METRICS", "SUPERVISOR_METRICS", "ReceiverCollector", "SupervisorCollector", "application", "merged"]

# Name after gnsq_receiver_, kind and meaning. All have the label channel.
METRICS = [
    ("rows", "counter", "Messages that were written into the spool."),
    ("segments", "counter", "Segments that were written into the spool."),
    ("not_finished", "counter", "Messages in the spool whose connection was lost before FIN: they come again."),
    ("spool_bytes", "gauge", "Unread bytes of the spool, of all its receivers; partly an estimate."),
    ("spool_limit_bytes", "gauge", "The spool is full with so many unread bytes: max-spool-bytes."),
    ("spool_full", "gauge", "1 while the receiver asks for no messages, since the spool is full, else 0."),
    ("spool_failing", "gauge", "1 while the receiver can't write into the spool, else 0."),
]
# The same for a supervisor's own metrics. They have the label receiver: a number from 1.
SUPERVISOR_METRICS = [
    ("up", "gauge", "1 if the receiver answers, else 0: then it has no other metrics."),
    ("restarts", "counter", "Starts of the receiver after its first one."),
]


def _family(name: str, kind: str, meaning: str, label: str) -> Any:  # Any: a class of prometheus_client
    make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return make(f"gnsq_receiver_{name}", meaning, labels=(label,))


class ReceiverCollector:
    """Collector of prometheus_client for one receiver, with the metrics of its consumers."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._consumers: set[Consumer] = set()
        self._stats = StatsCollector()

    def collect(self) -> list[Any]:  # Any: families of prometheus_client
        """Return all metrics with their values."""
        receiver = self._receiver
        values = {
            "rows": receiver.rows,
            "segments": receiver.segments,
            "not_finished": receiver.not_finished,
            "spool_bytes": receiver.spool_bytes,
            "spool_limit_bytes": receiver.options.max_spool_bytes,
            "spool_full": receiver.is_spool_full,
            "spool_failing": receiver.failing,
        }
        families = []
        for name, kind, meaning in METRICS:
            family = _family(name, kind, meaning, "channel")
            family.add_metric((receiver.options.channel,), float(values[name]))
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


class SupervisorCollector:
    """Collector of prometheus_client for a supervisor: the metrics of its receivers, with the label receiver."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> list[Any]:  # Any: families of prometheus_client
        """Ask all receivers; return their metrics and those of the supervisor."""
        return merged(self._supervisor.answers("/metrics"), self._supervisor.restarts)


def merged(answers: Mapping[int, str], restarts: Mapping[int, int]) -> list[Any]:  # Any: families of prometheus_client
    """Merge the metrics of several receivers, and add those of their supervisor.

    Args:
        answers: What each receiver that answers has at /metrics, by its number.
        restarts: How often each receiver was started again, by the numbers of all.
    """
    values = {"up": dict.fromkeys(restarts, 0) | dict.fromkeys(answers, 1), "restarts": restarts}
    families: dict[str, Any] = {}
    for name, kind, meaning in SUPERVISOR_METRICS:
        families[name] = _family(name, kind, meaning, "receiver")
        for number, value in values[name].items():
            families[name].add_metric((str(number),), value)
    for number, text in answers.items():
        for found in text_string_to_metric_families(text):
            if found.name not in families:
                families[found.name] = Metric(found.name, found.documentation, found.type)
            for sample in found.samples:
                labels = {"receiver": str(number), **sample.labels}
                families[found.name].samples.append(sample._replace(labels=labels))
    return list(families.values())


def application(source: Receiver | Supervisor) -> Any:  # Any: a WSGI application
    """Make the WSGI application that answers with the metrics of a receiver or of all receivers of a supervisor."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ReceiverCollector(source) if isinstance(source, Receiver) else SupervisorCollector(source))
    return make_wsgi_app(registry)
