"""One publish: its data, and the rules that decide its outcome.

Pure: sends nothing, waits for nothing, reads no clock. The publish's owner is a Protocol in this module; its link is
the connection that it is sent on.
"""

from __future__ import annotations

import copy
import enum
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from gnsq.errors import (
    NSQAuthFailed,
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
from gnsq.nsqd.connection import Connection
from gnsq.producer.result import PublishResult
from gnsq.protocol import commands
from gnsq.protocol.frames import OK
from gnsq.stats import LatencyRecorder

__all__ = [
    "Decision",
    "DeferredPublish",
    "Failure",
    "MultiPublish",
    "PendingPublish",
    "PublishCounts",
    "PublishOwner",
    "Unconfirmed",
    "WaitingFor",
    "copy_error",
    "decide",
    "failure_of",
    "is_node_error",
    "is_topic_error",
    "may_be_partially_stored",
    "sent_publishes",
    "unsent_publishes",
]


# --- the rules


class Failure(enum.Enum):
    """Reasons why a publish was not confirmed."""

    NOT_EXECUTED = "nsqd has not executed it, and will not"
    REFUSED = "nsqd has answered with an error"
    LOST = "it was sent, and no response will come"


class Decision(enum.Enum):
    """Next step of a publish that was not confirmed."""

    RETRY = "send it again"
    RETRY_ALONE = "send it again, outside of a batch"
    RETRY_POSSIBLY_DUPLICATED = "send it again, though nsqd may have it"
    REFUSED = "end it with nsqd's error"
    NOT_SENT = "end it as not executed"
    UNKNOWN = "end it as possibly executed"


def decide(
    failure: Failure,
    error: NSQException,
    *,
    refusals: int,
    nsqds: int,
    batch_size: int = 1,
    allow_duplicates: bool = False,
    may_retry: bool = True,
) -> Decision:
    """Decide what happens to a publish that was not confirmed.

    Unless allow_duplicates is True, a retry creates no duplicate. If the error concerns the nsqd, the publish is
    retried until it was refused as often as there are nsqds, and at least twice. If the error concerns the message, the
    publish is not retried, since every nsqd would refuse it; but then each message of a batch is retried alone.

    Args:
        refusals: Number of earlier refusals of this publish by nsqds.
        nsqds: Number of nsqds that the producer knows.
        batch_size: Number of messages in the batch of this publish; 0 or 1 if it was sent alone.
        may_retry: False after the producer was closed.
    """
    if failure is Failure.NOT_EXECUTED:
        return Decision.RETRY if may_retry else Decision.NOT_SENT
    if failure is Failure.REFUSED and not may_be_partially_stored(error):
        if batch_size > 1 and not is_node_error(error):
            return Decision.RETRY_ALONE if may_retry else Decision.NOT_SENT
        is_retried = may_retry and is_node_error(error) and refusals + 1 < max(nsqds, 2)
        return Decision.RETRY if is_retried else Decision.REFUSED
    return Decision.RETRY_POSSIBLY_DUPLICATED if may_retry and allow_duplicates else Decision.UNKNOWN


def failure_of(error: NSQErrorCode) -> Failure:
    """Return what an error that nsqd sent in response to a publish says about it.

    E_AUTH_FAILED says only that nsqd has not executed the publish: when the grant of the connection had expired, the
    auth server could not be reached, or gave no valid response. nsqd does not tell which of these it was, and closes
    the connection. AUTH of the next connection asks the auth server again. E_UNAUTHORIZED is its "no".

    Source: nsqd protocol_v2.go, CheckAuth; internal/auth, QueryAnyAuthd.
    """
    return Failure.NOT_EXECUTED if isinstance(error, NSQAuthFailed) else Failure.REFUSED


def is_node_error(error: object) -> bool:
    """Return True if nsqd refused a publish for reasons of its own: nsqd is exiting or can't ask its auth server, for
    example."""
    return isinstance(error, (NSQPubFailed, NSQMPubFailed, NSQDPubFailed, NSQPutFailed, NSQAuthFailed))


def is_topic_error(error: object) -> bool:
    """Return True if nsqd refused a publish because of its topic. Then nsqd refuses all publishes to this topic."""
    return isinstance(error, (NSQUnauthorized, NSQBadTopic))


def may_be_partially_stored(error: NSQException) -> bool:
    """Return True if nsqd may have stored some messages of a refused MPUB.

    nsqd stops at the first message that it can't store.
    """
    return isinstance(error, NSQMPubFailed) and error.may_be_partially_stored


_Error = TypeVar("_Error", bound=NSQException)


def copy_error(error: _Error) -> _Error:
    """Copy an error that ends several publishes, so that each raise has its own traceback."""
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


@dataclass(slots=True)
class PublishCounts:
    """Numbers of messages by outcome, and of messages that were sent again.

    Attributes:
        latency: How long the confirmed publishes took.
        confirmed_by_nsqd: Number of confirmed messages by the address of the nsqd.
    """

    refused: int = 0
    not_sent: int = 0
    unknown: int = 0
    retried: int = 0
    possibly_duplicated: int = 0
    latency: LatencyRecorder = field(default_factory=LatencyRecorder)
    confirmed_by_nsqd: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def confirmed(self) -> int:
        """Number of confirmed messages."""
        return sum(self.latency.counts)

    def count_failed(self, error: NSQException, messages: int) -> None:
        """Count messages whose publish ended with an error."""
        if isinstance(error, NSQErrorCode):
            self.refused += messages
        elif isinstance(error, NSQNotSent):
            self.not_sent += messages
        else:
            self.unknown += messages


# --- the data


class WaitingFor(enum.Enum):
    """Event that a publish waits for."""

    CAPACITY = "capacity"
    BATCH = "its batch to fill"
    CONNECTION = "a connection"
    SEND = "being sent"
    RESPONSE = "its response"


class Unconfirmed(NamedTuple):
    """A publish that nsqd had not confirmed when the producer was closed.

    Attributes:
        bodies: The bodies of the messages; one body unless the publish was a multipublish.
        defer: Milliseconds; 0: not deferred.
        error: NSQNotSent: the program may safely publish the messages again. NSQUnknown: publishing them again may
            duplicate them. NSQErrorCode: nsqd refused them.
    """

    topic: str
    bodies: Sequence[bytes]
    defer: int
    error: NSQException


class PublishOwner(Protocol):
    """Decides how publishes end, and wakes their callers."""

    def confirm_soon(self, publish: PendingPublish) -> None:
        """End a publish that nsqd has confirmed."""

    def handle_failure(self, publish: PendingPublish, failure: Failure, error: NSQException) -> None:
        """Retry or end a publish that was not confirmed."""

    def expire(self, publish: PendingPublish, waiting_for: WaitingFor, now: float) -> None:
        """End a publish whose deadline has passed. Of a batch, end only the members whose deadline has passed."""


class PendingPublish:
    """A PUB and its outcome. The publish ends exactly once, with OK or with an error.

    Args:
        started: Time at which publish() was called, monotonic seconds.
        deadline: Time at which the publish must have ended, monotonic seconds.

    Attributes:
        owner: The Dispatcher that the publish was submitted to.
        done: True if the publish has ended.
        error: Why the publish was not confirmed; None if it was confirmed or has not ended.
        body: The message. Empty in a MultiPublish, or if the message is no longer needed.
        size: Length of the command in bytes.
        largest_message, plain_size: Length of the largest message in bytes, as in nsqd.pending.PendingRequest.
        mpub_body_size: Length of an MPUB's body in bytes; 0 for other commands.
        defer: Milliseconds; 0: not deferred.
        messages: Number of messages.
        members: The publishes in a batch; empty if this is not a batch.
        is_batchable: True if the publish may be put into a batch.
        reserved_bytes: Bytes of max_pending_bytes that the publish has reserved; 0 while it waits for capacity.
        link: The last link that the publish was submitted to; None while it waits for a retry.
        waiter: Greenlet that waits in Dispatcher.publish().
        result: Object that gets the outcome when the publish ends, if there is no waiter.
        on_capacity: Called when the publish gets capacity, or when it ends without capacity.
        refused_by, refusals, refused_error: Addresses of nsqds that refused it, number and last error of the refusals.
        lost_error: Why nsqd may have executed an earlier try, if the publish was retried after that; otherwise None.
    """

    owner: PublishOwner
    # Defaults as class attributes: most publishes change few of them, and to set all in __init__() would take longer.
    done = False
    error: NSQException | None = None
    mpub_body_size = 0
    defer = 0
    messages = 1
    members: Sequence[PendingPublish] = ()
    is_batchable = True
    reserved_bytes = 0
    link: Connection | None = None
    waiter: Any = None  # Any: a greenlet; gevent has no types
    result: PublishResult | None = None
    on_capacity: Callable[[], object] | None = None
    refused_by: frozenset[str] = frozenset()
    refusals = 0
    refused_error: NSQErrorCode | None = None
    lost_error: NSQException | None = None

    def __init__(self, topic: str, body: bytes, started: float, deadline: float) -> None:
        self.topic = topic
        self.body = body
        size = self.largest_message = len(body)
        self.plain_size: float = size
        # "PUB topic\n", then 4 bytes of size.
        self.size = len(topic) + size + 9
        self.started = started
        self.deadline = deadline

    def encode(self) -> bytes:
        """Build the bytes to send. Called when they are sent; before that, only the bodies take memory."""
        return commands.publish(self.topic, self.body, check=False)  # Producer has checked it

    @property
    def bodies(self) -> Sequence[bytes]:
        """The messages."""
        return [self.body]

    @property
    def address(self) -> str:
        """Address of the nsqd of ``link``; the text "nsqd" if there is no link."""
        return self.link.address if self.link is not None else "nsqd"

    @property
    def timeout(self) -> float:
        """Seconds from the call of publish() to the deadline."""
        return round(self.deadline - self.started, 6)

    def unfinished(self) -> Sequence[PendingPublish]:
        """Return the publish itself; for a batch, its members. Publishes that have ended are left out."""
        return () if self.done else (self,)

    def confirm_members(self) -> Sequence[PendingPublish]:
        """Mark the members of a confirmed batch as done, and return those that had not ended before."""
        return ()

    def drop_bodies(self) -> None:
        """Free the messages of a sent publish, after it or a member of it has ended. A response may still come."""
        self.body = b""

    # --- called by the link; see nsqd.pending.PendingRequest

    def on_response(self, data: bytes) -> None:
        """Handle nsqd's response.

        Raises:
            NSQProtocolError: If the response is not OK. The error closes the connection.
        """
        if data != OK:
            raise self.on_unexpected_response(data)
        self.owner.confirm_soon(self)

    def on_unexpected_response(self, data: bytes) -> NSQProtocolError:
        """End or retry the publish as after a lost connection: its outcome is unknown.

        Returns:
            The error that must close the connection, since later responses may belong to other requests.
        """
        text = f"response {data[:80]!r} to a publish, expected OK"
        self.on_connection_lost(NSQConnectionClosed(text, address=self.address))
        return NSQProtocolError(text)

    def on_error(self, error: NSQErrorCode) -> None:
        """Handle nsqd's error."""
        self.owner.handle_failure(self, failure_of(error), error)

    def on_connection_lost(self, error: NSQException) -> None:
        """Handle a lost connection: the publish was sent, and no response will come."""
        self.owner.handle_failure(self, Failure.LOST, error)

    def on_not_sent(self, error: NSQException) -> None:
        """Retry or end the publish: nsqd has not executed it, and will not."""
        self.owner.handle_failure(self, Failure.NOT_EXECUTED, error)

    def on_overdue(self, now: float) -> None:
        """End the publish: it was not sent by its deadline, and the link has removed it."""
        self.owner.expire(self, WaitingFor.SEND, now)


class DeferredPublish(PendingPublish):
    """A DPUB."""

    is_batchable = False

    def __init__(self, topic: str, body: bytes, defer: int, started: float, deadline: float) -> None:
        super().__init__(topic, body, started, deadline)
        self.defer = defer
        self.plain_size = math.inf
        # "DPUB topic defer\n" in place of "PUB topic\n".
        self.size += len(str(defer)) + 2

    def encode(self) -> bytes:
        return commands.deferpublish(self.topic, self.body, self.defer)


class MultiPublish(PendingPublish):
    """An MPUB."""

    is_batchable = False

    def __init__(self, topic: str, bodies: Sequence[bytes], started: float, deadline: float) -> None:
        super().__init__(topic, b"", started, deadline)
        self._bodies = bodies
        sizes = list(map(len, bodies))
        self.messages = len(sizes)
        self.largest_message = max(sizes)
        self.plain_size = math.inf
        self.mpub_body_size = 4 * (len(sizes) + 1) + sum(sizes)
        # "MPUB topic\n", then 4 bytes of size.
        self.size = len(topic) + self.mpub_body_size + 10

    def encode(self) -> bytes:
        return commands.multipublish(self.topic, self._bodies)

    @property
    def bodies(self) -> Sequence[bytes]:
        return self._bodies

    def drop_bodies(self) -> None:
        self._bodies = ()


# --- of a connection


def sent_publishes(link: Connection) -> list[PendingPublish]:
    """Return the publishes that were sent on a connection and have no response, the oldest first."""
    return cast("list[PendingPublish]", list(link.writer.pending.sent))  # a producer's requests are all publishes


def unsent_publishes(link: Connection) -> list[PendingPublish]:
    """Return the publishes that wait to be sent on a connection."""
    return cast("list[PendingPublish]", list(link.writer.pending.unsent))
