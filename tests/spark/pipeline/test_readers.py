"""What readers of the tables see: values of partition columns in each of them."""

import datetime as dt

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gnsq.spark.pipeline.batches import BatchIdentity
from gnsq.spark.pipeline.datafiles import Partition, write
from gnsq.spark.pipeline.maintenance import maintain_table
from gnsq.spark.pipeline.tables import Table
from tests.spark.pipeline.helpers import delta_table

SCHEMA = pa.schema([("event_time", pa.timestamp("us", tz="UTC")), ("key", pa.string()), ("n", pa.int64())])
NOON = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
TEXTS = [
    *("a", "a b", "a/b", "50%", "a=b", "Zürich", "a%20b", "a:b?c#d", "a+b&c", "..", "a\\b", "it's", "a\tb", "[1]*"),
    *("\U0001f600", "_a", "__HIVE", "null", "1", "2026-11-20", "x" * 60, None),
]


def from_pandas(location):
    frame = delta_table(location).to_pandas()
    # pandas has NaN for a null.
    return [
        {name: None if value != value else value for name, value in row.items()} for row in frame.to_dict("records")
    ]


def from_pyarrow(location):
    return delta_table(location).to_pyarrow_dataset().to_table().to_pylist()


def from_polars(location):
    return polars.scan_delta(location).collect().to_dicts()


def from_polars_eager(location):
    return polars.read_delta(location).to_dicts()


def from_duckdb(location):
    """As the guide does: by pyarrow. DuckDB's own extension for Delta has to be downloaded."""
    events = delta_table(location).to_pyarrow_dataset()
    return duckdb.from_arrow(events).to_arrow_table().to_pylist()


def from_paths(location):
    """A reader that knows Hive's paths, but no Delta."""
    files = delta_table(location).file_uris()
    return duckdb.read_parquet(files, hive_partitioning=True).to_arrow_table().to_pylist()


READERS = [from_pandas, from_pyarrow, from_polars, from_polars_eager, from_duckdb]


def put(location, partition, rows, batches=1):
    table = Table("archive", str(location), SCHEMA, partition)
    table.claim("q", take_over=False)
    for number in range(batches):
        target = table.target(number)
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        table.commit(BatchIdentity("q", number, 1, 1), write([batch], lambda rows, target=target: [(target, rows)]))
    return table


def found(rows, name):
    return sorted(((row["n"], row[name]) for row in rows), key=lambda each: each[0])


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("is_merged", [False, True], ids=["as written", "merged"])
def test_every_reader_has_the_texts_that_rows_are_divided_by(tmp_path, read, is_merged):
    location = str(tmp_path / "table")
    rows = [{"event_time": NOON, "key": key, "n": number} for number, key in enumerate(TEXTS)]
    put(location, Partition("key", "key"), rows, batches=1 + is_merged)
    if is_merged:
        assert maintain_table(location, retention=0, quiet=0) == 2 * len(TEXTS)

    assert found(read(location), "key")[:: 1 + is_merged] == list(enumerate(TEXTS))


@pytest.mark.parametrize("read", READERS)
def test_delta_has_one_partition_for_null_and_an_empty_text(tmp_path, read):
    put(tmp_path, Partition("key", "key"), [{"n": 0, "key": ""}, {"n": 1, "key": None}])

    assert found(read(str(tmp_path)), "key") == [(0, None), (1, None)]


@pytest.mark.parametrize("read", [*READERS, from_paths])
@pytest.mark.parametrize(
    ("column", "values"),
    [("day", [dt.date(2026, 11, 20), dt.date(2026, 11, 21), None]), ("hour", ["2026-11-20T12", "2026-11-21T00", None])],
)
def test_every_reader_has_the_days_and_hours(tmp_path, read, column, values):
    times = [NOON, NOON + dt.timedelta(hours=12), None]
    put(tmp_path, Partition(column, "event_time"), [{"event_time": time, "n": n} for n, time in enumerate(times)])

    rows = found(read(str(tmp_path)), column)

    assert [(n, getattr(value, "date", lambda value=value: value)()) for n, value in rows] == list(enumerate(values))


@pytest.mark.parametrize("key", ["a/b", "50%", "a b", "Zürich", "a=b"])
def test_readers_that_skip_partitions_find_the_rows(tmp_path, key):
    rows = [{"event_time": NOON, "key": key, "n": number} for number, key in enumerate(TEXTS)]
    put(tmp_path, Partition("key", "key"), rows)

    dataset = delta_table(tmp_path).to_pyarrow_dataset()
    frame = polars.scan_delta(str(tmp_path)).filter(polars.col("key") == key).collect()

    expected = [TEXTS.index(key)]
    assert dataset.to_table(filter=pc.field("key") == key)["n"].to_pylist() == expected
    assert frame["n"].to_list() == expected
    assert duckdb.execute("SELECT n FROM dataset WHERE key = ?", [key]).fetchall() == [(expected[0],)]


def test_files_lie_in_paths_of_hive(tmp_path):
    table = put(tmp_path, Partition("day", "event_time"), [{"event_time": NOON, "n": 1}, {"event_time": None, "n": 2}])

    directories = {path.rpartition("/")[0] for path in delta_table(tmp_path).file_uris()}

    assert directories == {f"{table.location}/day={name}" for name in ("2026-11-20", "__HIVE_DEFAULT_PARTITION__")}
