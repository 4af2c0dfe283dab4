"""The group of all commands."""

from __future__ import annotations

import click

from gnsq.cli.completion import completion
from gnsq.cli.copy import copy
from gnsq.cli.ping import ping
from gnsq.cli.pub import pub
from gnsq.cli.requeue_dead import requeue_dead
from gnsq.cli.stats import stats
from gnsq.cli.tail import tail
from gnsq.cli.to_file import to_file
from gnsq.options import VERSION

__all__ = ["command_line"]

_HELP = """Publish, read, watch and repair topics of NSQ.

Addresses and other connection options may be given to each command, as environment variables (GNSQ_NSQD, GNSQ_LOOKUPD
and so on), or in ~/.config/gnsq.toml:

\b
    cluster = "local"               # used without --cluster
    [clusters.local]
    nsqd = "127.0.0.1:4150"
    [clusters.production]
    lookupd = ["lookupd-1:4161", "lookupd-2:4161"]
    tls_ca = "ca.pem"               # relative to this file
    auth_secret_file = "secret"

Exit status: 0 done, or stopped if the command runs until it is stopped; 1 failed, with the reason on stderr; 2 wrong
options or settings; 130 or 143 stopped by Ctrl-C or SIGTERM before the end, or ended at once by a second one.
"""


@click.group(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="%(prog)s %(version)s")
def command_line() -> None:  # the text of --help is above
    pass


for _command in (completion, copy, ping, pub, requeue_dead, stats, tail, to_file):
    command_line.add_command(_command)
