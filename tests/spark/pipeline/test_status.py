import dataclasses
import datetime as dt
import logging
import os

import pyarrow as pa
import pytest

from gnsq.spark.offsets import encode_offset
from gnsq.spark.pipeline.delta import Table
from gnsq.spark.pipeline.lock import locked
from gnsq.spark.pipeline.metrics import Count
from gnsq.spark.pipeline.parquet import DataFile
from gnsq.spark.pipeline.status import (
    Counts,
    CountStatus,
    MetricStatus,
    QueryStatus,
    Status,
    Summary,
    batch_line,
    count_line,
    read_status,
    status_lines,
    summary_lines,
)
from gnsq.spark.spool.spool import Spool
from tests.spark.helpers import columns, publish
from tests.spark.pipeline.jobs import OPERATOR, addresses, job, metric, progress, table

NOW = dt.datetime(2026, 1, 1, 1, tzinfo=dt.UTC).timestamp()
ENDED = dt.datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=dt.UTC).timestamp()
IDLE = {"numInputRows": 0, "observedMetrics": {}}


def now():
    return NOW


@pytest.fixture
def query(settings):
    return settings.queries[0]


@pytest.fixture
def status(query):
    return Status(query, now=now)


def file_of(name, rows):
    return DataFile(name, "f.parquet", 100, rows, None, "{}")


# --- the record


def test_batch_changes_the_record_and_those_of_a_run_are_added_up(status):
    status.running()
    status.begin(3)
    files = [file_of("clicks", 5), file_of("clicks", 3), file_of("clicks_dead", 1)]

    status.finish(progress(stateOperators=[OPERATOR, OPERATOR]), files)

    record = status.record
    assert (record.begun, record.begun_at, record.committed, record.committed_at) == (3, NOW, 3, ENDED)
    assert record.last == record.total == Counts(10, 8, 1, 2, duplicates=2)
    assert record.tables == {"clicks": (8, 2), "clicks_dead": (1, 1)}
    assert (record.waiting, record.spooled, record.backlog, record.lag) == (9, 4, 13, 11.5)
    assert (record.rate, record.seconds, record.progress_at, record.offset) == (10 / 1.5, 1.5, NOW, {"v": 1})
    assert (record.state_rows, record.state_bytes) == (2400, 6 * 2**20)

    status.finish(progress(batchId=4))
    status.finish(progress(batchId=5, **IDLE))
    record = status.record
    assert (record.total, record.batches) == (Counts(20, 16, 2, 4, duplicates=2), 2)
    assert (record.last, record.committed, record.begun) == (Counts(10, 8, 1, 2), 5, 5)


def test_progress_that_says_little(status):
    told = progress({}, durationMs={}, stateOperators=[{**OPERATOR, "customMetrics": {}}])
    told["sources"][0]["latestOffset"] = None
    del told["observedMetrics"]

    status.finish(told)

    record = status.record
    assert (record.waiting, record.spooled, record.backlog, record.lag, record.rate) == (None, None, None, None, 0)
    assert record.last == Counts(10)


@pytest.mark.parametrize(
    ("waiting", "spooled", "lag"), [(0, 0, 0), (5, 0, 11.5), (0, 5, 11.5)], ids=["nothing", "at nsqd", "in the spool"]
)
def test_idle_query_has_no_rate_and_a_lag_only_if_something_is_left(status, waiting, spooled, lag):
    status.finish(progress())

    status.idle(progress({"waiting": waiting, "in_flight": 0, "spool_rows": spooled}, batchId=4, **IDLE))

    record = status.record
    assert (record.rate, record.lag, record.backlog, record.committed) == (0, lag, waiting + spooled, 3)
    assert (record.last.rows, record.seconds) == (10, 1.5)
    # It is of the next batch.
    status.idle(progress(batchId=5))
    assert status.record is record


def test_query_that_fails_is_started_again_and_recovers(status):
    status.running()
    status.failed("table clicks: no space left", 10.0)
    waiting = status.record

    status.running()
    running = status.record
    status.finish(progress())

    assert waiting.problem(NOW + 4) == "table clicks: no space left; starts again in 6 s"
    assert (waiting.is_running, waiting.has_trouble, waiting.restarts) == (False, True, 0)
    assert (running.is_running, running.problem(NOW), running.restarts) == (True, "table clicks: no space left", 1)
    assert (status.record.has_trouble, status.record.restarts) == (False, 1)
    # One that is not started again keeps its failure.
    status.failed("no space left", 10.0)
    status.stopped()
    assert (status.record.is_running, status.record.problem(NOW)) == (False, "no space left")


# --- the file


def test_file_has_the_whole_record_and_the_next_run_knows_the_batches_of_the_run_before(status, query):
    status.finish(progress(stateOperators=[OPERATOR]))
    status.begin(4)
    status.failed("no space left", 10.0)
    status.running()
    assert read_status(query) == status.record

    status = Status(query, now=now)
    record = status.record
    assert (record.committed, record.begun, record.offset, record.state_rows) == (3, 4, {"v": 1}, 1200)
    assert (record.total, record.restarts, record.failure, record.lag) == (Counts(), 0, "", None)
    # The run before was killed after Spark's commit of batch 4.
    status.begin(5)
    assert (status.record.committed, status.record.begun, status.record.offset) == (3, 5, {"v": 1})


@pytest.mark.parametrize("is_given", [True, False], ids=["with rows", "without rows"])
def test_record_of_another_checkpoint_ends_with_the_first_batch(status, query, is_given):
    status.finish(progress(batchId=7))
    status.begin(8)

    after = Status(query)
    if is_given:
        after.begin(0)
        assert (after.record.committed, after.record.begun, after.record.offset) == (-1, 0, None)
    after.finish(progress(batchId=0))

    assert (after.record.committed, after.record.begun) == (0, 0)
    assert read_status(query) == after.record


DAMAGED = ["", '{"total": {}, "last": {"more": 1}}', "[" * 100_000]


@pytest.mark.parametrize("text", DAMAGED, ids=["empty", "other counts", "deep"])
def test_damaged_file_is_told_and_replaced(query, caplog, text):
    os.makedirs(query.notes)
    path = f"{query.notes}/status.json"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)

    status = Status(query, now=now)
    status.begin(0)

    assert f"{path} is not a status of the job" in caplog.text
    assert read_status(query) == status.record


def test_query_goes_on_if_its_record_can_not_be_written(status, query, caplog):
    os.rmdir(query.notes)

    status.begin(3)

    assert status.record.begun == 3
    assert "status of clicks not written" in caplog.text


def test_record_of_a_metric_has_its_last_count_with_events(tmp_path):
    status = CountStatus("pages", str(tmp_path))
    status.counted(Count(12, rows=50), NOW)
    seconds = status.record.seconds
    status.failed("no space left")
    assert status.record.has_trouble
    status.counted(None, NOW + 60)

    assert status.record == MetricStatus(name="pages", version=12, counted_at=NOW + 60, rows=50, seconds=seconds)


# --- trouble


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param({"waiting": 1200, "in_flight": 0}, "1,200 messages wait at nsqd, and none comes", id="waiting"),
        pytest.param({"spool_rows": 0}, "what waits at nsqd is not known", id="nobody answers"),
        pytest.param({"spool_rows": 0, "trouble": "a:4150 not connected"}, "a:4150 not connected", id="trouble"),
    ],
)
def test_silence_is_told_once_when_it_lasts(status, query, caplog, source, words):
    silent, busy = progress(source, **IDLE), progress()
    troubles = []
    for told in (silent, silent, silent):
        status.idle(told)
        troubles.append((words in status.record.trouble, len(caplog.records)))

    status.finish(busy)
    status.idle(silent)
    over = status.record.trouble
    status.idle(silent)

    assert troubles == [(False, 0), (True, 1), (True, 1)]
    assert (over, len(caplog.records)) == ("", 2)
    assert read_status(query).trouble == status.record.trouble


def test_idle_query_is_no_trouble_if_nothing_is_there_nothing_was_said_yet_or_nobody_can_be_asked(tmp_path):
    asked = ("127.0.0.1:1",)
    for servers, source in (asked, {"waiting": 0, "in_flight": 0}), (asked, {}), ((), {"spool_rows": 0}):
        [query] = job(tmp_path, nsqd_http_addresses=servers).queries
        status = Status(query)
        for _ in range(3):
            status.idle(progress(source, **IDLE))

        assert status.record.trouble == ""


def test_rows_of_a_table_that_spark_has_dropped_are_an_error(status, caplog):
    status.finish(progress(stateOperators=[{**OPERATOR, "numRowsDroppedByWatermark": 2}]))

    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "query clicks, batch 3: Spark has dropped 2 rows as late" in record.message


# --- texts

RECORD = QueryStatus(
    name="clicks",
    committed=7,
    last=Counts(50_000),
    seconds=2.5,
    lag=3.26,
    waiting=1200,
    spooled=300,
    tables={"clicks": (49_996, 2), "clicks_dead": (4, 1)},
)


def test_batch_is_one_line_without_what_is_not_known():
    assert batch_line(RECORD) == (
        "clicks   batch      7:    50,000 rows in    2.5 s, clicks 49,996 rows in 2 files, "
        "clicks_dead 4 rows in 1 file, backlog 1,200 at nsqd + 300 in the spool, lag 3.3 s"
    )
    record = QueryStatus(name="pages", committed=0, last=Counts(5), seconds=0.4, trouble="a:1 refused")
    assert batch_line(record) == "pages    batch      0:         5 rows in    0.4 s, a:1 refused"


def fill(query):
    """Two receivers, one of which has ended: three segments of 2 rows each, and one that is set aside."""
    spool = Spool(query.spool)
    spool.prepare()
    first, second = spool.writer("first"), spool.writer("second")
    for number in (1, 2):
        first.write(number, columns(number, number + 10))
    first.close(2)
    for number in (1, 2):
        second.write(number, columns(number + 4, number + 5))
    torn = next(each for each in spool.listing().segments if (each.receiver, each.number) == ("second", 2))
    with open(f"{query.spool}/{torn.path}", "r+b") as file:
        file.truncate(100)
    assert spool.read(torn) == []
    for segment in spool.listing().segments:
        os.utime(f"{query.spool}/{segment.path}", (NOW - segment.number * 60,) * 2)


def test_summary_has_a_block_for_each_query_and_each_metric(tmp_path):
    pages = MetricStatus(name="pages", version=7, counted_at=NOW - 60, rows=50, seconds=0.84, failure="full")
    record = dataclasses.replace(RECORD, begun=7, total=Counts(10, duplicates=1, rescued=2), batches=1)
    summary = Summary(
        queries={"clicks": record}, metrics={"pages": pages}, due={"clicks": 1000}, merged=40, seconds=61.4
    )

    lines = list(summary_lines(summary, job(tmp_path, table(), metric()), NOW))

    assert lines[0].startswith("clicks   batch 7 committed ")
    assert lines[1].startswith("         10 rows in 1 batch, 2 with rescued values, 1 duplicate left out, since ")
    assert lines[3:] == ["pages    not counted yet", "         full", "job      40 files merged, 61 s"]
    assert count_line(pages) == "pages    count      7:        50 rows in    0.8 s"
    assert summary.progress() == "clicks 10 of 1,000"


# --- --status


def test_where_a_query_stands(fakensqd, tmp_path):
    settings = job(tmp_path, table(), metric(), **addresses(fakensqd))
    clicks = settings.queries[0]
    fill(clicks)
    publish(fakensqd, "clicks", [b"1", b"2", b"3"])
    status = Status(clicks, now=now)
    status.running()
    told = progress(batchId=4, timestamp="2026-01-01T00:58:53.500Z", stateOperators=[OPERATOR])
    told["sources"][0]["endOffset"] = encode_offset({"first": 1}, "clicks/clicks")
    status.finish(told)
    status.begin(5)
    status.failed("no space left", 5.0)
    status.running()
    pages = CountStatus("pages", settings.notes_of("pages"))
    pages.failed("no such column")

    with locked(settings.work, lambda seconds: True):
        lines = list(status_lines(settings, NOW))

    assert lines[0] == f"job      running, process {os.getpid()}"
    assert lines[1] == (
        "clicks   running, batch 4 committed 2026-01-01 00:58:55 UTC (0:01:05 ago), lag 3,545.0 s, "
        "batch 5 begun 2026-01-01 01:00:00 UTC (0:00:00 ago)"
    )
    assert lines[2] == "         no space left"
    assert lines[3].startswith("         10 rows in 1 batch, 8 entered, 1 malformed, ")
    assert ", started again 1 time, since 2026-01-01 01:00:00 UTC" in lines[3]
    assert lines[4] == "         state 1,200 rows, 3.0 MiB"
    assert lines[5].startswith("         spool 4 rows, ")
    assert " bytes waiting, the oldest for 0:02:00, 1 segment with 2 rows set aside as unreadable" in lines[5]
    assert lines[6:] == [
        "         nsqd 3 messages waiting or in flight",
        "pages    not counted yet",
        "         no such column",
    ]
    pages.counted(None, NOW)
    assert [*status_lines(settings, NOW)][-1] == "pages    not counted yet"


def test_query_of_a_job_that_was_killed_does_not_run(settings, query, status, tmp_path):
    Table(query.name, query.location, pa.schema([("user", pa.string())])).claim("a", take_over=False)
    status.begin(0)
    status.running()
    status.failed("no space left", 5.0)
    before = sorted(tmp_path.rglob("*"))

    lines = list(status_lines(settings, NOW))

    assert lines[0] == "job      not running"
    assert lines[1].startswith("clicks   no batch committed, batch 0 begun")
    assert lines[2] == "         no space left"
    assert "         table clicks 0 rows in 0 files, 0.0 MiB" in lines
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_has_run_and_nobody_answers(tmp_path):
    settings = job(tmp_path, nsqd_http_addresses=("127.0.0.1:1",))

    lines = list(status_lines(settings, NOW))

    assert lines[:3] == ["job      not running", "clicks   no batch yet", "         spool 0 rows, 0 bytes waiting"]
    assert lines[3].startswith("         nsqd unknown: ")
    assert not (tmp_path / "work").exists()


def test_bad_places_and_files_are_told(tmp_path):
    (tmp_path / "work").write_text("a file")
    https = {"nsqd_http_addresses": ("https://127.0.0.1:1",), "nsq": {"tlsCa": str(tmp_path / "none")}}

    lines = list(status_lines(job(tmp_path, **https), NOW))

    assert lines[0].startswith("job      unknown: ")
    assert lines[1].startswith("clicks   ")
    assert "Not a directory" in lines[1]
    assert [line for line in lines if line.startswith("         nsqd unknown: ")]
