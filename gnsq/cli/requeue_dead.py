"""gnsq requeue-dead: publishes given-up messages to their topics again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import click

from gnsq.cli.command import Command
from gnsq.cli.formats import harmless
from gnsq.cli.output import Output
from gnsq.cli.parameters import COUNT, DURATION, PAUSE, RATE
from gnsq.cli.progress import Counter
from gnsq.cli.receiving import Received, Receiver, requeue_all
from gnsq.cli.republish import BATCH, Outcome, Publication, Republisher
from gnsq.cli.servers import Cluster
from gnsq.cli.topics import CHANNEL, TOPIC, Topics
from gnsq.dead_letter import DeadLetter, decode_dead_letter
from gnsq.errors import NSQNotSent
from gnsq.message import Message
from gnsq.running import StopSignals
from gnsq.texts import counted, id_text

__all__ = ["requeue_dead"]

MAX_IN_FLIGHT = 1000
# nsqd's default limit of RDY. A dry run keeps its messages in flight until its end, so it sees no more than these.
MAX_DRY_RUN = 2500
_EXAMPLES = """
    gnsq requeue-dead orders-dead --error TimeoutError --newer 2h --dry-run
    gnsq requeue-dead orders-dead --all --rate 50
"""


@click.command("requeue-dead", cls=Command, says_why=True, examples=_EXAMPLES)
@click.argument("dead_topic", type=TOPIC)
@click.option("--all", "is_all", is_flag=True, help="All dead letters. Needed if no condition is given.")
@click.option("--error", metavar="TYPE", help="Only if the last exception is of this class, such as ValueError.")
@click.option("--reason", metavar="TEXT", help="Only if the text of the last exception contains this.")
@click.option("--older", metavar="TIME", type=DURATION, help="Only if given up before this time: 90s, 10m, 2h or 3d.")
@click.option("--newer", metavar="TIME", type=DURATION, help="Only if given up within this time.")
@click.option("--to", metavar="TOPIC", type=TOPIC, help="Publish to this topic. Needed for bodies without an envelope.")
@COUNT
@RATE
@click.option("--dry-run", is_flag=True, help="Only list what would be done.")
@click.option(
    "--channel", default="requeue-dead", show_default=True, metavar="NAME", type=CHANNEL, help="Channel of DEAD_TOPIC."
)
@click.option(
    "--leave-for",
    default="10m",
    show_default=True,
    metavar="TIME",
    type=DURATION,
    help="When messages come again that are not requeued; up to nsqd's max-req-timeout (1h).",
)
@click.option(
    "--idle", default="3s", show_default=True, metavar="TIME", type=PAUSE, help="End when none came for this time."
)
def requeue_dead(
    cluster: Cluster,
    stop: StopSignals,
    dead_topic: str,
    is_all: bool,
    error: str | None,
    reason: str | None,
    older: float | None,
    newer: float | None,
    to: str | None,
    count: int | None,
    rate: float | None,
    dry_run: bool,
    channel: str,
    leave_for: float,
    idle: float,
) -> int:
    """Publish dead letters to the topics that they came from: messages that consumers gave up, in the topic DEAD_TOPIC.

    Consumers with the option dead_letter_topic write dead letters. The bodies in them are published.
    All channels of a topic get such a message, not only the one that gave it up. Other bodies need --to.

    All conditions must be true. A dead letter is finished after nsqd has confirmed its body. If no response comes, it
    stays, and its body may be doubled later. All others stay in the channel, and come again after the time of
    --leave-for.

    The channel gets the letters that come after it was created, and those that wait in a topic without any channel. So
    create it before you need it: gnsq channel create DEAD_TOPIC requeue-dead. --dry-run creates it, too.
    """
    choice = _Choice(error, reason, older, newer)
    if not choice and not is_all:
        raise click.UsageError("no condition is given: add one such as --error or --newer, or --all")
    if choice and is_all:
        raise click.UsageError("--all and conditions exclude each other: leave --all out")
    if to == dead_topic:
        raise click.UsageError(f"--to {to} is the topic of the dead letters: give another topic")
    with contextlib.ExitStack() as opened:
        receiver = Receiver(
            *(cluster, Topics((dead_topic,)), channel, stop, Counter("requeued")),
            max_in_flight=MAX_DRY_RUN if dry_run else MAX_IN_FLIGHT,
            batch=BATCH,
            count=None if dry_run else count,
            is_filtered=True,
            idle=idle,
            rate=None if dry_run else rate,
            reconnect_initial=1.0,
            needs_topic=True,
        )
        producer = None if dry_run else opened.enter_context(cluster.producer(batch_messages=BATCH))
        run = _Run(choice, to, leave_for, dry_run, count, receiver.end)
        requeuer = Republisher(
            *(receiver, producer, run.decide),
            refused_delay=leave_for,
            retry_delay=leave_for,
            tries_again=False,
            is_fatal=lambda error: isinstance(error, NSQNotSent),
        )
        try:
            requeuer.run()
        finally:
            _report(run, requeuer, receiver)
    # The letters are given back before this, since the reader of stdout may be slow.
    if Output(stop).write([f"{line}\n".encode() for line in run.lines]) < len(run.lines):
        receiver.is_complete = False  # if a signal has ended it
    if dry_run and receiver.is_idle and receiver.was_starved:
        text = f"a dry run keeps the letters in flight, so it looked at the first {len(run.due):,} only"
        click.echo(f"{text}; there may be more", err=True)
    failed = (Outcome.REFUSED, Outcome.NOT_SENT, Outcome.UNKNOWN)
    return receiver.status() or (1 if any(requeuer.counts[outcome] for outcome in failed) else 0)


def _report(run: _Run, requeuer: Republisher, receiver: Receiver) -> None:
    if run.is_dry:
        would = counted(run.chosen, "message", spec=",")
        click.echo(
            f"{would} would be requeued, {run.not_chosen:,} left; dry run: none was published or finished", err=True
        )
        return
    until = datetime.now().astimezone() + timedelta(seconds=run.leave_for)
    parts = [receiver.counter.summary()]
    if run.not_chosen:
        left = f"left in the channel, deferred until {until:%Y-%m-%d %H:%M:%S} at the latest"
        parts.append(f"{counted(run.not_chosen, 'message', spec=',')} {left}")
    if run.without_topic:
        parts.append(f"{counted(run.without_topic, 'message', spec=',')} of these without an envelope: give --to")
    parts += requeuer.summary()
    if not run.due and receiver.is_idle:
        parts.append(
            "none came; those that an earlier run has left come again after its --leave-for, and those from before the "
            "topic had this channel went to another"
        )
    click.echo("; ".join(parts), err=True)


@dataclass(frozen=True)
class _Choice:
    """The conditions; None: any."""

    error: str | None
    reason: str | None
    older: float | None
    newer: float | None

    def __bool__(self) -> bool:
        given = (self.error, self.reason, self.older, self.newer)
        return any(value is not None for value in given)

    def chooses(self, message: Message, letter: DeadLetter | None, now: float) -> bool:
        """Return True if all conditions are true. A message without an envelope has neither an error nor a reason.

        Args:
            now: Seconds of Unix time.
        """
        names = () if letter is None else (letter.error, letter.error.rpartition(".")[2])  # of a nested class
        if self.error is not None and self.error not in names:
            return False
        if self.reason is not None and (letter is None or self.reason not in letter.reason):
            return False
        # Without an envelope, the time of the publish is that of giving up.
        age = now - (message.timestamp / 1e9 if letter is None else letter.given_up_at)
        is_old_enough = self.older is None or age >= self.older
        return is_old_enough and (self.newer is None or age <= self.newer)


@dataclass
class _Run:
    """Decides what happens to each message, and ends the run when messages come again.

    Attributes:
        to: Topic for all of them.
        leave_for: Seconds until a message comes again that was left.
        end: Ends the run.
        due: The messages that have come, by nsqd and id: monotonic time at which they come again if they were left.
        chosen, not_chosen: Numbers of messages.
        without_topic: Number of the messages that are not chosen only since they have no topic to be published to.
        lines: What a dry run shows.
    """

    choice: _Choice
    to: str | None
    leave_for: float
    is_dry: bool
    count: int | None
    end: Callable[[], object]
    due: dict[tuple[str | None, bytes], float] = field(default_factory=dict)
    chosen: int = 0
    not_chosen: int = 0
    without_topic: int = 0
    lines: list[str] = field(default_factory=list)

    def decide(self, received: Received) -> Publication | None:
        """Return what to publish. Defer other messages, but leave those of a dry run in flight."""
        message, key = received.message, (received.message.nsqd, received.message.id)
        now = time.monotonic()
        if key in self.due:
            # If it was left, the others have come, too. It may also come too early: its answer was lost with a
            # connection.
            if now >= self.due[key]:
                self.end()
            self._leave(message)
            return None
        if self.is_dry and self.chosen == self.count:
            self.end()
            return None
        self.due[key] = now + self.leave_for
        letter = decode_dead_letter(message.body)
        topic = self.to or (None if letter is None else letter.topic)
        is_chosen = self.choice.chooses(message, letter, time.time())
        self.without_topic += is_chosen and topic is None
        self.chosen += is_chosen and topic is not None
        self.not_chosen += not is_chosen or topic is None
        if self.is_dry:
            self.lines.append(_line(message, letter, topic, is_chosen=is_chosen))
        if self.is_dry or not is_chosen or topic is None:
            self._leave(message)
            return None
        return Publication(topic, message.body if letter is None else letter.body)

    def _leave(self, message: Message) -> None:
        if not self.is_dry:
            requeue_all([message], self.leave_for)


def _line(message: Message, letter: DeadLetter | None, topic: str | None, *, is_chosen: bool) -> str:
    """Write what would be done with a message. It is made harmless: the texts in a dead letter may be anything."""
    what = "leave" if not is_chosen else "leave (needs --to)" if topic is None else f"publish to {topic}"
    start = f"{id_text(message.id)} {what}:"
    if letter is None:
        return f"{start} no envelope, published {_time(message.timestamp / 1e9)}"
    why = ": ".join(part for part in (letter.error, letter.reason) if part)
    attempts = counted(letter.attempts, "attempt")
    origin = f"{letter.topic}/{letter.channel}"
    line = f"{start} from {origin}, given up {_time(letter.given_up_at)} after {attempts}: {why}"
    return harmless(" ".join(line.split()))


def _time(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"
