"""gnsq to-file: writes the messages of a topic to files."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import gevent

from gnsq.cli.cluster import Cluster
from gnsq.cli.command import Command
from gnsq.cli.formats import message_record
from gnsq.cli.parameters import COUNT, DURATION, SIZE, FilePath
from gnsq.cli.progress import Counter
from gnsq.cli.receiving import Received, Receiver
from gnsq.cli.rotating_file import COMPRESSIONS, Recovery, RotatingFile, file_stem, recover
from gnsq.cli.topics import CHANNEL, TOPIC
from gnsq.concurrency.greenlets import spawn
from gnsq.concurrency.io_thread import BlockingIOThread
from gnsq.localfiles import make_directory
from gnsq.message import Message, finish_all
from gnsq.running import StopSignals
from gnsq.texts import counted

__all__ = ["to_file"]

logger = logging.getLogger(__name__)

NAME = "{topic}.%Y-%m-%dT%H-%M-%S.%fZ.{host}.{pid}"
# nsqd's default limit for one connection (--max-rdy-count).
MAX_IN_FLIGHT = 2500
# Seconds between two looks at the clock while a file must be complete at a certain time: the clock may be set.
CLOCK_CHECK_INTERVAL = 1.0
# Seconds that the end of the command waits for the disk, after that of the Receiver.
DISK_GRACE = 5.0


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
@click.option("--compress", default="none", show_default=True, type=click.Choice(list(COMPRESSIONS)))
@click.option(
    "--level",
    metavar="N",
    type=int,
    help="Level of the compression. "
    + " ".join(
        f"{name}: {each.levels[0]} to {each.levels[1]}, default {each.levels[2]}."
        for name, each in COMPRESSIONS.items()
        if each.levels is not None
    ),
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
    if rotate_size is not None and rotate_size < 1:
        raise click.UsageError(f"--rotate-size {rotate_size:g} must be at least 1 byte")
    suffix, encode = FORMATS[kind]
    try:
        stem(time.time())
        files = RotatingFile(
            *(directory, stem, suffix, COMPRESSIONS[compress], level),
            max_size=None if rotate_size is None else int(rotate_size),
            interval=rotate_interval or None,
            on_complete=_log_complete,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    io_thread = BlockingIOThread()
    for recovery in io_thread.call(_prepare, directory, files):
        click.echo(_recovery_text(recovery), err=True)
    receiver = Receiver(
        *(cluster, [topic], channel, stop, Counter("written")),
        max_in_flight=max_in_flight,
        batch=max_in_flight,
        count=count,
        linger=sync_interval,
    )
    writer = _FileWriter(receiver, files, io_thread, functools.partial(encode, topic))
    failure = writer.run()
    click.echo(
        f"{receiver.counter.summary()}, to {counted(files.completed, 'file', spec=',')} in {directory}", err=True
    )
    if failure:
        raise click.ClickException(failure)


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


class _FileWriter:
    """Writes the messages of a Receiver to files, and finishes each batch after it is on the disk.

    Args:
        encode: Returns the record of a message.
    """

    def __init__(
        self, receiver: Receiver, files: RotatingFile, io_thread: BlockingIOThread, encode: Callable[[Message], bytes]
    ) -> None:
        self._receiver = receiver
        self._files = files
        self._io_thread = io_thread
        self._encode = encode

    def run(self) -> str:
        """Write messages until the end, and complete the last file. Return why that failed; empty if it did not."""
        rotator = spawn("gnsq-to-file-rotate", self._rotate_loop, on_failure=self._receiver.fail)
        errors = []
        try:
            self._receiver.run(self._handle)
        except OSError as error:
            given_back = counted(self._receiver.requeued, "message was", "messages were")
            errors.append(
                f"{error.filename}: {error.strerror}. {given_back} requeued. Free space, or repair the file system, "
                "and start again"
            )
        finally:
            rotator.kill()
            errors.append(self._complete())
            self._io_thread.close()
        return "\n".join(filter(None, errors))

    def _complete(self) -> str:
        """Complete the last file. Return why that failed, if it did."""
        with gevent.Timeout(DISK_GRACE, False):
            try:
                self._io_thread.call(self._files.close)
            except OSError as error:
                return f"{error.filename}: not completed: {error.strerror}. The next start of gnsq to-file completes it"
            return ""
        return (
            f"the disk has not responded for {self._io_thread.busy_seconds or 0.0:.0f} s. nsqd delivers the messages "
            "again that are not finished; the next start completes the file"
        )

    def _handle(self, received: Sequence[Received]) -> None:
        messages = [each.message for each in received]
        self._io_thread.call(self._write, messages)
        self._receiver.done(len(messages))
        if unfinished := finish_all(messages):
            text = "%s not finished, as the connection is lost: nsqd delivers them again, and the files have them twice"
            logger.warning(text, counted(len(unfinished), "written message is", "written messages are"))

    def _write(self, messages: Sequence[Message]) -> None:
        """Write a batch, in the I/O thread."""
        self._files.write([self._encode(message) for message in messages])

    def _rotate_loop(self) -> None:
        """Complete files whose time is over, also while no message comes."""
        while True:
            left = self._files.seconds_left
            gevent.sleep(CLOCK_CHECK_INTERVAL if left is None else min(left, CLOCK_CHECK_INTERVAL))
            if self._files.seconds_left == 0.0:
                self._io_thread.call(self._files.write, ())  # which completes it, unless another call has
