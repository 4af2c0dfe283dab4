"""The ``fakensqd`` command with click: help, ``fakensqd cluster``, and nsqd and nsqlookupd with their own flags."""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import click

from fakensqd.addresses import join_address
from fakensqd.cli.flags import HOST_OR_NAME, Program, default_host, programs
from fakensqd.cli.program import run
from fakensqd.options import NSQ_VERSION
from gnsq.options import VERSION
from gnsq.texts import reason_of

if TYPE_CHECKING:
    from fakensqd.cluster import FakeCluster
    from fakensqd.daemon.daemon import Daemon

__all__ = ["command_line"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message=f"%(prog)s %(version)s, emulates nsqd and nsqlookupd {NSQ_VERSION}")
def command_line() -> None:
    """An emulator of nsqd and nsqlookupd, for tests of their clients.

    "fakensqd nsqd" and "fakensqd nsqlookupd" take the place of the real programs, with their flags. For a test suite
    that starts the real ones, put a script of two lines into a directory on PATH:

    \b
        #!/bin/sh
        exec fakensqd nsqd "$@"
    """


def _run(program: Program, **given: Any) -> None:  # Any: options are of all types
    options = {name: value for name, value in given.items() if value not in (None, ())}
    ignored = [option.opts[0] for option in program.ignored if options.pop(str(option.name), None) is not None]
    raise SystemExit(run(str(program.name), options, ignored))


for _program in programs():
    _program.callback = functools.partial(_run, _program)
    command_line.add_command(_program)


@command_line.command("cluster", short_help="Run nsqds that are registered with nsqlookupds.")
@click.option("--nsqds", default=2, show_default=True, type=click.IntRange(min=1), help="Number of nsqds.")
@click.option("--lookupds", default=1, show_default=True, type=click.IntRange(min=0), help="Number of nsqlookupds.")
@click.option(
    "--host",
    default=default_host,
    show_default="127.0.0.1",
    metavar="ADDRESS",
    help="Where all servers listen: an IP address, or 0.0.0.0 for clients elsewhere.",
)
@click.option(
    "--broadcast-address",
    metavar="NAME",
    help=f"Name or address of the servers for clients, which nsqlookupd gives to consumers.  [default: {HOST_OR_NAME}]",
)
@click.option(
    "--base-port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="Use fixed ports. Nsqd number n, counted from 0, has TCP port PORT + 100 n; its HTTP port is 1 higher."
    " Nsqlookupd n is 10 higher. With 4150, number 0 has NSQ's usual ports.  [default: free ports]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all addresses when all are ready.")
def _cluster(
    nsqds: int,
    lookupds: int,
    host: str,
    broadcast_address: str | None,
    base_port: int | None,
    as_json: bool,
) -> None:
    """Start nsqds that are registered with nsqlookupds, print their addresses, run until SIGINT or SIGTERM.

    All servers are in one process; nothing is written to disk. Each server has a line on stdout: name, TCP and HTTP
    addresses. The last line is the nsqadmin command.
    """
    import gevent
    from gevent.event import Event

    from fakensqd.cluster import FakeCluster

    stopping = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, stopping.set)
    options: dict[str, Any] = {} if broadcast_address is None else {"broadcast_address": broadcast_address}
    try:
        cluster = FakeCluster(nsqds, lookupds, host=host, base_port=base_port or 0, **options)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--base-port") from None
    try:
        cluster.start()
    except OSError as error:
        where = f"cannot listen on {error.filename}: " if error.filename else ""
        advice = "; give another --base-port" if error.errno == errno.EADDRINUSE and base_port else ""
        raise click.ClickException(f"{where}{reason_of(error)}{advice}") from None
    try:
        if as_json:
            click.echo(json.dumps(_describe(cluster)))
        else:
            _print_addresses(cluster)
        stopping.wait()  # until a signal comes
    finally:
        cluster.stop()


def _print_addresses(cluster: FakeCluster) -> None:
    for daemon in (*cluster.lookupds, *cluster.nsqds):
        name = "nsqd" if daemon in cluster.nsqds else "nsqlookupd"
        addresses = _addresses(cluster, daemon)
        click.echo(f"{name:10}  tcp {addresses['tcp_address']}  http {addresses['http_address']}")
    click.echo(_nsqadmin(cluster))
    click.echo(f"pid {os.getpid()}: stop it with SIGINT (ctrl-C) or SIGTERM", err=True)


def _describe(cluster: FakeCluster) -> dict[str, object]:
    return {
        "nsqds": [_addresses(cluster, nsqd) for nsqd in cluster.nsqds],
        "nsqlookupds": [_addresses(cluster, lookupd) for lookupd in cluster.lookupds],
        "nsqadmin": _nsqadmin(cluster),
        "pid": os.getpid(),
    }


def _addresses(cluster: FakeCluster, daemon: Daemon) -> dict[str, str]:
    """Return the addresses under which clients reach a server, which may be elsewhere than where it listens."""
    ports = {"tcp_address": daemon.tcp_port, "http_address": daemon.http_port}
    return {name: join_address(cluster.broadcast_address, port) for name, port in ports.items()}


def _nsqadmin(cluster: FakeCluster) -> str:
    """Build the nsqadmin command that shows the cluster. Without nsqlookupds, nsqadmin asks the nsqds."""
    daemons = cluster.lookupds or cluster.nsqds
    flag = "--lookupd-http-address" if cluster.lookupds else "--nsqd-http-address"
    return " ".join(["nsqadmin", *(f"{flag}={_addresses(cluster, daemon)['http_address']}" for daemon in daemons)])
