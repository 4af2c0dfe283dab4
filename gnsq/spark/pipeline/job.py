"""Job: starts the queries and watches them; the session stops them. What they do is archive.py's and metrics.py's."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gnsq import LookupdClient
from gnsq.errors import NSQException
from gnsq.spark.channel import ChannelClient
from gnsq.spark.pipeline.archive import ArchiveBatches
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.metrics import MetricsBatches

__all__ = ["Batch", "Job", "JobFailed", "publish_addresses"]

logger = logging.getLogger(__name__)

LOOK = 0.2
_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*: ")
_JAVA_ERROR = re.compile(r"^: (.+)$", re.MULTILINE)
_SQLSTATE = re.compile(r" SQLSTATE: \w+.*$")


class JobFailed(NSQException):
    """A query ended with an error; the text is what Spark says of it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch that a query has finished. ``backlog`` is what nsqd still has for it; None if that is not known."""

    query: str
    batch_id: int
    rows: int
    seconds: float
    backlog: int | None


def publish_addresses(config: PipelineConfig) -> tuple[str, ...]:
    """Say where to publish: where the configuration says, else to the nsqds that are read from.

    Raises:
        NSQException: If nsqlookupd has to be asked, and does not answer or knows none.
    """
    named = config.publish_addresses or config.nsqd_tcp_addresses
    if named:
        return named
    failures = []
    for address in config.lookupd_http_addresses:
        try:
            nodes = LookupdClient.from_url(address).nodes()["producers"] or ()
        except NSQException as error:
            failures.append(str(error))
            continue
        if nodes:
            return tuple(f"{node['broadcast_address']}:{node['tcp_port']}" for node in nodes)
        failures.append(f"{address} knows no nsqd")
    raise NSQException(f"no nsqd to publish to: {'; '.join(failures)}: give publish_addresses")


class Job:
    """Both queries of one configuration.

    Args:
        report: Called for each finished batch, in the thread that waits.
    """

    def __init__(self, spark: SparkSession, config: PipelineConfig, report: Callable[[Batch], None]) -> None:
        self._spark = spark
        self._config = config
        self._report = report
        self._queries: dict[str, StreamingQuery] = {}
        self._reported: dict[str, int] = {}

    def start(self, *, until_drained: bool) -> None:
        """Start the queries.

        Args:
            until_drained: End when what is there now has been worked off; else go on for ever.

        Raises:
            NSQException: As publish_addresses().
            JobFailed: If Spark does not take one.
        """
        addresses = publish_addresses(self._config)
        self._create_channels()
        archive = ArchiveBatches(self._config, addresses)
        metrics = MetricsBatches(self._config, addresses)
        self._start("archive", self._config.archive_channel, archive, until_drained)
        self._start("metrics", self._config.metrics_channel, metrics, until_drained)

    def wait(self, is_stopping: Callable[[], bool]) -> bool:
        """Wait until all queries have ended, or until it is time to stop.

        Returns:
            Whether they ended by themselves.

        Raises:
            JobFailed: If one of them failed.
        """
        while not is_stopping():
            running = False
            for name, query in self._queries.items():
                active = query.isActive
                self._report_batches(name, query)
                if not active:
                    _raise_failure(name, query)
                running = running or active
            if not running:
                return True
            time.sleep(LOOK)
        return False

    def _create_channels(self) -> None:
        """Have both channels before either is read, so that both queries see the same messages."""
        config = self._config
        client = ChannelClient(
            config.topic, config.archive_channel, config.nsqd_http_addresses, config.lookupd_http_addresses
        )
        if not client.can_ask:
            logger.warning(
                "channels of %s not created: without nsqd_http_addresses or lookupd_http_addresses, what waits in a "
                "topic that has no channel yet goes to one of them alone",
                config.topic,
            )
            return
        try:
            client.create(config.metrics_channel)
        except NSQException as error:
            logger.warning("channels of %s not created: %s", config.topic, error)
        finally:
            client.close()

    def _start(self, name: str, channel: str, batches: Callable[..., None], until_drained: bool) -> None:
        config = self._config
        messages = self._spark.readStream.format("nsq").options(**config.source_options(name, channel)).load()
        writer = messages.writeStream.queryName(name).foreachBatch(batches)
        writer = writer.option("checkpointLocation", config.checkpoint(name))
        if until_drained:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{config.trigger_interval} seconds")
        try:
            self._queries[name] = writer.start()
        except (PySparkException, Py4JError) as error:
            raise JobFailed(f"query {name} did not start: {_essence(str(error))}") from error

    def _report_batches(self, name: str, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            batch_id, rows = progress["batchId"], progress["numInputRows"]
            if rows and batch_id > self._reported.get(name, -1):
                self._reported[name] = batch_id
                seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
                self._report(Batch(name, batch_id, rows, seconds, _backlog(progress)))


def _backlog(progress: Any) -> int | None:  # Any: Spark's JSON
    latest = progress["sources"][0].get("latestOffset")
    if isinstance(latest, dict) and "waiting" in latest:
        return int(latest["waiting"]) + int(latest["in_flight"])
    return None


def _raise_failure(name: str, query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise JobFailed(f"query {name}: {_essence(str(failure))}")


def _essence(text: str) -> str:
    """Find what went wrong in Spark's account of it: the last error of a Python traceback, else the first of Java."""
    text = text.partition("=== Streaming Query ===")[0]
    errors = [line for line in text.splitlines() if _PYTHON_ERROR.match(line)]
    if "Traceback" in text and errors:
        return _SQLSTATE.sub("", errors[-1])
    java = _JAVA_ERROR.search(text)
    return java[1] if java is not None else text.strip().partition("\n")[0]
