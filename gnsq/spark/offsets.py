"""Offsets: vectors of segment numbers, and the segments between two offsets. Pure: knows no files, no NSQ, no Spark.

An offset has, for each receiver, the number of the last segment that was read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from gnsq.texts import counted

__all__ = [
    "Segment",
    "Vector",
    "advance",
    "decode_offset",
    "describe_missing",
    "distribute",
    "encode_offset",
    "may_follow",
    "missing",
    "positions_of",
    "read_after",
    "take_up_to",
    "with_new_revision",
]

VERSION = 1
# A key that is no receiver's name. Its value only makes a vector differ from the vector before it.
_REVISION = ""
# Prefix of a key: a receiver's name follows. Value: number of its last segment that was deleted before the first one
# that is read.
_NOT_READ_UP_TO = "/"

# Rows and bytes that are worth a task of their own: a task costs about as much as reading so many.
TASK_ROWS, TASK_BYTES = 20_000, 4 * 1024 * 1024
# Limit of the receivers that describe_missing() names.
MAX_DESCRIBED = 5

# Receiver -> number of its last segment that was read. If a receiver is missing, none of its segments was read.
Vector = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a spool: its receiver, its number at this receiver (from 1), its bytes, its rows."""

    receiver: str
    number: int
    size: int
    rows: int

    @property
    def name(self) -> str:
        """Name of the file. It has the rows and the bytes, so that a listing of names is enough to know them."""
        return f"{self.number:012d}-{self.rows}-{self.size}.arrow"

    @property
    def path(self) -> str:
        """Path of the file within the spool."""
        return f"{self.receiver}/{self.name}"


def encode_offset(vector: Vector, source: str) -> dict[str, object]:
    """Make the JSON document of a vector for Spark's checkpoint. The source names what is read: topics and channel."""
    return {"v": VERSION, "s": source, "r": dict(sorted(vector.items()))}


def decode_offset(offset: object, source: str) -> dict[str, int]:
    """Decode the result of encode_offset().

    Raises:
        ValueError: If the offset is of a source that this one may not follow, has another VERSION, or is not the result
            of encode_offset().
    """
    if not isinstance(offset, dict) or not isinstance(offset.get("r"), dict) or "v" not in offset:
        raise ValueError(
            f"offset {offset!r} is not one of the nsq source: the checkpoint is another query's, give this one its own"
        )
    if offset["v"] != VERSION:
        raise ValueError(
            f"offset version {offset['v']!r} is not {VERSION}: the checkpoint was written by another version of gnsq, "
            "use that one, or start with a new checkpoint"
        )
    if not may_follow(str(offset.get("s")), source):
        raise ValueError(
            f"the checkpoint is of {offset.get('s')!r}, this query reads {source!r}: give it a checkpoint and a spool "
            "of its own"
        )
    for receiver, number in offset["r"].items():
        if not isinstance(receiver, str) or type(number) is not int or number < 0:
            raise ValueError(
                f"offset {offset!r} has {receiver!r}: {number!r}, a segment number of 0 or more is expected"
            )
    return dict(offset["r"])


def may_follow(before: str, now: str) -> bool:
    """Return True if a query of one source may go on as a query of another: topics may be added and removed.

    The channel must be the same. Two lists of topics must have one in common; with a pattern any topics may.

    Args:
        before, now: Sources, as ReadOptions.source has them.
    """
    (before_topics, _, before_channel), (topics, _, channel) = before.rpartition("/"), now.rpartition("/")
    is_pattern = before_topics.startswith("/") or topics.startswith("/")
    in_common = set(before_topics.split(",")) & set(topics.split(","))
    return before_channel == channel and (is_pattern or bool(in_common))


def take_up_to(
    waiting: Mapping[str, Iterable[Segment]], max_rows: int | None, max_bytes: int, turn: int = 0
) -> list[Segment]:
    """Return as many segments as the limits allow, but at least one of those waiting: segments are not divided.

    They are in the order of SegmentIndex.between(), except the first. If a segment does not fit, the later segments of
    its receiver wait, too, but those of other receivers may be taken. ``turn`` selects the receiver that comes first,
    so that a receiver with small segments can't delay one with large segments for ever.

    Args:
        waiting: For each receiver its segments, in the order of their numbers. At most one more is read of each
            receiver than is taken.
        max_rows: None for no limit.
        turn: A number that differs from batch to batch.
    """
    queues = {receiver: iter(waiting[receiver]) for receiver in sorted(waiting)}
    first = [*queues][turn % len(queues)] if queues else None
    order = sorted(queues, key=lambda receiver: (receiver != first, receiver))
    taken: list[Segment] = []
    rows = size = 0
    while order:
        going_on: list[str] = []
        for receiver in order:
            segment = next(queues[receiver], None)
            if segment is None:
                continue
            is_over = size + segment.size > max_bytes or (max_rows is not None and rows + segment.rows > max_rows)
            if is_over and taken:
                continue
            taken.append(segment)
            rows += segment.rows
            size += segment.size
            going_on.append(receiver)
        order = sorted(going_on)
    return taken


def positions_of(vector: Vector) -> dict[str, int]:
    """Return the numbers of receivers in a vector, without its other keys."""
    return {key: number for key, number in vector.items() if key != _REVISION and not key.startswith(_NOT_READ_UP_TO)}


def read_after(start: Vector, end: Vector) -> Vector:
    """Compute the position after which a batch reads: start, or a later one that end has noted for a new receiver."""
    noted = {key[1:]: number for key, number in end.items() if key.startswith(_NOT_READ_UP_TO)}
    return {**noted, **start}


def advance(start: Vector, taken: Iterable[Segment], receivers: Set[str]) -> dict[str, int]:
    """Compute the vector for the position after start and the taken segments.

    If a receiver is not in start, for example with a new checkpoint on an old spool, the segments before its first
    taken segment were deleted. The result then has the last of their numbers, too: missing() expects all later
    segments.

    Args:
        taken: Segments in the order of SegmentIndex.between().
        receivers: The receivers that have a file. The others have probably ended; the result leaves them out, so that
            vectors do not grow for ever. But if no segment is taken, the result is start, since Spark takes any
            difference for new data.
    """
    end = dict(start)
    not_read: dict[str, int] = {}
    for segment in taken:
        if segment.receiver not in end and segment.number > 1:
            not_read[_NOT_READ_UP_TO + segment.receiver] = segment.number - 1
        end[segment.receiver] = max(segment.number, end.get(segment.receiver, 0))
    if end == dict(start):
        return end
    return {receiver: number for receiver, number in end.items() if receiver in receivers} | not_read


def with_new_revision(start: Vector) -> dict[str, int]:
    """Return a vector that differs from start but has the same positions. The batch between these two vectors is empty;
    after it, Spark commits start."""
    return {**start, _REVISION: start.get(_REVISION, 0) + 1}


def missing(present: Iterable[Segment], start: Vector, end: Vector) -> list[tuple[str, int]]:
    """List the segments, as (receiver, number), that are between start and end but not present.

    If a receiver is not in start, its segments are expected from number 1, or after those that end notes as not read.
    """
    found = {(segment.receiver, segment.number) for segment in present}
    after = read_after(start, end)
    gaps: list[tuple[str, int]] = []
    for receiver, last in sorted(positions_of(end).items()):
        first = 1 + after.get(receiver, 0)
        gaps.extend((receiver, number) for number in range(first, last + 1) if (receiver, number) not in found)
    return gaps


def describe_missing(gaps: Sequence[tuple[str, int]]) -> str:
    """Write the result of missing() as text: for each receiver, how many segments, and their first and last number."""
    numbers: dict[str, list[int]] = {}
    for receiver, number in gaps:
        numbers.setdefault(receiver, []).append(number)
    parts = [
        f"{len(found)} of receiver {receiver}, "
        + (f"numbers {min(found)} to {max(found)}" if len(found) > 1 else f"number {found[0]}")
        for receiver, found in list(numbers.items())[:MAX_DESCRIBED]
    ]
    if len(numbers) > MAX_DESCRIBED:
        parts.append(f"and those of {counted(len(numbers) - MAX_DESCRIBED, 'more receiver')}")
    return f"{counted(len(gaps), 'segment')} ({'; '.join(parts)})"


def distribute(segments: Sequence[Segment], groups: int, max_bytes: int) -> list[list[Segment]]:
    """Divide segments into groups of about the same size in bytes, one for each task. No group is empty.

    There are at most ``groups`` groups, and fewer if that is enough for TASK_ROWS and TASK_BYTES, so that a sink writes
    few files. But there are more if that is needed so that no group exceeds max_bytes by more than one segment.
    Therefore the tasks of a batch that was planned with a higher limit of bytes need no more memory.
    """
    total = sum(segment.size for segment in segments)
    useful = max(math.ceil(sum(segment.rows for segment in segments) / TASK_ROWS), math.ceil(total / TASK_BYTES))
    groups = min(max(min(groups, useful), math.ceil(total / max_bytes)), len(segments))
    shares: list[list[Segment]] = [[] for _ in range(groups)]
    before = 0
    for segment in segments:
        # The middle of a segment decides its group, so that a large segment does not push all others to the last group.
        middle = before + segment.size / 2
        shares[min(int(middle * groups / total), groups - 1) if total else 0].append(segment)
        before += segment.size
    return [share for share in shares if share]
