"""Real servers for tests: programs that are started on free ports, or servers that run already.

This is a pytest plugin (``-p integration.servers``). With it, the fixture ``nsqd`` of tests/behaviour is a real server.
At the end it prints the accounts of the tests.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration import choice

START_LIMIT = 60.0
# nsqd writes its messages to the disk at its stop.
STOP_LIMIT = 30.0
_LISTENING = re.compile(rb"(TCP|HTTP): listening on (\S+)")


@dataclass(frozen=True)
class Server:
    """A running nsqd or nsqlookupd."""

    tcp_address: str
    http_address: str


def program(name: str) -> str | None:
    """Return the path of nsqd, nsqlookupd or nsqadmin."""
    return choice.program(name, os.environ, shutil.which)


NO_PROGRAMS = "starts servers of its own, and has no nsqd and nsqlookupd to start"
needs_programs = pytest.mark.skipif(not all(map(program, choice.PROGRAMS)), reason=NO_PROGRAMS)


def given(name: str) -> Server | None:
    """Return a running server by the variables NAME_TCP_ADDRESS and NAME_HTTP_ADDRESS."""
    tcp, http = (os.environ.get(f"{name.upper()}_{kind}_ADDRESS") for kind in ("TCP", "HTTP"))
    return Server(tcp, http) if tcp and http else None


class Daemon:
    """A program on free ports of 127.0.0.1, which keeps its ports and its data when it is started again.

    Args:
        folder: Data path of nsqd.
        words: Command of another program with the same flags; default: the real one.
        log: File to which its log is appended; default: nowhere.
    """

    def __init__(self, name: str, folder: str, *flags: str, words: Sequence[str] = (), log: Path | None = None) -> None:
        if not words:
            path = program(name)
            assert path, f"no {name} found"
            words = [path]
        self.tcp_address = self.http_address = "127.0.0.1:0"
        own = [f"--data-path={folder}", "--https-address=127.0.0.1:0"] if name == "nsqd" else []
        self._command = [*words, "--broadcast-address=127.0.0.1", *own]
        self._flags = flags
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it listens."""
        addresses = [f"--tcp-address={self.tcp_address}", f"--http-address={self.http_address}"]
        process = subprocess.Popen([*self._command, *addresses, *self._flags], stderr=subprocess.PIPE)
        self.process = process
        found = _addresses(process, self._log)
        self.tcp_address, self.http_address = found["TCP"], found["HTTP"]

    def stop(self, *, kill: bool = False) -> None:
        """Stop the program, with SIGTERM or SIGKILL. Does nothing if it has ended."""
        process, self.process = self.process, None
        if process is not None:
            if kill:
                process.kill()
            else:
                process.terminate()
            process.wait(STOP_LIMIT)
            assert process.stderr is not None
            process.stderr.close()


@contextlib.contextmanager
def running(name: str, *flags: str, words: Sequence[str] = ()) -> Iterator[Daemon]:
    """Start a server with its own data path, and kill it at the end of the block, since its data goes, too."""
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(name, folder, *flags, words=words)
        try:
            daemon.start()
            yield daemon
        finally:
            daemon.stop(kill=True)


def _addresses(process: subprocess.Popen[bytes], log: Path | None) -> dict[str, str]:
    """Read the addresses from a server's log. A thread reads all further lines."""
    assert process.stderr is not None
    stderr = process.stderr
    found: dict[str, str] = {}
    seen: list[bytes] = []
    timer = threading.Timer(START_LIMIT, process.kill)
    timer.start()
    for line in stderr:
        seen.append(line)
        match = _LISTENING.search(line)
        if match:
            found[match[1].decode()] = match[2].decode()
        if len(found) == 2:
            break
    timer.cancel()
    if len(found) < 2:
        raise RuntimeError(f"{process.args!r} did not listen within {START_LIMIT} s: {b''.join(seen).decode()}")
    # A full pipe would block the server.
    threading.Thread(target=_read_on, args=[stderr, log, seen], daemon=True).start()
    return found


def _read_on(stderr: Iterable[bytes], log: Path | None, seen: list[bytes]) -> None:
    with contextlib.suppress(ValueError, OSError), open(log or os.devnull, "ab") as file:  # closed meanwhile
        file.writelines(itertools.chain(seen, stderr))


def _server(name: str) -> Iterator[Server | Daemon]:
    if program(name) is None:
        server = given(name)
        assert server, choice.ADVICE
        yield server
        return
    with running(name) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def real_nsqd() -> Iterator[Server | Daemon]:
    """One nsqd for all tests; each test has its own topics."""
    yield from _server("nsqd")


@pytest.fixture(scope="session")
def real_lookupd() -> Iterator[Server | Daemon]:
    """One nsqlookupd for all tests."""
    yield from _server("nsqlookupd")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the accounts."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    properties = [
        getattr(report, "user_properties", ()) for report in reports if getattr(report, "when", "") == "teardown"
    ]
    accounts = [line for found in properties for name, line in found if name == "account"]
    if accounts:
        terminalreporter.section("accounts")
        for line in accounts:
            terminalreporter.line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last line of a run how many tests were skipped, and why."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or hasattr(config, "workerinput"):
        return
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminal.stats.get("skipped", ()))
    if reasons:
        why = "; ".join(f"{number} {reason}" for reason, number in reasons.most_common())
        terminal.line(f"integration: {reasons.total()} tests were skipped: {why}")
