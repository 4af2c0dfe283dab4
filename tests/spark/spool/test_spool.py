import contextlib
import logging
import os
import stat
import time

import pytest

from gnsq.spark.errors import SpoolError, SpoolIncomplete
from gnsq.spark.offsets import Segment
from gnsq.spark.spool.segments import SCHEMA
from gnsq.spark.spool.spool import Spool
from tests.kit import run_program
from tests.spark.helpers import arrow_file, bodies_of, columns


def test_segment_is_read_as_it_was_written(spool):
    size = spool.writer("r1").write(1, columns(1, 2))

    [batch] = spool.read(Segment("r1", 1, size, 2))
    assert batch.schema.equals(SCHEMA, check_metadata=True)
    assert batch.column("body").to_pylist() == [b"body 1", b"body 2"]
    assert batch.column("published_at").to_pylist()[0].isoformat() == "2023-11-14T22:13:20.000001+00:00"
    assert batch.column("received_at").to_pylist()[0].isoformat() == "2023-11-14T22:13:21+00:00"
    assert batch.column("message_id").to_pylist()[1] == "0000000000000002"
    assert batch.column("attempts").to_pylist() == [1, 1]
    assert batch.column("nsqd").to_pylist() == ["127.0.0.1:4150"] * 2
    assert batch.column("topic").to_pylist() == ["clicks"] * 2
    assert list(spool.listing().segments) == [Segment("r1", 1, size, 2)]


def test_credentials_are_not_in_texts_of_a_spool():
    spool = Spool("s3://KEY:SECRET@bucket/dir?region=us-east-1&endpoint_override=127.0.0.1:1")

    assert (spool.location, repr(spool)) == ("s3://***@bucket/dir", "Spool('s3://***@bucket/dir')")


# --- permissions


def modes_below(path):
    return {each.relative_to(path).as_posix(): stat.S_IMODE(each.stat().st_mode) for each in [path, *path.rglob("*")]}


@pytest.mark.parametrize(
    ("umask", "mode", "of_directory", "of_file"),
    [pytest.param(0, (), 0o700, 0o600, id="default"), pytest.param(0o077, (0o2770,), 0o2770, 0o660, id="group")],
)
def test_spool_is_private_unless_its_mode_says_otherwise(tmp_path, umask, mode, of_directory, of_file):
    before = os.umask(umask)
    try:
        spool = Spool(str(tmp_path / "spool"), *mode)
        lock = spool.lock("checkpoint", "clicks/archive")
        writer = spool.writer("r1")
        size = writer.write(1, columns(1))
        writer.close(1)
        lock.release()
    finally:
        os.umask(before)

    assert modes_below(tmp_path / "spool") == {
        ".": of_directory,
        "owner.json": of_file,
        "r1": of_directory,
        f"r1/000000000001-1-{size}.arrow": of_file,
        "r1/closed.json": of_file,
    }


@pytest.mark.parametrize(
    ("mode", "option", "owner", "words"),
    [
        pytest.param(0o755, 0o700, None, "", id="of an earlier version"),
        pytest.param(0o2770, 0o770, None, "", id="of a group"),
        pytest.param(0o777, 0o700, None, "has the permissions drwxrwxrwx: others may delete and replace", id="of all"),
        pytest.param(
            0o700,
            0o700,
            54321,
            "belongs to another user, 54321: others may delete and replace messages",
            id="of another user",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away"),
        ),
    ],
)
def test_spool_is_used_as_it_is_with_one_warning_if_others_may_write(tmp_path, caplog, mode, option, owner, words):
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool").chmod(mode)
    if owner is not None:
        os.chown(tmp_path / "spool", owner, -1)
    spool = Spool(str(tmp_path / "spool"), option)

    spool.prepare()
    spool.lock("", "clicks/archive").release()
    spool.writer("r1").write(1, columns(1))

    assert modes_below(tmp_path / "spool")["."] == mode
    assert len(caplog.records) == bool(words)
    assert words in caplog.text


@contextlib.contextmanager
def acting_as(user, group, *others, below):
    """Be another user in a block, who can reach a directory of pytest's."""
    for path in (below, *below.parents[:-2]):  # without / and /tmp
        path.chmod(path.stat().st_mode | 0o011)
    groups = os.getgroups()
    os.setgroups(others)
    os.setegid(group)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def test_permission_error_names_the_option_for_shared_spools(tmp_path):
    (tmp_path / "spool" / "r1").mkdir(parents=True)
    (tmp_path / "spool" / "r1" / "000000000001-1-1.arrow").touch()
    (tmp_path / "spool").chmod(0o755)
    (tmp_path / "spool" / "r1").chmod(0o000)
    spool = Spool(str(tmp_path / "spool"))

    # Permissions do not count for root.
    with acting_as(54321, 54321, below=tmp_path) if os.geteuid() == 0 else contextlib.nullcontext():
        for use in (spool.listing, lambda: spool.read(Segment("r1", 1, 1, 1))):
            with pytest.raises(PermissionError, match=r"are several users need one group and the option spoolMode"):
                use()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as others")
def test_users_of_one_group_share_a_spool(tmp_path):
    (tmp_path / "spool").mkdir()
    os.chown(tmp_path / "spool", 54321, 54320)
    (tmp_path / "spool").chmod(0o2770)
    receivers, readers = (Spool(str(tmp_path / "spool"), 0o2770) for _ in range(2))

    with acting_as(54321, 54321, 54320, below=tmp_path):
        # By the directory's bit the files belong to the group, although it is not the receiver's first.
        receivers.prepare()
        receivers.writer("r1").write(1, columns(1))
    with acting_as(54322, 54320, below=tmp_path):
        readers.lock("", "clicks/archive").release()
        assert bodies_of(readers) == [b"body 1"]
        readers.prune(readers.listing(), {"r1": 1})

    assert list(readers.listing().segments) == []


def test_leftovers_in_the_target_of_a_symlink_are_kept(spool, root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ".tmp-mine").touch()
    (root / "r1").symlink_to(tmp_path / "elsewhere")

    spool.remove_leftovers(older_than=-1)

    assert (tmp_path / "elsewhere" / ".tmp-mine").exists()


# --- segments and others


def test_temporary_and_foreign_files_are_no_segments(spool, root):
    spool.writer("r1").write(1, columns(1))
    for name in (".tmp-000000000002-1-1.arrow", "notes.txt", "2-1-1.arrow"):
        (root / "r1" / name).write_bytes(b"x")

    assert [segment.number for segment in spool.listing().segments] == [1]


def test_damaged_segment_is_quarantined_and_its_messages_are_counted(spool, root, caplog):
    writer = spool.writer("r1")
    for number in (1, 2, 3):
        writer.write(number, columns(*range(number)))
    [path] = (root / "r1").glob("000000000002-2-*.arrow")
    path.write_bytes(path.read_bytes().replace(b"body 1", b"body 3"))
    segments = spool.listing().segments

    assert bodies_of(spool) == [b"body 0", b"body 0", b"body 1", b"body 2"]

    contents = spool.listing()
    assert [segment.number for segment in contents.segments] == [1, 3]
    [quarantined] = contents.quarantined
    assert (quarantined.path, quarantined.rows) == (f"r1/{path.name}", 2)
    assert contents.rows_quarantined == 2
    assert path.with_name(f"{path.name}.corrupt").exists()
    # Other readers leave it out, too, and a prune keeps it.
    [damaged] = [segment for segment in segments if segment.number == 2]
    assert spool.read(damaged) == spool.read(damaged) == []
    spool.prune(spool.listing(), {"r1": 3})
    assert path.with_name(f"{path.name}.corrupt").exists()
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert f"renamed to r1/{path.name}.corrupt. Its 2 messages" in record.message


def test_segment_of_a_later_version_is_refused_and_kept(spool, root):
    spool.writer("r1")
    later = arrow_file(SCHEMA.with_metadata({"gnsq.version": "2"}), *columns(1))
    (root / "r1" / "000000000001-1-9.arrow").write_bytes(later)

    with pytest.raises(SpoolError, match=r"version 2, this gnsq reads versions up to 1: install the gnsq"):
        bodies_of(spool)
    assert spool.listing().rows_quarantined == 0


def test_failing_disk_is_no_damage(spool, root):
    spool.writer("r1").write(1, columns(1))
    [segment] = spool.listing().segments
    (root / segment.path).unlink()
    # A directory can be opened, and not read.
    (root / segment.path).mkdir()

    with pytest.raises(OSError, match=r"(?i)directory"):
        spool.read(segment)
    assert (root / segment.path).exists()


def test_prune_deletes_up_to_end_and_nothing_that_the_listing_does_not_have(spool):
    writers = {receiver: spool.writer(receiver) for receiver in ("r1", "r2")}
    for writer in writers.values():
        for number in (1, 2, 3):
            writer.write(number, columns(number))
    listing = spool.listing()
    [first] = [segment for segment in listing.segments if (segment.receiver, segment.number) == ("r1", 1)]
    writers["r1"].write(4, columns(4))
    writers["r1"].close(4)

    spool.prune(listing, {"r1": 4})

    left = {("r2", 1), ("r2", 2), ("r2", 3)}
    assert {(each.receiver, each.number) for each in listing.segments} == left
    assert {(each.receiver, each.number) for each in spool.listing().segments} == left | {("r1", 4)}
    assert spool.listing().closed == {"r1"}
    with pytest.raises(SpoolIncomplete, match=r"000000000001-1-\d+.arrow is gone, with 1 message: bring"):
        spool.read(first)


def test_prune_removes_the_directory_of_a_closed_receiver_after_its_last_segment(spool, root):
    spool.writer("r2").close(0)
    assert not (root / "r2").exists()
    writer = spool.writer("r1")
    writer.write(1, columns(1))
    # The receiver may go on.
    spool.prune(spool.listing(), {"r1": 1})
    writer.write(2, columns(2))
    assert bodies_of(spool) == [b"body 2"]
    writer.close(2)

    spool.prune(spool.listing(), {"r1": 1})
    assert (root / "r1").exists()
    spool.prune(spool.listing(), {"r1": 2})
    assert not (root / "r1").exists()


def test_leftovers_of_killed_receivers_are_removed_when_old(spool, root):
    spool.writer("r1")
    old, young = root / "r1" / ".tmp-000000000001.arrow", root / "r1" / ".tmp-000000000002.arrow"
    for path in (old, young):
        path.write_bytes(b"half a segment")
    # A receiver may have just made its directory.
    empty, new = root / "r2", root / "r3"
    for path in (empty, new):
        path.mkdir()
    for path in (old, empty):
        os.utime(path, (time.time() - 3600, time.time() - 3600))

    spool.remove_leftovers()

    assert [path.exists() for path in (old, young, empty, new)] == [False, True, False, True]


@pytest.mark.subprocess
def test_process_that_writes_a_local_spool_stays_small(tmp_path):
    """pandas, pyarrow.compute, pyarrow.fs and obstore take 67 MiB, in the process of each query."""
    code = (
        "import sys\n"
        "from tests.spark.helpers import bodies_of, columns\n"
        "from gnsq.spark.source import reader\n"
        "from gnsq.spark.spool.spool import Spool\n"
        "spool = Spool(sys.argv[1])\n"
        "spool.writer('r1').write(1, columns(1, 2))\n"
        "loaded = {'pandas', 'pyarrow.compute', 'pyarrow.fs', 'obstore'} & set(sys.modules)\n"
        "print(loaded, bodies_of(spool))"
    )

    done = run_program(code, str(tmp_path), flags=())

    assert done.stdout == "set() [b'body 1', b'body 2']\n"
