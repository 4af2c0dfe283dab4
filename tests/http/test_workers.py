"""Native threads: no more than the limit, none without work, and what fails is logged."""

import logging
import queue
import threading

import pytest

from gnsq.http.workers import Workers
from tests.helpers import wait_until


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def test_tasks_run_at_once_up_to_the_limit(release):
    workers, started = Workers(2), queue.SimpleQueue()

    def task():
        started.put(threading.get_ident())
        release.wait(30)

    for _ in range(5):
        workers.do(task)

    wait_until(lambda: started.qsize() == 2)
    assert len(workers) == 2
    release.set()
    wait_until(lambda: started.qsize() == 5)
    assert len({started.get() for _ in range(5)}) == 2
    workers.close()
    wait_until(lambda: len(workers) == 0)


def test_one_thread_is_enough_for_one_task_after_the_other():
    workers, done = Workers(4), []
    for number in range(10):
        workers.do(lambda number=number: done.append(number))
        wait_until(lambda number=number: len(done) == number + 1 and workers._unfinished == 0)

    assert (done, len(workers)) == (list(range(10)), 1)
    workers.close()


def test_what_is_queued_is_done_before_close_ends_threads(release):
    workers, done = Workers(1), []
    workers.do(lambda: release.wait(30))
    workers.do(lambda: done.append(1))
    workers.close()
    release.set()

    wait_until(lambda: len(workers) == 0)
    assert done == [1]


def test_idle_threads_end_and_come_back():
    workers, done = Workers(1, idle_timeout=0.01), []
    workers.do(lambda: done.append(1))
    wait_until(lambda: done == [1] and len(workers) == 0)

    workers.do(lambda: done.append(2))
    wait_until(lambda: done == [1, 2] and len(workers) == 0)


def test_failure_is_logged_and_the_thread_goes_on(caplog):
    workers, done = Workers(1), []

    def fail():
        raise OSError("no luck")

    with caplog.at_level(logging.ERROR, "gnsq.http.workers"):
        workers.do(fail)
        workers.do(lambda: done.append(1))
        wait_until(lambda: done == [1])

    assert "no luck" in caplog.text
    workers.close()


def test_hub_that_a_task_made_goes_with_its_thread():
    workers, hubs = Workers(1), []

    def task():
        import gevent

        gevent.sleep(0)
        hubs.append(gevent.get_hub())

    workers.do(task)
    wait_until(lambda: hubs)
    workers.close()

    wait_until(lambda: hubs[0].dead)
