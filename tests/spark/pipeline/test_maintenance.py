"""Tables stay whole while their files are merged and deleted, wherever maintenance is killed."""

import contextlib
import datetime as dt
import os
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.__main__ import main
from gnsq.spark.pipeline.delta import BatchIdentity, Table
from gnsq.spark.pipeline.maintenance import (
    BUSY_BYTES,
    RETENTION,
    TARGET,
    Maintenance,
    TableFile,
    groups,
    maintain_table,
    maintain_tables,
    merge_files,
)
from gnsq.spark.pipeline.status import Status
from tests.kit import child, run_program
from tests.spark.pipeline.helpers import written
from tests.spark.pipeline.jobs import job

SCHEMA = pa.schema([("event_time", pa.timestamp("us", tz="UTC")), ("id", pa.int64()), ("body", pa.string())])
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OLD, NEW = 1000.0, 9999.0


def event(number):
    time = START + dt.timedelta(days=number % 2, microseconds=number)
    return {"event_time": time, "id": number, "body": f"body {number}"}


class Archive:
    """A table of events by day, with two days in each batch."""

    def __init__(self, path, name="a table"):
        self.location = str(path / name)
        self.table = Table("archive", self.location, SCHEMA, ["_day"], time="event_time")
        self.table.claim("q", take_over=False)
        self._batch = self.rows = 0

    def append(self, batches=1, rows=10, files=1):
        """Commit batches, each with so many files of so many rows for each day."""
        for _ in range(batches):
            found = []
            for _ in range(files):
                found += written(self.table, self._batch, map(event, range(self.rows, self.rows + rows)))
                self.rows += rows
            self.table.commit(BatchIdentity("q", self._batch, 1, 1), found)
            self._batch += 1

    def leave_orphan(self):
        """Write a file as a task does that is killed before its batch is committed."""
        [file] = written(self.table, 99, [event(0)])
        return file.path

    def delta(self):
        return DeltaTable(self.location)

    def ids(self):
        return sorted(self.delta().to_pyarrow_table(columns=["id"]).column("id").to_pylist())

    def files_on_disk(self):
        return {str(path.relative_to(self.table._root)) for path in self.table._root.rglob("part-*.parquet")}


@pytest.fixture
def archive(tmp_path):
    return Archive(tmp_path)


# --- which files


def listed(*files):
    return [TableFile(str(number), size, (partition,), at) for number, (partition, size, at) in enumerate(files)]


# Files as (partition, bytes, time), and the names of those of each merge.
GROUPS = {
    "over": ([("a", 1, OLD), ("a", 1, OLD)], ["01"]),
    "not over": ([("a", 1, OLD), ("a", 1, NEW)], []),
    "one file each": ([("a", 1, OLD), ("b", 1, OLD)], []),
    "one is large enough": ([("a", TARGET, OLD), ("a", 1, OLD), ("a", 1, OLD)], ["12"]),
    "as many as fit": ([("a", TARGET / 2, OLD)] * 5, ["01", "23"]),
    "null": ([(None, 1, OLD), ("a", 1, OLD), (None, 1, OLD)], ["02"]),
    "not over with few files": ([("a", 1, NEW)] * 10, []),
}


def test_small_files_of_a_partition_that_is_over_or_has_many_of_them_are_merged():
    for name, (files, paths) in GROUPS.items():
        found = ["".join(file.path for file in group) for group in groups(listed(*files), now=NEW + 1)]
        assert found == paths, name

    many = listed(*[("a", 1, NEW)] * 100, *[("a", BUSY_BYTES, NEW)] * 100)
    [group] = groups(many, now=NEW + 1)
    assert group == sorted(many[:100], key=lambda file: file.path)


# --- all steps


def test_small_files_become_one_and_old_ones_go(archive):
    archive.append(5)
    before = archive.ids()
    orphan = archive.leave_orphan()
    assert orphan in archive.files_on_disk()

    merged = maintain_table(archive.location, retention=0, quiet=0)

    assert merged == 10
    assert archive.ids() == before
    assert len(archive.files_on_disk()) == 2
    assert maintain_table(archive.location, retention=0, quiet=0) == 0
    status = archive.table.status()
    assert (status.rows, status.files) == (50, 2)
    assert status.size == sum((archive.table._root / path).stat().st_size for path in archive.files_on_disk())
    assert dt.datetime.now(dt.UTC) > status.maintained_at > status.committed_at
    assert list((archive.table._root / "_delta_log").glob("*.checkpoint.parquet"))
    # Statistics have whole milliseconds around a row of the last microseconds.
    last = pa.compute.field("event_time") == START + dt.timedelta(microseconds=48)
    assert archive.delta().to_pyarrow_dataset().to_table(filter=last).column("id").to_pylist() == [48]


def test_files_stay_for_readers_as_long_as_the_retention_says(archive):
    archive.append(3)
    old, orphan = archive.delta(), archive.leave_orphan()

    maintain_table(archive.location, retention=3600, quiet=0)

    assert old.to_pyarrow_table().num_rows == 30
    assert orphan in archive.files_on_disk()
    assert len(archive.files_on_disk()) == 9


def test_what_others_commit_during_a_merge_wins_with_it(archive):
    archive.append(3)
    stale, other = archive.delta(), archive.delta()
    archive.append()

    merge_files(stale, archive.location, quiet=0)

    assert archive.ids() == list(range(40))
    assert len(archive.delta().file_uris()) == 4
    # The same merge, by a process that has not seen that it is done.
    version = archive.delta().version()
    assert merge_files(other, archive.location, quiet=0) == 0
    assert archive.delta().version() == version


def test_many_partitions_are_merged_in_one_commit(tmp_path):
    table = Table("t", str(tmp_path / "t"), SCHEMA, ["id", "_day"], time="event_time")
    table.claim("q", take_over=False)
    rows = [{"event_time": START, "id": number} for number in (None, *range(149))]
    for batch_id in range(2):
        table.commit(BatchIdentity("q", batch_id, 1, 1), written(table, batch_id, rows))
    before = DeltaTable(table.location).version()

    assert maintain_table(table.location, retention=None, quiet=0) == 300

    after = DeltaTable(table.location)
    assert (after.version() - before, len(after.file_uris())) == (2, 150)
    assert after.to_pyarrow_table()["id"].to_pylist().count(None) == 2


@pytest.mark.subprocess
@pytest.mark.slow
def test_processes_that_maintain_at_once_neither_lose_nor_double_rows(archive):
    """Batches go on meanwhile, too."""
    program = PROGRAM.format(
        "for _ in range(2): maintenance.maintain_table(sys.argv[1], retention=3600, quiet=0)\nprint('ended')"
    )
    archive.append(10)
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(child(sys.executable, "-c", program, archive.location)) for _ in range(2)]
        while any(process.poll() is None for process in started):
            archive.append()
            assert archive.ids() == list(range(archive.rows))
        outputs = [process.communicate()[0] for process in started]

    assert outputs == ["ended\n"] * 2
    assert archive.ids() == list(range(archive.rows))
    assert archive.table.status().rows == archive.rows


def test_merge_that_a_power_failure_has_torn_is_set_aside(archive, caplog):
    archive.append(3)
    maintain_table(archive.location, retention=None, quiet=0)
    newest = max((archive.table._root / "_delta_log").glob("*.json"))
    newest.write_bytes(b"".join(newest.read_bytes().splitlines(keepends=True)[:-1]))
    for path in (archive.table._root / "_delta_log").glob("*checkpoint*"):
        path.unlink()

    claimed_again(archive)

    assert "is torn; set aside" in caplog.text
    assert archive.ids() == list(range(30))


def checkpoint(archive):
    """Make a checkpoint of the log, as maintenance does that merges nothing. Return its file."""
    maintain_table(archive.location, retention=None, quiet=1e12)
    return max((archive.table._root / "_delta_log").glob("*.checkpoint.parquet"))


def claimed_again(archive):
    Table("archive", archive.location, SCHEMA, ["_day"], time="event_time").claim("q", take_over=False)


@pytest.mark.parametrize(
    ("has_older", "tear"),
    [
        pytest.param(False, lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(True, lambda path: path.write_bytes(path.read_bytes()[:-100]), id="without its end"),
        pytest.param(True, lambda path: path.write_bytes(bytes(8) + path.read_bytes()[8:]), id="without its begin"),
        pytest.param(True, lambda path: path.unlink(), id="only the hint is there, and an older one"),
        pytest.param(False, lambda path: path.unlink(), id="only the hint is there"),
        pytest.param(False, lambda path: path.with_name("_last_checkpoint").write_bytes(b'{"ver'), id="torn hint"),
    ],
)
@pytest.mark.slow
def test_checkpoint_that_a_power_failure_has_torn_is_set_aside(archive, tear, has_older, caplog):
    archive.append(2)
    if has_older:
        checkpoint(archive)
        (archive.table._root / "_delta_log/00000000000000000000.json").unlink()
    archive.append()
    path = checkpoint(archive)
    archive.append()
    tear(path)

    claimed_again(archive)

    assert "_last_checkpoint of the log is torn; set aside as _last_checkpoint.torn" in caplog.text
    assert archive.ids() == list(range(40))
    maintain_table(archive.location, retention=None, quiet=0)
    claimed_again(archive)
    assert archive.ids() == list(range(40))


def test_torn_checkpoint_of_entries_that_are_gone_is_told(archive):
    archive.append(2)
    path = checkpoint(archive)
    path.write_bytes(path.read_bytes()[:-100])
    (path.parent / "00000000000000000001.json").unlink()

    with pytest.raises(
        JobFailed, match=r"checkpoint\.parquet of the log is torn, and entry 0+1\.json is gone.* from a copy"
    ):
        claimed_again(archive)

    assert path.exists()


# --- kills

PROGRAM = """
import os, signal, sys
from deltalake import DeltaTable
from gnsq.spark.pipeline import maintenance
{}
"""


@pytest.mark.subprocess
def test_kill_in_a_merge_leaves_every_event_once(archive):
    killed = (
        "write = maintenance.write_file\n"
        "maintenance.write_file = lambda *given: write(*given) and os.kill(os.getpid(), signal.SIGKILL)\n"
        "maintenance.merge_files(DeltaTable(sys.argv[1]), sys.argv[1], 0)"
    )
    archive.append(rows=100, files=10)
    before = archive.files_on_disk()

    assert run_program(PROGRAM.format(killed), archive.location, flags=()).returncode == -signal.SIGKILL

    assert archive.files_on_disk() > before
    assert archive.ids() == list(range(1000))
    archive.append()
    maintain_table(archive.location, retention=0, quiet=0)
    assert archive.ids() == list(range(1010))
    assert len(archive.files_on_disk()) == 2


# --- all tables, and beside a job


@pytest.fixture
def archived(archive):
    archive.append(2)
    return archive


def aged_orphan(archive):
    orphan = archive.leave_orphan()
    os.utime(archive.table._root / orphan, (time.time() - 8 * 86_400,) * 2)
    return orphan


def vacuumed_long_ago(archive):
    (archive.table._root / "_gnsq-vacuumed").write_text("2026-01-01T00:00:00+00:00")


def maintain(archive, *, is_forced=False, retention=RETENTION):
    return maintain_tables([archive.location], retention=retention, is_forced=is_forced)


def test_table_that_fails_stops_no_other(archived, tmp_path):
    torn = tmp_path / "torn" / "_delta_log" / "00000000000000000000.json"
    torn.parent.mkdir(parents=True)
    torn.write_text("{}")
    orphan = aged_orphan(archived)
    locations = [str(tmp_path / "torn"), str(tmp_path / "none"), archived.location]

    merged, [trouble] = maintain_tables(locations, is_forced=True)

    assert (merged, orphan in archived.files_on_disk()) == (0, False)
    assert "torn" in trouble


def test_vacuum_comes_once_a_day_unless_it_is_asked_for(archived):
    orphan = aged_orphan(archived)
    assert maintain(archived) == (0, [])
    assert orphan in archived.files_on_disk()

    # A batch runs for nine days.
    maintain(archived, is_forced=True, retention=9 * 86_400)
    assert orphan in archived.files_on_disk()

    maintain(archived, is_forced=True)
    assert orphan not in archived.files_on_disk()

    orphan = aged_orphan(archived)
    maintain(archived)
    assert orphan in archived.files_on_disk()

    vacuumed_long_ago(archived)
    maintain(archived)
    assert orphan not in archived.files_on_disk()


@pytest.fixture
def maintenance(archived, tmp_path):
    maintenance = Maintenance(lambda: ([archived.location], RETENTION), every=2, log=tmp_path / "spark.log")
    yield maintenance
    maintenance.stop()


@pytest.mark.subprocess
def test_job_that_always_ends_maintains_its_tables_once_a_day_and_failures_are_told(maintenance, archived, caplog):
    orphan = aged_orphan(archived)

    maintenance.run_daily()
    assert orphan in archived.files_on_disk()
    vacuumed_long_ago(archived)
    (archived.table._root / "_delta_log" / "00000000000000000000.json").write_text("{}")
    maintenance.run_daily()

    assert "maintenance: table " in caplog.text


@pytest.mark.subprocess
def test_maintenance_that_is_killed_is_told(maintenance, caplog, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import signal; signal.pause()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    maintenance._start([], RETENTION).kill()

    maintenance.run_daily()

    assert "has ended with status -9 and no result; see " in caplog.text


@pytest.mark.subprocess
def test_maintenance_runs_after_so_many_batches_and_its_result_is_read_beside_what_a_library_prints(
    maintenance, archived, caplog, tmp_path, monkeypatch
):
    """Python imports sitecustomize first. The library prints at its import, and right before the result."""
    (tmp_path / "sitecustomize.py").write_text(
        "import json, os; print('a library', end=''); loads = json.loads;"
        "json.loads = lambda text, **more: os.write(1, b'7\\n') and loads(text, **more)"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    archived.append(files=100)
    vacuumed_long_ago(archived)
    orphan = aged_orphan(archived)

    maintenance.committed()
    assert maintenance._process is None
    maintenance.committed()
    maintenance._process.wait()
    maintenance.committed()

    assert (maintenance.merged, caplog.text) == (204, "")
    assert orphan not in archived.files_on_disk()
    assert archived.ids() == list(range(archived.rows))


@pytest.mark.parametrize("age", [0.0, 9 * 86_400.0], ids=["idle", "with a batch that runs for long"])
def test_command_maintains_now_and_keeps_the_files_of_running_batches(tmp_path, age):
    settings = job(tmp_path)
    archived = Archive(Path(settings.output), "clicks")
    archived.append(2)
    orphan = aged_orphan(archived)
    if age:
        Status(settings.queries[0], now=lambda: time.time() - age).begin(5)
    file = tmp_path / "job.toml"
    file.write_text('nsqd_tcp_addresses = "127.0.0.1:1"\n[tables.clicks]\nschema = "x INT"')

    given = ["--config", str(file), "--work", settings.work, "--output", settings.output, "maintain"]
    done = CliRunner().invoke(main, given)

    assert (done.exit_code, done.output) == (0, "maintained: 0 files merged\n")
    assert (orphan in archived.files_on_disk()) == bool(age)
