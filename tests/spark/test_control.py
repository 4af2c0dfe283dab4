import logging

import pytest

from gnsq.spark.errors import SpoolError
from gnsq.spark.receiver.executor_task import ReceiverControl


@pytest.fixture
def control(tmp_path):
    return ReceiverControl(str(tmp_path / "spool"))


def test_named_run_may_go_on_and_any_other_ends(control):
    control.name("one")
    assert control.allows("one")

    control.name("two")
    assert not control.allows("one")
    assert control.named() == "two"


def test_without_file_nobody_may_run(control):
    assert control.named() is None
    assert not control.allows("one")


def test_cleared_run_ends_and_its_file_is_still_seen(control):
    control.name("one")

    control.clear("one")

    assert control.named() is None
    assert not control.allows("one")
    control.check_seen()


def test_file_that_this_machine_does_not_see_is_told(control):
    with pytest.raises(SpoolError, match=r"spool .* has no receivers\.json here: does this executor see the spool\?"):
        control.check_seen()


def test_clear_leaves_the_run_of_another(control):
    control.name("two")

    control.clear("one")

    assert control.allows("two")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}"], ids=["empty", "cut short", "no object", "no run"])
def test_file_that_names_nobody_lets_nobody_run(control, tmp_path, content):
    control.name("one")
    (tmp_path / "spool" / "receivers.json").write_bytes(content)

    assert control.named() == ""
    assert not control.allows("one")


def test_run_goes_on_while_the_spool_cannot_be_read(control, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    control.name("one")
    path = tmp_path / "spool" / "receivers.json"
    path.unlink()
    path.mkdir()

    assert control.allows("one")
    assert control.allows("one")
    assert [record.levelname for record in caplog.records] == ["WARNING"]

    path.rmdir()
    assert not control.allows("one")
