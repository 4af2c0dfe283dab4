import contextlib
import gc
import os
import sys
import threading

import gevent
import greenlet
import pytest
from gevent._hub_local import get_hub_if_exists

from gnsq.concurrency.hub_thread import HubThread
from gnsq.concurrency.threads import HubCallQueue, hub_call_queue
from gnsq.errors import NSQConnectionClosed
from tests.concurrency.test_threads import in_thread
from tests.kit import run_program, wait_until

LIMIT = 30.0


@pytest.fixture
def hub():
    with HubThread("test") as hub:
        yield hub


def start_call(hub, function=lambda: gevent.sleep(LIMIT)):
    """Call a function from a plain thread, and wait until it runs; returns as in_thread() does."""
    running = threading.Event()

    def run():
        running.set()
        return function()

    outcome = in_thread(lambda: hub.call(run))
    assert running.wait(LIMIT)
    return outcome


# --- call -------------------------------------------------------------------------------------------------------------


def test_call_runs_on_the_hubs_thread(hub):
    assert hub.call(threading.get_ident) != threading.get_ident()
    assert hub.call(threading.current_thread).name == "test"
    assert hub.call(lambda a, b: a + b, 1, b=2) == 3
    assert not hub.is_current
    assert hub.call(lambda: gevent.spawn(lambda: hub.is_current).get())


def test_call_from_a_plain_thread_makes_no_hub_there(hub):
    assert in_thread(lambda: (hub.call(int), get_hub_if_exists()))() == (0, None)


def test_call_lets_other_greenlets_of_the_callers_hub_run(hub):
    done = threading.Event()
    gevent.spawn(done.set)

    assert hub.call(lambda: done.wait(LIMIT))


def test_call_that_is_interrupted_is_killed(hub):
    begun, ended = threading.Event(), threading.Event()

    def work():
        begun.set()
        try:
            gevent.sleep(LIMIT)
        finally:
            ended.set()

    calling = gevent.spawn(hub.call, work)
    wait_until(begun.is_set)
    calling.kill()

    assert ended.wait(LIMIT)


def test_call_whose_greenlet_is_killed_raises(hub):
    with pytest.raises(NSQConnectionClosed, match="the call was killed in its thread"):
        hub.call(lambda: greenlet.getcurrent().kill())


# --- soon -------------------------------------------------------------------------------------------------------------


def test_call_soon_calls_in_order_and_goes_on_after_a_function_that_raises(hub, capfd):
    got = []

    for number in range(100):
        hub.call_soon(got.append, number)
        hub.call_soon(int, "x")

    assert hub.call(int) == 0
    assert got == list(range(100))
    assert "ValueError" in capfd.readouterr().err


# --- stop -------------------------------------------------------------------------------------------------------------


def test_stop_ends_the_thread_and_may_be_called_twice():
    before = threading.active_count()
    hub = HubThread("test")

    hub.stop()
    hub.stop()

    assert threading.active_count() <= before


@pytest.mark.parametrize("name", ["call", "call_soon"])
def test_stopped_thread_refuses_calls(name):
    hub = HubThread("test")
    hub.stop()

    with pytest.raises(RuntimeError, match="thread test was stopped"):
        getattr(hub, name)(lambda: None)


def test_call_that_races_with_the_end_of_the_thread_is_refused():
    hub = HubThread("test")
    hub.stop()
    # As if the caller had read the flag just before.
    hub._stopped = False

    with pytest.raises(RuntimeError, match="thread test was stopped"):
        hub.call(int)


def test_stop_in_the_thread_itself_does_not_wait():
    hub = HubThread("test")

    hub.call(hub.stop)
    hub.stop()

    with pytest.raises(RuntimeError, match="was stopped"):
        hub.call(int)


def test_calls_that_wait_while_the_thread_is_stopped_raise():
    hub = HubThread("test")
    outcomes = [start_call(hub) for _ in range(3)]

    hub.stop()

    for outcome in outcomes:
        with pytest.raises(RuntimeError, match="thread test was stopped"):
            outcome()


def test_call_that_does_not_end_with_the_thread_raises():
    hub = HubThread("test")

    def stay():
        while True:
            with contextlib.suppress(gevent.GreenletExit):
                gevent.sleep(LIMIT)

    outcome = start_call(hub, stay)
    hub.stop(0.1)

    with pytest.raises(RuntimeError, match="thread test was stopped"):
        outcome()


def test_greenlets_are_killed_and_may_still_use_the_thread():
    hub = HubThread("test")
    ended = []

    def work():
        try:
            gevent.sleep(LIMIT)
        finally:
            gevent.sleep(0)
            hub.call_soon(int)
            ended.append(hub.call(gevent.spawn(lambda: hub.is_current).get))

    hub.call(lambda: [gevent.spawn(work) for _ in range(2)] and gevent.sleep(0))
    hub.stop()

    assert ended == [True, True]


def test_stop_does_not_wait_for_a_blocked_thread_beyond_its_timeout(caplog):
    hub = HubThread("test")
    release = threading.Event()
    outcome = start_call(hub, lambda: release.wait(LIMIT))

    hub.stop(0.01)
    release.set()
    hub.stop()

    assert caplog.messages == ["thread test has not ended within 0.01 s"]
    assert outcome() is True


def test_thread_that_dies_ends_what_waits_for_it(caplog, capfd):
    hub = HubThread("test")
    outcome = start_call(hub)

    hub.call_soon(sys.exit, "died")

    with pytest.raises(RuntimeError, match="thread test was stopped"):
        outcome()
    hub.stop()
    assert caplog.messages == ["thread test has failed"]


def test_thread_that_fails_to_start_raises(monkeypatch, caplog):
    # gevent's own option: there is no other way to let gevent fail without harm to this process.
    monkeypatch.setattr(gevent.config, "loop", int)

    with pytest.raises(RuntimeError, match="thread test was stopped"):
        HubThread("test")

    assert caplog.messages == ["thread test has failed"]


def left_over():
    gc.collect()
    things = gc.get_objects()
    kinds = {kind: sum(issubclass(type(thing), kind) for thing in things) for kind in [greenlet.greenlet, HubCallQueue]}
    return {**kinds, "descriptors": len(os.listdir("/proc/self/fd"))}


def test_stopped_threads_leave_no_objects_and_descriptors():
    def live():
        with HubThread("test") as hub:
            # Greenlets that have not begun, that wait, and one that is never started.
            hub.call(lambda: (gevent.spawn(gevent.sleep, LIMIT), gevent.sleep(0)))
            hub.call(lambda: (gevent.Greenlet(int), gevent.spawn(gevent.sleep, LIMIT), hub_call_queue()))

    live()
    gc.collect()
    # Leave out what other tests have made: it may be much, and each end of a thread looks through all objects.
    gc.freeze()
    before = left_over()
    for _ in range(30):
        live()

    after = left_over()
    # Each thread would leave one of something.
    assert {kind: count for kind, count in after.items() if count >= before[kind] + 10} == {}


# --- many threads, patched --------------------------------------------------------------------------------------------

STRESS = """
import sys
from gevent import monkey; monkey.patch_all()
import gevent
from gevent import monkey
from gevent._hub_local import get_hub_if_exists
from gnsq.concurrency.threads import CrossThreadFuture
from gnsq.concurrency.hub_thread import HubThread

start_new_thread = monkey.get_original("_thread", "start_new_thread")
get_ident = monkey.get_original("_thread", "get_ident")


def work(done, with_hub):
    if with_hub:
        gevent.get_hub()
    try:
        good = [hub.call(lambda number=number: number) for number in range(500)] == list(range(500))
        done.set_result((good, get_hub_if_exists() is not None))
    except BaseException as error:
        done.set_result(error)
    finally:
        if with_hub:
            gevent.get_hub().destroy(destroy_loop=True)


with HubThread("test") as hub:
    assert hub.call(get_ident) != get_ident()
    for with_hub in [False, True]:
        futures = [CrossThreadFuture() for _ in range(8)]
        for future in futures:
            start_new_thread(work, (future, with_hub))
        # This thread has a hub, or gets one: its greenlets call, too.
        greenlets = [gevent.spawn(lambda: [hub.call(int) for _ in range(50)]) for _ in range(8)]
        gevent.joinall(greenlets, raise_error=True)
        for future in futures:
            assert future.wait(30)
            assert future.result() == (True, with_hub), future.result()
print("done")
"""


@pytest.mark.subprocess
def test_threads_and_greenlets_lose_no_wake_up():
    done = run_program(STRESS, flags=())

    assert (done.stdout, done.stderr) == ("done\n", "")


def test_thread_whose_caller_is_interrupted_before_it_has_begun_ends():
    ended = threading.Event()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(LIMIT)  # the thread begins when this one waits, which is after the kill
    try:
        caller = gevent.spawn(HubThread, "unwanted", ended.set, is_known=False)
        gevent.sleep(0)
        caller.kill(block=False)
        gevent.sleep(0)
    finally:
        sys.setswitchinterval(interval)

    assert ended.wait(LIMIT)
