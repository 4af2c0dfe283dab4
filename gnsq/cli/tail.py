"""gnsq tail: prints messages as they come."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gnsq.cli.command import Command
from gnsq.cli.formats import Format, as_json, as_raw, for_terminal, meta_line
from gnsq.cli.output import Output
from gnsq.cli.parameters import COUNT, IDLE
from gnsq.cli.progress import Counter
from gnsq.cli.receiving import Received, Receiver
from gnsq.cli.servers import Cluster
from gnsq.cli.topics import CHANNEL, TOPIC, Topics
from gnsq.message import Message, finish_all
from gnsq.protocol.names import is_ephemeral
from gnsq.running import StopSignals
from gnsq.texts import counted

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["tail"]

MAX_IN_FLIGHT = 200
# Number of messages that are written together. Those for a terminal take longer, since they are colored.
BATCH = 200
TERMINAL_BATCH = 10
FIRST_BATCH = 3
# A look ends after this number of messages, or this number of seconds without one.
PEEK_COUNT, PEEK_IDLE = 10, 1.0
_EXAMPLES = """
    gnsq tail orders
    gnsq tail orders refunds -n 10 --json
"""


@click.command(cls=Command, examples=_EXAMPLES)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)
@click.option("--channel", metavar="NAME", type=CHANNEL, help="Default: a new one, which nsqd deletes at the end.")
@COUNT
@IDLE
@click.option("--take", is_flag=True, help="Take messages that wait for a topic's first channel, too, and keep none.")
@click.option(
    "--peek",
    is_flag=True,
    help=f"Only look at messages of --channel NAME, up to -n ({PEEK_COUNT}), and then give all back.",
)
@click.option("--raw", is_flag=True, help="Unchanged bodies and newlines. Default unless stdout is a terminal.")
@click.option("--json", "is_json", is_flag=True, help="A line of JSON for each message, with its id, topic and so on.")
@click.option("--meta", is_flag=True, help="Before each body, a line with time, id, attempts, nsqd and topic.")
def tail(
    cluster: Cluster,
    stop: StopSignals,
    topics: tuple[str, ...],
    channel: str | None,
    count: int | None,
    idle: float | None,
    take: bool,
    peek: bool,
    raw: bool,
    is_json: bool,
    meta: bool,
) -> int:
    """Print the messages of one or more topics as they come, until Ctrl-C.

    On a terminal, JSON is indented and colored, and control characters are escaped. Otherwise each body is written
    unchanged, and a newline after it. With --json, a body that is not UTF-8 is in body_base64 in place of body.

    A message is finished after it was written. With the --channel of other consumers, this command takes messages away
    from them. Without --channel, no other consumer misses a message; but when messages come faster than they are
    printed, nsqd drops what exceeds its --mem-queue-size. If a topic has no channel yet, nsqd has kept its messages for
    the first one, and a channel that ends with this command would lose those that are not printed: then the command
    ends with status 2, also if no HTTP port can be asked. --channel NAME keeps them; --take goes on all the same.

    --peek holds messages until it has as many as -n says, or none has come for a second, and then requeues all of them.
    nsqd counts a look as an attempt, so it counts towards the max_tries of the channel's consumers.
    """
    if is_json and (raw or meta):
        raise click.UsageError(f"--json and {'--raw' if raw else '--meta'} exclude each other; --json has all data")
    is_kept = channel is not None and not is_ephemeral(channel)
    if peek and not is_kept:
        raise click.UsageError("--peek looks at the messages of a channel that stays: give --channel NAME")
    if take and is_kept:
        raise click.UsageError("--take is for a channel that ends with this command: leave --take or --channel out")
    if peek:
        count, idle = count or PEEK_COUNT, idle or PEEK_IDLE
    output = Output(stop)
    console = _console() if sys.stdout.isatty() and not raw and not is_json else None
    receiver = Receiver(
        *(cluster, Topics(tuple(dict.fromkeys(topics))), channel or f"tail{os.urandom(4).hex()}#ephemeral", stop),
        # A count would disturb messages on the same terminal.
        Counter("written", is_shown=not sys.stdout.isatty()),
        max_in_flight=count if peek and count else FIRST_BATCH,
        batch=FIRST_BATCH,
        count=count,
        is_filtered=peek,
        idle=idle,
        takes_waiting=take,
        must_exist=peek,
    )
    write = _format(console, is_json=is_json, meta=meta)
    printer = _Printer(receiver, output, write, BATCH if console is None else TERMINAL_BATCH, count if peek else None)
    with output.watch(receiver.end):
        receiver.run(printer.handle)
    if sys.stderr.isatty() and not sys.stdout.isatty():
        click.echo(receiver.counter.summary(), err=True)
    if receiver.is_idle and not receiver.counter.count:
        hint = "" if channel else "; a new channel gets those that are published after the start of this command"
        hint = "; those in flight or deferred are not shown" if peek else hint
        click.echo(f"no message came within {idle:g} s{hint}", err=True)
    if peek and receiver.requeued:
        looked = counted(receiver.requeued, "message", spec=",")
        click.echo(f"{looked} given back; the look counts as an attempt of each, towards max_tries", err=True)
    return receiver.status()


def _console() -> Console:
    from rich.console import Console  # only for a terminal, since it takes 0.1 s

    return Console()


def _format(console: Console | None, *, is_json: bool, meta: bool) -> Format:
    write = as_json if is_json else as_raw if console is None else for_terminal(console)
    return (lambda received: meta_line(received, console) + write(received)) if meta else write


class _Printer:
    """Writes the messages of a Receiver to stdout.

    Args:
        peek_count: Leave this number of messages in flight until the end, which gives them back; None: finish them.
    """

    def __init__(
        self, receiver: Receiver, output: Output, write: Format, max_batch: int, peek_count: int | None = None
    ) -> None:
        self._receiver = receiver
        self._output = output
        self._write = write
        self._max_batch = max_batch
        self._in_flight = FIRST_BATCH
        self._peek_count = peek_count

    def handle(self, received: Sequence[Received]) -> None:
        """Write messages, and finish those that are written."""
        self._write_messages([each.message for each in received], [self._write(each) for each in received])
        # A reader such as head may want three lines, but what is written is finished, and what is in flight then counts
        # as an attempt. So the first batches are small.
        done = self._receiver.counter.count
        self._receiver.batch = min(self._max_batch, FIRST_BATCH + done // 4)
        if self._peek_count:
            # All may be at one nsqd. What the others have sent beyond the number is given back unseen.
            nsqds = max(len(consumer.stats().connections) for consumer in self._receiver.consumers)
            self._receiver.limit_in_flight(self._peek_count * nsqds)
        elif done >= self._in_flight < MAX_IN_FLIGHT:
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
            if not self._peek_count:
                finish_all(messages[:written])
