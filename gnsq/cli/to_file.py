"""gnsq to-file: writes the messages of a topic to files."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import gevent
from gevent.event import Event

from gnsq.cli.cluster import Cluster
from gnsq.cli.command import Command
from gnsq.cli.formats import message_record
from gnsq.cli.inbox import BATCH_SIZE, MAX_WAITING_SIZE, requeue_all
from gnsq.cli.parameters import COUNT, DURATION, SIZE, FilePath
from gnsq.cli.progress import Counter
from gnsq.cli.rotating_file import LEVELS, Recovery, RotatingFile, compression, file_stem, recover
from gnsq.cli.starting import start
from gnsq.cli.topics import CHANNEL, TOPIC
from gnsq.concurrency.greenlets import spawn
from gnsq.concurrency.io_thread import BlockingIOThread
from gnsq.consumer import Consumer
from gnsq.errors import NSQException
from gnsq.localfiles import make_directory
from gnsq.message import Message, finish_all
from gnsq.running import StopSignals
from gnsq.texts import counted

__all__ = ["to_file"]

logger = logging.getLogger(__name__)

NAME = "{topic}.%Y-%m-%dT%H-%M-%S.%fZ.{host}.{pid}"
# nsqd's default limit for one connection (--max-rdy-count).
MAX_IN_FLIGHT = 2500
# A batch is written at the latest when its first message has waited for this part of the msg_timeout.
WRITE_AFTER = 0.5
# While the disk is slow, messages are touched if less than this part of the msg_timeout is left.
TOUCH_BELOW = 0.6
# Seconds between two checks whether messages must be touched, during a write.
TOUCH_CHECK_INTERVAL = 0.2
# Seconds between two looks at the clock while a file must be complete at a certain time: the clock may be set.
CLOCK_CHECK_INTERVAL = 1.0
# Seconds that the end of the command waits for the disk, after the consumer's close_timeout.
DISK_GRACE = 10.0


def _encode_line(topic: str, message: Message) -> bytes:
    return message.body + b"\n"


def _encode_json(topic: str, message: Message) -> bytes:
    return json.dumps(message_record(topic, message), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


# Suffix of the names of files, and what makes a record of a message. Files that a killed process has left are found by
# these suffixes.
FORMATS: Mapping[str, tuple[str, Callable[[str, Message], bytes]]] = {
    "lines": (".log", _encode_line),
    "json": (".jsonl", _encode_json),
}


@click.command("to-file", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("directory", default=".", type=FilePath(file_okay=False, path_type=Path))
@click.option(
    "--channel",
    default="to-file",
    show_default=True,
    type=CHANNEL,
    help="All processes that read the same channel share its messages.",
)
@click.option(
    "--format",
    "kind",
    default="lines",
    show_default=True,
    type=click.Choice(list(FORMATS)),
    help="lines: each body and a newline. json: one object in each line, with id, timestamp (ns), attempts, nsqd, "
    "topic, and body, or body_base64 if the body is not UTF-8.",
)
@click.option("--rotate-size", metavar="BYTES", type=SIZE, help="Let no file get larger, such as 100M or 1G.")
@click.option(
    "--rotate-interval",
    metavar="TIME",
    default="1h",
    show_default=True,
    type=DURATION,
    help="Complete a file at each multiple of this time in UTC, such as 10m or 1d; 0: never.",
)
@click.option("--compress", default="none", show_default=True, type=click.Choice(["none", *LEVELS]))
@click.option(
    "--level",
    metavar="N",
    type=int,
    help="Level of the compression. "
    + " ".join(f"{name}: {low} to {high}, default {default}." for name, (low, high, default) in LEVELS.items()),
)
@click.option(
    "--name",
    metavar="TEMPLATE",
    default=NAME,
    help="Name of a file before its suffix: strftime in UTC for the time at which the file is begun, and {topic}, "
    f"{{channel}}, {{host}} and {{pid}}.  [default: {NAME}]",
)
@click.option(
    "--sync-interval",
    metavar="TIME",
    default="1s",
    show_default=True,
    type=DURATION,
    help="Longest time between the arrival of a message and fsync and FIN.",
)
@click.option(
    "--max-in-flight",
    metavar="N",
    default=MAX_IN_FLIGHT,
    show_default=True,
    type=click.IntRange(min=1),
    help="Limit of the messages that wait for fsync.",
)
@COUNT
def to_file(
    cluster: Cluster,
    stop: StopSignals,
    topic: str,
    directory: Path,
    channel: str,
    kind: str,
    rotate_size: float | None,
    rotate_interval: float,
    compress: str,
    level: int | None,
    name: str,
    sync_interval: float,
    max_in_flight: int,
    count: int | None,
) -> None:
    """Write the messages of TOPIC to files in DIRECTORY, by default the current one.

    Runs until it is stopped. A message is finished after it is on the disk: a message may be in the files more than
    once, but none is lost. A file has the name .NAME.part until it is complete. Files that a killed process has left
    are completed at the start. No file is replaced, and none is empty.
    """
    fields = {"topic": topic, "channel": channel, "host": _host(), "pid": str(os.getpid())}
    stem = functools.partial(file_stem, name, fields)
    try:
        compressed = compression(compress, level)
        stem(time.time())
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if rotate_size is not None and rotate_size < 1:
        raise click.UsageError(f"--rotate-size {rotate_size:g} must be at least 1 byte")
    suffix, encode = FORMATS[kind]
    files = RotatingFile(
        directory,
        stem,
        suffix,
        compressed,
        max_size=None if rotate_size is None else int(rotate_size),
        interval=rotate_interval or None,
        on_complete=_log_complete,
    )
    io_thread = BlockingIOThread()
    for recovery in io_thread.call(_prepare, directory, files):
        click.echo(_recovery_text(recovery), err=True)
    with Counter("written") as counter:
        writer = _MessageWriter(
            *(files, io_thread, counter, functools.partial(encode, topic)),
            sync_interval=sync_interval,
            max_in_flight=max_in_flight,
            count=count,
        )
        consumer = cluster.consumer(
            *(topic, channel, functools.partial(_BatchConsumer, writer.add)),
            max_in_flight=writer.max_in_flight,
            max_tries=0,
        )
        writer.run(cluster, consumer, stop)
    click.echo(f"{counter.summary()}, to {counted(files.completed, 'file', spec=',')} in {directory}", err=True)
    if writer.error is not None:
        raise click.ClickException(writer.error)


def _host() -> str:
    return re.sub(r"[^\w.-]", "_", socket.gethostname(), flags=re.ASCII) or "localhost"


def _prepare(directory: Path, files: RotatingFile) -> list[Recovery]:
    """Make the directory, complete what is in it, and check that files can be made there."""
    try:
        make_directory(directory)
        recoveries = recover(directory, [suffix for suffix, _ in FORMATS.values()])
        files.check()
    except OSError as error:
        raise ValueError(
            f"no file can be made in {directory} ({error.filename}: {error.strerror}): give another directory, or "
            "permission to read and write it"
        ) from error
    return recoveries


def _recovery_text(recovery: Recovery) -> str:
    if recovery.error is not None:
        return f"Warning: {recovery.part} was left by a killed process and can't be recovered: {recovery.error}"
    cut = f"; {counted(recovery.cut, 'byte', spec=',')} of incomplete records cut off" if recovery.cut else ""
    if recovery.path is None:
        return f"deleted {recovery.part}, which has no complete record{cut}"
    return f"recovered {recovery.path} of a killed process, {counted(recovery.size, 'byte', spec=',')}{cut}"


def _log_complete(path: Path, size: int) -> None:
    logger.info("%s is complete: %s", path, counted(size, "byte", spec=","))


class _BatchConsumer(Consumer):
    """Passes all messages that have arrived to a function with one call."""

    def __init__(self, add: Callable[[list[Message]], None], *arguments: Any, **options: Any) -> None:
        # Any: Consumer's own
        super().__init__(*arguments, **options)
        self._add = add

    def handle_messages(self, messages: list[Message]) -> None:
        self._add(messages)


class _MessageWriter:
    """Collects messages, writes them in batches, and finishes each batch after it is on the disk.

    Args:
        encode: Returns the record of a message.
        sync_interval: Seconds that a message may wait for its batch.
        count: Number of messages to write; None: no limit.

    Attributes:
        max_in_flight: Limit of the messages in flight at the start.
        error: Why messages could not be written, or the last file could not be completed; None if they could.
    """

    def __init__(
        self,
        files: RotatingFile,
        io_thread: BlockingIOThread,
        counter: Counter,
        encode: Callable[[Message], bytes],
        *,
        sync_interval: float,
        max_in_flight: int,
        count: int | None,
    ) -> None:
        self.max_in_flight = max_in_flight if count is None else min(max_in_flight, count)
        self.error: str | None = None
        self._files = files
        self._io_thread = io_thread
        self._counter = counter
        self._encode = encode
        self._sync_interval = sync_interval
        self._count = count
        self._accepted = 0
        # The messages of the next batch, the bytes of their bodies, and the time at which they must be written.
        self._waiting: list[Message] = []
        self._size = 0
        self._deadline = 0.0
        # The messages of the batch that is being written.
        self._writing: list[Message] = []
        self._msg_timeout = math.inf  # the shortest of all nsqds
        self._is_paused = False
        self._is_closing = self._is_closed = False
        self._wake = Event()
        self._ended = Event()  # set after count messages, and by a failure

    def run(self, cluster: Cluster, consumer: Consumer, stop: StopSignals) -> None:
        """Write messages until a signal, count messages or a failure. Then write what has arrived, and close."""
        self._consumer = consumer
        writer = spawn("gnsq-to-file", self._run, on_failure=self._fail)
        try:
            start(cluster, [consumer], stop)
            gevent.wait([stop.requested, self._ended], count=1)
        finally:
            self._close(consumer, writer)

    def _close(self, consumer: Consumer, writer: gevent.Greenlet) -> None:
        self._is_closing = True
        self._wake.set()
        consumer.close()
        self._is_closed = True
        self._wake.set()
        writer.join(DISK_GRACE)
        if not writer.ready():
            seconds = self._io_thread.busy_seconds or 0.0
            self.error = (
                f"the disk has not responded for {seconds:.0f} s. nsqd delivers the messages again that are not "
                "finished; the next start completes the file"
            )
        self._io_thread.close()

    # --- messages in

    def add(self, messages: list[Message]) -> None:
        """Receive messages. Requeue those above count, and all after a failure."""
        room = len(messages) if self._count is None else self._count - self._accepted
        if self.error is not None or self._is_closed:
            room = 0
        if room < len(messages):
            requeue_all(messages[room:])
            messages = messages[:room]
        if not messages:
            return
        self._accepted += len(messages)
        if not self._waiting:
            left = messages[0].time_left
            self._msg_timeout = min(self._msg_timeout, math.inf if left is None else left)
            self._deadline = time.monotonic() + min(self._sync_interval, self._msg_timeout * WRITE_AFTER)
        self._waiting += messages
        self._size += sum(len(message.body) for message in messages)
        if self._size > MAX_WAITING_SIZE or self._accepted == self._count:
            self._is_paused = True
            self._consumer.pause()
        self._wake.set()

    # --- batches out

    def _run(self) -> None:
        self._write_loop()
        self._complete()

    def _complete(self) -> None:
        """Complete the last file, and let run() end."""
        try:
            self._io_thread.call(self._files.close)
        except OSError as error:
            self.error = f"{self.error}\n" if self.error is not None else ""
            self.error += (
                f"{error.filename}: not completed: {error.strerror}. The next start of gnsq to-file completes it"
            )
        self._ended.set()

    def _write_loop(self) -> None:
        while self._waiting or not self._is_closed:
            if self._waiting and self._is_due():
                self._write_batch()
                continue
            self._wake.wait(self._seconds_to_wait())
            self._wake.clear()
            if self._files.seconds_left == 0.0:
                self._io_thread.call(self._files.rotate)

    def _is_due(self) -> bool:
        """Return True if nothing is to be gained by waiting for more messages."""
        return (
            self._is_closing
            or self._is_paused
            or self._size >= BATCH_SIZE
            or time.monotonic() >= self._deadline
            # An nsqd has delivered nearly all messages that RDY allows, so no more may come.
            or self._consumer.is_starved
        )

    def _seconds_to_wait(self) -> float | None:
        times = [max(0.0, self._deadline - time.monotonic())] if self._waiting else []
        left = self._files.seconds_left
        if left is not None:
            times.append(min(left, CLOCK_CHECK_INTERVAL))
        return min(times, default=None)

    def _write_batch(self) -> None:
        self._writing, self._waiting, self._size = self._waiting, [], 0
        toucher = spawn(
            "gnsq-to-file-touch",
            self._touch_loop,
            on_failure="messages are not touched until the next write",
            delay=TOUCH_CHECK_INTERVAL,
        )
        try:
            self._io_thread.call(self._write, self._writing)
        finally:
            toucher.kill(block=False)
        batch, self._writing = self._writing, []
        self._counter.add(len(batch))
        # Before FIN: nsqd sends the next message when it gets FIN.
        self._limit_in_flight()
        if unfinished := finish_all(batch):
            text = "%s not finished, as the connection is lost: nsqd delivers them again, and the files have them twice"
            logger.warning(text, counted(len(unfinished), "written message is", "written messages are"))
        if self._count is not None and self._counter.count >= self._count:
            self._ended.set()

    def _write(self, messages: Sequence[Message]) -> None:
        """Write a batch, in the I/O thread."""
        self._files.write([self._encode(message) for message in messages])

    def _limit_in_flight(self) -> None:
        """Request no more messages than are wanted, and end a pause."""
        if self._count is not None:
            wanted = min(self.max_in_flight, self._count - self._counter.count)
            if 0 < wanted < self._consumer.max_in_flight:
                self._consumer.max_in_flight = wanted
        if self._is_paused and self._accepted != self._count and not self._is_closing:
            self._is_paused = False
            self._consumer.resume()

    def _touch_loop(self) -> None:
        """Keep the messages while the disk is slow."""
        while True:
            for message in [*self._writing, *self._waiting]:
                left = message.time_left
                if left is not None and 0 < left < self._msg_timeout * TOUCH_BELOW:
                    with contextlib.suppress(NSQException):  # the connection is lost, or close_timeout is over
                        message.touch()
            gevent.sleep(TOUCH_CHECK_INTERVAL)

    def _fail(self, error: Exception) -> None:
        """Requeue the messages, since none is written any more, and end."""
        if not isinstance(error, OSError):
            logger.error("internal error: no more messages are written", exc_info=error)
        left, self._writing, self._waiting = [*self._writing, *self._waiting], [], []
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else repr(error)
        self.error = (
            f"{reason}. {counted(len(left), 'message was', 'messages were')} requeued. Free space, or repair the file "
            "system, and start again"
        )
        self._consumer.pause()  # otherwise nsqd would deliver the messages here again until the close
        requeue_all(left)
        self._complete()
