"""Pending requests of one connection: commands that wait to be sent, or for their response.

A request is never sent after its deadline: requests are sent by next_batch(), which first removes those that are
overdue, or at once, if no other is pending and there is time left. Nothing else must check that, neither for the first
try nor for a retry, and however long the hub was blocked.

nsqd responds in the order of the commands. This module knows which requests were sent: if the connection is lost, the
unsent requests were certainly not executed. When nsqd refuses a publish, it closes the connection and executes no later
command. nsqd does not announce its size limits. So a publish larger than all that nsqd has confirmed is sent alone.
"""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from gevent.event import AsyncResult, Event

from gnsq.errors import NSQConnectionClosed, NSQErrorCode, NSQException, NSQSocketError
from gnsq.protocol.frames import OK, RESPONSE, encode_frame

__all__ = ["ConfirmedLimits", "PendingCall", "PendingRequest", "PendingRequests", "connection_lost_error"]


# Bytes. If a connection is reset and a sent request larger than this has no response, nsqd may have refused its body.
RISKY_SIZE = 1024
_OK_FRAME = encode_frame(RESPONSE, OK)
_OK_FRAME_SIZE = len(_OK_FRAME)


class PendingRequest(Protocol):
    """A command that has a response. One of its five ``on_`` methods is called once, unless cancel_unsent() removes it,
    or take_confirmed() returns it, since nsqd has responded with OK.

    Attributes:
        size: Number of bytes of the command.
        largest_message: Bytes of the largest message in the command.
        plain_size: The same for a PUB or a command that is no publish; infinite for a DPUB or MPUB.
        mpub_body_size: Bytes of an MPUB's body; 0: the command is not an MPUB.
        defer: Delay of a DPUB in milliseconds; 0: no delay, or the command is not a DPUB.
        topic: Topic of a publish; empty: the command is not a publish.
        deadline: Time after which the request must not be sent, monotonic seconds.
    """

    size: int
    largest_message: int
    plain_size: float
    mpub_body_size: int
    defer: int
    topic: str
    deadline: float

    def encode(self) -> bytes:
        """Return the bytes to send."""

    def on_response(self, data: bytes) -> None:
        """Handle nsqd's response."""

    def on_error(self, error: NSQErrorCode) -> None:
        """Handle nsqd's error."""

    def on_connection_lost(self, error: NSQException) -> None:
        """Handle the loss of the connection after the request was sent and before its response came."""

    def on_not_sent(self, error: NSQException) -> None:
        """Handle that nsqd has not executed the request: it was not sent, or nsqd refused an earlier command."""

    def on_overdue(self, now: float) -> None:
        """Handle that the request was not sent by its deadline, and will not be sent. It must not submit requests."""


class ConfirmedLimits:
    """The largest sizes and delays that this nsqd has confirmed. Pure.

    Attributes:
        largest_message: Bytes of the largest confirmed message.
        plain_size: nsqd refuses no request whose plain_size is not larger. Faster to compare than may_be_refused().
        topics: Topics with a confirmed publish. nsqd may refuse all other topics. None: nsqd allows all topics.
    """

    def __init__(self) -> None:
        self.largest_message = self.plain_size = 0
        self.topics: set[str] | None = None
        self._mpub_body_size = 0
        self._defer = 0

    def check_topics(self) -> None:
        """Let nsqd refuse the first publish to each topic from now on."""
        self.topics = {""}
        self.plain_size = -1

    def may_be_refused(self, request: PendingRequest) -> bool:
        """Return True if a request exceeds what nsqd has confirmed: nsqd may refuse it."""
        return (
            request.largest_message > self.largest_message
            or request.mpub_body_size > self._mpub_body_size
            or request.defer > self._defer
            or (self.topics is not None and request.topic not in self.topics)
        )

    def record_confirmed(self, request: PendingRequest) -> None:
        """Record that nsqd has confirmed a request. Called only for requests that were sent alone."""
        self.largest_message = max(self.largest_message, request.largest_message)
        self._mpub_body_size = max(self._mpub_body_size, request.mpub_body_size)
        self._defer = max(self._defer, request.defer)
        if self.topics is None:
            self.plain_size = self.largest_message
        else:
            self.topics.add(request.topic)


class PendingCall(AsyncResult):  # type: ignore[misc]  # gevent has no types
    """A pending request that is an AsyncResult. Its get() returns the response's data or raises the error."""

    largest_message = plain_size = mpub_body_size = defer = 0
    topic = ""
    deadline = math.inf

    def __init__(self, command: bytes) -> None:
        super().__init__()
        self._command = command
        self.size = len(command)

    def encode(self) -> bytes:
        return self._command

    def on_response(self, data: bytes) -> None:
        self.set(data)

    def on_error(self, error: NSQException) -> None:
        self.set_exception(error)

    on_connection_lost = on_not_sent = on_error


_Request = TypeVar("_Request", bound=PendingRequest)


class PendingRequests:
    """The pending requests of one connection. bool() of the object is True if there are any.

    Args:
        unblock: Called when ``blocked`` becomes False.

    Attributes:
        unsent: Requests that wait to be sent. Other modules may read ``unsent`` and ``sent``, but not change them.
        sent: Requests that wait for their response, the oldest first.
        unsent_bytes: Sum of the sizes of unsent.
        due: Earliest deadline of unsent, or an earlier time.
        blocked: True if no request may be sent until all sent requests have their responses.
    """

    def __init__(self, unblock: Callable[[], None]) -> None:
        self.unsent: list[PendingRequest] = []
        self.sent: deque[PendingRequest] = deque()
        self.unsent_bytes = 0
        self.due = math.inf
        self.blocked = False
        self._unblock = unblock
        self._limits = ConfirmedLimits()
        # True if nsqd may refuse some of the unsent requests. Each of these must be sent alone.
        self._risky = False
        # True if requests that nsqd may refuse were added after the last _sort().
        self._unsorted = False
        # True if the first unsent request is next: sending was blocked for it until all sent requests had responses.
        self._drained = False
        # True while a request that was sent alone has no response.
        self._alone = False
        self._resolved: Event | None = None

    def __bool__(self) -> bool:
        return bool(self.sent) or bool(self.unsent)

    def __len__(self) -> int:
        return len(self.sent) + len(self.unsent)

    def check_topics(self) -> None:
        """Send the first publish to each topic alone from now on, since nsqd may refuse the topic."""
        self._limits.check_topics()

    def put(self, request: PendingRequest) -> None:
        """Add a request after all others."""
        self.unsent.append(request)
        self.unsent_bytes += request.size
        if request.deadline < self.due:
            self.due = request.deadline
        if request.plain_size > self._limits.plain_size:
            self._risky = self._unsorted = True

    def put_sent(self, request: PendingRequest) -> None:
        """Add a request that is sent now. There must be no other, so it is sent alone even if nsqd may refuse it."""
        if request.plain_size > self._limits.plain_size and self._limits.may_be_refused(request):
            self._risky = self.blocked = self._alone = True
            self._drained = False
        self.sent.append(request)

    def expire_unsent(self, now: float) -> None:
        """Remove the unsent requests whose deadline has passed, and tell them."""
        if now < self.due:
            return
        overdue = self.cancel_unsent([request for request in self.unsent if request.deadline <= now])
        self.due = min([request.deadline for request in self.unsent], default=math.inf)
        for request in overdue:
            request.on_overdue(now)

    def next_batch(self, limit: int, now: float) -> bytes:
        """Move requests from unsent to sent, and return their bytes: up to limit bytes, or one larger request. Return
        b"" if nothing may be sent now."""
        if now >= self.due:
            self.expire_unsent(now)
        if self._risky:
            if self._unsorted and not self.blocked:
                self._sort()
            number = self._count_safe(limit)
        elif self.unsent_bytes <= limit:
            number = len(self.unsent)
        else:
            number = self._count_fitting(limit)
        batch = self.unsent[:number]
        del self.unsent[:number]
        self.sent.extend(batch)
        data = b"".join([request.encode() for request in batch])
        self.unsent_bytes -= len(data)
        return data

    def _count_fitting(self, limit: int) -> int:
        total = 0
        for index, request in enumerate(self.unsent):
            total += request.size
            if total > limit:
                return max(index, 1)
        return len(self.unsent)

    def _sort(self) -> None:
        """Put the requests that nsqd may refuse after the others, sorted by delay and sizes unless topics are checked.

        So the others need not wait for the responses to these requests. But if sending was blocked for the first
        request before, this request keeps its place: otherwise new requests could delay it again and again.
        """
        self._unsorted = False
        first = 1 if self._drained else 0
        safe: list[PendingRequest] = []
        risky: list[PendingRequest] = []
        for request in self.unsent[first:]:
            (risky if self._limits.may_be_refused(request) else safe).append(request)
        if self._limits.topics is None:
            risky.sort(key=lambda request: (request.defer, request.mpub_body_size, request.largest_message))
        self.unsent[first:] = safe + risky

    def _count_safe(self, limit: int) -> int:
        """Return how many requests may be sent now, given that nsqd may refuse some of them.

        A request that nsqd may refuse is sent alone: all requests before it have their responses, and nothing is sent
        after it until it has its response. So if nsqd closes the connection, no other request loses its response.
        """
        if self.blocked:
            return 0
        total = 0
        for index, request in enumerate(self.unsent):
            if self._limits.may_be_refused(request):
                if index:
                    return index
                self.blocked = True
                self._drained = False
                self._alone = not self.sent
                return int(self._alone)
            total += request.size
            if index and total > limit:
                return index
        self._risky = False
        return len(self.unsent)

    def resolve(self, data: bytes) -> None:
        """Resolve the oldest sent request with its response."""
        request = self.sent.popleft()
        self._unblock_after(request)
        request.on_response(data)

    def take_confirmed(self, data: bytes) -> list[PendingRequest]:
        """If the data is only complete OK frames for sent requests, remove and return these; otherwise return []."""
        sent = self.sent
        count = len(data) // _OK_FRAME_SIZE
        if count > len(sent) or data != _OK_FRAME * count:
            return []
        if count == len(sent):
            requests = list(sent)
            sent.clear()
        else:
            requests = [sent.popleft() for _ in range(count)]
        if self.blocked or self._resolved is not None:
            self._unblock_after(requests[-1])
        return requests

    def _unblock_after(self, request: PendingRequest) -> None:
        """Note that a request, the newest that was removed from ``sent``, has its response."""
        if self.blocked and not self.sent:
            if self._alone:
                self._limits.record_confirmed(request)
            self._drained = not self._alone
            self.blocked = self._alone = False
            self._unblock()
        if self._resolved is not None:
            self._resolved.set()

    def refuse(self, error: NSQErrorCode) -> None:
        """Fail the oldest sent request, if there is one, with nsqd's error."""
        if self.sent:
            self.sent.popleft().on_error(error)

    def cancel_unsent(self, requests: Collection[_Request]) -> list[_Request]:
        """Remove and return those of the given requests that were not sent."""
        wanted = {id(request) for request in requests}
        if not wanted:
            return []
        taken = {id(request) for request in self.unsent if id(request) in wanted}
        self.unsent = [request for request in self.unsent if id(request) not in taken]
        found = [request for request in requests if id(request) in taken]
        self.unsent_bytes -= sum(request.size for request in found)
        return found

    def fail(self, address: str, error: NSQException | None) -> None:
        """Fail all requests because the connection is lost. The error is the reason; None if there is no error."""
        sent, self.sent = self.sent, deque()
        unsent, self.unsent = self.unsent, []
        self.unsent_bytes = 0
        if sent:
            failure = connection_lost_error(address, error, max(request.size for request in sent))
            for request in sent:
                # nsqd executes nothing after a fatal error, so these requests were not executed.
                if isinstance(error, NSQErrorCode):
                    request.on_not_sent(failure)
                else:
                    request.on_connection_lost(failure)
        if unsent:
            failure = connection_lost_error(address, error)
            for request in unsent:
                request.on_not_sent(failure)
        if self._resolved is not None:
            self._resolved.set()

    def wait(self) -> None:
        """Wait until there are no pending requests."""
        self._resolved = Event()
        while self:
            self._resolved.clear()
            self._resolved.wait()
        self._resolved = None


def connection_lost_error(address: str, error: NSQException | None, longest: int = 0) -> NSQConnectionClosed:
    """Build the error of requests that get no response.

    Args:
        error: Why the connection ended; None if this side closed it.
        longest: Bytes of the largest of these requests; 0 if they were not sent.
    """
    if error is None:
        return NSQConnectionClosed("connection was closed", address=address)
    text = error.explanation
    if isinstance(error, NSQErrorCode):
        text = f"nsqd refused a command before this one and closed the connection ({text}); this one was not executed"
    elif isinstance(error, NSQSocketError) and error.errno == errno.ECONNRESET and longest > RISKY_SIZE:
        text += f"; the longest command without a response has {longest} bytes, and nsqd resets a connection when "
        text += "it refuses a body: compare with its --max-msg-size and --max-body-size"
    return NSQConnectionClosed(text, address=address, code=error.code, name=error.name)
