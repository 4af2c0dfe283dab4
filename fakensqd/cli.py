"""The command line for people: help, and ``fakensqd cluster``. The daemons' own flags are program.py's."""

from __future__ import annotations

import os
import signal

import click

from fakensqd.options import NSQ_VERSION
from fakensqd.program import run

__all__ = ["command_line"]

_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command_line() -> None:
    """An emulator of nsqd and nsqlookupd, for tests of what talks to them.

    "fakensqd nsqd" and "fakensqd nsqlookupd" take the place of the real programs, with their flags. A wrapper of two
    lines in a directory on PATH is enough for a test-suite that starts the real ones:

    \b
        #!/bin/sh
        exec fakensqd nsqd "$@"
    """


@command_line.command("nsqd", context_settings=_PASSED_ON, short_help=f"Be nsqd {NSQ_VERSION}, with its flags.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def _nsqd(words: tuple[str, ...]) -> None:
    raise SystemExit(run("nsqd", words))


@command_line.command(
    "nsqlookupd", context_settings=_PASSED_ON, short_help=f"Be nsqlookupd {NSQ_VERSION}, with its flags."
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def _nsqlookupd(words: tuple[str, ...]) -> None:
    raise SystemExit(run("nsqlookupd", words))


@command_line.command("cluster")
@click.option("--nsqds", default=2, show_default=True, type=click.IntRange(min=1), help="How many nsqds.")
@click.option("--lookupds", default=1, show_default=True, type=click.IntRange(min=0), help="How many nsqlookupds.")
def _cluster(nsqds: int, lookupds: int) -> None:
    """Start nsqds that are registered with nsqlookupds, print their addresses, run until SIGINT or SIGTERM.

    All are in one process, on free ports of 127.0.0.1; nothing is written to disk. One line each on stdout: the
    program's name, its TCP and its HTTP address.
    """
    import gevent
    from gevent.event import Event

    from fakensqd.cluster import FakeCluster

    over = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, over.set)
    with FakeCluster(nsqds, lookupds) as cluster:
        for lookupd in cluster.lookupds:
            click.echo(f"nsqlookupd  tcp {lookupd.tcp_address}  http {lookupd.http_address}")
        for nsqd in cluster.nsqds:
            click.echo(f"nsqd        tcp {nsqd.tcp_address}  http {nsqd.http_address}")
        click.echo(f"pid {os.getpid()}: stop it with SIGINT (ctrl-C) or SIGTERM", err=True)
        over.wait()  # until a signal comes
