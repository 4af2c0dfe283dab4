"""Replays, in a process of their own while the job runs: rebuild() counts a metric anew, replay_dead() takes dead
letters through the schema again.

Neither needs the lock of the work directory, or changes whom a table belongs to: the log of each table decides between
them and the job. Both may be killed after any step, and run again:

    rebuild       is a count of all windows, see metrics.py.
    replay_dead   commits the events to their table, then takes them out of the table of dead letters. After a kill
                  between the two they are in both. The next run knows them by their messages and only takes them out:
                  files and versions tell nothing, since maintenance may have merged both tables.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.archive import Task, archive_schema, dead_table, write_rows
from gnsq.spark.pipeline.delta import Table
from gnsq.spark.pipeline.events import plan
from gnsq.spark.pipeline.functions import SetupSession
from gnsq.spark.pipeline.metrics import Metric
from gnsq.spark.pipeline.parquet import DataFile, collect_files
from gnsq.spark.pipeline.query import load_function
from gnsq.spark.pipeline.reading import table_rows
from gnsq.spark.pipeline.settings import JobSettings, Query
from gnsq.spark.pipeline.snapshot import Snapshot, existing_snapshot, open_snapshot
from gnsq.spark.pipeline.tables import SettingError
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
# Application whose transaction lets only one of two replays add the same events.
_REPLAY = "gnsq:replay"
# Number of tries of a commit, which others may be first with; and of a replay, whose files they may have replaced.
_TRIES = 20


def rebuild(
    settings: JobSettings, name: str, open_spark: OpenSpark, *, report: Callable[[str], object] = print
) -> None:
    """Count all windows of a metric anew, from the first event of its table on.

    Args:
        report: Called with a line of text: what was counted.

    Raises:
        JobFailed, ValueError: If it can't be done.
    """
    with _session(settings, open_spark) as spark:
        count = Metric(spark, settings, name).count(is_all=True)
    if count is None:
        place = redact_uri(settings.location_of(settings.metrics[name].table))
        raise JobFailed(f"table {place} has no events that metric {name} could count")
    report(f"metric {name} has {counted(count.rows, 'row', spec=',')}, of version {count.version} of its table")


# --- dead letters


def replay_dead(
    settings: JobSettings, name: str, open_spark: OpenSpark, *, report: Callable[[str], object] = print
) -> None:
    """Take the dead letters of a table through its settings again, as they are now.

    Those that are events now go to the table, with their own columns as they were. Those that are malformed stay, with
    their new reason. Those that the setting where leaves out go. Nothing is published. Metrics count the events next.

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


def _try_replay(spark: SparkSession, query: Query, letters: Snapshot, report: Callable[[str], object]) -> bool:
    """Replay the dead letters of a version; return False if another process has replaced some of them meanwhile."""
    rows = table_rows(spark, letters)
    events = plan(rows.select(*(F.col(column).alias(name) for name, column in _SOURCE.items())), query.events)
    schema = archive_schema(events, query.events)
    table, dead = Table(query.name, query.location, schema, query.events.partition_by), dead_table(query)
    table.prepare()
    before = existing_snapshot(table.location)
    # Two replays may read the same letters, but one commits: both have a transaction of _REPLAY after this version.
    first, last = letters.bounds("_published_at")
    near = before if first is None else before.where("_published_at", lambda low, high: low <= last and first <= high)
    found = table_rows(spark, near, _MESSAGE)
    known = found.join(rows, _MESSAGE, "left_semi").distinct().persist()
    try:
        already = rows.join(known, _MESSAGE, "left_semi").count()
        left = events.frame.join(known, _MESSAGE, "left_anti")
        task = Task(table.target(0), dead.target(0), events.shape, schema)
        files = collect_files(left, functools.partial(write_rows, task))
    finally:
        known.unpersist()
    of_table, of_dead = ([file for file in files if file.table == each.name] for each in (table, dead))
    if of_table and not before.commit(of_table, transactions=[(_REPLAY, letters.version)]):
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


@contextlib.contextmanager
def _session(settings: JobSettings, open_spark: OpenSpark) -> Iterator[SparkSession]:
    with open_spark() as spark:
        if (setup := load_function(settings.setup, "setup")) is not None:
            setup(SetupSession(spark))
        yield spark
