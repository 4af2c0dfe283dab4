"""The query metrics in a real Spark, fed from files: one file is one batch."""

import datetime as dt
import json
import os
import time
from concurrent.futures import Future
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gnsq.spark.pipeline.events import parse
from gnsq.spark.pipeline.layout import metrics_table
from gnsq.spark.pipeline.metrics import MetricsBatches, aggregated, metric_body
from gnsq.spark.pipeline.progress import identify
from gnsq.spark.pipeline.windows import Metric, true_counts, version_of
from tests.spark.pipeline.helpers import config_for, delta_table, event, published

START = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)
SECOND, MINUTE, HOUR, DAY = (dt.timedelta(seconds=seconds) for seconds in (1, 60, 3600, 86_400))
TIME = pa.timestamp("us", tz="UTC")
MESSAGES = pa.schema(
    [("body", pa.binary()), ("message_id", pa.string()), ("published_at", TIME), ("nsqd", pa.string())]
)


class Query:
    """The query metrics, which may be run again and again.

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
            published_at = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
            values = (body, f"{self._ids:016}", published_at, "127.0.0.1:4150")
            rows.append(dict(zip(MESSAGES.names, values, strict=True)))
        self._files += 1
        path = self._path / "in" / f".{self._files:03}"
        pq.write_table(pa.Table.from_pylist(rows, schema=MESSAGES), path)
        # Spark takes files by their time.
        os.utime(path, (self._files, self._files))
        path.rename(self._path / "in" / f"{self._files:03}.parquet")

    def run(self, config, *, checkpoint="checkpoint", take_over=False):
        """Work off what was put."""
        columns = "body binary, message_id string, published_at timestamp, nsqd string"
        source = self._spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        events = parse(source.parquet(str(self._path / "in")), config.schema_of("clicks"), config.max_ahead)
        config = replace(config, checkpoint=str(self._path / checkpoint))
        batches, owner = MetricsBatches(config, "metrics", take_over=take_over), Future()
        writer = aggregated(events, config, "metrics").writeStream.outputMode("update")
        writer = writer.foreachBatch(
            lambda rows, batch_id: batches(rows, identify(config, "metrics", owner.result(), batch_id))
        )
        writer = writer.option("checkpointLocation", config.checkpoint_of("metrics")).trigger(availableNow=True)
        query = writer.start()
        owner.set_result(str(query.id))
        try:
            query.awaitTermination()
        finally:
            self.progress = query.recentProgress

    def forget_commit(self, batch_id):
        """As after a kill just before Spark's commit: the batch runs again."""
        for path in (self._path / "checkpoint" / "metrics" / "commits").glob(f"*{batch_id}*"):
            path.unlink()

    @property
    def groups(self):
        """Groups in the state after each batch of the last run."""
        return [batch["stateOperators"][0]["numRowsTotal"] for batch in self.progress]


@pytest.fixture
def query(spark, tmp_path):
    return Query(spark, tmp_path)


def rows_of(config):
    """Rows of the metric's table."""
    return delta_table(f"{config.output}/metrics/{config.all_metrics[0].name}").to_pyarrow_table()


def changes(config):
    """(start, key, count, version) of these rows."""
    rows = rows_of(config).to_pylist()
    return sorted((row["window_start"], row["page"], row["count"], row["version"]) for row in rows)


def entered(config):
    return metrics_table(config, "metrics").status().entered


def counted(config):
    """The sum of the true counts."""
    return sum(true_counts(rows_of(config), config.all_metrics[0]).column("count").to_pylist())


@pytest.mark.spark
def test_changed_counts_are_in_the_table_and_in_the_topic_once(query, fakensqd, config, tmp_path):
    query.put(event(START), event(START + SECOND), event(START, "/cart"), b"not json")
    query.put(event(START + 59 * SECOND), event(START + MINUTE))
    query.put(b"not json")
    query.run(config)

    first, second = version_of(1, 0), version_of(1, 1)
    assert changes(config) == [
        (START, "/", 2, first),
        (START, "/", 3, second),
        (START, "/cart", 1, first),
        (START + MINUTE, "/", 1, second),
    ]
    assert all(row["window_end"] - row["window_start"] == MINUTE for row in rows_of(config).to_pylist())
    assert (entered(config), counted(config)) == (5, 5)
    bodies = published(fakensqd, "clicks-metrics", tmp_path)
    assert len(bodies) == 4
    assert {"window": "2026-01-01T10:00:00Z", "page": "/", "count": 3, "epoch": 1, "version": second} in bodies


@pytest.mark.spark
def test_batch_that_runs_again_changes_no_row_and_is_published_again(query, fakensqd, config, tmp_path):
    query.put(event(START), event(START, "/cart"))
    query.put(event(START), event(START), event(START + MINUTE))
    query.run(config)
    before, version = changes(config), delta_table(metrics_table(config, "metrics").location).version()

    query.forget_commit(1)
    query.run(config)

    assert changes(config) == before
    assert (entered(config), counted(config)) == (5, 5)
    assert delta_table(metrics_table(config, "metrics").location).version() == version
    bodies = sorted(json.dumps(body) for body in published(fakensqd, "clicks-metrics", tmp_path))
    assert len(bodies) == 6
    assert len(set(bodies)) == 4


@pytest.mark.spark
def test_batch_that_is_committed_and_not_published_is_published_at_the_next_start(query, fakensqd, config, tmp_path):
    from pyspark.errors import PySparkException

    nowhere = config_for(tmp_path, nsqd_tcp_addresses=("127.0.0.1:1",), nsq={"publishTimeout": "0.2"})
    query.put(event(START), event(START))
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:1"):
        query.run(nowhere)
    assert changes(config) == [(START, "/", 2, version_of(1, 0))]
    query.run(config)

    assert changes(config) == [(START, "/", 2, version_of(1, 0))]
    assert (entered(config), counted(config)) == (2, 2)
    assert [body["count"] for body in published(fakensqd, "clicks-metrics", tmp_path)] == [2]


@pytest.mark.spark
def test_new_checkpoint_takes_the_table_over_in_a_new_epoch(query, config):
    from pyspark.errors import PySparkException

    query.put(event(START), event(START))
    query.run(config)
    query.put(event(START), event(START, "/cart"), event(START))
    with pytest.raises(PySparkException, match=r"belongs to the checkpoint .* --take-over"):
        query.run(config, checkpoint="new")
    # Nothing is left of that try: it reads the first file again, as a channel's messages that come once more would.
    query.run(config, checkpoint="new", take_over=True)

    assert changes(config)[-3:] == [
        (START, "/", 2, version_of(2, 0)),
        (START, "/", 4, version_of(2, 1)),
        (START, "/cart", 1, version_of(2, 1)),
    ]
    assert counted(config) == entered(config) == 2 + 5


@pytest.mark.spark
def test_windows_are_kept_for_their_time_and_what_comes_later_is_accounted_for(query, tmp_path, config):
    config = config_for(tmp_path, nsqd_tcp_addresses=config.nsqd_tcp_addresses, keep_windows=HOUR.total_seconds())
    # The window ends an hour before the newest event of the third batch; the fourth one lets it go.
    query.put(event(START), event(START), event(START, "/cart"), event(START + HOUR + 59 * SECOND))
    query.put(event(START))
    query.put(event(START + HOUR + MINUTE))
    query.put(event(START + HOUR + 2 * MINUTE))
    query.put(event(START), event(START), event(START + HOUR + 2 * MINUTE))
    query.run(config)

    late = [row for row in changes(config) if row[:2] == (START, "/")]
    assert late == [(START, "/", 2, version_of(1, 0)), (START, "/", 3, version_of(1, 1))]
    assert entered(config) == 10
    assert entered(config) - counted(config) == 2
    # One of them is that of all events, which stays.
    assert query.groups == [4, 4, 5, 4, 4]


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
def test_windows_of_any_length_know_no_time_zone(query, fakensqd, tmp_path, new_york):
    metric = Metric.parse({"name": "sliding", "window": 420, "slide": 210, "keys": ["user", "page"]})
    config = config_for(tmp_path, nsqd_tcp_addresses=(fakensqd.tcp_address,), metrics=(metric,))
    # 01:30 comes twice in New York on this day.
    twice = [dt.datetime(2026, 11, 1, hour, 30, tzinfo=dt.UTC) for hour in (5, 6)]
    query.put(*(event(at) for at in twice))
    query.run(config)

    starts = [
        dt.datetime.fromtimestamp(at.timestamp() // 210 * 210 - before, dt.UTC) for at in twice for before in (210, 0)
    ]
    rows = rows_of(config).sort_by("window_start").to_pylist()
    assert [(row["window_start"], row["user"], row["page"], row["count"]) for row in rows] == [
        (start, "u", "/", 1) for start in starts
    ]
    assert all(row["window_end"] - row["window_start"] == dt.timedelta(seconds=420) for row in rows)
    # An event is in two windows, and has entered once.
    assert (entered(config), counted(config)) == (2, 4)


@pytest.mark.spark
def test_aggregates_of_numbers_and_distinct_values(query, fakensqd, tmp_path):
    calls = ["sum(ms)", "mean(ms)", "min(ms)", "max(ms)", "sum(price)", "max(ratio)", "approx_distinct(user)"]
    config = config_for(
        tmp_path,
        nsqd_tcp_addresses=(fakensqd.tcp_address,),
        fields={"user": "string", "ms": "bigint", "price": "decimal(6,2)", "ratio": "float", "_0": "string"},
        required_fields=(),
        metrics=(Metric.parse({"keys": ["_0"], "aggregates": calls}),),
    )
    at = START.isoformat()
    given = [
        {"user": "a", "ms": 1, "price": 1.25, "ratio": 0.5},
        {"user": "b", "ms": 4, "price": 0.75, "ratio": "Infinity"},
        {"user": "a"},
    ]
    query.put(*(json.dumps({"time": at, "_0": "x", **fields}).encode() for fields in given))
    # A sum that is too large is none; the query goes on.
    query.put(*(json.dumps({"time": at, "_0": "x", "ms": 2**63 - 1}).encode() for _ in range(2)))
    query.run(config)

    first, second = rows_of(config).sort_by("version").to_pylist()
    assert {name: first[name] for name in ("count", "sum_ms", "count_ms", "mean_ms", "min_ms", "max_ms")} == {
        "count": 3,
        "sum_ms": 5,
        "count_ms": 2,
        "mean_ms": 2.5,
        "min_ms": 1,
        "max_ms": 4,
    }
    assert (first["sum_price"], first["max_ratio"], first["approx_distinct_user"]) == (Decimal("2.00"), float("inf"), 2)
    assert (second["count"], second["sum_ms"], second["max_ms"]) == (5, None, 2**63 - 1)
    body = min(published(fakensqd, "clicks-metrics", tmp_path), key=lambda body: body["version"])
    assert (body["sum_price"], body["max_ratio"], body["mean_ms"]) == (2.0, "inf", 2.5)


@pytest.mark.spark
def test_message_that_is_delivered_again_is_counted_once_as_long_as_its_window_is_kept(query, tmp_path, config):
    config = config_for(tmp_path, nsqd_tcp_addresses=config.nsqd_tcp_addresses, deduplicate=60.0)
    query.put(event(START), event(START + MINUTE), event(START + 2 * MINUTE))
    query.put(event(START + MINUTE), event(START + 2 * MINUTE), event(START + 2 * MINUTE), again=2)
    query.run(config)

    assert (entered(config), counted(config)) == (4, 4)


def test_key_takes_as_many_bytes_as_it_has():
    row = {"window_start": START, "page": "é" * 2000, "count": 1, "epoch": 1, "version": version_of(1, 1)}

    assert len(metric_body(Metric(), row)) < 4200
