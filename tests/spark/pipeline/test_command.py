"""The command: what it says, what it leaves behind, and how it ends."""

import io
import logging
import os
import re
import shlex
import signal
import sys
import threading

import pytest
import requests
from click.testing import CliRunner

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.__main__ import _quiet_py4j, main
from gnsq.spark.pipeline.lock import describe
from gnsq.spark.pipeline.tables import SettingError
from gnsq.spark.source.pyspark41 import HAS_READ_LIMITS
from tests.kit import child, refused_port, wait_for_program
from tests.spark.helpers import channel_stats, members_of, named, publish, running, wait_for
from tests.spark.pipeline.helpers import table_rows

COMMAND = [sys.executable, "-m", "gnsq.spark.pipeline"]
EVENTS = [b'{"ts": "2026-01-01T%02d:00:01Z", "user": "u", "page": "/"}' % (n % 3) for n in range(2000)]
# Seconds until the job's own Spark has begun its first batch, on two cores that do ten times as much beside it.
COLD_START = 180
STOPPED = "stopped; the next start goes on where this one ended\n"
TABLES = """
[tables.clicks]
schema = "ts TIMESTAMP NOT NULL, user STRING NOT NULL, page STRING NOT NULL"
time = "ts"
[metrics.pages]
table = "clicks"
keys = "page"
"""


# A query that is planned in a third of the time.
RAW = """
[tables.clicks]
format = "raw"
"""


def arguments(nsqd, tmp_path, *more, tables=TABLES):
    (tmp_path / "job.toml").write_text(tables)
    return [
        *["--config", str(tmp_path / "job.toml"), "--output", str(tmp_path / "out"), "--work", str(tmp_path / "work")],
        *["--nsqd-tcp-address", nsqd.tcp_address, "--nsqd-http-address", nsqd.http_address],
        *["--spark", "spark.master=local[2]", *more],
    ]


def program(nsqd, tmp_path, *more):
    """The command as a program with a Spark of its own, which compiles no classes for some rows."""
    fast = ("spark.sql.codegen.wholeStage=false", "spark.sql.codegen.factoryMode=NO_CODEGEN")
    fast += ("spark.python.daemon.module=tests.spark.daemon", "spark.sql.shuffle.partitions=1")
    settings = [word for each in fast for word in ("--spark", each)]
    return [*COMMAND, *arguments(nsqd, tmp_path, *settings, *more, tables=RAW)]


def raising(error):
    def run(*arguments, **keywords):
        raise error

    return run


def invoke(given, **keywords):
    return CliRunner(env=keywords.pop("env", None)).invoke(main, given, **keywords)


# --- settings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param([], "Error: setting work is required\n", id="nothing"),
        pytest.param(["--config", "/nowhere.toml"], "'--config': File '/nowhere.toml' does not exist", id="file"),
        pytest.param(["--once"], "Error: --once needs nsqd_http_addresses or lookupd_http_addresses, ", id="once"),
        pytest.param(["--deduplicate", "long"], "Invalid value for '--deduplicate': ", id="duration"),
        pytest.param(["--wrok", "x"], "'--work'?", id="unknown"),
        pytest.param(["rebuild"], "Error: rebuild needs the name of one of [metrics]: pages\n", id="no metric"),
        pytest.param(
            ["replay-dead", "clcks"], "replay-dead clcks: [tables.clcks] is not there; did you mean clicks?", id="table"
        ),
        pytest.param(["maintain", "clicks"], "Error: maintain takes no name: leave out 'clicks'\n", id="name"),
    ],
)
def test_wrong_setting_is_told_with_status_2(tmp_path, given, words):
    (tmp_path / "job.toml").write_text(TABLES)
    environ = {
        "GNSQ_PIPELINE_CONFIG": str(tmp_path / "job.toml"),
        "GNSQ_PIPELINE_WORK": str(tmp_path / "work"),
        "GNSQ_PIPELINE_OUTPUT": str(tmp_path / "out"),
        "GNSQ_PIPELINE_NSQD_TCP_ADDRESSES": "127.0.0.1:1",
    }

    done = invoke(given, env=environ if given else {})

    assert done.exit_code == 2
    assert words in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("RECEIVERS", "none", "the environment variable GNSQ_PIPELINE_RECEIVERS: 'none' is not"),
        ("LOOKUPD_HTTP_ADDRESSES", "l:x", "GNSQ_PIPELINE_LOOKUPD_HTTP_ADDRESSES: 'l:x': port must be"),
        ("NSQ", "x=1", "GNSQ_PIPELINE_NSQ"),
    ],
)
def test_error_names_the_variable_that_gave_the_value(fakensqd, tmp_path, caplog, name, value, words):
    done = invoke(arguments(fakensqd, tmp_path), env={f"GNSQ_PIPELINE_{name}": value})

    assert done.exit_code == 2
    assert words in done.stderr
    assert not caplog.messages


def test_unknown_variable_is_told(tmp_path, caplog):
    done = invoke(["--output", str(tmp_path)], env={"GNSQ_PIPELINE_WROK": "x", "GNSQ_PIPELINE_OUTPUT": "y"})

    assert done.exit_code == 2
    [line] = caplog.messages
    assert line.startswith("the environment has GNSQ_PIPELINE_WROK, which is unknown; did you mean GNSQ_PIPELINE_WORK?")


@pytest.mark.parametrize(
    ("given", "environ"),
    [
        (["--deduplicate", "1 minute", "--nsq", "msgTimeout=5"], {}),
        ([], {"GNSQ_PIPELINE_DEDUPLICATE": "60s", "GNSQ_PIPELINE_NSQ": "msgTimeout=5"}),
        (["--deduplicate=60"], {"GNSQ_PIPELINE_DEDUPLICATE": "5", "GNSQ_PIPELINE_NSQ": "msgTimeout=5"}),
    ],
)
def test_settings_come_from_flags_and_environment(fakensqd, tmp_path, monkeypatch, given, environ):
    loaded = []
    monkeypatch.setattr("gnsq.spark.pipeline.__main__.run_job", lambda settings, *_, **__: loaded.append(settings))
    environ |= {"GNSQ_PIPELINE_LOOKUPD_HTTP_ADDRESSES": "l:4161 m:4161"}

    done = invoke(arguments(fakensqd, tmp_path, *given), env=environ)

    assert done.exit_code == 0, done.output
    [settings] = loaded
    assert (settings.deduplicate, settings.nsq) == (60, {"msgTimeout": "5"})
    assert settings.lookupd_http_addresses == ("l:4161", "m:4161")
    assert settings.spark == {"spark.master": "local[2]"}
    shown = invoke(["--help"]).stdout
    assert all(name in shown for name in ("--max-rows-per-batch", "  mismatch ", "  aggregates "))

    # A setting that only Spark can check has the same status as others.
    for error, status in (SettingError("where 'x': no such column", "tables.clicks"), 2), (JobFailed("gone"), 1):
        monkeypatch.setattr("gnsq.spark.pipeline.__main__.run_job", raising(error))
        failed = invoke(arguments(fakensqd, tmp_path))
        assert (failed.exit_code, failed.stderr) == (status, f"Error: {error}\n")


def test_receivers_are_told_as_commands_without_secrets(fakensqd, tmp_path):
    options = ["tls=true", "tlsVerify=false", "authSecret=hush", "spoolMode=2770", "minRowsPerBatch=5"]
    flags = [flag for option in options for flag in ("--nsq", option)]

    done = invoke(arguments(fakensqd, tmp_path, *flags, "--receivers", "external", "receivers"))

    assert done.exit_code == 0, done.output
    [clicks] = done.output.splitlines()
    assert "hush" not in done.output
    assert shlex.split(clicks)[:4] == ["GNSQ_RECEIVER_AUTH_SECRET=...", "python", "-m", "gnsq.spark.receiver"]
    assert set(shlex.split(clicks)[4:]) == {
        *("--topic=clicks", "--channel=clicks", f"--spool={tmp_path}/work/clicks/spool", "--spool-mode=2770"),
        *(f"--nsqd-tcp-address={fakensqd.tcp_address}", "--tls", "--no-tls-verify"),
    }

    flags = ["--lookupd-http-address", "http://l:4161?token=hush", "--receivers", "external", "receivers"]
    done = invoke(arguments(fakensqd, tmp_path, *flags))
    assert (done.exit_code, "hush" in done.output) == (0, False)
    assert shlex.split(done.output.splitlines()[0])[0] == "GNSQ_RECEIVER_LOOKUPD_HTTP_ADDRESSES=..."


# --- before Spark


def test_topic_that_nobody_has_is_told_and_leaves_nothing_behind(fakensqd, tmp_path):
    publish(fakensqd, "click", [b"1"])

    done = invoke(arguments(fakensqd, tmp_path))

    assert done.exit_code == 1
    assert "Error: no nsqd of nsqd_http_addresses has the topic clicks, near it are click: " in done.stderr
    assert channel_stats(fakensqd, "clicks", "clicks") is None
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_metrics_address_in_use_is_told_before_spark_starts(fakensqd, tmp_path):
    publish(fakensqd, "clicks", EVENTS[:1])

    done = invoke(arguments(fakensqd, tmp_path, "--metrics-address", fakensqd.http_address), obj=pytest.fail)

    assert done.exit_code == 1
    words = f"setting metrics_address: can't listen on {fakensqd.http_address}: Address already in use: give a free"
    assert words in done.stderr


def test_py4j_does_not_log_the_connections_that_a_stop_cuts(monkeypatch):
    # py4j/java_gateway.py logs these two, with a traceback, where Spark's call was interrupted.
    lines, level = io.StringIO(), logging.getLogger("py4j").level
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(lines)])

    _quiet_py4j()
    for text in ("Exception while sending command.", "KeyboardInterrupt while sending command.", "another"):
        logging.getLogger().error(text)
    logging.getLogger("py4j").setLevel(level)

    assert lines.getvalue() == "another\n"


@pytest.mark.subprocess
def test_signal_while_java_starts_ends_the_job_at_once(fakensqd, tmp_path):
    publish(fakensqd, "clicks", EVENTS[:1])
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    # Like Java, it ends when its input does.
    java.write_text("""#!/bin/sh
case "$*" in *-version) echo 'openjdk version "17.0.1"' >&2 ;; *) touch "$JAVA_HOME/started" && cat >/dev/null ;; esac
""")
    java.chmod(0o755)

    with running([*COMMAND, *arguments(fakensqd, tmp_path)], JAVA_HOME=str(tmp_path)) as process:
        wait_for_program(process, (tmp_path / "started").exists)
        process.terminate()
        output, _ = process.communicate()

    assert process.returncode == 0, output
    assert output.endswith(STOPPED)


@pytest.mark.subprocess
def test_status_is_told_again_until_a_signal_and_starts_no_spark(fakensqd, tmp_path):
    with child(*COMMAND, *arguments(fakensqd, tmp_path), "--status", "--watch", "100ms") as process:
        told = (line for line in process.stdout if line.startswith("clicks"))
        assert [next(told, "") for _ in range(2)] == ["clicks   no batch yet\n"] * 2
        process.send_signal(signal.SIGINT)
        process.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


# --- with Spark


@pytest.mark.spark
def test_job_that_waits_for_nsqd_keeps_others_out_and_stops_in_order(fakensqd, shared_session, tmp_path, caplog):
    given = arguments(fakensqd, tmp_path, tables=RAW)
    fakensqd.stop()
    held = []

    def stop():
        wait_for(lambda: "channels of the job not created" in caplog.text)
        held.append(describe(str(tmp_path / "work")))
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    done = invoke(given, obj=shared_session)
    stopper.join()

    assert held == [f"running, process {os.getpid()}"]
    assert done.exit_code == 0, done.output
    assert done.output.endswith(STOPPED)
    assert not list((tmp_path / "out").rglob("_delta_log"))


HANGING_JAVA = """
import os, signal
from pyspark import SparkContext

def setup(spark):
    os.kill(SparkContext._gateway.proc.pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGTERM)
    spark.range(1).count()
"""


@pytest.mark.spark
@pytest.mark.subprocess
@pytest.mark.timeout(2 * COLD_START)
def test_signal_while_queries_are_planned_ends_the_job_at_once_and_leaves_no_java(fakensqd, tmp_path):
    publish(fakensqd, "clicks", EVENTS[:1])
    (tmp_path / "hanging.py").write_text(HANGING_JAVA)
    given = program(fakensqd, tmp_path, "--setup", "hanging:setup")

    with running(given, PYTHONPATH=str(tmp_path)) as process:
        output, _ = process.communicate()

        assert process.returncode == 0, output
        assert output.endswith(STOPPED)
        assert "Traceback" not in output
        wait_for(lambda: members_of(process.pid) == [])


@pytest.mark.spark
@pytest.mark.subprocess
@pytest.mark.timeout(2 * COLD_START)
def test_second_interrupt_in_mid_batch_ends_at_once_though_spark_hangs_and_loses_nothing(
    fakensqd, shared_session, tmp_path
):
    publish(fakensqd, "clicks", EVENTS[:800])
    secret = {"GNSQ_PIPELINE_NSQ": "authSecret=hush-hush"}
    # What is in flight at the end comes back soon.
    small = ["--max-rows-per-batch", "200", "--nsq", "msgTimeout=2"]
    with running(program(fakensqd, tmp_path, *small), **secret) as process:
        # The first batch is done, and another one is under way.
        offsets, commits = (tmp_path / "work/clicks/checkpoint" / name for name in ("offsets", "commits"))
        wait_for(lambda: len(list(offsets.glob("[0-9]*"))) > len(list(commits.glob("[0-9]*"))) > 0, limit=COLD_START)
        [java] = named(process.pid, "deploy.SparkSubmit")
        os.kill(java, signal.SIGSTOP)
        os.kill(process.pid, signal.SIGINT)
        # Those that come shortly after the first one are taken for copies of it.
        wait_for(lambda: process.poll() is not None or os.kill(process.pid, signal.SIGINT))
        output, _ = process.communicate()

        assert process.returncode == 130, output
        assert "SIGINT for the second time: ended at once. nsqd delivers unanswered messages again" in output
        assert "Traceback" not in output
        wait_for(lambda: members_of(process.pid) == [])
    publish(fakensqd, "clicks", EVENTS[:100])

    done = invoke(arguments(fakensqd, tmp_path, "--once", tables=RAW), env=secret, obj=shared_session)

    archived = table_rows(tmp_path / "out" / "clicks")
    assert done.exit_code == 0, done.output
    assert len({(row["_nsqd"], row["_message_id"]) for row in archived}) == 900
    backlog = r"backlog .* at nsqd \+ .* in the spool, " if HAS_READ_LIMITS else ""
    assert re.search(rf"^clicks +batch +\d+: .* rows in .* s, .*{backlog}lag .* s$", done.output, re.M)
    assert re.search(r"^job      .*\d+ s\ndrained$", done.output, re.M)
    log = (tmp_path / "work" / "spark.log").read_text()
    assert "hush-hush" not in log + done.output
    assert not [path for path in (tmp_path / "work").rglob("offsets/*") if b"hush" in path.read_bytes()]


@pytest.mark.spark
@pytest.mark.subprocess
@pytest.mark.timeout(2 * COLD_START)
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="PySpark 4.1 reads all in one batch, so that nothing may be left")
def test_once_stops_in_order_on_an_interrupt_and_says_that_it_is_not_done(fakensqd, tmp_path):
    publish(fakensqd, "clicks", EVENTS)
    rows = re.compile(r'^gnsq_pipeline_rows_total{query="clicks"} [1-9]', re.MULTILINE)
    address = f"127.0.0.1:{refused_port()}"
    small = ["--once", "--max-rows-per-batch", "50", "--metrics-address", address]
    with running(program(fakensqd, tmp_path, *small)) as process:
        wait_for(lambda: list((tmp_path / "out" / "clicks").rglob("*.parquet")), limit=COLD_START)
        wait_for(lambda: re.search(rows, requests.get(f"http://{address}/metrics", timeout=10).text))
        # As Ctrl-C in a terminal: Java and the workers get it, too.
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate()

        assert process.returncode == 1, output
        assert re.search(r"stopped before all was read \(clicks [\d,]+ of 2,000\)", output)
        assert "Traceback" not in output
        wait_for(lambda: not channel_stats(fakensqd, "clicks", "clicks")["clients"])
        wait_for(lambda: members_of(process.pid) == [])
