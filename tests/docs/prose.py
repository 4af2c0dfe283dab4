"""Blocks of code of the tutorial, the guides and the pages about tests and other clients, and how to run them.

Every Python block of PAGES runs. Comments right before a block say how:

    <!-- before: nsqd.publish("clicks", b"1") -->    code that runs before the block; it may set another ``nsqd``, and
                                                     ``files``: texts in the block, and those that take their place
    <!-- until: len(nsqd.transcript.finished()) == 1 -->  after that is true, the clients of the block are closed
    <!-- after: assert nsqd.depth("clicks") == 0 --> code that runs after it, with the names of the block
    <!-- process -->                                 the block runs as a program of its own
    <!-- stdin: text -->                             what this program reads
    <!-- prelude -->                                 the block runs before the tests of the page, which use its names
    <!-- not run: why -->                            no test runs the block

Their code has the names ``nsqd`` and ``lookupd``: emulators that take the place of 127.0.0.1:4150, 4151 and 4161. A
block of text after "It prints:" is what the block must print; ``...`` in it stands for any text.
"""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gevent
import pytest

from gnsq import Consumer, Producer
from tests.docs.pages import ROOT, Block, blocks
from tests.kit import LIMIT, WARNINGS, child, wait_until

PAGES = (
    "index.md",
    "tutorial.md",
    "guides/asyncio.md",
    "guides/command-line.md",
    "guides/consuming.md",
    "guides/dead-letters.md",
    "guides/forks-and-gunicorn.md",
    "guides/kubernetes.md",
    "guides/logging.md",
    "guides/metrics.md",
    "guides/producing.md",
    "guides/several-consumers.md",
    "guides/systemd.md",
    "guides/threads.md",
    "guides/tls-and-auth.md",
    "guides/web-frameworks.md",
    "fakensqd/cookbook.md",
    "fakensqd/cookbook-consuming.md",
    "fakensqd/first-test.md",
    "coming-from/nsq-utilities.md",
    "coming-from/pynsq.md",
    "comparison.md",
)


def programs(*, process: bool) -> list[object]:
    """List the blocks that are whole programs, as parameters of a test."""
    marks = [pytest.mark.subprocess] if process else []
    return [
        pytest.param(block, id=f"{page}:{block.line}", marks=marks)
        for page in PAGES
        for block in blocks(page)
        if block.language == "python"
        and not block.is_test
        and not block.title
        and not block.notes.keys() & {"not run", "prelude"}
        if ("process" in block.notes) is process
    ]


def tests_of(page: str) -> dict[str, Callable[..., object]]:
    """Execute the blocks of a page that are tests; returns the test functions and their fixtures by name."""
    prelude: dict[str, object] = {"__name__": "example"}
    found: dict[str, Callable[..., object]] = {}
    for block in blocks(page):
        if block.language != "python" or block.title or "not run" in block.notes:
            continue
        if "prelude" in block.notes:
            exec(block.compiled(), prelude)
        elif block.is_test:
            names = dict(prelude)
            exec(block.compiled(), names)
            for name in [name for name, value in names.items() if name.startswith("test_") or _is_fixture(value)]:
                assert name not in found, f"{page}: two tests have the name {name}"
                found[name] = names[name]
    return found


def _is_fixture(value: object) -> bool:
    # pytest 8.4 made fixtures objects; before, they are functions with this attribute.
    return type(value).__module__ == "_pytest.fixtures" or hasattr(value, "_pytestfixturefunction")


class Addresses:
    """Puts addresses of emulators in place of those in a page, and back."""

    def __init__(self, nsqd: object, lookupd: object) -> None:
        self._used = {
            "127.0.0.1:4150": nsqd.tcp_address,
            "127.0.0.1:4151": nsqd.http_address,
            "127.0.0.1:4161": lookupd.http_address,
        }

    def put_in(self, code: str) -> str:
        return replaced(code, self._used)

    def take_out(self, text: str) -> str:
        return replaced(text, {used: usual for usual, used in self._used.items()})


def replaced(text: str, replacements: dict[str, str]) -> str:
    """Replace whole addresses, all at once: port 41501 begins with 4150, and a used port may contain a usual one."""
    return re.sub(rf"(?:{'|'.join(map(re.escape, replacements))})(?!\d)", lambda found: replacements[found[0]], text)


def check_printed(block: Block, got: str) -> None:
    """Compare what a block has printed with what the page says."""
    if block.printed is not None:
        same = doctest.OutputChecker().check_output(block.printed, got, doctest.ELLIPSIS)
        assert same, f"the page says\n{block.printed}\nand the block prints\n{got}"


def run(block: Block, nsqd: object, lookupd: object) -> Addresses:
    """Run a block in this process; returns the addresses that it got."""
    names: dict[str, object] = {"__name__": "__main__"}
    given = {"nsqd": nsqd, "lookupd": lookupd, "files": {}}

    def clients() -> list[Consumer | Producer]:
        return [value for value in list(names.values()) if isinstance(value, (Consumer, Producer))]

    def close_in_time() -> None:
        until = block.notes["until"]
        wait_until(lambda: eval(until, {**names, **given}))
        for client in clients():
            if isinstance(client, Consumer):
                client.close()

    exec(block.notes.get("before", ""), given)
    addresses = Addresses(given["nsqd"], lookupd)
    code = addresses.put_in(block.code)
    for path, used in given["files"].items():
        code = code.replace(path, used)
    closer = gevent.spawn(close_in_time) if "until" in block.notes else None
    try:
        exec(block.compiled(code), names)
        if closer is not None:
            closer.get(timeout=LIMIT)
        exec(block.notes.get("after", ""), {**names, **given})
    finally:
        for client in clients():
            client.close(timeout=1)
    return addresses


def run_process(block: Block, nsqd: object, lookupd: object, folder: Path) -> str:
    """Run a block as a program; returns what it has printed. After ``until``, the program gets a SIGTERM."""
    addresses = Addresses(nsqd, lookupd)
    given = {"nsqd": nsqd, "lookupd": lookupd}
    exec(block.notes.get("before", ""), given)
    path = folder / "program.py"
    path.write_text(addresses.put_in(block.code))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = (sys.executable, *WARNINGS, "-X", "faulthandler", str(path))
    with child(*command, cwd=folder, env=environment, stdin=subprocess.PIPE) as program:
        if "until" in block.notes:
            try:
                wait_until(lambda: program.poll() is not None or eval(block.notes["until"], given), 90, pause=0.02)
            except AssertionError:
                program.send_signal(signal.SIGABRT)  # faulthandler prints where it waits
            else:
                program.send_signal(signal.SIGTERM)  # has no effect on a program that has ended, which is seen below
        out, err = program.communicate(block.notes.get("stdin"))
    assert program.returncode == 0, err
    exec(block.notes.get("after", ""), given)
    return addresses.take_out(out + err)
