"""Exporter: the progress of the queries as metrics of Prometheus, and the HTTP server for them. Knows no Spark."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gnsq.addresses import format_address, parse_address
from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.report import Batch

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError as error:
    raise ImportError("prometheus_client is not installed; it comes with: pip install 'gnsq[prometheus]'") from error

__all__ = ["METRICS", "PipelineCollector", "serving", "updated"]

# Name after gnsq_pipeline_, kind and meaning. All have the label query.
METRICS = [
    ("rows", "counter", "Messages that the query has read, in committed batches."),
    ("batches", "counter", "Committed batches with rows."),
    ("duplicates", "counter", "Messages that were left out as duplicates."),
    ("malformed", "counter", "Malformed messages; those of the query archive are the dead letters."),
    ("late", "counter", "Windows and keys that were left out, since they were later than keep_windows."),
    ("rows_per_second", "gauge", "Rows per second of the last batch; 0 while there is nothing to read."),
    ("last_batch_seconds", "gauge", "How long the last batch with rows took."),
    ("messages_waiting", "gauge", "Messages that wait, or are in flight, at nsqd. Missing if unknown."),
    ("messages_spooled", "gauge", "Messages in the spool that no committed batch has. Missing if unknown."),
    ("lag_seconds", "gauge", "From the newest message's publishing to the end of its batch; 0 if all is read."),
    ("state_rows", "gauge", "Rows of the query's state."),
    ("state_bytes", "gauge", "Bytes of the query's state, on disk and in memory."),
    ("last_progress_timestamp_seconds", "gauge", "Unix time of the last progress; at first, of the start."),
    ("trouble", "gauge", "1 while something keeps messages from being received, else 0."),
]
_COUNTERS = [name for name, kind, _ in METRICS if kind == "counter"]


def updated(values: Mapping[str, float], batch: Batch, now: float) -> dict[str, float]:
    """Return the values of a query's metrics after a progress.

    Args:
        values: The values before, by names as in METRICS. A metric without a value is not shown.
        batch: A batch, or without rows the progress of an idle query.
        now: Unix time.
    """
    after = dict(values)
    after["last_progress_timestamp_seconds"] = now
    after["rows_per_second"] = batch.rows / batch.seconds if batch.seconds else 0.0
    after["trouble"] = float(bool(batch.trouble))
    after["state_rows"], after["state_bytes"] = batch.state_rows, batch.state_bytes
    if batch.rows:
        grown = (batch.rows, 1, batch.duplicates, batch.malformed, batch.dropped)
        for name, number in zip(_COUNTERS, grown, strict=True):
            after[name] += number
        after["last_batch_seconds"] = batch.seconds
    known: dict[str, float | None] = {"messages_waiting": batch.waiting, "messages_spooled": batch.spooled}
    if batch.rows:
        known["lag_seconds"] = batch.lag
    elif "lag_seconds" in values and not (batch.waiting or batch.spooled or batch.trouble):
        known["lag_seconds"] = 0.0
    for name, value in known.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = value
    return after


class PipelineCollector:
    """Collector of prometheus_client. One thread calls record(), any threads call collect().

    Args:
        queries: Names of all queries.
        now: Returns the Unix time.
    """

    def __init__(self, queries: Iterable[str], now: Callable[[], float] = time.time) -> None:
        self._now = now
        first = {**dict.fromkeys(_COUNTERS, 0.0), "trouble": 0.0, "last_progress_timestamp_seconds": now()}
        self._values: dict[str, dict[str, float]] = dict.fromkeys(queries, first)

    def record(self, batch: Batch) -> None:
        """Take the progress of a query, also that of an idle one."""
        # The dict of values is replaced, so that a thread that collects sees values of one progress.
        self._values[batch.query] = updated(self._values[batch.query], batch, self._now())

    def collect(self) -> list[Any]:  # Any: families of prometheus_client
        """Return all metrics with their values."""
        found = dict(self._values)
        families = []
        for name, kind, meaning in METRICS:
            make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = make(f"gnsq_pipeline_{name}", meaning, labels=("query",))
            for query, values in found.items():
                if name in values:
                    family.add_metric((query,), values[name])
            families.append(family)
        return families


@contextlib.contextmanager
def serving(address: str, collector: PipelineCollector) -> Iterator[str]:
    """Answer GET /metrics at an address, in threads, during the block. Yield the URL.

    Raises:
        JobFailed: If the address can't be used.
    """
    host, port = parse_address(address, 0)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise JobFailed(
            f"setting metrics_address {address}: {error.strerror}: give a free address of this machine"
        ) from error
    try:
        yield f"http://{format_address(host, server.server_port)}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
