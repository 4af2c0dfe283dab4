"""Settings of random tests, and common fixtures."""

import contextlib
import gc
import logging
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakensqd import FakeNsqd
from fakensqd.clock import ManualClock
from gnsq import Consumer
from tests.kit import allow_open_files

# Few examples, the same in each run: "make fuzz" runs these tests with many others. Nothing depends on time, since a
# machine may be busy: what hangs ends by the limit of the test.
BUSY = [HealthCheck.too_slow]
settings.register_profile(
    "repeatable", max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=BUSY
)
settings.load_profile("repeatable")

# A background job has SIGINT ignored, and its children inherit that; a signal that the parent handles is the default in
# them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Shells may allow 256 or 1,024 open files. A test that needs more than this calls need_open_files().
allow_open_files(2048)

# On a busy machine a hub may not run for a second: its warning must not be among the log lines that a test expects.
logging.getLogger("gnsq.concurrency.hub_monitor").setLevel(logging.ERROR)


# Nothing that the collection of the tests makes is garbage: to search it takes an eighth of the collection's time.
gc.disable()


def pytest_collection():
    """Let Hypothesis make its generator of random numbers: it searches all objects for one that refers to it.

    They are few yet. Without those that are excluded below it would not find any with Python 3.14.
    """
    settings(max_examples=1, database=None)(given(st.none())(lambda value: None))()


def pytest_collection_finish():
    """Exclude the test modules from garbage collection: tests that collect, or search all objects, are faster."""
    gc.enable()
    gc.freeze()


@pytest.fixture
def clock():
    """A clock that the test sets."""
    return ManualClock()


@pytest.fixture
def nsqd(clock):
    """An nsqd in this hub, on that clock; it records its sessions, and nothing may have failed in it."""
    with FakeNsqd(clock=clock, record=True) as made:
        yield made
    assert made.errors == []


@pytest.fixture
def nsqds(clock):
    """Three nsqds on that clock."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(FakeNsqd(clock=clock, record=True)) for _ in range(3)]
        yield made
    assert [each.errors for each in made] == [[], [], []]


@pytest.fixture
def socket_folder(tmp_path):
    """A folder for unix sockets, whose paths may have 107 bytes: a short path to tmp_path, for all processes."""
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    os.close(descriptor)


@pytest.fixture(scope="session")
def mypy_cache(pytestconfig, tmp_path_factory):
    """Make a cache directory of mypy; it stays for later runs if pytest has a cache."""
    cache = getattr(pytestconfig, "cache", None)
    return cache.mkdir if cache is not None else tmp_path_factory.mktemp


@pytest.fixture
def consume(fakensqd):
    """Start consumers that are closed at the end."""
    made = []

    def start(handler, address=None, **options):
        consumer = Consumer("t", "c", address or fakensqd.tcp_address, message_handler=handler, **options)
        consumer.start(block=False)
        made.append(consumer)
        return consumer

    yield start
    for consumer in made:
        consumer.close()
        consumer.join(10)


@pytest.fixture
def lines(caplog):
    """Return the log lines of gnsq, from a level on."""
    caplog.set_level(logging.INFO, "gnsq")

    def logged(level=logging.INFO):
        records = [record for record in caplog.records if record.levelno >= level and record.name.startswith("gnsq")]
        return [record.getMessage() for record in records]

    return logged
