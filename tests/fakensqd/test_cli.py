"""The command line for people."""

import signal
import subprocess
import sys

from tests.fakensqd.programs import LIMIT, command, run
from tests.fakensqd.wire import request


def test_help():
    result = run("--help")

    assert (result.returncode, result.stderr) == (0, "")
    assert 'exec fakensqd nsqd "$@"' in result.stdout
    for name in ("nsqd", "nsqlookupd", "cluster"):
        assert f"\n  {name} " in result.stdout


def test_no_words_and_wrong_words():
    assert run().returncode in (0, 2)
    assert "No such command 'nsq'" in run("nsq").stderr


def test_a_daemon_behind_an_option():
    result = run("--", "nsqd", "--version")

    assert (result.returncode, result.stdout) == (0, "nsqd v1.3.0 (built w/go1.27.3)\n")


def test_a_cluster():
    process = subprocess.Popen(
        command("cluster", "--nsqds", "3", "--lookupds", "2"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        lines = [process.stdout.readline().split() for _ in range(5)]
        assert [line[0] for line in lines] == ["nsqlookupd"] * 2 + ["nsqd"] * 3
        for line in lines[:2]:
            assert len(request(line[4], "GET", "/nodes")["producers"]) == 3
        assert "SIGTERM" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.communicate()


def test_without_click_it_says_what_to_install():
    code = (
        "import sys; sys.modules['click'] = None; sys.argv = ['fakensqd']; from fakensqd.__main__ import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False)

    assert result.returncode == 1
    assert result.stderr.startswith("fakensqd's command line needs click: pip install 'gnsq[fakensqd]'")
