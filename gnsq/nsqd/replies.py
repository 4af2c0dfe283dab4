"""Replies that commands wait for: nsqd answers in the order of the commands, so the oldest is next.

Sends nothing. Says, when a connection is lost, what is known of why.
"""

from __future__ import annotations

import errno
from collections import deque
from typing import NamedTuple

from gevent.event import AsyncResult

from gnsq.errors import NSQConnectionClosed, NSQErrorCode, NSQException, NSQSocketError

__all__ = ["Replies", "lost"]

# A reset is put down to a refused body only where one longer than this waits for its answer, bytes.
SUSPECT_SIZE = 1024


class _Pending(NamedTuple):
    """A command that waits for its answer."""

    reply: AsyncResult
    size: int


class Replies:
    """Pending replies of one connection; true while there are any."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, size: int) -> AsyncResult:
        """Expect the reply to a command of so many bytes, behind all others."""
        pending = _Pending(AsyncResult(), size)
        self._pending.append(pending)
        return pending.reply

    def resolve(self, data: bytes) -> None:
        """Give the oldest its answer."""
        self._pending.popleft().reply.set(data)

    def refuse(self, error: NSQErrorCode) -> None:
        """Give the oldest, if there is one, the error that nsqd answered."""
        if self._pending:
            self._pending.popleft().reply.set_exception(error)

    def fail(self, address: str, error: NSQException | None) -> None:
        """Tell all that there will be no answer, and why."""
        pending, self._pending = self._pending, deque()
        if pending:
            failure = lost(address, error, max(item.size for item in pending))
            for item in pending:
                item.reply.set_exception(failure)

    def wait(self) -> None:
        """Wait until the youngest of now has its answer."""
        if self._pending:
            self._pending[-1].reply.wait()


def lost(address: str, error: NSQException | None, longest: int = 0) -> NSQConnectionClosed:
    """Say why there is no answer.

    Args:
        error: What ended the connection, None if we closed it.
        longest: Size of the longest command that waits for an answer.
    """
    text = f"{address}: {error or 'connection was closed'}"
    if isinstance(error, NSQErrorCode):
        # Source: nsqd executes nothing behind a fatal error.
        text = f"{address}: nsqd refused a command before this one and closed the connection ({error}); "
        text += "this one was not executed"
    elif isinstance(error, NSQSocketError) and error.errno == errno.ECONNRESET and longest > SUSPECT_SIZE:
        text += f"; the longest command without an answer has {longest} bytes, and nsqd resets a connection when "
        text += "it refuses a body: compare with its --max-msg-size and --max-body-size"
    return NSQConnectionClosed(text)
