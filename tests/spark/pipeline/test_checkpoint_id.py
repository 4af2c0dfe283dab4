import os
from dataclasses import replace

import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.progress import checkpoint_id, identify
from gnsq.spark.pipeline.windows import Metric
from tests.spark.pipeline.helpers import put_batch, put_checkpoint


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


# --- batches


def test_batch_is_told_by_its_offsets(config, tmp_path):
    checkpoint = tmp_path / "work/archive/checkpoint"
    put_batch(checkpoint, 7, "offsets")
    batch = identify(config, "archive", "a", 7)

    assert (batch.owner, batch.number) == ("a", 7)
    assert identify(config, "archive", "a", 7) == batch
    put_batch(checkpoint, 7, "others")
    assert identify(config, "archive", "a", 7).offsets not in (0, batch.offsets)


def test_batch_of_a_checkpoint_that_only_spark_can_read_is_told_by_its_number(config):
    assert identify(replace(config, checkpoint="s3a://bucket/c"), "archive", "a", 7).offsets == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"fields": {"user": "string", "page": "string", "n": "int"}},
        {"fields": {"user": "int", "page": "string"}},
        {"required_fields": ("page",)},
        {"time_field": "at"},
        {"max_ahead": 1.0},
        {"metrics": (Metric(keys=("user",)),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_that_divide_events_from_others_are_part_of_a_batch(config, tmp_path, changes):
    put_batch(tmp_path / "work/archive/checkpoint", 0, "offsets")
    batch = identify(config, "archive", "a", 0)

    same = identify(
        replace(config, fields={"page": "string", "user": "STRING"}, max_rows_per_batch=1), "archive", "a", 0
    )
    other = identify(replace(config, **changes), "archive", "a", 0)

    assert same == batch
    assert (other.offsets == batch.offsets, other.settings == batch.settings) == (True, False)


def test_batch_is_on_the_disk_with_the_end_of_the_one_before(config, tmp_path, monkeypatch):
    checkpoint = tmp_path / "work/archive/checkpoint"
    put_checkpoint(checkpoint)
    put_batch(checkpoint, 7, "offsets")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))

    identify(config, "archive", "a", 7)

    names = ["metadata", "", "commits/6", "commits/.6.crc", "commits", "offsets/7", "offsets/.7.crc", "offsets"]
    assert synced == [str(checkpoint / name) for name in names]
