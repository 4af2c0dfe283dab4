import datetime as dt

import pytest

from gnsq.spark.pipeline.progress import Note, Notebook, batch_of, read_note
from tests.spark.pipeline.helpers import OPERATOR, progress, put_note


def test_progress_becomes_a_batch():
    batch = batch_of("archive", progress(stateOperators=[OPERATOR, OPERATOR]))

    assert (batch.malformed, batch.waiting, batch.spooled, batch.lag) == (1, 9, 4, 11.5)
    assert batch.trouble == "full"
    assert (batch.duplicates, batch.state_rows, batch.state_bytes) == (2, 2400, 6 * 2**20)


def test_progress_that_says_little_becomes_a_batch():
    told = progress(durationMs={}, stateOperators=[{**OPERATOR, "customMetrics": {}}])
    told["sources"][0]["latestOffset"] = None
    del told["observedMetrics"]

    batch = batch_of("archive", told)

    assert (batch.waiting, batch.spooled, batch.lag, batch.seconds, batch.duplicates) == (None, None, None, 0, 0)


def test_query_that_has_noted_nothing_has_an_empty_note(config):
    assert read_note(config, "archive") == Note()


def test_note_outlives_the_job(config):
    put_note(config, offset={"v": 1}, batchId=3)
    Notebook(config, "archive").begin(4)

    note = read_note(config, "archive")

    assert (note.committed, note.begun, note.offset) == (3, 4, {"v": 1})
    assert note.committed_at == dt.datetime(2026, 1, 1, 0, 0, 1, 500_000, dt.UTC)
    assert note.begun_at > note.committed_at


def test_batch_without_rows_counts_as_begun(config):
    Notebook(config, "archive").begin(3)
    put_note(config, batchId=4)

    assert (read_note(config, "archive").committed, read_note(config, "archive").begun) == (4, 4)


@pytest.mark.parametrize("is_given", [True, False], ids=["with rows", "without rows"])
def test_note_of_another_checkpoint_ends_with_the_first_batch(config, is_given):
    put_note(config, batchId=7)
    Notebook(config, "archive").begin(8)

    notebook = Notebook(config, "archive")
    if is_given:
        notebook.begin(0)
    told = progress(batchId=0)
    notebook.finish(told, batch_of("archive", told))

    note = read_note(config, "archive")
    assert (note.committed, note.begun) == (0, 0)


def test_running_batch_of_a_new_checkpoint_is_known(config):
    put_note(config, batchId=7)

    Notebook(config, "archive").begin(0)

    note = read_note(config, "archive")
    assert (note.committed, note.committed_at, note.begun, note.offset) == (-1, None, 0, None)


@pytest.mark.parametrize("text", ["", "[]", '{"committed_at": 1, "begun_at": null}', '{"more": 1}'])
def test_file_that_is_no_note_is_told(config, tmp_path, text):
    (tmp_path / "work/archive").mkdir(parents=True)
    (tmp_path / "work/archive/progress.json").write_text(text)

    with pytest.raises(ValueError, match=r"work/archive/progress.json is not a note of the job"):
        read_note(config, "archive")
