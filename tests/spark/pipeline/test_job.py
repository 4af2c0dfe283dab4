"""Both queries in a real Spark, as one job."""

import logging
import re
import threading
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from gnsq.spark.errors import JobFailed
from gnsq.spark.offsets import encode_offset
from gnsq.spark.pipeline.job import Job
from gnsq.spark.pipeline.layout import archive_tables, metrics_table, topics_with_tables, with_layout
from gnsq.spark.pipeline.lock import LeaseLost
from gnsq.spark.pipeline.preflight import check_places, create_channels, survey
from gnsq.spark.pipeline.progress import Notebook, read_note
from gnsq.spark.pipeline.status import spool_state
from gnsq.spark.pipeline.topics import TopicSettings
from gnsq.spark.pipeline.windows import Metric
from gnsq.spark.source.planner import drain_channel
from gnsq.spark.source.pyspark41 import HAS_READ_LIMITS
from gnsq.spark.spool.spool import Spool
from tests.spark.helpers import channel_stats, columns, publish, wait_for
from tests.spark.pipeline.helpers import OPERATOR, config_for, progress, published, sum_of_counts, table_rows

GOOD = [b'{"time": "2026-01-01T10:%02d:01Z", "user": "u%d", "page": "/"}' % (number, number) for number in range(30)]
BAD = [b"not json", b'{"time": "2026-01-01T10:00:01Z", "user": "u1"}']


@pytest.fixture
def run(spark, fakensqd, config):
    """Runs a job to its end; gives the batches that it reported, and its summary."""

    def run(job_config=config, *, take_over=False, **changes):
        reports = []

        def report(batch):
            if batch.rows:
                reports.append(batch)

        job = Job(spark, replace(job_config, **changes), report, take_over=take_over)
        create_channels(job_config, once=True, wait=lambda seconds: False)
        try:
            job.start(once=True)
            assert job.wait(lambda: False)
            job.check_drained()
        finally:
            for query in spark.streams.active:
                query.stop()
            summary = job.close()
        return reports, summary

    return run


@pytest.mark.spark
def test_job_reads_what_is_there_once_and_reports(run, fakensqd, config, tmp_path):
    publish(fakensqd, "clicks", GOOD + BAD)
    # As nsqd delivers again what a receiver had in its spool when it died before FIN. They are of 2023.
    config = replace(config, deduplicate=3600.0, max_ahead=1e9)
    for query in ("archive", "metrics"):
        spool = Spool(config.spool_of(query))
        spool.prepare()
        for receiver in ("killed", "another"):
            _, *others = columns(*range(5))
            spool.writer(receiver).write(1, [pa.array(GOOD[:5], pa.binary()), *others])

    reports, summary = run(config)

    archived = table_rows(tmp_path / "output" / "archive")
    counts = published(fakensqd, "clicks-metrics", tmp_path)
    assert len(archived) == len({(row["nsqd"], row["message_id"]) for row in archived}) == 35
    assert summary.duplicates == {"archive": 5, "metrics": 5}
    assert sum_of_counts(counts) == len(archived) == metrics_table(config, "metrics").status().entered
    assert summary.late == 0
    assert len(published(fakensqd, "clicks-dead", tmp_path)) == summary.dead_letters == 2
    assert summary.rows == {"archive": 42, "metrics": 42}
    assert summary.set_aside["archive"] == (0, 0)
    assert all(None not in (batch.spooled, batch.waiting) for batch in reports) or not HAS_READ_LIMITS
    assert all(batch.lag > 0 for batch in reports)
    assert [batch.dropped for batch in reports] == [0] * len(reports)
    written = [sum(map(sum, (batch.tables.get(name, ()) for batch in reports))) for name in ("archive", "dead")]
    assert written == [35, 2]
    assert re.match(r"35 rows in \d+ files?, 0\.\d MiB, committed 20.* ago\)$", summary.tables["archive"])
    assert channel_stats(fakensqd, "clicks", "archive")["depth"] == 0
    note = read_note(config, "archive")
    assert note.committed == note.begun == max(batch.batch_id for batch in reports if batch.query == "archive")
    assert (note.state_rows, summary.state["archive"]) == (37, (37, note.state_bytes))
    assert spool_state(config, "archive", note.offset).rows == 0


@pytest.mark.spark
def test_advice_about_a_damaged_checkpoint_loses_nothing(run, fakensqd, config, tmp_path):
    config = replace(config, metrics=())
    publish(fakensqd, "clicks", GOOD[:10])
    run(config)
    publish(fakensqd, "clicks", GOOD[10:])
    # The job was killed after FIN: nsqd has these messages no more.
    drain_channel(config.read_options("archive"))
    assert channel_stats(fakensqd, "clicks", "archive")["depth"] == 0
    checkpoint = Path(config.checkpoint_of("archive"))
    (checkpoint / "metadata").unlink()
    with pytest.raises(JobFailed, match="move this directory away, leave the spool as it is, and start with --take-"):
        check_places(config)

    checkpoint.rename(tmp_path / "damaged")
    check_places(config, take_over=True)
    run(config, take_over=True)

    users = [row["user"] for row in table_rows(tmp_path / "output" / "archive")]
    assert set(users) == {f"u{number}" for number in range(30)}


@pytest.mark.spark
def test_topics_are_archived_by_their_entries_and_none_harms_another(run, fakecluster, tmp_path, caplog):
    first, second = fakecluster.nsqds
    publish(first, "clicks", GOOD[:5] + BAD)
    publish(first, "frames", [b"\xff\x00"])
    order = b'{"at": "2026-01-01T10:00:00Z", "page": %d}'
    publish(second, "events.orders", [order % number for number in range(3)])
    publish(second, "events.eu", [b'{"page": 1.5}'])
    config = config_for(
        tmp_path,
        topic="",
        topics={
            "clicks": TopicSettings(),
            "frames": TopicSettings(raw=True, partition_by="none"),
            r"events\..*": TopicSettings(fields={"page": "int"}, time_field="at", partition_by="page"),
        },
        metrics=(Metric("pages", topic="clicks"), Metric("users", topic="clicks", keys=("user",))),
        lookupd_http_addresses=tuple(fakecluster.lookupd_http_addresses),
        deduplicate=3600.0,
        max_ahead=1e9,
    )
    wait_for(lambda: {"clicks", "frames", "events.orders", "events.eu"} <= survey(config).topics)
    check_places(config)
    # Receivers have died before FIN: clicks has a message twice. Others have the same id in other topics, one of which
    # is not in the settings any more.
    spool = Spool(config.spool_of("archive"))
    spool.prepare()
    found = [(GOOD[5], "clicks"), (GOOD[5], "clicks"), (b"{}", "gone"), (b"1", "frames")]
    for number, (body, topic) in enumerate(found):
        _, *others = columns(1, topic=topic)
        spool.writer(f"killed{number}").write(1, [pa.array([body], pa.binary()), *others])

    reports, summary = run(config)

    def rows(table):
        return table_rows(tmp_path / "output" / table)

    assert sorted(row["body"].encode() for row in rows("clicks/archive")) == sorted(GOOD[:6])
    assert sorted(row["body"] for row in rows("frames/archive")) == [b"1", b"\xff\x00"]
    assert sorted(row["page"] for row in rows("events.orders/archive")) == [0, 1, 2]
    [left] = archive_tables(config, "gone")
    reasons = [sorted(row["reason"] for row in rows(name)) for name in ("clicks/dead", "events.eu/dead", left.name)]
    assert reasons == [
        ["body is not a JSON object", "page is missing"],
        ["page is not of type int"],
        ["the topic fits no entry of the settings"],
    ]
    assert "gone fits no entry of the settings: 1 message that came before the entry was removed" in caplog.text
    for name, query in (("pages", "metrics.clicks.pages"), ("users", "metrics.clicks.users")):
        assert (
            sum(row["count"] for row in rows(f"clicks/metrics/{name}")) == metrics_table(config, query).status().entered
        )
    assert metrics_table(config, "metrics.clicks.users").status().entered == 5
    assert (summary.duplicates["archive"], summary.dead_letters) == (1, 3)
    assert [fakecluster.depth(f"{topic}-dead") for topic in ("clicks", "events.eu")] == [2, 1]
    assert {batch.query for batch in reports} == set(config.queries)
    assert set(topics_with_tables(with_layout(config))) == {"clicks", "events.eu", "events.orders", "frames", "gone"}


@pytest.mark.spark
def test_drained_job_goes_on_with_a_new_checkpoint_and_more_partitions(run, fakensqd, config, tmp_path):
    publish(fakensqd, "clicks", GOOD)
    check_places(config)
    run()
    more = replace(config, state_partitions=3)
    with pytest.raises(JobFailed, match=r"state_partitions 2, and the setting is 3 now: .* and start with --take"):
        check_places(more)
    for query in ("archive", "metrics"):
        for place in ("checkpoint", "spool"):
            (tmp_path / "work" / query / place).rename(tmp_path / f"{query}-{place}")
    with pytest.raises(JobFailed, match=r"belongs to the checkpoint .*; this job's checkpoint is new"):
        check_places(more)
    publish(fakensqd, "clicks", GOOD[:10])
    check_places(more, take_over=True)
    run(more, take_over=True)

    assert len(table_rows(tmp_path / "output" / "archive")) == 40
    rows = table_rows(tmp_path / "output" / "metrics" / "counts")
    assert sorted((row["epoch"], row["count"]) for row in rows) == [(1, 1)] * 30 + [(2, 1)] * 10
    assert len(list((tmp_path / "work/metrics/checkpoint/state/0").glob("[0-9]*"))) == 3
    check_places(more)


@pytest.mark.spark
def test_job_whose_table_is_another_ones_fails_before_it_writes(spark, fakensqd, config, tmp_path):
    publish(fakensqd, "clicks", GOOD)
    for table in archive_tables(config, "clicks"):
        table.claim("theirs", take_over=False)
    job = Job(spark, config, lambda batch: None)
    job.start(once=False)

    with pytest.raises(JobFailed, match=r"^query archive: .*archive belongs to the checkpoint theirs; .*--take-over"):
        job.wait(lambda: False)
    for query in spark.streams.active:
        query.stop()
    job.close()
    assert table_rows(tmp_path / "output" / "archive") == []
    assert not list((tmp_path / "output" / "archive").rglob("part-*.parquet"))


@pytest.mark.spark
def test_failing_query_fails_the_job_in_one_line(spark, config, tmp_path):
    (tmp_path / "work" / "metrics").mkdir(parents=True)
    (tmp_path / "work" / "metrics" / "spool").write_text("no directory")
    job = Job(spark, config, lambda batch: None)
    job.start(once=False)

    with pytest.raises(
        JobFailed, match=r"^query metrics: gnsq.*SpoolError: spool .*give a directory that can be written$"
    ):
        job.wait(lambda: False)
    for query in spark.streams.active:
        query.stop()
    job.close()


@pytest.mark.spark
def test_query_that_does_not_start_fails_the_job(spark, config, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "archive").write_text("no directory")
    job = Job(spark, replace(config, checkpoint=str(tmp_path / "checkpoints")), lambda batch: None)

    with pytest.raises(JobFailed, match=r"query archive did not start: .*archive"):
        job.start(once=False)
    job.close()


@pytest.mark.spark
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="PySpark 4.1 does not ask the source what is wrong")
def test_query_that_gets_nothing_is_told_of(spark, tmp_path, caplog):
    config = config_for(tmp_path, nsqd_http_addresses=("127.0.0.1:1",))
    idle = {}
    job = Job(spark, config, lambda batch: idle.update({batch.query: batch}))
    setting = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(setting, "100")
    try:
        job.start(once=False)
        words = [f"query {query}: 127.0.0.1:1 not connected" for query in ("archive", "metrics")]
        assert not job.wait(lambda: all(word in caplog.text for word in words))
        assert {query: (batch.rows, words[0][15:] in batch.trouble) for query, batch in idle.items()} == {
            "archive": (0, True),
            "metrics": (0, True),
        }
    finally:
        spark.conf.unset(setting)
        for query in spark.streams.active:
            query.stop()
        job.close()


# --- without Spark


class FailingWriter:
    """Of Spark: begins a batch, and fails to start."""

    def foreachBatch(self, write):
        self._write = write
        return self

    def start(self):
        self.batch = threading.Thread(target=self._run, daemon=True)
        self.batch.start()
        raise PySparkException("no")

    def _run(self):
        with pytest.raises(CancelledError):
            self._write(None, 0)


def test_batch_that_has_begun_ends_if_the_query_does_not_start(config):
    job, writer = Job(None, config, pytest.fail), FailingWriter()
    job._notebooks["archive"] = Notebook(config, "archive")

    with pytest.raises(JobFailed, match="query archive did not start: no"):
        job._start_writer("archive", writer, pytest.fail)

    writer.batch.join(20)
    assert not writer.batch.is_alive()


def test_what_was_read_before_the_start_is_not_waited_for(fakensqd, config):
    publish(fakensqd, "clicks", GOOD)
    spool = Spool(config.spool_of("archive"))
    spool.prepare()
    for number in (1, 2):
        spool.writer("r").write(number, columns(1, 2, 3))
    job = Job(None, config, lambda batch: None)
    job._notebooks["archive"] = Notebook(config, "archive")
    job._look_for_messages("archive")

    told = progress()
    told["sources"][0]["startOffset"] = encode_offset({"r": 1}, "clicks/archive")
    job._handle_progress("archive", told)
    job._handle_progress("archive", told)

    assert job.summary.progress() == "archive 20 of 33"


def test_job_whose_lease_is_lost_fails(config):
    def check():
        raise LeaseLost("owner.json: this process has lost the lease")

    with pytest.raises(LeaseLost):
        Job(None, config, print, check_lock=check).wait(lambda: False)


def test_damaged_layout_does_not_hide_the_end_of_the_job(config, caplog):
    job = Job(None, config, print)
    Path(config.work).mkdir(exist_ok=True)
    Path(config.work, "layout.json").write_text("{")

    assert not job.close().tables
    assert "layout.json can't be used" in caplog.text


def test_drained_means_all_that_was_there(fakensqd, config):
    publish(fakensqd, "clicks", GOOD)
    job = Job(None, config, lambda batch: None)
    job.summary.due = {"archive": 30}

    with pytest.raises(JobFailed, match="archive has ended with 30 messages left at nsqd: it has read 0 of 30"):
        job.check_drained()
    job._troubles["archive"] = "a:4150 not connected: refused"
    with pytest.raises(JobFailed, match="nothing came for idleTimeout: a:4150 not connected: refused"):
        job.check_drained()
    assert job.summary.progress() == "archive 0 of 30"
    job.summary.rows["archive"] = 30
    job.check_drained()


def test_whether_it_is_drained_may_not_be_known(tmp_path):
    config = config_for(tmp_path, nsqd_http_addresses=("127.0.0.1:1",))
    job = Job(None, config, lambda batch: None)
    job.summary.due = {"archive": 0}

    with pytest.raises(JobFailed, match="query archive: whether all is read is not known"):
        job.check_drained()
    with pytest.raises(JobFailed, match="query archive: what is there to read is not known"):
        job._look_for_messages("archive")


def test_rows_that_spark_drops_are_an_error(config, caplog):
    reports = []
    job = Job(None, config, reports.append)
    job._notebooks["archive"] = Notebook(config, "archive")
    with caplog.at_level(logging.ERROR):
        job._handle_progress("archive", progress(stateOperators=[{**OPERATOR, "numRowsDroppedByWatermark": 2}]))

    assert [(batch.dropped, batch.duplicates) for batch in reports] == [(2, 1)]
    assert "batch 3: Spark has dropped 2 rows as late" in caplog.text
