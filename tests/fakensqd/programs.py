"""Starting the emulator's programs as subprocesses, and reading what they say."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator

import gevent
from gevent.subprocess import PIPE, Popen

LIMIT = 20.0
LISTENING = re.compile(
    rb"\[\w+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: (TCP|HTTP|HTTPS|FAULTS): listening on (\S+)\n"
)
FREE_PORTS = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "fakensqd", *words]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a program that ends by itself."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=LIMIT, check=False)


class Program:
    """A daemon that runs; its lines are read up to those about its listeners."""

    def __init__(self, *words: str, listeners: int = 2) -> None:
        self.process = Popen(command(*words), stdin=subprocess.DEVNULL, stderr=PIPE)
        self.lines: list[bytes] = []
        self.addresses: dict[str, str] = {}
        try:
            self._read_addresses(listeners)
        except BaseException:
            self.process.kill()
            raise

    def _read_addresses(self, listeners: int) -> None:
        with gevent.Timeout(LIMIT):
            while len(self.addresses) < listeners:
                line = self.process.stderr.readline()
                assert line, b"".join(self.lines).decode()
                self.lines.append(line)
                if match := LISTENING.fullmatch(line):
                    self.addresses[match[1].decode()] = match[2].decode()

    def stop(self, number: int) -> int:
        """Send a signal and wait for the end; give back the exit status."""
        self.process.send_signal(number)
        status: int = self.process.wait(LIMIT)
        self.lines += self.process.stderr.readlines()
        return status


@contextlib.contextmanager
def program(*words: str, listeners: int = 2) -> Iterator[Program]:
    """Start a daemon; kill it in the end if it still runs."""
    started = Program(*words, listeners=listeners)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait(LIMIT)
        started.process.stderr.close()
