"""The program gnsq, in this process and in a process of its own, without settings from the environment."""

import logging
import os
import sys

import pytest
from click.testing import CliRunner

from gnsq.cli.main import command_line
from tests.helpers import child


@pytest.fixture(autouse=True)
def config_folder(tmp_path, monkeypatch):
    """The folder of the default file gnsq.toml. No test reads the user's file or variables."""
    for name in [name for name in os.environ if name.startswith("GNSQ_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "config"
    folder.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


@pytest.fixture
def invoke():
    """Run a command in this process; by default one of gnsq's."""
    logger = logging.getLogger("gnsq")
    before = logger.handlers, logger.propagate, logger.level

    def invoke(*arguments, command=command_line, **environment):
        return CliRunner(env=environment).invoke(command, arguments, prog_name="gnsq", catch_exceptions=False)

    yield invoke
    logger.handlers, logger.propagate = before[:2]
    logger.setLevel(before[2])


@pytest.fixture
def start():
    """Start the program in a process of its own; for a with statement."""

    def start(*arguments, **options):
        return child(sys.executable, "-W", "error", "-m", "gnsq", *arguments, **options)

    return start
