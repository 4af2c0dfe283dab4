"""Command: the class of the commands. Reads the connection options, and runs the command in a frame that is the same
for all of them: the log on stderr, signals, errors, and the exit status.
"""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import click

from gnsq.cli.cluster import CONNECTION_OPTIONS, given_settings, load_cluster
from gnsq.cli.running import log_to_stderr, running

__all__ = ["Command"]

_VERBOSE = click.Option(
    ["-v", "--verbose"], count=True, help="Log connections, too. Twice: also each command and frame."
)
_SHARED = [*CONNECTION_OPTIONS, _VERBOSE]
# Levels of the log on stderr, by the number of -v.
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


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
        """Run the command, and exit."""
        names = {parameter.name for parameter in _SHARED}
        values = {name: value for name, value in ctx.params.items() if name not in names}
        log_to_stderr(_LEVELS[min(ctx.params["verbose"], len(_LEVELS) - 1)])
        cluster = load_cluster(ctx.params["cluster"], ctx.params["config_file"], given_settings(ctx))
        assert self.callback is not None  # that of the decorated function
        with running(says_why=self._says_why) as stop:
            status = ctx.invoke(self.callback, cluster=cluster, stop=stop, **values)
        ctx.exit(status or 0)

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
