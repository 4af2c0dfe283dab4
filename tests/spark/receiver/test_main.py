"""``python -m gnsq.spark.receiver``."""

import contextlib
import logging
import os
import signal
import socket
import stat
import sys

import gevent
import pytest
import requests
from click.testing import CliRunner
from gevent.event import Event

from gnsq import NsqdHTTPClient
from gnsq.spark.receiver.program import _report
from gnsq.spark.receiver.program import command as program
from tests.kit import refused_port, run, wait_for_program
from tests.spark.helpers import bodies_of, channel_stats, is_empty, numbered, publish, running, wait_for

pytestmark = pytest.mark.subprocess


HERE = ["--topic", "clicks", "--channel", "archive"]


def command(*arguments):
    return [sys.executable, "-m", "gnsq.spark.receiver", *arguments]


def test_command_receives_and_stops_in_order(fakensqd, spool, tmp_path):
    publish(fakensqd, "clicks", numbered(100))
    arguments = [*HERE, "--spool", str(tmp_path / "spool"), "--segment-time", "20"]
    arguments += ["--nsqd-tcp-address", fakensqd.tcp_address, "--nsqd-tcp-address"]
    # A silent nsqd does not delay the end, at which the segment is written.
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        running(command(*arguments, f"127.0.0.1:{silent.getsockname()[1]}")) as process,
    ):
        wait_for_program(process, lambda: fakensqd.in_flight("clicks", "archive") == 100)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()

    assert process.returncode == 0
    assert "stopped: 100 rows in 1 segment" in output
    assert "Traceback" not in output
    assert is_empty(fakensqd, "clicks", "archive")
    assert sorted(bodies_of(spool)) == numbered(100)
    [receiver] = [path for path in (tmp_path / "spool").iterdir() if path.is_dir()]
    assert (receiver / "closed.json").exists()


@pytest.mark.fakensqd(msg_timeout=1.0)  # what a killed receiver had in flight comes again soon
def test_killed_receiver_loses_nothing(fakensqd, spool, tmp_path):
    """Killed at any moment, often between a segment and its FINs; what it had not finished comes again."""
    arguments = [*HERE, "--spool", str(tmp_path / "spool"), "--max-in-flight", "50"]
    receiver = command(*arguments, "--nsqd-tcp-address", fakensqd.tcp_address)
    published = 0

    def publish_more():
        nonlocal published
        publish(fakensqd, "clicks", numbered(1000, first=published))
        published += 1000

    def has_received(rows):
        # However fast it is, there is more to do.
        if published - len(set(bodies_of(spool))) < 500:
            publish_more()
        return len(bodies_of(spool)) >= rows

    for rows in (200, 700):
        publish_more()
        with running(receiver) as process:
            wait_for_program(process, lambda rows=rows: has_received(rows))
            os.kill(process.pid, signal.SIGKILL)
    with running(receiver) as process:
        wait_for_program(process, lambda: set(bodies_of(spool)) == set(numbered(published)))
        wait_for_program(process, lambda: is_empty(fakensqd, "clicks", "archive"))

    assert not spool.listing().quarantined


# --- options


def test_options_have_flags_but_not_the_secret_itself():
    text = CliRunner().invoke(program, ["--help"]).output

    assert "  --auth-secret-file " in text
    assert "--auth-secret " not in text
    assert "Default: 10000." in text


def status_of(page):
    """The status of the answer; None without one."""
    with contextlib.suppress(OSError):
        return requests.get(f"http://{page}", timeout=10).status_code


def test_options_come_from_the_environment_too_and_health_is_answered_over_http(secured_nsqd, spool, tmp_path):
    nsqd, options = secured_nsqd
    with NsqdHTTPClient.from_url(nsqd.http_address) as client:
        client.multipublish("clicks", numbered(10))
    health = f"127.0.0.1:{refused_port()}"
    given = {
        "TOPIC": "clicks", "CHANNEL": "archive", "SPOOL": str(tmp_path / "spool"), "SPOOL_MODE": "2770", "TLS": "true",
        "NSQD_TCP_ADDRESSES": nsqd.tcp_address, "COMPRESSION": "snappy", "AUTH_SECRET": "open sesame",
        "TLS_CA": options["tls_ca"], "TLS_CERT": options["tls_cert"], "TLS_KEY": options["tls_key"],
        "HEALTH_ADDRESS": health,
    }  # fmt: skip
    with running(command(), **{f"GNSQ_RECEIVER_{name}": value for name, value in given.items()}) as process:
        wait_for_program(process, lambda: len(bodies_of(spool)) == 10)
        [client] = channel_stats(nsqd, "clicks", "archive")["clients"]
        assert (client["tls"], client["authed"], client["snappy"], client["deflate"]) == (True, True, True, False)
        assert [status_of(f"{health}/{page}") for page in ("ready", "metrics")] == [200, 200]
        nsqd.stop()
        wait_for_program(process, lambda: status_of(f"{health}/ready") == 503)
        assert status_of(f"{health}/live") == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "spool", *(tmp_path / "spool").rglob("*"))}
    assert modes == {0o2770, 0o660}


def refused(tmp_path, *arguments, status=2, **environ):
    """What the program says, in this process, about options that it refuses. The last of several places is taken."""
    given = [*HERE, "--spool", str(tmp_path / "spool"), "--nsqd-tcp-address", "127.0.0.1:1", *arguments]
    done = CliRunner(env={f"GNSQ_RECEIVER_{name}": value for name, value in environ.items()}).invoke(program, given)
    assert (done.exit_code, type(done.exception)) == (status, SystemExit)
    return done.stderr


def test_errors_name_flags_and_variables(tmp_path):
    assert "--tls-ca is given, but --tls is not true" in refused(tmp_path, "--tls-ca", "x")
    assert "max_in_flight 0 must be at least 1" in refused(tmp_path, "--max-in-flight", "0")
    assert "--topic and --topic-pattern are both given" in refused(tmp_path, "--topic-pattern", "x")
    bad = "'--health-address': address '127.0.0.1' has no port"
    assert bad in refused(tmp_path, "--health-address", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        said = refused(tmp_path, "--health-address", address, status=1)
    assert f"--health-address: can't listen on {address}: Address already in use" in said

    assert "GNSQ_RECEIVER_TLS_CA is given, but --tls is not true" in refused(tmp_path, TLS_CA="x")
    variable = "environment variable GNSQ_RECEIVER_MAX_IN_FLIGHT: max_in_flight 0 must be"
    assert variable in refused(tmp_path, MAX_IN_FLIGHT="0")


def test_what_can_not_be_used_is_named_without_secrets(spool, tmp_path):
    spool.lock("", "views/archive").release()
    no_directory = refused(tmp_path, "--spool", "/proc/x", status=1)
    no_store = refused(tmp_path, "--spool", "s3a://KEY:hush@bucket/x")

    assert "a directory that can be written" in no_directory
    assert "s3a://***@bucket/x" in no_store
    assert "hush" not in no_store
    assert "belongs to a query that reads views/archive, not clicks/archive" in refused(tmp_path, status=1)


def test_missing_package_is_named(tmp_path):
    missing = "gevent"
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{missing}'\")")

    done = run(*command("--help"), env={**os.environ, "PYTHONPATH": str(tmp_path)})

    assert done.returncode == 1
    assert f"needs click and pyarrow: pip install 'gnsq[spark]' (No module named '{missing}')" in done.stderr
    assert "Traceback" not in done.stderr


# --- reports


@pytest.fixture
def watched(hub, receive):
    """Start a receiver and the command's watching of it."""
    stop, watchers = hub.call(Event), []

    def start(**options):
        watchers.append(hub.call(gevent.spawn, _report, receive(**options), stop, 0.05))

    yield start
    hub.call(stop.set)
    for watcher in watchers:
        hub.call(watcher.get)


def test_rows_are_reported(fakensqd, watched, caplog):
    caplog.set_level(logging.INFO, "gnsq.spark.receiver")
    watched()
    publish(fakensqd, "clicks", numbered(10))

    wait_for(lambda: "10 rows in 1 segment, 10 of them since the last report; connected nsqds: 1" in caplog.text)


def test_nsqd_that_is_down_is_reported_again_and_again_and_a_topic_without_an_nsqd(fakelookupd, watched, caplog):
    watched(nsqd_tcp_addresses=("127.0.0.1:1",))
    watched(nsqd_tcp_addresses=(), lookupd_http_addresses=(fakelookupd.http_address,))

    wait_for(lambda: caplog.text.count("127.0.0.1:1: not connected: ") > 5)
    wait_for(lambda: "nothing to connect to: no nsqlookupd names an nsqd for clicks" in caplog.text)


def test_end_of_the_writing_ends_the_program_with_its_reason(fakensqd, disk, tmp_path):
    disk.fail(".arrow", RuntimeError("bug"))
    publish(fakensqd, "clicks", [b"x"])

    said = refused(tmp_path, "--nsqd-tcp-address", fakensqd.tcp_address, status=1)

    assert "Error: nothing can be written any more: RuntimeError('bug')" in said
    assert channel_stats(fakensqd, "clicks", "archive")["depth"] == 1


def test_signal_ends_a_receiver_whose_file_system_hangs_at_the_start(fakensqd, tmp_path):
    code = (
        "import os, threading\n"
        "from gnsq.spark.spool.storage import LocalStore\n"
        "from gnsq.spark.receiver.__main__ import main\n"
        "def hang(store, path): open(os.environ['REACHED'], 'w').close(); threading.Event().wait()\n"
        "LocalStore.make_directory = hang\n"
        "main()\n"
    )
    arguments = [*HERE, "--spool", str(tmp_path / "spool"), "--nsqd-tcp-address", fakensqd.tcp_address]
    with running([sys.executable, "-c", code, *arguments], REACHED=str(tmp_path / "reached")) as process:
        wait_for_program(process, (tmp_path / "reached").exists)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate()

    assert process.returncode == 0
    assert "stopped before the spool could be written" in output
