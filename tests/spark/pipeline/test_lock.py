"""The lock of a job's work directory: a lock of a file."""

import os
import re

import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.lock import describe, locked


def at_once(seconds):
    """Wait in no time."""
    return False


def test_one_job_at_a_time(tmp_path):
    work = str(tmp_path)
    with locked(work, at_once) as check:
        check()
        assert describe(work) == f"running, process {os.getpid()}"
        with (
            pytest.raises(JobFailed, match=f"in use by another job, process {os.getpid()}: stop that one"),
            locked(work, at_once),
        ):
            pytest.fail("begun")
        with locked(work, lambda seconds: True) as other:
            assert other is None
        # One that has not said yet who it is.
        (tmp_path / "job.json").write_text("")
        assert describe(work) == "running, process unknown"
    assert describe(work) == "not running"
    with locked(work, pytest.fail) as check:
        assert check is not None


def test_lock_follows_no_symlink(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "job.json").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"), locked(str(tmp_path), at_once):
        pytest.fail("begun")

    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.subprocess
def test_on_an_object_store_the_job_that_has_begun_last_may_go_on(s3, tmp_path):
    work = s3.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")
    assert describe(work) == "not running"

    with locked(work, pytest.fail) as first:
        first()
        with locked(work, pytest.fail) as second:
            second()
            with pytest.raises(
                JobFailed, match=rf"was taken by another job, begun by process {os.getpid()} on .*: run one"
            ):
                first()

    assert re.fullmatch(rf"begun by process {os.getpid()} on .* at 20.*; whether it runs is not known", describe(work))
