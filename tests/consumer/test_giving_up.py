"""Given up messages: their log lines, and that they count neither as success nor as failure for backoff."""

import gc
import logging
import threading

import pytest

from gnsq import Consumer
from gnsq.contrib.batch import BatchHandler
from gnsq.contrib.queue import QueueHandler
from gnsq.errors import NSQRequeueMessage
from tests.helpers import wait_until

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


def failing(kind=RuntimeError, *arguments):
    def handle(consumer, message):
        raise kind(*(arguments or ["broken downstream"]))

    return handle


def lines(caplog, text, level=logging.WARNING):
    return [record.message for record in caplog.records if record.levelno >= level and text in record.message]


def test_given_up_message_is_a_warning_with_its_handler_and_last_error(nsqd, publish, clock, started, caplog):
    keeper = Keeper()
    ids = set()
    consumer = started(failing(), nsqd, max_tries=2, **AT_ONCE)
    consumer.on_exception.connect(lambda _, message, error: ids.add(message.id), weak=False)
    consumer.on_giving_up.connect(keeper, weak=False)
    publish(nsqd, b"x")
    clock.advance(1.0)

    (line,) = lines(caplog, "given up")
    (message_id,) = ids
    assert keeper.kept == [b"x"]
    assert line.startswith(f"t/c: message {message_id!r} of {nsqd.tcp_address}: given up, delivered 3 times")
    assert "delivered 3 times, max_tries is 2; handed to Keeper; last error: RuntimeError: broken downstream" in line


def test_warning_says_that_no_give_up_handler_is_connected(nsqd, publish, clock, started, caplog):
    started(failing(), nsqd, max_tries=1, **AT_ONCE)
    publish(nsqd, b"x")
    clock.advance(1.0)

    (line,) = lines(caplog, "given up")
    assert "finished and lost: nothing is connected to on_giving_up; last error: RuntimeError" in line


def test_warning_says_that_the_give_up_handler_was_garbage_collected(nsqd, publish, clock, started, caplog):
    consumer = started(failing(), nsqd, max_tries=1, **AT_ONCE)
    consumer.on_giving_up.connect(lambda _, message: None)
    gc.collect()
    publish(nsqd, b"x")
    clock.advance(1.0)

    (line,) = lines(caplog, "given up")
    assert "<lambda>, connected to on_giving_up, was garbage collected" in line
    assert "a lambda needs weak=False" in line


@pytest.mark.parametrize(
    ("handle", "text"),
    [
        pytest.param(failing(NSQRequeueMessage, False), "NSQRequeueMessage: requeue", id="requeue"),
        pytest.param(failing(ValueError, ""), "ValueError", id="no text"),
        pytest.param(failing(ValueError, "two\nlines \x1b[31m"), "ValueError: two lines ?[31m", id="cleaned"),
        pytest.param(failing(ValueError, "x" * 5000), f"ValueError: {'x' * 200}", id="cut"),
    ],
)
def test_last_error_is_one_short_line(nsqd, publish, clock, started, caplog, handle, text):
    started(handle, nsqd, max_tries=1, **AT_ONCE)
    publish(nsqd, b"x")
    clock.advance(1.0)

    (line,) = lines(caplog, "given up")
    assert line.endswith(f"last error: {text}")


def test_last_error_of_another_consumer_is_not_seen_here(nsqd, publish, clock, started, caplog):
    first = started(failing(), nsqd, max_tries=0, requeue_delay=5000, max_backoff_duration=0)
    publish(nsqd, b"x")
    first.close()
    clock.advance(1.0)
    started(failing(), nsqd, max_tries=1, **AT_ONCE)
    clock.advance(10.0)

    (line,) = lines(caplog, "given up")
    assert line.endswith("last error: not seen here")


def test_last_error_may_be_that_of_a_batch(nsqd, publish, clock, started, caplog):
    def insert(batch):
        raise ConnectionError("no table")

    consumer = started(BatchHandler(1, insert, clock=clock), nsqd, max_tries=1, **AT_ONCE)
    publish(nsqd, b"x")
    wait_until(lambda: clock.advance(0.0) or consumer.stats().given_up)

    (line,) = lines(caplog, "given up")
    assert line.endswith("last error: ConnectionError: no table")


def test_last_error_of_handle_messages_is_that_of_each_message(nsqd, publish, clock, started, caplog):
    class All(Consumer):
        def handle_messages(self, messages):
            raise RuntimeError("all of them")

    started(None, nsqd, kind=All, max_in_flight=3, max_tries=1, **AT_ONCE)
    publish(nsqd, b"1", b"2", b"3")
    clock.advance(1.0)

    assert len(lines(caplog, "last error: RuntimeError: all of them")) == 3


def test_last_errors_of_a_thousand_messages_are_remembered(nsqd, publish, clock, started, caplog):
    consumer = started(failing(), nsqd, max_in_flight=2000, max_tries=1, requeue_delay=1000, max_backoff_duration=0)
    with caplog.at_level(logging.DEBUG, logger="gnsq.consumer.t.c"):
        publish(nsqd, *[b"x"] * 1100)
        clock.advance(0.5)
        clock.advance(5.0)

    assert consumer.stats().given_up == 1100
    assert len(lines(caplog, "last error: RuntimeError", logging.DEBUG)) == 1000
    assert len(lines(caplog, "last error: not seen here", logging.DEBUG)) == 100


def test_ten_given_up_messages_are_logged_per_minute_and_then_their_number(nsqd, publish, clock, started, caplog):
    consumer = started(failing(), nsqd, max_in_flight=50, max_tries=1, **AT_ONCE)
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


def test_number_of_given_up_messages_is_logged_at_the_close(nsqd, publish, clock, started, caplog):
    consumer = started(failing(), nsqd, max_in_flight=50, max_tries=1, **AT_ONCE)
    publish(nsqd, *[b"x"] * 11)
    clock.advance(1.0)
    consumer.close()
    clock.advance(1.0)

    assert lines(caplog, "more message") == ["t/c: 1 more message given up"]


def test_give_up_handler_that_raises_is_logged_and_the_message_requeued(nsqd, publish, clock, started, caplog):
    keeper = Keeper(failures=1)
    consumer = started(failing(), nsqd, max_tries=1, **AT_ONCE)
    consumer.on_giving_up.connect(keeper, weak=False)
    publish(nsqd, b"x")
    clock.advance(1.0)

    (line,) = lines(caplog, "give-up", logging.ERROR)
    (given_up,) = lines(caplog, "given up")
    assert "give-up handler Keeper raised on attempt 2, message is requeued" in line
    assert (
        "delivered 3 times, max_tries is 1; handed to Keeper; last error: RuntimeError: broken downstream" in given_up
    )
    assert (keeper.kept, consumer.stats().given_up) == ([b"x"], 1)


def test_give_up_handler_that_returns_a_coroutine_has_failed(nsqd, publish, clock, started, caplog):
    def keep(consumer, message):
        async def put():
            pass

        return put()

    consumer = started(failing(), nsqd, max_tries=1, requeue_delay=10_000, max_backoff_duration=0)
    consumer.on_giving_up.connect(keep, weak=False)
    publish(nsqd, b"x")
    clock.advance(15.0)

    assert "returned a coroutine, of which nothing is run" in caplog.text
    assert consumer.stats().given_up == 0
    assert nsqd.broker.topics["t"].channels["c"].deferred_count == 1


def keeping(keeper, answers):
    """Make a give-up handler that keeps a message, and answers it by a function."""

    def keep(consumer, message):
        keeper(consumer, message)
        answers(message)

    return keep


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda message: None, id="by its return"),
        pytest.param(lambda message: message.finish(), id="itself"),
    ],
)
def test_given_up_message_is_no_success_for_backoff(nsqd, publish, clock, started, answer):
    seen = []

    def handle(consumer, message):
        seen.append(message.body)
        if len(seen) == 1:
            raise RuntimeError

    consumer = started(handle, nsqd, max_tries=1, requeue_delay=0, backoff_jitter=0.0)
    consumer.on_giving_up.connect(keeping(Keeper(), answer), weak=False)
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


def finish(message):
    message.finish()


def finish_in_another_thread(message):
    thread = threading.Thread(target=message.finish)
    thread.start()
    thread.join()


@pytest.mark.parametrize("answer", [finish, finish_in_another_thread])
def test_given_up_message_that_is_answered_later_is_no_success_for_backoff(nsqd, publish, clock, started, answer):
    queue = QueueHandler()
    consumer = started(failing(), nsqd, max_tries=1, requeue_delay=0, backoff_jitter=0.0)
    consumer.on_giving_up.connect(queue, weak=False)
    publish(nsqd, b"x")
    clock.advance(1.0)
    clock.advance(0.5)
    answer(queue.get(timeout=10))
    wait_until(lambda: clock.advance(0.5) or consumer.stats().counts.finished)

    stats = consumer.stats()
    assert (stats.given_up, stats.counts.finished, stats.backoff) == (1, 1, "probing")


def test_give_up_handler_that_raises_is_a_failure_for_backoff(nsqd, publish, clock, started):
    consumer = started(failing(), nsqd, max_tries=1, requeue_delay=0, backoff_jitter=0.0)
    consumer.on_giving_up.connect(Keeper(failures=1), weak=False)
    publish(nsqd, b"x")
    clock.advance(1.0)

    assert consumer.stats().backoff_failures == 2
