"""gnsq pub: publishes messages of the command line, or the lines of a file or of stdin."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import gevent
from gevent.socket import wait_read

from gnsq.cli.command import Command, until_signal
from gnsq.cli.formats import record_body
from gnsq.cli.parameters import DELIMITER, DURATION, RATE, FilePath
from gnsq.cli.progress import Counter, RateLimiter
from gnsq.cli.servers import Cluster
from gnsq.cli.topics import TOPIC
from gnsq.errors import NSQErrorCode, NSQException, NSQInvalid, NSQUnknown
from gnsq.running import StopSignals
from gnsq.texts import counted

if TYPE_CHECKING:
    from gnsq.producer import Producer

__all__ = ["next_lines", "pub"]

# Bytes of one read. The lines of one read are published together, as an MPUB; at first fewer.
READ_SIZE = 256 * 1024
# Number of lines of the first MPUB. If nsqd does not respond, it is not known which lines of an MPUB are published.
FIRST_LINES = 100
# Seconds. After an MPUB that took less, the next one has twice as many lines; after one that took more, half as many.
QUICK, SLOW = 1.0, 2.0
# Bytes. A line without an end would fill the memory; by default nsqd takes messages of up to 1 MiB.
MAX_LINE = 256 * 1024 * 1024
# Number of deferred messages that wait for their responses: nsqd has no MPUB for them.
DEFERRED_AT_ONCE = 200


def next_lines(lines: int, seconds: float) -> int:
    """Return how many lines the next MPUB should have after one of so many lines took so many seconds."""
    return lines * 2 if seconds < QUICK else max(lines // 2, 1) if seconds > SLOW else lines


class _Stopped(Exception):
    """A publish failed.

    Args:
        first: The line that is not confirmed.
        last: The last line that is or may be published in spite of it, or `first`.
    """

    def __init__(self, first: int, last: int, error: Exception) -> None:
        super().__init__(str(error))
        self.first, self.last, self.error = first, last, error

    def advice(self) -> str:
        """Say which lines are published, and how to go on."""
        before = "All lines before it are published. " if self.first > 1 else ""
        text = f"stopped at line {self.first}: {self.error}\n{before}"
        if self.first == self.last and not isinstance(self.error, NSQUnknown):
            # If the set-up is wrong or nsqd can't store now, the next line would fail in the same way; also if nsqd
            # refuses the time of --defer.
            is_line_bad = isinstance(self.error, ValueError) or (
                isinstance(self.error, NSQException)
                and self.error.at_fault == "message"
                and not isinstance(self.error, NSQInvalid)
            )
            if self.first == 1 and not is_line_bad:
                return f"{text}Nothing is published."
            without = f"; without this line: --from-line {self.first + 1}" if is_line_bad else ""
            return f"{text}To go on: --from-line {self.first}{without}"
        lines = f"Line {self.first}" if self.first == self.last else f"Lines {self.first} to {self.last}"
        return (
            f"{text}{lines} may be published. To publish again: --from-line {self.first}. "
            f"To leave out: --from-line {self.last + 1}"
        )


class _Input(FilePath):
    """The file to publish. Its error also helps those who wanted to publish the text itself."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # Any: click's
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message} To publish a text, give -m TEXT.", param, ctx)


_EXAMPLES = """
    gnsq pub orders -m '{"id": 1}'
    gnsq pub orders orders.jsonl --rate 500
    tail -f access.log | gnsq pub accesses
"""


@click.command(cls=Command, says_why=True, examples=_EXAMPLES)
@click.argument("topic", type=TOPIC)
@click.argument("file", default="-", type=_Input(exists=True, dir_okay=False, allow_dash=True))
@click.option("-m", "--message", "messages", metavar="TEXT", multiple=True, help="Publish this text. Repeat.")
@click.option("--raw", is_flag=True, help="Publish the whole input as one message.")
@click.option(
    "--format",
    "kind",
    default="lines",
    show_default=True,
    type=click.Choice(["lines", "json"]),
    help="json: each line is an object, as to-file --format json and tail --json write it; its body is published.",
)
@DELIMITER
@click.option("--defer", metavar="TIME", type=DURATION, help="Let nsqd deliver the messages later.")
@click.option("--from-line", default=1, metavar="N", type=click.IntRange(min=1), help="Begin with this line.")
@RATE
def pub(
    cluster: Cluster,
    stop: StopSignals,
    topic: str,
    file: str,
    messages: tuple[str, ...],
    raw: bool,
    kind: str,
    delimiter: bytes | None,
    defer: float | None,
    from_line: int,
    rate: float | None,
) -> int:
    """Publish texts (-m), or each line of FILE or of stdin, as a message.

    A line is published without its newline, and empty lines are left out. Ends when nsqd has confirmed all messages. If
    a line can't be published, says which one, and how to go on there. Each -m counts as a line.
    """
    is_json = kind == "json"
    _check_options(file=file, messages=messages, raw=raw, is_json=is_json, delimiter=delimiter, from_line=from_line)
    defer_ms = None if defer is None else round(defer * 1000)
    with contextlib.ExitStack() as opened:
        source: int | list[bytes] = [os.fsencode(message) for message in messages] or 0
        if file != "-":
            # Without O_NONBLOCK, opening a named pipe that no process writes would wait, also after a signal.
            source = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            opened.callback(os.close, source)
        elif source == 0 and sys.stdin is None:
            raise click.ClickException("stdin is closed; give the command a FILE, or a pipe to read")
        is_typed = source == 0 and os.isatty(0)
        if is_typed:
            click.echo("reading lines from the terminal; Ctrl-D ends", err=True)
        size = os.fstat(source).st_size if isinstance(source, int) and _is_file(source) else None
        counter = opened.enter_context(Counter("published", size, is_shown=not is_typed))
        with cluster.producer() as producer:
            limiter = RateLimiter(rate, stop.requested)
            decode = record_body if is_json else None
            publisher = _Publisher(
                producer, topic, defer_ms, counter, limiter, stop, raw, from_line, delimiter or b"\n", decode
            )
            publisher.publish(source)
    return publisher.report()  # after the progress has left the terminal


def _check_options(
    *, file: str, messages: tuple[str, ...], raw: bool, is_json: bool, delimiter: bytes | None, from_line: int
) -> None:
    if raw and from_line != 1:
        raise click.UsageError("--raw has one message, and no lines: leave out --from-line")
    if raw and (is_json or delimiter is not None):
        raise click.UsageError("--raw has one message, and no lines: leave out --format and --delimiter")
    if is_json and delimiter is not None:
        raise click.UsageError("--format json has a newline after each object: leave out --delimiter")
    if not messages:
        return
    if file != "-":
        raise click.UsageError("-m and FILE exclude each other")
    if raw or is_json or delimiter is not None:
        raise click.UsageError("-m has whole messages: leave out --raw, --format and --delimiter")
    if "" in messages:
        raise click.UsageError("-m is empty; nsqd takes no empty message")


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


@dataclass
class _Publisher:
    """Publishes the lines of one input.

    Attributes:
        defer: Milliseconds; None: publish without a delay.
        decode: Returns the body in a line, or raises ValueError; None: a line is a body.
        empty: Number of lines that were left out.
        together: Number of lines to publish together.
        line: Number of the last line that was published or left out.
        failure: Why not all lines were published.
        is_complete: True at the end of the input.
    """

    producer: Producer
    topic: str
    defer: int | None
    counter: Counter
    limiter: RateLimiter
    stop: StopSignals
    is_raw: bool
    from_line: int
    delimiter: bytes
    decode: Callable[[bytes], bytes] | None
    empty: int = 0
    together: int = FIRST_LINES
    line: int = 0
    failure: _Stopped | None = None
    is_complete: bool = False

    def publish(self, source: int | Sequence[bytes]) -> None:
        """Publish a file, or lines, until the end, a failure, or a signal."""
        try:
            if not isinstance(source, int):
                self._publish_some(source)
                self._check_from_line()
            elif self.is_raw:
                body = b"".join(self._reads(source))
                if self.stop.number is None:
                    self._publish([(1, body)])
            else:
                self._publish_lines(source)
            self.is_complete = self.stop.number is None
        except _Stopped as stopped:
            self.failure = stopped

    def _publish_lines(self, descriptor: int) -> None:
        begun: list[bytes] = []  # parts of a line whose end was not read yet
        size = 0  # their bytes
        for data in self._reads(descriptor):
            first, *others = data.split(self.delimiter)
            if self.line + 1 < self.from_line:
                first = first[:1]  # it is not published: whether it is empty is enough
            begun.append(first)
            size += len(first)
            if size > MAX_LINE:
                text = f"line of more than {MAX_LINE} bytes, the limit of gnsq pub: has the input no lines?"
                raise _Stopped(self._next_line, self._next_line, ValueError(text))
            if others:
                *lines, rest = b"".join(begun), *others
                begun, size = [rest], len(rest)
                self._publish_some(lines)
            self.counter.add(0, len(data))
        if self.stop.number is not None:
            return
        if any(begun):
            self._publish_some([b"".join(begun)])
        self._check_from_line()

    def _check_from_line(self) -> None:
        # After the last line nothing is left to do, as when "without this line" was advised for it.
        if self.stop.number is None and self.line + 1 < self.from_line:
            text = f"there is no line {self.from_line}: the input has {counted(self.line, 'line')}"
            raise click.ClickException(text)

    def _publish_some(self, lines: Sequence[bytes]) -> None:
        """Publish lines in steps of the rate, and of what nsqd stores in a short time.

        Raises:
            _Stopped: If one of them is not published.
        """
        numbered = [(number, line) for number, line in enumerate(lines, self.line + 1) if number >= self.from_line]
        wanted = [(number, line) for number, line in numbered if line]
        self.empty += len(numbered) - len(wanted)
        limits = (self.limiter.step, None if self.defer is None else DEFERRED_AT_ONCE, len(wanted))
        most = min((limit for limit in limits if limit), default=1)
        start = 0
        while start < len(wanted):
            some = wanted[start : start + min(most, self.together)]
            self.limiter.wait(len(some))
            if self.stop.number is not None:
                self.line = some[0][0] - 1
                return
            began = time.monotonic()
            self._publish(some if self.decode is None else self._decoded(some, self.decode))
            if len(some) == self.together:
                self.together = next_lines(self.together, time.monotonic() - began)
            start += len(some)
        self.line += len(lines)

    def _decoded(
        self, lines: Sequence[tuple[int, bytes]], decode: Callable[[bytes], bytes]
    ) -> Sequence[tuple[int, bytes]]:
        """Return the bodies in lines. If a line has none, publish those before it, and raise _Stopped."""
        bodies: list[tuple[int, bytes]] = []
        for number, line in lines:
            try:
                bodies.append((number, decode(line)))
            except ValueError as error:
                self._publish(bodies)
                raise _Stopped(number, number, error) from error
        return bodies

    def _publish(self, lines: Sequence[tuple[int, bytes]]) -> None:
        """Publish numbered lines.

        Raises:
            _Stopped: If nsqd has not confirmed all of them.
        """
        if not lines:
            return
        if self.defer is not None:
            self._publish_deferred(lines)
        else:
            bodies = [body for _, body in lines]
            try:
                if len(bodies) == 1:
                    self.producer.publish(self.topic, bodies[0])
                else:
                    self.producer.multipublish(self.topic, bodies)
            except (NSQException, ValueError) as error:
                if len(lines) > 1 and isinstance(error, (NSQErrorCode, ValueError)):
                    # nsqd has stored none of them: find the line that it refuses, and publish those before it.
                    half = len(lines) // 2
                    self._publish(lines[:half])
                    self._publish(lines[half:])
                    return
                first, last = lines[0][0], lines[-1][0]
                # All of them or none is published; only of an unknown outcome it is not known which.
                raise _Stopped(first, last if isinstance(error, NSQUnknown) else first, error) from error
            self.counter.add(len(bodies))

    def _publish_deferred(self, lines: Sequence[tuple[int, bytes]]) -> None:
        results, failed = [], None
        last = 0  # the last line that is or may be published
        for number, body in lines:
            try:
                results.append((number, self.producer.publish_async(self.topic, body, self.defer)))
            except (NSQException, ValueError) as error:
                failed = _Stopped(number, number, error)
                break
        for number, result in results:
            try:
                result.get()
            except NSQException as error:
                failed = _Stopped(number, number, error) if failed is None or failed.first > number else failed
                last = number if isinstance(error, NSQUnknown) else last
            else:
                last = number
                self.counter.add(1)
        if failed is not None:
            failed.last = max(failed.first, last)
            raise failed

    def _reads(self, descriptor: int) -> Iterator[bytes]:
        """Read until the end of the input or a signal."""
        is_file = _is_file(descriptor)
        while self.stop.number is None:
            if is_file:
                gevent.sleep(0)  # other greenlets, such as the one that reads responses, run meanwhile
            else:
                until_signal(self.stop, wait_read, descriptor)
                if self.stop.number is not None:
                    return
            try:
                data = os.read(descriptor, READ_SIZE)
            except BlockingIOError:  # another process has read it
                continue
            except OSError as error:
                raise _Stopped(self._next_line, self._next_line, error) from error
            if not data:
                return
            yield data

    @property
    def _next_line(self) -> int:
        """Number of the first line that is to be published next."""
        return max(self.line + 1, self.from_line)

    def report(self) -> int:
        """Write to stderr what was published, and where to go on. Return the exit status."""
        skipped = f"; {counted(self.empty, 'empty line', spec=',')} left out" if self.empty else ""
        click.echo(self.counter.summary() + skipped, err=True)
        if self.failure is not None:
            text = str(self.failure.error) if self.is_raw else self.failure.advice()
            click.echo(f"Error: {text}", err=True)
            return 1
        if not self.is_complete and self.stop.number is not None:
            then = "nothing was published" if self.is_raw else f"to go on: --from-line {self._next_line}"
            click.echo(f"{self.stop.number.name}: stopped; {then}", err=True)
            return 128 + self.stop.number
        return 0
