"""Home: a thread is told apart from others, called from them, and known to have ended."""

import threading
import time

import gevent
import pytest
from gevent.event import Event

from gnsq.concurrency.home import Home, in_hub
from gnsq.concurrency.natives import get_ident
from gnsq.errors import NSQConnectionClosed, NSQException, NSQTimeout
from tests.helpers import wait_until

LIMIT = 10.0


def in_thread(function):
    """Call a function in a plain thread, while this hub runs; give back what it returns or raises."""
    outcomes = []

    def run():
        try:
            outcomes.append(function())
        except Exception as error:  # noqa: BLE001  # it is the test's
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: not thread.is_alive())
    return outcomes[0]


def ended_home():
    """That of a thread that has ended, and whose number another one may have."""
    return in_thread(Home)


def test_thread_is_at_home_and_others_are_elsewhere():
    home = Home()

    assert not home.elsewhere
    assert in_thread(lambda: home.elsewhere)
    assert in_thread(lambda: Home().elsewhere) is False


def test_thread_with_the_number_of_one_that_has_ended_is_elsewhere():
    home = ended_home()

    def look():
        return get_ident() == home.thread, home.elsewhere

    looks = [in_thread(look) for _ in range(50)]

    assert all(elsewhere for _, elsewhere in looks)


def test_call_at_home_is_just_made():
    assert Home().wait_for(LIMIT, get_ident) == get_ident()


def test_call_from_another_thread_runs_in_the_homes_hub():
    home = Home()

    assert in_thread(lambda: home.wait_for(LIMIT, get_ident)) == get_ident()


def test_what_a_call_raises_is_raised_where_it_is_waited_for():
    home = Home()

    assert isinstance(in_thread(lambda: home.wait_for(LIMIT, int, "x")), ValueError)


def test_what_takes_too_long_is_a_timeout():
    home, forever = Home(), Event()

    error = in_thread(lambda: home.wait_for(0.01, forever.wait))
    forever.set()

    assert isinstance(error, NSQTimeout)
    assert "not done within 0.01 s; does that hub run?" in str(error)


def test_calls_that_nobody_waits_for_are_made_and_their_errors_of_ours_logged(caplog):
    home = Home()
    made = []

    def fail():
        made.append(get_ident())
        raise NSQException("lost")

    with caplog.at_level("INFO", "gnsq"):
        in_thread(lambda: home.call(fail))
        wait_until(lambda: made)

    assert made == [get_ident()]
    assert "was not sent: lost" in caplog.text


def test_thread_that_has_ended_takes_no_calls():
    home = ended_home()

    with pytest.raises(NSQConnectionClosed, match="has ended"):
        home.soon(print)
    with pytest.raises(NSQConnectionClosed, match="has ended"):
        home.wait_for(LIMIT, print)


def test_hub_that_was_destroyed_takes_no_calls():
    homes = []
    looked = threading.Event()

    def run():
        homes.append(Home())
        gevent.get_hub().destroy(destroy_loop=True)
        looked.wait(LIMIT)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: homes)

    try:
        wait_until(lambda: _refuses(homes[0]))
    finally:
        looked.set()
        thread.join(LIMIT)


def _refuses(home):
    try:
        home.soon(int)
    except NSQConnectionClosed:
        return True
    return False


def test_thread_that_ends_meanwhile_holds_nobody_until_the_limit():
    homes, begun = [], threading.Event()

    def run():
        homes.append(Home())
        # Natively: its hub never runs.
        begun.wait(LIMIT)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: homes)
    began = time.monotonic()
    gevent.spawn_later(0.01, begun.set)

    with pytest.raises(NSQConnectionClosed, match="has ended"):
        homes[0].wait_for(LIMIT, print)

    assert time.monotonic() - began < LIMIT


def test_hub_itself_is_told_apart_from_its_greenlets_and_from_threads_without_one():
    told = []
    gevent.get_hub().loop.run_callback(lambda: told.append(in_hub()))
    wait_until(lambda: told)

    assert told == [True]
    assert not in_hub()
    assert in_thread(in_hub) is False
