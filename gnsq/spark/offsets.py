"""Offsets: vectors of segment numbers, what lies between two of them, and where to cut. PURE.

An offset says how far each receiver's segments have been read. Knows no files, no NSQ and no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

__all__ = [
    "Segment",
    "Vector",
    "take_up_to",
    "decode_offset",
    "encode_offset",
    "end_vector",
    "advance",
    "missing",
    "with_new_revision",
    "pending",
    "distribute",
]

VERSION = 1
# Stands among the receivers, where nothing else tells a vector from the one before.
_REVISION = ""
# Before the name of a receiver: all up to this number was gone when its first segment was read.
_DELETED_UP_TO = "/"

# Receiver -> number of the last segment that was read; one that is not in it has had none read.
Vector = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a spool: who wrote it, its number there (from 1), its size in bytes, its rows."""

    receiver: str
    number: int
    size: int
    rows: int

    @property
    def path(self) -> str:
        """Its file below the spool. With the rows in its name a listing tells all, and what was lost can be counted."""
        return f"{self.receiver}/{self.number:012d}-{self.rows}.arrow"


def encode_offset(vector: Vector, source: str) -> dict[str, object]:
    """Write a vector as the JSON object that Spark keeps in its checkpoint.

    Args:
        source: What is read, as topics and channel.
    """
    return {"v": VERSION, "s": source, "r": dict(sorted(vector.items()))}


def decode_offset(offset: object, source: str) -> dict[str, int]:
    """Read what encode_offset() wrote.

    Raises:
        ValueError: If it is anything else, such as the offset of another source or of a later version.
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
    if offset.get("s") != source:
        raise ValueError(
            f"the checkpoint is of {offset.get('s')!r}, this query reads {source!r}: give it a checkpoint and a spool "
            "of its own"
        )
    vector: dict[str, int] = {}
    for receiver, number in offset["r"].items():
        if not isinstance(receiver, str) or type(number) is not int or number < 0:
            raise ValueError(f"offset {offset!r} has {receiver!r}: {number!r}, a segment number of 0 or more was due")
        vector[receiver] = number
    return vector


def pending(segments: Iterable[Segment], start: Vector, end: Vector | None = None) -> list[Segment]:
    """List the segments behind start, up to end if given, in reading order.

    Each receiver's segments come in the order of their numbers; receivers take turns, so that none waits for another.
    """
    by_receiver: dict[str, list[Segment]] = {}
    for segment in segments:
        if segment.number <= start.get(segment.receiver, 0):
            continue
        if end is not None and segment.number > end.get(segment.receiver, 0):
            continue
        by_receiver.setdefault(segment.receiver, []).append(segment)
    turns: list[tuple[int, str, Segment]] = []
    for receiver, own in by_receiver.items():
        own.sort(key=lambda segment: segment.number)
        turns.extend((turn, receiver, segment) for turn, segment in enumerate(own))
    return [segment for _, _, segment in sorted(turns, key=lambda item: item[:2])]


def take_up_to(waiting: Sequence[Segment], max_rows: int | None = None, max_bytes: int | None = None) -> list[Segment]:
    """Take from the front as much as the limits allow, and one segment at least: they are not divided.

    Args:
        waiting: In reading order, as pending() returns it.
        max_rows, max_bytes: None for no limit.
    """
    taken: list[Segment] = []
    rows = size = 0
    for segment in waiting:
        rows += segment.rows
        size += segment.size
        over = (max_rows is not None and rows > max_rows) or (max_bytes is not None and size > max_bytes)
        if over and taken:
            break
        taken.append(segment)
    return taken


def advance(start: Vector, taken: Iterable[Segment], receivers: Set[str]) -> dict[str, int]:
    """Advance start by the segments taken.

    Args:
        taken: In reading order, as pending() returns it.
        receivers: Those that have a file; others have no more to come, most likely, and are left out, so that the
            vector does not grow for ever. Nothing is left out while nothing is taken: Spark would see a change.

    Where start does not know a receiver, the vector says what was gone before the first segment taken, as that of a
    new checkpoint on an old spool: missing() knows then that all the others have to be there.
    """
    end = dict(start)
    gone: dict[str, int] = {}
    for segment in taken:
        if segment.receiver not in start and segment.receiver not in end and segment.number > 1:
            gone[_DELETED_UP_TO + segment.receiver] = segment.number - 1
        end[segment.receiver] = max(segment.number, end.get(segment.receiver, 0))
    if end == dict(start):
        return end
    return {receiver: number for receiver, number in end.items() if receiver in receivers} | gone


def end_vector(segments: Iterable[Segment]) -> dict[str, int]:
    """Say how far one reads who reads all of them."""
    end: dict[str, int] = {}
    for segment in segments:
        end[segment.receiver] = max(segment.number, end.get(segment.receiver, 0))
    return end


def with_new_revision(start: Vector) -> dict[str, int]:
    """Say the same as start in other words: the batch between them is empty, and ends the one before it."""
    return {**start, _REVISION: start.get(_REVISION, 0) + 1}


def missing(present: Iterable[tuple[str, int]], start: Vector, end: Vector) -> list[tuple[str, int]]:
    """List the (receiver, number) between start and end that are not there.

    Args:
        present: Segments that exist, those that were set aside too.

    Where start does not know a receiver, its segments are expected from the first, or from where end says.
    """
    numbers: dict[str, set[int]] = {}
    for receiver, number in present:
        numbers.setdefault(receiver, set()).add(number)
    gaps: list[tuple[str, int]] = []
    for receiver, last in sorted(end.items()):
        if receiver == _REVISION or receiver.startswith(_DELETED_UP_TO):
            continue
        own = numbers.get(receiver, set())
        first = 1 + start.get(receiver, end.get(_DELETED_UP_TO + receiver, 0))
        gaps.extend((receiver, number) for number in range(first, last + 1) if number not in own)
    return gaps


def distribute(segments: Sequence[Segment], groups: int) -> list[list[Segment]]:
    """Divide segments into at most so many runs of about the same size in bytes; none is empty."""
    total = sum(segment.size for segment in segments)
    groups = min(groups, len(segments))
    shares: list[list[Segment]] = [[] for _ in range(groups)]
    before = 0
    for segment in segments:
        # The middle of the segment decides, so that one big segment does not push the rest into the last group.
        middle = before + segment.size / 2
        shares[min(int(middle * groups / total), groups - 1) if total else 0].append(segment)
        before += segment.size
    return [share for share in shares if share]
