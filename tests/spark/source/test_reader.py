"""The readers as Spark calls them, without a JVM."""

import gc
import pickle
import signal
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from gnsq.spark.datasource import COLUMNS, NsqDataSource, data_source_for
from gnsq.spark.errors import SpoolError, SpoolInUse
from gnsq.spark.offsets import encode_offset
from gnsq.spark.receiver.receiver import GC_THRESHOLD
from gnsq.spark.source.pyspark41 import ReadAllAvailable, ReadMaxBytes
from gnsq.spark.source.reader import SegmentsPartition
from gnsq.spark.spool.spool import Spool
from tests.spark.helpers import channel_stats, columns, numbered, publish, running, unusable, wait_for

pytestmark = pytest.mark.slow

# As getDefaultReadLimit() gives it by default.
LIMIT = ReadMaxBytes(64 * 1024 * 1024)


@pytest.fixture
def options(fakensqd, tmp_path):
    return {
        "topic": "clicks",
        "channel": "archive",
        "nsqdtcpaddresses": fakensqd.tcp_address,
        "nsqdhttpaddresses": fakensqd.http_address,
        "spool": str(tmp_path / "spool"),
    }


def schema(*names):
    built = StructType()
    for name in names or COLUMNS:
        built = built.add(name, COLUMNS[name])
    return built


@pytest.fixture
def reader(options):
    readers = []

    def make(*names, **changes):
        readers.append(NsqDataSource({**options, **changes}).streamReader(schema=schema(*names)))
        return readers[-1]

    yield make
    for each in readers:
        each.stop()


def read(reader, start, end):
    return [
        row
        for partition in reader.partitions(start, end)
        for batch in reader.read(pickle.loads(pickle.dumps(partition)))
        for row in batch.to_pylist()
    ]


def test_stream_reader_reads_every_message_by_a_spool_of_the_mode_that_the_option_says(fakensqd, reader, tmp_path):
    publish(fakensqd, "clicks", numbered(100))
    stream = reader(spoolMode="2770")
    start = stream.initialOffset()
    assert stream.reportLatestOffset() is None
    assert not (tmp_path / "spool").exists()

    end = start
    rows = []
    while len(rows) < 100:
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        rows += read(stream, start, end)
        stream.commit(start)
        start = end

    assert sorted(row["body"] for row in rows) == numbered(100)
    assert list(rows[0]) == list(COLUMNS)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "spool", *(tmp_path / "spool").rglob("*"))}
    assert modes == {0o2770, 0o660}


@pytest.mark.parametrize(
    ("given", "limit", "segments"),
    [
        pytest.param({"maxRowsPerBatch": "2"}, LIMIT, 2, id="rows"),
        pytest.param({"maxBytesPerBatch": "1"}, LIMIT, 1, id="bytes"),
        pytest.param({"maxBytesPerBatch": "1"}, ReadAllAvailable(), 3, id="all, whatever the options say"),
    ],
)
def test_latest_offset_keeps_to_the_limits(reader, spool, given, limit, segments):
    writer = spool.writer("r1")
    for number in (1, 2, 3):
        writer.write(number, columns(number))
    stream = reader(receivers="external", **given)

    assert stream.latestOffset(stream.initialOffset(), limit)["r"] == {"r1": segments}


def test_failing_file_system_does_not_end_the_query(reader, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("gnsq.spark.source.reader.RETRY_INTERVAL", 0.2)
    stream = reader(receivers="external")
    start = stream.latestOffset(stream.initialOffset(), LIMIT)
    began = time.monotonic()

    with unusable(tmp_path / "spool"):
        assert stream.latestOffset(start, LIMIT) == start
    assert "Not a directory" in caplog.text
    # Spark asks again at once, and each time is a line in the log.
    assert time.monotonic() - began >= 0.2


def test_file_system_that_fails_for_a_moment_does_not_end_a_drain(fakensqd, reader, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("gnsq.spark.source.reader.RETRY_INTERVAL", 0.01)
    publish(fakensqd, "clicks", numbered(100))
    stream = reader()
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    with ThreadPoolExecutor() as other:
        with unusable(tmp_path / "spool"):
            latest = other.submit(stream.latestOffset, start, LIMIT)
            wait_for(lambda: "no new offset: [Errno 20] Not a directory" in caplog.text)
        end = latest.result(20)

    assert len(read(stream, start, end)) == 100


def test_file_system_that_fails_for_good_ends_a_drain_with_an_error(reader, tmp_path, monkeypatch):
    monkeypatch.setattr("gnsq.spark.source.reader.RETRY_INTERVAL", 0.01)
    stream = reader(idleTimeout="1")
    stream.prepareForTriggerAvailableNow()

    with (
        unusable(tmp_path / "spool"),
        pytest.raises(SpoolError, match=r"can't be listed for 1 s .*Not a directory.*: repair"),
    ):
        stream.latestOffset(stream.initialOffset(), LIMIT)


SIGNALLED = """
import os, signal, sys, time
from gnsq.spark.receiver import receiver
from gnsq.spark.datasource import NsqDataSource
from pyspark.sql.types import StructType

when, tcp, http, spool = sys.argv[1:]
options = {"topic": "clicks", "channel": "archive", "nsqdtcpaddresses": tcp, "nsqdhttpaddresses": http, "spool": spool}
reader = NsqDataSource(options).streamReader(schema=StructType().add("body", "binary"))

def signal_at(owner, name):
    method = getattr(owner, name)
    def signalling(self, *arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        return method(self, *arguments)
    setattr(owner, name, signalling)

sync = os.fsync
os.fsync = lambda file: (os.readlink(f"/proc/self/fd/{file}").endswith(".arrow") and time.sleep(0.3), sync(file))
if when == "starting":
    begin = receiver.Receiver.start
    def starting(self):
        begin(self)
        while not len(self._buffer) and not self._writing:
            time.sleep(0.01) or receiver.gevent.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        receiver.gevent.sleep(20)
    receiver.Receiver.start = starting
else:
    signal_at(receiver.Receiver, "close")
reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
reader.stop()
sys.exit("still here")
"""


# In the other case the program ends as it would without the signals.
@pytest.mark.parametrize(("when", "status"), [("starting", -signal.SIGTERM), ("stopping", 1)])
@pytest.mark.subprocess
def test_sigterm_requeues_messages_that_are_not_in_the_spool(fakensqd, tmp_path, when, status):
    publish(fakensqd, "clicks", numbered(100))
    arguments = [when, fakensqd.tcp_address, fakensqd.http_address, str(tmp_path / "spool")]

    with running([sys.executable, "-c", SIGNALLED, *arguments]) as process:
        assert process.wait() == status

    # Nothing has to wait for a timeout.
    stats = channel_stats(fakensqd, "clicks", "archive")
    rows = sum(segment.rows for segment in Spool(str(tmp_path / "spool")).listing().segments)
    assert (stats["in_flight_count"], stats["depth"] + rows) == (0, 100)


@pytest.mark.parametrize(("receivers", "first"), [("driver", GC_THRESHOLD), ("external", 700)])
def test_cycles_are_searched_for_rarely_where_the_process_receives(reader, receivers, first):
    gc.set_threshold(700, 10, 10)

    reader(receivers=receivers).prepareForTriggerAvailableNow()

    assert gc.get_threshold()[0] == first


def test_stream_reader_pickles_without_its_planner(fakensqd, reader, spool):
    stream = reader(receivers="external")
    stream.latestOffset(stream.initialOffset(), LIMIT)
    spool.writer("r1").write(1, columns(1))

    copy = pickle.loads(pickle.dumps(stream))

    partition = SegmentsPartition(spool.location, list(spool.listing().segments))
    assert [batch.num_rows for batch in copy.read(partition)] == [1]


def test_what_the_format_can_not_do_is_told(options):
    source = NsqDataSource(options)

    with pytest.raises(ValueError, match=r"maxRows is for spark\.read only"):
        NsqDataSource({**options, "maxRows": "5"}).streamReader(schema()).initialOffset()
    with pytest.raises(ValueError, match="use from_json"):
        source.streamReader(StructType().add("body", "string")).initialOffset()
    with pytest.raises(ValueError, match="append"):
        source.writer(StructType().add("body", "binary"), overwrite=True)


def test_checkpoint_of_another_source_is_refused(reader):
    offset = reader(topic="views").initialOffset()

    with pytest.raises(ValueError, match=r"this query reads 'clicks/archive': give it a checkpoint and a spool of its"):
        reader(receivers="external").latestOffset(offset, LIMIT)


def test_segments_of_a_batch_are_deleted_after_the_next_batch(reader, spool):
    stream = reader(receivers="external")
    spool.writer("r1").write(1, columns(1))
    first = stream.latestOffset(stream.initialOffset(), LIMIT)
    spool.writer("r1").write(2, columns(2))
    second = stream.latestOffset(first, LIMIT)
    stream.commit(first)

    # A power failure may take the note that the first batch is done, until the second batch has begun.
    assert len(read(stream, stream.initialOffset(), first)) == 1
    stream.latestOffset(second, LIMIT)
    assert [segment.number for segment in spool.listing().segments] == [2]


def test_run_of_once_deletes_the_segments_of_the_run_before(reader, spool):
    writer = spool.writer("r1")
    writer.write(1, columns(1))
    first = reader(receivers="external")
    start = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    first.stop()
    writer.write(2, columns(2))
    second = reader(receivers="external")
    end = second.latestOffset(start, ReadAllAvailable())
    second.commit(start)

    assert len(read(second, start, end)) == 1
    assert [segment.number for segment in spool.listing().segments] == [2]


def test_spool_taken_by_another_run_ends_the_first_one(reader, tmp_path, monkeypatch):
    monkeypatch.setattr("gnsq.spark.source.planner.OWNER_CHECK_INTERVAL", 0.0)
    first = reader(receivers="external")
    start = first.initialOffset()
    first.latestOffset(start, LIMIT)

    # As where the file system has no locks.
    (tmp_path / "spool" / "owner.json").write_text('{"run": "another", "pid": 1, "host": "elsewhere"}')

    with pytest.raises(SpoolInUse, match="taken over by another run"):
        first.latestOffset(start, LIMIT)


# --- number of tasks


def test_number_of_tasks_is_that_of_the_cluster(options, spool):
    writer, rows = spool.writer("r1"), columns(*range(20_000))
    for number in range(1, 10):
        writer.write(number, rows)
    given = {**options, "receivers": "external"}
    # As Spark's processes get it.
    source = pickle.loads(cloudpickle.dumps(data_source_for(7)))

    counts = []
    for more in ({}, {"numPartitions": "3"}):
        stream = source({**given, **more}).streamReader(schema("topic", "body"))
        partitions = stream.partitions(stream.initialOffset(), encode_offset({"r1": 9}, "clicks/archive"))
        counts.append(len(partitions))
        assert next(stream.read(partitions[0])).schema.names == ["topic", "body"]
        stream.stop()

    assert counts == [7, 3]
    assert data_source_for(None) is NsqDataSource


# --- batch


def test_batch_reader_reads_up_to_max_rows(fakensqd, options):
    publish(fakensqd, "clicks", numbered(100))
    reader = NsqDataSource({**options, "maxRows": "60"}).reader(schema("body"))

    rows = [row["body"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]

    assert len(set(rows)) == 60
    wait_for(lambda: channel_stats(fakensqd, "clicks", "archive")["depth"] == 40)


def test_batch_without_a_spool_uses_sparks_local_directory(fakensqd, options, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    publish(fakensqd, "clicks", [b"one"])

    [partition] = NsqDataSource({**options, "spool": "", "spoolMode": "2770"}).reader(schema()).partitions()

    assert partition.location.startswith(str(tmp_path / "gnsq-spool-"))
    assert stat.S_IMODE(Path(partition.location).stat().st_mode) == 0o2770
