"""The writers that Spark calls: rows to MPUB and DPUB, each confirmed by nsqd. Stream and batch are the same.

At least once: a task that fails is run again by Spark, and publishes all its rows again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from gnsq import Producer
from gnsq.errors import NSQNoConnections, NSQSocketError, NSQTimeout
from gnsq.spark.hubthread import HubThread
from gnsq.spark.options import WriteOptions

__all__ = ["COLUMNS", "NsqBatchWriter", "NsqStreamWriter", "Published", "check_columns"]

logger = logging.getLogger(__name__)

# Column -> Spark types it may have.
COLUMNS = {"body": ("binary", "string"), "topic": ("string",), "defer_ms": ("int", "bigint", "smallint", "tinyint")}
# A connection that was lost, or an answer that did not come: how often an MPUB is sent altogether.
TRIES = 3


@dataclass(frozen=True)
class Published(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed here
    """What one task has published."""

    rows: int


def check_columns(types: dict[str, str], options: WriteOptions) -> None:
    """Check a DataFrame's columns (name -> type).

    Raises:
        ValueError: If body or the topic is missing, a column is unknown, or has another type.
    """
    for name, kind in types.items():
        if name not in COLUMNS:
            raise ValueError(f"column {name!r} is none of {', '.join(COLUMNS)}: select what to publish as body")
        if kind not in COLUMNS[name]:
            raise ValueError(f"column {name!r} has type {kind}, {' or '.join(COLUMNS[name])} was due")
    if "body" not in types:
        raise ValueError("column 'body' is missing: it is what is published")
    if "topic" not in types and not options.topic:
        raise ValueError("no topic: give the option topic, or a column 'topic'")


class _Publisher:
    """Collects rows and publishes them in bounded batches, from a plain thread."""

    def __init__(self, options: WriteOptions, hub: HubThread) -> None:
        self.rows = 0
        self._options = options
        self._hub = hub
        self._producer: Producer | None = None
        self._bodies: dict[str, list[bytes]] = {}
        self._sizes: dict[str, int] = {}
        self._deferred: list[tuple[str, bytes, int]] = []

    def close(self) -> None:
        """Disconnect."""
        if self._producer is not None:
            self._producer.close()

    def add(self, body: bytes | str | None, topic: str | None, defer_ms: int | None) -> None:
        """Take a row in, and publish when a batch is full."""
        topic = topic or self._options.topic
        if not body:
            raise ValueError(
                f"row {self.rows} for topic {topic!r} has an empty body, which nsqd refuses: filter it out"
            )
        if not topic:
            raise ValueError(f"row {self.rows} has no topic, and the option topic is not given")
        data = body.encode() if isinstance(body, str) else body
        self.rows += 1
        if defer_ms:
            self._deferred.append((topic, data, defer_ms))
            if len(self._deferred) >= self._options.batch_rows:
                self._flush_deferred()
            return
        size = self._sizes.get(topic, 0)
        if size and size + len(data) > self._options.batch_bytes:
            self._flush(topic)
            size = 0
        bodies = self._bodies.setdefault(topic, [])
        bodies.append(data)
        self._sizes[topic] = size + len(data)
        if len(bodies) >= self._options.batch_rows:
            self._flush(topic)

    def flush(self) -> None:
        """Publish all that is left."""
        for topic in list(self._bodies):
            self._flush(topic)
        self._flush_deferred()

    def _flush(self, topic: str) -> None:
        bodies = self._bodies.pop(topic, [])
        self._sizes.pop(topic, None)
        if bodies:
            self._hub.call(self._publish, topic, bodies)

    def _flush_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        if deferred:
            self._hub.call(self._publish_deferred, deferred)

    def _publish(self, topic: str, bodies: list[bytes]) -> None:
        """Publish a batch; one whose answer is lost is sent again, which may duplicate it."""
        producer = self._connected()
        for left in range(TRIES - 1, -1, -1):
            try:
                producer.multipublish(topic, bodies)
            except (NSQSocketError, NSQTimeout, NSQNoConnections) as error:
                if not left:
                    raise
                logger.warning("MPUB of %d messages to %s not confirmed: %s; again", len(bodies), topic, error)
            else:
                return

    def _connected(self) -> Producer:
        """Connect when there is something to publish; many tasks have no rows."""
        if self._producer is None:
            options = self._options
            self._producer = Producer(
                list(options.nsqd_tcp_addresses), publish_timeout=options.publish_timeout, reconnect_maximum=2.0
            )
            self._producer.start()
        return self._producer

    def _publish_deferred(self, deferred: list[tuple[str, bytes, int]]) -> None:
        producer, timeout = self._connected(), self._options.publish_timeout
        answers = [producer.publish(topic, body, defer=delay, raise_error=False) for topic, body, delay in deferred]
        for answer in answers:
            answer.get(timeout=timeout)


def publish(batches: Iterator[Any], options: WriteOptions) -> Published:
    """Publish all rows of some record batches; returns when nsqd has confirmed each.

    Raises:
        ValueError: If a row has no body or no topic, or a topic that nsqd would refuse.
        NSQException: What Producer raises.
    """
    # A thread of its own: this one blocks natively while Spark computes the next rows.
    with HubThread("gnsq-spark-sink") as hub:
        publisher = _Publisher(options, hub)
        try:
            for batch in batches:
                _add_all(publisher, batch)
            publisher.flush()
        finally:
            hub.call(publisher.close)
    return Published(publisher.rows)


def _add_all(publisher: _Publisher, batch: Any) -> None:
    names = batch.schema.names
    nothing = [None] * batch.num_rows
    body, topic, delay = (batch.column(name).to_pylist() if name in names else nothing for name in COLUMNS)
    for row in zip(body, topic, delay, strict=True):
        publisher.add(*row)


class NsqBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is not typed here
    """df.write"""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Published:
        """Publish one task's rows."""
        return publish(iterator, self._options)


class NsqStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # as above
    """df.writeStream"""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Published:
        """Publish one task's rows."""
        return publish(iterator, self._options)
