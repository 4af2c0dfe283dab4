import fcntl
import os

import pytest

from gnsq.spark.scratch import make_user_directory, scratch_directory


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"gnsq-{os.getuid()}"


def test_directory_is_private_and_deleted_at_the_end(temporary):
    with scratch_directory("spark-") as path:
        (path / "file").touch()
        assert path.parent == temporary
        assert path.stat().st_mode & 0o077 == 0

    assert list(temporary.iterdir()) == []


def test_directory_of_a_killed_program_is_deleted_and_that_of_a_living_one_kept(temporary):
    for name in ("spark-dead", "spark-alive", "spark-new", "other"):
        (temporary / name).mkdir(parents=True)
    for name in ("spark-dead", "spark-alive"):
        (temporary / name / "lock").touch()

    with open(temporary / "spark-alive" / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with scratch_directory("spark-") as path:
            # spark-new has no lock yet: its program is about to make one.
            assert {each.name for each in temporary.iterdir()} == {"spark-alive", "spark-new", "other", path.name}


def test_directory_of_another_user_is_refused(monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 12345)

    with pytest.raises(
        PermissionError, match=r"belongs to another user: set TMPDIR to one of your own: '.*gnsq-12345'"
    ):
        make_user_directory()
