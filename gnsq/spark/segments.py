"""What is in a segment: its columns, and how messages are laid out in them. No files."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from gnsq.spark.collector import SpoolMessage

__all__ = ["SCHEMA", "segment_columns"]

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("message_id", pa.string()),
        ("attempts", pa.int32()),
        ("published_at", _TIME),
        ("received_at", _TIME),
        ("nsqd", pa.string()),
        ("topic", pa.string()),
    ]
)


def segment_columns(messages: Sequence[SpoolMessage], topic: str, received_at_ns: int) -> list[pa.Array]:
    """Lay messages out as the columns of a segment."""
    count = len(messages)
    return [
        pa.array([message.body for message in messages], pa.binary()),
        pa.array([message.id.decode("latin-1") for message in messages], pa.string()),
        pa.array([message.attempts for message in messages], pa.int32()),
        pa.array([message.timestamp // 1000 for message in messages], pa.int64()).cast(_TIME),
        pa.repeat(pa.scalar(received_at_ns // 1000, pa.int64()), count).cast(_TIME),
        pa.array([message.nsqd for message in messages], pa.string()),
        pa.repeat(pa.scalar(topic, pa.string()), count),
    ]
