"""Runs commands of gnsq: in this process, or as programs."""

import contextlib
import json
import logging
import os
import signal
import sys
from pathlib import Path

import gevent
from click.testing import CliRunner

from gnsq.cli.group import program
from gnsq.cli.main import command_line
from tests.kit import LIMIT, child, wait_until

ROOT = Path(__file__).parents[2]


def command(*arguments, **options):
    """Run a command in this process, without the user's settings."""
    settings = {name: None for name in os.environ if name.startswith("GNSQ_")}
    return invoke(*arguments, **settings, XDG_CONFIG_HOME="/nowhere", **options)


def invoke(*arguments, command=command_line, signalled=None, **environment):
    """Run a command in this process; by default one of gnsq's. Afterwards the log is as it was.

    Args:
        arguments: Of any type.
        signalled: A signal that comes before the command reads its arguments.
    """
    loggers = [logging.getLogger(name) for name in ("gnsq", "gnsq.discovery")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    try:
        with program() as stop:
            if signalled is not None:
                os.kill(os.getpid(), signalled)
            runner = CliRunner(env=environment)
            words = [str(each) for each in arguments]
            return runner.invoke(command, words, prog_name="gnsq", obj=stop, catch_exceptions=False)
    finally:
        for logger, (logger.handlers, logger.propagate, level) in zip(loggers, before, strict=True):
            logger.setLevel(level)


def invoke_json(*arguments):
    """Run a command of gnsq with --json; returns the exit status and the document."""
    result = invoke(*arguments, "--json")
    return result.exit_code, json.loads(result.stdout)


def gnsq(nsqd, *arguments, **options):
    """Run a command with an nsqd."""
    return command(*arguments, *servers_of(nsqd), **options)


def create_channel(nsqd, topic, channel):
    for arguments in (("topic", "create", topic), ("channel", "create", topic, channel)):
        assert gnsq(nsqd, *arguments).exit_code == 0


def servers_of(nsqd):
    return "--nsqd", nsqd.tcp_address, "--nsqd-http", nsqd.http_address


@contextlib.contextmanager
def signalled_when(condition, number=signal.SIGTERM):
    """Send a signal to this process, in which a command runs, when a condition is true.

    If that does not come, a signal ends the command all the same, and the block fails.
    """
    with background(lambda: wait_until(condition), number):
        yield


@contextlib.contextmanager
def background(function, number=None):
    """Call a function in a greenlet while a command runs in this process; then send the command a signal, if given.

    If the function fails, a SIGTERM ends the command, which may wait for what the function should have done. The block
    raises the error.
    """
    runs = True

    def call():
        end = signal.SIGTERM
        try:
            function()
            end = number
        finally:
            if runs and end is not None:
                os.kill(os.getpid(), end)

    greenlet = gevent.spawn(call)
    try:
        try:
            yield
        finally:
            runs = False
        greenlet.get(timeout=2 * LIMIT)
    finally:
        greenlet.kill()


def started(nsqd, *arguments, **options):
    """Start a command as a program, without the user's settings; returns the context manager of child()."""
    words = [sys.executable, "-W", "error", "-m", "gnsq", *map(str, arguments), *servers_of(nsqd)]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("GNSQ_")}
    environment = {**settings, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": "/nowhere"}
    return child(*words, env=environment, **options)
