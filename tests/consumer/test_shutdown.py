"""Shutdown of a consumer: drained within the deadline, and the rest requeued at once."""

from decimal import Decimal

import gevent
from gevent.event import Event

from fakensqd import on
from fakensqd.faults import delay
from fakensqd.faults.toxics import latency
from gnsq import Consumer
from tests.kit import wait_until


def channel(nsqd):
    return nsqd.broker.topics["t"].channels["c"]


def test_close_waits_for_delivered_messages(nsqd, clock, publish, started):
    done = []

    def handle(consumer, message):
        clock.sleep(1.0)
        done.append(message.body)

    consumer = started(handle, nsqd, max_in_flight=5, concurrency=1)
    publish(nsqd, b"0")
    publish(nsqd, b"1", b"2", b"3")
    clock.advance(0.5)
    gevent.spawn(consumer.close)
    clock.advance(5.0)

    assert done == [b"0", b"1", b"2", b"3"]
    assert (channel(nsqd).depth, channel(nsqd).in_flight_count) == (0, 0)
    assert not consumer.is_running


def test_messages_of_an_nsqd_that_is_gone_are_not_said_to_be_requeued(nsqd, clock, publish, started, caplog):
    forever = Event()
    consumer = started(lambda _, message: forever.wait(), nsqd, max_in_flight=10, concurrency=1)
    publish(nsqd, b"1")
    nsqd.down()
    clock.advance(0.1)
    gevent.spawn(consumer.close, 0)
    clock.advance(1.0)

    assert (
        "of them by handlers that still run; 1 on a lost connection: nsqd delivers them again unless it was killed"
        in (caplog.text)
    )
    forever.set()


def test_handlers_may_close_and_wait_for_the_others_also_if_these_have_answered(nsqd, clock, publish, started):
    events, ended = [], []

    def handle(consumer, message):
        if message.body == b"last":
            consumer.close(timeout=20.0)
            consumer.join(Decimal("0.5"))
            ended.append(consumer.is_closed)
            consumer.join()
        else:
            message.finish()
            clock.sleep(3.0)
        events.append((message.body, round(clock.monotonic(), 1)))

    consumer = started(handle, nsqd, max_in_flight=3)
    publish(nsqd, b"warm")
    clock.advance(4.0)
    publish(nsqd, b"other", b"last", b"last")
    clock.advance(4.0)

    assert ended == [False, False]
    assert [body for body, _ in events] == [b"warm", b"other", b"last", b"last"]
    assert events[-1][1] - events[1][1] <= 0.1
    assert not consumer.is_running
    assert (channel(nsqd).depth, channel(nsqd).in_flight_count) == (0, 0)


def test_close_requeues_all_messages_though_receivers_of_their_signals_raise(nsqd, clock, publish, started):
    def handle(consumer, message):
        message.enable_async()
        message.on_requeue.connect(fail, weak=False)

    def fail(message, **keywords):
        raise ValueError("mine")

    consumer = started(handle, nsqd, max_in_flight=3)
    publish(nsqd, b"1", b"2", b"3")
    clock.advance(1.0)
    gevent.spawn(consumer.close, 1.0)
    clock.advance(5.0)

    assert consumer.is_closed
    assert (channel(nsqd).depth, channel(nsqd).in_flight_count) == (3, 0)
    assert consumer.stats().unanswered == 3


def test_close_ends_at_the_deadline_while_nsqd_is_silent(nsqd, clock, started):
    consumer = started(lambda _, message: None, nsqd, close_timeout=5.0)
    nsqd.stop_reading()
    gevent.spawn(consumer.close)
    clock.advance(4.9)
    assert consumer.stats().state == "closing"
    clock.advance(0.1)

    assert consumer.stats().state == "closed"
    nsqd.resume_reading()


def test_message_that_arrives_after_the_deadline_is_requeued(nsqd, clock, publish, started):
    forever = Event()
    consumer = started(lambda _, message: forever.wait(), nsqd, max_in_flight=10, concurrency=1, close_timeout=1.0)
    publish(nsqd, b"warm")
    # nsqd sent it before it read the CLS.
    with nsqd.add(on.command("CLS"), delay(1.5)):
        gevent.spawn(consumer.close)
        publish(nsqd, b"late")
        toxic = nsqd.link.add(latency(1.2), upstream=False)
        clock.advance(1.1)
        toxic.remove()
        clock.advance(3.0)

    assert (channel(nsqd).depth, channel(nsqd).in_flight_count) == (2, 0)
    forever.set()


def test_rdy_may_be_changed_from_another_thread(fakensqd):
    seen = []
    consumer = Consumer(
        "t", "c", fakensqd.tcp_address, message_handler=lambda _, message: seen.append(message.body), max_in_flight=5
    )

    def steer():
        consumer.pause()
        consumer.resume()
        consumer.max_in_flight = 9
        consumer.redistribute_ready_state()

    with consumer:
        fakensqd.publish("t", b"warm")
        wait_until(lambda: consumer.total_ready_count == 5)
        gevent.get_hub().threadpool.spawn(steer).get(timeout=10)
        fakensqd.publish("t", *[b"x"] * 20)
        wait_until(lambda: len(seen) == 21)
        wait_until(lambda: consumer.total_ready_count == 9)


def test_unanswered_messages_are_requeued_at_the_deadline_and_none_is_handled_after_it(
    nsqd, clock, publish, started, caplog
):
    handled, release = [], Event()

    def handle(consumer, message):
        handled.append(message.body)
        release.wait()

    consumer = started(handle, nsqd, max_in_flight=10, concurrency=1, close_timeout=5.0)
    publish(nsqd, b"warm")
    publish(nsqd, b"1", b"2")
    # The connection stays open for a moment, since nsqd does not read the CLS.
    nsqd.link.add(latency(0.5), upstream=True)
    gevent.spawn(consumer.close)
    clock.advance(4.9)
    assert channel(nsqd).in_flight_count == 3
    clock.advance(0.2)
    release.set()
    clock.advance(3.0)

    assert handled == [b"warm"]
    assert (channel(nsqd).depth, channel(nsqd).in_flight_count) == (3, 0)
    assert not consumer.is_running
    assert "3 messages were not answered within 5.0 s of close(), 1 of them by handlers that still run" in caplog.text
