"""Query archive: writes events to the table archive, and malformed bodies to the table dead and to a topic.

A batch is one pass over its messages: tasks write the files of both tables, the driver commits the files of archive,
then those of dead, then tasks publish the dead letters. A kill may come after any step. Then the batch runs again:

    its files are written again, and the files of the killed run stay unused until a vacuum deletes them
    a table whose log already has the batch is not changed
    all letters are published again, since it is unknown which were published (message_id shows duplicates)
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from gnsq.spark.options import WriteOptions
from gnsq.spark.pipeline.batches import BatchIdentity
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.datafiles import DataFile, Partition, TableTarget, collect_files, publish_files, write
from gnsq.spark.pipeline.layout import archive_tables

__all__ = ["ArchiveBatches", "dead_letter"]

# Limit of the bytes of a malformed body in its dead letter: by default nsqd takes up to 1 MiB, and base64 adds a third.
LETTER_BYTES = 512 * 1024
# If a batch has written to more partitions of table archive than this, Spark shuffles the rows of the next batch, so
# that one task gets all rows of a partition. Without a shuffle, each task writes a file for each partition that it has.
SPREAD = 200


class ArchiveBatches:
    """Writes the batches of the query archive: foreachBatch calls it.

    Args:
        spark: For tables that Spark writes.
        take_over: Accept tables that belong to another checkpoint.
    """

    def __init__(self, config: PipelineConfig, spark: SparkSession | None = None, *, take_over: bool = False) -> None:
        topic = config.entries[0].name
        self._tables = archive_tables(config, topic, spark)
        self._take_over = take_over
        dead_letters_to = config.entries[0].dead_letters_to(topic)
        self._sink = WriteOptions.parse(config.sink_options(dead_letters_to)) if dead_letters_to else None
        self._is_claimed = False
        self._is_spread = False

    def __call__(self, parsed: DataFrame, batch: BatchIdentity) -> list[DataFile]:
        """Write one batch. Its rows are the result of events.parse(), or of events.unparsed().

        Returns:
            The files that were committed: none of a table that has the batch already.
        """
        if not self._is_claimed:
            for table in self._tables:
                table.claim(batch.owner, take_over=self._take_over, committed=batch.unchecked)
                # Only the first batch of a run can be in a table already. has() raises if it was committed with other
                # settings: with these, an event of archive may now belong to dead, and be in both tables, or in none.
                table.has(batch)
            self._is_claimed = True
        targets = [table.target(batch.number) for table in self._tables]
        partition = targets[0].partition
        rows = parsed.repartition(_partition_key(partition)) if self._is_spread and partition is not None else parsed
        files = collect_files(rows, functools.partial(write, route=functools.partial(_route, targets)))
        self._is_spread = len({file.partition for file in files if file.table == targets[0].name}) > SPREAD
        committed = [table.name for table in self._tables if table.commit(batch, files)]
        if self._sink is not None:
            publish_files(parsed.sparkSession, files, targets[1], dead_letter, self._sink)
        for table in self._tables:
            table.finish()
        return [file for file in files if file.table in committed]


def _partition_key(partition: Partition) -> Column:
    if partition.is_field:
        return F.col(partition.column)
    return F.date_trunc(partition.column, F.coalesce(partition.source, "published_at"))


# --- in tasks


def _route(targets: Sequence[TableTarget], batch: Any) -> Iterator[tuple[TableTarget, Any]]:
    malformed = pc.is_valid(batch.column("reason"))
    if pc.any(malformed).as_py():
        yield targets[1], batch.filter(malformed)
        batch = batch.filter(pc.invert(malformed))
    yield targets[0], batch


def dead_letter(row: Mapping[str, Any]) -> bytes:
    """Build the message of a dead letter from a row of the table dead. A long body is cut to LETTER_BYTES."""
    body: bytes = row["body"]
    letter = {"reason": row["reason"], "body_base64": base64.b64encode(body[:LETTER_BYTES]).decode()}
    if len(body) > LETTER_BYTES:
        letter |= {"truncated": True, "length": len(body)}
    published: dt.datetime = row["published_at"]
    time = published.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    letter |= {"message_id": row["message_id"], "nsqd": row["nsqd"], "published_at": time}
    return json.dumps(letter, ensure_ascii=False, separators=(",", ":")).encode()
