"""HandlerRunner: answers by the outcome of handlers, overridden handle_messages(), given up and timed out messages."""

import logging
from datetime import timedelta

import gevent
import pytest
from gevent.event import Event

from fakensqd import on
from fakensqd.faults import error
from gnsq import Consumer, Message, finish_all
from gnsq.consumer.worker_pool import WorkerPool
from gnsq.contrib.queue import QueueHandler
from gnsq.errors import NSQFinishFailed, NSQGiveUp, NSQRequeueMessage, NSQTimeout
from tests.kit import wait_until


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
        pytest.param({"requeue_delay": timedelta(seconds=2)}, [0, 2, 4, 6, 8], id="timedelta"),
        pytest.param({"requeue_delay": lambda attempts: 2000 * 3 ** (attempts - 1)}, [0, 2, 8, 26, 80], id="function"),
        pytest.param(
            {"requeue_delay": lambda attempts: timedelta(seconds=min(attempts, 2))}, [0, 1, 3, 5, 7], id="of timedelta"
        ),
        pytest.param({"requeue_delay": lambda attempts: 1 / 0}, [0, 1, 5, 21, 85], id="function that raises"),
    ],
)
def test_delay_of_a_failed_message_is_the_options(nsqd, clock, publish, started, options, expected):
    times, handle = failing(clock)
    started(handle, nsqd, max_backoff_duration=0, **options)
    publish(nsqd, b"x")

    clock.advance(200.0)

    assert times == list(enumerate(expected, 1))


def test_requeue_without_a_delay_has_that_of_a_failed_message(nsqd, clock, publish, started):
    times = []

    def handle(consumer, message):
        times.append(round(clock.monotonic(), 3))
        message.requeue()

    started(handle, nsqd, max_backoff_duration=0, requeue_delay=lambda attempts: 1000 * attempts)
    publish(nsqd, b"x")
    clock.advance(200.0)

    assert times == [0, 1, 3, 6, 10]


def raising(kind=RuntimeError, *arguments, **options):
    def handle(consumer, message):
        raise kind(*(arguments or ["broken downstream"]), **options)

    return handle


def requeue(**options):
    return lambda consumer, message: message.requeue(**options)


NO_BACKOFF = {"backoff_on_requeue": False}
# What a handler does, options; the answer, what on_exception tells, and how many failures the backoff counts.
OUTCOMES = [
    pytest.param(lambda consumer, message: None, {}, "FIN", [], 0, id="returns"),
    pytest.param(lambda consumer, message: message.finish(), {}, "FIN", [], 0, id="finishes"),
    pytest.param(requeue(), {}, "REQ", [], 1, id="requeues"),
    pytest.param(requeue(backoff=False), {}, "REQ", [], 0, id="requeues, no failure"),
    pytest.param(raising(), {}, "REQ", [RuntimeError], 1, id="raises"),
    pytest.param(raising(), {"max_backoff_duration": 0}, "REQ", [RuntimeError], 0, id="raises, backoff is off"),
    pytest.param(raising(NSQRequeueMessage, None), {}, "REQ", [], 1, id="requeue"),
    pytest.param(raising(NSQRequeueMessage, None), NO_BACKOFF, "REQ", [], 0, id="requeue, not wanted"),
    pytest.param(raising(NSQRequeueMessage, True), NO_BACKOFF, "REQ", [], 1, id="requeue that says yes"),
    pytest.param(raising(NSQRequeueMessage, False), {}, "REQ", [], 0, id="requeue that says no"),
    pytest.param(
        raising(gevent.Timeout, 1), {"handler_timeout": 5.0}, "REQ", [gevent.Timeout], 1, id="another timeout"
    ),
    pytest.param(raising(NSQGiveUp, "bad"), {}, "FIN", [], 0, id="gives up"),
]


@pytest.mark.parametrize(("handle", "options", "answer", "told", "failures"), OUTCOMES)
def test_end_of_a_handler_decides_about_answer_signal_and_backoff(
    nsqd, clock, publish, started, handle, options, answer, told, failures
):
    errors = []
    consumer = started(handle, nsqd, **{"backoff": 100, "requeue_delay": 100_000, **options})
    consumer.on_exception.connect(lambda sender, message, error: errors.append(type(error)), weak=False)
    publish(nsqd, b"x")
    clock.advance(2.0)

    assert [name for name in nsqd.transcript.commands() if name in ("FIN", "REQ")] == [answer]
    assert errors == told
    assert (consumer.stats().backoff_failures, consumer.stats().failed) == (failures, len(told))


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


def test_refused_finish_sends_on_error_with_the_message_id(nsqd, clock, publish, started):
    errors = []
    consumer = started(lambda _, message: None, nsqd)
    consumer.on_error.connect(lambda sender, error: errors.append(error), weak=False)
    with nsqd.add(on.command("FIN"), error("E_FIN_FAILED", "FIN 0123456789abcdef failed ID not in flight")):
        publish(nsqd, b"x")
        clock.advance(1.0)

    (refused,) = errors
    assert isinstance(refused, NSQFinishFailed)
    assert refused.message_id == b"0123456789abcdef"
    assert NSQFinishFailed(b"FIN failed", "E_FIN_FAILED").message_id is None
    assert consumer.stats().counts.timed_out == 1


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
    (connection,) = consumer._runtime.pool.connections.values()
    assert consumer.total_in_flight <= 2
    assert len(connection.in_flight_messages.async_messages) <= 2

    publish(nsqd, b"fails")
    clock.advance(30.0)
    publish(nsqd, b"later")
    clock.advance(60.0)

    assert handled == [b"fails", b"later"]
    assert consumer.stats().counts.timed_out >= 10


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
                gevent.getcurrent().kill(block=False)
                gevent.sleep(0)

    with Mine("t", "c", nsqd.tcp_address, clock=clock, msg_timeout=5.0, max_tries=0) as consumer:
        clock.advance(0.0)
        publish(nsqd, b"x")
        publish(nsqd, b"next")
        clock.advance(60.0)
        assert b"next" in seen
        assert consumer.total_in_flight <= 1
        gevent.spawn(consumer.close)
        clock.advance(35.0)


# --- subclasses that override handle_messages() -----------------------------------------------------------------------


class Together(Consumer):
    """Passes the messages of each call to a function, and records their bodies."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.function = finish_all
        self.calls = []

    def handle_messages(self, messages):
        self.calls.append([message.body for message in messages])
        self.function(messages)


@pytest.fixture
def together(nsqd, clock, publish, started):
    """Start a consumer with RDY for all messages of the test; it is closed at the end."""

    def start(function, **options):
        consumer = started(None, nsqd, kind=Together, **{"max_in_flight": 10, **options})
        publish(nsqd, b"warm")
        clock.advance(0.1)
        consumer.function = function
        consumer.calls.clear()
        return consumer

    return start


def test_messages_of_one_chunk_are_handled_with_one_call(nsqd, publish, together):
    consumer = together(finish_all)

    publish(nsqd, b"1", b"2", b"3")

    assert consumer.calls == [[b"1", b"2", b"3"]]
    assert consumer.total_in_flight == 0
    counts = consumer.stats().counts
    assert (counts.finished, counts.requeued) == (4, 0)


@pytest.mark.parametrize(
    ("concurrency", "handling", "calls"),
    [(1, 1, [[b"1"], [b"2", b"3", b"4"]]), (2, 3, [[b"1"], [b"2", b"3"], [b"4"]])],
)
def test_messages_that_arrive_while_the_handler_waits_are_handled_after_it_or_by_another_worker(
    nsqd, clock, publish, together, concurrency, handling, calls
):
    consumer = together(lambda messages: (clock.sleep(1.0), finish_all(messages)), concurrency=concurrency)
    publish(nsqd, b"1")
    publish(nsqd, b"2", b"3")
    publish(nsqd, b"4")
    assert (consumer.stats().handling, consumer.stats().waiting) == (handling, 4 - handling)
    clock.advance(3.0)

    assert consumer.calls == calls


class Steps:
    """Clock that advances by one second with each call."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now


def test_worker_whose_time_is_over_leaves_the_rest_to_the_next_round_of_the_loop():
    first, second = (Message(1, 1, b"id", body) for body in (b"1", b"2"))
    calls = []

    def handle_all(messages):
        calls.append((gevent.get_hub().loop.iteration, messages))
        if second not in messages:
            workers.put([second])
        return []

    workers = WorkerPool("w", lambda: 1, lambda message: True, handle_all, lambda message: None, Steps())
    workers.put([first])
    wait_until(lambda: not len(workers))

    assert [messages for _, messages in calls] == [[first], [second]]
    assert calls[0][0] < calls[1][0]


def test_answered_and_async_messages_are_counted_once(nsqd, clock, publish, together):
    held = []

    def handle(messages):
        messages[0].finish()
        messages[1].enable_async()
        held.extend(messages[1:])

    consumer = together(handle)
    publish(nsqd, b"1", b"2", b"3")
    clock.advance(3.0)
    assert (consumer.total_in_flight, consumer.stats().handling) == (2, 0)
    assert all(message.is_async() for message in held)
    finish_all(held)

    latency = consumer.stats().latency
    assert latency.count == 4
    assert latency.total == pytest.approx(6.0)


def test_handle_messages_that_raises_is_one_failure_and_requeues_unanswered_messages(nsqd, clock, publish, together):
    events = []

    def handle(messages):
        if messages[0].body == b"1":
            messages[0].finish()
        raise RuntimeError("no")

    consumer = together(handle)
    consumer.on_exception.connect(lambda _, message, error: events.append((message.body, str(error))), weak=False)
    publish(nsqd, b"1", b"2", b"3")

    assert events == [(b"2", "no")]
    stats = consumer.stats()
    assert (stats.failed, stats.counts.finished, stats.counts.requeued) == (1, 2, 2)
    assert stats.backoff == "off"
    assert channel(nsqd).deferred_count == 2
    publish(nsqd, b"4", b"5")
    assert (consumer.stats().backoff, consumer.stats().backoff_failures) == ("waiting", 1)
    consumer.function = finish_all
    clock.advance(20.0)
    assert consumer.total_in_flight == channel(nsqd).deferred_count == 0


def test_handle_messages_may_raise_a_requeue_without_backoff(nsqd, clock, publish, together):
    def handle(messages):
        raise NSQRequeueMessage(backoff=False)

    consumer = together(handle, requeue_delay=500)
    publish(nsqd, b"1", b"2")

    stats = consumer.stats()
    assert (stats.failed, stats.counts.requeued, stats.backoff) == (0, 2, "off")
    consumer.function = finish_all
    clock.advance(1.0)
    assert stats.in_flight == 0


def test_handle_messages_gets_no_messages_above_max_tries(nsqd, clock, publish, together):
    given_up = []

    def handle(messages):
        for message in messages:
            if message.body == b"bad":
                message.requeue(0, backoff=False)
        finish_all(messages)

    consumer = together(handle, max_tries=2)
    consumer.on_giving_up.connect(lambda _, message: given_up.append(message.body), weak=False)
    publish(nsqd, b"bad", b"good")
    clock.advance(1.0)

    assert given_up == [b"bad"]
    assert consumer.calls == [[b"bad", b"good"], [b"bad"]]
    assert consumer.stats().given_up == 1
    assert consumer.total_in_flight == 0


class EachInTurn(Consumer):
    """Handles the messages of a call one by one."""

    def handle_messages(self, messages):
        super().handle_messages(messages)


def test_handler_timeout_ends_the_whole_call_of_handle_messages(nsqd, clock, publish, started):
    handled, errors = [], []

    def handle(consumer, message):
        clock.sleep(0.4)
        handled.append(message.body)

    consumer = started(handle, nsqd, kind=EachInTurn, max_in_flight=10, handler_timeout=1.0, max_backoff_duration=0)
    consumer.on_exception.connect(lambda sender, message, error: errors.append((message.body, type(error))), weak=False)
    publish(nsqd, b"warm")
    clock.advance(0.5)

    publish(nsqd, b"1", b"2", b"3", b"4")
    clock.advance(1.0)

    assert handled == [b"warm", b"1", b"2"]
    assert errors == [(b"3", NSQTimeout)]
    assert channel(nsqd).requeue_count == 2


# --- given up messages ------------------------------------------------------------------------------------------------


AT_ONCE = {"requeue_delay": 0, "max_backoff_duration": 0}


class Keeper:
    """Give-up handler that keeps the bodies, and first raises as often as its argument says."""

    def __init__(self, failures=0):
        self.kept = []
        self.failures = failures

    def __call__(self, consumer, message):
        if self.failures:
            self.failures -= 1
            raise OSError("disk full")
        self.kept.append(message.body)


def lines(caplog, text, level=logging.WARNING):
    return [record.message for record in caplog.records if record.levelno >= level and text in record.message]


def test_last_error_is_one_short_line(nsqd, publish, clock, started, caplog):
    errors = {
        b"1": (NSQRequeueMessage(False), "NSQRequeueMessage: requeue"),
        b"2": (ValueError(""), "ValueError"),
        b"3": (ValueError("two\nlines \x1b[31m"), "ValueError: two lines ?[31m"),
        b"4": (ValueError("x" * 5000), f"ValueError: {'x' * 200}"),
    }

    def handle(consumer, message):
        raise errors[message.body][0]

    started(handle, nsqd, max_tries=1, **AT_ONCE)
    for body in errors:
        publish(nsqd, body)
        clock.advance(1.0)

    assert [line.rpartition("last error: ")[2] for line in lines(caplog, "given up")] == [
        text for _, text in errors.values()
    ]


def test_last_errors_of_a_thousand_messages_are_remembered(nsqd, publish, clock, started, caplog):
    handle = raising(NSQRequeueMessage, False)  # without a traceback in the log
    consumer = started(handle, nsqd, max_in_flight=2000, max_tries=1, requeue_delay=1000)
    with caplog.at_level(logging.DEBUG, logger="gnsq.consumer.t.c"):
        publish(nsqd, *[b"x"] * 1100)
        clock.advance(0.5)
        clock.advance(5.0)

    assert consumer.stats().given_up == 1100
    assert len(lines(caplog, "last error: NSQRequeueMessage", logging.DEBUG)) == 1000
    assert len(lines(caplog, "last error: not seen here", logging.DEBUG)) == 100


def test_ten_given_up_messages_are_logged_per_minute_and_then_their_number(nsqd, publish, clock, started, caplog):
    consumer = started(raising(), nsqd, max_in_flight=50, max_tries=1, **AT_ONCE)
    publish(nsqd, *[b"x"] * 25)
    clock.advance(1.0)
    at_once = len(lines(caplog, "given up, delivered"))
    clock.advance(70.0)
    (rest,) = lines(caplog, "more messages")
    publish(nsqd, b"x")
    clock.advance(1.0)

    assert (consumer.stats().given_up, at_once) == (26, 10)
    assert rest == "t/c: 15 more messages given up"
    assert len(lines(caplog, "given up, delivered")) == 11


def test_give_up_handler_that_raises_is_a_failure_and_the_message_is_requeued(nsqd, publish, clock, started, caplog):
    keeper = Keeper(failures=1)
    consumer = started(raising(), nsqd, max_tries=1, requeue_delay=0)
    consumer.on_giving_up.connect(keeper, weak=False)
    publish(nsqd, b"x")
    assert consumer.stats().backoff_failures == 1
    clock.advance(1.0)

    (line,) = lines(caplog, "give-up", logging.ERROR)
    (given_up,) = lines(caplog, "given up")
    assert given_up.startswith("t/c: message b'")
    assert "give-up handler Keeper raised on attempt 2, message is requeued" in line
    assert "delivered 3 times, max_tries is 1; handed to Keeper; last error: RuntimeError" in given_up
    assert (keeper.kept, consumer.stats().given_up) == ([b"x"], 1)


@pytest.mark.parametrize("is_finished", [False, True], ids=["by its return", "itself"])
def test_given_up_message_is_no_success_for_backoff(nsqd, publish, clock, started, is_finished):
    seen = []

    def handle(consumer, message):
        seen.append(message.body)
        if len(seen) == 1:
            raise RuntimeError

    def keep(consumer, message):
        if is_finished:
            message.finish()

    consumer = started(handle, nsqd, max_tries=1, requeue_delay=0, backoff=1)
    consumer.on_giving_up.connect(keep)
    publish(nsqd, b"given up")
    # After the pause it is delivered again, as the probe.
    clock.advance(1.0)
    clock.advance(0.5)

    stats = consumer.stats()
    assert (stats.given_up, stats.backoff, stats.backoff_failures) == (1, "probing", 1)
    publish(nsqd, b"good")
    clock.advance(0.5)
    assert seen == [b"given up", b"good"]
    assert consumer.stats().backoff == "off"


def test_given_up_message_that_is_answered_later_is_no_success_for_backoff(nsqd, publish, clock, started):
    queue = QueueHandler()
    consumer = started(raising(), nsqd, max_tries=1, requeue_delay=0, backoff=1)
    consumer.on_giving_up.connect(queue, weak=False)
    publish(nsqd, b"x")
    clock.advance(1.0)
    clock.advance(0.5)
    queue.get(timeout=10).finish()

    stats = consumer.stats()
    assert (stats.given_up, stats.counts.finished, stats.backoff) == (1, 1, "probing")


# --- messages that time out -------------------------------------------------------------------------------------------


@pytest.fixture
def forever():
    made = Event()
    yield made
    made.set()


def test_overdue_handler_is_logged_with_its_line(nsqd, publish, clock, started, forever, caplog):
    def wait_for_the_end():
        forever.wait()

    def handle(consumer, message):
        ids.append(message.id)
        wait_for_the_end()

    ids = []
    consumer = started(handle, nsqd)
    publish(nsqd, b"x")
    clock.advance(59.0)
    assert consumer.stats().handlers_overdue == 0
    clock.advance(8.0)

    (line,) = lines(caplog, "its handler has run")
    assert line.startswith(f"t/c: message {ids[0]!r} of {nsqd.tcp_address}: its handler has run for 6")
    assert f"{__file__}:" in line
    assert "in test_overdue_handler_is_logged_with_its_line.<locals>.handle (innermost: " in line
    assert "wait_for_the_end)" in line
    assert "its timeout is over, and nsqd delivers it again" in line
    assert "touching()" in line
    assert "handler_timeout" in line
    assert "longer msg_timeout" in line
    stats = consumer.stats()
    assert (stats.handlers_overdue, stats.handlers_timed_out, stats.async_timed_out) == (1, 1, 0)
    forever.set()
    clock.advance(1.0)
    assert consumer.stats().handlers_overdue == 0
    assert consumer.stats().handlers_timed_out == 1


def test_handler_that_touches_its_message_is_not_overdue(nsqd, publish, clock, started, caplog):
    def handle(consumer, message):
        with message.touching():
            clock.sleep(200.0)

    consumer = started(handle, nsqd)
    publish(nsqd, b"x")
    clock.advance(210.0)

    assert lines(caplog, "its handler") == []
    assert consumer.stats().counts.finished == 1


def test_async_message_that_times_out_is_logged(nsqd, publish, clock, started, caplog):
    held = []

    def handle(consumer, message):
        message.enable_async()
        held.append(message)

    consumer = started(handle, nsqd, max_tries=0)
    publish(nsqd, b"x")
    clock.advance(70.0)

    (line,) = lines(caplog, "not answered")
    assert line.startswith(f"t/c: message {held[0].id!r} of {nsqd.tcp_address}: not answered in the 6")
    assert "call finish() or requeue() whatever happens" in line
    assert consumer.stats().async_timed_out == 1
    for _ in range(30):
        clock.advance(10.0)
    assert 4 <= len(lines(caplog, "not answered")) <= 6
    assert consumer.stats().async_timed_out >= 4
    assert consumer.stats().handlers_timed_out == 0
