"""Exporter: the records of the queries as metrics of Prometheus, and the HTTP server for them. Knows no Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

from gnsq.addresses import format_address, parse_address
from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.status import QueryStatus
from gnsq.texts import reason_of

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError as error:
    raise ImportError("prometheus_client is not installed; it comes with: pip install 'gnsq[prometheus]'") from error

__all__ = ["METRICS", "PipelineCollector", "serving"]

# Name after gnsq_pipeline_, kind, meaning, and attribute of QueryStatus; None as its value: not shown. All have the
# label query.
METRICS = [
    ("rows", "counter", "Messages that the query has read, in committed batches.", "total.rows"),
    ("batches", "counter", "Committed batches with rows.", "batches"),
    ("entered", "counter", "Events that reached the table or the aggregation.", "total.entered"),
    ("malformed", "counter", "Events that do not fit; those of a table are its dead letters.", "total.malformed"),
    ("rescued", "counter", "Events of which some values did not fit and are in _rescued.", "total.rescued"),
    ("duplicates", "counter", "Messages that were left out as duplicates.", "total.duplicates"),
    ("late", "counter", "Windows and keys that were left out, since they were later than keep_windows.", "total.late"),
    ("restarts", "counter", "How often the query was started again after it had failed.", "restarts"),
    ("running", "gauge", "1 while the query runs, 0 while it waits to be started again.", "is_running"),
    ("rows_per_second", "gauge", "Rows per second of the last batch; 0 while there is nothing to read.", "rate"),
    ("last_batch_seconds", "gauge", "How long the last batch with rows took.", "seconds"),
    ("messages_waiting", "gauge", "Messages that wait, or are in flight, at nsqd. Missing if unknown.", "waiting"),
    ("messages_spooled", "gauge", "Messages in the spool that no committed batch has. Missing if unknown.", "spooled"),
    ("lag_seconds", "gauge", "From the newest message's publishing to the end of its batch; 0 if all is read.", "lag"),
    ("state_rows", "gauge", "Rows of the query's state.", "state_rows"),
    ("state_bytes", "gauge", "Bytes of the query's state, on disk and in memory.", "state_bytes"),
    (
        *("last_progress_timestamp_seconds", "gauge", "Unix time of the last progress; at first, of the start."),
        "progress_at",
    ),
    ("trouble", "gauge", "1 while the query fails, or something keeps messages from it, else 0.", "has_trouble"),
]


class PipelineCollector:
    """Collector of prometheus_client. Any threads call collect().

    Args:
        records: Returns the present records of all queries.
    """

    def __init__(self, records: Callable[[], Iterable[QueryStatus]]) -> None:
        self._records = records

    def collect(self) -> list[Any]:  # Any: families of prometheus_client
        """Return all metrics with their values."""
        records = list(self._records())
        families = []
        for name, kind, meaning, attribute in METRICS:
            make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = make(f"gnsq_pipeline_{name}", meaning, labels=("query",))
            for record in records:
                if (value := attrgetter(attribute)(record)) is not None:
                    family.add_metric((record.name,), float(value))
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
            f"setting metrics_address {address}: {reason_of(error)}: give a free address of this machine"
        ) from error
    try:
        yield f"http://{format_address(host, server.server_port)}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
