"""The command gnsq, in this process and in a process of its own, without settings from the environment."""

import json
import os
import sys

import pytest

from tests.kit import child
from tests.kit import commands as programs


@pytest.fixture(autouse=True)
def config_folder(tmp_path_factory, monkeypatch):
    """The folder of the default file gnsq.toml. No test reads the user's file or variables."""
    for name in [name for name in os.environ if name.startswith("GNSQ_")]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


@pytest.fixture
def invoke():
    """Run a command in this process; by default one of gnsq's."""
    return programs.invoke


@pytest.fixture
def gnsq(invoke):
    """Run the program with arguments of any type; returns click's result."""
    return lambda *arguments: invoke(*(str(each) for each in arguments))


@pytest.fixture
def gnsq_json(gnsq):
    """Run the program with arguments and --json; returns the exit status and the document."""

    def run(*arguments):
        result = gnsq(*arguments, "--json")
        return result.exit_code, json.loads(result.stdout)

    return run


@pytest.fixture
def start():
    """Start the program in a process of its own; for a with statement."""

    def start(*arguments, **options):
        return child(sys.executable, "-W", "error", "-m", "gnsq", *arguments, **options)

    return start
