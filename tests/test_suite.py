"""The plugin of ``make test``, in test runs of its own."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.kit import wait_until

pytest_plugins = ["pytester"]


def alone(monkeypatch, pytestconfig):
    """Let the programs of pytest find the plugin, and load no other that is installed."""
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.mark.parametrize(("name", "status"), [("nsqd.dat", 1), (".hypothesis", 0)])
def test_file_that_the_tests_leave_fails_the_run(pytester, name, status):
    pytester.makepyfile(f"def test_writer(): open({name!r}, 'w').close()")

    result = pytester.runpytest_inprocess("-p", "tests.suite")

    assert result.ret == status
    assert ("have left files in" in result.stdout.str()) is bool(status)


@pytest.mark.subprocess
def test_run_ends_though_a_worker_is_killed(pytester, monkeypatch, pytestconfig):
    alone(monkeypatch, pytestconfig)
    pytester.mkdir("ran")
    done = "import pathlib\ndef test_{0}(): pathlib.Path('ran', '{0}').touch()\n"
    for number in range(6):
        pytester.makepyfile(**{f"test_{number}": done.format(number)})
    # The other worker has ended when this one dies, and has left one test.
    killed = """
        import os, pathlib, signal, subprocess, time
        def test_first(): pass
        def test_waits():
            while len(list(pathlib.Path("ran").iterdir())) < 6: time.sleep(0.01)
        def test_killed():
            subprocess.Popen(["sleep", "1000"])
            os.kill(os.getpid(), signal.SIGKILL)
        def test_after(): pass
    """
    pytester.makepyfile(test_6=killed)

    result = pytester.runpytest_subprocess("-p", "xdist", "-p", "tests.suite", "-n", "2")

    result.assert_outcomes(passed=9, failed=1)
    result.stdout.no_fnmatch_line("*have left processes*")


@pytest.mark.subprocess
def test_process_that_the_tests_leave_fails_the_run_and_is_killed(pytester, monkeypatch, pytestconfig):
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    pytester.makepyfile(
        "import subprocess\n"
        "def test():\n"
        "    with open('pid', 'w') as file:\n"
        "        file.write(str(subprocess.Popen(['sleep', '1000'], stdout=-3, stderr=-3).pid))\n"
    )

    result = pytester.runpytest_inprocess("-p", "tests.suite", "--ends-within=0", "-W", "ignore")

    assert result.ret == 1
    result.stdout.fnmatch_lines("FAILED the tests have left processes: sleep 1000*")
    pid = int(pytester.path.joinpath("pid").read_text())
    wait_until(lambda: "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2])


def test_temporary_files_and_the_home_of_the_tests_are_deleted(pytester):
    pytester.makepyfile(
        "import pathlib, tempfile\n"
        "def test():\n"
        "    with open(pathlib.Path.home() / 'x', 'w'), open(tempfile.mkdtemp() + '/x', 'w'):\n"
        "        print('', pathlib.Path.home().parent, tempfile.gettempdir(), sep='\\n')\n"
    )
    before = os.environ.get("TMPDIR"), os.environ["HOME"], tempfile.gettempdir()

    result = pytester.runpytest_inprocess("-p", "tests.suite", "-s")

    # No other line is a path.
    home, temporary = [line for line in result.outlines if line.startswith("/")]
    assert home == temporary
    assert not Path(home).exists()
    assert (os.environ.get("TMPDIR"), os.environ["HOME"], tempfile.gettempdir()) == before
