"""Queries in a real Spark, as one job."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gevent
import pyarrow as pa
import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline import job as job_module
from gnsq.spark.pipeline import query as query_module
from gnsq.spark.pipeline.checks import check_work, create_channels, survey
from gnsq.spark.pipeline.job import Job, run
from gnsq.spark.pipeline.status import read_status
from gnsq.spark.pipeline.tables import SettingError
from gnsq.spark.source.planner import drain_channel
from gnsq.spark.source.pyspark41 import HAS_READ_LIMITS
from gnsq.spark.spool.spool import Spool
from gnsq.spark.uris import join_uri
from tests.spark.helpers import channel_stats, columns, publish, wait_for
from tests.spark.pipeline.helpers import delta_table, table_rows
from tests.spark.pipeline.jobs import SCHEMA, addresses, job, metric, parsed, table

GOOD = [b'{"user": "u%d", "page": "/", "ms": %d}' % (number, number) for number in range(30)]
BAD = [b"not json", b'{"user": "u1", "page": "/", "ms": 0.5}']
COLUMNS = SCHEMA.replace(" NOT NULL", "")
PARSED = table(parse=parsed(COLUMNS))
# Raw bodies are planned in a third of the time. Both get all messages of the topic.
RAW = table(format="raw"), table("frames", topics=("clicks",), format="raw")
PARTITIONS, ZONE = "spark.sql.shuffle.partitions", "spark.sql.session.timeZone"


@pytest.fixture
def settings_of(fakensqd, tmp_path):
    """Makes the settings of a job on the emulator."""

    def make(*queries, **changes):
        return job(tmp_path, *queries, **{**addresses(fakensqd), **changes})

    return make


@pytest.mark.spark
def test_a_job_with_functions_in_a_spark_of_another_time_zone_is_warned_of(spark, tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        for sink in ("", "json:dumps"):
            with pytest.raises(SettingError, match="required with once"):
                run(spark, job(tmp_path, table(sink=sink), setup=sink), once=True)
    time.tzset()

    assert [record.args for record in caplog.records if "time zone" in record.message] == [("+0545",)]


@pytest.fixture
def watched(spark):
    """Starts a job that goes on, and stops it at the end of the test."""
    started = []

    def start(settings, report=lambda record: None, **options):
        check_work(settings)
        running = Job(spark, settings, report, once=False, **options)
        started.append(running)
        create_channels(settings, once=False, wait=lambda seconds: True)
        running.start()
        return running

    yield start
    for query in spark.streams.active:
        query.stop()
    for running in started:
        running.close(finished=False)


@pytest.mark.spark
def test_job_reads_and_counts_what_is_there_once(spark, fakensqd, settings_of, tmp_path):
    publish(fakensqd, "clicks", GOOD + BAD)
    # The function raises for 0 ms.
    clicks = table(parse=parsed(COLUMNS), where="halved(ms) >= 0")
    settings = settings_of(clicks, metric(), deduplicate=3600.0, setup="tests.spark.pipeline.jobs:setup")
    # As nsqd delivers again what a receiver had in its spool when it died before FIN. They are of 2023.
    for query in settings.queries:
        spool = Spool(query.spool)
        spool.prepare()
        for receiver in ("killed", "another"):
            _, *others = columns(*range(5))
            spool.writer(receiver).write(1, [pa.array(GOOD[:5], pa.binary()), *others])

    lines = []
    summary = run(spark, settings, once=True, report=lines.append)

    archived = table_rows(tmp_path / "output" / "clicks")
    assert len(archived) == len({(row["_nsqd"], row["_message_id"]) for row in archived}) == 33
    events, pages = summary.queries["clicks"], summary.metrics["pages"]
    assert (events.total.rows, events.total.duplicates, events.total.malformed, events.total.entered) == (42, 5, 4, 33)
    assert (pages.version, pages.failure) == (delta_table(tmp_path / "output" / "clicks").version(), "")
    assert sum(row["count"] for row in table_rows(tmp_path / "output" / "pages")) == 33
    dead = sorted((row["_body"], row["_reason"]) for row in table_rows(tmp_path / "output" / "clicks_dead"))
    no_event, raised = "parse gives null, or can't be computed", "where can't be computed: halved(ms) >= 0"
    assert dead == sorted([*((body, no_event) for body in BAD), *2 * [(GOOD[0], raised)]])
    batches = [line for line in lines if re.match(r"clicks +batch +\d+: ", line)]
    assert batches
    assert all("backlog " in line for line in batches) or not HAS_READ_LIMITS
    assert any(line.startswith("pages    count ") for line in lines)
    assert channel_stats(fakensqd, "clicks", "clicks")["depth"] == 0
    noted = read_status(settings.queries[0])
    assert noted.committed == noted.begun >= 0
    assert summary.progress() == "clicks 42 of 42"

    # The next start has other settings.
    with pytest.raises(JobFailed, match=r"with --once until it says .* Then move away .* and --take-over"):
        Job(spark, settings_of(PARSED, metric()), print, once=True)
    with pytest.raises(SettingError, match=r"^\[tables.clicks\] columns do not fit: .* has column ms of type integer"):
        Job(spark, settings_of(table(parse=parsed(COLUMNS.replace("INT", "STRING")))), print, once=True)


@pytest.mark.spark
def test_queries_of_several_topics_and_kinds_harm_no_other(spark, fakecluster, tmp_path):
    first, second = fakecluster.nsqds
    publish(first, "frames", [b"\xff\x00"])
    order = b'{"at": {"ms": %d}, "page": %d}'
    publish(second, "events.orders", [order % (1_767_261_600_000 + number, number) for number in range(3)])
    publish(second, "events.eu", [b'{"page": 1.5}'])
    settings = job(
        tmp_path,
        table("frames", format="raw", partition_by=[]),
        table(
            "events",
            topic_pattern=r"events\..*",
            schema="page INT, at BIGINT",
            columns={"at": "$.at.ms"},
            time="timestamp_millis(at)",
            partition_by=["_topic"],
        ),
        lookupd_http_addresses=tuple(fakecluster.lookupd_http_addresses),
    )
    wait_for(lambda: {"frames", "events.orders", "events.eu"} <= survey(settings).topic_names)

    summary = run(spark, settings, once=True)

    frames, events, dead = (table_rows(tmp_path / "output" / name) for name in ("frames", "events", "events_dead"))
    assert [row["_body"] for row in frames] == [b"\xff\x00"]
    orders = sorted((row["page"], row["_topic"], row["_time"].year) for row in events)
    assert orders == [(number, "events.orders", 2026) for number in range(3)]
    assert [row["_topic"] for row in dead] == ["events.eu"]
    assert set(summary.queries) == {"frames", "events"}


@pytest.mark.spark
def test_advice_about_a_damaged_checkpoint_loses_nothing_and_a_new_one_is_refused_without_take_over(
    spark, fakensqd, settings_of, tmp_path
):
    settings = settings_of(RAW[0])
    publish(fakensqd, "clicks", GOOD[:10])
    run(spark, settings, once=True)
    publish(fakensqd, "clicks", GOOD[10:])
    # The job was killed after FIN: nsqd has these messages no more.
    drain_channel(settings.queries[0].read_options)
    assert channel_stats(fakensqd, "clicks", "clicks")["depth"] == 0
    checkpoint = Path(settings.queries[0].checkpoint)
    (checkpoint / "metadata").unlink()
    with pytest.raises(JobFailed, match="move this directory away, leave the spool as it is, and start with --take-"):
        run(spark, settings, once=True)

    checkpoint.rename(tmp_path / "damaged")
    with pytest.raises(
        JobFailed, match=r"clicks belongs to the checkpoint .*; this job's checkpoint is new.*--take-over"
    ):
        run(spark, settings, once=True)
    assert len(table_rows(tmp_path / "output" / "clicks")) == 10
    run(spark, settings, once=True, take_over=True)

    assert {row["_body"] for row in table_rows(tmp_path / "output" / "clicks")} == set(GOOD)


@pytest.mark.spark
def test_query_that_fails_starts_again_alone_and_a_job_ends_before_its_next_batch_when_another_one_has_begun(
    watched, fakensqd, settings_of, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(query_module, "FIRST_PAUSE", 0.2)
    begun = []

    def check():
        if begun:
            raise JobFailed("work was taken by another job")

    publish(fakensqd, "clicks", GOOD)
    failing = tmp_path / "work" / "frames" / "spool"
    failing.parent.mkdir(parents=True)
    failing.write_text("no directory")
    running = watched(settings_of(*RAW), check_lock=check)
    clicks, frames = (each.status for each in running.queries)

    running.wait(lambda: clicks.record.total.rows == 30 and frames.record.failure)
    assert "give a directory that can be written" in frames.record.failure
    assert "query frames has failed, and starts again in 0.2 s" in caplog.text
    failing.unlink()
    running.wait(lambda: frames.record.total.rows == 30)

    assert (frames.record.failure, frames.record.is_running, frames.record.restarts > 0) == ("", True, True)
    assert not re.search(r"query clicks has failed.*that can be written", caplog.text)

    begun.append(True)
    publish(fakensqd, "clicks", GOOD)
    with pytest.raises(JobFailed, match=r"^work was taken by another job"):
        running.wait(lambda: False)
    assert len(table_rows(tmp_path / "output" / "clicks")) == 30


@pytest.mark.spark
def test_with_once_a_query_has_three_tries_and_the_others_go_on(spark, fakensqd, settings_of, monkeypatch, tmp_path):
    monkeypatch.setattr(query_module, "TRY_PAUSE", 0.0)
    publish(fakensqd, "clicks", GOOD[:2])
    (tmp_path / "sinks.py").write_text("calls = []\ndef sink(rows, batch_id):\n    calls.append(1)\n    1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)

    # A batch for each few rows, so that the other table ends after this one has failed.
    queries = table(format="raw", sink="sinks:sink"), RAW[1]
    settings = settings_of(*queries, max_rows_per_batch=1, nsq={"segmentTime": "0.001"})
    with pytest.raises(JobFailed, match=r"^query clicks: ZeroDivisionError[^;]*$"):
        run(spark, settings, once=True)

    import sinks

    assert len(sinks.calls) == query_module.TRIES
    assert len(table_rows(tmp_path / "output" / "frames")) == 2


@pytest.mark.spark
@pytest.mark.parametrize(
    ("queries", "words"),
    [
        pytest.param(
            [table(format="raw", partition_by=["nothing"])], r"\[tables\.clicks\] partition_by.*nothing", id="partition"
        ),
        pytest.param([table(format="raw", sink="nowhere_at_all:f")], "nowhere_at_all", id="sink"),
        pytest.param([RAW[0], metric(keys=("nothing",))], r"\[metrics\.pages\].*nothing", id="key"),
    ],
)
def test_wrong_setting_is_told_before_anything_is_read(spark, settings_of, queries, words):
    with pytest.raises(ValueError, match=words) as caught:
        Job(spark, settings_of(*queries), print, once=True)

    assert "\n" not in str(caught.value)


@pytest.mark.spark
def test_queries_share_no_map_of_java_that_spark_changes_without_a_lock(spark, settings_of):
    job = Job(spark, settings_of(*RAW), print, once=False)

    leaves = [running._rows._jdf.queryExecution().logical().collectLeaves().head() for running in job.queries]
    first, second = (leaf.source().get().source().dataSourceCls().envVars() for leaf in leaves)
    first.put("KEY", "value")

    assert "KEY" not in second


@pytest.mark.spark
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="PySpark 4.1 does not ask the source what is wrong")
def test_query_that_gets_nothing_is_told_of(spark, watched, settings_of, caplog):
    settings = settings_of(RAW[0], nsqd_tcp_addresses=("127.0.0.1:1",), nsqd_http_addresses=("127.0.0.1:1",))
    setting = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(setting, "100")
    try:
        running = watched(settings)
        assert not running.wait(lambda: "query clicks: 127.0.0.1:1 not connected" in caplog.text)
    finally:
        spark.conf.unset(setting)


# --- run()


@pytest.fixture
def caller(spark):
    """A session with settings that are not the job's."""
    caller = spark.newSession()
    caller.conf.set(PARTITIONS, "7")
    caller.conf.set(ZONE, "America/New_York")
    return caller


def test_session_that_is_not_classic_is_refused(settings):
    connected = type("Connected", (), {"__module__": "pyspark.sql.connect.session"})()
    for given, words in (
        (connected, "Connected is a session of Spark Connect: run the job in the driver's"),
        ("local[2]", "and builtins.str is no Spark session: "),
    ):
        with pytest.raises(JobFailed, match=words):
            run(given, settings)


def test_job_waits_until_its_sources_have_ended(settings_of, hub, monkeypatch, caplog):
    settings = settings_of(RAW[0])
    spool = Spool(settings.queries[0].spool)
    source = spool.lock("", "clicks/archive")
    with monkeypatch.context() as patch:
        patch.setattr(job_module, "END_TIMEOUT", 0.0)
        job_module._wait_for_sources(settings)
    assert f"still writes to the spool {settings.queries[0].spool} after 0 s: move or delete nothing" in caplog.text

    hub.call(lambda: gevent.spawn_later(0.1, source.release))
    job_module._wait_for_sources(settings)

    assert spool.wait_for_end(timeout=0)


@pytest.mark.spark
def test_two_jobs_run_side_by_side_in_a_session_and_leave_it_as_it_was(fakensqd, caller, s3, tmp_path):
    base, frames = s3.location(f"bucket/{tmp_path.name}", "KEY:SECRET@"), [bytes([n, 255, 0]) for n in range(20)]
    output = join_uri(base, "output")
    places = {"work": join_uri(base, "work"), "output": output, "checkpoint": str(tmp_path / "checkpoint")}
    counting = job(tmp_path, PARSED, metric(), **places, **addresses(fakensqd))
    endless = job(tmp_path / "frames", table("frames", format="raw"), **addresses(fakensqd))
    publish(fakensqd, "clicks", GOOD + BAD)
    publish(fakensqd, "frames", frames)
    stop, lines = threading.Event(), []

    with ThreadPoolExecutor() as threads:
        running = threads.submit(run, caller, endless, stop=stop, report=lines.append)
        try:
            counted = run(caller, counting, once=True)
            wait_for(lambda: any(line.startswith("frames   batch ") for line in lines) or running.done())
            with pytest.raises(JobFailed, match="in use by another job, process "):
                run(caller, endless)
        finally:
            stop.set()
        archived = running.result(60)

    assert counted.finished
    assert not any(Spool(query.spool).listing().segments for query in counting.queries)
    assert counted.queries["clicks"].total.rows == 32
    assert sorted(row["_body"] for row in table_rows(join_uri(output, "clicks"))) == sorted(GOOD)
    assert sum(row["count"] for row in table_rows(join_uri(output, "pages"))) == len(GOOD)
    assert not (tmp_path / "work").exists()
    assert (archived.finished, archived.queries["frames"].total.rows) == (False, 20)
    assert "stopping gracefully" in lines
    assert sorted(row["_body"] for row in table_rows(tmp_path / "frames/output/frames")) == frames
    assert (caller.conf.get(PARTITIONS), caller.conf.get(ZONE)) == ("7", "America/New_York")
    assert not caller.streams.active
