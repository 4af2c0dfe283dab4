"""The writers that Spark calls for streams and batches. They publish rows by MPUB and DPUB, and wait for each OK.

Rows are published at least once: when Spark runs a failed task again, the task publishes all its rows again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from gnsq import Producer, PublishResult
from gnsq.errors import NSQException
from gnsq.producer import NSQManyFailed
from gnsq.protocol.names import assert_valid_topic_name
from gnsq.spark.clients import connection_keywords
from gnsq.spark.errors import RowsNotPublished
from gnsq.spark.options import WriteOptions
from gnsq.texts import counted

__all__ = ["COLUMNS", "NsqBatchWriter", "NsqStreamWriter", "Published", "check_columns", "publish"]

# Column -> Spark types it may have.
COLUMNS = {"body": ("binary", "string"), "topic": ("string",), "defer_ms": ("int", "bigint", "smallint", "tinyint")}


@dataclass(frozen=True)
class Published(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed here
    """Number of rows that one task has published."""

    rows: int


def check_columns(types: dict[str, str], options: WriteOptions) -> None:
    """Check a DataFrame's columns (name -> type).

    Raises:
        ValueError: If body or any topic (column or option) is missing, or a column is unknown or has another type.
    """
    for name, kind in types.items():
        if name not in COLUMNS:
            raise ValueError(f"column {name!r} is none of {', '.join(COLUMNS)}: select what to publish as body")
        if kind not in COLUMNS[name]:
            raise ValueError(f"column {name!r} has type {kind}, {' or '.join(COLUMNS[name])} is expected")
    if "body" not in types:
        raise ValueError("column 'body' is missing: it is what is published")
    if "topic" not in types and not options.topic:
        raise ValueError("no topic: give the option topic, or a column 'topic'")


@dataclass(slots=True)
class _Rows:
    """Rows of a record batch that are published together: their numbers and bodies."""

    topic: str
    numbers: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def name(self, partition: int, first: int, count: int) -> str:
        """Name some of the rows in an error text."""
        numbers, sizes = self.numbers[first : first + count], [len(each) for each in self.bodies[first : first + count]]
        where, size = f"of partition {partition}, topic {self.topic!r}", counted(max(sizes), "byte")
        if count == 1:
            return f"row {numbers[0]} {where}, {size}"
        longest = numbers[sizes.index(max(sizes))]
        return f"rows {numbers[0]} to {numbers[-1]} {where}, the longest of them row {longest} with {size}"


class _Publisher:
    """Publishes record batches from a native thread, one after the other."""

    def __init__(self, options: WriteOptions, partition: int) -> None:
        self.rows = 0
        self._options = options
        self._partition = partition
        self._producer: Producer | None = None

    def close(self) -> None:
        """Disconnect. If rows are still pending, their task has failed, and Spark may run it again."""
        if self._producer is not None:
            self._producer.close(timeout=0)

    def publish(self, batch: Any) -> None:  # Any: pyarrow has no types
        """Publish all rows of a batch, and return after nsqd has confirmed each."""
        topics: dict[str, _Rows] = {}
        # Each deferred row is published alone: nsqd has no MPUB for deferred messages.
        deferred: list[tuple[_Rows, int]] = []
        columns = [batch.column(name).to_pylist() if name in batch.schema.names else None for name in COLUMNS]
        for body, given, defer_ms in zip(*(column or [None] * batch.num_rows for column in columns), strict=True):
            topic = given or self._options.topic
            if topic not in topics:
                topics[topic] = _Rows(self._checked_topic(topic))
            rows = topics[topic]
            if defer_ms:
                rows = _Rows(topic)
                deferred.append((rows, defer_ms))
            rows.bodies.append(self._checked_body(body, topic, defer_ms))
            rows.numbers.append(self.rows)
            self.rows += 1
        pending = [(rows, self._defer(rows, defer_ms)) for rows, defer_ms in deferred]
        for rows in topics.values():
            self._publish_many(rows)
        for rows, result in pending:
            with self._named(rows):
                result.get()

    def _checked_topic(self, topic: str) -> str:
        if not topic:
            raise ValueError(f"{self._row()} has no topic, and the option topic is not given")
        try:
            assert_valid_topic_name(topic)
        except ValueError as error:
            raise ValueError(f"{self._row()}: {error}") from error
        return topic

    def _checked_body(self, body: bytes | str | None, topic: str, defer_ms: int | None) -> bytes:
        if not body:
            raise ValueError(f"{self._row()} for topic {topic!r} has an empty body, which nsqd refuses: filter it out")
        if defer_ms is not None and defer_ms < 0:
            raise ValueError(f"{self._row()} has defer_ms {defer_ms}: 0 or more is expected")
        return body.encode() if isinstance(body, str) else body

    def _row(self) -> str:
        return f"row {self.rows} of partition {self._partition}"

    def _defer(self, rows: _Rows, defer_ms: int) -> PublishResult:
        with self._named(rows):
            return self._connect().publish_async(rows.topic, rows.bodies[0], defer=defer_ms)

    def _publish_many(self, rows: _Rows) -> None:
        if not rows.bodies:
            return
        try:
            self._connect().publish_many(rows.topic, rows.bodies)
        except NSQManyFailed as error:
            failed = next(chunk for chunk in error.chunks if chunk.error is not None)
            name = rows.name(self._partition, failed.first, failed.messages)
            raise RowsNotPublished(f"{name}: {failed.error}") from failed.error

    @contextlib.contextmanager
    def _named(self, rows: _Rows) -> Iterator[None]:
        """Name a deferred row in the error of its publish."""
        try:
            yield
        except NSQException as error:
            raise RowsNotPublished(f"{rows.name(self._partition, 0, 1)}: {error}") from error

    def _connect(self) -> Producer:
        """Return the producer. The first call makes it, since many tasks have no rows."""
        if self._producer is None:
            # Threaded, since this thread blocks natively while Spark computes the next rows. Duplicates are allowed,
            # since a task that runs again publishes all its rows again anyway.
            self._producer = Producer(
                publish_timeout=self._options.publish_timeout,
                reconnect_maximum=2.0,
                allow_duplicates=True,
                threaded=True,
                **connection_keywords(self._options),
            )
        return self._producer


def publish(batches: Iterable[Any], options: WriteOptions, partition: int = 0) -> Published:
    """Publish all rows of record batches, and return after nsqd has confirmed each row.

    Raises:
        ValueError: If a topic, defer_ms, body (empty) or a file that an option names is not valid.
        RowsNotPublished: If nsqd has not confirmed a row. Its ``__cause__`` is the Producer's error.
    """
    publisher = _Publisher(options, partition)
    try:
        for batch in batches:
            publisher.publish(batch)
    finally:
        publisher.close()
    return Published(publisher.rows)


class _Writer:
    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Published:
        """Publish one task's rows."""
        task = TaskContext.get()
        assert task is not None  # Spark calls writers in tasks
        return publish(iterator, self._options, task.partitionId())


class NsqBatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is not typed here
    """Writer of ``df.write``."""


class NsqStreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is not typed here
    """Writer of ``df.writeStream``."""
