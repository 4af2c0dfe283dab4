"""Segment buffer: messages that are in no segment yet, and when their segment is due. Pure: reads no clock, answers no
message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnsq import Message

__all__ = ["BufferedMessages", "SegmentBuffer"]


@dataclass(frozen=True, slots=True)
class BufferedMessages:
    """Messages of one segment.

    Attributes:
        size: Bytes of their bodies.
        topics: Their topics as runs, in the same order: (topic, number of messages).
    """

    messages: Sequence[Message]
    size: int
    topics: Sequence[tuple[str, int]]


class SegmentBuffer:
    """Received messages that wait for their segment.

    Args:
        max_rows, max_size, max_age: A segment is due when it has so many rows, so many bytes of bodies, or is so many
            seconds old.

    Attributes:
        size: Bytes of their bodies.
    """

    __slots__ = ("_age", "_due_rows", "_max_age", "_max_rows", "_max_size", "_messages", "_since", "_starts", "size")

    def __init__(self, max_rows: int, max_size: int, max_age: float) -> None:
        self.size = 0
        self._max_rows = max_rows
        self._max_size = max_size
        self._max_age = max_age
        self._messages: list[Message] = []
        # Topic and first index of each run of messages of one topic.
        self._starts: list[tuple[str, int]] = []
        self._since = 0.0
        self._age = max_age
        self._due_rows = max_rows

    def __len__(self) -> int:
        return len(self._messages)

    def begin(self, now: float, topic: str, in_flight_limit: int, time_left: float | None = None) -> None:
        """Begin a segment; call it while the buffer is empty.

        Args:
            topic: Topic of the next messages.
            in_flight_limit: Messages that nsqd delivers before it waits for answers. Three quarters of them make a
                segment, so that others arrive while it is written: 12% faster than half of them, and a third faster
                if a write takes 50 ms.
            time_left: Seconds until nsqd takes the message back; None if unknown. At most half of that is waited.
        """
        self._since = now
        self._age = self._max_age if time_left is None else min(self._max_age, time_left / 2)
        self._starts = [(topic, 0)]
        self._due_rows = min(self._max_rows, max(in_flight_limit * 3 // 4, 1))

    def switch_topic(self, topic: str) -> None:
        """Set the topic of the messages that are added from now on. The buffer must have messages."""
        if topic != self._starts[-1][0]:
            self._starts.append((topic, len(self._messages)))

    def add(self, messages: Sequence[Message]) -> bool:
        """Add messages. On the hot path: reads no clock.

        Returns:
            Whether the segment is due for its rows or bytes.
        """
        self._messages += messages
        self.size += _size(messages)
        return self.is_full

    @property
    def is_full(self) -> bool:
        """Whether a segment is due for its rows or bytes."""
        return len(self._messages) >= self._due_rows or self.size >= self._max_size

    def seconds_to_flush(self, now: float) -> float:
        """Compute the seconds until the segment is due for its age; 0 if it is due."""
        return max(self._since + self._age - now, 0.0)

    def take(self) -> BufferedMessages:
        """Remove and return the messages of one segment, within the limits; the rest keeps its age."""
        messages, size = self._messages, self.size
        count = min(len(messages), self._max_rows)
        if count < len(messages):
            size = _size(messages[:count])
        while count > 1 and size > self._max_size:
            count = max(count * self._max_size // size, 1)
            size = _size(messages[:count])
        starts = self._starts
        self._messages = messages[count:]
        self.size -= size
        self._starts = _remaining_starts(starts, count) if self._messages else []
        return BufferedMessages(messages[:count], size, _runs(starts, count))


def _size(messages: Sequence[Message]) -> int:
    return sum([len(message.body) for message in messages])


def _runs(starts: Sequence[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    ends = [start for _, start in starts[1:]] + [count]
    runs = zip(starts, ends, strict=False)  # one end too many if there is no run at all
    return [(topic, min(end, count) - start) for (topic, start), end in runs if start < count]


def _remaining_starts(starts: Sequence[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """Compute the starts of runs after the first messages are removed. A run that was divided starts again at 0."""
    remaining = [(topic, start - count) for topic, start in starts if start > count]
    divided = [topic for topic, start in starts if start <= count]
    return [(divided[-1], 0), *remaining]
