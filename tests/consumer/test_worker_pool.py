"""WorkerPool: workers that are killed, that raise, that wait for work, and whose messages wait for long."""

import os

import gevent
import gevent.event
import pytest

from gnsq.clock import RealClock
from gnsq.consumer.worker_pool import MAX_PARKED, WorkerPool
from gnsq.message import Message
from gnsq.nsqd.in_flight import InFlightMessages
from tests.kit import run_program, wait_until


def message(number):
    return Message(0, 1, b"%016d" % number, b"x")


@pytest.fixture
def handled():
    return []


def pool(handle):
    """A pool with two workers."""
    return WorkerPool("w", lambda: 2, handle, None, lambda message: None, RealClock())


@pytest.fixture
def workers(handled):
    def handle(message):
        handled.append(message)
        return True

    return pool(handle)


def wait_until_idle(workers):
    wait_until(lambda: len(workers) == workers.busy == 0)


def kill_starting_workers(workers):
    for worker in list(workers._workers):
        worker.kill()


def test_message_of_a_worker_killed_before_it_began_is_handled_by_another(workers, handled):
    messages = [message(number) for number in range(3)]
    workers.put(messages)

    kill_starting_workers(workers)
    wait_until_idle(workers)

    assert handled == messages


def test_answered_and_async_messages_of_a_killed_worker_are_not_handled_again():
    answered, kept, other = messages = [message(number) for number in range(3)]
    calls = []

    def handle_all(batch):
        calls.append(batch)
        if len(calls) == 1:
            del answered._open  # as finish() does
            kept.enable_async()
            gevent.getcurrent().kill(block=False)
            gevent.sleep(0)
        return batch

    workers = WorkerPool("w", lambda: 1, lambda message: True, handle_all, lambda message: None, RealClock())
    workers.put(messages)
    wait_until_idle(workers)

    assert calls == [messages, [other]]


def test_worker_that_raises_does_not_handle_its_message_again(handled):
    def handle(message):
        handled.append(message)
        raise ValueError("a bug")

    workers = pool(handle)
    workers.put([message(number) for number in range(3)])
    wait_until_idle(workers)

    assert len(handled) == 3


def test_aborted_workers_put_no_message_back(workers, handled):
    workers.put([message(number) for number in range(3)])

    workers.abort()
    wait_until_idle(workers)

    assert handled == []
    assert (len(workers), workers.busy) == (0, 0)


# --- parked workers


def parked(workers):
    return [work.worker for work in workers._parked]


def park(workers):
    """Handle a message; return the worker that has done it."""
    workers.put([message(0)])
    wait_until_idle(workers)
    (worker,) = parked(workers)
    return worker


def test_parked_worker_handles_the_next_messages(workers, handled):
    greenlets = set()
    workers._handle = lambda message: greenlets.add(gevent.getcurrent()) or True

    for number in range(3):
        workers.put([message(number)])
        wait_until_idle(workers)

    assert len(greenlets) == 1
    assert parked(workers) == list(greenlets)


def test_message_that_the_hub_puts_is_handled_before_put_returns(workers, handled):
    park(workers)
    seen = []

    def put():
        workers.put([message(1)])
        seen.extend(handled)

    gevent.get_hub().loop.run_callback(put)
    gevent.sleep(0)

    assert [item.id for item in seen] == [message(0).id, message(1).id]


def test_parked_worker_that_is_killed_is_replaced(workers, handled):
    park(workers).kill()
    workers.put([message(1)])
    wait_until(lambda: len(handled) == 2)

    assert len(parked(workers)) == 1


def test_worker_that_is_killed_when_it_is_woken_loses_no_message(workers, handled):
    worker = park(workers)

    workers.put([message(1)])
    worker.kill()

    wait_until(lambda: len(handled) == 2)
    assert worker.dead


def test_timeout_that_a_handler_has_left_behind_ends_only_its_worker(capsys, handled):
    def handle(message):
        handled.append(message)
        if len(handled) == 1:
            gevent.Timeout(0.001).start()
        return True

    workers = pool(handle)
    workers.put([message(0)])
    wait_until_idle(workers)
    wait_until(lambda: not parked(workers))
    workers.put([message(1)])
    wait_until(lambda: len(handled) == 2)

    assert capsys.readouterr().err == ""


def test_parked_worker_that_is_woken_by_something_else_stays_parked(workers, handled):
    worker = park(workers)

    gevent.get_hub().loop.run_callback(worker.switch)
    gevent.sleep(0)

    assert parked(workers) == [worker]
    workers.put([message(1)])
    wait_until(lambda: len(handled) == 2)


def test_closed_pool_ends_its_parked_workers_and_still_handles_messages(workers, handled):
    worker = park(workers)

    workers.close()
    wait_until(lambda: worker.dead)
    workers.put([message(1)])
    wait_until(lambda: not workers._workers)

    assert len(handled) == 2
    assert parked(workers) == []


def test_no_more_workers_are_parked_than_the_limit():
    count, release = MAX_PARKED + 10, gevent.event.Event()
    workers = WorkerPool("w", lambda: count, lambda message: release.wait(), None, lambda message: None, RealClock())
    workers.put([message(number) for number in range(count)])
    wait_until(lambda: workers.busy == count)

    release.set()
    wait_until_idle(workers)

    assert len(parked(workers)) == MAX_PARKED
    wait_until(lambda: len(workers._workers) == MAX_PARKED)


# --- messages that wait while handlers run


def test_messages_that_time_out_while_a_batch_is_handled_are_dropped(clock, handled):
    def handle_batch(messages):
        handled.append(messages)
        clock.sleep(6.0)
        return []

    dropped, in_flight = [], InFlightMessages("nsqd:4150", lambda data: None, lambda: None, clock)
    in_flight.msg_timeout = 5.0
    workers = WorkerPool("w", lambda: 1, lambda message: True, handle_batch, dropped.append, clock)
    messages = [Message(0, 1, b"%016d" % number, b"x", in_flight) for number in range(4)]
    workers.put(messages[:1])
    clock.advance(0.1)
    workers.put(messages[1:])
    clock.advance(30.0)

    assert len(handled) == 1
    assert (dropped, in_flight.timed_out) == (messages[1:], 3)


def test_limit_that_is_raised_while_a_handler_runs_is_used_for_the_messages_that_wait(clock):
    limit, release = [1], gevent.event.Event()
    workers = WorkerPool("w", lambda: limit[0], lambda message: release.wait(), None, lambda message: None, clock)
    workers.put([message(number) for number in range(5)])
    wait_until(lambda: workers.busy == 1)
    clock.advance(1.0)

    limit[0] = 4
    release.set()
    release.clear()

    wait_until(lambda: workers.busy == 4)
    release.set()
    wait_until_idle(workers)


UNCOUNTED_ROUNDS = """
import gevent
from gnsq.clock import RealClock
from gnsq.consumer.worker_pool import MAX_RUN_SECONDS, WorkerPool
from gnsq.message import Message

handled = []
workers = WorkerPool("w", lambda: 1, handled.append, None, lambda message: None, RealClock())
for number in range(3):
    workers.put([Message(0, 1, b"%016d" % number, b"x")])
    gevent.sleep(2 * MAX_RUN_SECONDS)
print(len(handled), len(workers.inbox))
"""


@pytest.mark.subprocess
def test_messages_are_handled_by_a_loop_that_does_not_count_its_rounds():
    pytest.importorskip("gevent.libuv.loop")

    assert run_program(UNCOUNTED_ROUNDS, env={**os.environ, "GEVENT_LOOP": "libuv"}).stdout == "3 0\n"
