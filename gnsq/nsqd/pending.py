"""Requests: commands that nsqd answers. It does so in their order, so the oldest that was sent is next.

Owns which of them have been sent: what was not sent before a connection is lost was not executed. Sends nothing
itself; the outbox takes from here.

Proven: which publishes a connection's nsqd is known to take. PURE: sends nothing.

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
    "Call",
    "Claim",
    "Proven",
    "Request",
    "Requests",
    "lost",
]


class Claim(Protocol):
    """What a request asks of nsqd's limits."""

    @property
    def largest(self) -> int:
        """Bytes of its largest message."""

    @property
    def together(self) -> int:
        """Bytes of an MPUB's body; 0: none."""

    @property
    def defer(self) -> int:
        """Milliseconds of a DPUB; 0: none."""

    @property
    def topic(self) -> str:
        """Where it publishes to; empty: it does not."""


class Proven:
    """What was confirmed so far.

    Attributes:
        largest: Bytes of the largest message.
        topics: Those published to; None: all are allowed.
    """

    __slots__ = ("_defer", "_together", "largest", "topics")

    def __init__(self) -> None:
        self.largest = 0
        self.topics: set[str] | None = None
        self._together = 0
        self._defer = 0

    def by_topic(self) -> None:
        """Doubt topics that nothing was published to."""
        self.topics = {""}

    def doubts(self, claim: Claim) -> bool:
        """Whether nsqd may refuse this."""
        return (
            claim.largest > self.largest
            or claim.together > self._together
            or claim.defer > self._defer
            or (self.topics is not None and claim.topic not in self.topics)
        )

    def proved(self, claim: Claim) -> None:
        """Note that nsqd has taken this."""
        self.largest = max(self.largest, claim.largest)
        self._together = max(self._together, claim.together)
        self._defer = max(self._defer, claim.defer)
        if self.topics is not None:
            self.topics.add(claim.topic)


# A reset is put down to a refused body only where one longer than this waits for its answer, bytes.
SUSPECT_SIZE = 1024
_OK_FRAME = encode_frame(RESPONSE, OK)


class Request(Claim, Protocol):
    """A command that has an answer, and who is told of it: exactly one of the four calls comes, once."""

    @property
    def command(self) -> bytes:
        """What is sent."""

    @property
    def size(self) -> int:
        """Bytes of the command."""

    def answered(self, data: bytes) -> None:
        """Nsqd's response has come."""

    def refused(self, error: NSQErrorCode) -> None:
        """Nsqd's error has come."""

    def lost(self, error: NSQException) -> None:
        """It was sent, and there will be no answer."""

    def not_executed(self, error: NSQException) -> None:
        """It was not sent, or nsqd has closed the connection before it came to it."""


class Call(AsyncResult):  # type: ignore[misc]  # gevent has no types
    """A request that holds its answer's data, or what went wrong."""

    largest = together = defer = 0
    topic = ""

    def __init__(self, command: bytes) -> None:
        super().__init__()
        self.command = command
        self.size = len(command)

    def answered(self, data: bytes) -> None:
        self.set(data)

    def refused(self, error: NSQException) -> None:
        self.set_exception(error)

    lost = not_executed = refused


_Request = TypeVar("_Request", bound=Request)


class Requests:
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
        self.unsent: list[Request] = []
        self.sent: deque[Request] = deque()
        self.unsent_bytes = 0
        self.blocked = False
        self._unblock = unblock
        self._proven = Proven()
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

    def by_topic(self) -> None:
        """Send the first publish to each topic alone: nsqd may refuse it."""
        self._proven.by_topic()

    def put(self, request: Request) -> None:
        """Let a request wait to be sent, behind all others."""
        self.unsent.append(request)
        self.unsent_bytes += request.size
        proven = self._proven
        # Proven.doubts(), roughly, and in place: it is asked for each publish.
        if request.largest > proven.largest or request.together or request.defer or proven.topics is not None:
            self._doubtful = self._unsorted = True

    def take(self, limit: int) -> bytes:
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
        sure: list[Request] = []
        doubtful: list[Request] = []
        for request in self.unsent[first:]:
            (doubtful if self._proven.doubts(request) else sure).append(request)
        if self._proven.topics is None:
            doubtful.sort(key=lambda request: (request.defer, request.together, request.largest))
        self.unsent[first:] = sure + doubtful

    def _sendable(self, limit: int) -> int:
        """How many may be sent, where some may be refused: such a one goes alone, with nothing before it unanswered
        and nothing behind it. So if nsqd resets the connection, nobody else is left without an answer."""
        if self.blocked:
            return 0
        total = 0
        for index, request in enumerate(self.unsent):
            if self._proven.doubts(request):
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
                self._proven.proved(request)
            self._drained = not self._alone
            self.blocked = self._alone = False
            self._unblock()
        request.answered(data)
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
            self.sent.popleft().refused(error)

    def withdraw(self, requests: Collection[_Request]) -> list[_Request]:
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
            failure = lost(address, error, max(request.size for request in sent))
            for request in sent:
                # Source: nsqd executes nothing behind a fatal error.
                if isinstance(error, NSQErrorCode):
                    request.not_executed(failure)
                else:
                    request.lost(failure)
        if unsent:
            failure = lost(address, error)
            for request in unsent:
                request.not_executed(failure)
        if self._answered is not None:
            self._answered.set()

    def wait(self) -> None:
        """Wait until there is none without an answer."""
        self._answered = Event()
        while self:
            self._answered.clear()
            self._answered.wait()
        self._answered = None


def lost(address: str, error: NSQException | None, longest: int = 0) -> NSQConnectionClosed:
    """Say why there is no answer.

    Args:
        error: What ended the connection, None if we closed it.
        longest: Size of the longest command that waits for an answer.
    """
    text = f"{address}: {without_address(error or 'connection was closed', address)}"
    if isinstance(error, NSQErrorCode):
        text = f"{address}: nsqd refused a command before this one and closed the connection ({error}); "
        text += "this one was not executed"
    elif isinstance(error, NSQSocketError) and error.errno == errno.ECONNRESET and longest > SUSPECT_SIZE:
        text += f"; the longest command without an answer has {longest} bytes, and nsqd resets a connection when "
        text += "it refuses a body: compare with its --max-msg-size and --max-body-size"
    return NSQConnectionClosed(text)
