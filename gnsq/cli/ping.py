"""gnsq ping: sends a message on its whole way, and says for each step whether it works, or what is wrong."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click
import gevent
from rich.console import Console
from rich.text import Text

from gnsq.census import short_address
from gnsq.cli.command import Command
from gnsq.cli.servers import Cluster
from gnsq.cli.steps import Check, NsqdChecker, Status, Target, check_lookupd
from gnsq.cli.topics import TOPIC
from gnsq.concurrency.greenlets import spawn
from gnsq.running import StopSignals
from gnsq.texts import counted

__all__ = ["ping"]

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "bold red", Status.SKIPPED: "dim"}
# Columns before the text of a step: the status, the step and the time.
_INDENT = 36

_EXAMPLES = """
    gnsq ping --nsqd 127.0.0.1:4150
    gnsq ping --cluster production --topic orders
"""
_HELP = """Check the whole way of a message, step by step, and say what is wrong and what to do.

Asks each nsqlookupd for nsqds. For each nsqd: resolves its name, connects, sends IDENTIFY, starts TLS, sends AUTH,
subscribes to an ephemeral channel, publishes a message, receives it, asks for nsqd's health, and deletes the topic.
After a failed step, the steps that do not need it are still tried.

The topic is an ephemeral one with a random name, unless --topic is given. If the secret of AUTH allows only some
topics, give one of them.

\b
The JSON of --json is one object:
  ok      true if no step has failed
  checks  list: server ("nsqlookupd" or "nsqd"), address, step,
          status ("ok", "warning", "failed" or "skipped"),
          seconds (null if skipped), text, advice

Exit status: 1 if a step has failed.
"""


@dataclass(frozen=True, slots=True)
class _Server:
    kind: str
    address: str
    checks: Sequence[Check]


@click.command(cls=Command, help=_HELP, examples=_EXAMPLES)
@click.option(
    "--topic",
    metavar="NAME",
    type=TOPIC,
    help="Use this topic. It is made if it does not exist, and not deleted. Its channels get the test message, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ping(cluster: Cluster, stop: StopSignals, topic: str | None, as_json: bool) -> int:  # the text of --help is above
    if cluster.nsqds_http and len(cluster.nsqds_http) != len(cluster.nsqds):
        raise click.UsageError(
            f"--nsqd-http is given {len(cluster.nsqds_http)} times and --nsqd {len(cluster.nsqds)} times: give one for "
            "each --nsqd, in the same order"
        )
    # The time of this import, 0.1 s, would count for the first step that uses HTTP.
    import gnsq.http.connections  # noqa: F401

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    servers = []
    for server in _servers(cluster, topic, stop):
        servers.append(server)
        if not as_json:
            _print(console, server)
    if stop.number is not None:
        return 128 + stop.number
    is_ok = not any(check.status is Status.FAILED for server in servers for check in server.checks)
    if as_json:
        click.echo(json.dumps({"ok": is_ok, "checks": [each for server in servers for each in _documents(server)]}))
    else:
        _summarize(console, servers)
    return 0 if is_ok else 1


def _servers(cluster: Cluster, topic: str | None, stop: StopSignals) -> Iterator[_Server]:
    """Check all servers at the same time, and yield them in order, each when it is done. End at a signal."""
    is_only = not cluster.nsqds
    lookups = [
        (client, spawn(f"gnsq-ping-{client.address}", check_lookupd, client, is_only, on_failure=None))
        for client in cluster.lookupd_clients()
    ]
    pairs = zip(cluster.nsqds, cluster.nsqds_http or [""] * len(cluster.nsqds), strict=True)
    targets = {nsqd: Target(nsqd, http) for nsqd, http in pairs}
    greenlets = [greenlet for _, greenlet in lookups]
    try:
        for client, greenlet in lookups:
            gevent.wait([greenlet, stop.requested], count=1)
            if stop.number is not None:
                return
            checks, named = greenlet.get()
            for target in named:
                given = targets.setdefault(target.address, target)
                if not given.http_address:
                    targets[target.address] = dataclasses.replace(given, http_address=target.http_address)
            yield _Server("nsqlookupd", client.address, checks)
        running_checks = {}
        for address, target in targets.items():
            check = NsqdChecker(cluster, target, topic).run
            running_checks[address] = spawn(f"gnsq-ping-{address}", check, on_failure=None)
            greenlets.append(running_checks[address])
        for address, greenlet in running_checks.items():
            gevent.wait([greenlet, stop.requested], count=1)
            if stop.number is not None:
                return
            yield _Server("nsqd", address, greenlet.get())
    finally:
        gevent.killall(greenlets)


def _documents(server: _Server) -> list[dict[str, object]]:
    return [
        {"server": server.kind, "address": server.address, **dataclasses.asdict(check), "status": check.status.value}
        for check in server.checks
    ]


# --- the output for people


def _print(console: Console, server: _Server) -> None:
    console.print(Text(f"{server.kind} {short_address(server.address)}", style="bold"))
    for check in server.checks:
        if check.status is not Status.SKIPPED:
            _print_check(console, check)
    if skipped := [check.step for check in server.checks if check.status is Status.SKIPPED]:
        console.print(Text(f"  {'skipped':8} {', '.join(skipped)}", style=_STYLES[Status.SKIPPED]))


def _print_check(console: Console, check: Check) -> None:
    time = "" if check.seconds is None else f"{check.seconds * 1000:,.1f} ms"
    status = (f"  {check.status.value:8}", _STYLES[check.status])
    _print_wrapped(console, Text.assemble(status, f" {check.step:12} {time:>10}  {check.text}"))
    if check.advice:
        _print_wrapped(console, Text(f"{'to do: ':>{_INDENT}}{check.advice}", style="cyan"))


def _print_wrapped(console: Console, line: Text) -> None:
    """Print a line; on a terminal its further lines are indented to the column of the text."""
    if not console.is_terminal or console.width < 2 * _INDENT:
        line.rstrip()
        console.print(line)
        return
    head, text = line.divide([_INDENT])
    for piece in text.wrap(console, console.width - _INDENT):
        piece.rstrip()
        console.print(Text.assemble(head, piece))
        head = Text(" " * _INDENT)


def _summarize(console: Console, servers: Sequence[_Server]) -> None:
    checks = [check for server in servers for check in server.checks if check.status is not Status.SKIPPED]
    failed = sum(check.status is Status.FAILED for check in checks)
    warnings = sum(check.status is Status.WARNING for check in checks)
    if failed:
        console.print(Text(f"{counted(failed, 'step')} failed", style=_STYLES[Status.FAILED]))
    elif warnings:
        console.print(Text(f"all steps passed, {warnings} with a warning", style=_STYLES[Status.WARNING]))
    else:
        console.print(Text("all steps passed", style=_STYLES[Status.OK]))
