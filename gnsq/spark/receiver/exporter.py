"""Metrics of a receiver for Prometheus: what /metrics answers beside /live."""

from __future__ import annotations

from typing import Any

from gnsq.consumer import Consumer
from gnsq.contrib.prometheus import StatsCollector, collected, families
from gnsq.spark.receiver.receiver import Receiver
from gnsq.stats import counter, gauge

__all__ = ["FAMILIES", "ReceiverCollector"]

# By the attributes of Receiver.
METRICS = {
    "rows": counter("rows", "Messages that were written into the spool."),
    "segments": counter("segments", "Segments that were written into the spool."),
    "not_finished": counter("not_finished", "Messages that come again: their connection was lost before FIN."),
    "spool_bytes": gauge("spool_bytes", "Unread bytes of the spool, of all its receivers; partly an estimate."),
    "options.max_spool_bytes": gauge("spool_limit_bytes", "The spool is full with so many unread bytes."),
    "is_spool_full": gauge("spool_full", "1 while no messages are asked for, since the spool is full, else 0."),
    "failing": gauge("spool_failing", "1 while the receiver can't write into the spool, else 0."),
}
FAMILIES = families(METRICS, "receiver", "channel")


class ReceiverCollector:
    """Collector of prometheus_client for one receiver, with the metrics of its consumers."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._consumers: set[Consumer] = set()
        self._stats = StatsCollector()

    def collect(self) -> list[Any]:  # Any: families of prometheus_client
        """Return all metrics with their values."""
        return collected(FAMILIES, {(self._receiver.options.channel,): self._receiver}) + self._consumer_families()

    def _consumer_families(self) -> list[Any]:
        # Topics and connections come and go.
        consumers = set(self._receiver.subscriptions.consumers)
        for consumer in consumers - self._consumers:
            self._stats.add(consumer)
        for consumer in self._consumers - consumers:
            self._stats.remove(consumer)
        self._consumers = consumers
        return self._stats.collect()
