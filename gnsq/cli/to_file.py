"""gnsq to-file: writes the messages of topics to files."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import gevent

from gnsq.cli.command import Command
from gnsq.cli.formats import message_record
from gnsq.cli.parameters import COUNT, DELIMITER, DURATION, IDLE, PAUSE, SIZE, FilePath, Parsed
from gnsq.cli.progress import Counter
from gnsq.cli.receiving import Received, Receiver
from gnsq.cli.rotating_file import COMPRESSIONS, Recovery, RotatingFile, file_stem, recover
from gnsq.cli.servers import Cluster
from gnsq.cli.topics import CHANNEL, REFRESH, TOPIC, Topics, topic_pattern
from gnsq.concurrency.greenlets import spawn
from gnsq.concurrency.io_thread import BlockingIOThread
from gnsq.localfiles import make_directory
from gnsq.message import Message, finish_all
from gnsq.running import StopSignals
from gnsq.texts import counted, reason_of

__all__ = ["to_file"]

logger = logging.getLogger(__name__)

NAME = "{topic}.%Y-%m-%dT%H-%M-%S.%fZ.{host}.{pid}"
# nsqd's default limit for one connection (--max-rdy-count).
MAX_IN_FLIGHT = 2500
# Seconds between two looks at the clock while a file must be complete at a certain time: the clock may be set.
CLOCK_CHECK_INTERVAL = 1.0
# Seconds that the end of the command waits for the disk, after that of the Receiver.
DISK_GRACE = 5.0


def _encode_json(topic: str, message: Message) -> bytes:
    return json.dumps(message_record(topic, message), ensure_ascii=False, separators=(",", ":")).encode()


# Suffix of the names of files, and what makes a record of a message, without its delimiter. Files that a killed process
# has left are found by these suffixes.
FORMATS: Mapping[str, tuple[str, Callable[[str, Message], bytes]]] = {
    "lines": (".log", lambda topic, message: message.body),
    "json": (".jsonl", _encode_json),
}
_EXAMPLES = """
    gnsq to-file orders --directory /backup --compress zstd
    gnsq to-file orders --format json --idle 10s
    gnsq to-file --topic-pattern . --name '{topic}-%Y-%m-%d-%H-{pid}'
"""


@click.command("to-file", cls=Command, examples=_EXAMPLES)
@click.argument("names", metavar="TOPIC...", nargs=-1, type=TOPIC)
@click.option(
    "--topic-pattern",
    metavar="REGEX",
    type=Parsed("pattern", topic_pattern),
    help="Also all topics in whose names this is found, and those that are created later. ^orders begins the name.",
)
@click.option(
    "--topic-refresh",
    metavar="TIME",
    default=f"{REFRESH:g}s",
    show_default=True,
    type=PAUSE,
    help="Time between two questions for new topics, with --topic-pattern.",
)
@click.option(
    "-d",
    "--directory",
    default=".",
    type=FilePath(file_okay=False, path_type=Path),
    help="Where the files are. Default: the current directory.",
)
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
    "topic, and body, or body_base64 if the body is not UTF-8. gnsq pub --format json publishes them again.",
)
@DELIMITER
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
@IDLE
def to_file(
    cluster: Cluster,
    stop: StopSignals,
    names: tuple[str, ...],
    topic_pattern: re.Pattern[str] | None,
    topic_refresh: float,
    directory: Path,
    channel: str,
    kind: str,
    delimiter: bytes | None,
    rotate_size: float | None,
    rotate_interval: float,
    compress: str,
    level: int | None,
    name: str,
    sync_interval: float,
    max_in_flight: int,
    count: int | None,
    idle: float | None,
) -> int:
    """Write the messages of topics to files, for each topic files of its own.

    Runs until it is stopped. A message is finished after it is on the disk: a message may be in the files more than
    once, but none is lost. A file has the name .NAME.part until it is complete. Files that a killed process has left
    are completed at the start. No file is replaced, and none is empty.
    """
    if rotate_size is not None and rotate_size < 1:
        raise click.UsageError(f"--rotate-size {rotate_size:g} must be at least 1 byte")
    if kind == "json" and delimiter is not None:
        raise click.UsageError("--format json has a newline after each object: leave out --delimiter")
    topics = Topics(tuple(dict.fromkeys(names)), topic_pattern, topic_refresh)
    if not topics.names and topics.pattern is None:
        raise click.UsageError("no topic is given: give one or more, or --topic-pattern")
    if "{topic}" not in name and topics.only is None:
        raise click.UsageError(f"--name {name} needs {{topic}}, since each topic has files of its own")
    suffix, encode = FORMATS[kind]
    end = delimiter or b"\n"
    fields = {"channel": channel, "host": _host(), "pid": str(os.getpid())}

    def make_files(topic: str) -> RotatingFile:
        stem = functools.partial(file_stem, name, {"topic": topic, **fields})
        stem(time.time())
        return RotatingFile(
            *(directory, stem, suffix, COMPRESSIONS[compress], level),
            max_size=None if rotate_size is None else int(rotate_size),
            interval=rotate_interval or None,
            on_complete=_log_complete,
            delimiter=end,
        )

    try:
        probe, *_ = [make_files(topic) for topic in topics.names or ("topic",)]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    io_thread = BlockingIOThread()
    for recovery in io_thread.call(_prepare, directory, probe):
        click.echo(_recovery_text(recovery), err=True)
    receiver = Receiver(
        *(cluster, topics, channel, stop, Counter("written")),
        max_in_flight=max_in_flight,
        batch=max_in_flight,
        count=count,
        idle=idle,
        linger=sync_interval,
    )
    writer = _FileWriter(receiver, make_files, io_thread, lambda topic, message: encode(topic, message) + end)
    failure = writer.run()
    completed = counted(sum(each.completed for each in writer.files.values()), "file", spec=",")
    click.echo(f"{receiver.counter.summary()}, to {completed} in {directory}", err=True)
    if failure:
        raise click.ClickException(failure)
    return receiver.status()


def _host() -> str:
    return re.sub(r"[^\w.-]", "_", socket.gethostname(), flags=re.ASCII) or "localhost"


def _prepare(directory: Path, probe: RotatingFile) -> list[Recovery]:
    """Make the directory, complete what is in it, and check that files can be made there."""
    try:
        make_directory(directory)
        recoveries = recover(directory, [suffix for suffix, _ in FORMATS.values()])
        probe.check()
    except OSError as error:
        raise ValueError(
            f"no file can be made in {directory} ({error.filename}: {reason_of(error)}): give another directory, or "
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
        make_files: Makes the files of a topic.
        encode: Returns the record of a message.

    Attributes:
        files: The files of each topic of which a message has come.
    """

    def __init__(
        self,
        receiver: Receiver,
        make_files: Callable[[str], RotatingFile],
        io_thread: BlockingIOThread,
        encode: Callable[[str, Message], bytes],
    ) -> None:
        self._receiver = receiver
        self.files: dict[str, RotatingFile] = {}
        self._make_files = make_files
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
                f"{error.filename}: {reason_of(error)}. {given_back} requeued. Free space, or repair the file system, "
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
                self._io_thread.call(self._close)
            except OSError as error:
                return (
                    f"{error.filename}: not completed: {reason_of(error)}. The next start of gnsq to-file completes it"
                )
            return ""
        return (
            f"the disk has not responded for {self._io_thread.busy_seconds or 0.0:.0f} s. nsqd delivers the messages "
            "again that are not finished; the next start completes the file"
        )

    def _close(self) -> None:
        """Complete the last file of each topic, in the I/O thread. If that fails for some, raise the last error."""
        with contextlib.ExitStack() as closing:
            for files in self.files.values():
                closing.callback(files.close)

    def _handle(self, received: Sequence[Received]) -> None:
        messages = [each.message for each in received]
        self._io_thread.call(self._write, received)
        self._receiver.done(len(messages))
        if unfinished := finish_all(messages):
            text = "%s not finished, as the connection is lost: nsqd delivers them again, and the files have them twice"
            logger.warning(text, counted(len(unfinished), "written message is", "written messages are"))

    def _write(self, received: Sequence[Received]) -> None:
        """Write a batch, in the I/O thread."""
        records = defaultdict(list)
        for topic, message in received:
            records[topic].append(self._encode(topic, message))
        for topic, some in records.items():
            if topic not in self.files:
                self.files[topic] = self._make_files(topic)
            self.files[topic].write(some)

    def _rotate_loop(self) -> None:
        """Complete files whose time is over, also while no message comes."""
        while True:
            left = [each.seconds_left for each in list(self.files.values())]
            gevent.sleep(min([CLOCK_CHECK_INTERVAL, *(seconds for seconds in left if seconds is not None)]))
            for files in list(self.files.values()):
                if files.seconds_left == 0.0:
                    self._io_thread.call(files.write, ())  # which completes it, unless another call has
