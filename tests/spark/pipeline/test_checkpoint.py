import datetime as dt

import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.checkpoint import Checkpoint, read_checkpoint
from tests.spark.pipeline.helpers import put_checkpoint


def test_new_checkpoint_has_nothing(tmp_path):
    assert read_checkpoint(str(tmp_path / "none")) == Checkpoint()


def test_last_batches_are_told(tmp_path):
    put_checkpoint(tmp_path, committed=10, planned=11, offset={"v": 1})

    found = read_checkpoint(f"file://{tmp_path}")
    assert (found.planned, found.committed, found.offset) == (11, 10, {"v": 1})
    assert found.planned_at == dt.datetime(2026, 1, 1, 0, 0, 11, tzinfo=dt.UTC)
    assert found.committed_at is not None


def test_first_batch_may_be_under_way(tmp_path):
    put_checkpoint(tmp_path, committed=-1, planned=0)

    assert read_checkpoint(str(tmp_path)) == Checkpoint(0, dt.datetime(2026, 1, 1, tzinfo=dt.UTC))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("offsets/3", "", id="empty"),
        pytest.param("offsets/3", "v1\n{}\n{}", id="no time"),
        pytest.param("offsets/2", "v1\nnot json\n{}", id="not JSON"),
        pytest.param("offsets/3", "?\n{}\n{}", id="no version"),
        pytest.param("commits/2", "v1", id="commit cut short"),
        pytest.param("metadata", "", id="metadata"),
    ],
)
def test_corrupt_file_is_named(tmp_path, name, text):
    put_checkpoint(tmp_path, committed=2, planned=3)
    (tmp_path / name).write_text(text)

    with pytest.raises(JobFailed, match=f"is corrupt: {name} can't be read, .* Bring the checkpoint back"):
        read_checkpoint(str(tmp_path))


def test_lost_metadata_is_told(tmp_path):
    put_checkpoint(tmp_path, committed=2)
    (tmp_path / "metadata").unlink()

    with pytest.raises(JobFailed, match="metadata can't be read, it is missing"):
        read_checkpoint(str(tmp_path))


def test_location_of_sparks_alone_is_told_without_its_secrets():
    with pytest.raises(ValueError, match=r"^s3a://\*\*\*@b/c can't be read without Spark$"):
        read_checkpoint("s3a://key:hush@b/c")
