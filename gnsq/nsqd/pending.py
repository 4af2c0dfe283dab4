"""PendingRequests: commands that nsqd answers. It does so in their order, so the oldest that was sent is next.

Owns which of them have been sent: what was not sent before a connection is lost was not executed. Sends nothing
itself; the outbox takes from here.

ConfirmedLimits: which publishes a connection's nsqd is known to take. PURE: sends nothing.

nsqd does not say how long a body may be, how long a delay, or which topics a secret allows. What it refuses costs the
connection and all that was sent behind. So a publish that goes beyond everything that was confirmed is a doubtful one.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from gevent.event import AsyncResult, Event

from gnsq.errors import NSQConnectionClosed, NSQErrorCode, NSQException, NSQSocketError
from gnsq.protocol.frames import OK, RESPONSE, encode_frame
from gnsq.texts import without_address

__all__ = [
    "PendingCall",
    "RequestSize",
    "ConfirmedLimits",
    "PendingRequest",
    "PendingRequests",
    "connection_lost_error",
]


class RequestSize(Protocol):
    """What a request asks of nsqd's limits."""

    @property
    def largest_message(self) -> int:
        """Bytes of its largest message."""

    @property
    def mpub_body_size(self) -> int:
        """Bytes of an MPUB's body; 0: none."""

    @property
    def defer(self) -> int:
        """Milliseconds of a DPUB; 0: none."""

    @property
    def topic(self) -> str:
        """Where it publishes to; empty: it does not."""


class ConfirmedLimits:
    """What was confirmed so far.

    Attributes:
        largest_message: Bytes of the largest message.
        topics: Those published to; None: all are allowed.
    """

    __slots__ = ("_defer", "_mpub_body_size", "largest_message", "topics")

    def __init__(self) -> None:
        self.largest_message = 0
        self.topics: set[str] | None = None
        self._mpub_body_size = 0
        self._defer = 0

    def check_topics(self) -> None:
        """Doubt topics that nothing was published to."""
        self.topics = {""}

    def may_be_refused(self, claim: RequestSize) -> bool:
        """Whether nsqd may refuse this."""
        return (
            claim.largest_message > self.largest_message
            or claim.mpub_body_size > self._mpub_body_size
            or claim.defer > self._defer
            or (self.topics is not None and claim.topic not in self.topics)
        )

    def record_confirmed(self, claim: RequestSize) -> None:
        """Note that nsqd has taken this."""
        self.largest_message = max(self.largest_message, claim.largest_message)
        self._mpub_body_size = max(self._mpub_body_size, claim.mpub_body_size)
        self._defer = max(self._defer, claim.defer)
        if self.topics is not None:
            self.topics.add(claim.topic)


# A reset is put down to a refused body only where one longer than this waits for its answer, bytes.
RISKY_SIZE = 1024
_OK_FRAME = encode_frame(RESPONSE, OK)


class PendingRequest(RequestSize, Protocol):
    """A command that has an answer, and who is told of it: exactly one of the four calls comes, once."""

    @property
    def command(self) -> bytes:
        """What is sent."""

    @property
    def size(self) -> int:
        """Bytes of the command."""

    def on_response(self, data: bytes) -> None:
        """Nsqd's response has come."""

    def on_error(self, error: NSQErrorCode) -> None:
        """Nsqd's error has come."""

    def on_connection_lost(self, error: NSQException) -> None:
        """It was sent, and there will be no answer."""

    def on_not_sent(self, error: NSQException) -> None:
        """It was not sent, or nsqd has closed the connection before it came to it."""


class PendingCall(AsyncResult):  # type: ignore[misc]  # gevent has no types
    """A request that holds its answer's data, or what went wrong."""

    largest_message = mpub_body_size = defer = 0
    topic = ""

    def __init__(self, command: bytes) -> None:
        super().__init__()
        self.command = command
        self.size = len(command)

    def on_response(self, data: bytes) -> None:
        self.set(data)

    def on_error(self, error: NSQException) -> None:
        self.set_exception(error)

    on_connection_lost = on_not_sent = on_error


_Request = TypeVar("_Request", bound=PendingRequest)


class PendingRequests:
    """The requests of one connection; true while any has no answer.

    Attributes:
        unsent: Those that wait to be sent.
        sent: Those that wait for their answer. Both may be read by anyone, and changed here only.
        unsent_bytes: Sum of the former's sizes.
        blocked: Whether nothing may be sent until all that was sent has its answer.
    """

    __slots__ = (
        *("_alone", "_answered", "_doubtful", "_drained", "_proven", "_unblock", "_unsorted"),
        *("blocked", "sent", "unsent", "unsent_bytes"),
    )

    def __init__(self, unblock: Callable[[], None]) -> None:
        self.unsent: list[PendingRequest] = []
        self.sent: deque[PendingRequest] = deque()
        self.unsent_bytes = 0
        self.blocked = False
        self._unblock = unblock
        self._proven = ConfirmedLimits()
        # Whether some of the unsent may have to be sent alone.
        self._doubtful = False
        # Whether some have come that may belong before others.
        self._unsorted = False
        # Whether everything has an answer so that the first of the unsent can be sent alone; whether one was.
        self._drained = False
        self._alone = False
        self._answered: Event | None = None

    def __bool__(self) -> bool:
        return bool(self.sent) or bool(self.unsent)

    def __len__(self) -> int:
        return len(self.sent) + len(self.unsent)

    def check_topics(self) -> None:
        """Send the first publish to each topic alone: nsqd may refuse it."""
        self._proven.check_topics()

    def put(self, request: PendingRequest) -> None:
        """Let a request wait to be sent, behind all others."""
        self.unsent.append(request)
        self.unsent_bytes += request.size
        proven = self._proven
        # ConfirmedLimits.may_be_refused(), roughly, and in place: it is asked for each publish.
        if (
            request.largest_message > proven.largest_message
            or request.mpub_body_size
            or request.defer
            or proven.topics is not None
        ):
            self._doubtful = self._unsorted = True

    def next_batch(self, limit: int) -> bytes:
        """Hand over requests to be sent now: about so many bytes, or one that is longer, or nothing."""
        if self._doubtful:
            if self._unsorted and not self.blocked:
                self._sort()
            number = self._sendable(limit)
        elif self.unsent_bytes <= limit:
            number = len(self.unsent)
        else:
            number = self._fitting(limit)
        batch = self.unsent[:number]
        del self.unsent[:number]
        self.sent.extend(batch)
        data = b"".join([request.command for request in batch])
        self.unsent_bytes -= len(data)
        return data

    def _fitting(self, limit: int) -> int:
        total = 0
        for index, request in enumerate(self.unsent):
            total += request.size
            if total > limit:
                return max(index, 1)
        return len(self.unsent)

    def _sort(self) -> None:
        """Put what may be refused last, the least of it first: who publishes such things again and again holds up the
        others for one answer each time, and not for ever. What all have waited for keeps its place."""
        self._unsorted = False
        first = 1 if self._drained else 0
        sure: list[PendingRequest] = []
        doubtful: list[PendingRequest] = []
        for request in self.unsent[first:]:
            (doubtful if self._proven.may_be_refused(request) else sure).append(request)
        if self._proven.topics is None:
            doubtful.sort(key=lambda request: (request.defer, request.mpub_body_size, request.largest_message))
        self.unsent[first:] = sure + doubtful

    def _sendable(self, limit: int) -> int:
        """How many may be sent, where some may be refused: such a one goes alone, with nothing before it unanswered
        and nothing behind it. So if nsqd resets the connection, nobody else is left without an answer."""
        if self.blocked:
            return 0
        total = 0
        for index, request in enumerate(self.unsent):
            if self._proven.may_be_refused(request):
                if index:
                    return index
                self.blocked = True
                self._drained = False
                self._alone = not self.sent
                return int(self._alone)
            total += request.size
            if index and total > limit:
                return index
        self._doubtful = False
        return len(self.unsent)

    def resolve(self, data: bytes) -> None:
        """Give the oldest its answer."""
        request = self.sent.popleft()
        if self.blocked and not self.sent:
            if self._alone:
                self._proven.record_confirmed(request)
            self._drained = not self._alone
            self.blocked = self._alone = False
            self._unblock()
        request.on_response(data)
        if self._answered is not None:
            self._answered.set()

    def resolve_oks(self, data: bytes) -> bool:
        """Give the oldest their answers, if this holds whole frames of OK and nothing else; whether it does."""
        count, rest = divmod(len(data), len(_OK_FRAME))
        if rest or count > len(self.sent) or data != _OK_FRAME * count:
            return False
        for _ in range(count):
            self.resolve(OK)
        return True

    def refuse(self, error: NSQErrorCode) -> None:
        """Give the oldest, if there is one, the error that nsqd answered."""
        if self.sent:
            self.sent.popleft().on_error(error)

    def cancel_unsent(self, requests: Collection[_Request]) -> list[_Request]:
        """Take back those of these requests that have not been sent; gives them."""
        wanted = {id(request) for request in requests}
        if not wanted:
            return []
        taken = {id(request) for request in self.unsent if id(request) in wanted}
        self.unsent = [request for request in self.unsent if id(request) not in taken]
        found = [request for request in requests if id(request) in taken]
        self.unsent_bytes -= sum(request.size for request in found)
        return found

    def fail(self, address: str, error: NSQException | None) -> None:
        """Tell all that there will be no answer, and why."""
        sent, self.sent = self.sent, deque()
        unsent, self.unsent = self.unsent, []
        self.unsent_bytes = 0
        if sent:
            failure = connection_lost_error(address, error, max(request.size for request in sent))
            for request in sent:
                # Source: nsqd executes nothing behind a fatal error.
                if isinstance(error, NSQErrorCode):
                    request.on_not_sent(failure)
                else:
                    request.on_connection_lost(failure)
        if unsent:
            failure = connection_lost_error(address, error)
            for request in unsent:
                request.on_not_sent(failure)
        if self._answered is not None:
            self._answered.set()

    def wait(self) -> None:
        """Wait until there is none without an answer."""
        self._answered = Event()
        while self:
            self._answered.clear()
            self._answered.wait()
        self._answered = None


def connection_lost_error(address: str, error: NSQException | None, longest: int = 0) -> NSQConnectionClosed:
    """Say why there is no answer.

    Args:
        error: What ended the connection, None if we closed it.
        longest: Size of the longest command that waits for an answer.
    """
    text = f"{address}: {without_address(error or 'connection was closed', address)}"
    if isinstance(error, NSQErrorCode):
        text = f"{address}: nsqd refused a command before this one and closed the connection ({error}); "
        text += "this one was not executed"
    elif isinstance(error, NSQSocketError) and error.errno == errno.ECONNRESET and longest > RISKY_SIZE:
        text += f"; the longest command without an answer has {longest} bytes, and nsqd resets a connection when "
        text += "it refuses a body: compare with its --max-msg-size and --max-body-size"
    return NSQConnectionClosed(text)
