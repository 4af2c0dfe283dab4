"""gnsq tail: prints messages as they come."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

import click
import gevent
from rich.console import Console

from gnsq.cli.cluster import Cluster
from gnsq.cli.command import Command
from gnsq.cli.filters import BodyFilter, filter_options
from gnsq.cli.formats import Format, as_json, as_raw, for_terminal, meta_line
from gnsq.cli.inbox import Inbox, Received, in_flight_for, receive, requeue_all, touching
from gnsq.cli.output import Output
from gnsq.cli.parameters import COUNT, RATE
from gnsq.cli.progress import Counter, RateLimiter
from gnsq.cli.topics import CHANNEL, TOPIC
from gnsq.consumer import Consumer
from gnsq.message import Message, finish_all
from gnsq.running import StopSignals
from gnsq.texts import counted

__all__ = ["tail"]

MAX_IN_FLIGHT = 200
# Number of messages that are written together. Those for a terminal take longer, since they are colored.
BATCH = 200
TERMINAL_BATCH = 10
FIRST_BATCH = 3


@click.command(cls=Command)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)
@click.option("--channel", metavar="NAME", type=CHANNEL, help="Default: a new one, which nsqd deletes at the end.")
@COUNT
@click.option("--raw", is_flag=True, help="Unchanged bodies and newlines. Default unless stdout is a terminal.")
@click.option("--json", "is_json", is_flag=True, help="A line of JSON for each message, with its id, topic and so on.")
@click.option("--meta", is_flag=True, help="Before each body, a line with time, id, attempts, nsqd and topic.")
@filter_options
@RATE
@click.option("--sample", metavar="PERCENT", type=click.IntRange(1, 100), help="Part of the messages to receive.")
def tail(
    cluster: Cluster,
    stop: StopSignals,
    topics: tuple[str, ...],
    channel: str | None,
    count: int | None,
    raw: bool,
    is_json: bool,
    meta: bool,
    body_filter: BodyFilter,
    rate: float | None,
    sample: int | None,
) -> int:
    """Print the messages of one or more topics as they come, until Ctrl-C.

    On a terminal, JSON is indented and colored, and control characters are escaped. Otherwise each body is written
    unchanged, and a newline after it. With --json, a body that is not UTF-8 is in body_base64 in place of body.

    A message is finished after it was written. Messages that --where and --contains do not choose are finished, too.
    With the --channel of other consumers, this command takes messages away from them. Without --channel, no one misses
    a message, but if a topic has no channel yet, nsqd has kept its messages for the first one: then this command takes
    them. nsqd creates a topic that does not exist. Both are said on stderr first, if nsqd's HTTP port can be asked.
    """
    if is_json and (raw or meta):
        raise click.UsageError(f"--json and {'--raw' if raw else '--meta'} exclude each other; --json has all data")
    channel = channel or f"tail{os.urandom(4).hex()}#ephemeral"
    output = Output(stop)
    console = Console() if sys.stdout.isatty() and not raw and not is_json else None
    inbox = Inbox()
    most = in_flight_for(rate, None if body_filter else count, MAX_IN_FLIGHT)
    consumers = [
        cluster.consumer(
            *(topic, channel),
            message_handler=inbox,
            max_tries=0,
            max_in_flight=min(FIRST_BATCH, most),
            # nsqd takes 100 % as a part that is not valid.
            sample_rate=0 if sample in (None, 100) else sample,
        )
        for topic in dict.fromkeys(topics)
    ]
    write = _format(console, is_json=is_json, meta=meta)
    with contextlib.ExitStack() as opened:
        opened.enter_context(output.watch())
        # A count would disturb messages on the same terminal.
        counter = None if sys.stdout.isatty() else opened.enter_context(Counter("written"))
        opened.enter_context(receive(cluster, consumers, inbox, stop))
        batch = BATCH if console is None else TERMINAL_BATCH
        limiter = RateLimiter(rate, stop.requested)
        printer = _Printer(consumers, inbox, output, write, body_filter, counter, limiter, stop, most)
        printer.run(count, batch)
    if counter is not None and sys.stderr.isatty():
        skipped = f"; {counted(printer.skipped, 'other', spec=',')} not chosen" if body_filter else ""
        click.echo(counter.summary() + skipped, err=True)
    if stop.number is not None and count is not None and printer.written < count:
        click.echo(f"{stop.number.name}: stopped before the end", err=True)
        return 128 + stop.number
    return 0


def _format(console: Console | None, *, is_json: bool, meta: bool) -> Format:
    write = as_json if is_json else as_raw if console is None else for_terminal(console)
    return (lambda received: meta_line(received, console) + write(received)) if meta else write


class _Printer:
    """Writes the messages of an inbox to stdout.

    Attributes:
        written: Number of messages that were written.
        skipped: Number of messages that the filter has not chosen.
    """

    def __init__(
        self,
        consumers: Sequence[Consumer],
        inbox: Inbox,
        output: Output,
        write: Format,
        body_filter: BodyFilter,
        counter: Counter | None,
        limiter: RateLimiter,
        stop: StopSignals,
        most: int,
    ) -> None:
        self.written = 0
        self.skipped = 0
        self._consumers = consumers
        self._inbox = inbox
        self._output = output
        self._write = write
        self._filter = body_filter
        self._counter = counter
        self._limiter = limiter
        self._stop = stop
        self._in_flight, self._most = min(FIRST_BATCH, most), most

    def run(self, count: int | None, batch: int) -> None:
        """Write up to count messages, until a signal comes or the reader of stdout ends."""
        while self.written != count and not self._is_over:
            left = batch if count is None else count - self.written
            # A reader such as head may want three lines, but what is written is finished, and what is in flight then
            # counts as an attempt. So begin with a few.
            done = self.written + self.skipped
            self._write_next(min(batch, self._limiter.step or batch, left, FIRST_BATCH + done // 4))
            if done >= self._in_flight < self._most:
                self._in_flight = min(2 * self._in_flight, self._most)
                for consumer in self._consumers:
                    consumer.max_in_flight = self._in_flight

    @property
    def _is_over(self) -> bool:
        return self._stop.number is not None or self._output.closed.is_set()

    def _write_next(self, limit: int) -> None:
        """Wait for messages, and write up to a number of them."""
        gevent.wait([self._inbox.filled, self._stop.requested, self._output.closed], count=1)
        received = self._inbox.take(limit)
        chosen = [each for each in received if self._filter.chooses(each.message.body)]
        if len(chosen) < len(received):
            self.skipped += len(received) - len(chosen)
            kept = {id(each.message) for each in chosen}
            finish_all(each.message for each in received if id(each.message) not in kept)
        messages = [each.message for each in chosen]
        with touching(messages if self._limiter.step == 1 else ()):  # a slow rate
            self._limiter.wait(len(chosen))
        if self._is_over:
            requeue_all(messages)
        elif chosen:
            self._write_messages(chosen, messages)

    def _write_messages(self, chosen: Sequence[Received], messages: Sequence[Message]) -> None:
        written = 0
        try:
            written = self._output.write([self._write(each) for each in chosen], lambda: self._stalled(messages))
        finally:
            finish_all(messages[:written])
            # The reader has ended, or the disk is full. A part of the first of them may be written.
            requeue_all(messages[written:])
        self.written += written
        if self._counter is not None:
            self._counter.add(written)

    @contextlib.contextmanager
    def _stalled(self, messages: Sequence[Message]) -> Iterator[None]:
        """While the reader of stdout is stopped, keep the messages that are being written, and no others."""
        for consumer in self._consumers:
            consumer.pause()
        self._inbox.requeue_waiting()
        with touching(messages):
            yield
        for consumer in self._consumers:
            consumer.resume()
