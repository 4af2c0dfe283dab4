"""The writers that Spark calls for streams and batches. They publish rows by MPUB and DPUB, and wait for each OK.

Rows are published at least once: when Spark runs a failed task again, the task publishes all its rows again.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gevent
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from gnsq import Producer, PublishResult
from gnsq.errors import NSQException
from gnsq.protocol.names import assert_valid_topic_name
from gnsq.spark.clients import connection_keywords
from gnsq.spark.errors import RowsNotPublished
from gnsq.spark.options import WriteOptions
from gnsq.texts import counted

__all__ = ["COLUMNS", "NsqBatchWriter", "NsqStreamWriter", "Published", "check_columns", "publish"]

# Column -> Spark types it may have.
COLUMNS = {"body": ("binary", "string"), "topic": ("string",), "defer_ms": ("int", "bigint", "smallint", "tinyint")}
# Seconds after publish_timeout. If there is no result by then, the producer's thread counts as failed.
RESULT_GRACE = 5.0
# Bytes that an MPUB uses for the number of messages, and for each message's length. Source: protocol_v2.go, readMPUB.
MPUB_COUNT_SIZE = MPUB_LENGTH_SIZE = 4
# Limit of the bytes in unpublished batches of all topics together; bytes of memory that a row takes beside its body.
MAX_BUFFERED_BYTES = 16 * 1024 * 1024
ROW_OVERHEAD = 100


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
class _Batch:
    """Rows of one topic that are published together."""

    topic: str
    bodies: list[bytes] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    size: int = MPUB_COUNT_SIZE


@dataclass(frozen=True, slots=True)
class _Rows:
    """The numbers and sizes of the rows that are published together: a batch, or a deferred row."""

    topic: str
    rows: list[int]
    sizes: list[int]

    def name(self, partition: int) -> str:
        """Name the rows in an error text."""
        first, last, count, size = self.rows[0], self.rows[-1], len(self.rows), max(self.sizes)
        where = f"of partition {partition}, topic {self.topic!r}"
        if count == 1:
            return f"row {first} {where}, {counted(size, 'byte')}"
        rows = f"rows {first} to {last}" if count == last - first + 1 else f"{count} of the rows {first} to {last}"
        longest = self.rows[self.sizes.index(size)]
        return f"{rows} {where}, the longest of them row {longest} with {counted(size, 'byte')}"


class _Publisher:
    """Publishes rows in batches from a native thread. Some batches are pending while Spark computes the next rows."""

    def __init__(self, options: WriteOptions, partition: int, max_buffered_bytes: int) -> None:
        self.rows = 0
        self._options = options
        self._partition = partition
        self._max_buffered_bytes = max_buffered_bytes
        self._producer: Producer | None = None
        # Oldest first: each batch or deferred row that has no result yet.
        self._pending: deque[tuple[PublishResult, _Rows]] = deque()
        self._batches: dict[str, _Batch] = {}
        self._buffered = 0
        self._max_msg_size = options.max_msg_size or float("inf")

    def close(self) -> None:
        """Disconnect. If rows are still pending, their task has failed, and Spark may run it again."""
        if self._producer is not None:
            self._producer.close(timeout=0)

    def add(self, body: bytes | str | None, topic: str | None, defer_ms: int | None) -> None:
        """Add a row to the batch of its topic; publish a deferred row at once, and batches that are full."""
        topic = topic or self._options.topic
        batch = self._batches.get(topic)
        if batch is None:
            batch = self._batches[topic] = self._new_batch(topic)
        if not body:
            raise ValueError(f"{self._row()} for topic {topic!r} has an empty body, which nsqd refuses: filter it out")
        data = body.encode() if isinstance(body, str) else body
        row = self.rows
        size = len(data)
        if size > self._max_msg_size:
            raise ValueError(
                f"{self._row()} for topic {topic!r} has {size} bytes, option maxMsgSize is "
                f"{self._options.max_msg_size}: filter it out, or raise nsqd's max-msg-size and the option"
            )
        if defer_ms is not None and defer_ms < 0:
            raise ValueError(f"{self._row()} has defer_ms {defer_ms}: 0 or more is expected")
        self.rows = row + 1
        if defer_ms:
            producer = self._connect()
            # Publish each deferred row alone: nsqd has no MPUB for deferred messages.
            self._publish(_Rows(topic, [row], [size]), lambda: producer.publish_async(topic, data, defer=defer_ms))
            return
        size += MPUB_LENGTH_SIZE
        if batch.bodies and batch.size + size > self._options.batch_bytes:
            self._flush(batch)
            batch = self._batches[topic]
        batch.bodies.append(data)
        batch.rows.append(row)
        batch.size += size
        self._buffered += size + ROW_OVERHEAD
        if len(batch.bodies) >= self._options.batch_rows:
            self._flush(batch)
        elif self._buffered > self._max_buffered_bytes:
            self._flush_all()

    def flush(self) -> None:
        """Publish all batches, and wait until nsqd has confirmed every row."""
        self._flush_all()
        while self._pending:
            self._wait_confirmed(*self._pending.popleft())

    def _flush_all(self) -> None:
        for batch in list(self._batches.values()):
            if batch.bodies:
                self._flush(batch)

    def _new_batch(self, topic: str) -> _Batch:
        if not topic:
            raise ValueError(f"{self._row()} has no topic, and the option topic is not given")
        try:
            assert_valid_topic_name(topic)
        except ValueError as error:
            raise ValueError(f"{self._row()}: {error}") from error
        return _Batch(topic)

    def _row(self) -> str:
        return f"row {self.rows} of partition {self._partition}"

    def _flush(self, batch: _Batch) -> None:
        self._buffered -= batch.size - MPUB_COUNT_SIZE + ROW_OVERHEAD * len(batch.rows)
        rows, producer = _Rows(batch.topic, batch.rows, [len(body) for body in batch.bodies]), self._connect()
        self._publish(rows, lambda: producer.multipublish(batch.topic, batch.bodies, raise_error=False))
        self._batches[batch.topic] = _Batch(batch.topic)

    def _publish(self, rows: _Rows, send: Callable[[], PublishResult]) -> None:
        with self._named(rows):  # also if the producer's thread has not run for so long
            self._pending.append((send(), rows))
        while self._pending and self._pending[0][0].ready():
            self._wait_confirmed(*self._pending.popleft())

    def _wait_confirmed(self, result: PublishResult, rows: _Rows) -> None:
        with self._named(rows):
            result.get(timeout=self._options.publish_timeout + RESULT_GRACE)

    @contextlib.contextmanager
    def _named(self, rows: _Rows) -> Iterator[None]:
        """Name the rows in the error of a publish."""
        try:
            yield
        except (NSQException, gevent.Timeout) as error:
            is_late = isinstance(error, gevent.Timeout)
            text = "no result, and no timeout of the producer" if is_late else str(error)
            raise RowsNotPublished(f"{rows.name(self._partition)}: {text}") from error

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


def publish(
    batches: Iterator[Any],
    options: WriteOptions,
    partition: int = 0,
    *,
    max_buffered_bytes: int = MAX_BUFFERED_BYTES,
) -> Published:
    """Publish all rows of record batches, and return after nsqd has confirmed each row.

    Raises:
        ValueError: If a topic, defer_ms, body (empty, above maxMsgSize) or a file that an option names is not valid.
        RowsNotPublished: If nsqd has not confirmed a row. Its ``__cause__`` is the Producer's error, or gevent.Timeout.
    """
    publisher = _Publisher(options, partition, max_buffered_bytes)
    try:
        for batch in batches:
            columns = [batch.column(name).to_pylist() if name in batch.schema.names else None for name in COLUMNS]
            for row in zip(*(column or [None] * batch.num_rows for column in columns), strict=True):
                publisher.add(*row)
        publisher.flush()
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
