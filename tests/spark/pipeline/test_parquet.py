"""Rows to Parquet files, and what is told of them."""

import datetime as dt
import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline import parquet
from gnsq.spark.pipeline.parquet import (
    Partitioning,
    TableTarget,
    file_stats,
    store_error,
    write,
)

UTC = dt.UTC
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("event_time", TIME), ("user", pa.string()), ("_body", pa.string())])
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=UTC)


def batch(*rows, schema=SCHEMA):
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def target(path, *columns, schema=SCHEMA):
    return TableTarget("archive", str(path), schema, Partitioning(columns, "event_time"), 7)


def written(table, *batches):
    return list(write(batches, lambda rows: [(table, rows)]))


def rows_of(path, files):
    return sorted(row["_body"] for file in files for row in pq.ParquetFile(path / file.path).read().to_pylist())


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        pytest.param([], {(): 4}, id="none"),
        pytest.param(["_day"], {("2026-01-01",): 2, ("2026-01-02",): 1, (None,): 1}, id="day"),
        pytest.param(
            ["_hour"],
            {("2026-01-01T12",): 1, ("2026-01-01T23",): 1, ("2026-01-02T00",): 1, (None,): 1},
            id="hour",
        ),
        pytest.param(["user"], {("a",): 2, (None,): 2}, id="field"),
        pytest.param(
            ["_month", "user"], {("2026-01", "a"): 2, ("2026-01", None): 1, (None, None): 1}, id="month and field"
        ),
    ],
)
def test_rows_are_divided_by_partition(tmp_path, columns, values):
    midnight = dt.datetime(2026, 1, 2, tzinfo=UTC)
    rows = [
        (NOON, "a", "1"),
        (midnight, "a", "2"),
        (midnight - dt.timedelta(microseconds=1), "", "3"),
        (None, None, "4"),
    ]

    files = written(target(tmp_path, *columns), batch(*rows))

    found = {}
    for file in files:
        found[file.partition] = found.get(file.partition, 0) + file.rows
    assert found == values
    assert rows_of(tmp_path, files) == ["1", "2", "3", "4"]
    assert [file.size for file in files] == [(tmp_path / file.path).stat().st_size for file in files]
    # Readers see times in UTC, and no partition column.
    schema = pq.read_schema(tmp_path / files[0].path)
    assert schema.names == [name for name in SCHEMA.names if name not in columns]
    assert schema.field("event_time").type == TIME


def test_rows_of_several_batches_are_one_file_until_too_many_are_held(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "HELD_BYTES", 2**20)
    size = parquet.HELD_BYTES // 4
    batches = [batch((NOON, "a", str(number) * size)) for number in range(9)]

    [file] = written(target(tmp_path), *batches[:3])
    assert sorted(json.loads(file.stats)["minValues"]) == ["event_time", "user"]  # not of the body
    assert [file.rows for file in written(target(tmp_path), *batches)] == [4, 4, 1]


def stats_of(table, **options):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, store_schema=False, **options)
    return file_stats(sink.getvalue(), table.schema)


STATS = [
    pytest.param(pa.int32(), [3, None, -1], (-1, 3), id="whole numbers"),
    pytest.param(pa.string(), ["b", "ä", None], ("b", "ä"), id="texts"),
    pytest.param(pa.string(), ["b" * 65, "x" * 65], ("b" * 64, "x" * 64 + "\U0010ffff"), id="long texts"),
    pytest.param(pa.float64(), [0.5, -2.0], None, id="floating point"),
    pytest.param(pa.date32(), [dt.date(2026, 1, 2), dt.date(2026, 1, 1)], ("2026-01-01", "2026-01-02"), id="dates"),
    pytest.param(pa.decimal128(5, 2), [decimal.Decimal("1.10")], None, id="decimals"),
    pytest.param(pa.bool_(), [True], None, id="truth values"),
    pytest.param(pa.string(), [None], None, id="nothing"),
    pytest.param(
        TIME,
        [NOON + dt.timedelta(microseconds=1999), NOON + dt.timedelta(microseconds=2001)],
        ("2026-01-01T12:00:00.001Z", "2026-01-01T12:00:00.003Z"),
        id="times, in whole milliseconds around them",
    ),
]


@pytest.mark.parametrize(("kind", "values", "bounds"), STATS)
def test_statistics_hold_every_row(tmp_path, kind, values, bounds):
    schema = pa.schema([("x", kind)])

    [file] = written(target(tmp_path, schema=schema), batch(*((value,) for value in values), schema=schema))

    stats = json.loads(file.stats)
    assert stats["numRecords"] == len(values)
    assert stats["nullCount"] == {"x": values.count(None)}
    assert (stats["minValues"].get("x"), stats["maxValues"].get("x")) == (bounds or (None, None))


def test_statistics_hold_for_all_row_groups_and_name_fields_of_objects():
    numbers = pa.table([[5, None, None, None, 7, 1]], schema=pa.schema([("x", pa.int64())]))
    assert stats_of(numbers, row_group_size=2) == {
        "numRecords": 6,
        "minValues": {"x": 1},
        "maxValues": {"x": 7},
        "nullCount": {"x": 3},
    }
    fields = pa.struct([("s", pa.string()), ("l", pa.list_(pa.int32()))])
    schema = pa.schema([("o", fields), ("m", pa.map_(pa.string(), pa.int64()))])
    rows = [{"o": {"s": "b", "l": [1]}, "m": {"k": 1}}, {"o": None}, {"o": {"s": None}}]
    assert stats_of(pa.Table.from_pylist(rows, schema=schema)) == {
        "numRecords": 3,
        "minValues": {"o": {"s": "b"}},
        "maxValues": {"o": {"s": "b"}},
        "nullCount": {"o": {"s": 2}},
    }


def test_field_with_too_many_values_is_refused(tmp_path):
    rows = batch(*((NOON, str(number), "") for number in range(parquet.MAX_PARTITIONS + 1)))

    with pytest.raises(JobFailed, match=r"partition_by user: there are 10,001 partitions, the limit is 10,000.*_day"):
        written(target(tmp_path, "user"), rows)


@pytest.mark.parametrize("columns", [[], ["user"]], ids=["no partition", "partition"])
def test_directory_that_is_gone_is_told_in_one_line(tmp_path, columns):
    with pytest.raises(JobFailed, match=r"^table .*/gone: .*No such file.*: mend that. Nothing is lost"):
        written(target(tmp_path / "gone", *columns), batch((NOON, "a", "1")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[Errno 28] No space left on device: 'x'", "make room. Nothing is lost"),
        ("AWS Error ACCESS_DENIED during PutObject operation", "let the job read, write and list there"),
        ("403 Forbidden\n <Code>ExpiredToken</Code>", "renew the credentials"),
        ("[Errno 2] No such file or directory: '/run-403/quota/day=expired/part'", "mend that"),
    ],
)
def test_errors_of_a_store_say_what_to_do(text, words):
    error = store_error("s3://KEY:SECRET@bucket/x?region=y", OSError(f"\x1b[31m↳\x1b[0m {text}\n  0: <unknown>"))

    assert str(error).startswith("table s3://***@bucket/x: ")
    assert words in str(error)
    assert "\n" not in str(error)
    assert "unknown" not in str(error)


LAST = "\U0010ffff"
CHARACTERS = st.sampled_from(["", "a", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000", LAST])


@given(st.lists(st.builds("".join, st.tuples(CHARACTERS.map(lambda one: one * 63), *[CHARACTERS] * 4)), min_size=1))
@example([LAST * 66])
@example(["a" * 64 + LAST * 2])
def test_bounds_of_texts_hold_every_row(texts):
    stats = stats_of(pa.table({"x": texts}))

    # Readers compare UTF-8.
    lowest, highest = (stats[kind]["x"].encode() for kind in ("minValues", "maxValues"))
    assert all(lowest <= text.encode() <= highest for text in texts)


def test_bounds_end_with_the_years_of_python():
    time = pa.array([9 * 10**17, -(9 * 10**17)], pa.int64()).cast(pa.timestamp("us", tz="UTC"))

    day = pa.array([10**7, 0], pa.int32()).cast(pa.date32())

    stats = stats_of(pa.table({"time": time, "day": day}))

    assert stats["minValues"]["time"] == "0001-01-01T00:00:00.000Z"
    assert stats["maxValues"] == {"time": "9999-12-31T23:59:59.999Z", "day": "9999-12-31"}
