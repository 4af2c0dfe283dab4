"""gnsq stats: shows depths, rates and other numbers of topics and channels, summed over all nsqds."""

from __future__ import annotations

import json
import logging
import sys
from typing import NoReturn

import click
import gevent
from rich.console import Console
from rich.live import Live

from gnsq.cli.cluster import Cluster
from gnsq.cli.command import Command, before_signal, until_signal
from gnsq.cli.keys import pressed_keys, reading_keys
from gnsq.cli.nodes import NodePoller
from gnsq.cli.parameters import PAUSE
from gnsq.cli.snapshot import Snapshot
from gnsq.cli.table import SORT_KEYS, SORTS, History, StatsView, failures
from gnsq.cli.topics import CHANNEL, TOPIC
from gnsq.concurrency.greenlets import spawn
from gnsq.running import StopSignals

__all__ = ["report", "stats"]

DEFAULT_INTERVAL = 2.0
# Seconds between two checks whether the terminal has another size.
RESIZE_CHECK_INTERVAL = 0.25
# Columns of a table that is not written to a terminal: nothing is left out or cut.
FILE_WIDTH = 1000

_EXAMPLES = """
    gnsq stats
    gnsq stats orders --sort rate
    gnsq stats --once --json
"""
_HELP = """Show topics and channels, summed over all nsqds: depth, messages in flight and deferred, rates, clients.

On a terminal the table is live until Ctrl-C or the key q, and stays on the screen then. The last line shows the keys
that sort it; the cursor keys, page up and page down scroll. A narrow terminal has fewer columns, and a line says which
are left out. If stdout is no terminal, one table with all columns is printed, as with --once, and stderr says which
servers did not answer, and why. TOPIC and CHANNEL limit it to one topic or channel. A topic's depth
counts the messages that are in no channel yet. requeued and timed out count since the start of nsqd. finished/s
includes messages that were deleted by emptying a channel. A rate is "-" if it is unknown, such as after a restart of
nsqd.

The JSON of --json is one object:

\b
  time      Unix time in seconds
  seconds   time between the two polls for rates; null without rates
  topics    list: topic, depth, backend_depth, message_count, paused,
            publish_rate, channels, nsqds
    channels  list: channel, depth, backend_depth, message_count, paused,
              in_flight_count, deferred_count, requeue_count, timeout_count,
              client_count, deliver_rate, finish_rate, nsqds
    nsqds     list: the same numbers for each nsqd, with http_address
  totals    topics and channels: the sums of their numbers, and count
  nsqds     list: http_address, version, health, start_time, error (why it
            could not be reached, else null), same_as (another address of
            the same nsqd, which is counted there, else null)
  lookupds  list: http_address, error (why it did not answer, else null)

Rates are messages a second. A number that is unknown is null. "paused" is true if it is paused on any nsqd.

Exit status: 1 if no nsqd could be reached, with --once.
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
    "--interval",
    metavar="TIME",
    type=PAUSE,
    help=f"Time between two polls. Default: {DEFAULT_INTERVAL:g}s. With --once: poll twice, for rates; default: once.",
)
@click.option("--once", is_flag=True, help="Print one table, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and end.")
@click.option("--by-nsqd", is_flag=True, help="Show the numbers of each nsqd, too.")
def stats(
    cluster: Cluster,
    stop: StopSignals,
    topic: str | None,
    channel: str | None,
    sort: str,
    reverse: bool,
    interval: float | None,
    once: bool,
    as_json: bool,
    by_nsqd: bool,
) -> int:  # the text of --help is above
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False)
    # The table shows failures of nsqlookupds.
    logging.getLogger("gnsq.discovery").setLevel(logging.ERROR)
    poller = NodePoller(cluster, topic, channel)
    if not once and not as_json and console.is_terminal:
        if (first := until_signal(stop, poller.poll)) is not None:
            view = StatsView(first, sort, reverse, by_nsqd, History(), is_live=True)
            until_signal(stop, _show, view, console, poller, interval or DEFAULT_INTERVAL)
        return 0
    snapshot = before_signal(stop, _poll_once, poller, interval)
    if as_json:
        click.echo(json.dumps(snapshot.document()))
    else:
        console.print(StatsView(snapshot, sort, reverse, by_nsqd))
    return report(snapshot, topic, channel)


def _poll_once(poller: NodePoller, interval: float | None) -> Snapshot:
    """Poll once, or twice if rates are wanted."""
    snapshot = poller.poll()
    if interval is None or not snapshot.reached:
        return snapshot
    gevent.sleep(interval)
    return poller.poll()


def _show(view: StatsView, console: Console, poller: NodePoller, interval: float) -> None:
    """Poll and show the table until a key ends it, or for ever. At the end, also after a signal, leave it there."""
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live, reading_keys(live) as view.has_keys:
            running = [spawn("gnsq-stats", _update_loop, view, live, poller, interval, on_failure=None)]
            if view.has_keys:
                running.append(spawn("gnsq-keys", _obey_keys, view, live, on_failure=None))
            try:
                for each in gevent.iwait(running):
                    if each.get():
                        return
            finally:
                gevent.killall(running)
    finally:
        view.has_keys = False
        console.print(view)


def _update_loop(view: StatsView, live: Live, poller: NodePoller, interval: float) -> NoReturn:
    """Draw, and poll. Draw again if the terminal gets another size."""
    while True:
        assert view.history is not None  # it is a live view
        view.history.add(view.snapshot)
        size = live.console.size
        live.update(view, refresh=True)
        with gevent.Timeout(interval, False):
            while True:
                gevent.sleep(RESIZE_CHECK_INTERVAL)
                if live.console.size != size:
                    size = live.console.size
                    live.update(view, refresh=True)
        view.snapshot = poller.poll()


def _obey_keys(view: StatsView, live: Live) -> bool:
    """Do what keys say. Return True at the key that ends the command, and False if the terminal has ended."""
    for key in pressed_keys():
        if key == "q":
            return True
        if key == "r":
            view.reverse = not view.reverse
        view.sort = SORT_KEYS.get(key, view.sort)
        page = view.page
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "b": -page, "page down": page, " ": page}
        moves |= {"home": -view.first, "end": sys.maxsize}
        view.first += moves.get(key, 0)
        live.update(view, refresh=True)
    return False


def report(snapshot: Snapshot, topic: str | None, channel: str | None) -> int:
    """Write to stderr what is missing, and why. Return the exit status."""
    for failure in failures(snapshot):
        click.echo(failure, err=True)
    if not snapshot.reached:
        click.echo("Error: no nsqd could be reached", err=True)
        return 1
    if not snapshot.topics and topic is not None:
        what = f"topic {topic}" if channel is None else f"topic {topic} with a channel {channel}"
        click.echo(f"no nsqd has a {what}", err=True)
    return 0
