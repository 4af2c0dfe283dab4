"""The writers that Spark calls: rows to MPUB and DPUB, each confirmed by nsqd. Stream and batch are the same.

At least once: a task that fails is run again by Spark, and publishes all its rows again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from gnsq import Producer
from gnsq.spark.options import WriteOptions

__all__ = ["COLUMNS", "NsqBatchWriter", "NsqStreamWriter", "Published", "check_columns"]

# Column -> Spark types it may have.
COLUMNS = {"body": ("binary", "string"), "topic": ("string",), "defer_ms": ("int", "bigint", "smallint", "tinyint")}
# Seconds that the producer's thread may be late with an answer, or with the end.
GRACE = 5.0


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
    """Collects rows and publishes them in bounded batches, from a plain thread; some of them are under way while Spark
    computes the next."""

    def __init__(self, options: WriteOptions) -> None:
        self.rows = 0
        self._options = options
        self._producer: Producer | None = None
        # In the order of their batches.
        self._answers: deque[Future[bytes]] = deque()
        self._bodies: dict[str, list[bytes]] = {}
        self._sizes: dict[str, int] = {}
        self._deferred: list[tuple[str, bytes, int]] = []

    def close(self) -> None:
        """Disconnect; what has no answer by now is of a task that has failed, and is run again."""
        if self._producer is not None:
            self._producer.close(timeout=0)

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
        """Publish all that is left, and wait until nsqd has confirmed everything."""
        for topic in list(self._bodies):
            self._flush(topic)
        self._flush_deferred()
        while self._answers:
            self._answers.popleft().result(self._options.publish_timeout + GRACE)

    def _flush(self, topic: str) -> None:
        bodies = self._bodies.pop(topic, [])
        self._sizes.pop(topic, None)
        if bodies:
            self._note(self._connected().multipublish(topic, bodies, raise_error=False))

    def _flush_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for topic, body, delay in deferred:
            self._note(self._connected().publish_async(topic, body, defer=delay))

    def _note(self, answer: Future[bytes]) -> None:
        self._answers.append(answer)
        while self._answers and self._answers[0].done():
            self._answers.popleft().result()

    def _connected(self) -> Producer:
        """Connect when there is something to publish; many tasks have no rows."""
        if self._producer is None:
            # A thread of its own: this one blocks natively while Spark computes the next rows. A task that is run
            # again publishes all its rows again, so a lost answer need not fail it.
            self._producer = Producer(
                list(self._options.nsqd_tcp_addresses),
                publish_timeout=self._options.publish_timeout,
                reconnect_maximum=2.0,
                allow_duplicates=True,
                threaded=True,
            )
            self._producer.start()
        return self._producer


def publish(batches: Iterator[Any], options: WriteOptions) -> Published:
    """Publish all rows of some record batches; returns when nsqd has confirmed each.

    Raises:
        ValueError: If a row has no body or no topic, or a topic that nsqd would refuse.
        NSQException: What Producer raises.
    """
    publisher = _Publisher(options)
    try:
        for batch in batches:
            _add_all(publisher, batch)
        publisher.flush()
    finally:
        publisher.close()
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
