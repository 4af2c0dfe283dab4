"""gnsq stats: shows depths, rates and other numbers of topics and channels, summed over all nsqds."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn

import click
import gevent
from rich.console import Console
from rich.live import Live

from gnsq.cli.command import Command, before_signal, until_signal
from gnsq.cli.nodes import NodePoller
from gnsq.cli.parameters import PAUSE
from gnsq.cli.progress import handing_over
from gnsq.cli.servers import Cluster
from gnsq.cli.sums import Snapshot
from gnsq.cli.table import SORTS, StatsView
from gnsq.cli.topics import CHANNEL, TOPIC
from gnsq.running import StopSignals
from gnsq.texts import counted

__all__ = ["report", "stats"]

# Columns of a table that is not written to a terminal: nothing is left out or cut.
FILE_WIDTH = 1000

_EXAMPLES = """
    gnsq stats
    gnsq stats orders --watch 2s --sort rate
    gnsq stats --json
"""
_HELP = """Show topics and channels, summed over all nsqds: depth, messages in flight and deferred, rates, clients.

TOPIC and CHANNEL limit it to one topic or channel; of a channel its clients are shown, too. stderr says which servers
did not answer, and why. With --watch, the table is printed again and again until Ctrl-C, from the second time on with
rates. A terminal shows as many rows as it has room for; at the end all of them stay. A narrow one has fewer columns,
and a line says which are left out.

A topic's depth counts the messages that are in no channel yet. requeued and timed out count since the start of nsqd.
finished/s includes messages that were deleted by emptying a channel. A rate is "-" if it is unknown, such as after a
restart of nsqd.

The JSON of --json is one object:

\b
  time      Unix time in seconds
  seconds   time between the two polls for rates; null without --watch
  topics    list: topic, depth, backend_depth, message_count, paused,
            publish_rate, channels, nsqds
    channels  list: channel, depth, backend_depth, message_count, paused,
              in_flight_count, deferred_count, requeue_count, timeout_count,
              client_count, deliver_rate, finish_rate, nsqds
    nsqds     list: the same numbers for each nsqd, with http_address
  totals    topics and channels: the sums of their numbers, and count
  clients   list, with CHANNEL: client_id, hostname, user_agent,
            remote_address, connect_ts (Unix time), ready_count,
            in_flight_count, http_address of the nsqd
  nsqds     list: http_address, version, health, start_time, error (why it
            could not be reached, else null), same_as (another address of
            the same nsqd, which is counted there, else null)
  lookupds  list: http_address, error (why it did not answer, else null)

Rates are messages a second. A number that is unknown is null. "paused" is true if it is paused on any nsqd.

Exit status: 1 if an nsqd did not answer, so that the sums lack it, or none has TOPIC or CHANNEL; with --watch 0.
"""


@click.command(cls=Command, help=_HELP, examples=_EXAMPLES)
@click.argument("topic", required=False, type=TOPIC)
@click.argument("channel", required=False, type=CHANNEL)
@click.option(
    "--sort",
    default="depth",
    show_default=True,
    type=click.Choice(list(SORTS)),
    help="Order of topics, and of the channels of each. Numbers: the highest first. "
    "rate: of publishing for topics, of finishing for channels.",
)
@click.option("--reverse", is_flag=True, help="Turn the order around.")
@click.option(
    "--watch",
    metavar="TIME",
    type=PAUSE,
    help="Print the table again after each such time. With --json: print one object after it, with rates.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--by-nsqd", is_flag=True, help="Show the numbers of each nsqd, too.")
def stats(
    cluster: Cluster,
    stop: StopSignals,
    topic: str | None,
    channel: str | None,
    sort: str,
    reverse: bool,
    watch: float | None,
    as_json: bool,
    by_nsqd: bool,
) -> int:  # the text of --help is above
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False)
    poller = NodePoller(cluster, topic, channel)
    table = functools.partial(StatsView, sort=sort, reverse=reverse, by_nsqd=by_nsqd)
    if watch is not None and not as_json:
        until_signal(stop, _watch, poller, functools.partial(table, has_failures=True), console, watch)
        return 0
    snapshot = before_signal(stop, _poll, poller, watch)
    if as_json:
        click.echo(json.dumps(snapshot.document()))
    else:
        console.print(table(snapshot))
    return report(snapshot, topic, channel)


def _poll(poller: NodePoller, interval: float | None) -> Snapshot:
    """Poll once, or twice if rates are wanted."""
    snapshot = poller.poll()
    if interval is None or not snapshot.reached:
        return snapshot
    gevent.sleep(interval)
    return poller.poll()


def _watch(poller: NodePoller, table: Callable[[Snapshot], StatsView], console: Console, interval: float) -> NoReturn:
    """Poll and print for ever, on a terminal over what was printed before."""
    with ExitStack() as opened:
        show: Callable[[StatsView], object] = console.print
        if console.is_interactive:
            live = opened.enter_context(Live(console=console, auto_refresh=False))
            opened.enter_context(handing_over(live.stop, functools.partial(_resume, live)))
            show = functools.partial(live.update, refresh=True)
        while True:
            show(table(poller.poll()))
            gevent.sleep(interval)


def _resume(live: Live) -> None:
    live.vertical_overflow = "ellipsis"  # stop() has let all rows be printed
    live.start(refresh=True)


def report(snapshot: Snapshot, topic: str | None, channel: str | None) -> int:
    """Write to stderr what is missing, and why. Return the exit status."""
    for failure in snapshot.failures:
        click.echo(failure, err=True)
    if not snapshot.reached:
        click.echo("Error: no nsqd could be reached", err=True)
        return 1
    if not snapshot.topics and topic is not None:
        what = f"topic {topic}" if channel is None else f"topic {topic} with a channel {channel}"
        where = " that has answered" if snapshot.unreached else ""
        click.echo(f"Error: no nsqd{where} has a {what}; gnsq topic list shows all topics", err=True)
        return 1
    if snapshot.unreached:
        missing = counted(len(snapshot.unreached), "nsqd that has", "nsqds that have")
        click.echo(f"Error: the sums are without {missing} not answered", err=True)
        return 1
    return 0
