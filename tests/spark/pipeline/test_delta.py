"""Commits to Delta tables: each batch once, by its own checkpoint, and durable."""

import datetime as dt
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.delta import BatchIdentity, Table
from gnsq.spark.pipeline.tables import SettingError
from tests.spark.pipeline.helpers import delta_table as reader
from tests.spark.pipeline.helpers import written

SCHEMA = pa.schema([("event_time", pa.timestamp("us", tz="UTC")), ("user", pa.string()), ("n", pa.int32())])
DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OURS, THEIRS = "9d5c0e3a", "11111111"


@pytest.fixture
def location(tmp_path):
    return str(tmp_path / "output of a job [1] é" / "archive")


def table(location, schema=SCHEMA, partition_by=("_day",)):
    return Table("archive", location, schema, partition_by, time="event_time")


def claimed(location, owner=OURS, *, take_over=False, **changes):
    found = table(location, **changes)
    found.claim(owner, take_over=take_over)
    return found


def files(table, batch_id, *numbers, user="u"):
    """Write a batch with a row for each number, each on a day of its own."""
    rows = [{"event_time": DAY + dt.timedelta(days=number), "user": user, "n": number} for number in numbers]
    return written(table, batch_id, rows)


def put(table, batch_id, *numbers, owner=OURS, offsets=1, settings=1):
    batch = BatchIdentity(owner, batch_id, offsets, settings)
    return table.commit(batch, files(table, batch_id, *numbers))


def numbers(location):
    return sorted(reader(location).to_pyarrow_table(columns=["n"]).column("n").to_pylist())


def log(location):
    return sorted(name for name in os.listdir(f"{location}/_delta_log") if name.endswith(".json"))


def test_other_batch_with_a_committed_number_is_refused(location):
    archive = claimed(location)
    assert not put(archive, 0)
    assert log(location) == ["0" * 20 + ".json"]
    put(archive, 0, 1, 2)
    assert reader(location).transaction_version(f"gnsq:{OURS}") == 0

    with pytest.raises(JobFailed, match=r"has batch 0 of this checkpoint, and another batch 0 runs.*--take-over"):
        put(archive, 0, 3, offsets=2)

    # The same batch again, with files of its own; and what only Spark can read has no hash.
    for again in (archive, claimed(location)):
        assert not put(again, 0, 1, 2)
        assert not put(again, 0, 1, 2, offsets=0)
    assert numbers(location) == [1, 2]


def test_batch_that_was_begun_with_other_settings_or_is_older_than_the_table_is_refused(location):
    archive = claimed(location)
    put(archive, 0, 1, 2)

    with pytest.raises(JobFailed, match=r"has batch 0, which was begun with other settings .*max_ahead.*once"):
        put(archive, 0, 1, settings=2)

    assert put(archive, 1, 3, settings=2)
    assert not put(archive, 1, 3, settings=2)
    with pytest.raises(JobFailed, match=r"has batch 1 of this checkpoint, and batch 0 runs: .* older .* --take-over"):
        put(archive, 0, 2)


def tear_entries(location, count):
    """Let each later reading of the oldest entries fail. delta-rs reads a checkpoint instead."""
    reader(location).create_checkpoint()
    for name in log(location)[:count]:
        Path(location, "_delta_log", name).write_bytes(b"{")


def test_status_reads_no_older_entries_than_it_needs(location, monkeypatch):
    archive = claimed(location)
    put(archive, 0, 1)
    put(archive, 1, 1)
    reader(location).optimize.compact()
    put(archive, 2, 1)
    tear_entries(location, 3)

    status = table(location).status()
    assert None not in (status.committed_at, status.maintained_at)

    # Without maintenance it does not look for it in all entries.
    monkeypatch.setattr("gnsq.spark.pipeline.delta._HISTORY", 1)
    status = table(location).status()
    assert (status.committed_at is None, status.maintained_at) == (False, None)


def test_last_batch_outlives_merges_and_the_cleanup_of_the_log(location):
    put(claimed(location), 0, 1)
    archive = claimed(location, THEIRS, take_over=True)
    put(archive, 0, 1, owner=THEIRS)
    put(archive, 2, 1, owner=THEIRS)
    merged = reader(location)
    merged.optimize.compact()
    merged.create_checkpoint()
    for entry in log(location)[:-1]:
        os.unlink(f"{location}/_delta_log/{entry}")

    with pytest.raises(JobFailed, match="another batch 2 runs"):
        put(claimed(location, THEIRS), 2, 1, owner=THEIRS, offsets=2)


# --- owners


@pytest.mark.parametrize("owner", [THEIRS, None], ids=["another job", "a new checkpoint"])
def test_table_of_another_checkpoint_is_refused_until_that_is_meant(location, owner):
    put(claimed(location), 5, 1)
    before = log(location)

    with pytest.raises(JobFailed, match=r"^table .*archive belongs to the checkpoint 9d5c0e3a.*--take-over"):
        table(location).claim(owner, take_over=False)
    assert log(location) == before

    table(location).claim(owner, take_over=True)
    taken = claimed(location, THEIRS)
    # Its batches begin at 0 again, and none of them is taken for one of the old checkpoint.
    assert put(taken, 0, 2, owner=THEIRS)
    assert numbers(location) == [1, 2]


def test_table_that_no_job_has_made_is_refused(location):
    DeltaTable.create(table(location)._uri, SCHEMA)

    with pytest.raises(JobFailed, match=r"archive is there, and no job has made it"):
        claimed(location)


def test_directory_with_a_percent_sign_or_files_that_belong_to_no_table_is_refused(location, tmp_path):
    with pytest.raises(JobFailed, match=r"^output '.*/a%20b' has a %, .*: give another directory$"):
        table(str(tmp_path / "a%20b"))

    hour = tmp_path / "output of a job [1] é" / "archive" / "hour=2026-01-01T00"
    hour.mkdir(parents=True)
    (hour / "batch-000000000001-0.parquet").write_bytes(b"")

    with pytest.raises(JobFailed, match=r"belong to no table, such as hour=.*/batch-.*: give another output"):
        claimed(location)


def test_job_that_has_lost_its_table_commits_nothing(location):
    first = claimed(location)
    late = files(first, 0, 1)
    claimed(location, THEIRS, take_over=True)

    with pytest.raises(JobFailed, match="belongs to the checkpoint 11111111"):
        first.commit(BatchIdentity(OURS, 0, 1, 1), late)
    assert numbers(location) == []


# --- schema and partitions


def test_columns_that_come_at_once_are_all_added(location):
    claimed(location)
    wider = [table(location, SCHEMA.append(pa.field(f"c{number}", pa.int64()))) for number in range(4)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: each.claim(OURS, take_over=False), wider))

    assert {f"c{number}" for number in range(4)} < {field.name for field in reader(location).schema().fields}
    assert reader(location).version() == 4


def test_changed_table_keeps_its_name_and_its_properties(location):
    archive = claimed(location)
    archive._open()
    reader(location).alter.set_table_name("ours")
    reader(location).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    # The job's handle is older.
    put(archive, 0, 1)
    before = reader(location).metadata()

    claimed(location, THEIRS, take_over=True, schema=SCHEMA.append(pa.field("at", pa.timestamp("us"))))

    after = reader(location).metadata()
    assert (after.id, after.name, after.created_time) == (before.id, "ours", before.created_time)
    assert before.configuration.items() - after.configuration.items() == {("gnsq.owner", OURS)}
    assert reader(location).protocol().reader_features == ["timestampNtz"]
    assert numbers(location) == [1]


@pytest.fixture
def synced(monkeypatch):
    """The names of the log entries that are synced."""
    names, fsync = [], os.fsync

    def note(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        names.extend([Path(path).name] if path.endswith(".json") else [])
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return names


def test_entry_of_another_writer_is_on_the_disk_before_a_batch_follows_it(location, synced):
    own = claimed(location)
    put(own, 0, 1)
    reader(location).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    synced.clear()

    put(own, 1, 2)

    assert synced == [f"{2:020}.json", f"{3:020}.json"]


def test_batch_after_a_start_syncs_its_own_entry_alone(location, synced):
    for batch_id in range(3):
        put(claimed(location), batch_id, batch_id)
    own = claimed(location)
    synced.clear()

    put(own, 3, 4)

    assert synced == [f"{4:020}.json"]


def test_other_partitions_are_refused(location):
    claimed(location)

    for partition_by, words in (["_day", "user"], "_day, user now"), ([], "none"):
        with pytest.raises(SettingError, match=f"by _day, and the setting is {words}"):
            claimed(location, partition_by=partition_by)


def test_field_with_too_many_values_in_all_batches_is_refused(location):
    archive = claimed(location, partition_by=["user"])
    some = files(archive, 0, 1)
    many = [some[0].__class__("archive", "x", 1, 1, (str(number),), "{}") for number in range(10_000)]
    archive.commit(BatchIdentity(OURS, 0, 1, 1), some)

    with pytest.raises(JobFailed, match="partition_by user: there are 10,001 values"):
        archive.commit(BatchIdentity(OURS, 1, 1, 1), many)


# --- after a power failure


@pytest.mark.parametrize(
    "tear",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[: len(data) // 2], id="half"),
        pytest.param(lambda data: data[: data.index(b"\n") + 1], id="its first line"),
        pytest.param(lambda data: data[: data.rindex(b"\n") + 1], id="all but its last line"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
    ],
)
def test_torn_entry_is_set_aside_and_what_was_acknowledged_is_there(location, tear, caplog):
    archive = claimed(location)
    put(archive, 0, 1)
    put(archive, 1, 2, 3)
    newest = archive._root / "_delta_log" / log(location)[-1]
    newest.write_bytes(tear(newest.read_bytes()))

    again = claimed(location)

    assert f"{newest.name} of the log is torn; set aside" in caplog.text
    assert numbers(location) == [1]
    assert put(again, 1, 2, 3)
    assert numbers(location) == [1, 2, 3]


def test_torn_entry_that_others_follow_is_refused(location):
    archive = claimed(location)
    put(archive, 0, 1)
    put(archive, 1, 2)
    (archive._root / "_delta_log" / log(location)[1]).write_bytes(b"")

    with pytest.raises(JobFailed, match=r"log entry 0+1\.json is torn, and others follow"):
        claimed(location)


def test_file_of_a_batch_that_is_not_whole_is_told_but_none_that_vacuum_has_deleted(location):
    archive = claimed(location)
    for batch_id in range(2):
        put(archive, batch_id, 1)
    archive._open()
    delta = reader(location)
    delta.optimize.compact()
    # The job's handle is from before the compaction.
    [file] = files(archive, 2, 2)
    assert archive.commit(BatchIdentity(OURS, 2, 1, 1), [file])
    reader(location).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    claimed(location)
    assert numbers(location) == [1, 1, 2]

    (archive._root / file.path).write_bytes(b"")
    with pytest.raises(JobFailed, match=r"part-.* of log entry 0+4\.json is missing or not whole"):
        claimed(location)
