"""The command: what it says, what it leaves behind, and how it ends."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from fakensqd import on
from fakensqd.faults import delay
from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.__main__ import main
from gnsq.spark.pipeline.layout import archive_tables, metrics_table
from gnsq.spark.pipeline.lock import WorkLock
from gnsq.spark.pipeline.windows import Metric, true_counts
from gnsq.spark.source.pyspark41 import HAS_READ_LIMITS
from tests.helpers import refused_port
from tests.spark.helpers import channel_stats, members_of, publish, running, wait_for
from tests.spark.pipeline.helpers import config_for, delta_table, published, table_rows

pytestmark = pytest.mark.subprocess


COMMAND = [sys.executable, "-m", "gnsq.spark.pipeline"]
EVENTS = [b'{"time": "2026-01-01T%02d:00:01Z", "user": "u", "page": "/"}' % (n % 3) for n in range(2000)]
BAD = [b"not json"] * 3


def arguments(nsqd, tmp_path, *more):
    return [
        *COMMAND,
        *["--topic", "clicks", "--output", str(tmp_path / "out"), "--work", str(tmp_path / "work")],
        *["--nsqd-tcp-address", nsqd.tcp_address, "--nsqd-http-address", nsqd.http_address],
        *["--master", "local[2]", *more],
    ]


def run(command, **environment):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=150, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param([], "setting topic is required", id="nothing"),
        pytest.param(["--config", "/nowhere.toml"], "configuration /nowhere.toml", id="file"),
        pytest.param(
            ["--topic", "a b", "--output", "x", "--work", "y", "--nsqd-tcp-address", "h:1"], "a b", id="topic"
        ),
        pytest.param(
            ["--topic", "a", "--output", "x", "--work", "y", "--nsqd-tcp-address", "h:1", "--once"],
            "--once needs nsqd_http_addresses or lookupd_http_addresses",
            id="once",
        ),
        pytest.param(["--max-ahead", "long"], "Invalid value for '--max-ahead'", id="number"),
        pytest.param(["--tpoic", "x"], "'--topic'?", id="unknown"),
    ],
)
def test_bad_usage_is_told_with_status_2(given, words):
    done = run([*COMMAND, *given])

    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def jvms_of(group):
    """Process ids of a process group's Java."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(path.name)) == group and (path / "comm").read_text() == "java\n":
                found.append(int(path.name))
    return found


def lines_of(done):
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("flags", [[], ["--once"]])
def test_topic_that_nobody_has_is_told_and_leaves_nothing_behind(fakensqd, tmp_path, flags):
    publish(fakensqd, "click", [b"1"])

    done = run(arguments(fakensqd, tmp_path, *flags))

    [line] = lines_of(done)
    assert line.startswith("Error: no nsqd of nsqd_http_addresses has the topic clicks, near it are click: ")
    assert channel_stats(fakensqd, "clicks", "archive") is None
    assert list(tmp_path.iterdir()) == []


def test_once_without_nsqd_is_told_before_spark_starts(fakensqd, tmp_path):
    command = arguments(fakensqd, tmp_path, "--once")
    command[command.index("--nsqd-http-address") + 1] = "127.0.0.1:1"

    [line] = lines_of(run(command))
    assert line.startswith("Error: neither nsqd nor nsqlookupd answers: ")


def test_metrics_address_in_use_is_told_before_spark_starts(fakensqd, tmp_path):
    publish(fakensqd, "clicks", EVENTS[:1])

    done = run(arguments(fakensqd, tmp_path, "--metrics-address", fakensqd.http_address), PATH="", JAVA_HOME="")

    [line] = lines_of(done)
    assert line.startswith(f"Error: setting metrics_address {fakensqd.http_address}: Address already in use: give a ")


def test_metrics_without_their_package_say_what_to_install(fakensqd, tmp_path):
    publish(fakensqd, "clicks", EVENTS[:1])
    code = "import sys; sys.modules['prometheus_client'] = None; from gnsq.spark.pipeline.__main__ import main; main()"
    given = arguments(fakensqd, tmp_path, "--metrics-address", "127.0.0.1:9")[len(COMMAND) :]

    [line] = lines_of(run([sys.executable, "-c", code, *given]))

    assert line == (
        "Error: setting metrics_address: prometheus_client is not installed; it comes with: "
        "pip install 'gnsq[prometheus]'"
    )


def test_missing_java_says_what_to_install(fakensqd, tmp_path):
    publish(fakensqd, "clicks", EVENTS[:1])
    (tmp_path / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    (tmp_path / "java").chmod(0o755)

    done = run(arguments(fakensqd, tmp_path), PATH=str(tmp_path), JAVA_HOME="")

    [line] = lines_of(done)
    assert line.startswith("Error: Spark needs Java 17, 21 or 25")
    assert "Install one" in line


def test_job_that_waits_for_nsqd_keeps_others_out_and_stops_in_order(fakensqd, tmp_path):
    command = arguments(fakensqd, tmp_path)
    fakensqd.stop()
    with running(command) as process:
        wait_for(lambda: "channels of clicks not created" in process.stdout.readline())
        with (
            pytest.raises(JobFailed, match=f"in use by another job, process {process.pid}: "),
            WorkLock(str(tmp_path / "work"), lambda seconds: False),
        ):
            pytest.fail("begun")
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=30)

    assert process.returncode == 0
    assert output.endswith("stopped in order; the next start goes on where this one ended\n")
    assert not list((tmp_path / "out").rglob("_delta_log"))


def test_once_that_is_stopped_while_channels_are_created_says_that_it_is_not_done(fakensqd, tmp_path):
    publish(fakensqd, "clicks", EVENTS[:1])
    command = arguments(fakensqd, tmp_path, "--once")[len(COMMAND) :]

    with fakensqd.add(
        on.http("/channel/create", where=lambda event: not signal.raise_signal(signal.SIGTERM)), delay(0)
    ):
        done = CliRunner().invoke(main, command, obj=pytest.fail)

    assert (done.exit_code, done.stderr) == (1, "Error: stopped before all was read (nothing yet): start again\n")


@pytest.mark.parametrize("place", ["local", "object store"])
def test_table_of_another_job_is_refused_before_spark_starts(fakensqd, tmp_path, s3, place):
    publish(fakensqd, "clicks", EVENTS[:1])
    output = str(tmp_path / "out") if place == "local" else s3.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")
    for table in archive_tables(config_for(tmp_path, output=output), "clicks"):
        table.claim("theirs", take_over=False)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "spark.log").write_text("of an earlier run, which the message does not name")

    done = run(arguments(fakensqd, tmp_path, "--output", output))

    [line] = lines_of(done)
    assert "/archive belongs to the checkpoint theirs; this job's checkpoint is new, so it does not fit" in line
    assert "SECRET" not in line


def test_configuration_may_come_from_the_environment(tmp_path):
    done = run(COMMAND, GNSQ_PIPELINE_CONFIG="/nowhere.toml")

    assert "configuration /nowhere.toml" in done.stderr


def test_status_starts_no_spark(fakensqd, tmp_path):
    done = run([*arguments(fakensqd, tmp_path), "--status"], PATH="")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("job      not running\narchive  no batch yet\n")


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_second_interrupt_in_mid_batch_ends_at_once_though_spark_hangs_and_loses_nothing(
    fakensqd, shared_session, tmp_path
):
    publish(fakensqd, "clicks", EVENTS[:800] + BAD)
    secret = {"GNSQ_PIPELINE_NSQ": "authSecret=hush-hush"}
    # What is in flight at the end comes back soon.
    small = ["--max-rows-per-batch", "200", "--nsq", "msgTimeout=2"]
    with running(arguments(fakensqd, tmp_path, *small), **secret) as process:
        # The first batch is done, and another one is under way.
        offsets, commits = (tmp_path / "work" / "archive" / "checkpoint" / name for name in ("offsets", "commits"))
        wait_for(lambda: len(list(offsets.glob("[0-9]*"))) > len(list(commits.glob("[0-9]*"))) > 0, limit=90)
        [java] = jvms_of(process.pid)
        os.kill(java, signal.SIGSTOP)
        os.kill(process.pid, signal.SIGINT)
        # Those that come shortly after the first one are taken for copies of it.
        wait_for(lambda: process.poll() is not None or os.kill(process.pid, signal.SIGINT))
        output, _ = process.communicate(timeout=30)

        assert process.returncode == 130, output
        assert "SIGINT for the second time: ended at once. nsqd delivers unanswered messages again" in output
        assert "Traceback" not in output
        wait_for(lambda: members_of(process.pid) == [])
    publish(fakensqd, "clicks", EVENTS[:100])

    once = ["--once", "--deduplicate", "0"]
    given = arguments(fakensqd, tmp_path, *once)[len(COMMAND) :]
    done = CliRunner(env=secret).invoke(main, given, obj=shared_session)

    archived = table_rows(tmp_path / "out" / "archive")
    assert done.exit_code == 0, done.output
    assert len({(row["nsqd"], row["message_id"]) for row in archived}) == 900
    assert len({letter["message_id"] for letter in published(fakensqd, "clicks-dead", tmp_path)}) == 3
    backlog = r"backlog .* at nsqd \+ .* in the spool, " if HAS_READ_LIMITS else ""
    assert re.search(rf"^archive  batch +\d+: .* rows/s, .*{backlog}lag .* s$", done.output, re.M)
    assert re.search(r"^job      .*\d+ s\ndrained$", done.output, re.M)
    # What was in flight at the kill comes to each query once more, or does not.
    metrics = metrics_table(config_for(tmp_path, output=str(tmp_path / "out")), "metrics")
    rows = delta_table(tmp_path / "out" / "metrics" / "counts").to_pyarrow_table()
    counted = sum(true_counts(rows, Metric()).column("count").to_pylist())
    assert counted == metrics.status().entered >= 900
    log = (tmp_path / "work" / "spark.log").read_text()
    assert "hush-hush" not in log + done.output
    assert not [path for path in (tmp_path / "work").rglob("*/offsets/*") if b"hush" in path.read_bytes()]


@pytest.mark.spark
@pytest.mark.timeout(150)
def test_once_stops_in_order_on_an_interrupt_and_says_that_it_is_not_done(fakensqd, tmp_path):
    publish(fakensqd, "clicks", EVENTS)
    rows = re.compile(r'^gnsq_pipeline_rows_total{query="archive"} [1-9]', re.MULTILINE)
    address = f"127.0.0.1:{refused_port()}"
    small = ["--once", "--max-rows-per-batch", "50", "--metrics-address", address]
    with running(arguments(fakensqd, tmp_path, *small)) as process:
        wait_for(lambda: list((tmp_path / "out" / "archive").rglob("part-*.parquet")), limit=90)
        wait_for(lambda: re.search(rows, requests.get(f"http://{address}/metrics", timeout=10).text))
        # As Ctrl-C in a terminal: Java and the workers get it, too.
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=30)

        assert process.returncode == 1, output
        assert re.search(r"stopped before all was read \(archive [\d,]+ of 2,000, metrics [\d,]+ of 2,000\)", output)
        assert "Traceback" not in output
        for channel in ("archive", "metrics"):
            wait_for(lambda channel=channel: not channel_stats(fakensqd, "clicks", channel)["clients"])
        wait_for(lambda: members_of(process.pid) == [])


@pytest.mark.parametrize("what", ["Exception", "KeyboardInterrupt"])
def test_py4j_does_not_log_the_connections_that_a_stop_cuts(what):
    # py4j/java_gateway.py logs these two, with a traceback, where Spark's call was interrupted.
    script = (
        "import gnsq.spark.pipeline.__main__ as command, logging;"
        "logging.basicConfig(); command._quiet_py4j();"
        f"logging.error({what + ' while sending command.'!r}); logging.error('another')"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert done.stderr == "ERROR:root:another\n"
