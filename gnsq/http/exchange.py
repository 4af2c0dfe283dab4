"""What an HTTP exchange and the one who waits for it tell each other. Needs no requests, so that it loads at once."""

from __future__ import annotations

import _socket
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["NoAnswer", "Request", "Watch"]


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked."""

    method: str
    url: str
    params: Mapping[str, str]
    body: bytes | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


class NoAnswer(Exception):
    """There was no answer, or not all of it.

    Attributes:
        sent: Whether any byte of the request may have left.
        reused: Whether it went over a connection that an earlier one had left open.
        timed_out: Whether time ran out.
        final: Whether another try would end like this one.
    """

    def __init__(self, text: str, *, sent: bool, reused: bool, timed_out: bool, final: bool) -> None:
        super().__init__(text)
        self.sent = sent
        self.reused = reused
        self.timed_out = timed_out
        self.final = final


class _Ended(Exception):
    """Nobody waits for this exchange any more."""


class Watch:
    """What an exchange and the one who waits for it know of each other; each may be on a thread of its own.

    No lock: each side first writes its own mark and then reads the other's, so that one of them sees both.
    """

    __slots__ = ("_connection", "_pid", "connected", "ended", "sent")

    def __init__(self) -> None:
        self.ended = False
        self.sent = False
        self.connected = False
        self._connection: Any = None  # Any: urllib3's, with or without TLS
        self._pid = os.getpid()

    def end(self) -> None:
        """Give up: nothing is sent from here on, and whoever waits for the socket wakes up."""
        self.ended = True
        sock = getattr(self._connection, "sock", None)
        # In a child the socket is shared with the parent, whose exchange goes on.
        if sock is None or self._pid != os.getpid():
            return
        # Below TLS, whose own shutdown() would pull the rug from under the thread that reads.
        with contextlib.suppress(OSError):
            _socket.socket.shutdown(getattr(sock, "_sock", sock), _socket.SHUT_RDWR)

    def connecting(self, connection: object) -> None:
        """Called before a connection is made."""
        self._connection = connection
        self.connected = True
        self._check()

    def sending(self, connection: object) -> None:
        """Called before anything is sent."""
        self._connection = connection
        self.sent = True
        self._check()

    def release(self) -> bool:
        """Called when the connection is free again; says whether it may be kept."""
        self._connection = None
        return not self.ended

    def _check(self) -> None:
        if self.ended:
            raise _Ended
