import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.spark.errors import SegmentCorrupt, SpoolError
from gnsq.spark.segments import SCHEMA, decode_segment, encode_segment, segment_columns
from tests.spark.helpers import FakeMessage, columns


def test_columns_fit_the_schema():
    batch = pa.RecordBatch.from_arrays(segment_columns([FakeMessage(1)], [("clicks", 1)], 5_000), schema=SCHEMA)

    [row] = batch.to_pylist()
    assert row["message_id"] == "0000000000000001"
    assert row["received_at"].microsecond == 5


def test_no_messages():
    assert [len(column) for column in segment_columns([], [], 0)] == [0] * len(SCHEMA)


def test_each_row_names_its_nsqd():
    messages = [FakeMessage(number) for number in range(3)]
    messages[1]._responder.nsqd = "other:4150"

    column = segment_columns(messages, [("clicks", 3)], 0)[SCHEMA.get_field_index("nsqd")]

    assert column.to_pylist() == ["127.0.0.1:4150", "other:4150", "127.0.0.1:4150"]


def test_times_are_cut_to_microseconds():
    message = FakeMessage(1)
    message.timestamp = 1_700_000_000_000_001_999

    column = segment_columns([message], [("clicks", 1)], 0)[SCHEMA.get_field_index("published_at")]

    assert column.cast(pa.int64()).to_pylist() == [1_700_000_000_000_001]


def test_any_id_is_kept():
    message = FakeMessage(1)
    message.id = bytes(range(240, 256))

    column = segment_columns([message], [("clicks", 1)], 0)[SCHEMA.get_field_index("message_id")]

    assert column.to_pylist()[0].encode("latin-1") == message.id


def arrow_file(schema, *arrays):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(list(arrays), schema=schema))
    return sink.getvalue()


def test_segment_is_decoded_as_it_was_encoded():
    [batch] = decode_segment(encode_segment(columns(1, 2)), 2, "r1/1")

    assert batch.schema.equals(SCHEMA, check_metadata=True)
    assert batch.column("body").to_pylist() == [b"body 1", b"body 2"]


@given(st.data())
def test_whatever_happens_to_a_segment_it_is_whole_or_refused(data):
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

    try:
        batches = decode_segment(pa.py_buffer(damaged), 20, "r1/1")
    except (SegmentCorrupt, SpoolError):
        return
    assert sum(batch.num_rows for batch in batches) == 20
    # Every value can be read; a time as its number, since Python knows no year beyond 9999.
    for column in (column for batch in batches for column in batch.columns):
        values = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        assert len(values.to_pylist()) == len(column)


VERSIONED = {"gnsq.version": "1"}


@pytest.mark.parametrize(
    ("segment", "words"),
    [
        pytest.param(encode_segment(columns(1)), "has 1 row, its name says 2", id="rows"),
        pytest.param(arrow_file(SCHEMA, *columns(1, 2)), "gnsq.version", id="no version"),
        pytest.param(
            arrow_file(pa.schema([("a", pa.int32())], VERSIONED), pa.array([1, 2], pa.int32())),
            "has other columns: a",
            id="columns",
        ),
    ],
)
def test_arrow_file_of_others_is_no_segment(segment, words):
    with pytest.raises(SegmentCorrupt, match=words):
        decode_segment(segment, 2, "r1/1")


@pytest.mark.parametrize("error", [pa.ArrowMemoryError, pa.ArrowCancelled])
def test_lack_of_memory_is_no_damage(monkeypatch, error):
    def fails(data):
        raise error("not the segment's fault")

    segment = encode_segment(columns(1))
    monkeypatch.setattr(pa.ipc, "open_file", fails)

    with pytest.raises(error):
        decode_segment(segment, 1, "r1/1")
