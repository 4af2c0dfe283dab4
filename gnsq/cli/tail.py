"""gnsq tail: prints messages as they come."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
from rich.console import Console

from gnsq.cli.cluster import Cluster
from gnsq.cli.command import Command
from gnsq.cli.formats import Format, as_json, as_raw, for_terminal, meta_line
from gnsq.cli.output import Output
from gnsq.cli.parameters import COUNT, IDLE, RATE
from gnsq.cli.progress import Counter
from gnsq.cli.receiving import Received, Receiver
from gnsq.cli.topics import CHANNEL, Topics, topics_argument
from gnsq.message import Message, finish_all
from gnsq.running import StopSignals

__all__ = ["tail"]

MAX_IN_FLIGHT = 200
# Number of messages that are written together. Those for a terminal take longer, since they are colored.
BATCH = 200
TERMINAL_BATCH = 10
FIRST_BATCH = 3
_EXAMPLES = """
    gnsq tail orders
    gnsq tail orders refunds -n 10 --json
"""


@click.command(cls=Command, examples=_EXAMPLES)
@topics_argument
@click.option("--channel", metavar="NAME", type=CHANNEL, help="Default: a new one, which nsqd deletes at the end.")
@COUNT
@IDLE
@click.option("--raw", is_flag=True, help="Unchanged bodies and newlines. Default unless stdout is a terminal.")
@click.option("--json", "is_json", is_flag=True, help="A line of JSON for each message, with its id, topic and so on.")
@click.option("--meta", is_flag=True, help="Before each body, a line with time, id, attempts, nsqd and topic.")
@RATE
@click.option("--sample", metavar="PERCENT", type=click.IntRange(1, 100), help="Part of the messages to receive.")
def tail(
    cluster: Cluster,
    stop: StopSignals,
    topics: Topics,
    channel: str | None,
    count: int | None,
    idle: float | None,
    raw: bool,
    is_json: bool,
    meta: bool,
    rate: float | None,
    sample: int | None,
) -> int:
    """Print the messages of one or more topics as they come, until Ctrl-C.

    On a terminal, JSON is indented and colored, and control characters are escaped. Otherwise each body is written
    unchanged, and a newline after it. With --json, a body that is not UTF-8 is in body_base64 in place of body.

    A message is finished after it was written. With the --channel of other consumers, this command takes messages away
    from them. Without --channel, no one misses a message, but if a topic has no channel yet, nsqd has kept its messages
    for the first one: then this command takes them. nsqd creates a topic that does not exist. Both are said on stderr
    first, if nsqd's HTTP port can be asked.
    """
    if is_json and (raw or meta):
        raise click.UsageError(f"--json and {'--raw' if raw else '--meta'} exclude each other; --json has all data")
    output = Output(stop)
    console = Console() if sys.stdout.isatty() and not raw and not is_json else None
    receiver = Receiver(
        *(cluster, topics, channel or f"tail{os.urandom(4).hex()}#ephemeral", stop),
        # A count would disturb messages on the same terminal.
        Counter("written", is_shown=not sys.stdout.isatty()),
        max_in_flight=FIRST_BATCH,
        batch=FIRST_BATCH,
        count=count,
        idle=idle,
        rate=rate,
        # nsqd takes 100 % as a part that is not valid.
        sample_rate=0 if sample in (None, 100) else sample,
    )
    write = _format(console, is_json=is_json, meta=meta)
    printer = _Printer(receiver, output, write, BATCH if console is None else TERMINAL_BATCH)
    with output.watch(receiver.end):
        receiver.run(printer.handle)
    if sys.stderr.isatty() and not sys.stdout.isatty():
        click.echo(receiver.counter.summary(), err=True)
    if receiver.is_idle and not receiver.counter.count:
        hint = "" if channel else "; a new channel gets those that are published after the start of this command"
        click.echo(f"no message came within {idle:g} s{hint}", err=True)
    return receiver.status()


def _format(console: Console | None, *, is_json: bool, meta: bool) -> Format:
    write = as_json if is_json else as_raw if console is None else for_terminal(console)
    return (lambda received: meta_line(received, console) + write(received)) if meta else write


class _Printer:
    """Writes the messages of a Receiver to stdout."""

    def __init__(self, receiver: Receiver, output: Output, write: Format, max_batch: int) -> None:
        self._receiver = receiver
        self._output = output
        self._write = write
        self._max_batch = max_batch
        self._in_flight = FIRST_BATCH

    def handle(self, received: Sequence[Received]) -> None:
        """Write messages, and finish those that are written."""
        if self._receiver.pace(len(received)):
            self._write_messages([each.message for each in received], [self._write(each) for each in received])
        # A reader such as head may want three lines, but what is written is finished, and what is in flight then counts
        # as an attempt. So the first batches are small.
        done = self._receiver.counter.count
        self._receiver.batch = min(self._max_batch, FIRST_BATCH + done // 4)
        if done >= self._in_flight < MAX_IN_FLIGHT:
            self._in_flight = min(2 * self._in_flight, MAX_IN_FLIGHT)
            self._receiver.limit_in_flight(self._in_flight)

    def _write_messages(self, messages: Sequence[Message], parts: Sequence[bytes]) -> None:
        written = 0
        try:
            # While the reader of stdout is stopped, no other messages are held.
            written = self._output.write(parts, self._receiver.held)
        finally:
            # The others are left, if the reader has ended or the disk is full. A part of the first may be written.
            self._receiver.done(written)
            finish_all(messages[:written])
