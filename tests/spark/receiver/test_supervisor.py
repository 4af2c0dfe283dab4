"""The supervisor: children that die, hang, or do not stop. A child is a few lines of Python here."""

import logging
import os
import re
import signal
import sys

import gevent
import gevent.signal
import pytest
from gevent.event import Event

from gnsq.spark.receiver.supervisor import Supervisor, SupervisorTimes, ended_with
from tests.spark.helpers import wait_for

pytestmark = pytest.mark.subprocess

TIMES = SupervisorTimes(restart_initial=0.01, restart_maximum=0.05, steady=60, check_interval=0.05, hung=30, stop=20)
# Each child has set this status for its end by SIGTERM before it writes its process id.
STARTS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit({status}))
with open({starts!r}, "a") as file:
    print(os.getpid(), file=file)
"""
# A child that says over its socket that it is not live, and ignores SIGTERM.
HUNG = """
import socket
signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1] + ".new")
listener.listen()
os.rename(sys.argv[1] + ".new", sys.argv[1])
while True:
    connection, _ = listener.accept()
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 503 Service Unavailable\\r\\n\\r\\nstuck")
    connection.close()
"""
SLEEP = "time.sleep(60)"


@pytest.fixture
def supervise(hub, tmp_path):
    """Run a supervisor on a hub thread. Returns the supervisor, a function for its starts, and one that stops it."""
    # After tests that run fakensqd's command line here, gevent's main loop takes the exit statuses of all children of
    # this process. With gevent's function, the next Popen of gevent has its main loop do so again.
    gevent.signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    path = tmp_path / "starts"
    path.touch()
    running = []

    def start(code, count=1, times=TIMES, status=0):
        code = STARTS.format(starts=str(path), status=status) + code

        def make():
            supervisor = Supervisor(lambda address: [sys.executable, "-c", code, address], count, times)
            stop = Event()
            running.append((stop, gevent.spawn(supervisor.run, stop)))
            return supervisor

        return hub.call(make)

    def end():
        stop, greenlet = running.pop()
        hub.call(stop.set)
        return hub.call(greenlet.get, timeout=30)

    yield start, lambda: [int(line) for line in path.read_text().split()], end
    while running:
        end()


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_child_that_ends_is_started_again_ever_later(supervise, caplog):
    start, starts, _ = supervise

    start("sys.exit(3)")
    wait_for(lambda: len(starts()) >= 5)

    pauses = re.findall(r"receiver 1 \(process \d+\) has ended with status 3 .* next start in (\S+) s", caplog.text)
    assert pauses[:4] == ["0.0", "0.0", "0.0", "0.1"]
    assert all(record.levelno == logging.ERROR for record in caplog.records)


def test_killed_child_is_logged_with_its_signal(supervise, caplog):
    start, starts, _ = supervise
    start("os.kill(os.getpid(), signal.SIGKILL)")

    wait_for(lambda: len(starts()) >= 2)

    assert "has ended with signal SIGKILL after" in caplog.text


def test_each_child_is_started_again_alone(supervise):
    start, starts, _ = supervise
    start(SLEEP, count=3)
    wait_for(lambda: len(starts()) == 3)
    first, *others = starts()

    os.kill(first, signal.SIGTERM)

    wait_for(lambda: len(starts()) == 4)
    assert not any(is_gone(pid) for pid in others)


def test_child_that_hangs_is_killed_and_started_again(supervise, caplog):
    start, starts, _ = supervise
    start(HUNG, times=SupervisorTimes(restart_initial=0.01, check_interval=0.05, hung=0.5, stop=0.1))

    wait_for(lambda: len(starts()) >= 2)

    assert re.search(r"receiver 1 \(process \d+\) is killed: (stuck|/live does not answer)", caplog.text)


def test_stop_ends_all_children_in_order(supervise):
    start, starts, end = supervise
    start(SLEEP, count=2)
    wait_for(lambda: len(starts()) == 2)

    assert end()

    assert all(is_gone(pid) for pid in starts())


def test_child_that_does_not_stop_is_killed(supervise, caplog):
    start, starts, end = supervise
    supervisor = start(HUNG, times=SupervisorTimes(stop=0.1))
    wait_for(lambda: "stuck" in supervisor.why_not_ready())

    assert not end()

    assert all(is_gone(pid) for pid in starts())
    assert "receiver 1 had not stopped within 0.1 s and was killed" in caplog.text


def test_child_that_fails_while_it_stops_is_reported(supervise, caplog):
    start, starts, end = supervise
    caplog.set_level(logging.INFO)
    start(SLEEP, status=7)
    wait_for(lambda: len(starts()) == 1)

    assert not end(), caplog.text

    assert "receiver 1 has ended with status 7" in caplog.text


def test_stop_during_a_pause_starts_no_child(supervise, caplog):
    start, starts, end = supervise
    start("sys.exit(1)", times=SupervisorTimes(restart_initial=60))
    wait_for(lambda: "next start in 30.0 s" in caplog.text)

    assert end()

    assert len(starts()) == 1


def test_children_that_are_not_ready_are_named(supervise, hub):
    start, starts, _ = supervise
    supervisor = start(HUNG, count=2, times=SupervisorTimes(stop=0.1))
    wait_for(lambda: len(starts()) == 2)

    wait_for(lambda: hub.call(supervisor.why_not_ready) == "receiver 1: stuck; receiver 2: stuck")


@pytest.mark.parametrize(
    ("status", "text"),
    [(0, "status 0"), (2, "status 2"), (-9, "signal SIGKILL"), (-40, "signal 40")],
)
def test_end_of_a_process_is_named(status, text):
    assert ended_with(status) == text
