"""Both queries in a real Spark: what they write, and what a batch that runs again changes."""

import datetime as dt
import json
import os
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from gnsq.errors import NSQException
from gnsq.spark.errors import SpoolError
from gnsq.spark.options import ReadOptions
from gnsq.spark.pipeline.archive import ArchiveBatches
from gnsq.spark.pipeline.config import PipelineConfig
from gnsq.spark.pipeline.job import Batch, Job, JobFailed, publish_addresses
from gnsq.spark.pipeline.metrics import MetricsBatches
from gnsq.spark.planner import drain_channel
from gnsq.spark.spool import Spool
from tests.spark.helpers import bodies_of, channel_stats, members_of, publish, running, wait_for

BODIES = [
    b'{"time": "2026-01-01T10:00:01Z", "user": "u1", "page": "/"}',
    b'{"time": "2026-01-01T10:00:59.5Z", "user": "u2", "page": "/", "more": [1]}',
    b'{"time": "2026-01-01T12:01:00+01:00", "user": "u2", "page": "/cart"}',
    b"not json",
    b"\xff\xfe",
    b'{"time": "2026-01-01T10:00:01Z", "user": "u1"}',
    b'{"time": "2026-01-01T10:00:01Z", "user": "", "page": "/"}',
    b'{"user": "u1", "page": "/"}',
    b'{"time": "yesterday", "user": "u1", "page": "/"}',
    b'{"time": "2126-01-01T10:00:01Z", "user": "u1", "page": "/"}',
    b"null",
]
REASONS = {
    "body is not a JSON object": 2,
    "body is not UTF-8": 1,
    "page is missing": 1,
    "user is missing": 1,
    "time is missing": 1,
    "time is not ISO 8601": 1,
    "time is in the future": 1,
}


@pytest.fixture
def config(fakensqd, tmp_path):
    return PipelineConfig(
        topic="clicks",
        output=str(tmp_path / "output"),
        work=str(tmp_path / "work"),
        nsqd_tcp_addresses=(fakensqd.tcp_address,),
        nsqd_http_addresses=(fakensqd.http_address,),
    )


def messages(spark, bodies):
    published_at = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
    rows = [(body, f"{number:016}", published_at, "127.0.0.1:4150") for number, body in enumerate(bodies)]
    return spark.createDataFrame(
        [(bytearray(body), *rest) for body, *rest in rows],
        "body binary, message_id string, published_at timestamp, nsqd string",
    )


def event(time, page="/"):
    return json.dumps({"time": time.isoformat(), "user": "u", "page": page}).encode()


def rows_below(path):
    return [
        row for file in sorted(path.rglob("*.parquet")) for row in pq.read_table(file, partitioning=None).to_pylist()
    ]


def published(nsqd, topic, tmp_path):
    """Bodies in a topic."""
    options = ReadOptions(
        topic=topic,
        channel="test",
        nsqd_tcp_addresses=(nsqd.tcp_address,),
        nsqd_http_addresses=(nsqd.http_address,),
        spool=str(tmp_path / f"{topic}-spool"),
    )
    drain_channel(options)
    return [json.loads(body) for body in bodies_of(Spool(options.spool))]


@pytest.mark.spark
def test_archive_keeps_events_by_hour(spark, fakensqd, config, tmp_path):
    ArchiveBatches(config, (fakensqd.tcp_address,))(messages(spark, BODIES), 0)

    hours = {path.name: rows_below(path) for path in (tmp_path / "output" / "archive").glob("hour=*")}
    assert {hour: len(rows) for hour, rows in hours.items()} == {"hour=2026-01-01T10": 2, "hour=2026-01-01T11": 1}
    [cart] = hours["hour=2026-01-01T11"]
    assert cart["event_time"] == dt.datetime(2026, 1, 1, 11, 1, tzinfo=dt.UTC)
    assert (cart["page"], cart["user"], cart["body"]) == ("/cart", "u2", BODIES[2].decode())


@pytest.mark.spark
def test_malformed_bodies_are_dead_letters_with_their_reason(spark, fakensqd, config, tmp_path):
    import base64

    ArchiveBatches(config, (fakensqd.tcp_address,))(messages(spark, BODIES), 0)

    letters = published(fakensqd, "clicks-dead", tmp_path)
    reasons = [letter["reason"] for letter in letters]
    assert {reason: reasons.count(reason) for reason in reasons} == REASONS
    assert {base64.b64decode(letter["body_base64"]) for letter in letters} == set(BODIES[3:])


@pytest.mark.spark
def test_archived_batch_that_runs_again_overwrites_itself(spark, fakensqd, config, tmp_path):
    ArchiveBatches(config, (fakensqd.tcp_address,))(messages(spark, BODIES).repartition(5), 7)
    ArchiveBatches(config, (fakensqd.tcp_address,))(messages(spark, BODIES).coalesce(1), 7)
    ArchiveBatches(config, (fakensqd.tcp_address,))(messages(spark, BODIES[:1]), 8)

    assert len(rows_below(tmp_path / "output" / "archive")) == 4


@pytest.mark.spark
def test_metrics_split_off_what_is_late(spark, fakensqd, config, tmp_path):
    start = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)
    batches = MetricsBatches(config, (fakensqd.tcp_address,))
    minute = dt.timedelta(minutes=1)
    # The second batch's watermark is 10:10: the window of 10:09 is closed, that of 10:10 is open.
    first = [start, start + 10 * minute, start + 20 * minute]
    second = [start + 9 * minute, start + 10 * minute, start + 21 * minute]
    batches(messages(spark, [event(time) for time in first] + [b"not json"]), 0)
    batches(messages(spark, [event(time) for time in second]), 1)

    rows = {(row["window_start"], row["version"]): row["count"] for row in rows_below(tmp_path / "output" / "metrics")}
    assert rows == {
        (start, 0): 1,
        (start + 10 * minute, 0): 1,
        (start + 20 * minute, 0): 1,
        (start + 10 * minute, 1): 2,
        (start + 21 * minute, 1): 1,
    }
    assert [row["event_time"] for row in rows_below(tmp_path / "output" / "late")] == [start + 9 * minute]
    assert {"window": "2026-01-01T10:10:00Z", "key": "/", "count": 2, "version": 1} in published(
        fakensqd, "clicks-metrics", tmp_path
    )


@pytest.mark.spark
def test_counted_batch_that_runs_again_gives_the_same(spark, fakensqd, config, tmp_path):
    start = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)
    later = start + dt.timedelta(hours=1)

    def run(batch_id, *times):
        # As after a restart: nothing is known but the files.
        MetricsBatches(config, (fakensqd.tcp_address,))(messages(spark, [event(time) for time in times]), batch_id)

    run(0, start, later)
    run(1, start, later)
    before = rows_below(tmp_path / "output")
    run(1, start, later)

    assert sorted(map(str, rows_below(tmp_path / "output"))) == sorted(map(str, before))
    assert len(list((tmp_path / "work" / "metrics" / "state").iterdir())) == 2


def test_lost_state_is_an_error(fakensqd, config):
    with pytest.raises(SpoolError, match="no state before batch 3"):
        MetricsBatches(config, (fakensqd.tcp_address,))._state_before(3)


@pytest.mark.spark
def test_job_runs_until_drained_and_reports(spark, fakensqd, config, tmp_path):
    publish(fakensqd, "clicks", BODIES * 10)
    reports: list[Batch] = []
    job = Job(spark, config, reports.append)

    job.start(until_drained=True)

    assert job.wait(lambda: False)
    assert sum(batch.rows for batch in reports if batch.query == "archive") == 110
    assert sum(batch.rows for batch in reports if batch.query == "metrics") == 110
    assert len(rows_below(tmp_path / "output" / "archive")) == 30


@pytest.mark.spark
def test_failing_query_fails_the_job(spark, config, tmp_path):
    (tmp_path / "work" / "metrics").mkdir(parents=True)
    (tmp_path / "work" / "metrics" / "spool").write_text("no directory")
    job = Job(spark, config, lambda batch: None)
    job.start(until_drained=True)

    with pytest.raises(
        JobFailed, match=r"^query metrics: gnsq.*SpoolError: spool .*give a directory that can be written$"
    ):
        job.wait(lambda: False)
    for query in spark.streams.active:
        query.stop()


@pytest.mark.spark
def test_query_that_does_not_start_fails_the_job(spark, config, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "archive").write_text("no directory")
    job = Job(spark, config, lambda batch: None)

    with pytest.raises(JobFailed, match=r"query archive did not start: org.*archive$"):
        job.start(until_drained=True)


def test_job_publishes_where_it_reads(config, fakecluster):
    from dataclasses import replace

    looked_up = replace(config, nsqd_tcp_addresses=(), lookupd_http_addresses=tuple(fakecluster.lookupd_http_addresses))

    assert publish_addresses(config) == config.nsqd_tcp_addresses
    assert publish_addresses(replace(config, publish_addresses=("x:1",))) == ("x:1",)
    assert set(publish_addresses(looked_up)) == set(fakecluster.nsqd_tcp_addresses)
    with pytest.raises(NSQException, match="give publish_addresses"):
        publish_addresses(replace(looked_up, lookupd_http_addresses=("127.0.0.1:1",)))


COMMAND = [sys.executable, "-m", "gnsq.spark.pipeline"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param([], "setting topic is required", id="nothing"),
        pytest.param(["--config", "/nowhere.toml"], "configuration /nowhere.toml", id="file"),
        pytest.param(
            ["--topic", "a b", "--output", "x", "--work", "y", "--nsqd-tcp-address", "h:1"], "a b", id="topic"
        ),
    ],
)
def test_bad_settings_are_told_before_spark_starts(arguments, words):
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_command_stops_in_order_on_sigterm(fakensqd, tmp_path):
    publish(fakensqd, "clicks", BODIES)
    arguments = ["--topic", "clicks", "--output", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    addresses = ["--nsqd-tcp-address", fakensqd.tcp_address, "--nsqd-http-address", fakensqd.http_address]
    with running([*COMMAND, *arguments, *addresses, "--master", "local[2]"]) as process:
        wait_for(lambda: list((tmp_path / "out" / "archive").glob("hour=*/*.parquet")), limit=60)
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=30)

        assert process.returncode == 0, output
        assert "stopped in order" in output
        assert "Traceback" not in output
        for channel in ("archive", "metrics"):
            wait_for(lambda channel=channel: not channel_stats(fakensqd, "clicks", channel)["clients"])
        wait_for(lambda: members_of(process.pid) == [])
