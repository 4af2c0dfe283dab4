"""The frame in which all commands run: connection options, help, the log on stderr, errors and exit status."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import click
import gevent

from gnsq.cli.group import WithExamples
from gnsq.cli.parameters import warn_of_unknown_variables
from gnsq.cli.servers import CONNECTION_OPTIONS, given_settings, load_cluster, option_texts, origins
from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQException
from gnsq.running import StopSignals
from gnsq.texts import option_names

__all__ = ["Command", "before_signal", "connection_help", "until_signal"]

T = TypeVar("T")

_CONNECTION_HELP = """\b
gnsq stats --nsqd 127.0.0.1:4150
gnsq stats --lookupd lookupd-1:4161 --lookupd lookupd-2:4161
gnsq stats --cluster production
GNSQ_NSQD=127.0.0.1:4150 gnsq stats

Options may be given to each command, as environment variables (GNSQ_NSQD, GNSQ_LOOKUPD, GNSQ_TLS_CA and so on), or in
~/.config/gnsq.toml. The first place that has a setting counts. Addresses come from one place only.

\b
    cluster = "local"               # used without --cluster
    [clusters.local]
    nsqd = "127.0.0.1:4150"
    [clusters.production]
    lookupd = ["lookupd-1:4161", "lookupd-2:4161"]
    tls_ca = "ca.pem"               # relative to this file
    auth_secret_file = "secret"
"""
_VERBOSE = click.Option(
    ["-v", "--verbose"], count=True, help="Log connections, too. Twice: also each command and frame."
)
_SHARED = [*CONNECTION_OPTIONS, _VERBOSE]
# Prefixes of the variables of gnsq-pipeline and gnsq-receiver, which begin with GNSQ_, too.
_OTHER_PROGRAMS = ("GNSQ_PIPELINE_", "GNSQ_RECEIVER_")
# Levels of the log on stderr, by the number of -v.
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class Command(WithExamples):
    """A command with the connection options, which gnsq help connection shows.

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
        _log_to_stderr(level)
        warn_of_unknown_variables("GNSQ_", [name for name in os.environ if name.startswith(_OTHER_PROGRAMS)])
        if self._says_why and level == logging.WARNING:
            logging.getLogger("gnsq").setLevel(logging.ERROR)
        given_as = origins(ctx)
        ctx.with_resource(option_names(option_texts(given_as)))
        cluster = load_cluster(ctx.params["cluster"], ctx.params["config_file"], given_settings(ctx), given_as)
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
        """Write the options of this command alone."""
        _write_options("Options", [each for each in self.get_params(ctx) if each not in _SHARED], ctx, formatter)
        with formatter.section("Connection"):
            formatter.write_text(
                "--nsqd HOST:PORT, --lookupd HOST:PORT, --cluster NAME, and more: gnsq help connection"
            )


def connection_help(context: click.Context) -> str:
    """Write the help of what all commands have in common."""
    formatter = context.make_formatter()
    with formatter.indentation():
        formatter.write_text(_CONNECTION_HELP)
    _write_options("Options of all commands that use servers", _SHARED, context, formatter)
    return formatter.getvalue().rstrip("\n")


def _write_options(
    title: str, parameters: Iterable[click.Parameter], context: click.Context, formatter: click.HelpFormatter
) -> None:
    # click 8.5 has records of arguments, too, which the first line of the help shows.
    records = [each.get_help_record(context) for each in parameters if isinstance(each, click.Option)]
    with formatter.section(title):
        formatter.write_dl([record for record in records if record is not None])


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


def before_signal(stop: StopSignals, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function as until_signal() does, and return its result. A signal ends the command, with its exit status.

    Any: the function's own arguments.
    """
    result = until_signal(stop, function, *arguments)
    if result is None:
        assert stop.number is not None  # the function returns something else
        raise click.exceptions.Exit(128 + stop.number)
    return result


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
