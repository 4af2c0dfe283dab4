import logging

import pytest

from gnsq.spark.errors import SpoolError
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.executor_task import ReceiverLease, receive


@pytest.fixture
def lease(tmp_path):
    return ReceiverLease(str(tmp_path / "spool"))


def test_granted_run_is_allowed_and_no_other(lease):
    lease.grant("one")
    assert lease.is_allowed("one")

    lease.grant("two")
    assert not lease.is_allowed("one")
    assert lease.current() == "two"


def test_missing_file_allows_no_run(lease):
    assert lease.current() is None
    assert not lease.is_allowed("one")


def test_revoked_run_is_not_allowed_and_its_file_stays(lease):
    lease.grant("one")

    lease.revoke("one")

    assert lease.current() is None
    assert not lease.is_allowed("one")
    lease.check_visible()


def test_missing_file_is_an_error_of_check_visible(lease):
    with pytest.raises(SpoolError, match=r"spool .* has no receivers\.json here: does this executor see the spool\?"):
        lease.check_visible()


def test_revoke_keeps_the_lease_of_another_run(lease):
    lease.grant("two")

    lease.revoke("one")

    assert lease.is_allowed("two")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}"], ids=["empty", "cut short", "no object", "no run"])
def test_damaged_file_allows_no_run(lease, tmp_path, content):
    lease.grant("one")
    (tmp_path / "spool" / "receivers.json").write_bytes(content)

    assert lease.current() == ""
    assert not lease.is_allowed("one")


def test_run_goes_on_while_the_spool_cannot_be_read(lease, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    lease.grant("one")
    path = tmp_path / "spool" / "receivers.json"
    path.unlink()
    path.mkdir()

    assert lease.is_allowed("one")
    assert lease.is_allowed("one")
    assert [record.levelname for record in caplog.records] == ["WARNING"]

    path.rmdir()
    assert not lease.is_allowed("one")


@pytest.fixture
def options(tmp_path):
    return ReadOptions(
        topic="clicks", channel="archive", nsqd_tcp_addresses=("127.0.0.1:1",), spool=str(tmp_path / "spool")
    )


def test_executor_that_does_not_see_the_spool_is_an_error(options, tmp_path):
    with pytest.raises(SpoolError, match="does this executor see the spool"):
        receive(options, "run", ())

    assert not (tmp_path / "spool").exists()


def test_task_of_a_revoked_run_does_nothing(options, tmp_path):
    lease = ReceiverLease(options.spool)
    lease.grant("run")
    lease.revoke("run")

    receive(options, "run", ())

    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["receivers.json"]
