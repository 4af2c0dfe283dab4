"""Start the emulator's programs as child processes, and read their output.

Children have default signal dispositions, also if this process ignores signals. No child runs longer than its limit.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests import kit
from tests.kit import child

LIMIT = 20.0
LISTENING = re.compile(rb".* INFO: (TCP|HTTP|HTTPS): listening on (\S+)\n")
FREE_PORTS = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fakensqd", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the emulator that ends by itself."""
    return kit.run(*command(*arguments))


class Program:
    """A daemon that runs; its lines are read up to those about its listeners."""

    def __init__(self, process: subprocess.Popen[bytes], listeners: int) -> None:
        self.process = process
        self.lines: list[bytes] = []
        self.addresses: dict[str, str] = {}
        while len(self.addresses) < listeners:
            line = process.stderr.readline()
            assert line, b"".join(self.lines).decode()
            self.lines.append(line)
            if match := LISTENING.fullmatch(line):
                self.addresses[match[1].decode()] = match[2].decode()

    def stop(self, number: int) -> int:
        """Send a signal and wait for the end; return the exit status."""
        self.process.send_signal(number)
        status: int = self.process.wait()
        self.lines += self.process.stderr.readlines()
        return status


@contextlib.contextmanager
def program(*arguments: str, listeners: int = 2, **options: Any) -> Iterator[Program]:  # Any: Popen's
    """Start a daemon; kill it at the end if it still runs."""
    with child(*command(*arguments), text=False, stdout=None, **options) as process:
        yield Program(process, listeners)
