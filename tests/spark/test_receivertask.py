"""What a task on an executor does, here without an executor; test_executors.py has one."""

import pytest

from gnsq.spark.errors import SpoolError
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.executor_task import ReceiverLease, receive


@pytest.fixture
def options(tmp_path):
    return ReadOptions(
        topic="clicks", channel="archive", nsqd_tcp_addresses=("127.0.0.1:1",), spool=str(tmp_path / "spool")
    )


def test_executor_that_does_not_see_the_spool_is_told(options, tmp_path):
    with pytest.raises(SpoolError, match="does this executor see the spool"):
        receive(options, "run", ())

    assert not (tmp_path / "spool").exists()


def test_task_of_a_run_that_was_told_to_end_does_nothing(options, tmp_path):
    lease = ReceiverLease(options.spool)
    lease.grant("run")
    lease.revoke("run")

    receive(options, "run", ())

    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["receivers.json"]
