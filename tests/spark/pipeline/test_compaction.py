import shutil
import signal
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq.spark.pipeline import compaction as module
from gnsq.spark.pipeline.compaction import Compaction, Compactor, mergeable
from tests.spark.helpers import wait_for
from tests.spark.pipeline.helpers import SCHEMA, batch_name, ids_below, put_file

CLOSED, LATEST = "hour=2026-01-01T08", "hour=2026-01-01T10"


def compaction(root, least=3):
    return Compaction(root, threading.Lock(), 600.0, least)


@pytest.fixture
def archive(tmp_path):
    """Four batches in a closed hour, the last not committed; and one file in the latest hour."""
    for batch_id in range(4):
        put_file(tmp_path / CLOSED, batch_name(batch_id), range(batch_id * 10, batch_id * 10 + 10))
    put_file(tmp_path / LATEST, batch_name(3, 1), [100])
    return tmp_path


EVERYTHING = [*range(40), 100]


def names(archive):
    return sorted(path.name for path in (archive / CLOSED).iterdir())


def test_committed_files_of_closed_hours_become_one(archive):
    done = compaction(archive)
    done.run(committed=2)

    assert names(archive) == [batch_name(3), "merged-000001.parquet"]
    assert ids_below(archive) == EVERYTHING
    assert (done.times, done.files) == (1, 3)
    assert list((archive / "_compacting").iterdir()) == []


def test_rows_are_in_the_order_of_their_time(archive):
    put_file(archive / CLOSED, batch_name(0), [30, 20, 10])
    compaction(archive).run(committed=2)

    times = pq.ParquetFile(archive / CLOSED / "merged-000001.parquet").read().column("event_time").to_pylist()
    assert times == sorted(times)


def test_what_is_too_big_to_sort_is_copied_as_it_comes(archive, monkeypatch):
    monkeypatch.setattr(module, "SORTED_BYTES", 1)
    compaction(archive).run(committed=2)

    assert ids_below(archive) == EVERYTHING


def test_late_rows_are_merged_when_there_are_enough_again(archive):
    done = compaction(archive)
    done.run(committed=3)
    put_file(archive / CLOSED, batch_name(4), [40])
    done.run(committed=4)
    assert names(archive) == [batch_name(4), "merged-000001.parquet"]
    put_file(archive / CLOSED, batch_name(5), [41])
    done.run(committed=5)

    assert names(archive) == ["merged-000002.parquet"]
    assert ids_below(archive) == sorted([*EVERYTHING, 40, 41])


def test_batch_that_runs_again_after_a_compaction_duplicates_nothing(archive):
    compaction(archive).run(committed=2)
    # As BatchFiles does it.
    for path in archive.glob(f"*=*/{batch_name(3)[:-9]}-*"):
        path.unlink()
    put_file(archive / CLOSED, batch_name(3), range(30, 40))
    put_file(archive / LATEST, batch_name(3, 1), [100])

    assert ids_below(archive) == EVERYTHING


def test_files_that_come_meanwhile_are_kept(archive):
    done = compaction(archive)
    done.merge(CLOSED, [batch_name(0), batch_name(1), batch_name(2)])
    put_file(archive / CLOSED, batch_name(4), [50])
    done.link(CLOSED, [batch_name(0), batch_name(1), batch_name(2)])
    done.exchange(CLOSED)

    assert ids_below(archive) == sorted([*EVERYTHING, 50])


def test_columns_that_older_files_lack_are_null(archive):
    wider = SCHEMA.append(pa.field("score", pa.int32()))
    put_file(archive / CLOSED, batch_name(1), [10], wider)
    compaction(archive).run(committed=2)

    table = pq.ParquetFile(archive / CLOSED / "merged-000001.parquet").read()
    assert table.num_rows == 21
    assert table.column("score").null_count == 21


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_bytes(b"no Parquet"), id="not Parquet"),
        pytest.param(lambda path: pq.write_table(pa.table({"message_id": [1]}), path), id="a column of another type"),
    ],
)
def test_hour_that_can_not_be_merged_stays_as_it_is(archive, caplog, spoil):
    spoil(archive / CLOSED / batch_name(1))
    before = names(archive)
    compaction(archive).run(committed=2)

    assert names(archive) == before
    assert f"{CLOSED} not compacted" in caplog.text
    assert list((archive / "_compacting").iterdir()) == []


def test_hour_that_can_not_be_merged_is_told_once(archive, caplog):
    (archive / CLOSED / batch_name(1)).write_bytes(b"no Parquet")
    done = compaction(archive)
    for committed in (2, 3):
        done.run(committed)

    assert caplog.text.count("not compacted") == 1


@pytest.mark.subprocess
def test_more_files_than_a_process_may_open_are_merged(archive):
    for number in range(4, 204):
        put_file(archive / CLOSED, batch_name(number), [number])
    script = (
        "import pathlib, resource, sys, threading\n"
        "import pyarrow.dataset\n"
        "from gnsq.spark.pipeline.compaction import Compaction\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
        "Compaction(pathlib.Path(sys.argv[1]), threading.Lock(), 600.0, 3).run(committed=999)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(archive)], timeout=60, check=True)

    assert names(archive) == ["merged-000001.parquet"]


def test_hour_with_nothing_to_do_is_not_listed_again(archive, monkeypatch):
    done = compaction(archive)
    done.run(committed=3)
    done.run(committed=4)
    listed = []
    monkeypatch.setattr(done, "_names", listed.append)
    done.run(committed=5)

    assert listed == []


@pytest.mark.parametrize("least", [0, 5], ids=["never", "too few"])
def test_nothing_is_merged_where_it_is_not_worth_it(archive, least):
    compaction(archive, least).run(committed=9)

    assert len(names(archive)) == 4


def test_nothing_is_there(tmp_path):
    compaction(tmp_path / "none").run(committed=1)
    compaction(tmp_path / "none").recover()

    assert list(tmp_path.iterdir()) == []


def test_stop_leaves_the_hour_as_it_is(archive):
    answers = iter([False, True])
    compaction(archive).run(committed=2, is_stopping=lambda: next(answers))
    compaction(archive).run(committed=2, is_stopping=lambda: True)

    assert len(names(archive)) == 4
    assert list((archive / "_compacting").iterdir()) == []


def test_thread_compacts_what_gets_committed(archive):
    compactor = Compactor(compaction(archive))
    compactor.committed(2)
    wait_for(lambda: names(archive) == [batch_name(3), "merged-000001.parquet"])
    compactor.stop()

    assert ids_below(archive) == EVERYTHING


# --- crashes

CRASH = """
import os, pathlib, signal, sys, threading
from gnsq.spark.pipeline import compaction as module
from gnsq.spark.pipeline.compaction import Compaction

def die(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGKILL)

def die_at(count, call):
    left = [count]
    def counted(*arguments, **keywords):
        left[0] -= 1
        if left[0] < 0:
            die()
        return call(*arguments, **keywords)
    return counted

root, step = pathlib.Path(sys.argv[1]), sys.argv[2]
if step == "writing":
    module.pq.ParquetWriter.write_table = die
elif step == "merged":
    Compaction.link = die
elif step == "linking":
    os.link = die
elif step == "linked":
    Compaction.exchange = die
elif step.startswith("rename"):
    def cannot(*arguments):
        raise OSError(22, "no exchange")
    module._rename_exchange = cannot
    pathlib.Path.rename = die_at(int(step[-1]), pathlib.Path.rename)
elif step == "exchanged":
    module.shutil.rmtree = die
elif step == "removing":
    os.unlink = die_at(1, os.unlink)
Compaction(root, threading.Lock(), 600.0, 3).run(committed=2)
die()
"""
STEPS = ["writing", "merged", "linking", "linked", "rename0", "rename1", "rename2", "exchanged", "removing", "done"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.subprocess
def test_kill_at_any_step_loses_and_duplicates_nothing(archive, step):
    killed = subprocess.run([sys.executable, "-c", CRASH, str(archive), step], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    done = compaction(archive)
    done.recover()
    assert ids_below(archive) == EVERYTHING
    assert not (archive / "_compacting").exists()
    assert not (archive / "_replaced").exists()
    done.run(committed=3)

    assert names(archive) in (["merged-000001.parquet"], [batch_name(3), "merged-000001.parquet"])
    assert ids_below(archive) == EVERYTHING


STEP = st.sampled_from(["write", "commit", "merge", "crash before", "crash after"])


@settings(max_examples=30)
@given(st.lists(STEP, max_size=12))
def test_archive_has_every_row_once_whatever_happens(tmp_path_factory, steps):
    root = tmp_path_factory.mktemp("archive")
    put_file(root / LATEST, "batch-000000000000-1.parquet", [10_000])
    batch_id, committed, expected = -1, -1, [10_000]
    for step in steps:
        if step == "write":
            # Spark plans the next batch when the last one is committed.
            committed, batch_id = batch_id, batch_id + 1
            put_file(root / CLOSED, batch_name(batch_id), [batch_id])
            expected.append(batch_id)
        elif step == "commit":
            committed = batch_id
        elif step == "merge":
            compaction(root, 2).run(committed)
        else:
            _crash(root, committed, after=step == "crash after")
        assert ids_below(root) == sorted(expected)
    shutil.rmtree(root)


def _crash(root, committed, *, after):
    done = compaction(root, 2)
    merged = mergeable(done._names(CLOSED), committed, 2)
    if merged:
        done.merge(CLOSED, merged)
        done.link(CLOSED, merged)
    if merged and after:
        done.exchange(CLOSED)
    compaction(root, 2).recover()
    assert all(path.name.startswith("hour=") for path in root.iterdir())
