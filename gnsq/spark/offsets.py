"""Offsets: vectors of segment numbers, and the segments between two of them. Pure.

An offset holds for each receiver the number of its last segment that was read. Knows no files, no NSQ and no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

__all__ = [
    "Segment",
    "Vector",
    "advance",
    "decode_offset",
    "distribute",
    "encode_offset",
    "end_vector",
    "missing",
    "pending",
    "take_up_to",
    "with_new_revision",
]

VERSION = 1
# A key beside the receivers, which only makes a vector differ from the one before.
_REVISION = ""
# Before the name of a receiver: the number of its last segment that was deleted before its first one was read.
_DELETED_UP_TO = "/"

# Receiver -> number of its last segment that was read. No segment was read of a receiver that is not in it.
Vector = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a spool: its receiver, its number there (from 1), its size in bytes, its rows."""

    receiver: str
    number: int
    size: int
    rows: int

    @property
    def path(self) -> str:
        """File below the spool. It names the rows, so that a listing is enough to count them, even of a lost file."""
        return f"{self.receiver}/{self.number:012d}-{self.rows}.arrow"


def encode_offset(vector: Vector, source: str) -> dict[str, object]:
    """Encode a vector as the JSON object for Spark's checkpoint; source is what is read, as topics and channel."""
    return {"v": VERSION, "s": source, "r": dict(sorted(vector.items()))}


def decode_offset(offset: object, source: str) -> dict[str, int]:
    """Decode the result of encode_offset().

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
    for receiver, number in offset["r"].items():
        if not isinstance(receiver, str) or type(number) is not int or number < 0:
            raise ValueError(
                f"offset {offset!r} has {receiver!r}: {number!r}, a segment number of 0 or more is expected"
            )
    return dict(offset["r"])


def pending(segments: Iterable[Segment], start: Vector, end: Vector | None = None) -> list[Segment]:
    """List the segments after start, up to end if given, in reading order.

    The segments of a receiver come in the order of their numbers. Receivers take turns, so that none has to wait.
    """
    by_receiver: dict[str, list[Segment]] = {}
    for segment in sorted(segments, key=lambda segment: segment.number):
        is_after_end = end is not None and segment.number > end.get(segment.receiver, 0)
        if segment.number > start.get(segment.receiver, 0) and not is_after_end:
            by_receiver.setdefault(segment.receiver, []).append(segment)
    turns = [(turn, own[0].receiver, each) for own in by_receiver.values() for turn, each in enumerate(own)]
    return [segment for _, _, segment in sorted(turns, key=lambda item: item[:2])]


def take_up_to(waiting: Sequence[Segment], max_rows: int | None = None, max_bytes: int | None = None) -> list[Segment]:
    """Take the first segments, as many as the limits allow, but at least one: segments are not divided.

    Args:
        waiting: As pending() returns it.
        max_rows, max_bytes: None for no limit.
    """
    taken: list[Segment] = []
    rows = size = 0
    for segment in waiting:
        rows += segment.rows
        size += segment.size
        is_over = (max_rows is not None and rows > max_rows) or (max_bytes is not None and size > max_bytes)
        if is_over and taken:
            break
        taken.append(segment)
    return taken


def advance(start: Vector, taken: Iterable[Segment], receivers: Set[str]) -> dict[str, int]:
    """Advance start by the taken segments.

    If start does not know a receiver, as with a new checkpoint on an old spool, the vector also holds which of its
    segments were deleted before. So missing() knows that all later ones must exist.

    Args:
        taken: As pending() returns it.
        receivers: Those that have a file. Others are left out, since most likely they have ended, and the vector must
            not grow for ever. If no segment is taken, none is left out: Spark would see a change.
    """
    end = dict(start)
    deleted: dict[str, int] = {}
    for segment in taken:
        if segment.receiver not in end and segment.number > 1:
            deleted[_DELETED_UP_TO + segment.receiver] = segment.number - 1
        end[segment.receiver] = max(segment.number, end.get(segment.receiver, 0))
    if end == dict(start):
        return end
    return {receiver: number for receiver, number in end.items() if receiver in receivers} | deleted


def end_vector(segments: Iterable[Segment]) -> dict[str, int]:
    """Compute the vector after all of these segments."""
    end: dict[str, int] = {}
    for segment in segments:
        end[segment.receiver] = max(segment.number, end.get(segment.receiver, 0))
    return end


def with_new_revision(start: Vector) -> dict[str, int]:
    """Return another vector with the positions of start. The empty batch between them lets Spark commit start."""
    return {**start, _REVISION: start.get(_REVISION, 0) + 1}


def missing(present: Iterable[tuple[str, int]], start: Vector, end: Vector) -> list[tuple[str, int]]:
    """List the (receiver, number) between start and end that are not present.

    Segments of a receiver that start does not know are expected from 1, or from the number that end holds.
    """
    found = set(present)
    gaps: list[tuple[str, int]] = []
    for receiver, last in sorted(end.items()):
        if receiver != _REVISION and not receiver.startswith(_DELETED_UP_TO):
            first = 1 + start.get(receiver, end.get(_DELETED_UP_TO + receiver, 0))
            gaps.extend((receiver, number) for number in range(first, last + 1) if (receiver, number) not in found)
    return gaps


def distribute(segments: Sequence[Segment], groups: int) -> list[list[Segment]]:
    """Divide segments into at most so many runs of about the same size in bytes; none is empty."""
    total = sum(segment.size for segment in segments)
    groups = min(groups, len(segments))
    shares: list[list[Segment]] = [[] for _ in range(groups)]
    before = 0
    for segment in segments:
        # By the middle of the segment, so that one large segment does not push the rest into the last group.
        middle = before + segment.size / 2
        shares[min(int(middle * groups / total), groups - 1) if total else 0].append(segment)
        before += segment.size
    return [share for share in shares if share]
