"""BatchHandler: when a batch runs, and that each of its messages has one answer."""

import itertools
import logging
import warnings

import gevent
import pytest
from gevent.event import Event

from gnsq import Message
from gnsq.contrib.batch import BatchHandler
from gnsq.errors import NSQRequeueMessage
from tests.contrib.conftest import settled
from tests.kit import channel_stats, wait_until


class Batches(list):
    """handle_batch that keeps the batches."""

    def __call__(self, batch):
        self.append([message.body for message in batch])


@pytest.fixture
def batches():
    return Batches()


# --- when a batch runs


@pytest.mark.filterwarnings("error")
def test_messages_that_wait_for_a_handler_are_no_starvation(still_publish, still_consume, batches, clock):
    still_consume(BatchHandler(5, batches, clock=clock), max_in_flight=10)

    still_publish(*[b"%d" % number for number in range(10)])

    assert [len(batch) for batch in batches] == [5, 5]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_timeout_counts_from_the_first_message_of_a_batch(still_publish, still_consume, batches, clock):
    still_consume(BatchHandler(100, batches, timeout=10, clock=clock), max_in_flight=100)
    clock.advance(7)
    still_publish(b"1")
    clock.advance(6)
    still_publish(b"2")

    clock.advance(3.9)
    assert batches == []
    clock.advance(0.2)
    assert batches == [[b"1", b"2"]]

    still_publish(b"3")
    clock.advance(9.9)
    assert len(batches) == 1
    clock.advance(0.2)
    assert batches == [[b"1", b"2"], [b"3"]]


def test_warning_that_is_turned_into_an_error_loses_no_message(still_publish, still_consume, batches, clock, caplog):
    still_consume(BatchHandler(100, batches, timeout=1, clock=clock), max_in_flight=100)
    still_publish(b"1")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clock.advance(1.1)

    assert batches == [[b"1"]]
    assert "not full when its time is over" in caplog.text


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_batch_runs_before_nsqd_takes_its_messages_back(still_publish, still_consume, batches, clock):
    still_consume(BatchHandler(100, batches, timeout=None, clock=clock), max_in_flight=100, msg_timeout=4)
    still_publish(b"1")

    clock.advance(1.9)
    assert batches == []
    clock.advance(0.2)
    assert batches == [[b"1"]]


def test_unfinished_batch_is_handled_when_the_consumer_closes(
    still_nsqd, still_publish, still_consume, batches, clock, caplog
):
    consumer = still_consume(BatchHandler(100, batches, timeout=60, clock=clock), max_in_flight=100, close_timeout=5)
    still_publish(b"1", b"2")

    gevent.spawn(consumer.close)
    clock.advance(1)

    assert batches == [[b"1", b"2"]]
    assert consumer.stats().state == "closed"
    assert consumer.stats().counts.finished == 2
    assert "requeued" not in caplog.text
    assert "batch_size" not in caplog.text


def test_closing_does_not_wait_for_another_batch_to_run_this_one(still_publish, still_consume, clock):
    got, go = [], Event()

    def handle(batch):
        got.append([message.body for message in batch])
        if len(got) == 1:
            go.wait()

    consumer = still_consume(BatchHandler(2, handle, timeout=60, clock=clock), max_in_flight=10)
    still_publish(b"1", b"2", b"3")

    gevent.spawn(consumer.close)
    clock.advance(1)

    assert got == [[b"1", b"2"], [b"3"]]
    go.set()


# --- items and errors


def test_methods_of_a_batch_handler_may_be_overridden(publish, consume):
    got = []

    class Sums(BatchHandler):
        def handle_message(self, message):
            return int(message.body)

        def handle_batch(self, batch):
            got.append(sum(batch))

    consume(Sums(2), max_in_flight=10)
    publish(b"1", b"2")
    wait_until(lambda: got)

    assert got == [3]


def test_message_whose_handle_message_raises_is_requeued_and_the_others_stay(fakensqd, publish, consume):
    got, errors = [], []
    handler = BatchHandler(
        2,
        got.append,
        handle_message=lambda message: int(message.body),
        handle_message_error=lambda error, message: errors.append((type(error), message.body)),
    )
    consume(handler, max_in_flight=10, requeue_delay=60_000)

    publish(b"1", b"two")
    wait_until(lambda: got)

    assert got == [[1]]
    assert errors == [(ValueError, b"two")]
    wait_until(lambda: channel_stats(fakensqd, "t", "c")["deferred_count"] == 1)


def test_failed_batch_is_requeued_as_a_whole(still_nsqd, still_publish, still_consume, clock):
    attempts, errors = [], []

    def handle(batch):
        attempts.append([message.attempts for message in batch])
        if len(attempts) == 1:
            raise RuntimeError("database is down")

    def hear(error, messages, batch):
        errors.append((str(error), len(messages), len(batch)))

    handler = BatchHandler(2, handle, handle_batch_error=hear, timeout=0.1, clock=clock)
    still_consume(handler, max_in_flight=2, requeue_delay=0, backoff=0.01)
    with warnings.catch_warnings():
        # They are delivered again one by one.
        warnings.simplefilter("ignore", RuntimeWarning)
        still_publish(b"1", b"2")
        clock.advance(5)

    assert attempts[0] == [1, 1]
    assert list(itertools.chain(*attempts[1:])) == [2, 2]
    assert (still_nsqd.in_flight("t", "c"), still_nsqd.depth("t", "c")) == (0, 0)
    assert errors == [("database is down", 2, 2)]


@pytest.mark.parametrize(
    ("error", "options", "expected"),
    [
        pytest.param(NSQRequeueMessage(backoff=False), {}, [False], id="says no"),
        pytest.param(NSQRequeueMessage(backoff=True), {"backoff_on_requeue": False}, [True], id="says yes"),
        pytest.param(NSQRequeueMessage(), {}, [True], id="does not say"),
        pytest.param(NSQRequeueMessage(), {"backoff_on_requeue": False}, [False], id="does not say, consumer does"),
        pytest.param(gevent.Timeout(1), {"backoff_on_requeue": False}, [True], id="failure"),
    ],
)
def test_requeue_backs_off_as_the_exception_says(publish, consume, caplog, error, options, expected):
    asked = []

    def handle(batch):
        batch[0].on_requeue.connect(lambda message, timeout, backoff: asked.append(backoff), weak=False)
        raise error

    consume(BatchHandler(1, handle), requeue_delay=60_000, **options)
    publish(b"1")
    wait_until(lambda: asked)

    assert asked == expected
    assert ("Traceback" in caplog.text) == (not isinstance(error, NSQRequeueMessage))


@pytest.mark.parametrize("what", ["handle_message", "handle_batch"])
def test_error_callback_that_raises_is_logged_and_changes_nothing(fakensqd, publish, consume, caplog, what):
    def fail(*arguments):
        raise RuntimeError("of the handler")

    def fail_again(*arguments):
        raise RuntimeError("of the callback")

    callbacks = {"handle_batch": fail, what: fail, f"{what}_error": fail_again}
    consume(BatchHandler(1, **callbacks), requeue_delay=60_000)
    publish(b"1")
    wait_until(lambda: channel_stats(fakensqd, "t", "c")["deferred_count"] == 1)

    assert "of the callback" in caplog.text


def test_requeue_and_finish_methods_answer_unanswered_messages(fakensqd, publish, consume):
    handler = BatchHandler(3, lambda batch: answer(batch))

    def answer(batch):
        handler.finish_messages(batch[:1] * 2)
        handler.requeue_messages(batch[:2])

    consume(handler, max_in_flight=10, requeue_delay=60_000)
    publish(b"1", b"2", b"3")
    wait_until(lambda: channel_stats(fakensqd, "t", "c")["deferred_count"] == 1)

    wait_until(lambda: channel_stats(fakensqd, "t", "c")["in_flight_count"] == 0)
    assert channel_stats(fakensqd, "t", "c")["requeue_count"] == 1


# --- greenlets and failures


def test_no_more_batches_run_at_once_than_allowed(publish, consume):
    running, most, go = [], [], Event()

    def handle(batch):
        running.append(batch)
        most.append(len(running))
        go.wait()
        running.remove(batch)

    consume(BatchHandler(1, handle, spawn=2), max_in_flight=10)
    publish(*[b"x"] * 6)
    wait_until(lambda: len(running) == 2)
    go.set()
    wait_until(lambda: len(most) == 6 and not running)

    assert max(most) == 2


def test_message_that_times_out_before_its_batch_runs_is_left_out(still_publish, still_consume, clock, caplog):
    got, go = [], Event()

    def handle(batch):
        got.append((batch[0].body, batch[0].attempts))
        if len(got) == 1:
            go.wait()

    consumer = still_consume(BatchHandler(1, handle, spawn=1, clock=clock), max_in_flight=2, msg_timeout=1)
    still_publish(b"slow", b"waits")
    clock.advance(0.9)
    assert got == [(b"slow", 1)]
    clock.advance(0.1)
    go.set()
    clock.advance(5)

    assert (b"waits", 1) not in got
    assert (b"waits", 2) in got
    assert "its timeout was over before its batch ran" in caplog.text
    assert consumer.total_in_flight == 0


def test_failing_batch_counts_as_one_failure(still_publish, still_consume, clock):
    def fail(batch):
        raise RuntimeError("no")

    consumer = still_consume(BatchHandler(3, fail, clock=clock), max_in_flight=30, requeue_delay=100_000)
    still_publish(b"1", b"2", b"3")
    assert (consumer.stats().counts.requeued, consumer.stats().backoff) == (3, "off")

    still_publish(b"4", b"5", b"6")

    assert (consumer.stats().counts.requeued, consumer.stats().backoff) == (6, "waiting")


def test_killed_batch_requeues_its_messages(fakensqd, publish, consume):
    got, greenlets = [], []

    def spawn(function, *arguments):
        greenlets.append(gevent.spawn(function, *arguments))

    def handle(batch):
        got.append(batch[0].attempts)
        if len(got) == 1:
            gevent.sleep(60)

    consume(BatchHandler(1, handle, spawn=spawn), requeue_delay=0)
    publish(b"1")
    wait_until(lambda: got)
    greenlets[0].kill()
    wait_until(lambda: settled(fakensqd))

    assert got == [1, 2]


def test_message_that_is_answered_already_is_in_no_batch(batches):
    answered, other = (Message(1, 1, b"0123456789abcdef", body) for body in (b"1", b"2"))
    answered.finish()

    BatchHandler(2, batches).run_batch([answered, other])

    assert batches == [[b"2"]]
    assert other.has_responded()


def test_batch_that_can_not_be_spawned_is_requeued(fakensqd, publish, consume, batches):
    refusals = [RuntimeError("no more greenlets")]

    def spawn(function, *arguments):
        if refusals:
            raise refusals.pop()
        function(*arguments)

    handler = BatchHandler(2, batches, timeout=0.1, spawn=spawn)
    consume(handler, max_in_flight=10, requeue_delay=0, backoff=0.01)
    publish(b"1", b"2")
    wait_until(lambda: batches and settled(fakensqd))

    assert sorted(itertools.chain(*batches)) == [b"1", b"2"]


@pytest.mark.parametrize("fails", [False, True])
def test_lost_connection_leaves_the_messages_to_nsqd(fakensqd, publish, consume, caplog, fails):
    def handle(batch):
        fakensqd.down()
        wait_until(lambda: consumer.total_ready_count == 0)
        if fails:
            raise RuntimeError("too late, too")

    caplog.set_level(logging.INFO)
    consumer = consume(BatchHandler(1, handle))
    publish(b"1")

    wait_until(lambda: ("not requeued" if fails else "not finished") in caplog.text)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        pytest.param({"batch_size": 1}, TypeError, "handle_batch is missing", id="no handle_batch"),
        pytest.param({"batch_size": 0, "handle_batch": print}, ValueError, "batch_size 0", id="empty batches"),
        pytest.param({"batch_size": 1, "handle_batch": print, "spawn": 0}, ValueError, "spawn 0", id="none at once"),
    ],
)
def test_invalid_arguments_of_a_batch_handler_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        BatchHandler(**arguments)
