"""Batches of a table's query."""

import datetime as dt
import json
from dataclasses import replace

import pyarrow as pa
import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline import archive as archive_module
from gnsq.spark.pipeline.archive import DEAD_SCHEMA, ArchiveBatches
from gnsq.spark.pipeline.delta import BatchIdentity
from tests.spark.pipeline.helpers import delta_table, event, messages, parsed_messages, table_rows
from tests.spark.pipeline.jobs import job, table

BODIES = [
    b'{"time": "2026-01-01T10:00:01Z", "user": "u1", "page": "/"}',
    b'{"time": "2026-01-01T10:00:59.5Z", "user": "u2", "page": "/", "more": [1]}',
    b'{"time": "2026-01-02T00:01:00+01:00", "user": "u2", "page": "/cart"}',
    b"not json",
    b'{"time": "2026-01-01T10:00:01Z", "page": "/"}',
]
EVENTS = "user STRING NOT NULL, page STRING, time TIMESTAMP NOT NULL"
OURS, THEIRS = "ours", "theirs"


class Archive:
    """The query of a table, without its life in Spark."""

    def __init__(self, spark, settings):
        [self.query] = settings.queries
        self._spark = spark

    def parsed(self, bodies):
        """The events, and what foreachBatch is called with, for these bodies."""
        return parsed_messages(self._spark, self.query.events, messages(bodies))

    def batches(self, bodies=BODIES, **options):
        """The batches of a job that has just started."""
        return ArchiveBatches(self.query, self.parsed(bodies)[0], **options)

    def run(self, bodies, batch_id=0, **options):
        """A batch of these bodies."""
        events, rows = self.parsed(bodies)
        return ArchiveBatches(self.query, events, **options)(rows, identity(batch_id))

    @property
    def rows(self):
        return table_rows(self.query.location)

    @property
    def dead(self):
        return table_rows(self.query.dead_location)


def identity(batch_id):
    return BatchIdentity(OURS, batch_id, 1, 1)


@pytest.fixture
def settings_of(tmp_path):
    """Makes the settings of a job with one table."""

    def make(**changes):
        return job(tmp_path, table(**{"schema": EVENTS, "time": "time", **changes}))

    return make


@pytest.fixture
def archive(spark, settings_of):
    return Archive(spark, settings_of())


@pytest.mark.spark
@pytest.mark.subprocess
def test_events_are_kept_by_day_and_others_are_dead_letters_with_their_reason(archive):
    archive.run(BODIES)

    rows = {row["_body"]: row for row in archive.rows}
    assert sorted(rows) == sorted(BODIES[:3])
    cart = rows[BODIES[2]]
    assert cart["_time"] == cart["time"] == dt.datetime(2026, 1, 1, 23, 1, tzinfo=dt.UTC)
    assert (cart["page"], cart["user"], cart["_day"]) == ("/cart", "u2", dt.date(2026, 1, 1))
    reasons = {row["_body"]: row["_reason"] for row in archive.dead}
    assert sorted(reasons) == sorted(BODIES[3:])
    assert "user" in reasons[BODIES[4]]
    assert {(row["_topic"], row["_nsqd"]) for row in archive.dead} == {("clicks", "127.0.0.1:4150")}
    assert list(archive.dead[0]) == [*DEAD_SCHEMA.names, "_day"]


@pytest.mark.spark
def test_rows_of_many_partitions_are_in_one_file_for_each(archive, monkeypatch):
    monkeypatch.setattr(archive_module, "SPREAD", 5)
    start = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
    frame = archive.parsed([event(start + dt.timedelta(days=day)) for day in range(6)] * 2)[0].frame
    batches = archive.batches()
    batches(frame.repartition(2), identity(0))
    before = batches.tables[0].status()

    batches(frame.repartition(2), identity(1))

    assert batches.tables[0].status().files - before.files == 6 < before.files
    assert len(archive.rows) == 24


@pytest.mark.spark
def test_sink_takes_the_rows_in_place_of_a_table(spark, settings_of):
    archive = Archive(spark, settings_of(sink="a:b", select=["user", "upper(page) AS page", "time"], time=""))
    times = [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)]
    bodies = [*BODIES, *map(event, times)]
    taken = []

    def texts(batches):
        for batch in batches:
            yield pa.record_batch({"text": [repr(row) for row in batch.to_pylist()]})

    def sink(rows, batch_id):
        rows = rows.select("user", "page", "time")
        taken.append((rows.toArrow().to_pylist(), rows.mapInArrow(texts, "text STRING").toArrow(), batch_id))

    archive.batches(bodies, sink=sink)(archive.parsed(bodies)[0].frame, identity(7))

    [(rows, in_tasks, batch_id)] = taken
    assert batch_id == 7
    named = [("u", "/"), ("u", "/"), ("u1", "/"), ("u2", "/"), ("u2", "/CART")]
    assert sorted((row["user"], row["page"]) for row in rows) == named
    # collect() and foreachPartition() would fail for the first of these.
    assert {*times} < {row["time"] for row in rows}
    assert sorted(in_tasks.column("text").to_pylist()) == sorted(map(repr, rows))
    assert len(archive.dead) == 2


# --- kills


@pytest.mark.spark
def test_batch_that_was_begun_with_other_settings_is_refused_before_it_is_read(archive):
    for number, bodies, name in (3, BODIES[3:], "clicks_dead"), (4, BODIES[:1], "clicks"):
        archive.run(bodies, number)

        with pytest.raises(JobFailed, match=rf"{name} has batch {number}, which was begun with other settings"):
            archive.batches()(None, replace(identity(number), settings=2))


@pytest.mark.spark
def test_kill_between_the_commits_loses_and_doubles_nothing(archive):
    archive.run(BODIES[:1])
    # The commit of dead fails: what follows that of the events does not happen.
    batches = archive.batches()
    batches(archive.parsed(BODIES[:1])[1], identity(1))
    dead = batches.tables[1]
    dead.claim(THEIRS, take_over=True)
    with pytest.raises(JobFailed, match="clicks_dead belongs to the checkpoint theirs"):
        batches(archive.parsed(BODIES)[1], identity(2))
    dead.claim(OURS, take_over=True)
    assert (len(archive.rows), len(archive.dead)) == (5, 0)

    archive.run(BODIES, 2)

    assert (len(archive.rows), len(archive.dead)) == (5, 2)


@pytest.mark.spark
def test_nested_types_and_all_scalars_are_columns_and_what_does_not_fit_is_kept(spark, settings_of):
    kinds = ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP", "DECIMAL(5,2)"]
    given = [True, 1, 2, 3, 4, 0.5, 0.25, "2026-01-01", "2026-01-01T10:00:00Z", 1.25]
    schema = ", ".join(f"field_{number} {kind}" for number, kind in enumerate(kinds))
    nested = "items ARRAY<STRUCT<sku: STRING, price: DECIMAL(10,2)>>, tags MAP<STRING, STRING>, geo STRUCT<lat: DOUBLE>"
    settings = settings_of(schema=f"{schema}, {nested}, user STRING NOT NULL", time="", keep="none", mismatch="rescue")
    archive = Archive(spark, settings)
    values = {f"field_{number}": value for number, value in enumerate(given)}
    more = {"items": [{"sku": "a", "price": 1.5}], "tags": {"k": "v"}, "geo": {"lat": 2.5}}

    archive.run([json.dumps({**values, **more, "user": "u"}).encode(), b'{"user": "v", "field_3": 7.50}', b"{}"])

    row, other = sorted(archive.rows, key=lambda row: row["user"])
    assert (row["_rescued"], other["field_3"], other["_rescued"]) == (None, None, '{"field_3":7.50}')
    assert ("_body" in row, len(archive.dead)) == (False, 1)
    assert {name: str(row[name]) for name in values} == {
        **{name: str(value) for name, value in values.items()},
        "field_8": "2026-01-01 10:00:00+00:00",
    }
    assert (str(row["items"][0]["price"]), row["tags"], row["geo"]) == ("1.50", [("k", "v")], {"lat": 2.5})
    assert "max.field_4" in delta_table(archive.query.location).get_add_actions(flatten=True).schema.names
