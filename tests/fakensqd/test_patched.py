"""Servers on threads in monkey-patched processes: patched early, by gevent's own command, or late, by a program."""

import os
import sys
from pathlib import Path

import pytest

from tests.kit import run

HOME = Path(__file__).parents[2]
PYTEST = ["pytest", "-q", "-p", "no:cacheprovider", "-p", "fakensqd.pytest_plugin", "-W", "error"]
# With all plugins that are installed pytest takes 1.5 s of CPU more to start.
ALONE = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.mark.subprocess
def test_process_that_is_patched_from_the_start_passes_the_fixtures_tests():
    files = [f"tests/fakensqd/{name}.py" for name in ("test_pytest_plugin", "test_server_thread")]

    # A test that starts an interpreter of its own, which is not patched, shows nothing here.
    options = ["-p", "pytest_timeout", "-k", "not imports_no_gevent"]
    done = run(
        *[sys.executable, "-m", "gevent.monkey", "--module", *PYTEST, *options, *files],
        cwd=HOME,
        env=ALONE,
    )

    assert done.returncode == 0, done.stdout


FIXTURES = """
import threading
import urllib.request

import pytest

from fakensqd import FakeNsqd


def post(address, target):
    return urllib.request.urlopen(f"http://{{address}}{{target}}", data=b"x", timeout=10).read()


def test_before(fakensqd):
    assert post(fakensqd.http_address, "/pub?topic=t") == b"OK"


def test_meanwhile(fakensqd):
    assert post(fakensqd.http_address, "/pub?topic=t") == b"OK"
    with FakeNsqd().in_thread() as other:
        {program}
        import gevent

        # Would block for ever if one of the servers were a greenlet.
        assert post(other.http_address, "/pub?topic=t") == b"OK"
        assert post(fakensqd.http_address, "/pub?topic=t") == b"OK"
        assert fakensqd.wait_until(lambda nsqd: nsqd.depth("t"), 2) == 2
        assert [gevent.spawn(fakensqd.depth, "t").get(timeout=10) for _ in range(3)] == [2] * 3
        assert other.depth("t") == 1


@pytest.mark.parametrize("time", range(3))
def test_after(fakensqd, fakecluster, time):
    nsqd, registered = fakensqd, fakecluster.nsqds[0]
    assert post(registered.http_address, "/pub?topic=t") == b"OK"
    assert post(nsqd.http_address, "/pub?topic=t") == b"OK"
    nsqd.restart()
    assert post(nsqd.http_address, "/pub?topic=t") == b"OK"


def test_its_own_thread(fakensqd):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(post(fakensqd.http_address, "/pub?topic=t")))
    thread.start()
    thread.join(10)
    assert answers == [b"OK"]


@pytest.mark.fakensqd(threaded=False)
def test_own_hub(fakensqd):
    assert post(fakensqd.http_address, "/pub?topic=t") == b"OK"
"""


@pytest.mark.subprocess
def test_process_may_be_patched_while_a_server_runs(tmp_path):
    (tmp_path / "program.py").write_text("from gevent import monkey\n\nmonkey.patch_all()\n")
    (tmp_path / "test_it.py").write_text(FIXTURES.format(program="import program"))

    options = ["-W", "ignore::gevent.monkey.MonkeyPatchWarning"]
    done = run(sys.executable, "-m", *PYTEST, *options, "test_it.py", cwd=tmp_path, env=ALONE)

    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
