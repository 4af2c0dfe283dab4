"""Replays in a real Spark: a metric counted anew from the table of its events, and dead letters that are events now."""

import contextlib
import datetime as dt
import json

import pyarrow as pa
import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.archive import DEAD_SCHEMA, ArchiveBatches, archive_schema
from gnsq.spark.pipeline.delta import BatchIdentity, Table
from gnsq.spark.pipeline.events import plan
from gnsq.spark.pipeline.maintenance import maintain_table
from gnsq.spark.pipeline.metrics import Metric
from gnsq.spark.pipeline.replay import rebuild, replay_dead
from gnsq.spark.pipeline.tables import SettingError
from tests.spark.pipeline.helpers import (
    MESSAGES,
    PUBLISHED_AT,
    Rows,
    delta_table,
    event,
    message,
    table_rows,
)
from tests.spark.pipeline.jobs import job, metric, parsed, table

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, page STRING NOT NULL, time TIMESTAMP NOT NULL"
# message() of the helpers says that all are published at 2026-12-01; events are of the hours before.
START = dt.datetime(2026, 11, 30, 20, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
JOB = "ours"
NAMES = [column.split()[0] for column in MESSAGES.split(", ")]
# By settings, first id and bodies: Spark parses the same ones once for all tests.
PARSED = {}


class Killed(Exception):
    """Stands for kill -9 after a step."""


class Lines(list):
    """The lines of a report.

    Args:
        killed_after: A part of the line after which the replay is killed.
        then: Part of a line -> a function that is called once after it, as if the job did this meanwhile.
    """

    def __init__(self, killed_after=None, then=()):
        self._killed_after = killed_after
        self._then = dict(then)

    def __call__(self, line):
        self.append(line)
        if self._killed_after is not None and self._killed_after in line:
            raise Killed
        for part in [part for part in self._then if part in line]:
            self._then.pop(part)()

    @property
    def text(self):
        return "\n".join(self)


class Site:
    """A job with the table clicks and the metric pages, without its life in Spark."""

    def __init__(self, spark, path, output=None):
        self.spark = spark
        self.path = path
        self.output = str(output or path / "output")
        self.ids = 0
        self.batches = 0
        self.give()

    def give(self, **settings):
        """Give other settings."""
        events = table(**{"schema": SCHEMA, "time": "time", **settings})
        self.settings = job(self.path, events, metric(), output=self.output)
        [self.clicks] = self.settings.queries
        self.planned = None

    def frame(self, bodies):
        """Messages with these bodies."""
        return self.spark.createDataFrame(list(map(self._message, bodies)), MESSAGES)

    def events_of(self, bodies):
        """What Spark makes of bodies, all of which are events, without Spark."""
        self.planned = self.planned or plan(self.frame([]), self.clicks.events)
        rows = []
        for body in bodies:
            own = {f"_{name}": value for name, value in zip(NAMES, self._message(body), strict=True)}
            fields = json.loads(body)
            time = dt.datetime.fromisoformat(fields["time"])
            own["_time"] = time if self.clicks.events.time else PUBLISHED_AT
            rows.append({**own, **fields, "time": time, "_body": body})
        schema = archive_schema(self.planned, self.clicks.events).append(pa.field("_wrong", pa.int8()))
        return pa.Table.from_pylist(rows, schema=schema)

    def _message(self, body):
        self.ids += 1
        return message(self.ids - 1, body)

    def archive(self, *bodies):
        """A batch of the table's query."""
        key = repr(self.clicks.events), self.ids, *bodies
        messages = self.frame(bodies)
        if key not in PARSED:
            events = plan(messages, self.clicks.events)
            PARSED[key] = events, events.frame.toArrow()
        events, found = PARSED[key]
        self._run(ArchiveBatches(self.clicks, events), Rows(self.spark, found))

    def put(self, *events):
        """A batch of the table's query, all of events."""
        rows = Rows(self.spark, self.events_of(events))
        self._run(ArchiveBatches(self.clicks, self.planned), rows)

    def _run(self, batches, rows):
        self.batches += 1
        batches(rows, BatchIdentity(JOB, self.batches, 1, 1))

    def metric(self):
        """The metric, as the job has it after a start."""
        return Metric(self.spark, self.settings, "pages")

    def rebuild(self):
        lines = Lines()
        rebuild(self.settings, "pages", lambda: contextlib.nullcontext(self.spark), report=lines)
        return lines

    def replay(self, lines=None):
        lines = Lines() if lines is None else lines
        replay_dead(self.settings, "clicks", lambda: contextlib.nullcontext(self.spark), report=lines)
        return lines

    @property
    def counts(self):
        """(minutes after START, page, count) of the metric's rows."""
        rows = table_rows(self.settings.location_of("pages"))
        return sorted((((row["_window_start"] - START) // MINUTE, row["page"], row["count"]) for row in rows), key=str)

    @property
    def events(self):
        """Users in the table, with the id of the message."""
        return sorted((row["user"], int(row["_message_id"])) for row in table_rows(self.clicks.location))

    @property
    def dead(self):
        """Bodies in the table of dead letters, with the reason."""
        return sorted((row["_body"], row["_reason"]) for row in table_rows(self.clicks.dead_location))


@pytest.fixture
def site(spark, tmp_path):
    return Site(spark, tmp_path)


def at(minute, page="/"):
    return event(START + minute * MINUTE, page)


# --- rebuild


def test_a_rebuild_counts_all_windows_of_the_table_anew_and_the_job_goes_on(site):
    with pytest.raises(JobFailed, match=r"clicks has no events that metric pages could count"):
        site.rebuild()
    site.put(at(0), at(0, "/cart"), at(2))
    site.metric().count()

    lines = site.rebuild()
    assert site.counts == [(0, "/", 1), (0, "/cart", 1), (2, "/", 1)]
    assert lines == ["metric pages has 3 rows, of version 1 of its table"]

    site.put(at(2))
    assert site.metric().count().rows == 1
    assert site.counts == [(0, "/", 1), (0, "/cart", 1), (2, "/", 2)]


def test_tables_on_an_object_store_are_replayed_and_letters_that_stay_have_the_new_reason(spark, s3, tmp_path):
    site = Site(spark, tmp_path, s3.location("bucket/replay", "KEY:SECRET@"))
    site.archive(at(0), event(START, page=None), event(START, page=None, user=None))
    assert [reason for _, reason in site.dead] == ["page is missing or null"] * 2
    site.metric().count()
    site.give(
        schema=SCHEMA.replace("page STRING NOT NULL", "page STRING").replace("user STRING", "user STRING NOT NULL")
    )

    site.replay()
    site.metric().count()

    assert site.counts == [(0, "/", 1), (0, None, 1)]
    assert [reason for _, reason in site.dead] == ["user is missing or null"]


# --- replay-dead


OLD = parsed("user STRING, page STRING, ms INT, time TIMESTAMP")
NEW = OLD.replace("ms INT", "span STRING").replace("CAST(body AS STRING)", "replace(string(body), 'ms', 'span')")


def timed(user, ms, page="/"):
    return event(START, page, user, ms=ms)


BODIES = [timed("a", 1), timed("b", "2 s"), timed("c", "3 s"), b"not json", timed("d", "4 s", "/health")]


@pytest.fixture
def letters(site):
    """A job with dead letters of which some are events by other settings, which are given."""
    site.give(schema="", parse=OLD, where="page <> '/health'")
    site.archive(*BODIES[:3])
    site.archive(*BODIES[3:])
    assert [body for body, _ in site.dead] == sorted([BODIES[1], BODIES[2], BODIES[3], BODIES[4]])
    site.give(schema="", parse=NEW, where="page <> '/health'")
    return site


def test_dead_letters_that_are_events_now_go_to_their_table(letters):
    lines = letters.replay()

    assert letters.events == [("a", 0), ("b", 1), ("c", 2)]
    [row] = [row for row in table_rows(letters.clicks.location) if row["user"] == "b"]
    assert (row["span"], row["_time"], row["_body"], row["_attempts"]) == ("2 s", START, BODIES[1], 1)
    assert [body for body, _ in letters.dead] == [b"not json"]
    assert "2 dead letters of 4 are events now" in lines.text
    assert "0 were events of the table before, 1 are left out by where; 1 are still malformed" in lines.text
    status = Table("clicks_dead", letters.clicks.dead_location, DEAD_SCHEMA, ("_day",)).status()
    assert (status.rows, status.maintained_at) == (1, None)


def test_what_can_not_be_replayed_is_refused_and_without_dead_letters_nothing_is_done(spark, site, tmp_path):
    site.put(at(0))
    versions = delta_table(site.clicks.location).version()
    assert "no dead letters" in site.replay().text
    assert delta_table(site.clicks.location).version() == versions

    for changes in ({"format": "raw"}, {"schema": SCHEMA, "sink": "module:function"}):
        settings = job(tmp_path, table(**changes))
        with pytest.raises(SettingError, match="can't be replayed"):
            replay_dead(settings, "clicks", lambda: contextlib.nullcontext(spark))


def test_a_replay_that_is_killed_between_its_commits_is_finished_by_the_next_one(letters):
    with pytest.raises(Killed):
        letters.replay(Lines(killed_after="are events now"))
    # Both tables are merged meanwhile.
    for location in (letters.clicks.location, letters.clicks.dead_location):
        maintain_table(location, retention=None, quiet=-60)
    letters.replay()

    assert letters.events == [("a", 0), ("b", 1), ("c", 2)]
    assert [body for body, _ in letters.dead] == [b"not json"]


def test_the_job_and_maintenance_may_work_on_both_tables_meanwhile(letters):
    def work():
        letters.archive(timed("e", 5), b"not json either")
        maintain_table(letters.clicks.dead_location, retention=None, quiet=-60)

    lines = letters.replay(Lines(then={"are events now": work}))

    assert letters.events == [("a", 0), ("b", 1), ("c", 2), ("e", 5)]
    assert [body for body, _ in letters.dead] == [b"not json", b"not json either"]
    assert "2 were events of the table before" in lines.text
    # The tables still belong to the job.
    letters.archive(timed("f", 6))


def test_two_replays_at_once_add_an_event_once(letters):
    other = Lines()
    letters.replay(Lines(then={"are events now": lambda: letters.replay(other)}))

    assert letters.events == [("a", 0), ("b", 1), ("c", 2)]
    assert [body for body, _ in letters.dead] == [b"not json"]
