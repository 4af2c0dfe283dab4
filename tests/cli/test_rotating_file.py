"""RotatingFile: names, rotation and compression of files, failures of the disk, and recovery after a kill."""

import contextlib
import fcntl
import os
import tracemalloc
import types

import pytest

from gnsq.cli.rotating_file import COMPRESSIONS, RotatingFile, file_stem, recover
from tests.cli.conftest import content
from tests.kit.limits import largest_file

# 2023-11-14 22:13:20 UTC.
NOW = 1_700_000_000.0
KINDS = [".log", ".jsonl"]
LINES = [f"line {number}".encode().ljust(99, b".") + b"\n" for number in range(200)]


@pytest.fixture
def now():
    """The time of the files, which a test may set."""
    return types.SimpleNamespace(now=NOW)


@pytest.fixture
def make(tmp_path, now):
    """Make a RotatingFile that is closed at the end."""
    with contextlib.ExitStack() as made:

        def make(compress="none", template="x.%H%M%S", **options):
            files = RotatingFile(
                tmp_path,
                lambda time: file_stem(template, {}, time),
                ".log",
                COMPRESSIONS[compress],
                clock=lambda: now.now,
                **options,
            )
            made.callback(files.close)
            return files

        yield make


@pytest.fixture
def names(tmp_path):
    return lambda: sorted(path.name for path in tmp_path.iterdir())


EACH_COMPRESSION = pytest.mark.parametrize("compress", ["none", "gzip", "zstd"])


# --- names


def test_two_writers_with_the_same_names_use_different_files(make, names, tmp_path):
    first, second = make(), make()

    first.write([b"1\n"])
    second.write([b"2\n"])
    second.close()
    (tmp_path / "x.221320.log").write_bytes(b"another program's\n")
    first.close()

    assert [content(tmp_path / name) for name in names()] == [b"another program's\n", b"2\n", b"1\n"]
    assert names() == ["x.221320.log", "x.221320_0001.log", "x.221320_0002.log"]


@pytest.mark.parametrize(
    "template",
    ["{user}", "{topic", "/a", "a//b", "../a", "a/.", "", "{topic.__class__}", "{topic:>9}"],
)
def test_name_that_is_not_valid_is_refused(template):
    with pytest.raises(ValueError, match="name '"):
        file_stem(template, {"topic": "clicks"}, NOW)


# --- rotation


@EACH_COMPRESSION
def test_no_file_is_larger_than_the_limit_and_all_records_are_in_order(make, names, tmp_path, compress):
    noise = [os.urandom(80).hex().encode() + b"\n" for _ in range(300)]
    files = make(compress, max_size=5000)

    for start in range(0, 300, 100):
        files.write(noise[start : start + 100])
    files.close()

    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 5000
    assert b"".join(content(tmp_path / name) for name in names()) == b"".join(noise)
    assert files.completed == len(names()) > 2


def test_record_that_is_larger_than_the_limit_has_a_file_of_its_own(make, names, tmp_path):
    files = make(max_size=10)

    files.write([b"1\n", b"x" * 50 + b"\n", b"2\n", b"3\n"])
    files.close()

    assert [content(tmp_path / name) for name in names()] == [b"1\n", b"x" * 50 + b"\n", b"2\n3\n"]


def test_file_of_an_hour_is_complete_at_the_full_hour(make, names, now):
    files = make(interval=3600)
    assert files.seconds_left is None
    files.write([b"1\n"])
    assert files.seconds_left == 2800

    now.now += 2799
    files.write([b"2\n"])
    assert files.completed == 0
    now.now += 1
    assert files.seconds_left == 0
    files.write([b"3\n"])
    now.now -= 3600  # the clock was set back
    assert files.seconds_left == 0

    assert names() == [".x.230000.log.part", "x.221320.log"]


# --- compression


def test_higher_level_makes_smaller_files():
    data = b"".join(LINES)

    assert len(COMPRESSIONS["gzip"].encode(9)(data)) < len(COMPRESSIONS["gzip"].encode(1)(data))


# --- durability


def test_write_returns_after_the_file_and_its_directory_are_synced(make, tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: (synced.append(os.readlink(f"/proc/self/fd/{number}")), fsync(number))
    )
    files = make()

    files.write([b"1\n"])
    files.write([b"2\n"])

    part = str(tmp_path / ".x.221320.log.part")
    assert synced == [part, str(tmp_path), part]


@EACH_COMPRESSION
def test_file_keeps_what_was_synced_before_a_write_failed(make, names, tmp_path, compress):
    files, noise = make(compress), [os.urandom(8000).hex().encode() + b"\n"]
    files.write([b"1\n"])

    with largest_file(4096), pytest.raises(OSError, match=r"File too large: '.*\.x\.221320\.log.*\.part'"):
        files.write(noise)
    files.close()

    (name,) = names()
    assert content(tmp_path / name) == b"1\n"


# --- recovery


@pytest.fixture
def leave(tmp_path):
    """Leave a .part file as a killed process does."""

    def leave(data, name="x.log"):
        part = tmp_path / f".{name}.part"
        part.write_bytes(data)
        return part

    return leave


SUFFIXES = [("none", ".log"), ("gzip", ".jsonl.gz"), ("zstd", ".log.zst")]


@pytest.mark.parametrize(("compress", "suffix"), SUFFIXES)
@pytest.mark.parametrize("writes", [1, 100], ids=["one write", "many writes"])
def test_incomplete_end_is_cut_at_any_byte(leave, tmp_path, compress, suffix, writes):
    encode = COMPRESSIONS[compress].encode()
    complete = b"".join(encode(b"".join(LINES)) for _ in range(writes))
    torn = encode(b"torn record\n" * 3)[:-1] if compress != "none" else b"torn"

    for end in range(len(torn) + 1):
        leave(complete + torn[:end], f"x{end}{suffix}")
    recoveries = recover(tmp_path, KINDS)

    assert sorted(recovery.cut for recovery in recoveries) == list(range(len(torn) + 1))
    assert {recovery.size for recovery in recoveries} == {len(complete)}
    assert {content(recovery.path) for recovery in recoveries} == {b"".join(LINES) * writes}


@pytest.mark.parametrize(("compress", "suffix"), SUFFIXES[1:])
def test_member_with_a_wrong_byte_is_cut(leave, tmp_path, compress, suffix):
    encode = COMPRESSIONS[compress].encode()
    first, second = encode(b"1\n"), bytearray(encode(b"".join(LINES)))
    second[-1] ^= 1

    leave(first + second, f"x{suffix}")
    (recovery,) = recover(tmp_path, KINDS)

    assert content(recovery.path) == b"1\n"


@pytest.mark.parametrize(("compress", "suffix"), SUFFIXES[1:])
def test_recovery_of_a_small_file_takes_little_memory(leave, tmp_path, compress, suffix):
    leave(COMPRESSIONS[compress].encode()(bytes(64 << 20)), f"x{suffix}")

    tracemalloc.start()
    try:
        (recovery,) = recover(tmp_path, KINDS)
        _, highest = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (recovery.path, recovery.cut) == (tmp_path / f"x{suffix}", 0)
    assert highest < 36 << 20


def test_file_with_another_delimiter_is_cut_after_it(make, names, tmp_path):
    files = make(delimiter=b"\0")
    files.write([b"1\n2\0"])
    (part,) = names()
    with (tmp_path / part).open("ab") as file:
        file.write(b"torn\n")
    fcntl.flock(files._file.descriptor, fcntl.LOCK_UN)  # as at the end of the process

    (recovery,) = recover(tmp_path, KINDS)
    files._file = None

    assert (part, recovery.cut) == (".x.221320.log.part-00", 5)
    assert recovery.path.read_bytes() == b"1\n2\0"


def test_file_without_a_complete_record_is_deleted(leave, names, tmp_path):
    part = leave(b"torn")

    (recovery,) = recover(tmp_path, KINDS)

    assert (recovery.part, recovery.path, recovery.cut) == (part, None, 4)
    assert names() == []


def test_file_that_a_process_writes_is_left_alone(make, names, tmp_path):
    files = make()
    files.write([b"1\n"])

    assert recover(tmp_path, KINDS) == []
    assert names() == [".x.221320.log.part"]


def test_part_of_another_program_is_left_alone(tmp_path, names):
    for name in (".download.part", ".x.log.part~", "x.log.part"):
        (tmp_path / name).touch()

    assert recover(tmp_path, KINDS) == []
    assert len(names()) == 3


def test_recovered_file_replaces_no_other(leave, names, tmp_path):
    (tmp_path / "x.log").write_bytes(b"old\n")
    leave(b"1\n")

    recover(tmp_path, KINDS)

    assert names() == ["x.log", "x_0001.log"]


def test_file_of_a_process_that_was_killed_while_it_gave_the_name_is_not_duplicated(leave, names, tmp_path):
    os.link(leave(b"1\n"), tmp_path / "x.log")

    (recovery,) = recover(tmp_path, KINDS)

    assert recovery.path == tmp_path / "x.log"
    assert names() == ["x.log"]


def test_file_that_can_not_be_recovered_is_reported_and_the_others_are_recovered(leave, names, tmp_path):
    (tmp_path / ".a.log.part").symlink_to(tmp_path / "elsewhere")
    leave(b"1\n", "b.log")

    first, second = recover(tmp_path, KINDS)

    assert isinstance(first.error, OSError)
    assert second.path == tmp_path / "b.log"
    assert names() == [".a.log.part", "b.log"]


def test_new_file_that_another_process_recovers_at_once_is_made_again(make, names, tmp_path, monkeypatch):
    # recover() of the other process runs between the creation of the file and its lock.
    flock, recovered = fcntl.flock, []

    def late_flock(descriptor, operation):
        if not recovered:
            recovered.append(None)
            recovered[:] = recover(tmp_path, KINDS)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late_flock)
    files = make()

    files.write([b"1\n"])
    files.close()

    assert [recovery.path for recovery in recovered] == [None]
    (name,) = names()
    assert content(tmp_path / name) == b"1\n"
