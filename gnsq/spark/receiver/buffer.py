"""Segment buffer: messages that are in no segment yet, and the limits at which their segment is written. Pure: reads no
clock, finishes no message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnsq import Message

__all__ = ["SEGMENT_BYTES", "SEGMENT_ROWS", "BufferedMessages", "SegmentBuffer", "grown_age"]

# Most rows and bytes of bodies in one segment. Up to eight such segments wait in memory, and a batch has about eight of
# this size, too. A segment costs a sync and a file: below 10,000 rows, receiving gets slower.
SEGMENT_ROWS, SEGMENT_BYTES = 10_000, 8 * 1024 * 1024
# While more segments than this wait in the spool, segments may get older before they are written, up to these seconds.
MANY_SEGMENTS, MAX_GROWN_AGE = 1000, 5.0


@dataclass(frozen=True, slots=True)
class BufferedMessages:
    """Messages of one segment.

    Attributes:
        size: Bytes of the messages' bodies.
        topics: The topic of each message.
    """

    messages: Sequence[Message]
    size: int
    topics: Sequence[str]


class SegmentBuffer:
    """Received messages that wait for their segment.

    Args:
        max_rows, max_size, max_age: A segment must be written at the latest when it has this many rows or this many
            bytes of bodies, or is this many seconds old.

    Attributes:
        size: Bytes of the messages' bodies.
        max_age: As given; a change has an effect on the next segment.
    """

    __slots__ = ("_age", "_due_rows", "_max_rows", "_max_size", "_messages", "_since", "_topics", "max_age", "size")

    def __init__(self, max_rows: int, max_size: int, max_age: float) -> None:
        self.size = 0
        self._max_rows = max_rows
        self._max_size = max_size
        self.max_age = max_age
        self._messages: list[Message] = []
        self._topics: list[str] = []
        self._since = 0.0
        self._age = max_age
        self._due_rows = max_rows

    def __len__(self) -> int:
        return len(self._messages)

    def begin(self, now: float, in_flight_limit: int, time_left: float | None = None) -> None:
        """Begin a segment; call it while the buffer is empty.

        Args:
            in_flight_limit: How many messages nsqd delivers before it waits for FIN. Three quarters of this number make
                a segment, so that other messages arrive while the segment is written. That is 12% faster than half of
                the number, and a third faster if a write takes 50 ms.
            time_left: Seconds until the first message times out; None if unknown. A segment waits at most half of it.
        """
        self._since = now
        self._age = self.max_age if time_left is None else min(self.max_age, time_left / 2)
        self._due_rows = min(self._max_rows, max(in_flight_limit * 3 // 4, 1))

    def add(self, topic: str, messages: Sequence[Message]) -> bool:
        """Add messages of one topic; return is_full. On the hot path: reads no clock."""
        self._messages += messages
        self._topics += [topic] * len(messages)
        self.size += _size(messages)
        return self.is_full

    @property
    def is_full(self) -> bool:
        """True if the segment must be written because it has enough rows or bytes."""
        return len(self._messages) >= self._due_rows or self.size >= self._max_size

    def seconds_to_flush(self, now: float) -> float:
        """Compute the seconds until the segment is old enough to be written; 0 if it is."""
        return max(self._since + self._age - now, 0.0)

    def take(self) -> BufferedMessages:
        """Remove and return messages of one segment: within max_rows and max_size, or one. Others keep their age."""
        messages, topics, size = self._messages, self._topics, self.size
        count = min(len(messages), self._max_rows)
        if count < len(messages):
            size = _size(messages[:count])
        while count > 1 and size > self._max_size:
            count = max(count * self._max_size // size, 1)
            size = _size(messages[:count])
        self._messages, self._topics = messages[count:], topics[count:]
        self.size -= size
        return BufferedMessages(messages[:count], size, topics[:count])


def grown_age(age: float, waiting: int) -> float:
    """Compute how old a segment may get if this many segments wait in the spool.

    The more segments wait, the longer a new one waits for its turn in any case. Fewer and larger segments let the query
    read the others sooner: 0.1 s for up to 1,000 segments, 0.2 s for 2,000, and 5 s for 50,000.

    Args:
        age: Seconds that a segment may get old if no others wait.
    """
    return max(age, min(age * waiting / MANY_SEGMENTS, MAX_GROWN_AGE))


def _size(messages: Sequence[Message]) -> int:
    return sum([len(message.body) for message in messages])
