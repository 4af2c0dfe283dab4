import pyarrow as pa

from gnsq.spark.segments import SCHEMA, segment_columns
from tests.spark.helpers import FakeMessage


def test_columns_fit_the_schema():
    batch = pa.RecordBatch.from_arrays(segment_columns([FakeMessage(1)], "clicks", 5_000), schema=SCHEMA)

    [row] = batch.to_pylist()
    assert row["message_id"] == "0000000000000001"
    assert row["received_at"].microsecond == 5


def test_no_messages():
    assert [len(column) for column in segment_columns([], "clicks", 0)] == [0] * len(SCHEMA)


def test_any_id_is_kept():
    message = FakeMessage(1)
    message.id = bytes(range(240, 256))

    column = segment_columns([message], "clicks", 0)[SCHEMA.get_field_index("message_id")]

    assert column.to_pylist()[0].encode("latin-1") == message.id
