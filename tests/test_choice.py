"""The choice of real servers for ``make integration``, and its advice without any."""

import os
import sys
from pathlib import Path

import pytest

from integration.choice import COMPOSED, NEEDED, Choice, Way, choose
from tests.kit import run

ROOT = Path(__file__).parent.parent
PATHS = {"nsqd": "/bin/nsqd", "nsqlookupd": "/bin/nsqlookupd"}
GIVEN = {name: f"elsewhere:{number}" for number, name in enumerate(NEEDED)}


def engine_must_not_be_asked():
    raise AssertionError("Docker was asked")


def test_programs_on_path_come_first():
    assert choose(GIVEN, PATHS.get, engine_must_not_be_asked) == Choice(Way.PROGRAMS, paths=PATHS)


def test_given_addresses_go_before_docker():
    extra = {"NSQD_TLS_TCP_ADDRESS": "elsewhere:9"}

    chosen = choose({**GIVEN, **extra, "HOME": "/root"}, {}.get, engine_must_not_be_asked)

    assert chosen == Choice(Way.GIVEN, addresses={**GIVEN, **extra})
    assert chosen.options == ["--nsqd=elsewhere:0,elsewhere:1", "--nsqlookupd=elsewhere:2,elsewhere:3"]


@pytest.mark.parametrize(
    ("environment", "paths"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param({}, {"nsqd": "/bin/nsqd"}, id="no nsqlookupd"),
        pytest.param({name: GIVEN[name] for name in NEEDED[:3]}, {}, id="an address too few"),
    ],
)
def test_docker_is_the_last_choice(environment, paths):
    assert choose(environment, paths.get, lambda: True) == Choice(Way.COMPOSED, addresses=COMPOSED)
    assert choose(environment, paths.get, lambda: False) is None


@pytest.mark.subprocess
def test_integration_without_servers_ends_with_advice(tmp_path):
    environment = {"PATH": str(tmp_path), "HOME": os.environ.get("HOME", "")}
    result = run(sys.executable, "-m", "integration.run", cwd=ROOT, env=environment)

    assert result.returncode == 1
    assert "put nsqd and nsqlookupd on PATH" in result.stderr
    assert "have Docker with the compose plugin" in result.stderr
    assert result.stdout == ""
