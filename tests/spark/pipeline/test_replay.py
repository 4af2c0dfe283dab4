"""Replays in a real Spark: dead letters that are events now."""

import contextlib
import datetime as dt

import pytest

from gnsq.spark.pipeline.archive import DEAD_SCHEMA, ArchiveBatches
from gnsq.spark.pipeline.delta import BatchIdentity, Table
from gnsq.spark.pipeline.maintenance import maintain_table
from gnsq.spark.pipeline.metrics import Metric
from gnsq.spark.pipeline.replay import replay_dead
from gnsq.spark.pipeline.tables import SettingError
from tests.spark.pipeline.helpers import PUBLISHED_AT, event, messages, parsed_messages, table_rows
from tests.spark.pipeline.jobs import job, metric, parsed, table

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, page STRING NOT NULL, time TIMESTAMP NOT NULL"
# Before the time at which all messages are published.
START = PUBLISHED_AT - dt.timedelta(hours=4)


class Killed(Exception):
    """Stands for kill -9 after a step."""


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

    def archive(self, *bodies):
        """A batch of the table's query."""
        events, found = parsed_messages(self.spark, self.clicks.events, messages(bodies, self.ids))
        self.ids += len(bodies)
        self.batches += 1
        ArchiveBatches(self.clicks, events)(found, BatchIdentity("ours", self.batches, 1, 1))

    def count(self):
        """Count the metric, as the job does after a start."""
        Metric(self.spark, self.settings, "pages").count()

    def replay(self, meanwhile=lambda: None):
        """Replay the dead letters; return what is told.

        Args:
            meanwhile: Called once between the commits to the two tables. It is what the job does, or a kill.
        """
        lines, calls = [], [meanwhile]

        def report(line):
            lines.append(line)
            if "are events now" in line and calls:
                calls.pop()()

        replay_dead(self.settings, "clicks", lambda: contextlib.nullcontext(self.spark), report=report)
        return "\n".join(lines)

    @property
    def counts(self):
        return {row["page"]: row["count"] for row in table_rows(self.settings.location_of("pages"))}

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


def test_tables_on_an_object_store_are_replayed_and_letters_that_stay_have_the_new_reason(spark, s3, tmp_path):
    site = Site(spark, tmp_path, s3.location("bucket/replay", "KEY:SECRET@"))
    site.archive(event(START), event(START, page=None), event(START, page=None, user=None))
    assert [reason for _, reason in site.dead] == ["page is missing or null"] * 2
    site.count()
    site.give(
        schema=SCHEMA.replace("page STRING NOT NULL", "page STRING").replace("user STRING", "user STRING NOT NULL")
    )

    site.replay()
    site.count()

    assert site.counts == {"/": 1, None: 1}
    assert [reason for _, reason in site.dead] == ["user is missing or null"]


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
    told = letters.replay()

    assert letters.events == [("a", 0), ("b", 1), ("c", 2)]
    [row] = [row for row in table_rows(letters.clicks.location) if row["user"] == "b"]
    assert (row["span"], row["_time"], row["_body"], row["_attempts"]) == ("2 s", START, BODIES[1], 1)
    assert [body for body, _ in letters.dead] == [b"not json"]
    assert "2 dead letters of 4 are events now" in told
    assert "0 were events of the table before, 1 are left out by where; 1 are still malformed" in told
    status = Table("clicks_dead", letters.clicks.dead_location, DEAD_SCHEMA, ("_day",)).status()
    assert (status.rows, status.maintained_at) == (1, None)


def test_what_can_not_be_replayed_is_refused_and_without_dead_letters_nothing_is_done(spark, site, tmp_path):
    assert "no dead letters" in site.replay()

    for changes in ({"format": "raw"}, {"schema": SCHEMA, "sink": "module:function"}):
        settings = job(tmp_path, table(**changes))
        with pytest.raises(SettingError, match="can't be replayed"):
            replay_dead(settings, "clicks", lambda: contextlib.nullcontext(spark))


def test_a_replay_that_is_killed_between_its_commits_is_finished_by_the_next_one(letters):
    def kill():
        raise Killed

    with pytest.raises(Killed):
        letters.replay(kill)
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

    told = letters.replay(work)

    assert letters.events == [("a", 0), ("b", 1), ("c", 2), ("e", 5)]
    assert [body for body, _ in letters.dead] == [b"not json", b"not json either"]
    assert "2 were events of the table before" in told
    # The tables still belong to the job.
    letters.archive(timed("f", 6))


def test_two_replays_at_once_add_an_event_once(letters):
    letters.replay(letters.replay)

    assert letters.events == [("a", 0), ("b", 1), ("c", 2)]
    assert [body for body, _ in letters.dead] == [b"not json"]
