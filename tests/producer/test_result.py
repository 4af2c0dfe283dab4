"""PublishResult: one result of publish_async() for all threads, with a hub and without."""

import threading
import time
from concurrent.futures import Future

import gevent
import pytest
from gevent.event import AsyncResult, Event

from fakensqd.faults import delay, on
from gnsq import Producer, PublishResult
from gnsq.concurrency.threads import OwnerThread
from gnsq.errors import NSQException, NSQUnknownClosed, NSQUnknownTimeout
from gnsq.producer.result import ResultWaiters
from tests.kit import LIMIT, wait_until
from tests.producer.conftest import KINDS

FAILED = NSQException("failed")


@pytest.fixture
def waiters():
    """The waiters of a producer of this thread."""
    return ResultWaiters(OwnerThread(), time.monotonic, "producer-1")


@pytest.fixture
def result(waiters):
    return waiters.new(time.monotonic() + LIMIT)


def outcome(function):
    """Return the result or the error of a function."""
    try:
        return function()
    except BaseException as error:  # noqa: BLE001  # gevent.Timeout, too
        return error


# --- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True], ids=["own thread", "threaded"])
def test_publish_returns_ok_and_without_raise_error_a_result(fakensqd, threaded):
    with Producer(fakensqd.tcp_address, threaded=threaded) as producer:
        results = [
            producer.publish_async("t", b"x"),
            producer.publish("t", b"x", raise_error=False),
            producer.multipublish("t", [b"x"], raise_error=False),
        ]

        assert [type(result) for result in results] == [PublishResult] * 3
        assert isinstance(results[0], AsyncResult)
        assert [result.get(timeout=LIMIT) for result in results] == [b"OK"] * 3
        assert producer.publish("t", b"x") == producer.multipublish("t", [b"x"]) == b"OK"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["get", "wait", "result"])
def test_other_threads_wait_for_a_result_of_the_producers_thread(fakensqd, threads, kind, method):
    with Producer(fakensqd.tcp_address) as producer, fakensqd.add(on.reply("PUB"), delay(0.1)):
        result = producer.publish_async("t", b"x")
        threads.start(lambda number: getattr(result, method)(timeout=LIMIT), kind, count=3)

        assert threads.wait() == [b"OK"] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_timeout_of_another_threads_get_is_gevents_timeout(threads, result, kind):
    threads.start(lambda number: outcome(lambda: result.get(timeout=0.01)), kind)
    threads.start(lambda number: outcome(result.get_nowait), kind)
    threads.start(lambda number: result.wait(timeout=0.01), kind)

    outcomes = threads.wait()

    assert sorted(type(one).__name__ for one in outcomes) == ["NoneType", "Timeout", "Timeout"]
    assert isinstance(outcome(lambda: result.get(timeout=0.01)), gevent.Timeout)
    assert isinstance(outcome(result.get_nowait), gevent.Timeout)


@pytest.mark.parametrize("kind", KINDS)
def test_error_is_raised_each_time_with_a_traceback_of_that_call_alone(threads, result, kind):
    def lines():
        error = outcome(lambda: result.get(timeout=LIMIT))
        count, line = 0, error.__traceback__
        while line is not None:
            count, line = count + 1, line.tb_next
        return error, count

    def look(number):
        return [lines() for _ in range(3)]

    threads.start(look, kind)
    wait_until(lambda: result.waiters.pending)
    result.end(FAILED)

    ((first, *others),) = threads.wait()
    assert {error for error, _ in [first, *others, lines()]} == {FAILED}
    assert others[0][1] == others[1][1]
    assert result.wait() is None
    assert (result.exception, result.successful(), result.done()) == (FAILED, False, True)


def test_waits_that_time_out_leave_nothing(threads, result):
    threads.start(lambda number: [result.wait(timeout=0.0001) for _ in range(20)])
    threads.wait()

    assert [len(ended.waiting) for ended in result.waiters.pending.values()] == [0]
    result.end(None)
    assert result.waiters.pending == {}


def test_hub_that_does_not_run_holds_no_other_thread_past_the_deadline(waiters):
    late = waiters.new(time.monotonic() - 60)
    outcomes = []
    # Natively: this hub does not run meanwhile.
    thread = threading.Thread(target=lambda: outcomes.extend([outcome(late.get), outcome(late.wait)]))
    thread.start()
    thread.join(LIMIT)

    assert [type(one) for one in outcomes] == [NSQUnknownTimeout] * 2
    # It may run again.
    assert not late.ready()


def test_thread_that_has_ended_ends_its_results(threads):
    made = []
    threads.start(lambda number: made.append(ResultWaiters(OwnerThread(), time.monotonic, "producer-1")))
    threads.wait()
    result = made[0].new(time.monotonic() + LIMIT)

    error = outcome(result.get)

    assert isinstance(error, NSQUnknownClosed)
    assert "has ended" in str(error)
    assert result.exception is error


# --- gevent's own ways ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [gevent.wait, lambda results: list(gevent.iwait(results))], ids=["wait", "iwait"])
def test_gevent_waits_for_results_of_another_thread(fakensqd, function):
    with Producer(fakensqd.tcp_address, threaded=True) as producer, fakensqd.add(on.reply("PUB"), delay(0.1)):
        results = [producer.publish_async("t", b"x") for _ in range(3)]

        assert set(function(results)) == set(results)
        assert results[0].waiters.links == {}


def test_gevent_waits_for_some_results_of_another_thread_and_leaves_the_others(fakensqd):
    with Producer(fakensqd.tcp_address, threaded=True, close_timeout=0) as producer:
        first = producer.publish_async("t", b"x")
        with fakensqd.add(on.command("PUB", topic="slow"), delay(30.0)):
            second = producer.publish_async("slow", b"x")

            assert gevent.wait([first, second], timeout=LIMIT, count=1) == [first]
            assert gevent.wait([second], timeout=0.01) == []
        assert first.waiters.links == {}


@pytest.mark.parametrize("threaded", [False, True], ids=["own thread", "threaded"])
def test_rawlink_calls_in_the_hub_of_the_calling_thread(fakensqd, threaded):
    called = []
    with Producer(fakensqd.tcp_address, threaded=threaded) as producer, fakensqd.add(on.reply("PUB"), delay(0.1)):
        result = producer.publish_async("t", b"x")
        result.rawlink(lambda result: called.append((result, gevent.getcurrent())))
        undone = called.append
        result.rawlink(undone)
        result.unlink(undone)
        result.get(timeout=LIMIT)
        wait_until(lambda: called)
        # Called after all that was linked before.
        last = Event()
        result.rawlink(lambda result: last.set())
        assert last.wait(LIMIT)

    assert called == [(result, gevent.get_hub())]


def test_rawlink_in_a_thread_without_a_hub_calls_in_the_producers_hub(threads, result):
    called = []
    threads.start(lambda number: result.rawlink(lambda result: called.append(threading.get_ident())))
    threads.wait()

    result.end(None)

    assert called == [threading.get_ident()]


# --- callbacks and futures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_are_called_in_order_in_the_producers_hub(threads, result, kind):
    called = []
    for number in range(3):
        threads.start(
            lambda _, number=number: result.add_done_callback(
                lambda result: called.append((number, result, gevent.getcurrent(), threading.get_ident()))
            ),
            kind,
        )
        threads.wait()
    gevent.get_hub().loop.run_callback(result.end, None)
    wait_until(result.ready)

    hub = (gevent.get_hub(), threading.get_ident())
    assert called == [(number, result, *hub) for number in range(3)]


@pytest.mark.parametrize("kind", KINDS)
def test_callback_of_an_ended_result_is_called_at_once_in_the_calling_thread(threads, result, kind):
    result.end(None)

    def add(number):
        called = []
        result.add_done_callback(lambda result: called.append(threading.get_ident()))
        return called == [threading.get_ident()]

    threads.start(add, kind)

    assert threads.wait() == [True]
    assert result.waiters.pending == {}


def test_callback_that_raises_is_logged_and_others_are_called(result, caplog):
    called = []
    result.add_done_callback(lambda result: 1 / 0)
    result.add_done_callback(called.append)

    result.end(FAILED)

    assert called == [result]
    (record,) = caplog.records
    assert record.getMessage() == "producer-1: a callback of a publish's result raised"
    assert record.exc_info[0] is ZeroDivisionError


def test_callbacks_added_while_a_result_ends_are_each_called_once(waiters):
    for _ in range(300):
        result = waiters.new(time.monotonic() + LIMIT)
        called = []
        barrier = threading.Barrier(3)

        def add(result=result, called=called, barrier=barrier):
            barrier.wait(LIMIT)
            result.add_done_callback(called.append)

        adding = [threading.Thread(target=add) for _ in range(2)]
        for thread in adding:
            thread.start()
        barrier.wait(LIMIT)
        result.end(None)
        for thread in adding:
            thread.join(LIMIT)

        assert called == [result] * 2
    assert waiters.pending == {}


@pytest.mark.parametrize(("error", "value"), [(None, b"OK"), (FAILED, None)], ids=["OK", "error"])
def test_future_ends_as_the_result_does_and_is_not_cancelled(result, error, value):
    futures = [result.as_future(), result.as_future()]
    assert futures[0] is not futures[1]
    assert [type(future) for future in futures] == [Future] * 2
    assert [futures[0].cancel(), result.cancel(), result.cancelled(), futures[0].done()] == [False] * 4

    result.end(error)

    assert [future.exception(timeout=0) for future in futures] == [error] * 2
    if error is None:
        assert futures[0].result(timeout=0) == value
