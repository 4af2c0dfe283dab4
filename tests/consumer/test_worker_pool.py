"""WorkerPool: workers that are killed or that raise."""

import gevent
import pytest

from gnsq.clock import RealClock
from gnsq.consumer.worker_pool import WorkerPool
from gnsq.message import Message
from tests.helpers import wait_until


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


def test_message_of_a_worker_killed_before_its_handler_is_handled_by_another():
    messages = [message(number) for number in range(3)]
    called = []

    def handle(message):
        called.append(message)
        if len(called) == 1:
            raise gevent.GreenletExit
        return True

    workers = pool(handle)
    workers.put(messages)
    wait_until_idle(workers)

    assert sorted(called[1:], key=messages.index) == messages


def test_answered_and_async_messages_of_a_killed_worker_are_not_handled_again():
    answered, kept, other = messages = [message(number) for number in range(3)]
    calls = []

    def handle_all(batch):
        calls.append(batch)
        if len(calls) == 1:
            del answered._open  # as finish() does
            kept.enable_async()
            raise gevent.GreenletExit
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
