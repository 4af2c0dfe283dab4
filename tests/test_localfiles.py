"""Local files: their permissions, and no symlink is followed."""

import os
import stat

import pytest

from gnsq.localfiles import check_mode, make_directory, open_or_create, write_file


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


# --- permissions


@pytest.mark.parametrize(("mode", "of_file"), [(0o700, 0o600), (0o770, 0o660), (0o2755, 0o644)], ids=oct)
def test_mode_of_a_file_does_not_depend_on_the_umask(tmp_path, umask, mode, of_file):
    make_directory(tmp_path / "a", mode)
    write_file(tmp_path / "a" / "one", tmp_path / "a" / ".tmp", b"1", mode)
    os.close(open_or_create(tmp_path / "a" / "two", mode))
    make_directory(tmp_path / "a", 0o777)  # what exists keeps its mode
    os.close(open_or_create(tmp_path / "a" / "two", 0o777))

    assert [mode_of(path) for path in (tmp_path / "a", tmp_path / "a" / "one", tmp_path / "a" / "two")] == [
        *[mode, of_file, of_file]
    ]


def test_without_a_mode_the_umask_decides(tmp_path, umask):
    make_directory(tmp_path / "a")
    write_file(tmp_path / "one", tmp_path / ".tmp", b"1")

    assert (mode_of(tmp_path / "a"), mode_of(tmp_path / "one")) == (0o777 & ~umask, 0o666 & ~umask)


def test_directory_keeps_the_group_bit_of_its_parent(tmp_path):
    make_directory(tmp_path / "a", 0o2770)
    make_directory(tmp_path / "a" / "b", 0o770)

    assert mode_of(tmp_path / "a" / "b") == 0o2770


@pytest.mark.parametrize(
    ("given", "completed"), [(0o700, 0o700), (0o600, 0o700), (0o660, 0o770), (0o2640, 0o2750)], ids=oct
)
def test_mode_gets_x_where_it_has_r(given, completed):
    assert check_mode(given) == completed


@pytest.mark.parametrize("mode", [0o077, 0o500, 0o1777, 700, -0o700])
def test_unusable_mode_is_refused(mode):
    with pytest.raises(ValueError, match=r"not usable: give octal permissions .* such as 0700"):
        check_mode(mode)


# --- symlinks and leftovers


def test_symlink_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / ".tmp").symlink_to(victim)

    write_file(tmp_path / "one", tmp_path / ".tmp", b"1")

    assert (tmp_path / "one").read_bytes() == b"1"
    assert not (tmp_path / "one").is_symlink()
    assert victim.read_bytes() == b"mine"


def test_symlink_in_the_place_of_a_lock_file_is_refused(tmp_path):
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")

    with pytest.raises(OSError, match="symbolic link"):
        open_or_create(tmp_path / "lock")
