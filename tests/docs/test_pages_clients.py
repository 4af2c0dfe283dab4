"""The recipes for other clients run in an empty folder, as they are but for the ports and the installation of packages.

One for a library is skipped where this is not installed. Nothing is downloaded.
"""

import importlib.util
import os
import shutil

import pytest

from fakensqd.pytest_plugin import split_addresses
from fakensqd.real import RealLookupd, RealNsqd
from tests.docs.pages import example
from tests.docs.prose import replaced
from tests.kit import PYTHON, refused_port, run

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]

FLAGS = {"4150": "--tcp-address", "4151": "--http-address"}


class Folder:
    """An empty folder, and on PATH a fakensqd that listens on free ports in place of those in the page."""

    def __init__(self, path):
        self.path = path / "recipe"
        self.path.mkdir()
        self.ports = {port: str(refused_port()) for port in FLAGS}
        program = path / "fakensqd"
        flags = " ".join(f"{FLAGS[port]}=127.0.0.1:{found}" for port, found in self.ports.items())
        program.write_text(f'#!/bin/sh\nexec {PYTHON} -m fakensqd "$@" {flags}\n')
        program.chmod(0o755)
        self.environment = os.environ | {"PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": os.getcwd()}

    def write(self, name, text):
        (self.path / name).write_text(replaced(text, self.ports))

    def run(self, script, **environment):
        """Run a shell script to its end; returns what it has written. A command that fails ends it."""
        ended = run("sh", "-ec", replaced(script, self.ports), cwd=self.path, env=self.environment | environment)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl on PATH")
def test_requests_from_the_command_line(folder):
    script = example("fakensqd/any-client.md", "From the command line", language="sh")

    assert folder.run(f"trap 'kill $!' EXIT\n{script}trap - EXIT\n") == example(
        "fakensqd/any-client.md", "From the command line", language="text"
    )


def test_python(folder):
    if importlib.util.find_spec("asyncnsq") is None:
        pytest.skip("asyncnsq is not installed: pip install asyncnsq")
    folder.write("test_orders.py", example("fakensqd/any-client.md", "Python, with another client"))
    script = example("fakensqd/any-client.md", "Python, with another client", language="sh")

    assert " passed" in folder.run(script.replace("pip install asyncnsq pytest\npytest", f"{PYTHON} -m pytest"))


# --- CI ---------------------------------------------------------------------------------------------------------------


def test_page_about_ci_runs_on_both(folder):
    for name in ("nsqd", "nsqlookupd"):
        program = folder.path.parent / name
        program.write_text(f'#!/bin/sh\nexec {PYTHON} -m fakensqd {name} "$@"\n')
        program.chmod(0o755)
    folder.write("test_orders.py", example("fakensqd/ci.md", "Test in CI"))
    script = example("fakensqd/ci.md", "Test in CI", language="sh")

    said = folder.run(script.replace("pytest", f"{PYTHON} -m pytest"))

    assert said.count("1 passed") == 2
    assert said.count("nsqd: real") == 1


def test_files_for_ci_name_the_servers_that_they_start():
    yaml = pytest.importorskip("yaml")
    github = yaml.safe_load(example("fakensqd/ci.md", "GitHub Actions", language="yaml"))
    gitlab = yaml.safe_load(example("fakensqd/ci.md", "GitLab", language="yaml"))
    compose = yaml.safe_load(example("fakensqd/ci.md", "Docker Compose", language="yaml"))

    (service,) = github["jobs"]["test"]["services"].values()
    _, named = github["jobs"]["test"]["strategy"]["matrix"]["nsqd"]
    assert split_addresses(named) == tuple(f"127.0.0.1:{ports.partition(':')[0]}" for ports in service["ports"])
    _, named = gitlab["test"]["parallel"]["matrix"][0]["NSQD"]
    assert split_addresses(named) == tuple(f"{gitlab['test']['services'][0]['alias']}:{port}" for port in (4150, 4151))
    assert set(compose["services"]) == {RealNsqd.name, RealLookupd.name}
