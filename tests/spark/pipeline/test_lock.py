"""The lock of a job's work directory: a lock of a file, and leases on an S3 endpoint."""

import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import sys
import threading

import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.lock import (
    Lease,
    LeaseLost,
    LeaseTimes,
    _Object,
    describe,
    locked,
    read_holder,
)
from tests.spark.helpers import running, wait_for

# Renewals come in real time, as fast as this. The clock says when a lease is over: tests set it.
TIMES = LeaseTimes(lease=90.0, usable=60.0, renewal=0.1)
NAME = "job.json"

# The object store is a process.
pytestmark = pytest.mark.subprocess


# --- a local directory


def at_once(seconds):
    """Wait in no time."""
    return False


def test_one_job_at_a_time(tmp_path):
    work = str(tmp_path)
    with locked(work, at_once) as lock:
        assert lock is not None
        assert describe(work) == f"running, process {os.getpid()}"
        with (
            pytest.raises(JobFailed, match=f"in use by another job, process {os.getpid()}: stop that one"),
            locked(work, at_once),
        ):
            pytest.fail("begun")
        with locked(work, lambda seconds: True) as other:
            assert other is None
    assert describe(work) == "not running"
    with locked(work, pytest.fail) as lock:
        assert lock is not None


def test_no_job_ever_ran(tmp_path):
    assert describe(str(tmp_path)) == "not running"


def test_job_that_has_not_said_who_it_is(tmp_path):
    with locked(str(tmp_path), at_once):
        (tmp_path / "job.json").write_text("")
        assert describe(str(tmp_path)) == "running, process unknown"


def test_lock_follows_no_symlink(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "job.json").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"), locked(str(tmp_path), at_once):
        pytest.fail("begun")

    assert (tmp_path / "victim").read_text() == "mine"


# --- an object store


@pytest.fixture
def location(s3, tmp_path):
    return s3.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")


class Clock:
    """Seconds that a test sets."""

    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds

    def advance(self, seconds):
        """Wait in no time."""
        self.seconds += seconds
        return False


@contextlib.contextmanager
def lease(location, clock=None):
    made = Lease(location, NAME, TIMES, now=clock or Clock())
    try:
        yield made
    finally:
        made.release()


def until_renewed(location):
    """A wait that ends with the next renewal."""

    def wait(seconds):
        before = read_holder(location, NAME)
        wait_for(lambda: read_holder(location, NAME) != before)
        return False

    return wait


def test_lease_is_taken_renewed_and_released(location):
    with lease(location) as first:
        assert first.acquire(pytest.fail)
        began = read_holder(location, NAME)
        wait_for(lambda: read_holder(location, NAME).number > began.number + 3)
        first.check()
        assert began.pid == os.getpid()
    assert read_holder(location, NAME) is None

    with lease(location) as second:
        # A released lease is not watched.
        assert second.acquire(pytest.fail)


def test_lease_that_is_renewed_is_refused(location):
    with lease(location) as holder, lease(location) as other:
        holder.acquire(pytest.fail)

        with pytest.raises(JobFailed, match=rf"/job\.json is held by process {os.getpid()} on .*, which renews it"):
            other.acquire(until_renewed(location))
        holder.check()


KILLED = """
import sys, time
from gnsq.spark.pipeline.lock import Lease
Lease(sys.argv[1], "job.json").acquire(lambda seconds: False)
print("held", flush=True)
time.sleep(60)
"""


def test_lease_of_a_killed_process_is_taken_when_it_was_watched_for_as_long(location, caplog):
    with running([sys.executable, "-c", KILLED, location]) as process:
        assert process.stdout.readline() == "held\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    clock, waits = Clock(), []

    with lease(location, clock) as other:
        assert other.acquire(lambda seconds: waits.append(seconds) or clock.advance(10))

        assert len(waits) == 10
        assert f"was held by process {process.pid} on " in caplog.text


def test_start_that_waits_for_a_lease_can_be_stopped(location):
    _Object(location, NAME).write(dataclasses.replace(Lease(location, NAME)._holder(), lease=1e6), None)

    with lease(location) as other:
        assert not other.acquire(lambda seconds: True)
    assert read_holder(location, NAME).lease == 1e6


def test_one_of_many_takes_a_lease(location):
    found = []

    def take():
        with lease(location) as each:
            try:
                found.append(each.acquire(until_renewed(location)))
            except JobFailed:
                found.append(False)
            ended.wait(20)

    ended = threading.Event()
    threads = [threading.Thread(target=take) for _ in range(5)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: len(found) == 5)
    finally:
        ended.set()
        for thread in threads:
            thread.join(20)

    assert sorted(found) == [False] * 4 + [True]


def test_lease_that_can_not_be_renewed_is_lost_before_another_one_may_take_it(proxy, tmp_path, caplog):
    location, clock = proxy.location(f"bucket/{tmp_path.name}", "KEY:SECRET@"), Clock()
    with lease(location, clock) as holder:
        holder.acquire(pytest.fail)
        caplog.set_level(logging.DEBUG, "gnsq")
        proxy.has_expired = True
        wait_for(lambda: caplog.text.count("not renewed: ") > 3)
        warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        clock.advance(TIMES.usable)
        holder.check()
        clock.advance(0.1)

        with pytest.raises(LeaseLost, match=r"has lost the lease, since it could not be renewed for 60 s: it stops"):
            holder.check()
        # One short line for all requests that failed.
        assert len(warnings) == 1
        assert re.search(r"/job\.json not renewed: .*ExpiredToken: [^\n<]*; trying again$", warnings[0])
        assert "SECRET" not in caplog.text


def test_short_failure_of_the_store_loses_nothing(proxy, tmp_path, caplog):
    location = proxy.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")
    with lease(location) as holder:
        holder.acquire(pytest.fail)
        proxy.has_expired = True
        wait_for(lambda: "not renewed: " in caplog.text)
        proxy.has_expired = False
        until_renewed(location)(0)

        holder.check()


def test_lease_that_was_taken_is_lost(location, caplog):
    with lease(location) as holder:
        holder.acquire(pytest.fail)
        thief = _Object(location, NAME)

        def replace():
            _, version = thief.read()
            with contextlib.suppress(Exception):  # the holder has renewed it meanwhile
                return thief.write(dataclasses.replace(Lease(location, NAME)._holder(), host="elsewhere"), version)

        wait_for(replace)
        holder._thread.join(20)

        with pytest.raises(LeaseLost, match=r"since process \d+ on elsewhere has taken it"):
            holder.check()
    # The other one's lease is left alone.
    assert read_holder(location, NAME).host == "elsewhere"


def test_puts_whose_responses_were_lost_are_the_holders_own(proxy, tmp_path):
    location = proxy.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")
    with lease(location) as holder:
        proxy.loses = 2
        # Its own PUT is not another job's, for which it would wait.
        assert holder.acquire(pytest.fail)
        proxy.loses = 2
        wait_for(lambda: not proxy.loses)
        until_renewed(location)(0)

        holder.check()
    assert read_holder(location, NAME) is None


def test_job_starts_though_the_store_is_busy_for_a_while_and_says_who_it_is(proxy, tmp_path):
    work = proxy.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")
    proxy.refuses = 8

    with locked(work, pytest.fail) as lock:
        assert lock is not None
        lock.check()
        assert describe(work).startswith(f"process {os.getpid()} on ")
    assert describe(work) == "not running"


def test_store_without_conditional_put_is_refused(proxy, tmp_path):
    proxy.has_conditional_put = False

    with (
        lease(proxy.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")) as holder,
        pytest.raises(JobFailed, match=r"the store ignores the condition of a PUT"),
    ):
        holder.acquire(pytest.fail)


def test_store_that_fails_is_told_without_secrets(proxy, tmp_path):
    proxy.has_expired = True
    location = proxy.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")

    for use in (lambda: Lease(location, NAME).acquire(pytest.fail), lambda: read_holder(location, NAME)):
        with pytest.raises(JobFailed, match=r"job\.json can't be ") as failure:
            use()
        assert "SECRET" not in str(failure.value)
        assert "\n" not in str(failure.value)


def test_object_of_another_program_is_not_taken_at_once(location, caplog):
    import obstore

    found = _Object(location, NAME)
    obstore.put(found._store, NAME, json.dumps({"other": 1}).encode())

    with caplog.at_level(logging.WARNING), lease(location) as holder:
        assert not holder.acquire(lambda seconds: True)
    assert "was held by process 0 on ?" in caplog.text
