import contextlib
import subprocess
import sys
import threading

import gevent
import pytest
from gevent._hub_local import get_hub_if_exists

from gnsq.concurrency.crossing import Crossing, Gate, Token
from gnsq.concurrency.hub_thread import HubThread

LIMIT = 30.0
KINDS = [pytest.param(False, id="plain thread"), pytest.param(True, id="thread with a hub")]


def in_thread(function, *, with_hub=False):
    """Run a function in a thread of its own; give back how to wait for what it gives."""
    outcome = Crossing()

    def run():
        if with_hub:
            gevent.get_hub()
        try:
            outcome.set(function())
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


def test_result_is_the_value():
    crossing = Crossing()

    crossing.set(7)

    assert crossing.wait(0)
    assert crossing.result() == 7


def test_result_raises_the_error():
    crossing = Crossing()

    crossing.set_exception(ValueError("no"))

    assert crossing.wait(0)
    with pytest.raises(ValueError, match="no"):
        crossing.result()


def test_result_before_anything_was_given_raises():
    with pytest.raises(RuntimeError, match="nothing was given yet"):
        Crossing().result()


def test_first_value_counts():
    crossing = Crossing()

    crossing.set(1)
    crossing.set(2)
    crossing.set_exception(ValueError("late"))

    assert crossing.result() == 1


def test_first_error_counts():
    crossing = Crossing()

    crossing.set_exception(ValueError("first"))
    crossing.set(2)

    with pytest.raises(ValueError, match="first"):
        crossing.result()


# --- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_hub", KINDS)
@pytest.mark.parametrize("timeout", [-1, 0, 0.01])
def test_wait_ends_at_its_timeout(with_hub, timeout):
    crossing = Crossing()

    waited = in_thread(lambda: crossing.wait(timeout), with_hub=with_hub)

    assert waited() is False


@pytest.mark.parametrize("with_hub", KINDS)
def test_wait_may_be_repeated_after_a_timeout_and_after_the_end(with_hub):
    crossing = Crossing()

    def wait():
        first = crossing.wait(0.001)
        crossing.set(1)
        return first, crossing.wait(LIMIT), crossing.wait(LIMIT)

    assert in_thread(wait, with_hub=with_hub)() == (False, True, True)


@pytest.mark.parametrize("with_hub", KINDS)
def test_value_wakes_who_waits(with_hub):
    crossing = Crossing()
    waiting = threading.Event()

    def wait():
        waiting.set()
        return crossing.wait(LIMIT) and crossing.result()

    result = in_thread(wait, with_hub=with_hub)
    assert waiting.wait(LIMIT)
    crossing.set(7)

    assert result() == 7


def test_plain_thread_gets_no_hub():
    def wait():
        crossing = Crossing()
        crossing.wait(0.001)
        return get_hub_if_exists()

    assert in_thread(wait)() is None


def test_other_greenlets_of_the_hub_run_meanwhile():
    crossing = Crossing()

    def wait():
        greenlet = gevent.spawn(crossing.set, "by a greenlet")
        waited = crossing.wait(LIMIT)
        greenlet.join()
        return waited and crossing.result()

    assert in_thread(wait, with_hub=True)() == "by a greenlet"


def test_timeout_of_gevent_interrupts_the_wait():
    def wait():
        with gevent.Timeout(0.01, False):
            Crossing().wait(LIMIT)
            return "waited"
        return "interrupted"

    assert in_thread(wait, with_hub=True)() == "interrupted"


def test_value_for_a_hub_that_is_gone_is_nobodys():
    crossing = Crossing()
    in_thread(lambda: crossing.wait(0.001), with_hub=True)()

    crossing.set(1)

    assert crossing.result() == 1


def test_value_that_comes_while_the_wait_begins_is_seen(monkeypatch):
    crossing = Crossing()

    def door():
        crossing.set(1)

    monkeypatch.setattr("gnsq.concurrency.crossing.door", door)

    assert in_thread(lambda: crossing.wait(LIMIT), with_hub=True)()


INTERRUPTED = """
import os, signal, sys, threading
import gevent
from gnsq.concurrency.crossing import Crossing

main = threading.main_thread().ident

def interrupt():
    while sys._current_frames()[main].f_code is not Crossing._wait_without_hub.__code__:
        pass
    os.kill(os.getpid(), signal.SIGINT)

try:
    {start}
    Crossing().wait(60)
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
def test_wait_of_the_main_thread_is_interrupted_from_the_keyboard(start):
    code = INTERRUPTED.format(start=start)

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT)

    assert (done.stdout, done.returncode) == ("interrupted\n", 0)


# --- many at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_hub", KINDS)
def test_no_wake_up_is_lost(with_hub):
    with HubThread("test") as hub:

        def cross():
            got = []
            for number in range(500):
                crossing = Crossing()
                hub.soon(crossing.set, number)
                assert crossing.wait(LIMIT)
                got.append(crossing.result())
            return got

        results = [in_thread(cross, with_hub=with_hub) for _ in range(8)]

        assert [result() for result in results] == [list(range(500))] * 8


def test_value_and_timeout_at_the_same_time_lose_nothing():
    with HubThread("test") as hub:

        def cross():
            for number in range(300):
                crossing = Crossing()
                hub.soon(crossing.set, number)
                while not crossing.wait(0.0001):
                    pass
                assert crossing.result() == number
            return "done"

        results = [in_thread(cross, with_hub=with_hub) for with_hub in [False, True] * 2]

        assert [result() for result in results] == ["done"] * 4


# --- Token ------------------------------------------------------------------------------------------------------------


def test_token_goes_to_the_first_who_claims_it():
    token = Token()

    assert [token.claim() for _ in range(3)] == [True, False, False]


def test_token_goes_to_one_of_many_threads():
    tokens = [Token() for _ in range(2000)]
    begin = threading.Barrier(8)

    def claim():
        begin.wait(LIMIT)
        return [token.claim() for token in tokens]

    with contextlib.ExitStack() as stack:
        # Or each thread would claim all in one go.
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        claims = [result() for result in [in_thread(claim) for _ in range(8)]]

    assert [sum(claimed) for claimed in zip(*claims, strict=True)] == [1] * 2000


@pytest.mark.parametrize("with_hub", KINDS)
def test_wait_without_an_end_is_one(with_hub):
    crossing = Crossing()
    result = in_thread(lambda: crossing.wait(float("inf")), with_hub=with_hub)

    crossing.set(None)

    assert result()


# --- gates ------------------------------------------------------------------------------------------------------------


def test_gate_lets_those_go_on_who_wait_and_who_come_later():
    gate = Gate()
    waiting = gevent.spawn(gate.wait, LIMIT)
    gevent.sleep(0)

    assert not gate.wait(0)
    gate.open()

    assert waiting.get(timeout=LIMIT)
    assert gate.wait(0)
