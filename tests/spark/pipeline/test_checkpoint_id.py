import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.progress import checkpoint_id
from tests.spark.pipeline.helpers import put_checkpoint


def test_checkpoint_has_the_identity_that_spark_gave_it(tmp_path):
    put_checkpoint(tmp_path)

    assert checkpoint_id(f"file://{tmp_path}") == "a"


def test_new_checkpoint_has_no_identity(tmp_path):
    (tmp_path / "offsets").mkdir()

    assert checkpoint_id(str(tmp_path / "none")) is None
    assert checkpoint_id(str(tmp_path)) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "not json"])
def test_corrupt_file_is_named(tmp_path, text):
    (tmp_path / "metadata").write_text(text)

    with pytest.raises(JobFailed, match=r"is corrupt: metadata can't be read, it is not Spark's.* Bring the"):
        checkpoint_id(str(tmp_path))


def test_lost_metadata_is_told(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "117").touch()

    with pytest.raises(JobFailed, match="metadata can't be read, it is missing"):
        checkpoint_id(str(tmp_path))


def test_location_of_sparks_alone_is_told_without_its_secrets():
    with pytest.raises(ValueError, match=r"^s3a://\*\*\*@b/c can't be read without Spark$"):
        checkpoint_id("s3a://key:hush@b/c")
