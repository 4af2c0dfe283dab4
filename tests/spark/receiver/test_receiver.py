import gc
import logging
import threading

import gevent
import pytest

from gnsq.spark.offsets import Segment
from gnsq.spark.receiver.exporter import ReceiverCollector
from gnsq.spark.receiver.health import why_not_live
from gnsq.spark.receiver.receiver import GC_THRESHOLD, SpoolSizeEstimator, tune_gc
from tests.kit import LIMIT
from tests.spark.helpers import FakeMessage, bodies_of, channel_stats, columns, is_empty, numbered, publish, wait_for
from tests.spark.receiver.test_exporter import samples

pytestmark = pytest.mark.slow


def test_messages_of_all_topics_are_in_the_spool_and_finished(fakensqd, spool, receive):
    for topic, first in ("a", 0), ("b", 1500):
        publish(fakensqd, topic, numbered(1500, first))

    receiver = receive(topic="a,b")
    wait_for(lambda: receiver.rows == 3000)

    segments = spool.listing().segments
    rows = [row for segment in segments for batch in spool.read(segment) for row in batch.to_pylist()]
    assert sorted((row["topic"], row["body"]) for row in rows) == [
        ("a" if number < 1500 else "b", body) for number, body in enumerate(numbered(3000))
    ]
    assert {row["nsqd"] for row in rows} == {fakensqd.tcp_address}
    assert {segment.receiver for segment in segments} == {receiver.id}
    wait_for(lambda: is_empty(fakensqd, "a", "archive") and is_empty(fakensqd, "b", "archive"))


def test_receiver_lets_segments_grow_while_many_wait_in_the_spool(receive, tmp_path):
    (tmp_path / "spool" / "before").mkdir(parents=True)
    for number in range(1, 2001):
        (tmp_path / "spool" / Segment("before", number, 0, 1).path).touch()

    receiver = receive(segment_time=0.1)

    assert receiver._buffer.max_age == pytest.approx(0.2)


def test_nothing_is_finished_before_it_is_durable(fakensqd, receive, disk):
    disk.hold(".arrow")
    receiver = receive()
    publish(fakensqd, "clicks", numbered(10))

    assert disk.was_reached.wait(20)
    assert channel_stats(fakensqd, "clicks", "archive")["in_flight_count"] == 10
    disk.repair()
    wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))
    assert receiver.rows == 10


def test_large_messages_wait_at_nsqd_and_not_in_memory(fakensqd, receive, disk):
    disk.hold(".arrow")
    receiver = receive(limits={"segment_bytes": 40_000}, segment_time=0.01, max_in_flight=100)
    publish(fakensqd, "clicks", [b"x" * 10_000] * 320)
    wait_for(lambda: channel_stats(fakensqd, "clicks", "archive"))

    def is_held_up():
        stats = channel_stats(fakensqd, "clicks", "archive")
        return stats["in_flight_count"] > 32 and not any(client["ready_count"] for client in stats["clients"])

    wait_for(is_held_up)
    assert not receiver.is_paused
    assert channel_stats(fakensqd, "clicks", "archive")["depth"] > 0
    disk.repair()
    wait_for(lambda: receiver.rows == 320)
    assert is_empty(fakensqd, "clicks", "archive")


def test_nothing_is_made_after_the_close_during_a_start(fakensqd, spool, hub, disk, tmp_path, make):
    disk.hold("spool")
    receiver = make()
    starting = threading.Thread(target=hub.call, args=[receiver.start])
    starting.start()
    assert disk.was_reached.wait(20)

    closing = threading.Thread(target=hub.call, args=[receiver.close])
    closing.start()
    wait_for(lambda: receiver.is_closing)
    disk.repair()
    closing.join(20)

    assert list((tmp_path / "spool").iterdir()) == []
    starting.join(20)
    assert not receiver.is_started


def test_close_during_a_stream_requeues_no_message(fakensqd, spool, hub, receive):
    publish(fakensqd, "clicks", numbered(5000))
    receiver = receive(limits={"segment_rows": 100}, segment_time=2 * LIMIT)
    wait_for(lambda: receiver.rows)

    hub.call(receiver.close)

    stats = channel_stats(fakensqd, "clicks", "archive")
    assert (stats["in_flight_count"], stats["requeue_count"]) == (0, 0)
    assert len(bodies_of(spool)) == 5000 - stats["depth"]
    assert spool.listing().closed == {receiver.id}


def test_failing_disk_stops_finishing_and_loses_nothing(fakensqd, spool, receive, disk, caplog):
    disk.fail(".arrow", OSError(28, "No space left on device"))
    receiver = receive()
    publish(fakensqd, "clicks", numbered(50))
    wait_for(lambda: receiver.failing)
    wait_for(lambda: channel_stats(fakensqd, "clicks", "archive")["clients"][0]["ready_count"] == 0)
    disk.repair()

    wait_for(lambda: receiver.rows == 50)
    wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))
    assert sorted(bodies_of(spool)) == numbered(50)
    publish(fakensqd, "clicks", numbered(50, first=50))
    wait_for(lambda: receiver.rows == 100)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "No space left on device" in errors[0].message
    assert "free space or repair" in errors[0].message


def test_close_with_a_failing_disk_requeues_all_messages(fakensqd, hub, receive, disk):
    disk.fail(".arrow", OSError(28, "No space left on device"))
    receiver = receive()
    publish(fakensqd, "clicks", numbered(50))
    wait_for(lambda: receiver.failing)

    hub.call(receiver.close)

    stats = channel_stats(fakensqd, "clicks", "archive")
    assert (stats["depth"], stats["in_flight_count"]) == (50, 0)


def test_close_waits_for_a_slow_write_and_writes_the_rest(fakensqd, spool, hub, receive, disk):
    disk.hold(".arrow")
    receiver = receive(limits={"segment_rows": 10}, write_timeout=30.0, segment_time=2 * LIMIT, max_in_flight=50)
    publish(fakensqd, "clicks", numbered(50))
    assert disk.was_reached.wait(20)
    wait_for(lambda: channel_stats(fakensqd, "clicks", "archive")["in_flight_count"] == 50)

    hub.call_soon(gevent.spawn, receiver.close)
    wait_for(lambda: receiver.is_closing)
    disk.repair()

    wait_for(lambda: spool.listing().closed == {receiver.id})
    assert sorted(bodies_of(spool)) == numbered(50)


def test_close_waits_for_a_stuck_write_until_the_timeout(fakensqd, hub, receive, disk):
    disk.hold(".arrow")
    receiver = receive(limits={"segment_rows": 10}, write_timeout=0.2, max_in_flight=50)
    publish(fakensqd, "clicks", numbered(50))
    assert disk.was_reached.wait(20)

    hub.call(receiver.close)

    assert receiver.is_stuck
    stats = channel_stats(fakensqd, "clicks", "archive")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (50, 0, 50)


def test_close_does_not_wait_for_a_stuck_closed_json(fakensqd, hub, receive, disk, caplog):
    disk.hold("closed.json")
    receiver = receive(write_timeout=0.2)
    publish(fakensqd, "clicks", [b"one"])
    wait_for(lambda: receiver.rows == 1)

    hub.call(receiver.close)

    assert "closed.json not written: not within 0.2 s" in caplog.text


@pytest.mark.fakensqd(msg_timeout=2.0)
def test_segment_does_not_wait_until_nsqd_takes_its_messages_back(fakensqd, spool, receive):
    publish(fakensqd, "clicks", numbered(10))

    receive(segment_time=2 * LIMIT)
    wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))

    assert sorted(bodies_of(spool)) == numbered(10)


def test_receiver_waits_while_other_receivers_have_filled_the_spool(fakensqd, spool, hub, receive):
    spool.prepare()
    filled = spool.writer("before")
    filled.write(1, columns(*range(100)))
    publish(fakensqd, "clicks", numbered(10))

    receiver = receive(max_spool_bytes=1000)
    wait_for(lambda: channel_stats(fakensqd, "clicks", "archive"))
    wait_for(lambda: hub.call(lambda: receiver.subscriptions.nsqds) == 1)
    assert receiver.is_paused
    assert hub.call(samples, ReceiverCollector(receiver))["gnsq_receiver_spool_full", "archive"] == 1
    spool.prune(spool.listing(), {"before": 1})

    wait_for(lambda: receiver.rows == 10)


def test_full_spool_pauses_and_a_pruned_one_resumes(fakensqd, spool, receive):
    publish(fakensqd, "clicks", [b"x" * 1000] * 400)
    receiver = receive(max_spool_bytes=100_000, max_in_flight=40)

    wait_for(lambda: receiver.is_paused)
    assert receiver.rows < 400
    while receiver.rows < 400:
        before = receiver.rows
        spool.prune(spool.listing(), {receiver.id: receiver.segments})
        wait_for(lambda before=before: receiver.rows > before)

    wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))


@pytest.mark.fakensqd(max_rdy_count=25)
def test_busy_topic_gets_more_consumers(fakensqd, receive):
    receiver = receive(segment_time=2 * LIMIT, max_in_flight=100)

    def more():
        publish(fakensqd, "clicks", numbered(100))
        return receiver.subscriptions.ready_count == 100

    wait_for(more)

    assert channel_stats(fakensqd, "clicks", "archive")["client_count"] == 4


@pytest.mark.parametrize(("method", "answer"), [("_finish_all", "FIN"), ("_requeue_all", "REQ 0")])
def test_messages_beside_one_whose_connection_is_gone_are_answered(make, hub, method, answer):
    receiver = make()
    messages = [FakeMessage(1), FakeMessage(2, lost=True), FakeMessage(3)]

    hub.call(getattr(receiver, method), messages)

    assert [message.answers for message in messages] == [[answer]] * 3
    assert receiver.not_finished == (method == "_finish_all")


def test_unexpected_error_of_a_write_is_logged_and_ends_the_receiver(fakensqd, hub, receive, disk, caplog):
    disk.fail(".arrow", RuntimeError("bug"))
    receiver = receive()
    publish(fakensqd, "clicks", [b"one"])

    wait_for(receiver.finished.is_set)
    assert hub.call(why_not_live, receiver) == "internal error: RuntimeError('bug')"
    assert "internal error" in caplog.text
    wait_for(lambda: channel_stats(fakensqd, "clicks", "archive")["depth"] == 1)


def test_segment_is_written_when_one_of_two_topics_is_starved(fakensqd, receive):
    receiver = receive(topic="busy,idle", max_in_flight=40, segment_time=2 * LIMIT)
    publish(fakensqd, "busy", numbered(100))

    wait_for(lambda: receiver.rows >= 80)


def test_cycles_are_searched_for_no_more_often_than_before():
    # Python's; more rarely already; never.
    for before, first in (700, GC_THRESHOLD), (GC_THRESHOLD + 1, GC_THRESHOLD + 1), (0, 0):
        gc.set_threshold(before, 10, 10)

        tune_gc()

        assert gc.get_threshold() == (first, 10, 10)


def test_spool_is_listed_for_each_quarter_of_the_limit_and_after_the_longest_interval():
    gauge = SpoolSizeEstimator(100)
    assert gauge.is_due(0)
    gauge.record_listing(0, 0)

    gauge.add(24)
    assert [gauge.is_due(now) for now in (9.9, 10)] == [False, True]
    gauge.add(1)
    assert [gauge.is_due(now) for now in (0.4, 0.5)] == [False, True]
    gauge.record_listing(70, 10)
    assert not gauge.is_due(15)


def test_at_the_limit_a_listing_decides_at_once_and_a_full_spool_is_listed_again_but_not_all_the_time():
    gauge = SpoolSizeEstimator(100)
    gauge.record_listing(0, 0)

    gauge.add(100)
    assert gauge.is_due(0.1)
    gauge.record_listing(40, 0.1)
    assert not gauge.is_full
    gauge.add(60)
    assert gauge.is_due(0.2)
    gauge.record_listing(150, 10)

    assert gauge.is_full
    assert [gauge.is_due(now) for now in (10.4, 10.5)] == [False, True]
    gauge.record_listing(99, 10.5)
    assert not gauge.is_full
