"""What is in a segment: its columns, how messages are laid out in them, and their form as bytes. No files."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from gnsq import Message
from gnsq.spark.errors import SegmentCorrupt, SpoolError
from gnsq.texts import counted

__all__ = ["SCHEMA", "VERSION", "decode_segment", "encode_segment", "segment_columns"]

# Of SCHEMA, in each file's metadata; to be raised when a reader of the last version could not read it.
VERSION = 1
_VERSION = b"gnsq.version"
# CRC-32 of the whole file, in hexadecimal, computed with zeros in its own place. The metadata is in the file twice: at
# its beginning there are always zeros, at its end, where readers look, is the CRC.
_CRC = b"gnsq.crc32"
_NO_CRC = b"00000000"
# An Arrow file ends with its footer, the footer's length (4 bytes) and these.
_MAGIC = b"ARROW1"

_TIME = pa.timestamp("us", tz="UTC")
_NANOSECONDS = pa.timestamp("ns", tz="UTC")
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


def segment_columns(
    messages: Sequence[Message], topics: Sequence[tuple[str, int]], received_at_ns: int
) -> list[pa.Array]:
    """Lay messages out as the columns of a segment.

    Args:
        topics: Of the messages, as runs: (topic, number of messages).
    """
    count = len(messages)
    return [
        pa.array([message.body for message in messages], pa.binary()),
        _text([message.id for message in messages]),
        pa.array([message.attempts for message in messages], pa.int32()),
        # Cut to microseconds by Arrow: for half of what Python's division takes.
        pa.array([message.timestamp for message in messages], _NANOSECONDS).cast(_TIME, safe=False),
        pa.repeat(pa.scalar(received_at_ns // 1000, pa.int64()), count).cast(_TIME),
        _nsqd_column([message.nsqd for message in messages]),
        _topic_column(topics),
    ]


def _text(values: list[bytes]) -> pa.Array:
    array = pa.array(values, pa.binary())
    try:
        # Seven times as fast as decoding each.
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        # nsqd's are hexadecimal; what another server makes of them must not stop the receiver.
        return pa.array([value.decode("latin-1") for value in values], pa.string())


def _nsqd_column(nsqds: list[str | None]) -> pa.Array:
    if len(set(nsqds)) == 1:
        return pa.repeat(pa.scalar(nsqds[0], pa.string()), len(nsqds))
    return pa.array(nsqds, pa.string())


def _topic_column(topics: Sequence[tuple[str, int]]) -> pa.Array:
    if len(topics) == 1:
        [(topic, count)] = topics
        return pa.repeat(pa.scalar(topic, pa.string()), count)
    return pa.array([topic for topic, count in topics for _ in range(count)], pa.string())


def encode_segment(columns: Sequence[Any]) -> Any:  # Any: pyarrow has no types
    """Write columns, in the order of SCHEMA, as an Arrow file.

    Returns:
        A pyarrow.Buffer.
    """
    batch = pa.RecordBatch.from_arrays(list(columns), schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with ipc.new_file(sink, SCHEMA.with_metadata({_VERSION: str(VERSION), _CRC: _NO_CRC})) as writer:
        writer.write_batch(batch)
    data = sink.getvalue()
    # Written in its place, so that nothing is copied: at 272 bytes a row the CRC takes 0.05 us of a row.
    view = memoryview(data).cast("B")
    footer = _footer_start(view)
    place = footer + bytes(view[footer:]).index(_NO_CRC)
    view[place : place + len(_NO_CRC)] = _crc(view, _NO_CRC)
    return data


def decode_segment(data: Any, rows: int, name: str) -> list[Any]:  # Any: as above
    """Read what encode_segment() wrote, all of it: nothing is given out of a segment that is not whole.

    Args:
        data: pyarrow.Buffer. That it is in memory tells a damaged file from a disk that fails.
        rows: What must be in it.
        name: For error messages.

    Returns:
        Record batches, with SCHEMA.

    Raises:
        SegmentCorrupt: If it is anything else.
        SpoolError: If a later version of gnsq wrote it.
    """
    try:
        reader = ipc.open_file(data)
        metadata = reader.schema.metadata or {}
        # First: a flipped bit in the version is no later version.
        _check_crc(data, metadata, name)
        version = int(metadata[_VERSION])
        if version > VERSION:
            raise SpoolError(
                f"{name} has version {version}, this gnsq reads versions up to {VERSION}: install the gnsq that the "
                "receivers have"
            )
        if not reader.schema.equals(SCHEMA):
            raise SegmentCorrupt(f"{name} has other columns: {', '.join(reader.schema.names)}")
        batches = [reader.get_batch(index).replace_schema_metadata(None) for index in range(reader.num_record_batches)]
        for batch in batches:
            # Offsets that lead out of the file would crash who reads them.
            batch.validate(full=True)
    except (pa.ArrowMemoryError, pa.ArrowCancelled):
        # Of this process: the segment may well be whole.
        raise
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise SegmentCorrupt(f"{name} is not a segment: {error}") from error
    found = sum(batch.num_rows for batch in batches)
    if found != rows:
        raise SegmentCorrupt(f"{name} has {counted(found, 'row')}, its name says {rows}")
    return batches


def _check_crc(data: Any, metadata: Mapping[bytes, bytes], name: str) -> None:  # Any: as above
    """Compare the bytes with the CRC that they were written with; earlier versions of gnsq wrote none."""
    written = metadata.get(_CRC)
    if written is None:
        return
    found = _crc(memoryview(data).cast("B"), written)
    if found != written:
        raise SegmentCorrupt(
            f"{name} has CRC-32 {found.decode()}, it was written with {written.decode('ascii', 'backslashreplace')}: "
            "its bytes have changed since, check the disk"
        )


def _crc(view: memoryview, written: bytes) -> bytes:
    """Compute the CRC of a file in which one was written."""
    footer = _footer_start(view)
    return b"%08x" % zlib.crc32(bytes(view[footer:]).replace(written, _NO_CRC), zlib.crc32(view[:footer]))


def _footer_start(view: memoryview) -> int:
    end = len(view) - len(_MAGIC) - 4
    return end - int.from_bytes(view[end : end + 4], "little")
