"""Exporter: the records of the queries as metrics of Prometheus, and the HTTP server for them. Knows no Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gnsq.addresses import format_address, parse_address
from gnsq.concurrency.hub_thread import HubThread
from gnsq.contrib.health import Pages, serve
from gnsq.contrib.prometheus import collected, families, metrics_page
from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.status import QueryStatus
from gnsq.stats import counter, gauge
from gnsq.texts import reason_of

__all__ = ["FAMILIES", "PipelineCollector", "serving"]

# By the attributes of QueryStatus; None as a value: not shown.
METRICS = {
    "total.rows": counter("rows", "Messages that the query has read, in committed batches."),
    "batches": counter("batches", "Committed batches with rows."),
    "total.entered": counter("entered", "Events that reached the table or the aggregation."),
    "total.malformed": counter("malformed", "Events that do not fit; those of a table are its dead letters."),
    "total.rescued": counter("rescued", "Events of which some values did not fit and are in _rescued."),
    "total.duplicates": counter("duplicates", "Messages that were left out as duplicates."),
    "total.late": counter("late", "Windows and keys that were left out, since they were later than keep_windows."),
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
FAMILIES = families(METRICS, "pipeline", "query")


class PipelineCollector:
    """Collector of prometheus_client. Any threads call collect().

    Args:
        records: Returns the present records of all queries.
    """

    def __init__(self, records: Callable[[], Iterable[QueryStatus]]) -> None:
        self._records = records

    def collect(self) -> list[Any]:  # Any: families of prometheus_client
        """Return all metrics with their values."""
        return collected(FAMILIES, {(record.name,): record for record in self._records()})


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
