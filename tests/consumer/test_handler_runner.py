"""Answers to messages by the outcome of their handlers, and messages that time out before."""

import logging

import gevent
import pytest
from gevent.event import Event

from fakensqd import on
from fakensqd.faults import error
from gnsq import Consumer
from gnsq.errors import NSQFinishFailed, NSQTimeout
from tests.helpers import wait_until


def channel(nsqd):
    return nsqd.broker.topics["t"].channels["c"]


def failing(clock):
    times = []

    def handle(consumer, message):
        times.append((message.attempts, round(clock.monotonic(), 3)))
        raise RuntimeError("no")

    return times, handle


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, [0, 1, 5, 21, 85], id="default"),
        pytest.param({"requeue_delay": 0}, [0, 0, 0, 0, 0], id="explicit 0"),
        pytest.param({"requeue_delay": 500}, [0, 0.5, 1, 1.5, 2], id="explicit ms"),
        pytest.param({"requeue_initial": 2.0, "requeue_growth": 3.0}, [0, 2, 8, 26, 80], id="growth"),
        pytest.param({"requeue_maximum": 3.0}, [0, 1, 4, 7, 10], id="cap"),
    ],
)
def test_delay_of_a_failed_message_grows_with_its_attempts(nsqd, clock, publish, started, options, expected):
    times, handle = failing(clock)
    started(handle, nsqd, max_backoff_duration=0, **options)
    publish(nsqd, b"x")

    clock.advance(200.0)

    assert times == list(enumerate(expected, 1))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, [0, 1, 5, 21, 85], id="default"),
        pytest.param({"requeue_delay": 0}, [0, 0, 0, 0, 0], id="explicit 0"),
        pytest.param({"requeue_delay": 500}, [0, 0.5, 1, 1.5, 2], id="explicit ms"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["in the handler", "later"])
def test_requeue_without_a_delay_has_that_of_a_failed_message(
    nsqd, clock, publish, started, options, expected, is_async
):
    times = []

    def handle(consumer, message):
        times.append(round(clock.monotonic(), 3))
        if is_async:
            message.enable_async()
            gevent.spawn(message.requeue)
        else:
            message.requeue()

    started(handle, nsqd, max_backoff_duration=0, **options)
    publish(nsqd, b"x")
    clock.advance(200.0)

    assert times == expected


def test_requeue_with_delay_0_is_delivered_at_once(nsqd, clock, publish, started):
    times = []

    def handle(consumer, message):
        times.append(clock.monotonic())
        message.requeue(0, backoff=False)

    started(handle, nsqd, max_tries=3)
    publish(nsqd, b"x")
    clock.advance(0.5)

    assert len(times) == 3


def test_delay_of_a_requeue_follows_options_that_are_changed(nsqd, clock, publish, started):
    requeued = []
    consumer = started(lambda _, message: message.requeue(backoff=False), nsqd, requeue_delay=100)
    consumer.on_requeue.connect(lambda _, message_id, timeout: requeued.append(timeout), weak=False)
    publish(nsqd, b"x")
    consumer.requeue_delay = 250
    clock.advance(0.2)

    assert requeued == [100, 250]


def test_requeue_delay_may_be_changed_while_the_consumer_runs(nsqd, clock, publish, started):
    times, handle = failing(clock)
    consumer = started(handle, nsqd, max_backoff_duration=0)
    consumer.requeue_delay = 250
    publish(nsqd, b"x")
    clock.advance(0.25)

    assert times == [(1, 0), (2, 0.25)]
    with pytest.raises(ValueError, match="requeue_delay -1 must be at least 0 ms"):
        consumer.requeue_delay = -1


def test_handler_is_interrupted_after_handler_timeout_and_its_message_requeued(nsqd, clock, publish, started):
    errors = []
    consumer = started(lambda _, message: Event().wait(), nsqd, handler_timeout=5.0)
    consumer.on_exception.connect(lambda sender, message, error: errors.append(error), weak=False)
    publish(nsqd, b"x")
    clock.advance(4.9)
    assert errors == []
    clock.advance(0.2)

    (broken,) = errors
    assert isinstance(broken, NSQTimeout)
    assert "handler_timeout 5.0 s" in str(broken)
    assert channel(nsqd).deferred_count == 1


def test_message_that_times_out_in_the_inbox_is_not_handled(nsqd, clock, publish, started, caplog):
    handled = []

    def handle(consumer, message):
        handled.append((message.body, message.attempts))
        clock.sleep(40.0)

    consumer = started(handle, nsqd, max_in_flight=3, concurrency=1)
    publish(nsqd, b"0")
    publish(nsqd, b"1", b"2", b"3")
    clock.advance(100.0)

    # The second handler ends at 80 s. The third message has timed out then.
    assert handled == [(b"0", 1), (b"1", 1), (b"3", 1)]
    assert consumer.stats().counts.timed_out == 1
    assert "it waited for a handler until its timeout was over" in caplog.text
    clock.advance(100.0)


def test_inbox_stays_bounded_while_all_handlers_hang(nsqd, clock, publish, started):
    forever = Event()
    consumer = started(lambda _, message: forever.wait(), nsqd, max_in_flight=10, concurrency=2, max_tries=0)
    publish(nsqd, b"0")
    publish(nsqd, *[b"x"] * 50)

    waiting = []
    for _ in range(60):
        clock.advance(10.0)
        waiting.append(consumer.stats().waiting)

    assert max(waiting) <= 20
    forever.set()
    clock.advance(100.0)


def test_messages_of_a_lost_connection_are_not_handled(nsqd, clock, publish, started):
    handled = []

    def handle(consumer, message):
        handled.append((message.body, message.attempts))
        clock.sleep(1.0)

    started(handle, nsqd, max_in_flight=5, concurrency=1)
    publish(nsqd, b"0")
    publish(nsqd, b"1", b"2")
    nsqd.restart()
    clock.advance(100.0)

    assert handled == [(b"0", 1), (b"0", 2), (b"1", 2), (b"2", 2)] or {body for body, _ in handled[1:]} == {
        b"0",
        b"1",
        b"2",
    }


def test_failures_are_logged_once_a_minute_with_their_number(nsqd, clock, publish, started, caplog):
    _, handle = failing(clock)
    started(handle, nsqd, max_tries=0, requeue_delay=1000, max_backoff_duration=0)
    publish(nsqd, b"x")
    clock.advance(59.5)
    lines = [record for record in caplog.records if "handler raised" in record.message]
    assert [record.levelno for record in lines].count(logging.ERROR) == 1
    assert lines[0].exc_info
    clock.advance(1.0)

    said = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert "(and 59 like it since the last such line)" in said[-1]


def test_refused_finish_sends_on_error_with_the_message_id(nsqd, clock, publish, started):
    errors, seen = [], []
    consumer = started(lambda _, message: seen.append(message.id), nsqd)
    consumer.on_error.connect(lambda sender, error: errors.append(error), weak=False)
    with nsqd.add(on.command("FIN"), error("E_FIN_FAILED", "FIN {id} failed ID not in flight")):
        publish(nsqd, b"x")
        clock.advance(1.0)

    (refused,) = errors
    assert isinstance(refused, NSQFinishFailed)
    assert consumer.stats().counts.timed_out == 1


def test_message_id_is_read_from_the_error_text():
    words = b"FIN 0123456789abcdef failed ID not in flight"

    assert NSQFinishFailed(words, "E_FIN_FAILED").message_id == b"0123456789abcdef"
    assert NSQFinishFailed(b"FIN failed", "E_FIN_FAILED").message_id is None


def test_subclass_may_handle_messages_itself(nsqd, clock, publish):
    got = []

    class Mine(Consumer):
        def handle_message(self, conn, message):
            got.append((conn.address, message.body))
            message.finish()

    with Mine("t", "c", nsqd.tcp_address, clock=clock):
        clock.advance(0.0)
        publish(nsqd, b"x")

    assert got == [(nsqd.tcp_address, b"x")]
    assert channel(nsqd).depth == 0


def test_options_are_attributes_as_in_1_0(nsqd):
    consumer = Consumer("t", "c", nsqd.tcp_address, max_tries=3, heartbeat_interval=5)

    assert (consumer.topic, consumer.channel, consumer.max_tries, consumer.requeue_delay) == ("t", "c", 3, None)
    assert (consumer.lookupd_poll_interval, consumer.low_ready_idle_timeout) == (60, 10)
    assert (consumer.max_backoff_duration, consumer.backoff_on_requeue) == (128, True)
    assert consumer.conn_kwargs == {"heartbeat_interval": 5}
    assert consumer.nsqd_tcp_addresses == {nsqd.tcp_address}


def test_messages_that_are_never_answered_do_not_stop_the_others(nsqd, clock, publish, started):
    handled = []

    def handle(consumer, message):
        if message.body == b"forgotten":
            message.enable_async()
        elif message.body == b"fails" and message.attempts == 1:
            raise RuntimeError
        else:
            handled.append(message.body)

    consumer = started(handle, nsqd, max_in_flight=2, max_tries=0, msg_timeout=10.0, requeue_delay=0)
    publish(nsqd, b"forgotten")
    clock.advance(100.0)
    assert consumer.total_in_flight <= 2

    publish(nsqd, b"fails")
    clock.advance(30.0)
    publish(nsqd, b"later")
    clock.advance(60.0)

    assert handled == [b"fails", b"later"]
    assert consumer.stats().counts.timed_out >= 10


def test_late_answer_to_a_timed_out_message_is_counted_once(nsqd, clock, publish, started):
    held = []

    def handle(consumer, message):
        message.enable_async()
        held.append(message)

    consumer = started(handle, nsqd, msg_timeout=10.0, max_tries=0)
    publish(nsqd, b"x")
    clock.advance(15.0)
    assert len(held) == 2
    held[0].finish()
    held[1].finish()
    clock.advance(0.0)

    assert consumer.total_in_flight == 0
    assert consumer.stats().counts.timed_out == 1


def test_override_that_raises_is_a_failed_handler(nsqd, clock, publish):
    attempts, errors = [], []

    class Mine(Consumer):
        def handle_message(self, conn, message):
            attempts.append(message.attempts)
            raise ValueError("mine")

    consumer = Mine("t", "c", nsqd.tcp_address, clock=clock, requeue_delay=0)
    consumer.on_exception.connect(lambda sender, message, error: errors.append(str(error)), weak=False)
    with consumer:
        clock.advance(0.0)
        publish(nsqd, b"x")
        clock.advance(3.0)
        assert consumer.stats().backoff_failures == 3

    assert attempts == [1, 2, 3]
    assert errors == ["mine"] * 3


@pytest.mark.parametrize("name", ["handle_finish", "handle_requeue", "handle_response", "handle_error", "handle_auth"])
def test_overridden_hook_that_raises_is_logged_and_changes_nothing(nsqd, clock, publish, caplog, name):
    def broken(self, *arguments):
        raise ValueError("mine")

    failing = [True]

    def handle(consumer, message):
        if failing.pop() if failing else False:
            raise RuntimeError

    mine = type("Mine", (Consumer,), {name: broken})
    consumer = mine("t", "c", nsqd.tcp_address, message_handler=handle, clock=clock, requeue_delay=0)
    with consumer:
        clock.advance(0.0)
        publish(nsqd, b"x")
        clock.advance(2.0)
        stats = consumer.stats()

    assert (stats.backoff, stats.counts.finished, stats.counts.requeued) == ("off", 1, 1)
    assert ("broken of a subclass raised" in caplog.text) == (name not in ("handle_error", "handle_auth"))


def test_receiver_of_a_message_signal_that_raises_is_logged(nsqd, clock, publish, started, caplog):
    def handle(consumer, message):
        message.on_finish.connect(broken, weak=False)

    def broken(message):
        raise ValueError("mine")

    consumer = started(handle, nsqd)
    publish(nsqd, b"1")
    publish(nsqd, b"2")

    assert consumer.stats().counts.finished == 2
    assert "a receiver of its signals raised" in caplog.text


def test_timeout_of_the_handler_itself_is_not_handler_timeout(nsqd, clock, publish, started):
    errors = []

    def handle(consumer, message):
        with clock.timeout(1.0):
            Event().wait()

    consumer = started(handle, nsqd, handler_timeout=5.0)
    consumer.on_exception.connect(lambda sender, message, error: errors.append(type(error)), weak=False)
    publish(nsqd, b"x")
    clock.advance(2.0)

    assert len(errors) == 1
    assert errors[0] is not NSQTimeout


def test_idle_timeout_and_longest_pause_may_be_changed_while_the_consumer_runs(nsqds, clock, publish, started):
    def handle(consumer, message):
        raise RuntimeError

    consumer = started(handle, nsqds[0], max_backoff_duration=8, max_tries=0, backoff_jitter=0.0, requeue_delay=0)
    consumer.max_backoff_duration = 2
    consumer.low_ready_idle_timeout = 3
    publish(nsqds[0], b"x")
    clock.advance(10.0)

    assert consumer.stats().backoff_failures == 2
    assert (consumer.max_backoff_duration, consumer.low_ready_idle_timeout) == (2, 3)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"message_handler": 5}, TypeError, "message_handler must be callable, not 5"),
        (
            {"nope": 1},
            TypeError,
            "Consumer has no option nope; options are address_resolver, .*close_timeout, .*reconnect",
        ),
        ({"handler_timeout": 0}, ValueError, "handler_timeout 0 must be at least 0.001 s"),
        ({"backoff_strategy": 3}, TypeError, "backoff_strategy must be callable, not 3"),
    ],
)
def test_invalid_options_are_refused_with_a_hint(nsqd, options, error, words):
    with pytest.raises(error, match=words):
        Consumer("t", "c", nsqd.tcp_address, **options)


def test_close_refuses_a_negative_timeout(nsqd):
    with pytest.raises(ValueError, match=r"timeout -1 of close\(\) must be at least 0 s"):
        Consumer("t", "c", nsqd.tcp_address).close(timeout=-1)


def test_close_without_start_closes_connections_made_by_hand(nsqd, clock):
    consumer = Consumer("t", "c", nsqd.tcp_address, message_handler=lambda _, message: None, clock=clock)
    host, port = nsqd.tcp_address.split(":")
    consumer.connect_to_nsqd(host, int(port))
    clock.advance(0.0)
    assert len(nsqd.sessions) == 1
    consumer.close()
    clock.advance(0.0)

    assert len(nsqd.sessions) == 0


@pytest.mark.parametrize("way", ["silent", "timeout", "killed"])
def test_override_that_leaves_a_message_unanswered_does_not_stop_the_consumer(nsqd, clock, publish, way):
    seen = []

    class Mine(Consumer):
        def handle_message(self, conn, message):
            seen.append(message.body)
            if message.body != b"x":
                message.finish()
            elif way == "timeout":
                raise gevent.Timeout
            elif way == "killed" and message.attempts == 1:
                raise gevent.GreenletExit

    with Mine("t", "c", nsqd.tcp_address, clock=clock, msg_timeout=5.0, max_tries=0) as consumer:
        clock.advance(0.0)
        publish(nsqd, b"x")
        publish(nsqd, b"next")
        clock.advance(60.0)
        assert b"next" in seen
        assert consumer.total_in_flight <= 1
        consumer.close()
        clock.advance(35.0)


def test_unanswered_messages_are_not_kept_after_their_timeout(nsqd, clock, publish, started):
    consumer = started(lambda _, message: message.enable_async(), nsqd, msg_timeout=5.0, max_in_flight=50)
    publish(nsqd, b"0")
    publish(nsqd, *[b"x"] * 40)
    clock.advance(12.0)

    (connection,) = consumer._pool.connections.values()
    assert len(connection.in_flight_messages.async_messages) <= 50
    consumer.close()
    clock.advance(0.0)


def test_connection_with_long_handlers_keeps_its_rdy(nsqds, clock, publish, started):
    busy, other = nsqds[:2]
    handled = []

    def handle(consumer, message):
        if message.body == b"long":
            clock.sleep(25.0)
        handled.append(message.body)

    started(handle, busy, other, max_in_flight=20, low_ready_idle_timeout=2.0)
    publish(busy, b"long")
    publish(busy, b"long")
    for _ in range(5):
        publish(other, *[b"other"] * 30)
        clock.advance(1.0)
    publish(busy, b"new")
    clock.advance(0.5)

    assert b"new" in handled
    clock.advance(30.0)


def test_failed_message_is_requeued_even_if_a_receiver_of_on_exception_raises(nsqd, clock, publish, started):
    times, handle = failing(clock)
    consumer = started(handle, nsqd, max_backoff_duration=0)

    def raise_timeout(consumer, message, error):
        with gevent.Timeout(0.0):
            gevent.sleep(1)

    consumer.on_exception.connect(raise_timeout)
    publish(nsqd, b"x")
    wait_until(lambda: clock.advance(0.0) or channel(nsqd).requeue_count)  # the Timeout takes real time
    clock.advance(0.5)

    assert (len(times), channel(nsqd).requeue_count) == (1, 1)


def test_delay_that_an_old_nsqd_has_refused_is_cut_from_then_on(nsqd, clock, publish, started, caplog):
    refusal = error("E_INVALID", "REQ timeout 7200000000000 out of range 0-3600000000000")
    nsqd.add(on.command("REQ"), refusal)
    attempts = []

    def handle(consumer, message):
        attempts.append(message.attempts)
        message.requeue(7_200_000, backoff=False)

    started(handle, nsqd)
    publish(nsqd, b"x")
    # nsqd does not deliver the message to another connection before its msg_timeout.
    clock.advance(70.0)

    assert attempts == [1, 2]
    assert "requeue with at most 3600000 ms, nsqd's --max-req-timeout" in caplog.text
    assert f"{nsqd.tcp_address}: t/c: requeued with a delay of 3600000 ms in place of 7200000 ms" in caplog.text
    clock.advance(3600.0)
    assert attempts == [1, 2, 3]
