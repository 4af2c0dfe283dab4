"""Counts by window and key, carried from batch to batch. PURE: tables in, tables out; no Spark, no files."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Count", "State", "advance", "decode_state", "encode_state", "updates", "watermark"]


@dataclass(frozen=True, slots=True)
class Count:
    """How often a key was seen in the window that begins at ``start``; ``version`` is the batch that last raised it."""

    start: dt.datetime
    key: str
    count: int
    version: int


@dataclass(frozen=True, slots=True)
class State:
    """What is carried on: the counts of windows that are still open, and what is accounted for so far."""

    batch_id: int
    max_event_time: dt.datetime | None
    counts: tuple[Count, ...]
    aggregated: int
    late: int


EMPTY = State(-1, None, (), 0, 0)


def watermark(state: State, delay: dt.timedelta) -> dt.datetime | None:
    """Say which windows are closed for the next batch: those that end at or before this. As Spark's: of the latest
    event in the batches before."""
    return None if state.max_event_time is None else state.max_event_time - delay


def advance(
    state: State,
    batch_id: int,
    on_time: Iterable[tuple[dt.datetime, str, int]],
    late: int,
    max_event_time: dt.datetime | None,
    closed: dt.datetime | None,
    window: dt.timedelta,
) -> State:
    """Add a batch.

    Args:
        on_time: (start of window, key, events).
        late: Events that were behind the watermark.
        max_event_time: Latest of the batch.
        closed: The batch's watermark; windows behind it are let go.
    """
    counts = {
        (count.start, count.key): count for count in state.counts if closed is None or count.start + window > closed
    }
    aggregated = 0
    for start, key, events in on_time:
        before = counts.get((start, key))
        total = events + (before.count if before is not None else 0)
        counts[start, key] = Count(start, key, total, batch_id)
        aggregated += events
    times = [time for time in (state.max_event_time, max_event_time) if time is not None]
    return State(
        batch_id,
        max(times, default=None),
        tuple(sorted(counts.values(), key=lambda count: (count.start, count.key))),
        state.aggregated + aggregated,
        state.late + late,
    )


def updates(state: State) -> list[Count]:
    """List the counts that the last batch raised."""
    return [count for count in state.counts if count.version == state.batch_id]


def encode_state(state: State) -> bytes:
    """Write a state as JSON."""
    return json.dumps(
        {
            "v": 1,
            "batch_id": state.batch_id,
            "max_event_time": state.max_event_time.isoformat() if state.max_event_time is not None else None,
            "aggregated": state.aggregated,
            "late": state.late,
            "counts": [[count.start.isoformat(), count.key, count.count, count.version] for count in state.counts],
        }
    ).encode()


def decode_state(data: bytes) -> State:
    """Read what encode_state() wrote.

    Raises:
        ValueError: If it is anything else.
    """
    try:
        found = json.loads(data)
        latest = found["max_event_time"]
        return State(
            found["batch_id"],
            dt.datetime.fromisoformat(latest) if latest is not None else None,
            tuple(Count(dt.datetime.fromisoformat(row[0]), *row[1:]) for row in found["counts"]),
            found["aggregated"],
            found["late"],
        )
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"not the state of a metrics query: {error!r}") from error
