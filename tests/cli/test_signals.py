"""SIGINT and SIGTERM at each moment of a program: one line, the documented status, and no traceback."""

import signal

import pytest

from tests.kit import run_program

# A program that sends itself a signal: when a module is imported, or when the interpreter ends.
PROGRAM = """
import atexit, os, sys
moment, number, program, *arguments = sys.argv[1:]

def send(kill=os.kill, pid=os.getpid(), number=int(number)):
    kill(pid, number)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            send()

class Last:
    def __del__(self, send=send):
        send()

sys.meta_path.insert(0, Finder())
sys.argv = [program, *arguments]
if program == "gnsq":
    from gnsq.__main__ import main
elif program == "fakensqd":
    from fakensqd.__main__ import main
else:
    from gnsq.spark import run_pipeline as main
if moment == "atexit":
    atexit.register(send)
elif moment == "end of the interpreter":
    last = Last()
main()
"""
IMPORTS = [
    *[("gnsq", "click", signal.SIGINT), ("gnsq", "gnsq.running", signal.SIGTERM)],
    *[("fakensqd", "fakensqd.cli", signal.SIGINT), ("gnsq-pipeline", "gnsq.spark.pipeline.settings", signal.SIGTERM)],
]


@pytest.mark.subprocess
@pytest.mark.parametrize(("program", "module", "number"), IMPORTS)
def test_signal_while_a_program_imports(program, module, number):
    if program == "gnsq-pipeline":
        pytest.importorskip("pyspark")

    result = run_program(PROGRAM, module, str(int(number)), program, "--help")

    expected = 0 if program == "fakensqd" else 128 + number
    lines = [] if program == "fakensqd" else [f"{number.name}: stopped before the start"]
    assert (result.returncode, result.stderr.splitlines(), result.stdout) == (expected, lines, "")


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "main", ["gnsq.__main__ import main", "gnsq.spark import run_pipeline", "gnsq.spark.receiver.__main__ import main"]
)
def test_nothing_that_takes_time_is_imported_before_signals_are_received(main):
    result = run_program(f"import sys; before = set(sys.modules); from {main}; print(*set(sys.modules) - before)")

    others = [name for name in result.stdout.split() if not name.startswith("gnsq")]
    assert set(others) <= {"__future__"}
    assert "gnsq.startup" in result.stdout


@pytest.mark.subprocess
@pytest.mark.parametrize(("moment", "number"), [("atexit", signal.SIGINT), ("end of the interpreter", signal.SIGTERM)])
def test_signal_after_the_work_does_not_change_its_status(fakensqd, tmp_path, moment, number):
    (tmp_path / "lines").write_text("1\n")
    command = ["pub", "t", str(tmp_path / "lines"), "--nsqd", fakensqd.tcp_address]

    result = run_program(PROGRAM, moment, str(int(number)), "gnsq", *command)

    assert (result.returncode, len(result.stderr.splitlines())) == (0, 1)
    assert result.stderr.startswith("1 message published")
