import os
from dataclasses import replace

import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.durable import mend_checkpoint
from gnsq.spark.pipeline.progress import checkpoint_id, identify, last_batch
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


def test_uri_of_a_file_is_read_as_spark_reads_it(tmp_path):
    put_checkpoint(tmp_path / "a b%20ü")

    assert checkpoint_id(f"file://{tmp_path}/a b%20ü") == "a"
    assert checkpoint_id(f"file:{tmp_path}/a b%20ü") == "a"


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
    put_batch(tmp_path / "work/metrics/checkpoint", 0, "offsets")
    batch = identify(config, "metrics", "a", 0)

    same = identify(
        replace(config, fields={"page": "string", "user": "STRING"}, max_rows_per_batch=1), "metrics", "a", 0
    )
    other = identify(replace(config, **changes), "metrics", "a", 0)

    assert same == batch
    assert (other.offsets == batch.offsets, other.settings == batch.settings) == (True, False)


def test_state_that_the_batch_before_has_written_is_on_the_disk(config, tmp_path, monkeypatch):
    checkpoint = tmp_path / "work/archive/checkpoint"
    put_batch(checkpoint, 6, "offsets")
    for name in ("old.changelog", "7.changelog"):
        (checkpoint / "state/0/0").mkdir(parents=True, exist_ok=True)
        (checkpoint / "state/0/0" / name).touch()
    os.utime(checkpoint / "state/0/0/old.changelog", (0, 0))
    put_batch(checkpoint, 7, "offsets")
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.readlink(f"/proc/self/fd/{descriptor}")))

    identify(config, "archive", "a", 7)

    assert {f"{checkpoint}/state/0/0/7.changelog", f"{checkpoint}/state/0/0"} <= synced
    assert f"{checkpoint}/state/0/0/old.changelog" not in synced


def test_batch_is_on_the_disk_with_the_end_of_the_one_before(config, tmp_path, monkeypatch):
    checkpoint = tmp_path / "work/archive/checkpoint"
    put_checkpoint(checkpoint)
    put_batch(checkpoint, 7, "offsets")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))

    identify(config, "archive", "a", 7)

    names = ["metadata", "", "commits/6", "commits/.6.crc", "commits", "offsets/7", "offsets/.7.crc", "offsets"]
    assert synced == [str(checkpoint / name) for name in names]


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
    "torn", [b"", b"\0" * 40, b"v1\n", b'v1\n{"batchWatermarkMs":0}', b'v1\n{"batchWatermarkMs":0}\n{"n":']
)
def test_torn_offsets_of_a_batch_that_has_not_begun_are_set_aside(tmp_path, caplog, torn):
    put_logs(tmp_path, offsets=torn)

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


def test_log_with_a_torn_checksum_is_set_aside(tmp_path):
    put_logs(tmp_path, offsets=WHOLE["offsets"])
    (tmp_path / "offsets" / ".10.crc").write_bytes(b"")

    mend_checkpoint(str(tmp_path))

    assert not (tmp_path / "offsets" / "10").exists()


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
