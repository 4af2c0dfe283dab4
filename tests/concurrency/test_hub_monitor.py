"""StallWatch: one warning for each native stall, none for a hub that runs, and no trace behind it."""

import logging
import subprocess
import sys
import textwrap
import threading
import time

import gevent
import pytest

from gnsq.concurrency import hub_monitor
from gnsq.concurrency.hub_monitor import StallWatch
from tests.helpers import wait_until

BEFORE = set()


def watchers():
    """Threads that the test has started."""
    return [thread for thread in threading.enumerate() if thread.name == "gnsq-stalls" and thread not in BEFORE]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Hide the watches of connections that are none of this test's."""
    BEFORE.clear()
    BEFORE.update(watchers())
    monkeypatch.setattr(hub_monitor, "_here", type(hub_monitor._here)())


@pytest.fixture
def watch():
    made = StallWatch.acquire()
    yield made
    made.release()
    wait_until(lambda: not watchers())


@pytest.fixture
def quick(monkeypatch):
    """Tell of stalls above 0.2 s; to be asked for before the watch."""
    monkeypatch.setattr(hub_monitor, "STALL", 0.2)
    monkeypatch.setattr(hub_monitor, "BEAT", 0.05)


def hold_the_hub():
    time.sleep(0.8)  # natively: this is the stall


def test_stall_is_logged_once_with_the_stack_that_holds_the_hub_and_its_end(quick, watch, caplog):
    gevent.spawn(hold_the_hub).join()
    wait_until(lambda: len(caplog.records) == 2)

    began, ended = caplog.records
    assert {(record.name, record.levelno) for record in caplog.records} == {
        ("gnsq.concurrency.hub_monitor", logging.WARNING)
    }
    assert "has not come round for 0." in began.message
    assert "in hold_the_hub\n    time.sleep(0.8)" in began.message
    assert "nothing of this process ran" not in began.message
    assert began.threadName == "gnsq-stalls"
    assert "runs again, after" in ended.message


def test_stall_in_the_main_greenlet_is_told_of(quick, watch, caplog):
    hold_the_hub()
    wait_until(lambda: len(caplog.records) == 2)

    assert "in hold_the_hub" in caplog.records[0].message


def test_busy_hub_is_seen(watch):
    def spin():
        while True:
            gevent.sleep(0)

    spinners = [gevent.spawn(spin) for _ in range(100)]
    for _ in range(3):
        before = watch._seen
        wait_until(lambda before=before: watch._seen > before)
    gevent.killall(spinners)


class Script:
    """The thread's lock and clock: each wait moves the time, by what was asked for unless the test says more."""

    def __init__(self, watch, monkeypatch):
        self.watch = watch
        self.time = self.seen = 1000.0
        self.waits = []
        monkeypatch.setattr(hub_monitor, "_monotonic", lambda: self.time)

    def run(self, *steps):
        """Let the thread's function run here; each step is (seconds more than asked for, whether the hub beats)."""
        self.steps = list(steps)
        self.watch._seen = self.time
        self.watch._run(self)

    def acquire(self, timeout):
        if not self.steps:
            return True
        more, beats = self.steps.pop(0)
        self.waits.append(timeout)
        self.time += timeout + more
        if beats:
            self.watch._seen = self.time - 0.125
        return False


@pytest.fixture
def script(watch, monkeypatch):
    # Its own thread would read the scripted clock. The lock stays taken: by that thread, in its end.
    watch._stop.release()
    wait_until(lambda: not watchers())
    watch._timer.stop()
    return Script(watch, monkeypatch)


def test_hub_that_comes_round_is_not_told_of(script, caplog):
    script.run(*[(0, True)] * 50)

    assert caplog.records == []
    # Looked at when a stall would be a second old, no sooner: about once a second.
    assert script.waits[1:] == [0.875] * 49


def test_stall_that_goes_on_is_told_of_once(script, caplog):
    script.run((0, False), *[(0, False)] * 20, (0, True), (0, True))

    assert [record.message.partition(";")[0] for record in caplog.records] == [
        f"the hub of thread {threading.get_native_id()} has not come round for 1.0 s",
        f"the hub of thread {threading.get_native_id()} runs again, after 6.1 s",
    ]


def test_each_stall_is_told_of(script, caplog):
    script.run((0, False), (0, True), (0, False), (0, True))

    assert len(caplog.records) == 4


def test_stall_that_held_the_whole_process_is_marked(script, caplog):
    script.run((9, False), (0, True))

    assert "come round for 10.0 s; until" in caplog.records[0].message
    assert "(nothing of this process ran for 9.0 s of it, so the stack may be of afterwards)" in caplog.text


def test_release_during_a_stall_ends_it(script, caplog):
    script.run((0, False), (0, False))

    assert [record.message[-17:] for record in caplog.records[1:]] == ["gain, after 1.2 s"]


def test_watch_of_a_thread_without_a_frame_ends(script, caplog, monkeypatch):
    monkeypatch.setattr(script.watch, "_thread", -1)

    script.run((0, False), (0, False))

    assert caplog.records == []
    assert len(script.steps) == 1


def test_hub_that_ends_during_a_stall_ends_the_watch(script, caplog, monkeypatch):
    def acquire(timeout):
        script.time += timeout
        if caplog.records:
            monkeypatch.setattr(script.watch, "_witness", lambda: None)
        return False

    script.acquire = acquire
    script.run()

    assert len(caplog.records) == 1


def test_connections_of_a_hub_share_one_thread(watch):
    (thread,) = watchers()
    second = StallWatch.acquire()
    assert second is watch
    assert watchers() == [thread]

    second.release()

    assert thread.is_alive()


def test_thread_ends_with_the_last_release_and_comes_back():
    for _ in range(2):
        watch = StallWatch.acquire()
        assert len(watchers()) == 1
        watch.release()
        wait_until(lambda: not watchers())


def test_other_thread_has_a_watch_of_its_own(watch):
    got = []

    def other():
        mine = StallWatch.acquire()
        got.append(mine)
        mine.release()
        gevent.get_hub().destroy(True)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()

    assert got[0] is not watch


@pytest.mark.parametrize("destroy", [True, False], ids=["hub destroyed", "thread ended"])
def test_thread_that_ends_without_release_is_not_watched_any_more(quick, caplog, destroy):
    forgotten = []

    def other():
        forgotten.append(StallWatch.acquire())
        if destroy:
            gevent.get_hub().destroy(True)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    wait_until(lambda: not watchers())

    assert caplog.records == []


def test_hub_destroyed_and_made_anew_has_a_new_watch(quick):
    got = []

    def other():
        got.append(StallWatch.acquire())
        gevent.get_hub().destroy(True)
        got.append(StallWatch.acquire())
        got[1].release()
        gevent.get_hub().destroy(True)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    wait_until(lambda: not watchers())

    assert got[0] is not got[1]


def test_no_thread_to_be_had_is_no_error(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    StallWatch.acquire().release()


# --- in a process of its own

PREAMBLE = """
    import logging, os, sys, threading, time
    import gevent
    from gevent import monkey
    from gnsq.concurrency import hub_monitor
    from gnsq.concurrency.hub_monitor import StallWatch
    hub_monitor.STALL, hub_monitor.BEAT = 0.2, 0.05
    logging.basicConfig(format="%(levelname)s %(message)s")
    told = []
    hub_monitor.logger.addFilter(lambda record: told.append(record) or True)
    def wait_until_told_of_the_end():
        with gevent.Timeout(30):
            while len(told) < 2:
                gevent.sleep(0.01)
    native_sleep = monkey.get_original("time", "sleep")
    def hold_the_hub():
        native_sleep(0.8)
"""


def run(code, before=""):
    """Run a program to its end; gives what it wrote."""
    text = textwrap.dedent(before) + textwrap.dedent(PREAMBLE) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_process_with_a_watched_hub_ends():
    assert run("StallWatch.acquire(); gevent.sleep(0.01)") == ("", "")


def test_watch_does_not_keep_the_hub_from_ending():
    assert run("StallWatch.acquire(); print(gevent.get_hub().join(timeout=30))") == ("True\n", "")


PATCH = "from gevent import monkey; monkey.patch_all()\n"


@pytest.mark.parametrize("before", ["", PATCH], ids=["plain", "patched"])
def test_patched_or_not_a_stall_is_told_of(before):
    _, told = run(
        """
        watch = StallWatch.acquire()
        gevent.spawn(hold_the_hub).join()
        wait_until_told_of_the_end()
        watch.release()
        """,
        before,
    )

    assert told.count("WARNING") == 2
    assert told.count("in hold_the_hub") == 1


@pytest.mark.parametrize("before", ["", PATCH], ids=["plain", "patched"])
def test_stall_inside_a_log_handler_is_told_of_when_it_lets_go(before):
    _, told = run(
        """
        class Slow(logging.StreamHandler):
            def emit(self, record):
                if record.name == "slow":
                    hold_the_hub()
                super().emit(record)
        logging.getLogger().handlers[:] = [Slow()]
        watch = StallWatch.acquire()
        gevent.spawn(logging.getLogger("slow").warning, "slow").join()
        wait_until_told_of_the_end()
        watch.release()
        """,
        before,
    )

    assert "in hold_the_hub" in told


def test_fork_leaves_the_child_to_begin_anew():
    written, told = run(
        """
        watch = StallWatch.acquire()
        child = os.fork()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(threading.enumerate()))
            sys.exit()
        gevent.reinit()
        assert threading.active_count() == 1
        watch.release()
        own = StallWatch.acquire()
        assert own is not watch
        assert threading.active_count() == 2
        gevent.spawn(hold_the_hub).join()
        wait_until_told_of_the_end()
        own.release()
        """
    )

    assert written == "0 2\n"
    assert told.count("in hold_the_hub") == 1
