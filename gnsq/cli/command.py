"""The frame in which all commands run: connection options, the log on stderr, signals, errors and the exit status."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import click
import gevent

from gnsq.cli.cluster import CONNECTION_OPTIONS, given_settings, load_cluster
from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQException
from gnsq.running import StopSignals
from gnsq.texts import option_names

__all__ = ["Command", "program", "until_signal"]

T = TypeVar("T")

_VERBOSE = click.Option(
    ["-v", "--verbose"], count=True, help="Log connections, too. Twice: also each command and frame."
)
_SHARED = [*CONNECTION_OPTIONS, _VERBOSE]
# Levels of the log on stderr, by the number of -v.
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
# The options that errors of gnsq ask for, by their names in Python.
_OPTIONS = {
    "auth_secret": "--auth-secret-file",
    "ca_certs": "--tls-ca",
    "ca_certs in tls_options": "--tls-ca",
    "cert_file and key_file": "--tls-cert and --tls-key",
    "cert_reqs='CERT_NONE'": "--tls-insecure",
    "cert_reqs=ssl.CERT_NONE": "--tls-insecure",
    "certfile and keyfile in tls_options": "--tls-cert and --tls-key",
    "server_hostname": "--tls-server-name",
    "tls_options": "the --tls options",
    "tls_v1=True": "--tls",
}


@contextlib.contextmanager
def program() -> Iterator[StopSignals]:
    """Receive SIGINT and SIGTERM around a whole command, which gets them as click's context object; and let errors name
    the command line's options.

    So a signal that comes before the command begins its work, or after it, does not end the process in another way.
    """
    with option_names(_OPTIONS), StopSignals(before_end=_show_cursor) as stop:
        yield stop


def _show_cursor() -> None:
    """Show the cursor again, which rich hides while it shows progress."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h")


class Command(click.Command):
    """A command with the connection options, which its help lists apart from its own.

    In place of their values, its function gets ``cluster`` and ``stop``: the Cluster, and the StopSignals of the
    program. It returns the exit status, or None for 0.

    Args:
        says_why: True if the command ends at a failure, and says why. Then warnings would say it twice: they are logged
            with -v only.
        arguments, options: Those of click.Command.
    """

    def __init__(self, *arguments: Any, says_why: bool = False, **options: Any) -> None:  # Any: click's
        super().__init__(*arguments, **options)
        self._says_why = says_why
        self.params += _SHARED

    def invoke(self, ctx: click.Context) -> NoReturn:
        """Run the command, and exit. An expected error is one line on stderr."""
        names = {parameter.name for parameter in _SHARED}
        values = {name: value for name, value in ctx.params.items() if name not in names}
        level = _LEVELS[min(ctx.params["verbose"], len(_LEVELS) - 1)]
        _log_to_stderr(logging.ERROR if self._says_why and level == logging.WARNING else level)
        cluster = load_cluster(ctx.params["cluster"], ctx.params["config_file"], given_settings(ctx))
        stop = ctx.find_object(StopSignals)
        assert stop is not None  # see program()
        assert self.callback is not None  # that of the decorated function
        try:
            ctx.exit(ctx.invoke(self.callback, cluster=cluster, stop=stop, **values) or 0)
        except BrokenPipeError:
            # The reader of stdout or stderr, such as head, has ended. Python would write the rest at its end, and fail
            # again.
            with contextlib.suppress(OSError):
                sys.stdout.close()
            sys.exit(1)
        except (NSQException, OSError, ValueError) as error:
            raise click.ClickException(str(error)) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in two sections."""
        own: list[tuple[str, str]] = []
        connection: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            # click 8.5 has records of arguments, too, which the first line of the help shows.
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                (connection if parameter in _SHARED else own).append(record)
        for title, records in (("Options", own), ("Connection (also GNSQ_... and in the file)", connection)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def until_signal(stop: StopSignals, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T | None:
    """Call a function in a greenlet, and return its result. A signal ends it: then return None.

    Any: the function's own arguments.
    """
    call = functools.partial(function, *arguments, **keywords)
    greenlet = spawn("gnsq-until-signal", call, on_failure=None)
    try:
        gevent.wait([greenlet, stop.requested], count=1)
        result: T | None = greenlet.get() if greenlet.ready() else None
        return result
    finally:
        greenlet.kill()


def _log_to_stderr(level: int) -> None:
    """Log lines of gnsq from a level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("gnsq")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
    if level >= logging.WARNING:
        # The commands do not block their hub. On a busy machine the warning of a blocked hub says nothing to do.
        logging.getLogger("gnsq.concurrency.hub_monitor").setLevel(logging.ERROR)
