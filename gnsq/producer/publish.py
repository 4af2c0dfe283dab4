"""Publish: one publish, from the call to its outcome. Knows its owner and its link by their protocols only.

What a publish may end as, and what is tried again. PURE.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from gnsq.errors import (
    NSQBadTopic,
    NSQConnectionClosed,
    NSQDPubFailed,
    NSQErrorCode,
    NSQException,
    NSQMPubFailed,
    NSQNotSent,
    NSQProtocolError,
    NSQPubFailed,
    NSQPutFailed,
    NSQUnauthorized,
)
from gnsq.nsqd.pending import PendingRequest
from gnsq.producer.result import PublishResult
from gnsq.protocol.commands import split_multipublish_body
from gnsq.protocol.frames import OK

__all__ = [
    "Link",
    "Publish",
    "PublishOwner",
    "Totals",
    "Unconfirmed",
    "Where",
    "copied",
    "forbids",
    "is_about_the_nsqd",
    "is_about_the_topic",
    "leaves_open",
    "tries_elsewhere",
]


_Error = TypeVar("_Error", bound=NSQException)

# nsqd could not take what is in order: it ends, its topic is being deleted, or its disk is full.
_ABOUT_THE_NSQD = (NSQPubFailed, NSQMPubFailed, NSQDPubFailed, NSQPutFailed)


def is_about_the_nsqd(error: object) -> bool:
    """Whether a refusal says something of the nsqd, and not of what was published."""
    return isinstance(error, _ABOUT_THE_NSQD)


def is_about_the_topic(error: object) -> bool:
    """Whether a refusal says something of the topic: so of all that is published to it."""
    return isinstance(error, (NSQUnauthorized, NSQBadTopic))


def forbids(error: object) -> bool:
    """Whether a refusal is the end of the connection, and of all that it has for the same topic.

    Source: nsqd protocol_v2.go, CheckAuth. HTTP knows no such thing.
    """
    return isinstance(error, NSQUnauthorized)


def copied(error: _Error) -> _Error:
    """Copy an error, for one of several that end with it: each is raised with a traceback of its own."""
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


def leaves_open(error: NSQErrorCode) -> bool:
    """Whether a refused MPUB may have been taken in part: nsqd stops at the first message that it can't store. One that
    ends, and says so, has taken none.

    Source: nsqd topic.go, PutMessages; http.go, doMPUB, says EXITING of either.
    """
    return isinstance(error, NSQMPubFailed) and not error.text.endswith("exiting")


def tries_elsewhere(error: NSQErrorCode, refusals: int, nsqds: int) -> bool:
    """Whether a refused publish is tried again: each nsqd may refuse it once, a single one twice.

    It can't duplicate anything: nsqd has not taken what it refuses, unless that leaves_open(). What is wrong with the
    publish itself is wrong everywhere.

    Args:
        refusals: How often it was refused, this time included.
    """
    return is_about_the_nsqd(error) and refusals < max(nsqds, 2)


@dataclass(slots=True)
class Totals:
    """Messages by what became of them, and how often something had to be sent again."""

    confirmed: int = 0
    refused: int = 0
    not_sent: int = 0
    unknown: int = 0
    sent_again: int = 0
    repeated: int = 0

    def count(self, error: NSQException, messages: int) -> None:
        """Count what ended with an error."""
        if isinstance(error, NSQErrorCode):
            self.refused += messages
        elif isinstance(error, NSQNotSent):
            self.not_sent += messages
        else:
            self.unknown += messages


class Where(enum.Enum):
    """What a publish waits for."""

    ROOM = "room"
    BATCH = "its batch to fill"
    LINK = "a connection"
    UNSENT = "being sent"
    SENT = "its answer"


class Unconfirmed(NamedTuple):
    """What nsqd had not confirmed when the producer was closed.

    Attributes:
        bodies: One, or those of a multipublish.
        defer: Milliseconds; 0: none.
        error: NSQNotSent or NSQUnknown: whether publishing it again can duplicate it. NSQErrorCode: nsqd refused it.
    """

    topic: str
    bodies: Sequence[bytes]
    defer: int
    error: NSQException


class Link(Protocol):
    """Takes publishes to one nsqd.

    Attributes:
        address: The nsqd's.
        submit: Takes a publish and calls one of its methods with the outcome.
        confirmed: Messages that nsqd has confirmed over this link.
    """

    address: str
    submit: Callable[[Publish], None]
    confirmed: int

    @property
    def pending(self) -> int:
        """Publishes without an answer."""

    @property
    def unsent(self) -> Collection[PendingRequest]:
        """Pending publishes that were not sent."""

    @property
    def sent(self) -> Collection[PendingRequest]:
        """Pending publishes that were sent, the oldest first."""

    def withdraw(self, publishes: Collection[Publish]) -> list[Publish]:
        """Take back those of the given publishes that were not sent. Returns: them."""


class PublishOwner(Protocol):
    """Decides how a publish ends, and when it is sent again."""

    def complete(self, publish: Publish) -> None:
        """Count a publish that is done, and wake its caller."""

    def expire(self, publish: Publish, where: Where) -> None:
        """End a publish whose deadline has passed."""

    def refused(self, publish: Publish, error: NSQErrorCode) -> None:
        """Retry a publish that nsqd refused on another nsqd if that may help, or end it."""

    def refused_topic(self, publish: Publish, error: NSQErrorCode) -> None:
        """End a publish whose topic nsqd refused."""

    def lost(self, publish: Publish, error: NSQException) -> None:
        """End a publish that nsqd may have executed, or retry it if duplicates are allowed."""

    def retry(self, publish: Publish, error: NSQException) -> None:
        """Send a publish again that nsqd has not executed."""

    def resubmit(self, publish: Publish) -> None:
        """Send a publish whose batch expired before it was sent."""


class Publish:
    """A PUB, DPUB or MPUB.

    Ends exactly once, with a result or an error; then whoever waits is woken, its result set, or on_done called.

    Args:
        command: Its bytes.
        largest_message: Bytes of its largest message.
        started: When publish() was called.
        deadline: When it must have ended.

    Attributes:
        owner: Decides what an answer, or the lack of one, leads to.
        done: Whether it has ended.
        error: What it ended with, if nsqd has not confirmed it.
        size: Bytes of the command; of a member of a batch, of its body.
        room: Bytes that it holds of the producer's bound; 0: it waits for them.
        link: Where it was given to last.
        waiter: The greenlet that waits in the dispatcher's publish(); nobody else is told then.
        result: To be ended with it.
        on_done: Called where there is neither.
        on_room: Called when it has room, or has failed before.
        key: What the strategy may choose by.
        messages: How many it stands for.
        members: Those that a batch holds, if it is one.
        mpub_body_size: Bytes of an MPUB's body; 0: it is none.
        defer: Milliseconds of a DPUB; 0: it is none.
        refused_by, refusals, refusal: Addresses of those that could not take it, how often, what the last one said.
        last: Why it was not executed so far.
        loss: What lost it before it was sent again, where duplicates are allowed.
    """

    owner: PublishOwner
    # Most publishes need few of these; what is not set costs nothing.
    done = False
    room = 0
    error: NSQException | None = None
    link: Link | None = None
    waiter: Any = None  # Any: a greenlet; gevent has no types
    # Not by on_done, whose closure costs 0.4 us of 2.
    result: PublishResult | None = None
    on_done: Callable[[Publish], None] | None = None
    on_room: Callable[[], object] | None = None
    key: bytes | str | None = None
    messages = 1
    members: Sequence[Publish] = ()
    mpub_body_size = 0
    defer = 0
    refused_by: frozenset[str] = frozenset()
    refusals = 0
    refusal: NSQErrorCode | None = None
    last: NSQException | None = None
    loss: NSQException | None = None

    def __init__(self, topic: str, command: bytes, largest_message: int, started: float, deadline: float) -> None:
        self.topic = topic
        self.command = command
        self.size = len(command)
        self.largest_message = largest_message
        self.started = started
        self.deadline = deadline

    @property
    def bodies(self) -> list[bytes]:
        """What was to be published."""
        line, _, rest = self.command.partition(b"\n")
        return list(split_multipublish_body(rest[4:])) if line.startswith(b"MPUB") else [rest[4:]]

    @property
    def limit(self) -> float:
        """Seconds that it was given."""
        return round(self.deadline - self.started, 6)

    @property
    def parts(self) -> Sequence[Publish]:
        """Those whose callers wait: itself, or the members of a batch."""
        return self.members or (self,)

    def overdue(self, where: Where, now: float) -> None:
        """End it: its deadline has come. What a link has not sent, must have been taken back."""
        self.owner.expire(self, where)
        if where is Where.SENT:
            # Its answer may still come, and must find it; the bytes are of no more use.
            self.command = b""

    def tell(self) -> None:
        """Tell whoever has it, but does not wait in a greenlet, that it has ended."""
        if self.result is not None:
            self.result.end(self.error)
        elif self.on_done is not None:
            self.on_done(self)

    # --- what a connection tells, see nsqd.pending.PendingRequest

    def on_response(self, data: bytes) -> None:
        """nsqd has taken it."""
        if data != OK:
            raise self.misunderstood(data)
        if not self.done:
            self.done = True
            self.owner.complete(self)

    def misunderstood(self, data: bytes) -> NSQProtocolError:
        """Take a response other than OK as a loss; gives what must close the connection: which answer is whose, nobody
        can tell any more."""
        text = f"answer {data[:80]!r} to a publish, OK was due"
        self.on_connection_lost(
            NSQConnectionClosed(f"{self.link.address if self.link is not None else 'nsqd'}: {text}")
        )
        return NSQProtocolError(text)

    def on_error(self, error: NSQErrorCode) -> None:
        """nsqd has not."""
        if is_about_the_topic(error):
            self.owner.refused_topic(self, error)
        elif not self.done:
            self.owner.refused(self, error)

    def on_connection_lost(self, error: NSQException) -> None:
        """Nobody knows."""
        if not self.done:
            self.owner.lost(self, error)

    def on_not_sent(self, error: NSQException) -> None:
        """nsqd has not seen it, and will not."""
        if not self.done:
            self.owner.retry(self, error)
