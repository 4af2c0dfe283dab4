"""HubMonitor: a warning for each block, none for a hub that runs, and an end without leftovers."""

import logging
import textwrap
import threading

import gevent
import pytest

from gnsq.concurrency.hub_monitor import HubMonitor
from tests.kit import run_program, wait_until

BEFORE = set()
BLOCKED_AFTER = 0.2


def monitor_threads():
    """Threads that the test has started."""
    return [thread for thread in threading.enumerate() if thread.name == "gnsq-hub-monitor" and thread not in BEFORE]


@pytest.fixture(autouse=True)
def before(caplog):
    caplog.set_level(logging.WARNING, "gnsq.concurrency.hub_monitor")
    BEFORE.clear()
    BEFORE.update(monitor_threads())


@pytest.fixture
def monitor():
    """The monitor of this thread, in place of one that connections of other tests use."""
    HubMonitor(blocked_after=BLOCKED_AFTER)
    made = HubMonitor.acquire()
    yield made
    made.release()
    wait_until(lambda: not monitor_threads())


def test_heartbeat_of_a_busy_hub_is_seen(monitor):
    def spin():
        while True:
            gevent.sleep(0)

    spinners = [gevent.spawn(spin) for _ in range(100)]
    for _ in range(3):
        before = monitor._last_heartbeat
        wait_until(lambda before=before: monitor._last_heartbeat > before)
    gevent.killall(spinners)


class Script:
    """The thread's lock and clock: each wait moves the time by its timeout, and by more if the test says so."""

    def __init__(self):
        self.time = 1000.0
        self.waits = []
        self.monitor = HubMonitor(blocked_after=1.0, now=lambda: self.time)

    def run(self, *steps):
        """Run the thread's function here; each step is (seconds more than asked for, whether the hub runs)."""
        self.steps = list(steps)
        self.monitor._last_heartbeat = self.time
        self.monitor._run(self)

    def acquire(self, timeout):
        if not self.steps:
            return True
        more, beats = self.steps.pop(0)
        self.waits.append(timeout)
        self.time += timeout + more
        if beats:
            self.monitor._last_heartbeat = self.time - 0.125
        return False


@pytest.fixture
def script():
    made = Script()
    yield made
    # Only a monitor that was acquired is taken off when it is released.
    HubMonitor.acquire().release()


def test_each_block_is_logged_once_however_long_it_is(script, caplog):
    script.run((0, False), *[(0, False)] * 20, (0, True), (0, True), (0, False), (0, True))

    assert len(caplog.records) == 4
    assert [record.message.partition(";")[0] for record in caplog.records[:2]] == [
        f"the hub of thread {threading.get_native_id()} has been blocked for 1.0 s",
        f"the hub of thread {threading.get_native_id()} runs again, after 6.1 s",
    ]


def test_block_of_the_whole_process_is_marked(script, caplog):
    script.run((9, False), (0, True))

    assert "been blocked for 10.0 s; until" in caplog.records[0].message
    assert "(no thread of this process ran for 9.0 s of it, so the stack may be a later one)" in caplog.text


def test_release_during_a_block_ends_the_thread(script, caplog):
    script.run((0, False), (0, False))

    assert [record.message[-17:] for record in caplog.records[1:]] == ["gain, after 1.2 s"]


def test_block_of_a_thread_that_has_just_ended_is_not_logged(script, caplog):
    script.monitor._thread = -1

    script.run((0, False))

    assert "has been blocked" not in caplog.text


def test_hub_that_ends_during_a_block_ends_the_monitor(script, caplog):
    def acquire(timeout):
        script.time += timeout
        if caplog.records:
            script.monitor._token = lambda: None
        return False

    script.acquire = acquire
    script.run()

    assert len(caplog.records) == 1


def test_thread_ends_with_the_last_release_and_comes_back():
    for _ in range(2):
        HubMonitor()
        monitor = HubMonitor.acquire()
        assert len(monitor_threads()) == 1
        monitor.release()
        wait_until(lambda: not monitor_threads())


def test_each_hub_has_a_monitor_of_its_own(monitor):
    got = [monitor]

    def other():
        got.append(HubMonitor.acquire())
        gevent.get_hub().destroy(True)
        got.append(HubMonitor.acquire())
        got[-1].release()
        gevent.get_hub().destroy(True)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()

    assert len(set(got)) == 3


@pytest.mark.parametrize("destroy", [True, False], ids=["hub destroyed", "thread ended"])
def test_thread_that_ends_without_release_is_not_monitored(caplog, destroy):
    forgotten = []

    def other():
        HubMonitor(blocked_after=BLOCKED_AFTER)
        forgotten.append(HubMonitor.acquire())
        if destroy:
            gevent.get_hub().destroy(True)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    wait_until(lambda: not monitor_threads())

    assert caplog.records == []


def test_monitor_without_a_thread_is_no_error(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    HubMonitor()

    HubMonitor.acquire().release()


# --- in a process of its own

PREAMBLE = """
    import logging, os, sys, threading, time
    import gevent
    from gevent import monkey
    from gnsq.concurrency import hub_monitor
    from gnsq.concurrency.hub_monitor import HubMonitor
    HubMonitor(blocked_after=0.2)
    logging.basicConfig(format="%(levelname)s %(message)s")
    logged = []
    hub_monitor.logger.addFilter(lambda record: logged.append(record) or True)
    def is_logged():
        return any("in hold_the_hub" in record.getMessage() for record in logged)
    def wait_until_the_end_is_logged():
        with gevent.Timeout(30):
            # A busy machine may cause other blocks.
            while not is_logged() or "in hold_the_hub" in logged[-1].getMessage():
                gevent.sleep(0.01)
    native_sleep = monkey.get_original("time", "sleep")
    def hold_the_hub():
        while not is_logged():
            native_sleep(0.01)
"""


def run(code, before=""):
    """Run a program; returns its output."""
    text = textwrap.dedent(before) + textwrap.dedent(PREAMBLE) + textwrap.dedent(code)
    done = run_program(text, flags=())
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.subprocess
def test_monitor_does_not_keep_the_hub_running():
    assert run("HubMonitor.acquire(); print(gevent.get_hub().join(timeout=30))") == ("True\n", "")


PATCH = "from gevent import monkey; monkey.patch_all()\n"


@pytest.mark.subprocess
def test_block_inside_a_log_handler_is_logged_afterwards():
    _, logged = run(
        """
        class Slow(logging.StreamHandler):
            def emit(self, record):
                if record.name == "slow":
                    hold_the_hub()
                super().emit(record)
        logging.getLogger().handlers[:] = [Slow()]
        monitor = HubMonitor.acquire()
        gevent.spawn(logging.getLogger("slow").warning, "slow").join()
        wait_until_the_end_is_logged()
        monitor.release()
        """,
        PATCH,
    )

    assert "in hold_the_hub" in logged


@pytest.mark.subprocess
def test_forked_child_has_a_monitor_of_its_own():
    written, logged = run(
        """
        monitor = HubMonitor.acquire()
        child = os.fork()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(threading.enumerate()))
            sys.exit()
        gevent.reinit()
        assert threading.active_count() == 1
        monitor.release()
        HubMonitor(blocked_after=0.2)
        own = HubMonitor.acquire()
        gevent.spawn(hold_the_hub).join()
        wait_until_the_end_is_logged()
        own.release()
        """
    )

    assert written == "0 2\n"
    assert logged.count("in hold_the_hub") == 1
    assert "WARNING the hub of thread" in logged
    assert "runs again, after" in logged
