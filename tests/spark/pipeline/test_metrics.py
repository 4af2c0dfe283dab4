"""The query of a metric in a real Spark, fed from files: one file is one batch."""

import datetime as dt
import json
import os
import time
from concurrent.futures import Future
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from gnsq.spark.pipeline.checkpoint import identify
from gnsq.spark.pipeline.delta import BatchIdentity
from gnsq.spark.pipeline.events import plan
from gnsq.spark.pipeline.metrics import MetricBatches, aggregated, version_of
from gnsq.spark.spool.segments import SCHEMA
from tests.spark.pipeline.helpers import MESSAGES, delta_table, event, message, messages, valid_rows
from tests.spark.pipeline.jobs import job, metric, parsed, table

START = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)
SECOND, MINUTE, HOUR = (dt.timedelta(seconds=seconds) for seconds in (1, 60, 3600))
EVENTS = "user STRING, page STRING, time TIMESTAMP"


class Fed:
    """The query of a metric, which may be run again and again.

    Attributes:
        progress: What Spark has told of the batches of the last run.
    """

    def __init__(self, spark, path):
        self.progress = []
        self._spark = spark
        self._path = path
        self._files = 0
        self._ids = 0
        (path / "in").mkdir()

    def put(self, *bodies, again=0):
        """Give a batch of messages; the last ones have the ids of so many ones before."""
        self._ids -= again
        rows = []
        for body in bodies:
            self._ids += 1
            rows.append(dict(zip(SCHEMA.names, message(self._ids, body), strict=True)))
        self._files += 1
        path = self._path / "in" / f".{self._files:03}"
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
        # Spark takes files by their time.
        os.utime(path, (self._files, self._files))
        path.rename(self._path / "in" / f"{self._files:03}.parquet")

    def run(self, settings):
        """Work off what was put."""
        [*_, query] = settings.queries
        source = self._spark.readStream.schema(MESSAGES).option("maxFilesPerTrigger", 1)
        events = plan(source.parquet(str(self._path / "in")), query.events)
        counts = aggregated(
            events.frame.where(F.col("_wrong").isNull()), query.metric, deduplicate=query.deduplicate > 0
        )
        batches, owner = MetricBatches(query, counts), Future()
        location = str(self._path / "checkpoint")
        writer = counts.writeStream.outputMode("update").foreachBatch(
            lambda rows, batch_id: batches(rows, identify(location, owner.result(), batch_id, 1))
        )
        running = writer.option("checkpointLocation", location).trigger(availableNow=True).start()
        owner.set_result(str(running.id))
        try:
            running.awaitTermination()
        finally:
            self.progress = running.recentProgress

    def forget_commit(self, batch_id):
        """As after a kill just before Spark's commit: the batch runs again."""
        for path in (self._path / "checkpoint" / "commits").glob(f"*{batch_id}*"):
            path.unlink()

    @property
    def groups(self):
        """Groups in the state after each batch of the last run."""
        return [batch["stateOperators"][0]["numRowsTotal"] for batch in self.progress]


@pytest.fixture
def fed(spark, tmp_path):
    return Fed(spark, tmp_path)


@pytest.fixture
def settings_of(tmp_path):
    """Makes the settings of a job that counts pages."""

    def make(*, schema=EVENTS, deduplicate=0.0, **changes):
        return job(tmp_path, table(parse=parsed(schema), time="time"), metric(**changes), deduplicate=deduplicate)

    return make


def count(spark, settings, *bodies):
    """Count messages as one batch, without a query of their own. Returns the files that were committed."""
    [*_, query] = settings.queries
    events = plan(messages(spark, bodies), query.events)
    counts = aggregated(events.frame.where(F.col("_wrong").isNull()), query.metric, is_stream=False)
    return MetricBatches(query, counts)(counts, BatchIdentity("ours", 0, 1, 1))


def rows_of(settings):
    """Rows of the metric's table."""
    return delta_table(f"{settings.output}/pages").to_pyarrow_table()


def changes(settings):
    """(start, key, count, version) of these rows."""
    rows = rows_of(settings).to_pylist()
    return sorted((row["_window_start"], row["page"], row["count"], row["_version"]) for row in rows)


def counted(settings):
    """The sum of the valid counts."""
    return sum(row["count"] for row in valid_rows(f"{settings.output}/pages"))


@pytest.mark.spark
def test_changed_counts_are_in_the_table_once_even_if_a_batch_runs_again(fed, settings_of):
    settings = settings_of()
    fed.put(event(START), event(START + SECOND), event(START, "/cart"), b"not json")
    fed.put(b"not json")
    fed.put(event(START + 59 * SECOND), event(START + MINUTE))
    fed.run(settings)

    first, second = version_of(1, 0), version_of(1, 2)
    counts = [
        (START, "/", 2, first),
        (START, "/", 3, second),
        (START, "/cart", 1, first),
        (START + MINUTE, "/", 1, second),
    ]
    assert changes(settings) == counts
    assert all(row["_window_end"] - row["_window_start"] == MINUTE for row in rows_of(settings).to_pylist())
    assert counted(settings) == 5
    version = delta_table(f"{settings.output}/pages").version()

    fed.forget_commit(2)
    fed.run(settings)

    assert changes(settings) == counts
    assert delta_table(f"{settings.output}/pages").version() == version


@pytest.mark.spark
def test_what_can_not_be_computed_is_a_null_or_lacks_these_values(spark, settings_of):
    settings = settings_of(
        keys=("string(raise_error(page)) AS page", "upper(raise_error(page)) AS other", "user"),
        schema="user STRING, page STRING, ms BIGINT, time TIMESTAMP",
        aggregates=(
            "max(timestamp_millis(ms)) AS newest",
            "timestamp_millis(max(ms)) AS newest_of_all",
            "sum(ms + 1) / count(*) + count_if(element_at(array(1, 2), int(ms)) = 1) AS ratio",
            "count(*) FILTER (WHERE element_at(array(1, 2), int(ms)) = 1) AS ones",
            "percentile_approx(ms * 2, 0.5, 100) AS middle",
            "first(ms IGNORE NULLS) + 1 AS first",
            "collect_list(ms)",
        ),
    )
    count(spark, settings, *(event(START, ms=ms) for ms in (0, 1, 9 * 10**18)))

    [row] = rows_of(settings).to_pylist()
    assert [row[name] for name in ("page", "other", "user")] == [None, None, "u"]
    names = ("newest", "newest_of_all", "ones", "middle", "first")
    assert [row[name] for name in names] == [dt.datetime(1970, 1, 1, 0, 0, 0, 1000, dt.UTC), None, 1, 0, 1]
    assert row["ratio"] == pytest.approx(3e18 + 2)
    assert sorted(row["collect_list_ms"]) == [0, 1, 9 * 10**18]


@pytest.mark.spark
def test_windows_are_kept_for_their_time_and_what_comes_later_is_left_out(fed, settings_of):
    settings = settings_of(keep_windows=3600.0)
    # The window ends an hour before the newest event of the third batch; the fourth one lets it go.
    fed.put(event(START), event(START), event(START, "/cart"), event(START + HOUR + 59 * SECOND))
    fed.put(event(START))
    fed.put(event(START + HOUR + MINUTE))
    fed.put(event(START + HOUR + 2 * MINUTE))
    fed.put(event(START), event(START), event(START + HOUR + 2 * MINUTE))
    fed.run(settings)

    late = [row for row in changes(settings) if row[:2] == (START, "/")]
    assert late == [(START, "/", 2, version_of(1, 0)), (START, "/", 3, version_of(1, 1))]
    assert counted(settings) == 8
    assert fed.groups == [3, 3, 4, 3, 3]
    assert [batch["stateOperators"][0]["numRowsDroppedByWatermark"] for batch in fed.progress][-1] == 1


@pytest.fixture
def new_york():
    """The driver's own time zone, with hours that come twice."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.spark
def test_windows_of_any_length_know_no_time_zone(spark, settings_of, new_york):
    settings = settings_of(window=420, slide=210, keys=("user", "page"))
    # 01:30 comes twice in New York on this day.
    twice = [dt.datetime(2026, 11, 1, hour, 30, tzinfo=dt.UTC) for hour in (5, 6)]
    count(spark, settings, *(event(at) for at in twice))

    starts = [
        dt.datetime.fromtimestamp(at.timestamp() // 210 * 210 - before, dt.UTC) for at in twice for before in (210, 0)
    ]
    rows = rows_of(settings).sort_by("_window_start").to_pylist()
    assert [(row["_window_start"], row["user"], row["page"], row["count"]) for row in rows] == [
        (start, "u", "/", 1) for start in starts
    ]
    assert all(row["_window_end"] - row["_window_start"] == dt.timedelta(seconds=420) for row in rows)


@pytest.mark.spark
def test_aggregates_are_any_that_spark_has(spark, settings_of):
    settings = settings_of(
        schema="user STRING, page STRING, ms BIGINT, price DECIMAL(6,2), ratio FLOAT, time TIMESTAMP",
        keys=("upper(page) AS page", "_topic"),
        aggregates=(
            *("count(*)", "count(ms)", "sum(ms)", "avg(ms)", "max(ratio)", "sum(price)"),
            *("approx_count_distinct(user) AS users", "collect_set(user) AS who"),
            *("count_if((ms + 1) IS NULL) AS absent", "SUM(ms) FILTER (WHERE user IN ('a')) / count(*) AS mean"),
        ),
    )
    given = [
        {"page": "x", "user": "a", "ms": 1, "price": 1.25, "ratio": 0.5},
        {"page": "x", "user": "b", "ms": 4, "price": 0.75, "ratio": 2.5},
        {"page": "x", "user": "a"},
        # A sum that is too large is none.
        *[{"page": "y", "ms": 2**63 - 1}] * 2,
    ]
    count(spark, settings, *(json.dumps({"time": START.isoformat(), **fields}).encode() for fields in given))

    first, second = rows_of(settings).sort_by("page").to_pylist()
    names = ("page", "_topic", "count", "count_ms", "sum_ms", "avg_ms", "max_ratio", "sum_price", "users")
    assert [first[name] for name in names] == ["X", "clicks", 3, 2, 5, 2.5, 2.5, Decimal("2.00"), 2]
    assert (sorted(first["who"]), first["absent"], first["mean"]) == (["a", "b"], 1, 1 / 3)
    assert (second["count"], second["sum_ms"]) == (2, None)


@pytest.mark.spark
def test_message_that_is_delivered_again_is_counted_once_as_long_as_its_window_is_kept(fed, settings_of):
    settings = settings_of(deduplicate=60.0)
    fed.put(event(START), event(START + MINUTE), event(START + 2 * MINUTE))
    fed.put(event(START + MINUTE), event(START + 2 * MINUTE), event(START + 2 * MINUTE), again=2)
    fed.run(settings)

    assert counted(settings) == 4
