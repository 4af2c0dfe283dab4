"""Subclasses that override handle_messages(): waiting messages are handled with one call."""

import gevent
import pytest
from gevent.event import Event

from gnsq import Consumer, Message, finish_all
from gnsq.consumer.worker_pool import WorkerPool
from gnsq.errors import NSQRequeueMessage, NSQTimeout
from tests.helpers import wait_until


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


def channel(nsqd):
    return nsqd.broker.topics["t"].channels["c"]


def test_messages_of_one_chunk_are_handled_with_one_call(nsqd, publish, together):
    consumer = together(finish_all)

    publish(nsqd, b"1", b"2", b"3")

    assert consumer.calls == [[b"1", b"2", b"3"]]
    assert consumer.total_in_flight == 0
    counts = consumer.stats().counts
    assert (counts.finished, counts.requeued) == (4, 0)


def test_messages_that_arrive_while_the_handler_waits_are_handled_after_it(nsqd, clock, publish, together):
    def wait(messages):
        clock.sleep(1.0)
        finish_all(messages)

    consumer = together(wait, concurrency=1)
    publish(nsqd, b"1")
    publish(nsqd, b"2")
    publish(nsqd, b"3")
    assert (consumer.stats().handling, consumer.stats().waiting) == (1, 2)
    clock.advance(3.0)

    assert consumer.calls == [[b"1"], [b"2", b"3"]]


def test_messages_that_arrive_while_the_handler_waits_start_another_worker(nsqd, clock, publish, together):
    consumer = together(lambda messages: (clock.sleep(1.0), finish_all(messages)))

    publish(nsqd, b"1")
    publish(nsqd, b"2", b"3")

    assert consumer.calls == [[b"1"], [b"2", b"3"]]
    assert consumer.stats().handling == 3
    clock.advance(2.0)


class Steps:
    """Clock that advances by one second with each call."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now


def test_worker_whose_time_is_over_leaves_the_rest_to_another():
    first, second = (Message(1, 1, b"id", body) for body in (b"1", b"2"))
    calls = []

    def handle_all(messages):
        calls.append((gevent.getcurrent(), messages))
        if second not in messages:
            workers.put([second])
        return []

    workers = WorkerPool("w", lambda: 1, lambda message: True, handle_all, lambda message: None, Steps())
    workers.put([first])
    wait_until(lambda: not len(workers))

    assert [messages for _, messages in calls] == [[first], [second]]
    assert calls[0][0] is not calls[1][0]


def test_unanswered_messages_are_answered_later(nsqd, publish, together):
    held = []
    consumer = together(held.extend)

    publish(nsqd, b"1", b"2", b"3")
    assert (consumer.total_in_flight, consumer.stats().handling) == (3, 0)
    assert all(message.is_async() for message in held)
    assert finish_all(held) == []

    assert consumer.total_in_flight == 0


def test_answered_and_async_messages_are_counted_once(nsqd, clock, publish, together):
    held = []

    def handle(messages):
        messages[0].finish()
        messages[1].enable_async()
        held.extend(messages[1:])

    consumer = together(handle)
    publish(nsqd, b"1", b"2", b"3")
    clock.advance(3.0)
    finish_all(held)

    latency = consumer.stats().latency
    assert latency.count == 4
    assert latency.total == pytest.approx(6.0)


def test_handle_messages_that_raises_is_one_failure_and_requeues_unanswered_messages(nsqd, clock, publish, together):
    events = []

    def handle(messages):
        messages[0].finish()
        raise RuntimeError("no")

    consumer = together(handle)
    consumer.on_exception.connect(lambda _, message, error: events.append((message.body, str(error))), weak=False)
    publish(nsqd, b"1", b"2", b"3")

    assert events == [(b"2", "no")]
    stats = consumer.stats()
    assert (stats.failed, stats.counts.finished, stats.counts.requeued) == (1, 2, 2)
    assert (stats.backoff, stats.backoff_failures) == ("waiting", 1)
    assert channel(nsqd).deferred_count == 2
    consumer.function = finish_all
    clock.advance(20.0)
    assert consumer.total_in_flight == channel(nsqd).deferred_count == 0


def test_handle_messages_that_raises_after_all_answers_is_a_failure(nsqd, publish, together):
    def handle(messages):
        finish_all(messages)
        raise RuntimeError("no")

    consumer = together(handle)
    publish(nsqd, b"1", b"2")

    stats = consumer.stats()
    assert (stats.failed, stats.counts.finished, stats.counts.requeued, stats.in_flight) == (1, 3, 0, 0)


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


def test_handle_messages_is_interrupted_after_handler_timeout(nsqd, clock, publish, together):
    errors = []
    consumer = together(lambda messages: Event().wait(), handler_timeout=5.0)
    consumer.on_exception.connect(lambda _, message, error: errors.append(error), weak=False)
    publish(nsqd, b"1", b"2")
    clock.advance(4.9)
    assert errors == []
    clock.advance(0.2)

    assert [type(error) for error in errors] == [NSQTimeout]
    assert channel(nsqd).deferred_count == 2
    consumer.function = finish_all


def test_killed_handle_messages_requeues_its_messages_at_once(nsqd, clock, publish, together):
    consumer = together(lambda messages: Event().wait())
    publish(nsqd, b"1", b"2")
    consumer.function = finish_all
    for worker in list(consumer._workers._workers):
        worker.kill(block=False)
    clock.advance(0.1)

    assert sorted(body for call in consumer.calls[1:] for body in call) == [b"1", b"2"]
    assert consumer.stats().backoff == "off"
    assert consumer.total_in_flight == 0


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


def test_handle_messages_may_call_the_handlers_of_on_message(nsqd, publish, together):
    handled = []
    consumer = together(finish_all)
    consumer.function = lambda messages: Consumer.handle_messages(consumer, messages)
    consumer.on_message.connect(lambda _, message: handled.append(message.body), weak=False)

    publish(nsqd, b"1", b"2")

    assert handled == [b"1", b"2"]
    assert consumer.total_in_flight == 0


def test_handle_messages_may_close_and_wait_for_the_end(nsqd, clock, publish, together):
    done = []

    def handle(messages):
        consumer.close(timeout=20.0)
        finish_all(messages)
        done.append(clock.monotonic())

    consumer = together(handle)
    began = clock.monotonic()
    publish(nsqd, b"1", b"2", b"3")
    clock.advance(1.0)

    assert done == [began]
    assert not consumer.is_running
    assert channel(nsqd).depth == channel(nsqd).in_flight_count == 0


def test_close_requeues_messages_of_handle_messages_after_the_time_limit(nsqd, clock, publish, together, caplog):
    forever = Event()
    consumer = together(lambda messages: forever.wait())
    publish(nsqd, b"1", b"2", b"3")
    gevent.spawn(consumer.close, timeout=2.0)
    clock.advance(5.0)

    assert channel(nsqd).depth == 3
    assert "3 messages were not answered within 2.0 s of close(), 3 of them by handlers that still run" in caplog.text
    forever.set()


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


def test_messages_that_time_out_in_handle_messages_are_not_kept(nsqd, clock, publish, together):
    def outlast(messages):
        clock.sleep(200.0)

    consumer = together(outlast, msg_timeout=60)
    publish(nsqd, b"1")
    clock.advance(150.0)
    [connection] = consumer._pool.connections.values()
    consumer.function = lambda messages: (clock.sleep(5.0), finish_all(messages))
    clock.advance(200.0)
    # RDY is updated when the next messages are in flight.
    publish(nsqd, b"2")
    clock.advance(20.0)

    assert connection.in_flight_messages.async_messages == set()
    assert consumer.total_in_flight == 0
