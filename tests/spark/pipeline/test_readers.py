"""What readers of the tables see: values of partition columns, types that became wider, every row."""

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gnsq.spark.pipeline.delta import BatchIdentity, Table
from gnsq.spark.pipeline.maintenance import maintain_table
from gnsq.spark.pipeline.tables import SettingError
from tests.spark.pipeline.helpers import delta_table, written

pytestmark = pytest.mark.slow

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("event_time", TIME), ("key", pa.string()), ("n", pa.int64())])
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


def put(location, partition_by, rows, batches=1, *, schema=SCHEMA, first=0):
    table = Table("archive", str(location), schema, partition_by, time="event_time")
    table.claim("q", take_over=False)
    for number in range(first, first + batches):
        table.commit(BatchIdentity("q", number, 1, 1), written(table, number, rows))
    return table


def found(rows, name):
    return sorted(((row["n"], row[name]) for row in rows), key=lambda each: each[0])


def test_every_reader_has_the_texts_that_rows_are_divided_by_and_finds_the_rows_of_one(tmp_path):
    location = str(tmp_path / "table")
    rows = [{"event_time": NOON, "key": key, "n": number} for number, key in enumerate(TEXTS)]
    put(location, ["key"], rows, batches=2)

    for is_merged in (False, True):
        if is_merged:
            assert maintain_table(location, retention=0, quiet=0) == 2 * len(TEXTS)
            assert len(list(Path(location).rglob("part-*.parquet"))) == len(TEXTS)
        for read in READERS:
            assert found(read(location), "key")[::2] == list(enumerate(TEXTS)), read

    dataset, table = delta_table(location).to_pyarrow_dataset(), polars.scan_delta(location)
    for key in ("a/b", "50%", "a b", "Zürich", "a=b"):
        expected = [TEXTS.index(key)] * 2
        assert dataset.to_table(filter=pc.field("key") == key)["n"].to_pylist() == expected
        assert table.filter(polars.col("key") == key).collect()["n"].to_list() == expected
        assert duckdb.execute("SELECT n FROM dataset WHERE key = ?", [key]).fetchall() == [(n,) for n in expected]


def test_delta_has_one_partition_for_null_and_an_empty_text(tmp_path):
    put(tmp_path, ["key"], [{"n": 0, "key": ""}, {"n": 1, "key": None}])

    for read in READERS:
        assert found(read(str(tmp_path)), "key") == [(0, None), (1, None)], read


def test_every_reader_has_the_days_and_hours(tmp_path):
    times = [NOON, NOON + dt.timedelta(hours=12), None]
    rows = [{"event_time": time, "n": n} for n, time in enumerate(times)]
    put(tmp_path, ["_day", "_hour", "_month"], rows)

    values = {
        "_day": [dt.date(2026, 11, 20), dt.date(2026, 11, 21), None],
        "_hour": ["2026-11-20T12", "2026-11-21T00", None],
        "_month": ["2026-11", "2026-11", None],
    }
    for read in (*READERS, from_paths):
        read_rows = read(str(tmp_path))
        for column, expected in values.items():
            days = [(n, getattr(value, "date", lambda value=value: value)()) for n, value in found(read_rows, column)]
            assert days == list(enumerate(expected)), read


# --- types that change

STRUCT, WIDER = pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.date32())]))])
# Types of before and after, and values that both have.
EVOLVED = [
    (pa.int8(), pa.int64(), [1, None, -128]),
    (pa.int16(), pa.int32(), [1, None, -(2**15)]),
    (pa.float32(), pa.float64(), [0.5, None, 2.0]),
    (pa.decimal128(5, 2), pa.decimal128(25, 2), [Decimal("1.10"), Decimal("-999.99"), None]),
    (STRUCT, WIDER, [{"a": 1}, None, {"a": None}]),
    (pa.list_(STRUCT), pa.list_(WIDER), [[{"a": 1}, None], None, []]),
    (pa.map_(pa.string(), STRUCT), pa.map_(pa.string(), WIDER), [{"k": {"a": 1}}, None, {}]),
    (pa.list_(pa.int32()), pa.list_(pa.int64()), [[1], None, []]),
]


def put_values(location, batch_id, kind, values):
    """Add a batch with a column x of a type."""
    schema = pa.schema([("n", pa.int64()), ("x", kind)])
    return put(location, [], [{"n": n, "x": x} for n, x in enumerate(values)], schema=schema, first=batch_id)


def plain(value):
    """A map is a dict for Polars and DuckDB, and a list of pairs for pyarrow; one without pairs is just empty."""
    is_map = isinstance(value, list) and value and isinstance(value[0], tuple)
    return dict(value) if is_map else [] if value == {} else value


def test_every_reader_has_the_values_of_before_types_became_wider(tmp_path):
    location, count = str(tmp_path), pa.field("n", pa.int64())
    names = [f"x{number}" for number in range(len(EVOLVED))]
    before, after = (
        pa.schema([count, *(pa.field(name, case[which]) for name, case in zip(names, EVOLVED, strict=True))])
        for which in (0, 1)
    )
    rows = [{"n": n, **{name: case[2][n] for name, case in zip(names, EVOLVED, strict=True)}} for n in range(3)]
    rows = [{**row, "new": NOON} for row in rows]
    # With the earlier settings a job may go on.
    for batch_id, schema in enumerate([before, after.append(pa.field("new", TIME)), before]):
        put(location, [], rows, schema=schema, first=batch_id)

    types = pa.schema(delta_table(location).schema().to_arrow())
    assert [types.field(name).type for name in names] == [case[1] for case in EVOLVED]
    for is_merged in (False, True):
        if is_merged:
            assert maintain_table(location, retention=None, quiet=0) == 3
        without = pc.field("new").is_null()
        assert delta_table(location).to_pyarrow_dataset().to_table(filter=without).num_rows == 6
        for read in (from_pyarrow, from_polars, from_duckdb):
            read_rows = read(location)
            for name, (narrow, wide, values) in zip(names, EVOLVED, strict=True):
                expected = pa.array(values, narrow).cast(wide).to_pylist()
                expected = [(n, plain(value)) for n, value in enumerate(expected) for _ in range(3)]
                assert [(n, plain(value)) for n, value in found(read_rows, name)] == expected, (read, name)


REFUSED = [
    pytest.param(pa.int32(), pa.float64(), "x of type integer, and its type is double now", id="int, double"),
    pytest.param(
        pa.decimal128(5, 2),
        pa.decimal128(9, 4),
        r"x of type decimal\(5,2\), and its type is decimal\(9,4\) now",
        id="scale",
    ),
    pytest.param(pa.date32(), TIME, "x of type date, and its type is timestamp now", id="date, timestamp"),
    pytest.param(
        pa.list_(STRUCT),
        pa.list_(pa.struct([("a", pa.string())])),
        r"x\[\].a of type integer, and its type is string now, in which readers .* another name, or",
        id="in an array",
    ),
    pytest.param(STRUCT, pa.string(), "x of type struct, and its type is string now", id="object, text"),
    pytest.param(STRUCT, pa.struct([("A", pa.int32())]), "column x.a, and the field is A now: give", id="case"),
]


@pytest.mark.parametrize(("before", "after", "words"), REFUSED)
def test_type_in_which_a_reader_could_not_read_the_files_of_before_is_refused(tmp_path, before, after, words):
    put_values(str(tmp_path), 0, before, [])

    with pytest.raises(SettingError, match=words):
        put_values(str(tmp_path), 1, after, [])


# --- statistics

LAST = "\U0010ffff"
FIRST_DAY, LAST_DAY = dt.date(1, 1, 1), dt.date(9999, 12, 31)
FIRST_TIME, LAST_TIME = (dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC) for day in (FIRST_DAY, LAST_DAY))
LAST_TIME += dt.timedelta(hours=23, minutes=59, seconds=59, microseconds=999_999)
ODD = {
    "double": (pa.float64(), [math.nan, -0.0, 1.5, math.inf, -math.inf, 5e-324]),
    "date": (pa.date32(), [FIRST_DAY, dt.date(1969, 12, 31), LAST_DAY]),
    "timestamp": (TIME, [FIRST_TIME, dt.datetime(1969, 12, 31, 23, 59, 59, 1, dt.UTC), LAST_TIME]),
    "decimal": (pa.decimal128(38, 18), [Decimal("0.1"), Decimal(f"{10**19}.{1:018}"), Decimal(-1)]),
    "text": (
        pa.string(),
        ["", "a" * 5000, "a" * 5000 + "b", LAST * 65, LAST * 64 + "a", "\ud7ff", "\U00020000"],
    ),
    "bigint": (pa.int64(), [2**63 - 1, -(2**63), 0]),
    "boolean": (pa.bool_(), [True, False]),
    "binary": (pa.binary(), [b"", b"\xff" * 100]),
}


def test_readers_that_skip_files_find_every_value(tmp_path):
    """Each value is in a file of its own, in a column, in a column with an odd name, and in an object."""
    location = str(tmp_path)
    fields = [
        field
        for name, (kind, _) in ODD.items()
        for field in [(name, kind), (f"a.b, `ü {name}", kind), (f"o {name}", pa.struct([("y z", kind)]))]
    ]
    schema = pa.schema([("n", pa.int64()), *fields])
    for n in range(max(len(values) for _, values in ODD.values())):
        row = {"n": n}
        for name, (_, values) in ODD.items():
            value = values[n] if n < len(values) else None
            row |= {name: value, f"a.b, `ü {name}": value, f"o {name}": {"y z": value}}
        put(location, [], [row], schema=schema, first=n)

    dataset, table = delta_table(location).to_pyarrow_dataset(), polars.scan_delta(location)
    types = table.collect_schema()
    for name, n, value in [(name, n, value) for name, (_, values) in ODD.items() for n, value in enumerate(values)]:
        one = pa.scalar(value, ODD[name][0])
        is_nan = isinstance(value, float) and math.isnan(value)
        columns = [pc.field(name), pc.field(f"a.b, `ü {name}"), pc.field(f"o {name}", "y z")]
        filters = [pc.is_nan(each) if is_nan else each == one for each in columns]
        assert all(n in dataset.to_table(["n"], filter=each)["n"].to_pylist() for each in filters), value
        literal = polars.lit(polars.from_arrow(pa.array([value], one.type))[0], dtype=types[name])
        columns = [polars.col(name), polars.col(f"a.b, `ü {name}"), polars.col(f"o {name}").struct.field("y z")]
        assert all(n in table.filter(each == literal).select("n").collect()["n"].to_list() for each in columns), value
        rows = duckdb.execute(f'SELECT n FROM dataset WHERE "{name}" = ?', [value]).fetchall()
        assert (n,) in rows, value
