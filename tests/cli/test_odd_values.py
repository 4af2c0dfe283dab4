"""Odd values of all arguments, options and settings: each is taken, or refused in a line that names it."""

import os
import signal
from pathlib import Path

import click
import pytest

from gnsq.cli.main import command_line
from gnsq.cli.servers import SETTINGS
from tests.kit.commands import invoke

pytestmark = pytest.mark.slow

VALUES = [
    *["", "a\0b", "~nobody/\0", "\udcff", "\n", "x" * 5000, "/", "nan", "-1", "9" * 5000, "\u0661", ","],
    *["/proc/self/mem", "[", "{topic.__class__}", "%", "http://[", "a:b:c", "unix:///\0"],
]
# Where TLS is used: to load the CAs of the system takes 0.1 s of CPU each time.
CA = str(Path(__file__).parents[1] / "vectors/old_certificate.pem")
REQUIRED = {
    "copy": ["t", "u"],
    "pub": ["t", os.devnull],
    "requeue-dead": ["t", "--all", "--dry-run"],
    "tail": ["t"],
    "to-file": ["t", "-d", "."],
    "stats": ["--json"],
    "completion": ["bash"],
}


def lines(name, parameter):
    """Return command lines in which a parameter has each of the values."""
    required = [*REQUIRED.get(name, []), *(["--tls-ca", CA] if parameter.name == "tls_server_name" else [])]
    for value in VALUES:
        if isinstance(parameter, click.Option):
            yield [name, *required, parameter.opts[0], value]
        else:
            at = [each.name for each in command_line.commands[name].params if isinstance(each, click.Argument)]
            position = at.index(parameter.name)
            yield [name, *required[:position], value, *required[position + 1 :]]


PARAMETERS = [
    pytest.param(name, parameter, id=f"{name} {parameter.opts[0]}")
    for name, command in command_line.commands.items()
    for parameter in command.params
    if not (isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count))
    # The connection options are those of each command.
    if name == "pub" or parameter.name not in {*SETTINGS, "cluster", "config_file"}
]


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_odd_value_is_no_traceback(monkeypatch, tmp_path, name, parameter):
    monkeypatch.chdir(tmp_path)
    nsqd = [] if name == "completion" or parameter.name == "nsqd" else ["--nsqd", "127.0.0.1:1"]

    for line in lines(name, parameter):
        # The signal ends a command that takes the value. What the command raises is raised here.
        result = invoke(*line, *nsqd, signalled=signal.SIGTERM, GNSQ_TIMEOUT="0.05")

        assert result.exit_code in (0, 1, 2, 128 + signal.SIGTERM), line
        assert result.exit_code in (0, 128 + signal.SIGTERM) or "Error: " in result.stderr, line


@pytest.mark.parametrize("home", ["~nosuchuser", "/root/no", "/proc/1/fd", "\udcff", "x" * 5000], ids=ascii)
def test_folder_of_the_file_that_can_not_be_read_is_as_if_it_had_none(home):
    result = invoke("pub", "t", os.devnull, "--nsqd", "127.0.0.1:1", XDG_CONFIG_HOME=home, signalled=signal.SIGTERM)

    assert result.exit_code == 128 + signal.SIGTERM
