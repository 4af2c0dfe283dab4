"""Files of an earlier release become tables."""

import datetime as dt
import os
from pathlib import Path

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.__main__ import main
from gnsq.spark.pipeline.adopt import adopt
from gnsq.spark.pipeline.batches import BatchIdentity
from gnsq.spark.pipeline.datafiles import write
from gnsq.spark.pipeline.layout import archive_tables
from gnsq.spark.pipeline.maintenance import lock_tables, maintain_table
from gnsq.spark.pipeline.tables import Table
from gnsq.spark.spool.storage import open_store
from tests.spark.pipeline.helpers import config_for, put_checkpoint

TIME = pa.timestamp("us", tz="UTC")
HOUR = dt.datetime(2026, 1, 1, 8, tzinfo=dt.UTC)
ORIGIN = [("message_id", pa.string()), ("nsqd", pa.string()), ("published_at", TIME)]
SCHEMA = pa.schema([("event_time", TIME), ("user", pa.string()), ("page", pa.string()), ("body", pa.string()), *ORIGIN])
DEAD = pa.schema([("reason", pa.string()), ("body", pa.binary()), *ORIGIN])


def put(path, rows, schema):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def event(number, hour=8, **more):
    time = HOUR.replace(hour=hour) + dt.timedelta(seconds=number)
    return {"event_time": time, "user": "u", "page": "/", "body": str(number), "message_id": str(number), **more}


@pytest.fixture
def config(tmp_path):
    """A job of an earlier release, killed in the middle of batch 4."""
    output = tmp_path / "output"
    put(output / "archive/hour=2026-01-01T08/merged-000001.parquet", [event(1), event(2)], SCHEMA)
    put(output / "archive/hour=2026-01-01T08/batch-000000000003-0.parquet", [event(3)], SCHEMA)
    put(output / "archive/hour=2026-01-01T09/batch-000000000003-1.parquet", [event(4, 9)], SCHEMA)
    put(output / "archive/hour=2026-01-01T09/batch-000000000004-0.parquet", [event(5, 9)], SCHEMA)
    put(output / "archive/_compacting/hour=2026-01-01T08/merged-000002.parquet", [event(1)], SCHEMA)
    put(output / "late/batch-000000000003-0.parquet", [event(4, 9)], SCHEMA)
    letters = [{"reason": "r", "body": b"x", "published_at": HOUR + dt.timedelta(days=day)} for day in range(2)]
    put(output / "dead/batch-000000000002-0.parquet", letters, DEAD)
    put(output / "metrics/batch-000000000002-0.parquet", [{"count": 1}], pa.schema([("count", pa.int64())]))
    checkpoint = tmp_path / "work/archive/checkpoint"
    put_checkpoint(checkpoint)
    (checkpoint / "commits").mkdir()
    for batch_id in range(4):
        (checkpoint / "commits" / str(batch_id)).touch()
    return config_for(tmp_path, partition_by="hour")


def bodies(config, name="archive"):
    return sorted(DeltaTable(f"{config.output}/{name}").to_pyarrow_table().column("body").to_pylist())


def test_files_become_tables_and_twice_is_no_change(config):
    assert list(adopt(config)) == ["archive: 3 files with 4 rows", "dead: 2 files with 2 rows"]
    assert bodies(config) == ["1", "2", "3", "4"]
    assert bodies(config, "dead") == [b"x", b"x"]
    before = DeltaTable(f"{config.output}/archive").version()

    again = list(adopt(config))

    assert again == [f"{name}: the table is there already; nothing is changed" for name in ("archive", "dead")]
    assert DeltaTable(f"{config.output}/archive").version() == before


def test_job_goes_on_with_the_batch_that_was_not_committed(config):
    list(adopt(config))
    archive, _ = archive_tables(config, "clicks")
    archive.claim("a", take_over=False)
    target = archive.target(4)

    assert archive.has(BatchIdentity("a", 3, 1, 1))
    assert not archive.has(BatchIdentity("a", 4, 1, 1))
    batch = pa.RecordBatch.from_pylist([event(5, 9), event(6, 9)], schema=target.schema)
    assert archive.commit(BatchIdentity("a", 4, 1, 1), write([batch], lambda rows: [(target, rows)]))

    assert bodies(config) == ["1", "2", "3", "4", "5", "6"]


def test_nothing_is_adopted_again_after_a_merge(config):
    list(adopt(config))
    maintain_table(f"{config.output}/archive", retention=None, quiet=0)

    list(adopt(config))

    assert bodies(config) == ["1", "2", "3", "4"]


OLD = ["08/batch-000000000003-0", "08/merged-000001", "09/batch-000000000003-1", "09/batch-000000000004-0"]
ALL = {f"hour=2026-01-01T{path}.parquet" for path in OLD}


def old_files(config):
    archive = Path(config.output, "archive")
    return {str(path.relative_to(archive)) for path in archive.glob("hour=*/*")}


def test_vacuum_deletes_adopted_files_that_a_merge_has_replaced(config, tmp_path):
    other = tmp_path / "output/archive/hour=2026-01-01T08/notes.parquet"
    other.touch()
    list(adopt(config))
    for path in (tmp_path / "output/archive").glob("hour=*/*"):
        os.utime(path, (0, 0))

    # Only the hour 08 has more than one file.
    maintain_table(f"{config.output}/archive", retention=3600, quiet=0)
    # Readers of the version before the merge still need its files. Batch 4, which was not committed, runs again.
    assert old_files(config) == ALL - {f"hour=2026-01-01T{OLD[3]}.parquet"} | {"hour=2026-01-01T08/notes.parquet"}
    maintain_table(f"{config.output}/archive", retention=0, quiet=0)

    assert old_files(config) == {f"hour=2026-01-01T{OLD[2]}.parquet", "hour=2026-01-01T08/notes.parquet"}
    assert bodies(config) == ["1", "2", "3", "4"]


def test_vacuum_deletes_no_file_of_an_adoption_that_was_killed(config):
    archive, _ = archive_tables(config, "clicks")
    archive._create("a")

    maintain_table(archive.location, retention=0, quiet=0)

    assert old_files(config) == ALL


def test_vacuum_leaves_no_directory_without_files(config, tmp_path):
    put(tmp_path / "output/archive/hour=2026-01-01T09/batch-000000000002-0.parquet", [event(0, 9)], SCHEMA)
    list(adopt(config))

    for _ in range(2):
        maintain_table(f"{config.output}/archive", retention=0, quiet=0)

    assert not list((tmp_path / "output/archive").glob("hour=*"))
    assert bodies(config) == ["0", "1", "2", "3", "4"]


def test_table_has_all_files_from_its_first_commit(config):
    list(adopt(config))

    for name, rows in (("archive", 4), ("dead", 2)):
        assert DeltaTable(f"{config.output}/{name}", version=0).to_pyarrow_table().num_rows == rows
        assert len(list(Path(config.output, name, "_delta_log").iterdir())) == 1


def test_adoption_that_ends_between_two_tables_goes_on(config, tmp_path):
    letter = tmp_path / "output/dead/batch-000000000003-0.parquet"
    letter.write_bytes(b"")
    with pytest.raises(ValueError, match="Parquet file size is 0 bytes"):
        list(adopt(config))
    letter.unlink()

    assert list(adopt(config)) == [
        "archive: the table is there already; nothing is changed",
        "dead: 2 files with 2 rows",
    ]


def test_adoption_that_ends_before_the_commit_leaves_no_table(config, tmp_path):
    log = tmp_path / "output/dead/_delta_log"
    log.touch()
    with pytest.raises(JobFailed, match="_delta_log"):
        list(adopt(config))
    # What a kill just before the commit leaves.
    log.unlink()
    log.mkdir()
    (log / f".tmp-{0:020}.json").write_bytes(b"{")

    list(adopt(config))

    assert bodies(config, "dead") == [b"x", b"x"]


def test_nothing_is_adopted_beside_a_maintenance(config, tmp_path):
    with lock_tables(config), pytest.raises(JobFailed, match="another process maintains the tables: adopt the files"):
        list(adopt(config))

    assert not (tmp_path / "output/archive/_delta_log").exists()


def test_readers_that_skip_files_find_every_row(config):
    list(adopt(config))

    dataset = DeltaTable(f"{config.output}/archive").to_pyarrow_dataset()

    for column, value in (("message_id", "3"), ("page", "/"), ("event_time", event(3)["event_time"]), ("body", "3")):
        assert "3" in dataset.to_table(filter=pc.field(column) == value).column("body").to_pylist()


def test_columns_of_fields_that_are_gone_stay(config, tmp_path):
    schema = SCHEMA.append(pa.field("score", pa.int32()))
    put(tmp_path / "output/archive/hour=2026-01-01T10/batch-000000000001-0.parquet", [event(9, 10, score=7)], schema)

    list(adopt(config))

    assert DeltaTable(f"{config.output}/archive").to_pyarrow_table().column("score").drop_null().to_pylist() == [7]


def test_readers_that_skip_files_find_rows_without_a_column(config, tmp_path):
    """Files of before a field was added have no column for it."""
    put(
        tmp_path / "output/archive/hour=2026-01-01T07/batch-000000000001-0.parquet",
        [{"event_time": HOUR.replace(hour=7), "body": "0"}],
        pa.schema([SCHEMA.field("event_time"), SCHEMA.field("body")]),
    )

    list(adopt(config))

    table = DeltaTable(f"{config.output}/archive")
    dataset = table.to_pyarrow_dataset()  # the filter below is the same for pyarrow, pandas and DuckDB
    assert dataset.to_table(filter=pc.field("page").is_null()).column("body").to_pylist() == ["0"]
    frame = polars.scan_delta(table).filter(polars.col("page").is_null()).collect()
    assert frame.get_column("body").to_list() == ["0"]


def test_hour_that_a_killed_merge_has_set_aside_is_put_back(config, tmp_path):
    archive = tmp_path / "output/archive"
    (archive / "_replaced").mkdir()
    (archive / "hour=2026-01-01T08").rename(archive / "_replaced/hour=2026-01-01T08")

    list(adopt(config))

    assert bodies(config) == ["1", "2", "3", "4"]


def test_other_partitions_and_types_are_refused(config, tmp_path):
    with pytest.raises(JobFailed, match="partition_by is day, and the files of an earlier release are by hour: set"):
        list(adopt(config_for(tmp_path)))
    with pytest.raises(JobFailed, match=r"parquet has column page of type string, and the settings say int32: give"):
        list(adopt(config_for(tmp_path, partition_by="hour", fields={"page": "int", "user": "string"})))
    assert not (tmp_path / "output/archive/_delta_log").exists()


def test_table_of_a_job_is_left_alone(config, tmp_path):
    archive, _ = archive_tables(config, "clicks")
    other = Table("archive", str(tmp_path / "output/archive"), SCHEMA, archive.partition)
    other._create("another")

    with pytest.raises(JobFailed, match="is there, and has other files: give another output"):
        list(adopt(config))


@pytest.mark.subprocess
def test_files_on_an_object_store_are_adopted(config, s3, tmp_path):
    location = s3.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")
    store = open_store(location)
    for path in (tmp_path / "output").rglob("batch-*.parquet"):
        store.put(str(path.relative_to(tmp_path / "output")), path.read_bytes())

    lines = list(adopt(config_for(tmp_path, partition_by="hour", output=location)))

    assert lines == ["archive: 2 files with 2 rows", "dead: 2 files with 2 rows"]


def test_command_adopts(config, tmp_path):
    given = ["--topic", "clicks", "--output", config.output, "--work", config.work, "--partition-by", "hour"]

    done = CliRunner().invoke(main, [*given, "--nsqd-tcp-address", "127.0.0.1:1", "adopt"])

    assert (done.exit_code, done.output) == (0, "archive: 3 files with 4 rows\ndead: 2 files with 2 rows\n")
