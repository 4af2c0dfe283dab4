import datetime as dt
import os
import time

import pytest

from gnsq.errors import NSQException
from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.counts import Count
from gnsq.spark.pipeline.metrics import MetricsBatches, metric_body
from tests.spark.pipeline.helpers import config_for, event, messages, published, rows_below

START = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)


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
def test_late_events_are_split_off(spark, fakensqd, config, tmp_path):
    batches = MetricsBatches(config)
    # The second batch's watermark is 10:10: the window of 10:09 is closed, that of 10:10 is open.
    first = [START, START + 10 * MINUTE, START + 20 * MINUTE]
    second = [START + 9 * MINUTE, START + 10 * MINUTE, START + 21 * MINUTE]
    batches(messages(spark, config, [event(at) for at in first] + [b"not json"]), 0)
    batches(messages(spark, config, [event(at) for at in second]), 1)

    rows = {(row["window_start"], row["version"]): row["count"] for row in rows_below(tmp_path / "output" / "metrics")}
    assert rows == {
        (START, 0): 1,
        (START + 10 * MINUTE, 0): 1,
        (START + 20 * MINUTE, 0): 1,
        (START + 10 * MINUTE, 1): 2,
        (START + 21 * MINUTE, 1): 1,
    }
    assert [row["event_time"] for row in rows_below(tmp_path / "output" / "late")] == [START + 9 * MINUTE]
    assert batches.late == 1
    assert {"window": "2026-01-01T10:10:00Z", "key": "/", "count": 2, "version": 1} in published(
        fakensqd, "clicks-metrics", tmp_path
    )


@pytest.mark.spark
def test_windows_of_any_length_know_no_time_zone(spark, fakensqd, tmp_path, new_york):
    config = config_for(tmp_path, nsqd_tcp_addresses=(fakensqd.tcp_address,), window_length=420, key_field="user")
    # 01:30 comes twice in New York on this day.
    twice = [dt.datetime(2026, 11, 1, hour, 30, tzinfo=dt.UTC) for hour in (5, 6)]
    batches = MetricsBatches(config)
    for batch_id in (0, 1):
        frame = messages(spark, config, [event(at) for at in twice]).withColumn("reason", _nothing())
        batches(frame, batch_id)

    rows = rows_below(tmp_path / "output" / "metrics")
    latest = {(row["window_start"], row["key"]): row["count"] for row in rows if row["version"] == 1}
    starts = [dt.datetime.fromtimestamp(at.timestamp() // 420 * 420, dt.UTC) for at in twice]
    # The first one's window was closed by the second one.
    assert latest == {(starts[1], "u"): 2}
    assert [row["event_time"] for row in rows_below(tmp_path / "output" / "late")] == twice[:1]
    assert all(row["window_end"] - row["window_start"] == dt.timedelta(seconds=420) for row in rows)


def _nothing():
    from pyspark.sql import functions as F

    # These events are ahead of their publishing.
    return F.lit(None).cast("string")


@pytest.mark.spark
def test_batch_that_runs_again_gives_the_same(spark, config, tmp_path):
    later = START + dt.timedelta(hours=1)

    def run(batch_id, partitions, *times):
        # As after a restart: nothing is known but the files.
        frame = messages(spark, config, [event(at) for at in times]).repartition(partitions)
        MetricsBatches(config)(frame, batch_id)

    run(0, 1, START, later)
    run(1, 3, START, later)
    before = rows_below(tmp_path / "output")
    run(1, 2, START, later)

    assert sorted(map(str, rows_below(tmp_path / "output"))) == sorted(map(str, before))
    assert len(list((tmp_path / "work" / "metrics" / "state").iterdir())) == 2


@pytest.mark.spark
def test_batch_that_was_cut_off_before_it_was_published_is_counted_once(spark, fakensqd, config, tmp_path):
    nowhere = config_for(tmp_path, nsqd_tcp_addresses=("127.0.0.1:1",), nsq={"publishTimeout": "0.2"})
    frame = messages(spark, config, [event(START), event(START)])
    with pytest.raises(NSQException):
        MetricsBatches(nowhere)(frame, 0)
    MetricsBatches(config)(frame, 0)

    assert [row["count"] for row in rows_below(tmp_path / "output" / "metrics")] == [2]
    assert [row["count"] for row in published(fakensqd, "clicks-metrics", tmp_path)] == [2]


@pytest.mark.spark
def test_too_many_open_counts_end_the_query(spark, tmp_path):
    config = config_for(tmp_path, max_open_counts=2)
    frame = messages(spark, config, [event(START, page) for page in ("/a", "/b", "/c")])

    with pytest.raises(JobFailed, match="3 windows and keys are open, max_open_counts is 2: choose a key_field"):
        MetricsBatches(config)(frame, 0)


def test_key_takes_as_many_bytes_as_it_has():
    assert len(metric_body(Count(START, "é" * 2000, 1, 1))) < 4200


def test_lost_state_is_an_error(config):
    with pytest.raises(JobFailed, match="no state before batch 3"):
        MetricsBatches(config)._state_before(3)
