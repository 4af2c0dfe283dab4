"""Pytest plugin of ``make test``: share the test files between workers, and print the progress by parts.

The tests that need a JVM share one, or two with four workers: each takes 10 s of CPU to start, and as much again until
it has loaded what the first queries need. So one worker or two run all their files, and the others all other files;
these help them when they have finished their own. Tests that start a Spark of their own, as all in integration/ do, and
slow ones there are the longest others, and all workers begin with them. Files with slow tests, with much text, or with
many kills of a Spark, come first, since they take long: else a worker would end long after the others. All tests of a
file run in one worker, since they share daemons and queries.

The tests have a temporary directory and a home of their own, which are deleted at the end. The run fails if they leave
files in the working directory, or processes, which are killed.
"""

from __future__ import annotations

import enum
import functools
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

INTERVAL = 5.0
# Names the run in the environment of its processes.
RUN = "GNSQ_TEST_RUN"
# Caches that "make clean" removes.
CACHES = {"__pycache__", ".coverage", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def pytest_addoption(parser):
    parser.addoption("--no-processes", action="store_true", help="fail the tests that start a process")
    text = "seconds after the last test in which the processes that the tests have stopped must have ended; default: 10"
    parser.addoption("--ends-within", type=float, default=10.0, help=text)


@pytest.hookimpl(trylast=True)  # after the terminal's own
def pytest_configure(config):
    if config.getoption("no_processes"):
        sys.addaudithook(_refuse_processes)
    if not hasattr(config, "workerinput"):  # not in a worker
        config.pluginmanager.register(OwnDirectories(config), "own-directories")
        config.pluginmanager.register(LeftFiles(config), "left-files")
        config.pluginmanager.register(LeftProcesses(config), "left-processes")
        if config.get_verbosity() <= 0:
            config.pluginmanager.register(Progress(config), "progress")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class FewSparks(LoadFileScheduling):
        """Of two workers one takes the files that need a common JVM, of four two; they take them first."""

        _spark_nodes = frozenset()

        def remove_node(self, node):
            """Give what a worker that has died had left to others, but for the test in which it has died.

            xdist would also give out the files that it had finished, and wait for their tests for ever.
            """
            work = self.assigned_work.pop(node)
            died_in = next((name for tests in work.values() for name, is_done in tests.items() if not is_done), None)
            for scope, tests in work.items():
                tests.pop(died_in, None)
                if not all(tests.values()):
                    self.workqueue[scope] = tests
            for each in self.nodes:
                self._reschedule(each)
            return died_in

        def _reschedule(self, node):
            if self.workqueue and not self._scopes_for(node):
                node.shutdown()  # after what it has
            else:
                super()._reschedule(node)

        def _assign_work_unit(self, node):
            scopes = self._scopes_for(node)
            if not scopes:
                return
            scope = min(scopes, key=scopes.get)
            if scopes[scope][0] == Order.SPARK:
                self._spark_nodes |= {node}
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

        def _scopes_for(self, node):
            """Return the files that a worker may take: name -> what to sort by."""
            known = self._spark_nodes.intersection(self.nodes)
            may_spark = node in known or len(known) < max(len(self.nodes) // 2, 1)
            found = {scope: _order(config.rootpath / scope, scope) for scope in self.workqueue}
            return {scope: order for scope, order in found.items() if may_spark or order[0] != Order.SPARK}

    # Not the files with the most tests first.
    config.option.loadscopereorder = False
    return FewSparks(config, log)


class Order(enum.IntEnum):
    """What a worker takes first."""

    LONG = 0
    SPARK = 1
    OTHER = 2


@functools.cache
def _order(path, scope):
    """Return what the tests of a file need, and then what sorts the longest first."""
    text, is_integration = path.read_bytes(), scope.startswith("integration/")
    is_quick = b"mark.slow" not in text
    if b"mark.spark" not in text and (is_quick or not is_integration):
        return Order.OTHER, is_quick, -len(text)
    if is_integration or not re.search(rb"def \w+\([^)]*\b(spark|shared_session)\b", text):
        # A test that kills a Spark starts it again.
        return Order.LONG, is_quick, -text.count(b"kill")
    return Order.SPARK, is_quick, -len(text)


def _refuse_processes(event, arguments):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system"):
        test = os.environ.get("PYTEST_CURRENT_TEST")
        if test:
            raise RuntimeError(f"{test} starts a process: it needs the marker subprocess")


class OwnDirectories:
    """Gives the tests a temporary directory and a home of their own, and deletes them after a run that passes."""

    def __init__(self, config):
        self._terminal = config.pluginmanager.getplugin("terminalreporter")
        self._has_failed = False
        self._patch = pytest.MonkeyPatch()
        self._folder = Path(tempfile.mkdtemp(prefix="gnsq-tests-"))
        # Programs of another user, such as a database, have theirs below.
        self._folder.chmod(0o711)
        (self._folder / "home").mkdir()
        self._patch.setattr(tempfile, "tempdir", str(self._folder))
        self._patch.setenv("TMPDIR", str(self._folder))
        self._patch.setenv("HOME", str(self._folder / "home"))
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            self._patch.delenv(name, raising=False)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        self._has_failed = session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

    def pytest_unconfigure(self):
        self._patch.undo()
        if self._has_failed:
            self._terminal.write_line(f"the files of the tests are kept in {self._folder}")
            return
        for folder, names, _ in os.walk(self._folder):
            for name in names:
                if not os.path.islink(path := os.path.join(folder, name)):
                    os.chmod(path, 0o700)
        shutil.rmtree(self._folder)


class LeftProcesses:
    """Kills the processes that the tests have left, and fails the run, unless a worker has died and left its own."""

    def __init__(self, config):
        self._terminal = config.pluginmanager.getplugin("terminalreporter")
        self._run = uuid.uuid4().hex
        self._patch = pytest.MonkeyPatch()
        self._patch.setenv(RUN, self._run)
        self._has_died = False

    def pytest_unconfigure(self):
        self._patch.undo()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        self._has_died |= bool(error)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        deadline = time.monotonic() + (0 if self._has_died else session.config.getoption("ends_within"))
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if left and not self._has_died:
            self._terminal.write_line(f"FAILED the tests have left processes: {', '.join(left.values())}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _processes(self):
        """Return the command lines of the processes of this run by their numbers."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if f"{RUN}={self._run}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    found[int(path.name)] = (
                        (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
            except OSError:
                continue  # it has ended, or is another user's
        return found


class LeftFiles:
    """Fails the run if the working directory has other files at its end than at its beginning."""

    def __init__(self, config):
        self._terminal = config.pluginmanager.getplugin("terminalreporter")
        self._before = self._names()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        left = sorted(self._names() - self._before - CACHES)
        if left:
            self._terminal.write_line(f"FAILED the tests have left files in {os.getcwd()}: {', '.join(left)}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @staticmethod
    def _names():
        return set(os.listdir())


class Progress:
    """Prints the running parts with their numbers of tests, in place of a dot for each test."""

    def __init__(self, config):
        self._terminal = config.pluginmanager.getplugin("terminalreporter")
        self._began = self._written = time.monotonic()
        self._totals = Counter()
        self._finished = Counter()
        self._running = {}

    def pytest_collection_finish(self, session):
        self._totals = Counter(_part(item.nodeid) for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        self._totals = Counter(_part(nodeid) for nodeid in ids)

    def pytest_runtest_logstart(self, nodeid, location):
        self._running[nodeid] = None

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._write(f"FAILED {report.nodeid}")
        if report.when == "teardown":
            self._running.pop(report.nodeid, None)
            self._finished[_part(report.nodeid)] += 1
            if time.monotonic() - self._written >= INTERVAL:
                parts = dict.fromkeys(_part(nodeid) for nodeid in (*self._running, report.nodeid))
                self._write("  ".join(f"{part} {self._finished[part]}/{self._totals[part]}" for part in parts))

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self):
        # Without a letter the terminal counts the test and writes nothing.
        category, _, word = yield
        return category, "", word

    def _write(self, text):
        self._written = time.monotonic()
        share = 100 * self._finished.total() // max(1, self._totals.total())
        self._terminal.write_line(f"[{self._written - self._began:4.0f} s] {share:3d} %  {text}", flush=True)


def _part(nodeid):
    """Return the folder of a test in tests/; "client" for files directly in tests/."""
    folders = nodeid.partition("::")[0].split("/")[:-1]
    return "/".join(folders[1:]) or ("client" if folders == ["tests"] else "/".join(folders))
