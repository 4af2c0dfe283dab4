"""SegmentBuffer: messages that wait for a segment, and when it is due. PURE: is told the time, answers no message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnsq import Message

__all__ = ["SegmentBuffer", "SegmentLimits", "BufferedMessages"]


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """A segment is written when it has so many rows, so many bytes of bodies, or is so many seconds old."""

    rows: int
    size: int
    age: float


@dataclass(frozen=True, slots=True)
class BufferedMessages:
    """Messages for a segment, the bytes of their bodies, and their topics as runs: (topic, number of messages), in the
    same order."""

    messages: Sequence[Message]
    size: int
    topics: Sequence[tuple[str, int]]


class SegmentBuffer:
    """What was received and is in no segment yet."""

    __slots__ = ("_age", "_due", "_limits", "_messages", "_since", "_size", "_starts")

    def __init__(self, limits: SegmentLimits) -> None:
        self._limits = limits
        self._messages: list[Message] = []
        # Where each run of one topic begins.
        self._starts: list[tuple[str, int]] = []
        self._size = 0
        self._since = 0.0
        self._age = limits.age
        self._due = limits.rows

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, messages: Sequence[Message]) -> bool:
        """Take messages in. On the hot path: reads no clock. Whether a segment is due for its rows or bytes."""
        self._messages += messages
        self._size += _size(messages)
        return self.is_full

    def begin(self, now: float, topic: str, in_flight_limit: int, time_left: float | None = None) -> None:
        """Tell when the oldest comes in, and of what topic; asked for when the collector is empty.

        Args:
            in_flight_limit: Messages that nsqd delivers before it waits for answers. Three quarters of them make a
                segment, so that others arrive while it is written: 12% faster than half of them, and by a third where
                a write takes 50 ms.
            time_left: Seconds until nsqd takes the message back; None if it did not say. No more than half of that is
                spent on waiting.
        """
        self._since = now
        self._age = self._limits.age if time_left is None else min(self._limits.age, time_left / 2)
        self._starts = [(topic, 0)]
        self._due = min(self._limits.rows, max(in_flight_limit * 3 // 4, 1))

    def switch_topic(self, topic: str) -> None:
        """Tell of what topic the next messages are, if there may be several; not when the collector is empty."""
        if topic != self._starts[-1][0]:
            self._starts.append((topic, len(self._messages)))

    @property
    def size(self) -> int:
        """Bytes of bodies that wait."""
        return self._size

    @property
    def is_full(self) -> bool:
        """Whether a segment is due for its rows or bytes."""
        return len(self._messages) >= self._due or self._size >= self._limits.size

    def seconds_to_flush(self, now: float) -> float:
        """Say in how many seconds the segment is due for its age; 0 if it is already."""
        return max(self._since + self._age - now, 0.0)

    def take(self) -> BufferedMessages:
        """Hand over all that waits, or what makes a full segment: the rest is for the next, and as old."""
        messages, size = self._messages, self._size
        count = min(len(messages), self._limits.rows)
        if count < len(messages):
            size = _size(messages[:count])
        while count > 1 and size > self._limits.size:
            count = max(count * self._limits.size // size, 1)
            size = _size(messages[:count])
        starts = self._starts
        self._messages = messages[count:]
        self._size -= size
        self._starts = _remaining_runs(starts, count) if self._messages else []
        return BufferedMessages(messages[:count], size, _runs(starts, count))


def _size(messages: Sequence[Message]) -> int:
    return sum([len(message.body) for message in messages])


def _runs(starts: Sequence[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """Say of what topics the first messages are."""
    ends = [start for _, start in starts[1:]] + [count]
    runs = zip(starts, ends, strict=False)  # without any start there is nothing to end
    return [(topic, min(end, count) - start) for (topic, start), end in runs if start < count]


def _remaining_runs(starts: Sequence[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """Say where runs begin once the first messages are taken away; one that was cut begins anew."""
    behind = [(topic, start - count) for topic, start in starts if start > count]
    cut = [topic for topic, start in starts if start <= count]
    return [(cut[-1], 0), *behind]
