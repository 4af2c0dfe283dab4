"""Retention: which segments may be deleted, and their deletion."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.spark.offsets import Segment, slowest
from gnsq.spark.spool.index import SegmentIndex
from gnsq.spark.spool.positions import GONE_AFTER, ReaderRegistration
from gnsq.spark.spool.retention import Retention, SpoolPruner
from tests.spark.helpers import RECEIVED_MS, columns, wait_for


def segment(receiver, number, second, size=10):
    return Segment(receiver, number, size, 1, second * 1000)


SEGMENTS = SegmentIndex(
    [*(segment("a", number, number) for number in range(1, 6)), segment("b", 1, 2), segment("b", 2, 4)]
)
ALL = {"a": 5, "b": 2}


@pytest.mark.parametrize(
    ("retention", "read", "end"),
    [
        pytest.param(Retention(), ALL, ALL, id="nothing is kept"),
        pytest.param(Retention(), {"a": 3}, {"a": 3}, id="nothing that was read is kept"),
        pytest.param(Retention(seconds=6), ALL, {"a": 4, "b": 2}, id="time"),
        pytest.param(Retention(seconds=6), {"a": 2}, {"a": 2}, id="time, and not all was read"),
        pytest.param(Retention(seconds=100), ALL, {}, id="all is kept"),
        pytest.param(Retention(size=70), ALL, {}, id="bytes that suffice"),
        pytest.param(Retention(size=40), ALL, {"a": 2, "b": 1}, id="bytes: the oldest first"),
        pytest.param(Retention(size=0), ALL, ALL, id="no bytes"),
        pytest.param(Retention(size=20), {"a": 3}, {"a": 1}, id="bytes, and not all was read"),
        pytest.param(Retention(seconds=6, size=1000), ALL, {"a": 4, "b": 2}, id="the time is over first"),
        pytest.param(Retention(seconds=100, size=60), ALL, {"a": 1}, id="the bytes are too many first"),
        pytest.param(Retention(seconds=1), {}, {}, id="nothing was read"),
    ],
)
def test_segments_that_may_be_deleted(retention, read, end):
    assert retention.deletable(SEGMENTS, read, now=10) == end


def test_segment_of_an_earlier_version_has_no_time_and_is_not_kept_long():
    segments = SegmentIndex([Segment("a", 1, 10, 1), segment("a", 2, 9)])

    assert Retention(seconds=6).deletable(segments, {"a": 2}, now=10) == {"a": 1}
    assert Retention(size=10).deletable(segments, {"a": 2}, now=10) == {"a": 1}


@pytest.mark.parametrize(
    ("positions", "lowest"),
    [
        pytest.param([{"a": 3, "b": 1}], {"a": 3, "b": 1}, id="one"),
        pytest.param([{"a": 3, "b": 1}, {"a": 1, "b": 7, "c": 2}], {"a": 1, "b": 1}, id="two"),
        pytest.param([{"a": 3}, {}], {}, id="one has read nothing"),
    ],
)
def test_slowest_position(positions, lowest):
    assert slowest(positions) == lowest


SPOOLS = st.lists(
    st.builds(segment, st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 20), st.integers(0, 50)),
    unique_by=lambda each: (each.receiver, each.number),
)
VECTORS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))


@given(SPOOLS, VECTORS, st.none() | st.integers(1, 20), st.none() | st.integers(1, 200))
def test_no_unread_segment_may_be_deleted_and_limits_hold(segments, read, seconds, size):
    index = SegmentIndex(segments)

    end = Retention(seconds, size).deletable(index, read, now=20)

    assert all(number <= read.get(receiver, 0) for receiver, number in end.items())
    kept = index.between(end, read)
    assert size is None or sum(each.size for each in kept) <= size
    if seconds is None and size is None:
        assert kept == []
    for receiver in "abc" if seconds is not None else ():
        first = next((each for each in kept if each.receiver == receiver), None)
        assert first is None or first.received_ms > (20 - seconds) * 1000


# --- a spool with readers

# Seconds: when the segments of the fixture were received.
RECEIVED = RECEIVED_MS / 1000
MANY_BYTES = 10**9


@pytest.fixture
def listing(spool):
    """The listing of a spool with four segments."""
    writer = spool.writer("r1")
    for number in range(1, 5):
        writer.write(number, columns(number))
    return spool.listing()


def pruner(spool, seconds=None, size=None, max_held=MANY_BYTES):
    return SpoolPruner(spool, Retention(seconds, size), max_held)


def unread_size(spool):
    return spool.unread(spool.listing()).size


def numbers(spool):
    return sorted(segment.number for segment in spool.listing().segments)


def test_owner_deletes_what_it_has_read(spool, listing):
    owner = pruner(spool)

    owner.prune(listing, {"r1": 3}, RECEIVED)

    assert numbers(spool) == [4]
    assert owner.owner_position == spool.positions.owner() == {}


def test_retained_segments_are_kept_and_do_not_count_as_unread(spool, listing):
    one = next(iter(listing.segments)).size
    assert unread_size(spool) == 4 * one
    owner = pruner(spool, seconds=60)

    owner.prune(listing, {"r1": 3}, RECEIVED + 59)
    assert numbers(spool) == [1, 2, 3, 4]
    assert unread_size(spool) == one
    assert owner.owner_position == pruner(spool).owner_position == {"r1": 3}

    owner.prune(listing, {"r1": 3}, RECEIVED + 60)
    assert numbers(spool) == [4]
    assert unread_size(spool) == one


def test_position_of_the_owner_does_not_go_back(spool, listing):
    pruner(spool, seconds=60).prune(listing, {"r1": 3}, RECEIVED)
    owner = pruner(spool, seconds=60)

    # With a new checkpoint.
    owner.prune(listing, {"r1": 1}, RECEIVED)

    assert owner.owner_position == {"r1": 3}


def test_segments_are_deleted_though_the_disk_is_full(spool, listing, disk):
    disk.fail("position.json", OSError(28, "No space left on device"))

    with pytest.raises(OSError, match="No space left"):
        pruner(spool, size=next(iter(listing.segments)).size).prune(listing, {"r1": 3}, RECEIVED)

    assert numbers(spool) == [3, 4]


def test_slowest_reader_holds_segments_back(spool, listing):
    spool.positions.write_reader("slow", {"r1": 1})
    spool.positions.write_reader("fast", {"r1": 4})

    pruner(spool).prune(listing, {"r1": 3}, time.time())

    assert numbers(spool) == [2, 3, 4]
    assert spool.positions.owner() == {"r1": 3}


def test_reader_that_has_read_nothing_holds_all_back(spool, listing):
    spool.positions.write_reader("new", {})

    pruner(spool, size=1).prune(listing, {"r1": 4}, time.time())

    assert numbers(spool) == [1, 2, 3, 4]


@pytest.mark.parametrize(("seconds", "timeout"), [(None, GONE_AFTER), (5, GONE_AFTER), (7200, 7200)])
def test_reader_that_is_gone_holds_nothing_back(spool, listing, caplog, seconds, timeout):
    spool.positions.write_reader("gone", {"r1": 1})
    spool.positions.write_reader("up-to-date", {"r1": 3})
    now = time.time()
    owner = pruner(spool, seconds)

    owner.prune(listing, {"r1": 3}, now + timeout - 1)
    assert numbers(spool) == [2, 3, 4]

    owner.prune(listing, {"r1": 3}, now + timeout + 1)
    assert numbers(spool) == [4]
    # It learns that it has lost segments. The other one has lost none.
    assert [reader.name for reader in spool.positions.readers()] == ["up-to-date"]
    assert f"reader gone has not run for {timeout:.0f} s: 2 segments that it has not read are deleted" in caplog.text


@pytest.mark.parametrize(
    "text", [b"", b'{"v": 1, "at": 17', b"[]", b'{"v": 1, "at": 1, "r": []}', b'{"v": 2, "at": 1, "r": {}}']
)
def test_damaged_position_of_a_reader_holds_all_back(spool, listing, tmp_path, caplog, text):
    spool.positions.write_reader("torn", {"r1": 4})
    (tmp_path / "spool" / "readers" / "torn.json").write_bytes(text)
    owner = pruner(spool)

    for _ in range(2):
        owner.prune(listing, {"r1": 3}, time.time() + 10 * GONE_AFTER)

    assert numbers(spool) == [1, 2, 3, 4]
    # Once.
    assert caplog.text.count("readers/torn.json is damaged") == 1


def test_damaged_position_of_the_owner_is_written_again(spool, listing, tmp_path):
    pruner(spool, seconds=60).prune(listing, {"r1": 3}, RECEIVED)
    (tmp_path / "spool" / "position.json").write_bytes(b"torn")
    unread = unread_size(spool)
    assert unread == sum(segment.size for segment in listing.segments)

    pruner(spool, seconds=60).prune(listing, {"r1": 3}, RECEIVED)

    assert unread_size(spool) == unread / 4


def test_position_is_whole_or_the_old_one_if_its_writer_is_killed(spool, listing, tmp_path):
    spool.positions.write_reader("killed", {"r1": 1})
    # What a kill during the next write leaves.
    (tmp_path / "spool" / "readers" / ".tmp-killed.json").write_bytes(b'{"v": 1, "r"')

    assert [(reader.name, reader.position) for reader in spool.positions.readers()] == [("killed", {"r1": 1})]


def test_reader_that_holds_much_back_is_logged_once(spool, listing, caplog):
    spool.positions.write_reader("slow", {"r1": 1})
    owner = pruner(spool, max_held=1)

    for _ in range(2):
        owner.prune(listing, {"r1": 3}, time.time())

    assert caplog.text.count("reader slow holds back") == 1
    assert "delete readers/slow.json" in caplog.text


def test_directory_of_readers_is_no_receiver(spool, listing):
    spool.positions.write_reader("one", {})

    assert spool.listing().receivers == {"r1"}


# --- one reader


@pytest.fixture
def registration(spool):
    spool.prepare()
    made = []

    def make(name="one", interval=60.0):
        made.append(ReaderRegistration(spool.positions, name, interval))
        return made[-1]

    yield make
    for each in made:
        each.close()


def position(spool, name="one"):
    return spool.positions.reader(name).position


def test_reader_begins_with_its_start(spool, registration):
    assert registration().register({"r1": 3, "/r1": 2, "": 1}) is False
    assert position(spool) == {"r1": 3}


@pytest.mark.parametrize(
    ("start", "begins"),
    [
        # Spark's commit log is not synced, so the last commit may be lost.
        pytest.param({"r1": 5, "r2": 1}, {"r1": 3}, id="ahead of its position"),
        pytest.param({}, {}, id="new checkpoint"),
        pytest.param({"r1": 2}, {"r1": 2}, id="old copy of its checkpoint"),
    ],
)
def test_reader_that_runs_again_begins_with_the_earlier_position(spool, registration, start, begins):
    spool.positions.write_reader("one", {"r1": 3})

    assert registration().register(start) is True
    assert position(spool) == begins


def test_running_reader_gives_signs_of_life(spool, registration):
    registration(interval=0.01).register({"r1": 3})
    first = spool.positions.reader("one").ran_at

    wait_for(lambda: spool.positions.reader("one").ran_at > first)

    assert position(spool) == {"r1": 3}


def test_reader_whose_position_was_removed_does_not_write_it_again(spool, registration):
    reader = registration()
    reader.register({"r1": 3})
    spool.positions.remove_reader(spool.positions.reader("one"))

    reader.advance({"r1": 4})

    assert reader.is_removed
    assert spool.positions.readers() == []


@pytest.mark.parametrize("step", ["register", "advance"])
def test_reader_whose_position_is_removed_while_it_writes_it_learns_of_that(spool, registration, monkeypatch, step):
    spool.positions.write_reader("one", {"r1": 3})
    reader, state, write = registration(), spool.positions.reader("one"), spool.positions.write_reader
    if step == "advance":
        reader.register({"r1": 3})

    def write_after_the_removal(name, position):
        spool.positions.remove_reader(state)
        write(name, position)

    monkeypatch.setattr(spool.positions, "write_reader", write_after_the_removal)
    getattr(reader, step)({"r1": 4})
    monkeypatch.undo()
    if step == "register":
        # The next sign of life, or the next run, finds it.
        reader.advance()

    assert reader.is_removed
    assert spool.positions.is_removed("one")


def test_reader_that_goes_on_after_a_removal_is_registered_again(spool, registration):
    reader = registration()
    reader.register({"r1": 3})
    spool.positions.remove_reader(spool.positions.reader("one"))

    reader.register({"r1": 3})
    reader.advance({"r1": 4})

    assert not reader.is_removed
    assert position(spool) == {"r1": 4}
