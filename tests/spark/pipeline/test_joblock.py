import os

import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.joblock import JobLock, OutputLock, running_job


def test_one_job_at_a_time(tmp_path):
    with JobLock(tmp_path):
        assert running_job(tmp_path) == os.getpid()
        with pytest.raises(JobFailed, match=f"in use by another job, process {os.getpid()}: stop that one"):
            JobLock(tmp_path, patience=0)
    assert running_job(tmp_path) is None
    with JobLock(tmp_path, patience=0):
        pass


def test_no_job_ever_ran(tmp_path):
    assert running_job(tmp_path) is None


def test_job_that_has_not_said_who_it_is(tmp_path):
    with JobLock(tmp_path):
        (tmp_path / "job.json").write_text("")
        assert running_job(tmp_path) == 0


def test_lock_follows_no_symlink(tmp_path):
    (tmp_path / "victim").write_text("mine")
    for name, lock in (("job.json", JobLock), ("owner.json", lambda path: OutputLock(path, {}))):
        (tmp_path / name).symlink_to(tmp_path / "victim")
        with pytest.raises(OSError, match="symbolic link"):
            lock(tmp_path)

    assert (tmp_path / "victim").read_text() == "mine"


def test_output_belongs_to_one_job(tmp_path):
    ours, theirs = {"work": "/a", "topic": "clicks"}, {"work": "/b", "topic": "clicks"}
    with OutputLock(tmp_path, ours), pytest.raises(JobFailed, match=r'belongs to another job .*"/a"'):
        OutputLock(tmp_path, ours, patience=0)
    with pytest.raises(JobFailed, match=r'belongs to another job .*"/a".*delete .*owner\.json'):
        OutputLock(tmp_path, theirs)

    with OutputLock(tmp_path, ours, patience=0):
        pass
