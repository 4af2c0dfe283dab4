"""Replays, in a process of their own while the job runs: rebuild() counts a metric anew from the archive, replay_dead()
takes dead letters through the schema again.

Neither needs the lock of the work directory, or changes whom a table belongs to: the log of each table decides between
them and the job. Both may be killed after any step, and run again:

    rebuild       takes an epoch of its own, then commits all rows at once. A kill leaves an epoch without rows.
    replay_dead   commits the events to their table, then takes them out of the table of dead letters. After a kill
                  between the two they are in both. The next run knows them by their messages and only takes them out:
                  files and versions tell nothing, since maintenance may have merged both tables.

Tasks read the files through the stores that the job uses, so Spark needs no package for Delta or for an object store.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.archive import Task, archive_schema, dead_table, write_rows
from gnsq.spark.pipeline.checkpoint import changes
from gnsq.spark.pipeline.delta import Table
from gnsq.spark.pipeline.events import OWN, plan
from gnsq.spark.pipeline.metrics import aggregated, metric_table, write_counts
from gnsq.spark.pipeline.parquet import DataFile, collect_files, conformed, map_in_arrow
from gnsq.spark.pipeline.query import load_function
from gnsq.spark.pipeline.settings import JobSettings, Query
from gnsq.spark.pipeline.snapshot import PATH, Snapshot, open_snapshot, read_rows
from gnsq.spark.pipeline.tables import MetricSettings, SettingError
from gnsq.spark.spool.storage import open_store
from gnsq.spark.uris import redact_uri
from gnsq.texts import counted

__all__ = ["rebuild", "replay_dead"]

OpenSpark = Callable[[], AbstractContextManager[SparkSession]]

# What tells messages apart: an nsqd gives the same id to messages of several topics.
_MESSAGE = ["_nsqd", "_topic", "_message_id"]
# Columns of the source, and those of a table of dead letters that they come from.
_SOURCE = {
    "body": "_body",
    "message_id": "_message_id",
    "attempts": "_attempts",
    "published_at": "_published_at",
    "received_at": "_published_at",
    "nsqd": "_nsqd",
    "topic": "_topic",
}
# The epochs of rebuilds have this name in the properties of a table, in place of a checkpoint's id.
_REBUILD = "rebuild"
# Application whose transaction lets only one of two replays add the same events.
_REPLAY = "gnsq:replay"
# Number of tries of a commit, which others may be first with; and of a replay, whose files they may have replaced.
_TRIES = 20
# Tasks that read a table, for each core. A task costs about as much as reading ten small files.
_TASKS = 4


def rebuild(
    settings: JobSettings,
    name: str,
    open_spark: OpenSpark,
    *,
    until: dt.datetime | None = None,
    report: Callable[[str], object] = print,
) -> None:
    """Count a metric anew, of the events in its table, in a new epoch: the windows that end at the cut or before it.

    An event that comes later for one of these windows is counted by the job in its own epoch alone, whose rows are not
    valid there any more: another rebuild has it. Windows after the cut are the job's. Without until, they are counted,
    too, in epoch 0: these rows are valid until the job has one for the window.

    Args:
        until: The cut; default, and at most: when the newest event of the table was published.
        report: Called with lines of text: what was counted.

    Raises:
        JobFailed, ValueError: If it can't be done.
    """
    query = next(each for each in settings.queries if each.name == name)
    metric = query.metric
    assert metric is not None  # the caller has checked it
    if changed := changes(query):
        report(
            f"{', '.join(changed)} changed since the job's last start: it counts by those of before until the next one"
        )
    archive = next(each for each in settings.queries if each.name == metric.table)
    if not archive.location:
        raise SettingError(f"sink: the events of metric {name} are in no table", f"tables.{archive.name}")
    source = open_snapshot(archive.location)
    if source is None or not source.rows:
        raise JobFailed(f"table {redact_uri(archive.location)} has no events that metric {name} could count")
    report(f"table {archive.name} has {counted(source.rows, 'event', spec=',')} in version {source.version}")
    with _session(settings, open_spark) as spark:
        rows = _rows(spark, source, _needed(metric, source.schema.names))
        # As a number: of a time PySpark would make that of the process's time zone.
        newest = rows.agg(F.max(F.unix_micros("_published_at"))).collect()[0][0]
        cut = newest if until is None else min(newest, _micros(until))
        events = rows.dropDuplicates(_MESSAGE) if query.deduplicate else rows
        counts = aggregated(events, metric, is_stream=False).persist()
        table = metric_table(query, counts)
        table.prepare()
        epoch = table.begin_epoch(_REBUILD)
        # The version of a row of epoch 0 is this rebuild's epoch: a later one has a higher version.
        parts = [(F.col("_window_end") <= _time(cut), table.target(0), epoch)]
        parts += [(F.col("_window_end") > _time(cut), table.target(epoch), 0)] if until is None else []
        try:
            files = [
                collect_files(counts.where(condition), functools.partial(write_counts, target=target, epoch=number))
                for condition, target, number in parts
            ]
        finally:
            counts.unpersist()
        _append(table, list(itertools.chain.from_iterable(files)))
        report(f"metric {name} has epoch {epoch} for the windows until {_text(cut)}; those after it are the job's")


def _needed(metric: MetricSettings, names: Collection[str]) -> list[str]:
    """Return the columns that a metric needs, or some more: our own, and those whose names are in its expressions."""
    text = " ".join((*metric.keys, *metric.aggregates)).lower().replace("``", "`")
    needs_all = "*" in text.replace("count(*)", "")
    return [name for name in names if name in OWN or name.lower() in text or needs_all]


# --- dead letters


def replay_dead(
    settings: JobSettings, name: str, open_spark: OpenSpark, *, report: Callable[[str], object] = print
) -> None:
    """Take the dead letters of a table through its settings again, as they are now.

    Those that are events now go to the table, with their own columns as they were. Those that are malformed stay, with
    their new reason. Those that the setting where leaves out go. Nothing is published, and metrics get nothing.

    Args:
        report: Called with lines of text: what became of the dead letters.

    Raises:
        JobFailed, ValueError: If it can't be done.
    """
    query = next(each for each in settings.queries if each.name == name)
    if not query.dead_location or not query.location:
        what = "sink: dead letters" if query.dead_location else "format raw: no message is malformed, and dead letters"
        raise SettingError(f"{what} can't be replayed", f"tables.{name}")
    with _session(settings, open_spark) as spark:
        for _ in range(_TRIES):
            letters = open_snapshot(query.dead_location)
            if letters is None or not letters.rows:
                report(f"table {name}_dead has no dead letters")
                return
            if _try_replay(spark, query, letters, report):
                break
        else:
            raise JobFailed(f"table {name}_dead was changed by others in each of {_TRIES} tries: start again")
    for metric in settings.metrics.values():
        if metric.table == name:
            report(f"metric {metric.name} has not counted them: gnsq-pipeline rebuild {metric.name}")


def _try_replay(spark: SparkSession, query: Query, letters: Snapshot, report: Callable[[str], object]) -> bool:
    """Replay the dead letters of a version; return False if another process has replaced some of them meanwhile."""
    rows = _rows(spark, letters)
    events = plan(rows.select(*(F.col(column).alias(name) for name, column in _SOURCE.items())), query.events)
    schema = archive_schema(events, query.events)
    table, dead = Table(query.name, query.location, schema, query.events.partition_by), dead_table(query)
    table.prepare()
    before = _opened(table)
    # Two replays may read the same letters, but one commits: both have a transaction of _REPLAY after this version.
    found = _rows(spark, before.between("_published_at", *letters.bounds("_published_at")), _MESSAGE)
    known = found.join(rows, _MESSAGE, "left_semi").distinct().persist()
    try:
        already = rows.join(known, _MESSAGE, "left_semi").count()
        left = events.frame.join(known, _MESSAGE, "left_anti")
        task = Task(table.target(0), dead.target(0), events.shape, schema)
        files = collect_files(left, functools.partial(write_rows, task))
    finally:
        known.unpersist()
    of_table, of_dead = ([file for file in files if file.table == each.name] for each in (table, dead))
    if of_table and not before.commit(of_table, transaction=(_REPLAY, letters.version)):
        return False
    added, malformed = (sum(file.rows for file in each) for each in (of_table, of_dead))
    report(f"{counted(added, 'dead letter', spec=',')} of {letters.rows:,} are events now, and in table {query.name}")
    if not _try_replace(letters, of_dead):
        return False
    report(
        f"{already:,} were events of the table before, {letters.rows - added - already - malformed:,} are left out by "
        f"where; {malformed:,} are still malformed, and stay in table {dead.name}"
    )
    return True


def _try_replace(old: Snapshot, new: list[DataFile]) -> bool:
    """Put files in the place of all files of a version. Return False if some of those are gone, or others are first."""
    files = old.files
    for _ in range(_TRIES):
        newest = open_snapshot(old.location)
        if newest is None or not {file.path for file in files} <= {file.path for file in newest.files}:
            break
        if newest.commit(new, files):
            return True
    return False


# --- tables


def _opened(table: Table) -> Snapshot:
    found = open_snapshot(table.location)
    if found is None:
        raise JobFailed(f"table {redact_uri(table.location)} was deleted meanwhile")
    return found


def _append(table: Table, files: list[DataFile]) -> None:
    for _ in range(_TRIES):
        if not files or _opened(table).commit(files):
            return
    raise JobFailed(f"table {table.name} was changed by others in each of {_TRIES} tries: start again")


@contextlib.contextmanager
def _session(settings: JobSettings, open_spark: OpenSpark) -> Iterator[SparkSession]:
    with open_spark() as spark:
        if (setup := load_function(settings.setup, "setup")) is not None:
            setup(spark)
        yield spark


def _micros(time: dt.datetime) -> int:
    """Return microseconds since 1970; a time without a zone is in UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
    return (aware - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(microseconds=1)


def _time(micros: int) -> Column:
    return F.timestamp_micros(F.lit(micros))


def _text(micros: int) -> str:
    time = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=micros)
    return f"{time:%Y-%m-%dT%H:%M:%S}Z"


def _rows(spark: SparkSession, snapshot: Snapshot, columns: Collection[str] | None = None) -> DataFrame:
    """Read rows of a table, all columns or these."""
    schema = pa.schema([field for field in snapshot.schema if columns is None or field.name in columns])
    files = snapshot.listing.select([PATH, *(name for name in snapshot.partition_columns if name in schema.names)])
    tasks = max(min(files.num_rows, spark.sparkContext.defaultParallelism * _TASKS), 1)
    read = functools.partial(_read, snapshot.location, schema)
    return map_in_arrow(spark.createDataFrame(files).repartition(tasks), read, from_arrow_schema(schema))


# --- in tasks


def _read(location: str, schema: Any, batches: Iterator[Any]) -> Iterator[Any]:  # Any: pyarrow has no types
    """Read files; each row has the path of one, and the values of its partition."""
    store = open_store(location, "output")
    for row in (row for batch in batches for row in batch.to_pylist()):
        path = row.pop(PATH)
        for rows in read_rows(store, path, schema.names):
            table = pa.Table.from_batches([rows])
            for name, value in row.items():
                values = pa.repeat(pa.scalar(value, schema.field(name).type), table.num_rows)
                table = table.append_column(name, values)
            yield from conformed(table, schema).to_batches()
