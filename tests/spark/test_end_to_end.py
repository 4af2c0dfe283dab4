"""The format nsq in a real Spark, against an emulated nsqd."""

import functools
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
import pytest

from gnsq.spark import register
from gnsq.spark.source.pyspark41 import HAS_READ_LIMITS
from tests.spark.helpers import OTHER_SETTINGS, channel_stats, is_empty, named, numbered, publish, wait_for

pytestmark = pytest.mark.spark


@pytest.fixture
def source(spark, fakensqd, tmp_path):
    def load(**options):
        given = {
            "topic": "clicks",
            "channel": "archive",
            "nsqdTcpAddresses": fakensqd.tcp_address,
            "nsqdHttpAddresses": fakensqd.http_address,
            "spool": str(tmp_path / "spool"),
            **options,
        }
        return spark.readStream.format("nsq").options(**given).load()

    return load


@pytest.fixture
def run(tmp_path):
    """Start a query that writes Parquet; it is stopped at the end."""
    queries = []

    def start(messages, name="out", **trigger):
        writer = messages.select("body").writeStream.format("parquet").option("path", str(tmp_path / name))
        writer = writer.option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
        queries.append(writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


@pytest.fixture
def archive(tmp_path):
    """Run a query to its end whose batches write files of their own, once more if they run again."""

    def write(rows, batch):
        rows.write.mode("overwrite").parquet(str(tmp_path / "batches" / str(batch)))

    def start(messages, write=write, **trigger):
        writer = messages.select("body").writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger).start()
        query.awaitTermination()

    return start


def archived(batches):
    return sorted(body for path in batches.rglob("*.parquet") for body in bodies_in(path))


@functools.cache
def bodies_in(path):
    """The bodies in a file of Spark's, which is never written again."""
    return pq.ParquetFile(path).read(["body"]).column("body").to_pylist()


def uncommit(tmp_path, batch):
    """Leave a checkpoint as a kill between offset log and commit log does."""
    for name in (f"{batch}", f".{batch}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()


def written(path):
    """The bodies in all files that the log of Spark's sink names, as Spark reads them."""
    logs = [log.read_text().splitlines()[1:] for log in (path / "_spark_metadata").glob("[0-9]*")]
    names = {json.loads(line)["path"].rpartition("/")[2] for log in logs for line in log}
    return [body for name in names for body in bodies_in(path / name)]


def test_available_now_reads_everything_once_through_a_small_spool(fakensqd, source, run, tmp_path):
    # A spool that is full of what was read is emptied. With PySpark 4.1, AvailableNow would end there.
    small = {"maxSpoolBytes": 1, "maxInFlight": 100} if HAS_READ_LIMITS else {}
    publish(fakensqd, "clicks", numbered(300))

    query = run(source(drain=True, **small), availableNow=True)
    query.awaitTermination()

    assert sorted(written(tmp_path / "out")) == numbered(300)
    assert is_empty(fakensqd, "clicks", "archive")
    assert "waiting" in query.lastProgress["sources"][0]["latestOffset"] or not HAS_READ_LIMITS


def test_batches_that_were_not_committed_run_again_as_they_were(fakensqd, source, archive, spool, tmp_path):
    publish(fakensqd, "clicks", numbered(100))
    archive(source(numPartitions=1, drain=True), availableNow=True)
    uncommit(tmp_path, 0)

    publish(fakensqd, "clicks", numbered(200, first=100))
    archive(source(numPartitions=3, maxRowsPerBatch=100, drain=True), availableNow=True)
    assert archived(tmp_path / "batches") == numbered(300)
    last = max(int(path.name) for path in (tmp_path / "batches").iterdir())
    assert last >= 2 if HAS_READ_LIMITS else last == 1
    uncommit(tmp_path, last)

    publish(fakensqd, "clicks", numbered(50, first=300))
    archive(source(numPartitions=2, drain=True), availableNow=True)
    assert archived(tmp_path / "batches") == numbered(350)
    # What the last batch has read stays until the next one; all else is deleted.
    [*_, newest] = sorted((tmp_path / "batches").iterdir(), key=lambda path: int(path.name))
    assert sum(segment.rows for segment in spool.listing().segments) == len(archived(newest))


def test_once_is_one_batch_which_several_threads_may_use(fakensqd, source, archive, tmp_path):
    publish(fakensqd, "clicks", numbered(3000))
    found = []

    def write(rows, batch):
        path = str(tmp_path / "batches" / str(batch))
        calls = [rows.count, lambda: len(rows.take(1)), rows.isEmpty, lambda: rows.write.parquet(path)]
        with ThreadPoolExecutor(4) as pool:
            found.extend(pool.map(lambda call: call(), calls))

    archive(source(maxInFlight=500, drain=True), write, once=True)

    assert found == [3000, 1, False, None]
    assert archived(tmp_path / "batches") == numbered(3000)
    assert [path.name for path in (tmp_path / "batches").iterdir()] == ["0"]


def test_running_query_reads_new_messages_and_shuts_down(fakensqd, source, run, tmp_path):
    query = run(source())
    wait_for(lambda: channel_stats(fakensqd, "clicks", "archive"))
    for first in (0, 100):
        publish(fakensqd, "clicks", numbered(100, first))
        wait_for(lambda first=first: len(written(tmp_path / "out")) >= first + 100)
    query.stop()

    assert query.exception() is None
    assert sorted(written(tmp_path / "out")) == numbered(200)
    wait_for(lambda: not channel_stats(fakensqd, "clicks", "archive")["clients"])
    assert is_empty(fakensqd, "clicks", "archive")


@pytest.fixture
def company(spark):
    """A session with other settings than a job's."""
    session = spark.newSession()
    for name, value in OTHER_SETTINGS.items():
        session.conf.set(name, value)
    register(session)
    yield session
    register(spark)


def test_batches_are_written_and_read_and_a_stream_is_written_whatever_the_settings_are(company, fakensqd, tmp_path):
    # Spark looks for the format in the session that was registered last.
    assert company._jvm.SparkSession.getActiveSession().get().equals(company._jsparkSession)
    address = {"nsqdTcpAddresses": fakensqd.tcp_address}
    rows = company.range(300).selectExpr("format_string('%08d', id) AS body", "'clicks' AS topic")
    rows.write.format("nsq").options(**address).mode("append").save()

    given = {"topic": "clicks", "channel": "archive", "spool": str(tmp_path / "spool"), **address}
    messages = company.readStream.format("nsq").options(**given).load()
    copied = messages.select("body").writeStream.format("nsq").options(topic="copy", **address)
    copied = copied.option("checkpointLocation", str(tmp_path / "copy-checkpoint"))
    copied.trigger(availableNow=True).start().awaitTermination()

    given = {"topic": "copy", "channel": "test", "nsqdHttpAddresses": fakensqd.http_address, **address}
    reader = company.read.format("nsq").options(**given)
    found = reader.load().collect()
    assert sorted(bytes(row.body) for row in found) == numbered(300)
    assert {(row.topic, row.nsqd, row.attempts) for row in found} == {("copy", fakensqd.tcp_address, 1)}
    assert all(abs(row.published_at.timestamp() - time.time()) < 300 for row in found)
    assert reader.load().collect() == []


def source_processes():
    """Process ids of the planners of the queries here, and of no test in another worker."""
    return named(os.getpid(), "python_streaming_source_runner")


def test_killed_source_processes_lose_nothing(fakensqd, source, run, tmp_path):
    """The process with planner and receiver is killed while messages flow, in the end the query still has them all."""
    stop = threading.Event()
    published = []

    def go_on():
        while not stop.is_set():
            batch = numbered(100, first=len(published))
            publish(fakensqd, "clicks", batch)
            published.extend(batch)
            # Not as fast as it can: a slow machine would have batches that last for minutes.
            stop.wait(0.2)

    publisher = threading.Thread(target=go_on)
    publisher.start()
    try:
        before = set(source_processes())
        # What the killed one has in flight comes again soon.
        query = run(source(msgTimeout=2))
        [process] = wait_for(lambda: set(source_processes()) - before)
        wait_for(lambda: written(tmp_path / "out"))
        os.kill(process, signal.SIGKILL)
        wait_for(lambda: not query.isActive)
        assert query.exception() is not None
    finally:
        stop.set()
        publisher.join(30)
    while not is_empty(fakensqd, "clicks", "archive") or set(written(tmp_path / "out")) != set(published):
        run(source(drain=True), availableNow=True).awaitTermination()

    assert set(written(tmp_path / "out")) == set(published)
