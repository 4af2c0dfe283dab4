"""Exporter: the job's records as metrics of Prometheus, and the HTTP server for them. Knows no Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gnsq.addresses import format_address, parse_address
from gnsq.concurrency.hub_thread import HubThread
from gnsq.contrib.health import Pages, serve
from gnsq.contrib.prometheus import collected, families, metrics_page
from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.status import MetricStatus, QueryStatus
from gnsq.stats import counter, gauge
from gnsq.texts import reason_of

__all__ = ["FAMILIES", "PipelineCollector", "serving"]

# By the attributes of QueryStatus; None as a value: not shown.
METRICS = {
    "total.rows": counter("rows", "Messages that the query has read, in committed batches."),
    "batches": counter("batches", "Committed batches with rows."),
    "total.entered": counter("entered", "Events that reached the table."),
    "total.malformed": counter("malformed", "Events that do not fit, and are dead letters."),
    "total.rescued": counter("rescued", "Events of which some values did not fit and are in _rescued."),
    "total.duplicates": counter("duplicates", "Messages that were left out as duplicates."),
    "restarts": counter("restarts", "How often the query was started again after it had failed."),
    "is_running": gauge("running", "1 while the query runs, 0 while it waits to be started again."),
    "rate": gauge("rows_per_second", "Rows per second of the last batch; 0 while there is nothing to read."),
    "seconds": gauge("last_batch_seconds", "How long the last batch with rows took."),
    "waiting": gauge("messages_waiting", "Messages that wait, or are in flight, at nsqd. Missing if unknown."),
    "spooled": gauge("messages_spooled", "Messages in the spool that no committed batch has. Missing if unknown."),
    "lag": gauge("lag_seconds", "From the newest message's publishing to the end of its batch; 0 if all is read."),
    "state_rows": gauge("state_rows", "Rows of the query's state."),
    "state_bytes": gauge("state_bytes", "Bytes of the query's state, on disk and in memory."),
    "progress_at": gauge("last_progress_timestamp_seconds", "Unix time of the last progress; at first, of the start."),
    "has_trouble": gauge("trouble", "1 while the query fails, or something keeps messages from it, else 0."),
}
# The same by those of MetricStatus.
COUNTS = {
    "counted_at": gauge("counted_timestamp_seconds", "Unix time before which all events in the table are counted."),
    "seconds": gauge("count_seconds", "How long the last count took that has found events."),
    "has_trouble": gauge("count_trouble", "1 if the last count has failed, else 0."),
}
_OF_QUERIES, _OF_METRICS = families(METRICS, "pipeline", "query"), families(COUNTS, "pipeline", "metric")
FAMILIES = {family.name: family for family in (*_OF_QUERIES.values(), *_OF_METRICS.values())}


class PipelineCollector:
    """Collector of prometheus_client. Any threads call collect().

    Args:
        records: Returns the present records of all queries and metrics.
    """

    def __init__(self, records: Callable[[], Iterable[QueryStatus | MetricStatus]]) -> None:
        self._records = records

    def collect(self) -> list[Any]:  # Any: families of prometheus_client
        """Return all metrics with their values."""
        records = list(self._records())
        kinds = ((_OF_QUERIES, QueryStatus), (_OF_METRICS, MetricStatus))
        return [
            family
            for made, kind in kinds
            for family in collected(made, {(each.name,): each for each in records if isinstance(each, kind)})
        ]


@contextlib.contextmanager
def serving(address: str, collector: PipelineCollector) -> Iterator[str]:
    """Answer GET /metrics at an address, in a thread, during the block. Yield the URL.

    Raises:
        JobFailed: If the address can't be used.
    """
    host, port = parse_address(address, 0)
    thread = HubThread("gnsq-metrics")
    with contextlib.ExitStack() as opened:
        opened.callback(thread.stop)
        try:
            server = thread.call(serve, host, port, Pages({"/metrics": metrics_page(collector)}))
        except OSError as error:
            text = f"setting metrics_address: {reason_of(error)}: give a free address of this machine"
            raise JobFailed(text) from error
        opened.callback(thread.call, server.stop, 0)
        yield f"http://{format_address(host, server.server_port)}/metrics"
