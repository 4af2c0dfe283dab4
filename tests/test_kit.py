"""Child processes of tests start with default signal actions, and end with their block."""

import contextlib
import os
import select
import signal
import sys

import pytest

from tests.kit import LIMIT, child, run_program

pytestmark = pytest.mark.subprocess

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


ACTIONS = """
import signal
print(
    signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    *[int(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGHUP)],
)
"""


def test_child_starts_with_default_signal_actions_also_if_the_parent_ignores_them():
    before = [signal.signal(number, signal.SIG_IGN) for number in SIGNALS]
    try:
        done = run_program(ACTIONS)
        kept = [signal.getsignal(number) for number in SIGNALS]
    finally:
        for number, action in zip(SIGNALS, before, strict=True):
            signal.signal(number, action)

    assert done.stdout == "True 0 0\n"
    assert kept == [signal.SIG_IGN] * 3


def test_what_a_child_has_written_is_printed_at_its_end(capsys):
    code = "import os, time; os.write(1, b'1\\n2\\n'); os.write(2, b'x\\n'); time.sleep(60)"
    with child(sys.executable, "-c", code) as process:
        assert (process.stderr.readline(), process.stdout.readline()) == ("x\n", "1\n")

    assert capsys.readouterr().out.endswith("\n1\n2\nx\n\n")


GRANDCHILD = """
import os, time

os.fork()
os.write(1, b"begun\\n")
time.sleep(60)
"""


def test_child_and_its_children_are_killed_at_the_end_of_the_block():
    readable, held = os.pipe()
    with contextlib.suppress(ZeroDivisionError), child(sys.executable, "-c", GRANDCHILD, pass_fds=[held]) as process:
        os.close(held)
        assert [process.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
        raise ZeroDivisionError

    # The end of the pipe: no process holds its other side.
    assert select.select([readable], [], [], LIMIT)[0]
    os.close(readable)
    assert process.returncode == -signal.SIGKILL
