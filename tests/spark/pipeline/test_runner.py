"""run(): the job in a Spark that runs already."""

import datetime as dt
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline import load_config, run
from gnsq.spark.pipeline.session import borrow_session
from gnsq.spark.pipeline.status import status_lines
from gnsq.spark.uris import join_uri
from tests.docs.pages import example
from tests.spark.helpers import channel_stats, publish, wait_for
from tests.spark.pipeline.helpers import config_for, published, table_rows

EVENTS = [b'{"time": "2026-01-01T00:%02d:01Z", "user": "u%d", "page": "/"}' % (n, n) for n in range(30)]
BAD = [b"not json", b'{"time": "2026-01-01T00:00:01Z", "user": "u1"}']
PARTITIONS, ZONE = "spark.sql.shuffle.partitions", "spark.sql.session.timeZone"


def config_of(nsqd, path, topic, **changes):
    addresses = {"nsqd_tcp_addresses": (nsqd.tcp_address,), "nsqd_http_addresses": (nsqd.http_address,)}
    return config_for(path, topic=topic, **addresses, **changes)


def write_toml(path, config):
    """Write the settings of config_of() as a file; return its name."""
    names = ("topic", "output", "work", "nsqd_tcp_addresses", "nsqd_http_addresses", "raw")
    file = path / "job.toml"
    file.write_text("".join(f"{name} = {json.dumps(getattr(config, name))}\n" for name in names))
    return str(file)


@pytest.fixture
def caller(spark):
    """A session with settings that are not the job's."""
    caller = spark.newSession()
    caller.conf.set(PARTITIONS, "7")
    caller.conf.set(ZONE, "America/New_York")
    return caller


class Connected:
    """What a session of Spark Connect looks like."""


Connected.__module__ = "pyspark.sql.connect.session"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(Connected(), "Connected is a session of Spark Connect: run the job in the driver's", id="connect"),
        pytest.param("local[2]", "and builtins.str is no Spark session: ", id="string"),
    ],
)
def test_session_that_is_not_classic_is_refused(tmp_path, given, words):
    with pytest.raises(JobFailed, match=words):
        run(given, config_for(tmp_path))


@pytest.mark.spark
def test_two_jobs_run_side_by_side_in_a_session_and_leave_it_as_it_was(fakensqd, caller, s3, tmp_path, capsys):
    base, frames = s3.location(f"bucket/{tmp_path.name}", "KEY:SECRET@"), [bytes([n, 255, 0]) for n in range(20)]
    output = join_uri(base, "output")
    places = {"work": join_uri(base, "work"), "output": output, "checkpoint": str(tmp_path / "checkpoint")}
    counting = config_of(fakensqd, tmp_path / "clicks", "clicks", **places)
    endless = config_of(fakensqd, tmp_path / "frames", "frames", raw=True)
    publish(fakensqd, "clicks", EVENTS + BAD)
    publish(fakensqd, "frames", frames)
    stop, names = threading.Event(), {}
    exec(example("pipeline/guide.md", "The job in a Spark that runs"), names)

    with ThreadPoolExecutor() as threads:
        running = threads.submit(names["archive"], caller, write_toml(tmp_path, endless), stop)
        counted = run(caller, counting, once=True)
        wait_for(lambda: "archive  batch " in capsys.readouterr().out or running.done())
        with pytest.raises(JobFailed, match="in use by another job, process "):
            run(caller, endless)
        stop.set()
        archived = running.result(60)

    assert (counted.finished, counted.rows, counted.dead_letters) == (True, {"archive": 32, "metrics": 32}, 2)
    rows = table_rows(join_uri(output, "archive"))
    assert sorted(row["body"].encode() for row in rows) == EVENTS
    # In the time zone of the caller's session, it would be the day before.
    assert {str(row["_day"]) for row in rows} == {"2026-01-01"}
    assert sum(row["count"] for row in table_rows(join_uri(output, "metrics/counts"))) == len(EVENTS)
    assert len(published(fakensqd, "clicks-dead", tmp_path)) == 2
    assert not (tmp_path / "clicks").exists()
    state = list(status_lines(counting, dt.datetime.now(dt.UTC)))
    assert state[0] == "job      not running"
    assert state[1].startswith("archive  batch 0 committed")
    assert (archived.finished, archived.rows, archived.dead_letters) == (False, {"archive": 20}, 0)
    assert "stopping in order\narchive  20 rows in 1 batch\n" in capsys.readouterr().out
    assert sorted(row["body"] for row in table_rows(tmp_path / "frames/output/archive")) == frames
    assert {path.name for path in (tmp_path / "frames/output").iterdir()} == {"archive"}
    assert channel_stats(fakensqd, "frames", "metrics") is None
    assert (caller.conf.get(PARTITIONS), caller.conf.get(ZONE)) == ("7", "America/New_York")
    assert not caller.streams.active


@pytest.mark.spark
def test_settings_that_spark_takes_only_at_its_start_are_told(caller, caplog):
    given = {"spark.master": "local[9]", "spark.driver.memory": "2g"}
    given |= {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}

    with caplog.at_level(logging.WARNING), borrow_session(caller, given) as session:
        assert session.conf.get(ZONE) == "UTC"

    assert caplog.messages == [
        "setting spark: spark.master can only be given when Spark starts: the job runs with 'local[2]', not with "
        "'local[9]'",
        "setting spark: spark.driver.memory can only be given when Spark starts: the job runs with Spark's default, "
        "not with '2g'",
    ]


@pytest.mark.spark
def test_bad_value_of_a_setting_of_spark_is_told(caller):
    words = r"can't be used: .*The value 'many'"

    with pytest.raises(JobFailed, match=words), borrow_session(caller, {PARTITIONS: "many"}):
        pytest.fail("used")


def test_configuration_is_read_without_overrides(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('topic = "clicks"\noutput = "/o"\nwork = "/w"\nnsqd_tcp_addresses = ["127.0.0.1:4150"]\n')

    assert load_config(str(path)).topic == "clicks"
