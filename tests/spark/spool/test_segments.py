import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.spark.errors import SegmentCorrupt
from gnsq.spark.spool.segments import SCHEMA, decode_segment, encode_segment, segment_columns
from tests.spark.helpers import FakeMessage, arrow_file, columns


def test_columns_fit_the_schema():
    messages = [FakeMessage(1), FakeMessage(2)]
    messages[1]._responder.nsqd = "other:4150"
    # Times are cut to microseconds, and any id is kept.
    messages[1].timestamp = 1_700_000_000_000_001_999
    messages[1].id = bytes(range(240, 256))
    batch = pa.RecordBatch.from_arrays(segment_columns(messages, ["clicks"] * 2, 5_000), schema=SCHEMA)

    first, second = batch.to_pylist()
    assert (first["message_id"], first["nsqd"]) == ("0000000000000001", "127.0.0.1:4150")
    assert first["received_at"].microsecond == 5
    assert (second["nsqd"], second["published_at"].microsecond) == ("other:4150", 1)
    assert second["message_id"].encode("latin-1") == messages[1].id
    assert [len(column) for column in segment_columns([], [], 0)] == [0] * len(SCHEMA)


@given(st.data())
def test_damaged_segment_is_whole_or_refused(data):
    segment = encode_segment(columns(*range(20))).to_pybytes()
    position = data.draw(st.integers(0, len(segment) - 1))
    damaged = data.draw(
        st.sampled_from(
            [
                segment[:position],
                segment[:position] + bytes([segment[position] ^ 0xFF]) + segment[position + 1 :],
                segment[:position] + bytes(len(segment) - position),
            ]
        )
    )

    with contextlib.suppress(SegmentCorrupt):
        assert rows_of(damaged, 20).equals(rows_of(segment, 20))


def rows_of(segment, rows):
    batches = decode_segment(pa.py_buffer(segment), rows, "r1/1")
    return pa.Table.from_batches(batches, SCHEMA)


def test_flipped_bit_anywhere_is_found():
    damaged = bytearray(encode_segment(columns(1, 2)).to_pybytes())
    for position in range(len(damaged)):
        for bit in range(8):
            damaged[position] ^= 1 << bit
            with pytest.raises(SegmentCorrupt):
                rows_of(damaged, 2)
            damaged[position] ^= 1 << bit


def test_error_of_a_changed_body_has_both_crcs():
    segment = encode_segment(columns(1, 2)).to_pybytes()
    written = pa.ipc.open_file(segment).schema.metadata[b"gnsq.crc32"].decode()

    with pytest.raises(SegmentCorrupt, match=rf"r1/1 has CRC-32 [0-9a-f]{{8}}, it was written with {written}: "):
        decode_segment(pa.py_buffer(segment.replace(b"body 1", b"body 3")), 2, "r1/1")
    with pytest.raises(SegmentCorrupt, match="has CRC-32 unknown, it was written with none: "):
        rows_of(segment.replace(b"gnsq.crc32", b"gnsq.crc33"), 2)


def test_body_that_looks_like_the_crc_or_its_key_is_kept():
    message = FakeMessage(1, b"gnsq.crc32" + b"0" * 64)

    [batch] = decode_segment(encode_segment(segment_columns([message], ["clicks"], 0)), 1, "r1/1")

    assert batch.column("body").to_pylist() == [message.body]


@pytest.mark.parametrize(
    ("segment", "words"),
    [
        pytest.param(encode_segment(columns(1)), "has 1 row, its name says 2", id="rows"),
        pytest.param(arrow_file(SCHEMA, *columns(1, 2)), "gnsq.version", id="no version"),
        pytest.param(
            arrow_file(pa.schema([("a", pa.int32())], {"gnsq.version": "1"}), pa.nulls(2, pa.int32())),
            "has other columns: a",
            id="columns",
        ),
    ],
)
def test_arrow_file_of_others_is_no_segment(segment, words):
    with pytest.raises(SegmentCorrupt, match=words):
        decode_segment(segment, 2, "r1/1")


def test_lack_of_memory_is_no_damage(monkeypatch):
    def fails(data):
        raise pa.ArrowMemoryError("not the segment's fault")

    segment = encode_segment(columns(1))
    monkeypatch.setattr(pa.ipc, "open_file", fails)

    with pytest.raises(pa.ArrowMemoryError):
        decode_segment(segment, 1, "r1/1")
