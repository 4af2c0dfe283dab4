"""The writers that Spark calls: rows to MPUB and DPUB, each confirmed by nsqd. Stream and batch are the same.

At least once: a task that fails is run again by Spark, and publishes all its rows again.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gevent
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from gnsq import Producer, PublishResult
from gnsq.errors import NSQException
from gnsq.protocol.names import assert_valid_topic_name
from gnsq.spark import rowkey
from gnsq.spark.clients import connection_keywords
from gnsq.spark.errors import RowsNotPublished
from gnsq.spark.options import WriteOptions
from gnsq.texts import counted

__all__ = ["COLUMNS", "NsqBatchWriter", "NsqStreamWriter", "RowOrigin", "Published", "check_columns", "publish"]

# Column -> Spark types it may have.
COLUMNS = {"body": ("binary", "string"), "topic": ("string",), "defer_ms": ("int", "bigint", "smallint", "tinyint")}
# Seconds that the producer's thread may be late with an answer, or with the end.
RESULT_GRACE = 5.0
# Of an MPUB's body: the number of messages, and each one's length. Source: nsqd protocol_v2.go, readMPUB.
MPUB_COUNT_SIZE = MPUB_LENGTH_SIZE = 4
# Bytes that wait for their batches, over all topics, and what a row costs beside its body.
MAX_BUFFERED_BYTES = 16 * 1024 * 1024
ROW_OVERHEAD = 100


@dataclass(frozen=True)
class Published(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed here
    """What one task has published."""

    rows: int


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Which rows these are: the same for a task that is run again."""

    query: str = ""
    batch: str = ""
    partition: int = 0


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


@dataclass(slots=True)
class _Batch:
    """What is published together: to one topic, or one deferred row."""

    topic: str
    bodies: list[bytes] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    size: int = MPUB_COUNT_SIZE


@dataclass(frozen=True, slots=True)
class _Pending:
    """A batch without an answer; its bodies are the producer's alone."""

    answer: PublishResult
    topic: str
    first: int
    last: int
    count: int
    largest: int
    size: int

    def name(self, partition: int) -> str:
        """Say which rows these are."""
        if self.count == 1:
            return f"row {self.first} of partition {partition}, topic {self.topic!r}, {counted(self.size, 'byte')}"
        rows = f"rows {self.first} to {self.last}"
        if self.count != self.last - self.first + 1:
            rows = f"{self.count} of the {rows}"
        return (
            f"{rows} of partition {partition}, topic {self.topic!r}, the longest of them row {self.largest} with "
            f"{counted(self.size, 'byte')}"
        )


class _Publisher:
    """Collects rows and publishes them in bounded batches, from a plain thread; some of them are under way while Spark
    computes the next."""

    def __init__(self, options: WriteOptions, origin: RowOrigin) -> None:
        self.rows = 0
        self._options = options
        self._origin = origin
        self._producer: Producer | None = None
        # In the order of their batches.
        self._answers: deque[_Pending] = deque()
        self._batches: dict[str, _Batch] = {}
        self._waiting = 0
        self._limit = options.max_msg_size or float("inf")

    def close(self) -> None:
        """Disconnect; what has no answer by now is of a task that has failed, and is run again."""
        if self._producer is not None:
            self._producer.close(timeout=0)

    def add(self, body: bytes | str | None, topic: str | None, defer_ms: int | None) -> None:
        """Take a row in, and publish when a batch is full."""
        topic = topic or self._options.topic
        batch = self._batches.get(topic)
        if batch is None:
            batch = self._batches[topic] = self._new_batch(topic)
        if not body:
            raise ValueError(f"{self._row()} for topic {topic!r} has an empty body, which nsqd refuses: filter it out")
        data = body.encode() if isinstance(body, str) else body
        row = self.rows
        if self._options.row_key:
            origin = self._origin
            data = rowkey.join(data, origin.query, origin.batch, origin.partition, row)
        size = len(data)
        if size > self._limit:
            raise ValueError(
                f"{self._row()} for topic {topic!r} has {size} bytes, option maxMsgSize is "
                f"{self._options.max_msg_size}: filter it out, or raise nsqd's max-msg-size and the option"
            )
        self.rows = row + 1
        if defer_ms:
            self._publish_deferred(topic, data, row, defer_ms)
            return
        size += MPUB_LENGTH_SIZE
        if batch.bodies and batch.size + size > self._options.batch_bytes:
            self._flush(batch)
            batch = self._batches[topic]
        batch.bodies.append(data)
        batch.rows.append(row)
        batch.size += size
        self._waiting += size + ROW_OVERHEAD
        if len(batch.bodies) >= self._options.batch_rows:
            self._flush(batch)
        elif self._waiting > MAX_BUFFERED_BYTES:
            self._flush_all()

    def flush(self) -> None:
        """Publish all that is left, and wait until nsqd has confirmed everything."""
        self._flush_all()
        while self._answers:
            self._wait_confirmed(self._answers.popleft())

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
        return f"row {self.rows} of partition {self._origin.partition}"

    def _flush(self, batch: _Batch) -> None:
        bodies, rows = batch.bodies, batch.rows
        self._waiting -= batch.size - MPUB_COUNT_SIZE + ROW_OVERHEAD * len(rows)
        answer = self._connect().multipublish(batch.topic, bodies, raise_error=False)
        sizes = list(map(len, bodies))
        size = max(sizes)
        self._add_pending(_Pending(answer, batch.topic, rows[0], rows[-1], len(rows), rows[sizes.index(size)], size))
        self._batches[batch.topic] = _Batch(batch.topic)

    def _publish_deferred(self, topic: str, data: bytes, row: int, delay: int) -> None:
        """Publish by itself: there is no MPUB for that."""
        if delay < 0:
            raise ValueError(f"row {row} of partition {self._origin.partition} has defer_ms {delay}: 0 or more was due")
        answer = self._connect().publish_async(topic, data, defer=delay)
        self._add_pending(_Pending(answer, topic, row, row, 1, row, len(data)))

    def _add_pending(self, pending: _Pending) -> None:
        self._answers.append(pending)
        while self._answers and self._answers[0].answer.ready():
            self._wait_confirmed(self._answers.popleft())

    def _wait_confirmed(self, pending: _Pending) -> None:
        try:
            pending.answer.get(timeout=self._options.publish_timeout + RESULT_GRACE)
        except (NSQException, gevent.Timeout) as error:
            is_late = isinstance(error, gevent.Timeout)
            what = "no answer, and no timeout of the producer's" if is_late else str(error)
            raise RowsNotPublished(f"{pending.name(self._origin.partition)}: {what}") from error

    def _connect(self) -> Producer:
        """Connect when there is something to publish; many tasks have no rows."""
        if self._producer is None:
            # A thread of its own: this one blocks natively while Spark computes the next rows. A task that is run
            # again publishes all its rows again, so a lost answer need not fail it. Started by the first publish:
            # start() would wait for every nsqd, one that is silent too.
            self._producer = Producer(
                publish_timeout=self._options.publish_timeout,
                reconnect_maximum=2.0,
                allow_duplicates=True,
                threaded=True,
                **connection_keywords(self._options),
            )
        return self._producer


def publish(batches: Iterator[Any], options: WriteOptions, origin: RowOrigin = RowOrigin()) -> Published:  # frozen
    """Publish all rows of some record batches; returns when nsqd has confirmed each.

    Raises:
        ValueError: If a row has no body or no topic, or what nsqd would refuse; if a file that an option names can't
            be used.
        RowsNotPublished: If nsqd has not confirmed some; its cause is what Producer raised.
    """
    publisher = _Publisher(options, origin)
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
        # Made on the driver, once for all tasks and their attempts. Not the query's id inside of foreachBatch: that may
        # write twice, and rows of both would have the same keys.
        self._id = uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Published:
        """Publish one task's rows."""
        return publish(iterator, self._options, RowOrigin(self._id, "0", _task().partitionId()))


class NsqStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # as above
    """df.writeStream"""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Published:
        """Publish one task's rows."""
        task = _task()
        query, batch = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        return publish(iterator, self._options, RowOrigin(query, batch, task.partitionId()))


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # Spark calls writers in tasks
    return task
