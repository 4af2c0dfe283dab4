import errno
import os

import pytest

from gnsq.spark.pipeline import compaction as module
from gnsq.spark.pipeline.compaction import exchange, finish_exchange


@pytest.fixture
def directories(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"was-{name}").touch()
    return tmp_path / "a", tmp_path / "b", tmp_path / "aside"


def names_in(directory):
    return [path.name for path in directory.iterdir()]


def test_directories_change_names_in_one_step(directories):
    a, b, aside = directories
    exchange(a, b, aside)

    assert (names_in(a), names_in(b), aside.exists()) == (["was-b"], ["was-a"], False)


def cannot(number):
    def rename(directory, other):
        raise OSError(number, os.strerror(number))

    return rename


def test_where_the_system_can_not_two_renames_do(directories, monkeypatch):
    monkeypatch.setattr(module, "_rename_exchange", cannot(errno.EINVAL))
    a, b, aside = directories
    exchange(a, b, aside)

    assert (names_in(a), names_in(b), aside.exists()) == (["was-b"], ["was-a"], False)


def test_other_failures_are_told(directories, monkeypatch):
    monkeypatch.setattr(module, "_rename_exchange", cannot(errno.EIO))

    with pytest.raises(OSError, match="Input/output"):
        exchange(*directories)


def test_missing_directory_is_an_error(directories, tmp_path):
    a, _, aside = directories
    with pytest.raises(FileNotFoundError):
        exchange(a, tmp_path / "none", aside)
    assert names_in(a) == ["was-a"]


def test_what_a_crash_left_aside_is_put_back(directories):
    a, _, aside = directories
    a.rename(aside)
    finish_exchange(a, aside)
    finish_exchange(a, aside)

    assert names_in(a) == ["was-a"]


def test_what_is_in_its_place_stays(directories):
    a, b, _ = directories
    finish_exchange(a, b)

    assert (names_in(a), names_in(b)) == (["was-a"], ["was-b"])
