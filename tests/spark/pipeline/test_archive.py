import base64
import datetime as dt
import json
from dataclasses import replace

import pytest
from pyspark.errors import PySparkException

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.archive import LETTER_BYTES, SPREAD, ArchiveBatches, dead_letter
from gnsq.spark.pipeline.delta import BatchIdentity
from gnsq.spark.pipeline.events import parse_topics
from gnsq.spark.pipeline.layout import archive_tables, note_layout, note_tables, with_layout
from gnsq.spark.pipeline.lock import LeaseLost
from gnsq.spark.pipeline.windows import Metric
from tests.spark.pipeline.helpers import delta_table, event, messages, published, table_rows

BODIES = [
    b'{"time": "2026-01-01T10:00:01Z", "user": "u1", "page": "/"}',
    b'{"time": "2026-01-01T10:00:59.5Z", "user": "u2", "page": "/", "more": [1]}',
    b'{"time": "2026-01-02T00:01:00+01:00", "user": "u2", "page": "/cart"}',
    b"not json",
    b'{"time": "2026-01-01T10:00:01Z", "user": "", "page": "/"}',
]
RAW = [b"\xff\x00\xfe", b"", b"not json", BODIES[0]]
OURS, THEIRS = "ours", "theirs"


def parsed(spark, config, bodies):
    """What foreachBatch is called with, for these bodies."""
    return parse_topics(messages(spark, bodies), config.rules)


def run(config, frame, batch_id=0, owner=OURS, *, take_over=False):
    """A batch of a job that has just started."""
    return ArchiveBatches(config, take_over=take_over)(frame, identity(batch_id, owner))


def identity(batch_id, owner=OURS):
    return BatchIdentity(owner, batch_id, 1, 1)


def archived(config):
    return table_rows(f"{config.output}/archive")


def dead(config):
    return table_rows(f"{config.output}/dead")


def test_lost_table_of_a_checkpoint_that_only_spark_can_read_is_not_made_anew(config):
    with pytest.raises(JobFailed, match="is missing, and its checkpoint has 500 batches"):
        ArchiveBatches(config)(None, BatchIdentity(OURS, 500, 0, 1))


@pytest.mark.spark
@pytest.mark.subprocess
def test_events_are_kept_by_day_and_others_are_dead_letters_with_their_reason(spark, fakensqd, config, tmp_path):
    run(config, parsed(spark, config, BODIES))

    rows = {row["body"].encode(): row for row in archived(config)}
    assert sorted(rows) == sorted(BODIES[:3])
    cart = rows[BODIES[2]]
    assert cart["event_time"] == dt.datetime(2026, 1, 1, 23, 1, tzinfo=dt.UTC)
    assert (cart["page"], cart["user"], cart["_day"]) == ("/cart", "u2", dt.date(2026, 1, 1))
    letters = published(fakensqd, "clicks-dead", tmp_path)
    assert {base64.b64decode(letter["body_base64"]): letter["reason"] for letter in letters} == {
        BODIES[3]: "body is not a JSON object",
        BODIES[4]: "user is missing",
    }
    assert {row["body"]: row["reason"] for row in dead(config)} == {
        base64.b64decode(letter["body_base64"]): letter["reason"] for letter in letters
    }


@pytest.mark.spark
@pytest.mark.parametrize(
    ("partition_by", "values"),
    [
        pytest.param("hour", {"2026-01-01T10": 2, "2026-01-01T23": 1}, id="hour"),
        pytest.param("user", {"u1": 1, "u2": 2}, id="field"),
        pytest.param("none", {}, id="none"),
    ],
)
def test_archive_is_divided_as_the_setting_says(spark, config, partition_by, values):
    config = replace(config, partition_by=partition_by)

    run(config, parsed(spark, config, BODIES[:3]))

    rows = archived(config)
    assert len(rows) == 3
    name = {"day": "_day", "hour": "_hour"}.get(partition_by, partition_by)
    found = [row[name] for row in rows if name in row]
    assert {value: found.count(value) for value in found} == values


@pytest.mark.spark
@pytest.mark.parametrize(
    ("column", "value"), [("_day", dt.date(2026, 6, 1)), ("_hour", "2026-06-01T00"), ("_none", None)]
)
def test_raw_bodies_are_kept_as_they_came(spark, config, column, value):
    config = replace(config, raw=True, fields={}, partition_by=column[1:])
    frame = parsed(spark, config, RAW)
    for _ in range(2):
        run(config, frame)

    rows = archived(config)
    assert sorted(row["body"] for row in rows) == sorted(RAW)
    assert [row.get(column) for row in rows] == [value] * len(RAW)
    expected = {"body", "message_id", "nsqd", "published_at", column} - {"_none"}
    assert set(rows[0]) == expected
    statistics = delta_table(f"{config.output}/archive").get_add_actions(flatten=True).schema.names
    assert "max.nsqd" in statistics
    assert "max.body" not in statistics
    assert dead(config) == []


@pytest.mark.spark
def test_rows_of_many_partitions_are_in_one_file_for_each(spark, config):
    start = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
    frame = parsed(spark, config, [event(start + dt.timedelta(days=day)) for day in range(SPREAD + 1)] * 2)
    batches = ArchiveBatches(config)
    batches(frame.repartition(2), identity(0))
    before = archive_tables(config, "clicks")[0].status()

    batches(frame.repartition(2), identity(1))

    assert archive_tables(config, "clicks")[0].status().files - before.files == SPREAD + 1 < before.files
    assert len(archived(config)) == 4 * (SPREAD + 1)


@pytest.mark.spark
def test_body_too_long_for_a_letter_is_whole_in_the_table(spark, fakensqd, config, tmp_path):
    long = b"x" * 1_000_000
    for _ in range(2):
        run(config, parsed(spark, config, [long, b"not json"]), 3)

    [short, *_, letter] = sorted(published(fakensqd, "clicks-dead", tmp_path), key=lambda each: each.get("length", 0))
    assert base64.b64decode(letter["body_base64"]) == long[:LETTER_BYTES]
    assert (letter["truncated"], letter["length"]) == (True, len(long))
    assert not {"truncated", "length"} & set(short)
    [row] = [row for row in dead(config) if row["body"] == long]
    assert row["message_id"] == letter["message_id"]


def test_letter_is_json_with_the_body_in_base64():
    time = dt.datetime(2026, 1, 1, 10, 0, 0, 120_000, tzinfo=dt.UTC)
    row = {"reason": "ä is missing", "body": b"\xff", "message_id": "0a", "nsqd": "a:1", "published_at": time}

    assert dead_letter(row).decode() == (
        '{"reason":"ä is missing","body_base64":"/w==","message_id":"0a","nsqd":"a:1",'
        '"published_at":"2026-01-01T10:00:00.120Z"}'
    )


# --- kills


@pytest.mark.parametrize("number", [0, 1], ids=["archive", "dead"])
def test_batch_that_was_begun_with_other_settings_is_refused_before_it_is_read(config, number):
    for table in archive_tables(config, "clicks"):
        table.claim(OURS, take_over=False)
    table = archive_tables(config, "clicks")[number]
    table.commit(identity(3), [], 0)

    with pytest.raises(JobFailed, match=rf"{table.name} has batch 3, which was begun with other settings"):
        ArchiveBatches(config)(None, replace(identity(3), settings=2))


@pytest.mark.parametrize("number", [0, 1], ids=["archive", "dead"])
def test_batch_that_was_begun_with_an_entry_that_is_gone_is_refused(config, number):
    """Its rows are in a table of the topic, and would be in another one, too."""
    both = replace(config, topic="clicks,views", metrics=())
    table = archive_tables(both, "views")[number]
    table.claim(OURS, take_over=False)
    table.commit(identity(3), [], 0)
    note_tables(both, "views")

    with pytest.raises(JobFailed, match=f"{table.name} has batch 3, which was begun with other settings"):
        ArchiveBatches(with_layout(replace(both, topic="clicks")))(None, identity(3))


def test_batch_that_was_begun_without_an_entry_that_is_back_is_refused(config):
    both, one = (with_layout(replace(config, topic=topic, metrics=())) for topic in ("clicks,views", "clicks"))
    [left] = archive_tables(one, "views")
    left.claim(OURS, take_over=False)
    left.commit(replace(identity(3), settings=0), [], 0)
    note_tables(one, "views")

    with pytest.raises(JobFailed, match=f"{left.name} has batch 3, which was begun with other settings"):
        ArchiveBatches(with_layout(both))(None, identity(3))


@pytest.mark.spark
def test_table_of_an_entry_that_is_gone_may_be_another_jobs(spark, config):
    both = replace(config, topic="clicks,views", metrics=())
    archive, _ = archive_tables(both, "views")
    archive.claim(THEIRS, take_over=False)
    note_tables(both, "views")
    one = with_layout(replace(both, topic="clicks"))

    run(one, parsed(spark, one, BODIES), 3)

    assert len(table_rows(f"{config.output}/clicks/archive")) == 3


@pytest.mark.spark
def test_batch_that_was_begun_goes_on_with_an_entry_for_another_topic(spark, config):
    run(config, parsed(spark, config, BODIES))
    note_layout(config)
    [archive, _] = archive_tables(config, "clicks")
    # As after a kill between the commits of archive and dead in batch 1.
    archive.commit(replace(identity(1), settings=config.entry_of("clicks").division), [], 0)
    both = with_layout(replace(config, topic="clicks,views", metrics=(Metric(topic="clicks"),)))

    run(both, parsed(spark, both, BODIES), 1)

    assert (len(archived(config)), len(dead(config))) == (3, 4)


@pytest.mark.spark
def test_batch_that_runs_again_with_other_files_is_there_once(spark, config):
    committed = [
        sum(file.rows for file in run(config, frame, batch_id))
        for batch_id, frame in (
            (7, parsed(spark, config, BODIES).repartition(5)),
            (7, parsed(spark, config, BODIES).coalesce(1)),
            (8, parsed(spark, config, BODIES[:1])),
        )
    ]

    assert committed == [5, 0, 1]
    assert (len(archived(config)), len(dead(config))) == (4, 2)


@pytest.mark.spark
def test_batch_of_a_job_that_has_lost_its_lease_commits_nothing(spark, config):
    def check():
        raise LeaseLost("owner.json: this process has lost the lease")

    with pytest.raises(LeaseLost):
        ArchiveBatches(config, check_lock=check)(parsed(spark, config, BODIES), identity(0))

    assert archived(config) == dead(config) == []
    assert sum(file.rows for file in run(config, parsed(spark, config, BODIES))) == 5


@pytest.mark.spark
def test_kill_between_the_commits_of_archive_and_dead_loses_and_doubles_nothing(spark, fakensqd, config, tmp_path):
    run(config, parsed(spark, config, BODIES[:1]))
    # The commit of dead fails: what follows that of archive does not happen.
    _, other = archive_tables(config, "clicks")
    batches = ArchiveBatches(config)
    batches(parsed(spark, config, BODIES[:1]), identity(1))
    other.claim(THEIRS, take_over=True)
    with pytest.raises(JobFailed, match="dead belongs to the checkpoint theirs"):
        batches(parsed(spark, config, BODIES), identity(2))
    other.claim(OURS, take_over=True)
    assert (len(archived(config)), len(dead(config))) == (5, 0)

    run(config, parsed(spark, config, BODIES), 2)

    assert (len(archived(config)), len(dead(config))) == (5, 2)
    assert len(published(fakensqd, "clicks-dead", tmp_path)) == 2


@pytest.mark.spark
def test_kill_between_the_commit_of_dead_and_its_topic_publishes_later(spark, fakensqd, config, tmp_path):
    unreachable = replace(config, publish_addresses=("127.0.0.1:1",), nsq={"publishTimeout": "0.2"})
    with pytest.raises(PySparkException, match="RowsNotPublished"):
        run(unreachable, parsed(spark, config, BODIES))
    assert (len(archived(config)), len(dead(config))) == (3, 2)

    run(config, parsed(spark, config, BODIES))

    assert (len(archived(config)), len(dead(config))) == (3, 2)
    assert len(published(fakensqd, "clicks-dead", tmp_path)) == 2


@pytest.mark.spark
def test_new_checkpoint_on_an_old_table_is_refused_and_with_take_over_loses_nothing(spark, config):
    run(config, parsed(spark, config, BODIES), 9)

    with pytest.raises(JobFailed, match=r"archive belongs to the checkpoint ours.*--take-over"):
        run(config, parsed(spark, config, BODIES), owner=THEIRS)
    assert len(archived(config)) == 3

    # All its batches count, also those with numbers that the old checkpoint has used.
    run(config, parsed(spark, config, BODIES), owner=THEIRS, take_over=True)
    run(config, parsed(spark, config, BODIES[:1]), 1, THEIRS)
    assert (len(archived(config)), len(dead(config))) == (7, 4)
    with pytest.raises(JobFailed, match="belongs to the checkpoint theirs"):
        run(config, parsed(spark, config, BODIES), 10)


@pytest.mark.spark
def test_new_fields_are_added_and_what_was_there_stays(spark, config):
    run(config, parsed(spark, config, BODIES[:1]))
    wider = replace(config, fields={**config.fields, "ms": "int"}, required_fields=())
    body = json.dumps({"time": "2026-01-01T10:00:01Z", "user": "u", "page": "/", "ms": 5}).encode()

    run(wider, parsed(spark, wider, [body]), 1)

    assert {row["body"].encode(): row["ms"] for row in archived(config)} == {BODIES[0]: None, body: 5}
    other = replace(wider, fields={**config.fields, "ms": "double"})
    frame = parsed(spark, other, BODIES[:1])
    with pytest.raises(JobFailed, match=r"column ms of type integer, and its type is double now"):
        run(other, frame, 2)


@pytest.mark.spark
def test_all_types_of_fields_are_columns(spark, config):
    kinds = ["boolean", "tinyint", "smallint", "int", "long", "float", "double", "date", "timestamp", "decimal(5,2)"]
    given = [True, 1, 2, 3, 4, 0.5, 0.25, "2026-01-01", "2026-01-01T10:00:00Z", 1.25, "t"]
    fields = {f"field_{number}": kind for number, kind in enumerate(kinds)} | {"topic": "string"}
    values = dict(zip(fields, given, strict=True))
    config = replace(config, fields={**config.fields, **fields})
    body = {"time": "2026-01-01T10:00:01Z", "user": "u", "page": "/", **values}

    run(config, parsed(spark, config, [json.dumps(body).encode()]))

    [row] = archived(config)
    expected = {name: str(value) for name, value in values.items()}
    assert {name: str(row[name]) for name in values} == {**expected, "field_8": "2026-01-01 10:00:00+00:00"}
    assert "max.field_4" in delta_table(f"{config.output}/archive").get_add_actions(flatten=True).schema.names
