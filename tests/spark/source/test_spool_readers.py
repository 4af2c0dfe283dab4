"""Several queries on one spool, retention, and where a query without a checkpoint begins."""

import subprocess
import sys
import time

import pytest

from gnsq.spark.errors import SpoolIncomplete, SpoolInUse
from gnsq.spark.options import ReadOptions
from gnsq.spark.source.planner import Planner, PlannerTimes
from gnsq.spark.spool.positions import GONE_AFTER
from tests.spark.helpers import RECEIVED_MS, bodies_of, columns, wait_for

SOURCE = {"topic": "clicks", "channel": "archive"}


@pytest.fixture
def planner(tmp_path):
    """Start planners that receive nothing: the owner of the spool, or with spool_reader a reader."""
    planners = []

    def make(*, drain=False, times=None, **changes):
        addresses = {} if "spool_reader" in changes else {"nsqd_tcp_addresses": ("127.0.0.1:1",)}
        given = {**SOURCE, **addresses, "receivers": "external", "spool": str(tmp_path / "spool"), **changes}
        times = {"lock": 0.0, "new_reader": 0.0, **(times or {})}
        planners.append(Planner(ReadOptions(**given), times=PlannerTimes(**times)))
        planners[-1].start(drain=drain)
        return planners[-1]

    yield make
    for each in planners:
        each.stop()


@pytest.fixture
def write(spool):
    """Write segments of one message each into the spool."""
    writer = spool.writer("r1")

    def write(*numbers, received_ms=RECEIVED_MS):
        for number in numbers:
            writer.write(number, columns(number, received_ms=received_ms))

    return write


def read(stream, start, end):
    shares = stream.partitions(start, end)
    batches = [batch for share in shares for segment in share for batch in stream.spool.read(segment)]
    return [int(body.removeprefix(b"body ")) for batch in batches for body in batch.column("body").to_pylist()]


def numbers(spool):
    return [int(body.removeprefix(b"body ")) for body in bodies_of(spool)]


def test_two_queries_read_the_same_segments(planner, write, spool):
    owner, reader = planner(), planner(spool_reader="second")
    write(1, 2, 3)

    ends = [stream.latest({}) for stream in (owner, reader)]

    assert [read(stream, {}, end) for stream, end in zip((owner, reader), ends, strict=True)] == [[1, 2, 3], [1, 2, 3]]


def test_segments_are_deleted_after_both_queries_have_committed_them(planner, write, spool):
    owner, reader = planner(), planner(spool_reader="second", max_rows_per_batch=2)
    write(1, 2, 3)
    end = reader.latest({})

    owner.commit(owner.latest({}))
    assert numbers(spool) == [1, 2, 3]

    reader.commit(end)
    owner.commit({"r1": 3})
    assert numbers(spool) == [3]


def test_reader_that_has_ended_goes_on_after_a_restart(planner, write, spool):
    owner, first = planner(), planner(spool_reader="second", max_rows_per_batch=2)
    write(1, 2, 3)
    end = first.latest({})
    first.commit({})
    first.stop()
    owner.commit(owner.latest({}))

    again = planner(spool_reader="second")

    # As Spark does it: the batch that was planned and not committed first.
    assert read(again, {}, end) == [1, 2]
    assert read(again, end, again.latest(end)) == [3]


def test_retained_segments_are_for_a_reader_that_comes_later(planner, write, spool):
    owner = planner(spool_retention_bytes=10**6)
    write(1, 2, 3)
    owner.commit(owner.latest({}))

    late = planner(spool_reader="late")

    assert read(late, {}, late.latest({})) == [1, 2, 3]
    # The owner does not read them again.
    assert owner.latest({"r1": 3}) == {"r1": 3}


def test_retained_segments_do_not_fill_the_spool(planner, write, spool):
    owner = planner(spool_retention_bytes=10**6, max_spool_bytes=1, times={"trigger_after_unknown": 0.0})
    write(1)
    end = owner.latest({})
    assert "is full" in owner.progress()[1]["trouble"]

    renewed = owner.latest(end)
    assert renewed != end
    owner.commit(end)

    assert "trouble" not in owner.progress()[1]
    assert spool.unread(spool.listing()).segments == 0
    assert numbers(spool) == [1]
    # No further empty batch.
    assert owner.latest(renewed) == renewed


def test_retention_ends_without_a_further_batch(planner, write, spool):
    # The time of these segments is long over, so the first commit deletes all but the latest.
    owner = planner(spool_retention=3600, times={"retention": 0.0})
    now = time.time_ns() // 1_000_000
    write(1, 2, received_ms=now - 3_599_000)
    end = owner.latest({})
    owner.commit(end)
    assert numbers(spool) == [1, 2]

    wait_for(lambda: owner.latest(end) == end and numbers(spool) == [])


def test_unread_segments_are_never_deleted_by_retention(planner, write, spool):
    owner = planner(spool_retention=1, spool_retention_bytes=1, max_rows_per_batch=1)
    write(1, 2, 3)

    owner.commit(owner.latest({}))

    assert numbers(spool) == [2, 3]


def test_drain_of_a_reader_reads_what_is_in_the_spool_and_ends(planner, write):
    planner()
    write(1, 2)
    reader = planner(spool_reader="second", drain=True)
    write(3)

    end = reader.latest({})

    assert read(reader, {}, end) == [1, 2]
    assert reader.latest(end) == end
    assert planner(spool_reader="third").all_available({}) == {"r1": 3}


def test_two_runs_of_one_reader_are_refused(planner):
    planner()
    planner(spool_reader="second")

    with pytest.raises(SpoolInUse, match=r"reader second of spool .* is in use .* a spoolReader of its own"):
        planner(spool_reader="second")


def test_reader_of_another_query_or_source_is_refused(planner):
    planner().stop()
    planner(spool_reader="second", spool_owner="checkpoint-1").stop()

    with pytest.raises(SpoolInUse, match=r"belongs to owner 'checkpoint-1', not to 'checkpoint-2'.*second.owner.json"):
        planner(spool_reader="second", spool_owner="checkpoint-2")
    with pytest.raises(SpoolInUse, match="belongs to a query that reads clicks/archive, not clicks/metrics"):
        planner(spool_reader="third", channel="metrics")


def test_reader_needs_no_owner_that_runs(planner, write):
    write(1)
    reader = planner(spool_reader="second")

    assert read(reader, {}, reader.latest({})) == [1]


# --- a reader that was away for long


def left_alone(planner, write, spool):
    """A reader that has read the first of three segments, and was then away until the owner had deleted the second."""
    owner, reader = planner(), planner(spool_reader="second", max_rows_per_batch=1)
    write(1, 2)
    end = reader.latest({})
    reader.commit(end)
    reader.stop()
    state = spool.positions.reader("second")
    spool.positions._clock = lambda: state.ran_at - GONE_AFTER - 1
    spool.positions.write_reader("second", state.position)
    owner.commit(owner.latest({}))
    write(3)
    return end


def test_reader_that_was_away_for_long_is_told(planner, write, spool):
    end = left_alone(planner, write, spool)
    reader = planner(spool_reader="second")

    for _ in range(2):
        with pytest.raises(SpoolIncomplete, match=r"keeps nothing for reader second, .*failOnDataLoss=false"):
            reader.latest(end)


def test_reader_that_was_away_for_long_goes_on_if_the_options_say_so(planner, write, spool, caplog):
    end = left_alone(planner, write, spool)
    reader = planner(spool_reader="second", fail_on_data_loss=False)

    assert read(reader, end, reader.latest(end)) == [3]
    assert "goes on without their messages" in caplog.text
    assert spool.positions.reader("second").position == end


def test_reader_whose_position_is_removed_while_it_runs_is_told(planner, write, spool):
    reader = planner(spool_reader="second", times={"reader_refresh": 0.01})
    write(1)
    end = reader.latest({})
    spool.positions.remove_reader(spool.positions.reader("second"))

    with pytest.raises(SpoolIncomplete, match="keeps nothing for reader second"):
        wait_for(lambda: reader.latest(end) != end)


# --- where a query without a checkpoint begins


@pytest.fixture
def old_and_new(spool):
    """Two receivers. Segments 1 and 2 of the first, and 1 of the second, are older than RECEIVED_MS."""
    for receiver, times in {"r1": (-2000, -1, 0, 5), "r2": (-1,)}.items():
        writer = spool.writer(receiver)
        for number, time_ms in enumerate(times, 1):
            writer.write(number, columns(10 * int(receiver[1]) + number, received_ms=RECEIVED_MS + time_ms))


@pytest.mark.parametrize("more", [{}, {"spool_reader": "second"}], ids=["owner", "reader"])
def test_query_begins_with_the_first_segments_of_a_time(planner, old_and_new, more):
    stream = planner(starting_timestamp=RECEIVED_MS, **more)

    end = stream.latest({})

    assert stream.progress()[1]["spool_rows"] == 0
    assert read(stream, {}, end) == [13, 14]
    # The second receiver's segments are not read later, and a restarted query reads the same.
    assert stream.latest(end) == end
    stream.stop()
    assert read(planner(**more), {}, end) == [13, 14]


def test_skipped_segments_are_deleted_as_if_they_were_read(planner, old_and_new, spool):
    stream = planner(starting_timestamp=RECEIVED_MS)

    stream.commit(stream.latest({}))

    assert numbers(spool) == []


def test_starting_timestamp_has_no_effect_on_a_query_with_a_checkpoint(planner, old_and_new):
    stream = planner(starting_timestamp=RECEIVED_MS)

    assert sorted(read(stream, {"r1": 1}, stream.latest({"r1": 1}))) == [12, 13, 14, 21]


def test_query_waits_for_the_first_segment_of_a_time(planner, write):
    write(1)
    stream = planner(starting_timestamp=RECEIVED_MS + 1)
    assert stream.latest({}) == {}

    write(2, received_ms=RECEIVED_MS + 1)

    assert read(stream, {}, wait_for(lambda: stream.latest({}))) == [2]


def test_segment_of_an_earlier_version_has_no_time_and_is_read(planner, write, tmp_path):
    write(1)
    (path,) = (tmp_path / "spool" / "r1").glob("*.arrow")
    path.rename(path.with_name("000000000001-1.arrow"))

    stream = planner(starting_timestamp=RECEIVED_MS + 1)

    assert read(stream, {}, stream.latest({})) == [1]


def test_spool_that_is_full_of_skipped_segments_is_made_free(planner, write, spool):
    write(1)
    stream = planner(starting_timestamp=RECEIVED_MS + 1, max_spool_bytes=1, times={"trigger_retry": 0.0})

    first = stream.latest({})
    assert stream.partitions({}, first) == []
    second = stream.latest(first)
    assert second != first
    stream.commit(first)

    assert numbers(spool) == []


# --- processes

OWNER = """
import sys
from gnsq.spark.options import ReadOptions
from gnsq.spark.source.planner import Planner
planner = Planner(ReadOptions(
    topic="clicks", channel="archive", nsqd_tcp_addresses=("127.0.0.1:1",), receivers="external", spool=sys.argv[1],
    max_rows_per_batch=5,
))
planner.start()
start = {}
while start.get("r1", 0) < 200:
    end = planner.latest(start)
    planner.partitions(start, end)
    planner.commit(end)
    start = end
planner.stop()
"""


@pytest.mark.subprocess
def test_reader_loses_nothing_while_the_owner_deletes_in_another_process(planner, write, spool, tmp_path):
    reader = planner(spool_reader="second", max_rows_per_batch=7)
    write(*range(1, 101))
    start, found = {}, []
    first = reader.latest(start)
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path / "spool")]) as owner:
        for number in range(101, 201):
            write(number)
            if number % 5 == 0:
                end = first if not start else reader.latest(start)
                found += read(reader, start, end)
                reader.commit(end)
                start = end
        assert owner.wait(60) == 0
    while (end := reader.latest(start)) != start:
        found += read(reader, start, end)
        start = end

    assert found == list(range(1, 201))
