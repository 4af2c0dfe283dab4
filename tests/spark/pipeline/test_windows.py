import contextlib
import datetime as dt
import sqlite3

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.spark.pipeline.windows import Aggregate, Metric, counts_view, true_counts, version_of

FIELDS = {"page": "string", "user": "string", "ms": "int", "price": "decimal(6, 2)", "ratio": "float", "n": "decimal"}
START = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)
EVERYTHING = Metric.parse(
    {"aggregates": ["sum(ms)", "mean(ms)", "min(ms)", "max(ms)", "approx_distinct(user)", "count"]}
)
COLUMNS = (
    *("window_start", "window_end", "page", "count", "sum_ms", "count_ms", "mean_ms", "min_ms", "max_ms"),
    *("approx_distinct_user", "epoch", "version"),
)


def table(*rows):
    """Rows of the metric EVERYTHING: page, then all columns after it."""
    end = START + dt.timedelta(minutes=1)
    schema = EVERYTHING.schema(FIELDS)
    return pa.Table.from_pylist([dict(zip(COLUMNS, (START, end, *row), strict=True)) for row in rows], schema=schema)


def test_metric_is_a_count_by_minute_and_page_unless_said_otherwise():
    assert Metric.parse({}) == Metric("counts", 60, 60, ("page",), ())
    assert Metric.parse({"window": "300", "keys": "page, user"}) == Metric("counts", 300, 300, ("page", "user"), ())
    assert Metric.parse({"window": 60, "slide": 20, "keys": []}).windows == 3


def test_mean_brings_the_number_of_values():
    assert Metric.parse({"aggregates": "count,mean(ms),mean(ms)"}).aggregates == (
        Aggregate("count", "ms"),
        Aggregate("mean", "ms"),
    )


def test_columns_have_the_types_of_their_results():
    calls = ["sum(ms)", "sum(price)", "max(ratio)", "min(n)", "mean(price)", "approx_distinct(user)"]
    schema = Metric.parse({"aggregates": calls}).schema(FIELDS)

    time = pa.timestamp("us", tz="UTC")
    assert dict(zip(schema.names, schema.types, strict=True)) == {
        "window_start": time,
        "window_end": time,
        "page": pa.string(),
        "count": pa.int64(),
        "sum_ms": pa.int64(),
        "sum_price": pa.decimal128(16, 2),
        "max_ratio": pa.float64(),
        "min_n": pa.decimal128(10, 0),
        "count_price": pa.int64(),
        "mean_price": pa.float64(),
        "approx_distinct_user": pa.int64(),
        "epoch": pa.int64(),
        "version": pa.int64(),
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({"windw": 60}, "windw is unknown; did you mean window?", id="unknown"),
        pytest.param({"name": "a/b"}, "name 'a/b' is not made of 1 to 64 letters", id="name"),
        pytest.param({"name": 5}, "name 5 is not a string", id="name's type"),
        pytest.param({"window": 0}, "window 0 must be within 1 to 86400 s", id="short"),
        pytest.param({"window": 86_401}, "window 86401 must be within", id="long"),
        pytest.param({"window": 1.5}, "window 1.5 is not a whole number", id="fraction"),
        pytest.param({"window": True}, "window True is not a whole number", id="truth"),
        pytest.param({"slide": 120}, "slide 120 must be within 1 to 60 s", id="gaps"),
        pytest.param({"slide": 7}, "window 60 s must be a whole multiple of slide 7 s", id="slide"),
        pytest.param({"window": 101, "slide": 1}, "at most 100 of it", id="too many windows"),
        pytest.param({"keys": [5]}, "keys [5] is not a list of strings", id="keys"),
        pytest.param({"keys": "Version"}, "version would be there twice", id="column of its own"),
        pytest.param({"keys": "sum_ms", "aggregates": "sum(ms)"}, "sum_ms would be there twice", id="twice"),
        pytest.param({"aggregates": "median(ms)"}, "aggregate 'median(ms)' is none of count, sum(FIELD), ", id="none"),
        pytest.param({"aggregates": ["sum"]}, "aggregate 'sum' is none of count, ", id="no field"),
    ],
)
def test_bad_definition_is_named(values, words):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the words are checked without being a pattern
        Metric.parse(values)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({"keys": "host"}, "'host' is none of fields: page, user, ", id="key"),
        pytest.param({"aggregates": "sum(bytes)"}, "'bytes' is none of fields", id="field"),
        pytest.param({"aggregates": "max(user)"}, r"max\(user\) needs a number, the field is a string", id="text"),
        pytest.param({"aggregates": "mean(user)"}, r"mean\(user\) needs a number", id="mean of texts"),
    ],
)
def test_metric_that_does_not_fit_the_fields_is_refused(values, words):
    with pytest.raises(ValueError, match=words):
        Metric.parse(values).check(FIELDS)


def test_versions_grow_with_batches_and_epochs():
    versions = [version_of(0, 0), version_of(0, 5), version_of(1, 0), version_of(1, 2**40 - 1), version_of(2, 0)]

    assert versions == sorted(set(versions))
    # JSON's readers take whole numbers up to there.
    assert version_of(2**12, 0) < 2**53


# Two epochs of "/", the first one with two versions; in the first one nobody has given ms.
ROWS = table(
    ("/", 3, 30, 2, 15.0, 10, 20, 2, 0, version_of(0, 4)),
    ("/", 1, 10, 1, 10.0, 10, 10, 1, 0, version_of(0, 1)),
    ("/", 5, 12, 4, 3.0, 1, 5, 3, 1, version_of(1, 0)),
    ("/cart", 2, None, 0, None, None, None, 1, 1, version_of(1, 0)),
)
EXPECTED = [("/", 8, 42, 6, 7.0, 1, 20, 3), ("/cart", 2, None, 0, None, None, None, 1)]


def test_highest_versions_of_all_epochs_are_the_true_counts():
    rows = true_counts(ROWS, EVERYTHING).sort_by("page").to_pylist()

    assert [tuple(row.values())[2:] for row in rows] == EXPECTED
    assert true_counts(ROWS.slice(0, 0), EVERYTHING).num_rows == 0


def test_keys_may_have_any_name():
    metric = Metric.parse({"keys": ["row", "place", "group"]})
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    values = [start, start, "a", "b", "c", 5, 1, version_of(1, 0)]
    rows = pa.Table.from_pylist([dict(zip(metric.schema({}).names, values, strict=True))], schema=metric.schema({}))

    assert true_counts(rows, metric).select(["row", "place", "group", "count"]).to_pylist() == [
        {"row": "a", "place": "b", "group": "c", "count": 5}
    ]
    assert view_of(rows, metric)[0][2:] == ("a", "b", "c", 5)


def view_of(rows, metric):
    """What the view has, in SQLite."""
    columns = ", ".join(f'"{name}"' for name in rows.column_names)
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"CREATE TABLE metrics ({columns})")
        values = [
            tuple(str(value) if isinstance(value, dt.datetime) else value for value in row.values())
            for row in rows.to_pylist()
        ]
        database.executemany(f"INSERT INTO metrics VALUES ({', '.join('?' * rows.num_columns)})", values)
        return database.execute(counts_view(metric, "metrics")).fetchall()


def test_view_gives_the_true_counts():
    assert [row[2:] for row in sorted(view_of(ROWS, EVERYTHING), key=lambda row: row[2])] == EXPECTED


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 9)), max_size=20))
def test_counts_of_epochs_are_added(changes):
    counted, rows = {}, {}
    for epoch, batch_id, events in sorted(changes):
        counted[epoch] = counted.get(epoch, 0) + events
        rows[epoch, batch_id] = ("/", counted[epoch], None, 0, None, None, None, 0, epoch, version_of(epoch, batch_id))

    result = true_counts(table(*rows.values()), EVERYTHING) if rows else None

    assert sum(counted.values()) == (sum(result["count"].to_pylist()) if result is not None else 0)
