"""Futures, calls into another thread's hub, and the owner thread of a hub."""

import contextlib
import itertools
import sys
import threading
import time

import gevent
import pytest

from gnsq.concurrency.hub_thread import HubThread
from gnsq.concurrency.threads import CrossThreadFuture, Once, OwnerThread, get_ident, is_hub_greenlet
from gnsq.errors import NSQConnectionClosed, NSQException
from tests.kit import run_program, wait_until

LIMIT = 30.0
KINDS = [pytest.param(False, id="plain thread"), pytest.param(True, id="thread with a hub")]


def in_thread(function, *, with_hub=False):
    """Run a function in a new thread; returns a function that waits for its result."""
    outcome = CrossThreadFuture()

    def run():
        if with_hub:
            gevent.get_hub()
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001  # it is the test's
            outcome.set_exception(error)
        finally:
            if with_hub:
                gevent.get_hub().destroy(destroy_loop=True)

    thread = threading.Thread(target=run)
    thread.start()

    def result():
        assert outcome.wait(LIMIT)
        thread.join(LIMIT)
        return outcome.result()

    return result


# --- what was given before the wait -----------------------------------------------------------------------------------


def test_first_result_counts():
    future, failed = CrossThreadFuture(), CrossThreadFuture()

    future.set_result(7)
    future.set_result(2)
    future.set_exception(ValueError("late"))
    failed.set_exception(ValueError("first"))
    failed.set_result(2)

    assert future.wait(0)
    assert future.result() == 7
    assert failed.wait(0)
    with pytest.raises(ValueError, match="first"):
        failed.result()


def test_result_raises_before_the_future_is_done():
    with pytest.raises(RuntimeError, match="the future has no result yet"):
        CrossThreadFuture().result()


# --- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_hub", KINDS)
def test_wait_may_be_repeated_after_a_timeout_and_after_the_end(with_hub):
    future = CrossThreadFuture()

    def wait():
        first = future.wait(0.001)
        future.set_result(1)
        return first, future.wait(LIMIT), future.wait(LIMIT)

    assert in_thread(wait, with_hub=with_hub)() == (False, True, True)


def test_result_for_a_destroyed_hub_is_kept():
    future = CrossThreadFuture()
    in_thread(lambda: future.wait(0.001), with_hub=True)()

    future.set_result(1)

    assert future.result() == 1


@pytest.mark.parametrize("call", range(1, 15))
def test_result_set_at_any_call_while_the_wait_begins_is_seen(call):
    future = CrossThreadFuture()
    calls = itertools.count(1)

    def set_at_call(frame, event, argument):
        if next(calls) == call:
            future.set_result(1)

    def wait():
        # Sets it if the wait makes fewer calls before other greenlets run.
        gevent.spawn(future.set_result, 1)
        sys.setprofile(set_at_call)
        try:
            return future.wait(LIMIT)
        finally:
            sys.setprofile(None)

    assert in_thread(wait, with_hub=True)()


INTERRUPTED = """
import os, signal, sys, threading
import gevent
from gnsq.concurrency.threads import CrossThreadFuture

main = threading.main_thread().ident

def interrupt():
    while sys._current_frames()[main].f_code is not CrossThreadFuture.wait.__code__:
        pass
    os.kill(os.getpid(), signal.SIGINT)

try:
    {start}
    CrossThreadFuture().wait(60)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("threading.Thread(target=interrupt, daemon=True).start()", id="plain thread"),
        pytest.param("gevent.spawn(os.kill, os.getpid(), signal.SIGINT)", id="thread with a hub"),
    ],
)
@pytest.mark.subprocess
def test_wait_of_the_main_thread_is_interrupted_from_the_keyboard(start):
    code = INTERRUPTED.format(start=start)

    done = run_program(code)

    assert (done.stdout, done.returncode) == ("interrupted\n", 0)


# --- many at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [LIMIT, 0.0001], ids=["waits", "result at the time of the timeout"])
def test_every_wait_of_many_threads_ends(timeout):
    with HubThread("test") as hub:

        def cross():
            for number in range(300):
                future = CrossThreadFuture()
                hub.call_soon(future.set_result, number)
                while not future.wait(timeout):
                    pass
                assert future.result() == number
            return "done"

        results = [in_thread(cross, with_hub=with_hub) for with_hub in [False, True] * 4]

        assert [result() for result in results] == ["done"] * 8


# --- Once -------------------------------------------------------------------------------------------------------------


def test_once_is_acquired_by_one_of_many_threads():
    tokens = [Once() for _ in range(2000)]
    begin = threading.Barrier(8)

    def claim():
        begin.wait(LIMIT)
        return [token.acquire() for token in tokens]

    with contextlib.ExitStack() as stack:
        # Or each thread would claim all in one go.
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        claims = [result() for result in [in_thread(claim) for _ in range(8)]]

    assert [sum(claimed) for claimed in zip(*claims, strict=True)] == [1] * 2000


# --- OwnerThread ------------------------------------------------------------------------------------------------------


def owner_thread_that_has_ended():
    """An owner thread that has ended; a new thread may have its ident."""
    return in_thread(OwnerThread)()


def test_thread_that_reuses_an_ident_is_not_the_owner_thread():
    owner = owner_thread_that_has_ended()

    def look():
        return get_ident() == owner.ident, owner.is_current

    looks = [in_thread(look)() for _ in range(50)]

    assert not any(is_current for _, is_current in looks)


def test_spawn_logs_an_nsq_exception(caplog):
    owner = OwnerThread()
    made = []

    def fail():
        made.append(get_ident())
        raise NSQException("lost")

    with caplog.at_level("INFO", "gnsq"):
        in_thread(lambda: owner.spawn(fail))
        wait_until(lambda: made)

    assert made == [get_ident()]
    assert "was not sent: lost" in caplog.text


def test_owner_thread_that_has_ended_refuses_calls():
    owner = owner_thread_that_has_ended()

    with pytest.raises(NSQConnectionClosed, match="has ended"):
        owner.call_soon(print)
    with pytest.raises(NSQConnectionClosed, match="has ended"):
        owner.call_and_wait(LIMIT, print)


def test_owner_thread_with_a_destroyed_hub_refuses_calls():
    def call():
        owner = OwnerThread()
        gevent.get_hub().destroy(destroy_loop=True)
        owner.call_soon(int)

    with pytest.raises(NSQConnectionClosed, match="has ended"):
        in_thread(call)()


def test_call_and_wait_ends_when_the_owner_thread_ends():
    owners, begun = [], threading.Event()

    def run():
        owners.append(OwnerThread())
        # Natively: its hub never runs.
        begun.wait(LIMIT)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: owners)
    began = time.monotonic()
    gevent.spawn_later(0.01, begun.set)

    with pytest.raises(NSQConnectionClosed, match="has ended"):
        owners[0].call_and_wait(LIMIT, print)

    assert time.monotonic() - began < LIMIT


def test_is_hub_greenlet_is_true_in_callbacks_of_the_hub_only():
    results = []
    gevent.get_hub().loop.run_callback(lambda: results.append(is_hub_greenlet()))
    wait_until(lambda: results)

    assert results == [True]
    assert not is_hub_greenlet()
    assert in_thread(is_hub_greenlet)() is False
