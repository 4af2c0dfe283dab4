import os
import signal

import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.process import StopRequest, lock_job, running_job


def test_one_job_at_a_time(tmp_path):
    with lock_job(tmp_path):
        assert running_job(tmp_path) == os.getpid()
        with pytest.raises(JobFailed, match=f"in use by another job, process {os.getpid()}: stop that one"):
            lock_job(tmp_path, timeout=0)
    assert running_job(tmp_path) is None
    with lock_job(tmp_path, timeout=0):
        pass


def test_no_job_ever_ran(tmp_path):
    assert running_job(tmp_path) is None


def test_job_that_has_not_said_who_it_is(tmp_path):
    with lock_job(tmp_path):
        (tmp_path / "job.json").write_text("")
        assert running_job(tmp_path) == 0


def test_lock_follows_no_symlink(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "job.json").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        lock_job(tmp_path)

    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_is_a_request(number):
    with StopRequest() as stop:
        assert not stop.asked.is_set()
        os.kill(os.getpid(), number)
        assert stop.asked.wait(5)
        assert stop.asked.is_set()


def test_second_interrupt_is_one():
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked.wait(5)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)

    with StopRequest() as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop.install()

    assert signal.getsignal(signal.SIGTERM) is before
