import os
import re
from pathlib import Path

import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.checkpoint import (
    check_state,
    checkpoint_id,
    identify,
    last_batch,
    settings_hash,
)
from gnsq.spark.pipeline.durable import mend_checkpoint
from gnsq.spark.pipeline.tables import TableSettings, options_of
from tests.spark.pipeline.jobs import job, table


def put_checkpoint(location):
    """Write what tells that a checkpoint is there, as Spark 4 does."""
    location.mkdir(parents=True, exist_ok=True)
    (location / "metadata").write_text('{"id":"a"}')


def put_batch(location, number, offsets):
    """Write what tells that a batch has begun and the one before is done, as Spark does."""
    for log, batch_id, text in (("offsets", number, offsets), ("commits", number - 1, "")):
        (location / log).mkdir(parents=True, exist_ok=True)
        (location / log / f"{batch_id}").write_text(text)
        (location / log / f".{batch_id}.crc").write_text(text)


def test_checkpoint_has_the_identity_that_spark_gave_it(tmp_path):
    put_checkpoint(tmp_path / "a b%20ü")
    (tmp_path / "new" / "offsets").mkdir(parents=True)

    # As Spark reads a URI of a file.
    for prefix in ("file://", "file:", ""):
        assert checkpoint_id(f"{prefix}{tmp_path}/a b%20ü") == "a"
    assert checkpoint_id(str(tmp_path / "none")) is checkpoint_id(str(tmp_path / "new")) is None
    with pytest.raises(ValueError, match=r"^s3a://\*\*\*@b/c can't be read without Spark$"):
        checkpoint_id("s3a://key:hush@b/c")


@pytest.mark.parametrize(("text", "what"), [("[]", "not Spark's"), ("{}", "not Spark's"), (None, "missing")])
def test_corrupt_or_lost_file_is_named(tmp_path, text, what):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "117").touch()
    if text is not None:
        (tmp_path / "metadata").write_text(text)

    with pytest.raises(JobFailed, match=rf"is corrupt: metadata can't be read, it is {what}.* Bring the"):
        checkpoint_id(str(tmp_path))


# --- batches


def test_batch_is_told_by_its_offsets(tmp_path):
    put_batch(tmp_path, 7, "offsets")
    batch = identify(str(tmp_path), "a", 7, 1)

    assert (batch.owner, batch.number, batch.settings) == ("a", 7, 1)
    assert identify(str(tmp_path), "a", 7, 1) == batch
    put_batch(tmp_path, 7, "others")
    assert identify(str(tmp_path), "a", 7, 1).offsets not in (0, batch.offsets)
    # Where only Spark can read it, by its number alone.
    assert identify("s3a://bucket/c", "a", 7, 1).offsets == 0


# Each setting of a table that decides which messages are events, dead letters, or left out.
DIVIDING = {
    "format": {"format": "raw"},
    "schema": {"schema": "user STRING"},
    "columns": {"columns": {"page": "$.at.page"}},
    "parse": {"parse": "from_json(string(body), 'user STRING')"},
    "time": {"time": "at"},
    "max_ahead": {"max_ahead": 1.0},
    "where": {"where": "ms > 1"},
    "select": {"select": ("user", "ms + 1 AS next")},
    "mismatch": {"mismatch": "rescue"},
}
# schema_file is read into schema. Messages of a removed topic that are in the spool are still written.
OTHERS = {"schema_file", "topics", "topic_pattern", "partition_by", "keep", "sink"}


def test_each_setting_of_a_table_is_known_to_divide_events_from_others_or_not():
    assert {*options_of(TableSettings)} == {*DIVIDING} | OTHERS


def test_settings_that_divide_events_from_others_are_part_of_a_batch(tmp_path):
    # A batch that runs again under a changed one would put an event into both tables, or none.
    [query], [same] = job(tmp_path).queries, job(tmp_path, table(keep="none", partition_by=[])).queries
    others = [job(tmp_path, table(**changes)).queries[0] for changes in DIVIDING.values()]

    assert settings_hash(query) == settings_hash(same)
    assert settings_hash(query) not in {settings_hash(other) for other in others}


def test_state_that_the_batch_before_has_written_is_on_the_disk(tmp_path, monkeypatch):
    put_batch(tmp_path, 6, "offsets")
    for name in ("old.changelog", "7.changelog"):
        (tmp_path / "state/0/0").mkdir(parents=True, exist_ok=True)
        (tmp_path / "state/0/0" / name).touch()
    os.utime(tmp_path / "state/0/0/old.changelog", (0, 0))
    put_batch(tmp_path, 7, "offsets")
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.readlink(f"/proc/self/fd/{descriptor}")))

    identify(str(tmp_path), "a", 7, 1)

    assert {f"{tmp_path}/state/0/0/7.changelog", f"{tmp_path}/state/0/0"} <= synced
    assert f"{tmp_path}/state/0/0/old.changelog" not in synced


def test_batch_is_on_the_disk_with_the_end_of_the_one_before(tmp_path, monkeypatch):
    put_checkpoint(tmp_path)
    put_batch(tmp_path, 7, "offsets")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))

    identify(str(tmp_path), "a", 7, 1)

    names = ["metadata", "", "commits/6", "commits/.6.crc", "commits", "offsets/7", "offsets/.7.crc", "offsets"]
    assert synced == [str(tmp_path / name) for name in names]


# --- deduplicate


@pytest.mark.parametrize("before", [0.0, 60.0])
def test_checkpoints_with_batches_take_no_other_deduplicate(tmp_path, before):
    queries, others = (
        job(tmp_path, *map(table, ("clicks", "empty", "orders")), deduplicate=each).queries
        for each in (before, 60.0 - before)
    )
    places = [Path(query.checkpoint) for query in queries]
    # Before the first batch has ended, it may change.
    for place in places:
        (place / ("state" if before else "offsets")).mkdir(parents=True)
    check_state(others)
    for place in (places[0], places[2]):
        put_batch(place, 3, "v1\n{}\n{}")

    check_state(queries)
    was, both = "more than 0" if before else "0", f"{places[0]} and {places[2]}"
    with pytest.raises(JobFailed, match=rf"^deduplicate was {was} when .* move away {re.escape(both)}, but no spool"):
        check_state(others)


# --- after a power failure


WHOLE = {"offsets": b'v1\n{"batchWatermarkMs":0}\n{"n":1}', "commits": b'v1\n{"nextBatchWatermarkMs":0}'}


def put_logs(checkpoint, **last):
    """Write the logs of batches 0 to 9, and of batch 10 what is given."""
    for log, text in WHOLE.items():
        (checkpoint / log).mkdir(parents=True)
        for number in range(10):
            (checkpoint / log / str(number)).write_bytes(text)
            (checkpoint / log / f".{number}.crc").write_bytes(bytes(12))
        if last.get(log) is not None:
            (checkpoint / log / "10").write_bytes(last[log])
            (checkpoint / log / ".10.crc").write_bytes(bytes(12))


@pytest.mark.parametrize(
    ("torn", "checksum"),
    [
        *((torn, bytes(12)) for torn in (b"", b"\0" * 40, b"v1\n", b'v1\n{"batchWatermarkMs":0}')),
        (b'v1\n{"batchWatermarkMs":0}\n{"n":', bytes(12)),
        (WHOLE["offsets"], b""),
    ],
)
def test_torn_offsets_of_a_batch_that_has_not_begun_are_set_aside(tmp_path, caplog, torn, checksum):
    put_logs(tmp_path, offsets=torn)
    (tmp_path / "offsets" / ".10.crc").write_bytes(checksum)

    mend_checkpoint(str(tmp_path))

    names = {path.name for path in (tmp_path / "offsets").iterdir()}
    assert {"9", "10.torn", ".10.crc.torn"} <= names
    assert not {"10", ".10.crc"} & names
    assert "offsets/10 is torn; set aside" in caplog.text


@pytest.mark.parametrize("torn", [b"", b"v1", b'v1\n{"next'])
def test_torn_end_of_a_batch_is_set_aside_and_the_batch_runs_again(tmp_path, torn):
    put_logs(tmp_path, offsets=WHOLE["offsets"], commits=torn)

    mend_checkpoint(str(tmp_path))

    assert last_batch(str(tmp_path)) == 9
    assert (tmp_path / "offsets" / "10").exists()


@pytest.mark.parametrize(
    "last", [{}, {"offsets": b"v1\n{}\n-"}, {**WHOLE}, {"offsets": b"", "commits": WHOLE["commits"]}]
)
def test_other_logs_stay(tmp_path, last, caplog):
    put_logs(tmp_path, **last)
    before = sorted(tmp_path.rglob("*"))

    mend_checkpoint(str(tmp_path))
    mend_checkpoint(f"file://{tmp_path}")
    mend_checkpoint(str(tmp_path / "new"))

    assert sorted(tmp_path.rglob("*")) == before
    assert not caplog.text
