"""Query archive: writes events to the table archive, and malformed bodies to the table dead and to a topic.

A batch is one pass over its messages: tasks write the files of the tables of all topics, the driver commits the files
of the tables archive, then those of the others, then tasks publish the dead letters. A kill may come after any step.
Then the batch runs again:

    its files are written again, and the files of the killed run stay unused until a vacuum deletes them
    a table whose log already has the batch is not changed
    all letters are published again, since it is unknown which were published (message_id shows duplicates)
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import functools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gnsq.localfiles import make_directory
from gnsq.spark.options import WriteOptions
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.delta import BatchIdentity, Table
from gnsq.spark.pipeline.events import by_topic, field_column
from gnsq.spark.pipeline.layout import (
    archive_tables,
    archive_targets,
    former_tables,
    note_tables,
    topic_of,
    topics_with_tables,
)
from gnsq.spark.pipeline.parquet import DataFile, TableTarget, collect_files, publish_files, write
from gnsq.spark.pipeline.topics import TopicEntry
from gnsq.spark.spool.storage import LocalStore, open_store
from gnsq.texts import counted

__all__ = ["ArchiveBatches", "dead_letter"]

logger = logging.getLogger(__name__)

# Limit of the bytes of a malformed body in its dead letter: by default nsqd takes up to 1 MiB, and base64 adds a third.
LETTER_BYTES = 512 * 1024
# If a batch has written to more partitions of table archive than this, Spark shuffles the rows of the next batch, so
# that one task gets all rows of a partition. Without a shuffle, each task writes a file for each partition that it has.
SPREAD = 200


class ArchiveBatches:
    """Writes the batches of the query archive: foreachBatch calls it.

    The tables of a topic are made with the topic's first message. Tasks may meet a topic that the driver does not know
    yet: they make the directories, and the driver makes the tables before it commits anything.

    Args:
        take_over: Accept tables that belong to another checkpoint.
        check_lock: Called before anything is committed or published; raises if another job may run this batch.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        take_over: bool = False,
        check_lock: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._take_over = take_over
        self._check_lock = check_lock
        # Topic -> its tables, which belong to this checkpoint.
        self._tables: dict[str, tuple[Table, ...]] = {}
        self._sink = WriteOptions.parse(config.sink_options(""))
        # Topics whose dead letters are not published, and that this was logged of.
        self._unpublished: set[str] = set()
        self._is_begun = False
        self._is_spread = False

    def __call__(self, parsed: DataFrame, batch: BatchIdentity) -> list[DataFile]:
        """Write one batch. Its rows are the result of events.parse_topics().

        Returns:
            The files that were committed: none of a table that has the batch already.
        """
        config = self._config
        if not self._is_begun:
            self._begin(batch)
        rows = parsed.repartition("topic", _partition_key(config.rules)) if self._is_spread else parsed
        files = collect_files(rows, functools.partial(_write, config, frozenset(self._tables), batch.number))
        self._is_spread = len({(file.table, file.partition) for file in files}) > SPREAD
        topics = sorted({topic_of(config, file.table) for file in files})
        for topic in topics:
            if topic not in self._tables:
                self._claim(topic, batch, is_new=True)
        committed = []
        # After this check, only the log of each table decides: it takes a batch once, whichever job brings it.
        self._check_lock()
        tables = [(topic, table) for topic in topics for table in self._tables[topic]]
        for topic, table in sorted(tables, key=lambda each: each[1].name.rpartition("/")[2] != "archive"):
            if table.commit(self._of_topic(batch, topic), files):
                committed.append(table.name)
        self._check_lock()
        self._publish(parsed, files, batch, topics)
        self._warn(topics, files)
        return [file for file in files if file.table in committed]

    def _begin(self, batch: BatchIdentity) -> None:
        """Claim the tables that exist. Only the first batch of a run can be in tables already."""
        config = self._config
        for topic in dict.fromkeys(filter(None, [config.placed.flat, *topics_with_tables(config)])):
            names = {table.name for table in archive_tables(config, topic)}
            if config.entry_of(topic) is not None and (topic == config.placed.flat or names & {*config.placed.tables}):
                self._claim(topic, batch, is_new=False)
            for former in former_tables(config, topic):
                # If the killed run of this batch has added to the table, the rows would now be in another one, too.
                # The table may belong to another job, which reads the topic now.
                if former.exists() and former.is_owned(batch.owner):
                    former.has(self._of_topic(batch, topic))
        self._is_begun = True

    def _claim(self, topic: str, batch: BatchIdentity, *, is_new: bool) -> None:
        tables = archive_tables(self._config, topic)
        for table in tables:
            if is_new:
                table.claim(batch.owner, take_over=self._take_over, batch_id=batch.number)
            else:
                table.claim(batch.owner, take_over=self._take_over, committed=batch.unchecked)
            # has() raises if the batch was committed with other settings: with these, an event of archive may now
            # belong to dead, and be in both tables, or in none.
            table.has(self._of_topic(batch, topic))
        if not {table.name for table in tables} <= set(self._config.placed.tables):
            note_tables(self._config, topic)
        self._tables[topic] = tables

    def _of_topic(self, batch: BatchIdentity, topic: str) -> BatchIdentity:
        """Return the identity with the settings of one topic: an entry for another topic changes nothing for this."""
        entry = self._config.entry_of(topic)
        return dataclasses.replace(batch, settings=0 if entry is None else entry.division)

    def _publish(self, parsed: DataFrame, files: list[DataFile], batch: BatchIdentity, topics: Iterable[str]) -> None:
        sources = {}
        for topic in topics:
            dead = self._tables[topic][-1]
            if letters_to := self._config.letters_to(topic):
                sources[dead.name] = (dead.target(batch.number), letters_to)
            elif topic not in self._unpublished and any(file.table == dead.name for file in files):
                self._unpublished.add(topic)
                entry = self._config.entry_of(topic)
                if entry is not None and not entry.raw:
                    logger.warning(
                        "topic %s is not read by this job, and receivers have its messages in the spool: no dead "
                        "letters are published, malformed bodies are in table %s alone. Start the receivers with the "
                        "--topic-pattern that --status shows",
                        *(topic, dead.name),
                    )
        publish_files(parsed.sparkSession, files, sources, dead_letter, self._sink)

    def _warn(self, topics: Iterable[str], files: Iterable[DataFile]) -> None:
        for topic in topics:
            if self._config.entry_of(topic) is None:
                rows = sum(file.rows for file in files if topic_of(self._config, file.table) == topic)
                logger.warning(
                    "topic %s fits no entry of the settings: %s that came before the entry was removed are in table %s",
                    *(topic, counted(rows, "message", spec=","), self._tables[topic][-1].name),
                )


def _partition_key(rules: Sequence[TopicEntry]) -> Column:
    """Build the value by which the rows of a topic are divided, as a text."""
    time = F.coalesce("event_time", "published_at")
    names = []
    for entry in rules:
        by = entry.partition_by
        names.append(field_column(by, entry.schema.fields[by]) if by in entry.schema.fields else by)
    name, key = by_topic(rules, names), F.lit("")
    for each in dict.fromkeys(names):
        if each != "none":
            value = F.date_trunc(each, time) if each in ("day", "hour") else F.col(f"`{each}`")
            key = F.when(name == each, value.cast("string")).otherwise(key)
    return key


# --- in tasks


def _write(
    config: PipelineConfig, known: Set[str], batch_id: int, batches: Iterator[Any]
) -> Iterator[DataFile]:  # Any: pyarrow has no types
    """Write the rows of a batch to the tables of their topics; known are the topics that have tables."""
    targets: dict[str, tuple[TableTarget, ...]] = {}

    def route(batch: Any) -> Iterator[tuple[TableTarget, Any]]:  # Any: pyarrow has no types
        topics = batch.column("topic")
        names = pc.unique(topics).to_pylist()
        for topic in names:
            if topic not in targets:
                targets[topic] = archive_targets(config, topic, batch_id)
                if topic not in known:
                    _make_directories(config, targets[topic])
            rows = batch if len(names) == 1 else batch.filter(pc.equal(topics, topic))
            yield from _route(config.entry_of(topic), targets[topic], rows)

    yield from write(batches, route)


def _make_directories(config: PipelineConfig, targets: Iterable[TableTarget]) -> None:
    """Make the directories of tables that do not exist yet, but not output itself: its disk may not be mounted."""
    output = open_store(config.output, "output")
    for target in targets:
        if isinstance(output, LocalStore) and output.root.is_dir():
            make_directory(output.root / target.name)


def _route(
    entry: TopicEntry | None, targets: Sequence[TableTarget], rows: Any
) -> Iterator[tuple[TableTarget, Any]]:  # Any: pyarrow has no types
    malformed = pc.is_valid(rows.column("reason"))
    if pc.any(malformed).as_py():
        yield targets[-1], rows.filter(malformed)
        rows = rows.filter(pc.invert(malformed))
    if entry is not None and rows.num_rows:
        names = {field_column(name, kind): name for name, kind in entry.schema.fields.items()}
        # A field may be called topic, too.
        kept = [name for name in rows.schema.names if name in names or (" " not in name and name != "topic")]
        yield targets[0], rows.select(kept).rename_columns([names.get(name, name) for name in kept])


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
