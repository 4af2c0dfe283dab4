"""What is to be sent to one client, and when: nsqd's buffer, and the ticker that empties it.

Pure. Whatever is no message empties it at once, and so does a message that leaves the client ready for no other.
Source: nsqd protocol_v2.go, messagePump; Go's bufio.Writer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["Output"]

# Size and type of a frame are written apart from what it holds.
_WORD = 4


class Output:
    """The frames of one client that are not sent yet.

    Args:
        now: When the ticker begins, seconds.

    Attributes:
        frames: Those that take() gives; others may be with a tap.
        due: When tick() is worth calling; infinity if never.
    """

    def __init__(self, now: float) -> None:
        self.frames: list[bytes] = []
        self.due = math.inf
        self._flush = False
        self._sizes: list[int] = []
        # Bytes that are in the buffer, and that have run out of it.
        self._buffered = self._leaving = 0
        self._since = now
        self._ticks = 0

    def start(self, now: float) -> None:
        """Let the ticker begin anew."""
        self._since, self._ticks = now, 0

    def respond(self, frame: bytes) -> None:
        """Say something that is no message."""
        self.frames.append(frame)
        self._flush = True

    def add(self, sizes: Iterable[int]) -> None:
        """Take note of the sizes of messages that are to be sent."""
        self._sizes += sizes

    def flush(self) -> None:
        """Keep nothing back."""
        self._flush = True

    def hold(self, now: float, period: float, size: float) -> None:
        """Keep messages back until the buffer is full, or the ticker ticks.

        Args:
            period: Of the ticker, seconds; 0: there is none.
            size: Of the buffer, bytes.
        """
        if not self._sizes and not self._buffered:
            return
        for frame in self._sizes:
            for part in (_WORD, _WORD, frame - 2 * _WORD):
                self._write(part, size)
        self._sizes.clear()
        # A tick that nobody has waited for is kept: the first message after a silence leaves at once.
        self.due = self._since + (self._ticks + 1) * period if period else math.inf
        self.tick(now, period)

    def _write(self, part: int, size: float) -> None:
        if self._buffered and part > size - self._buffered:
            part -= int(size) - self._buffered
            self._leaving += int(size)
            self._buffered = 0
        if part > size:
            # With nothing in front of it, it does not go through the buffer.
            self._leaving += part
        else:
            self._buffered += part

    def tick(self, now: float, period: float) -> None:
        """Empty the buffer if the time has come."""
        if now >= self.due:
            self._ticks = max(self._ticks + 1, int((now - self._since) / period))
            self._flush = True

    def take(self) -> bytes:
        """Give what may leave now."""
        if not (self._flush or self._leaving):
            return b""
        data = b"".join(self.frames)
        self.frames.clear()
        if self._flush:
            self.drain()
            return data
        if rest := data[self._leaving :]:
            self.frames.append(rest)
        data, self._leaving = data[: self._leaving], 0
        return data

    def drain(self) -> bool:
        """Say whether anything may leave now; then all of it is taken to have left."""
        if not (self._flush or self._leaving):
            return False
        self._flush, self._buffered, self._leaving, self.due = False, 0, 0, math.inf
        self._sizes.clear()
        return True
