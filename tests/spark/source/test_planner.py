import functools
import os
import threading
import time

import pytest

from gnsq.spark.errors import SpoolError, SpoolIncomplete
from gnsq.spark.source.channel import ChannelMonitor
from gnsq.spark.source.drain import EmptyBatchTrigger
from gnsq.spark.source.planner import LOCAL_INTERVALS, Planner, drain_channel
from tests.spark.helpers import bodies_of, columns, is_empty, numbered, publish, unusable, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def planner(options, monkeypatch):
    planners = []

    def make(*, drain=False, monitor=(), trigger=(), now=time.monotonic, **changes):
        module = "gnsq.spark.source.planner"
        monkeypatch.setattr(f"{module}.ChannelMonitor", functools.partial(ChannelMonitor, **dict(monitor)))
        monkeypatch.setattr(f"{module}.EmptyBatchTrigger", functools.partial(EmptyBatchTrigger, **dict(trigger)))
        planners.append(Planner(options(**changes), now=now))
        planners[-1].start(drain=drain)
        return planners[-1]

    yield make
    for each in planners:
        each.stop()


def read(planner, start, end):
    shares = planner.partitions(start, end)
    return [
        body
        for share in shares
        for segment in share
        for batch in planner.spool.read(segment)
        for body in batch.column("body").to_pylist()
    ]


def run_out(planner):
    """Read as Spark does until there is nothing new; returns bodies, and the sizes of the batches."""
    start, bodies, sizes = {}, [], []
    while (end := planner.latest(start)) != start:
        planner.commit(start)
        found = read(planner, start, end)
        sizes.append(len(found))
        bodies += found
        start = end
    return bodies, sizes


def test_spool_is_released_after_the_last_write(fakensqd, planner, spool, disk):
    disk.hold(".arrow")
    publish(fakensqd, "clicks", numbered(10))
    running = planner()
    running.start()  # a second call does nothing
    stopping = threading.Thread(target=running.stop)
    assert disk.was_reached.wait(20)

    stopping.start()
    wait_for(lambda: running.receiver.is_closing)
    assert not spool.wait_for_end(timeout=0)
    disk.repair()
    stopping.join(20)

    assert spool.wait_for_end(timeout=0)
    assert sorted(bodies_of(spool)) == numbered(10)
    assert len(spool.listing().closed) == 1


def test_segments_are_no_larger_than_a_batch_may_be(fakensqd, planner):
    publish(fakensqd, "clicks", numbered(500))

    _, sizes = run_out(planner(drain=True, max_rows_per_batch=70))

    assert max(sizes) <= 70
    assert sum(sizes) == 500


def test_time_of_a_batch_is_not_idle_time_of_a_drain(fakensqd, planner):
    batch = [0.0]
    publish(fakensqd, "clicks", numbered(10))
    stream = planner(drain=True, nsqd_http_addresses=(), idle_timeout=20, now=lambda: time.monotonic() + batch[0])
    end = stream.latest({})

    batch[0] = 1000.0
    publish(fakensqd, "clicks", numbered(10))

    assert stream.latest(end) != end


def test_large_batch_that_is_planned_already_is_divided_after_a_restart(planner, spool):
    writer = spool.writer("r1")
    sizes = [writer.write(number, columns(number)) for number in range(1, 21)]
    first = planner(receivers="external")
    end = first.latest({})
    assert [len(share) for share in first.partitions({}, end)] == [20]
    first.stop()

    second = planner(receivers="external", max_bytes_per_batch=2 * max(sizes))

    assert [len(share) for share in second.partitions({}, end)] == [2] * 10
    assert read(second, {}, end) == bodies_of(spool)


def test_known_segments_are_planned_without_a_listing_for_each_batch(planner, spool, tmp_path, monkeypatch):
    # As if a listing took long.
    monkeypatch.setattr("gnsq.spark.source.planner.LISTING_PAUSE", 1e9)
    writer = spool.writer("r1")
    for number in range(1, 6):
        writer.write(number, columns(number))
    stream = planner(receivers="external", max_rows_per_batch=1)

    ends = [stream.latest({})]
    with unusable(tmp_path / "spool"):
        wait_for(lambda: time.monotonic() > stream._listed_at + max(LOCAL_INTERVALS))
        while ends[-1] != {"r1": 4}:
            ends.append(stream.latest(ends[-1]))

    assert ends == [{"r1": number} for number in (1, 2, 3, 4)]
    assert stream.latest(ends[-1]) == {"r1": 5}


def test_batch_waits_for_its_least_rows(planner, spool):
    writer = spool.writer("r1")
    writer.write(1, columns(0))
    stream = planner(receivers="external", min_rows_per_batch=3)
    # The first batch of a run does not wait.
    start = stream.latest({})
    assert start == {"r1": 1}
    writer.write(2, columns(1, 2))

    assert stream.latest(start) == start
    assert stream.progress()[1]["spool_rows"] == 2
    writer.write(3, columns(3))
    assert stream.latest(start) == {"r1": 3}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"max_trigger_delay": 0.001}, id="after the delay"),
        pytest.param({"max_spool_bytes": 1}, id="full spool"),
        pytest.param({"max_bytes_per_batch": 1}, id="bytes"),
        pytest.param({"drain": True}, id="drain"),
    ],
)
def test_batch_with_fewer_rows_does_not_wait_for_ever(planner, spool, given):
    writer = spool.writer("r1")
    for number in (1, 2, 3):
        writer.write(number, columns(number))
    stream = planner(receivers="external", **{"min_rows_per_batch": 200, **given})
    start = {"r1": 1}
    stream._last_batch = time.monotonic()

    assert stream.latest(start) != start


def test_drain_gathers_the_initial_messages_into_one_batch(fakensqd, planner):
    publish(fakensqd, "clicks", numbered(2000))
    # The time for which it gathers is never over.
    stream = planner(drain=True, max_in_flight=100, now=lambda: 0.0)

    bodies, sizes = run_out(stream)

    assert sizes == [2000]
    assert sorted(bodies) == numbered(2000)
    wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))
    # What comes after the drain stays there.
    publish(fakensqd, "clicks", numbered(100))
    wait_for(lambda: stream._monitor.ask(0.0).waiting == 100)
    assert stream.receiver.rows == 2000


def test_drain_without_statistics_waits_for_a_segment_that_gets_old(fakensqd, planner, caplog):
    publish(fakensqd, "clicks", numbered(5))

    bodies, _ = run_out(planner(drain=True, nsqd_http_addresses=(), segment_time=2.2))

    assert sorted(bodies) == numbered(5)
    assert "may have messages left, for the next run: nothing has come" in caplog.text


def test_quarantined_segment_is_left_out(planner, spool, tmp_path):
    writer = spool.writer("r1")
    for number in (1, 2):
        writer.write(number, columns(number))
    [path] = (tmp_path / "spool" / "r1").glob("000000000001-1-*.arrow")
    path.write_bytes(b"broken")
    stream = planner(receivers="external")

    end = stream.latest({})

    assert read(stream, {}, end) == [b"body 2"]
    # It is counted, and left out again.
    assert read(stream, {}, end) == [b"body 2"]
    stream.latest(end)
    assert stream.progress()[1]["quarantined"] == 1


def test_drain_waits_for_nsqd_to_answer(fakensqd, planner, caplog):
    publish(fakensqd, "clicks", numbered(100))
    fakensqd.stop()
    started = []
    thread = threading.Thread(target=lambda: started.append(planner(drain=True)))
    thread.start()
    wait_for(lambda: "not created" in caplog.text)
    fakensqd.start()
    thread.join(20)

    assert len(run_out(started[0])[0]) == 100


def test_channel_without_a_receiver_is_logged(fakensqd, planner, caplog):
    publish(fakensqd, "clicks", [b"one"])

    planner(receivers="external", monitor={"poll_interval": 0.01, "warn_after": 0.05})

    wait_for(lambda: "messages waiting and no subscriber" in caplog.text)
    assert "start receivers: python -m gnsq.spark.receiver" in caplog.text


def test_failed_receiver_ends_the_query(planner):
    stream = planner()
    stream.receiver.error = RuntimeError("bug")

    with pytest.raises(SpoolError, match="the receiver has ended"):
        stream.latest({})


def test_unprunable_spool_is_logged(planner, tmp_path, caplog):
    stream = planner(receivers="external")

    with unusable(tmp_path / "spool"):
        stream.commit({})

    assert "not pruned" in caplog.text


def test_backlog_counts_what_is_in_no_batch_yet_and_a_full_spool_is_told(fakensqd, planner, spool):
    publish(fakensqd, "clicks", numbered(50))
    writer = spool.writer("r1")
    sizes = [writer.write(number, columns(*range(number))) for number in (1, 2, 3)]
    stream = planner(receivers="external", max_rows_per_batch=1, max_spool_bytes=1)

    stream.latest({})
    wait_for(lambda: stream.progress()[1].get("waiting") == 50)
    backlog = stream.progress()[1]

    assert (backlog["spool_rows"], backlog["spool_bytes"], backlog["quarantined"]) == (5, sum(sizes[1:]), 0)
    assert "is full" in backlog["trouble"]


# --- receivers that wait for space


@pytest.mark.parametrize(
    ("given", "left"),
    [
        pytest.param({}, [], id="all was read"),
        pytest.param({"min_rows_per_batch": 2, "max_trigger_delay": 60}, [b"body 2"], id="a batch waits"),
    ],
)
def test_empty_batch_lets_paused_receivers_go_on(fakensqd, planner, spool, given, left):
    writer = spool.writer("r1")
    writer.write(1, columns(1))
    soon = {"monitor": {"poll_interval": 0.05}, "trigger": {"after_depth": 0.1}}
    stream = planner(receivers="external", **given, **soon)
    end = stream.latest({})
    for number, _ in enumerate(left, 2):
        writer.write(number, columns(number))
    # With a limit of its own, the receiver is paused.
    publish(fakensqd, "clicks", [b"waits"])

    renewed = wait_for(lambda: (found := stream.latest(end)) != end and found)

    assert stream.partitions(end, renewed) == []
    stream.commit(end)
    assert bodies_of(spool) == left
    # No second empty batch.
    assert stream.latest(renewed) == renewed


def on_a_read_only_disk(path):
    raise OSError(30, "Read-only file system", path)


def test_full_spool_that_can_not_be_pruned_makes_no_batch_after_batch(planner, spool, monkeypatch, caplog):
    spool.writer("r1").write(1, columns(1))
    stream = planner(receivers="external", nsqd_http_addresses=(), max_spool_bytes=1, trigger={"retry_initial": 0.2})

    monkeypatch.setattr(os, "unlink", on_a_read_only_disk)
    start = stream.latest({})
    empty_batches = idle = 0
    while "can't be deleted, receivers may be waiting" not in caplog.text:
        end = stream.latest(start)
        empty_batches, idle = empty_batches + (end != start), idle + (end == start)
        stream.commit(start)
        start = end

    assert empty_batches == 2


def test_drain_with_a_small_spool_reads_all(fakensqd, planner):
    publish(fakensqd, "clicks", numbered(1000))
    stream = planner(drain=True, max_spool_bytes=1, max_in_flight=100)

    assert len(run_out(stream)[0]) == 1000


def test_once_goes_on_where_a_full_spool_ended_the_last_run(fakensqd, planner, caplog):
    publish(fakensqd, "clicks", numbered(1000))
    small = {"max_spool_bytes": 1, "max_in_flight": 100}
    start, bodies = {}, []
    for _ in range(2):
        stream = planner(drain=True, **small)
        end = stream.all_available(start)
        found = read(stream, start, end)
        assert found
        bodies += found
        # Spark commits no batch before the next run.
        stream.stop()
        start = end

    assert len(set(bodies)) == len(bodies)
    assert "is full (maxSpoolBytes): this batch ends there" in caplog.text


def test_drain_that_can_not_go_on_is_an_error(planner, spool, monkeypatch):
    spool.writer("r1").write(1, columns(1))
    stream = planner(drain=True, max_spool_bytes=1, idle_timeout=0.5, nsqd_http_addresses=())
    monkeypatch.setattr(os, "unlink", on_a_read_only_disk)
    after_empty_batch = stream.latest({"r1": 1})
    assert stream.partitions({"r1": 1}, after_empty_batch) == []
    stream.commit({"r1": 1})

    # No further empty batch.
    with pytest.raises(SpoolError, match="spool is full, or can't be written"):
        stream.latest(after_empty_batch)


# --- drains without a depth


def test_drain_that_reaches_no_nsqd_is_an_error(planner):
    nobody = ("127.0.0.1:1",)
    stream = planner(drain=True, nsqd_tcp_addresses=nobody, nsqd_http_addresses=nobody, idle_timeout=0.3)

    with pytest.raises(SpoolError, match=r"127\.0\.0\.1:1 not connected: .*no nsqd was reached for 0.*: check addr"):
        stream.latest({})
    assert stream.progress()[1]["trouble"].startswith("127.0.0.1:1 not connected: ")


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        pytest.param({}, {"a-receiver": 1}, id="topic that was read before"),
        pytest.param({"topic": "", "topic_pattern": "clicks.*"}, {}, id="pattern"),
    ],
)
def test_drain_of_what_no_nsqd_has_any_more_ends(fakecluster, planner, caplog, changes, start):
    caplog.set_level("INFO")
    publish(fakecluster.nsqds[0], "other", [b"x"])
    lookupds = tuple(fakecluster.lookupd_http_addresses)
    nsqd = {"nsqd_tcp_addresses": (), "nsqd_http_addresses": (), "lookupd_http_addresses": lookupds}
    stream = planner(drain=True, **nsqd, **changes)

    assert stream.latest(start) == start
    assert "drained: " in caplog.text


def test_new_checkpoint_on_an_old_spool(planner, spool):
    writer = spool.writer("r1")
    for number in (1, 2, 3):
        writer.write(number, columns(number))
    spool.prune(spool.listing(), {"r1": 1})
    stream = planner(receivers="external")

    end = stream.latest({})

    assert read(stream, {}, end) == [b"body 2", b"body 3"]
    stream.stop()
    spool.prune(spool.listing(), {"r1": 2})
    with pytest.raises(SpoolIncomplete, match=r"lacks 1 segment .*go on without .*, with a new checkpoint"):
        planner(receivers="external").partitions({}, end)


# --- batch


def test_channel_is_drained_into_a_spool_whose_earlier_segments_are_no_part_of_the_batch(fakensqd, options, spool):
    # Both batches together would be more than the spool may hold.
    fits, taken = options(max_spool_bytes=100_000), []
    for first in (0, 1000):
        publish(fakensqd, "clicks", numbered(1000, first))
        taken.append({segment for share in drain_channel(fits) for segment in share})

    assert sorted(bodies_of(spool)) == numbered(2000)
    assert [sum(segment.rows for segment in segments) for segments in taken] == [1000, 1000]
    assert set.union(*taken) == set(spool.listing().segments)
    assert is_empty(fakensqd, "clicks", "archive")


def test_batch_larger_than_the_spool_is_an_error_and_kept(fakensqd, options, spool):
    publish(fakensqd, "clicks", numbered(1000))

    with pytest.raises(SpoolError, match=r"more than maxSpoolBytes 1: give maxRows .*keeps them for spark.readStream"):
        drain_channel(options(max_spool_bytes=1, max_in_flight=100))

    assert 0 < len(bodies_of(spool)) < 1000
