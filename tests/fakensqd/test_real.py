"""Real servers, whose programs are those of the emulator here; and the fixtures that take them."""

import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from fakensqd import FakeAuthServer, FakeNsqd
from fakensqd.real import RealCluster, RealNsqd, Unavailable
from tests.kit import run
from tests.kit.commands import create_channel

pytestmark = pytest.mark.subprocess
NSQD = (sys.executable, "-m", "fakensqd", "nsqd")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with programs nsqd and nsqlookupd."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("nsqd", "nsqlookupd"):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -m fakensqd {name} "$@"\n')
        path.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def real():
    with RealNsqd(program=NSQD, msg_timeout=0.5, lookupd_tcp_addresses=(), record=True) as nsqd:
        yield nsqd


def test_options_are_flags_of_the_program(real):
    with RealNsqd(program=NSQD, flags=["--max-rdy-count=7"], max_msg_size=3, snappy=False) as nsqd:
        with pytest.raises(OSError, match=r"has answered POST /pub.* with 413 .*MSG_TOO_BIG"):
            nsqd.request("POST", "/pub", b"1234", topic="t")
        assert nsqd.pid != real.pid


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        pytest.param(lambda: RealNsqd(program=NSQD, ram=1), TypeError, "RealNsqd has no option ram", id="name"),
        pytest.param(lambda: RealNsqd(program=NSQD, max_deflate_level=10), ValueError, "max_deflate_level", id="value"),
        pytest.param(lambda: RealNsqd(program=NSQD, release="1.2.0"), Unavailable, "release is the emu", id="emulated"),
        pytest.param(lambda: RealNsqd(program="/no/nsqd"), FileNotFoundError, "'/no/nsqd' is no program", id="program"),
        pytest.param(lambda: RealNsqd.at("nsqd", "nsqd:4151"), ValueError, "'nsqd' is not host:port", id="address"),
    ],
)
def test_what_a_real_server_cannot_be_made_of_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_program_that_does_not_start_is_shown_with_its_log():
    nsqd = RealNsqd(program=NSQD, flags=["--tls-cert=none"])

    with pytest.raises(OSError, match=r"(?s)nsqd has ended at its start: .*tls_cert and tls_key must"):
        nsqd.start()
    nsqd.close()


def test_bodies_from_before_other_channels_cannot_be_listed(real):
    topic = real.topic()
    create_channel(real, topic, "billing")

    with pytest.raises(RuntimeError, match=rf"has channels \(billing\).* call messages\('{topic}'\) once before"):
        real.messages(topic)


def test_many_and_large_bodies_are_published_in_parts_and_collected_once(real):
    topic, bodies = real.topic(), [*(b"%d" % number for number in range(5940)), *[b"x" * 100_000] * 60]
    real.publish(topic, *bodies[:3000])
    real.publish(topic, *bodies[3000:])

    assert sorted(real.messages(topic)) == sorted(bodies)
    assert len(real.messages(topic)) == 6000
    assert real.depth(topic) == 0


def test_topics_of_a_server_that_was_only_named_are_deleted(fakensqd):
    fakensqd.publish("other", b"x")
    with RealNsqd.at(fakensqd.tcp_address, fakensqd.http_address) as nsqd:
        topic = nsqd.topic()
        nsqd.publish(topic, b"1")
        assert nsqd.messages(topic) == [b"1"]
        with pytest.raises(Unavailable, match=r"restart: nsqd .* was not started here"):
            nsqd.restart()

    assert fakensqd.depth("other") == 1
    assert list(fakensqd.broker.topics) == ["other"]


def processes(folder):
    """Return the command lines of running processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(folder) in line]


def test_start_that_fails_leaves_no_process_and_no_folder(programs, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(OSError, match="nsqd has ended"),
        RealCluster(program=programs / "nsqd", flags=["--tls-cert=none"]),
    ):
        pass
    with pytest.raises(FileNotFoundError, match="'/no/nsqlookupd'"), RealCluster(program="/no/nsqd"):
        pass

    assert list(tmp_path.iterdir()) == []
    assert processes(tmp_path) == []


def test_program_that_a_script_starts_ends_with_it(programs, tmp_path):
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\n{programs / "nsqd"} "$@" --broadcast-address={tmp_path}\n')
    script.chmod(0o755)
    with RealNsqd(program=script, log=tmp_path / "log", log_level="error") as nsqd:
        assert nsqd.running
        os.killpg(nsqd.pid, signal.SIGKILL)  # by somebody else
        nsqd.wait_until(lambda nsqd: not nsqd.running)
        nsqd.start()
        assert nsqd.depth("t") == 0

    assert processes(tmp_path) == []


def test_paused_topic_and_an_nsqd_with_auth_can_show_no_bodies(real):
    topic = real.topic()
    real.publish(topic, b"1")
    real.request("POST", "/topic/pause", topic=topic)
    with pytest.raises(Unavailable, match="is paused: nsqd gives its messages to no channel"):
        real.messages(topic)
    with FakeAuthServer({}) as auth, RealNsqd(program=NSQD, auth_http_addresses=[auth.http_address]) as nsqd:
        nsqd.publish("t", b"1")
        with pytest.raises(Unavailable, match=r"an nsqd without AUTH.*: E_AUTH_FIRST"):
            nsqd.messages("t")


# --- the fixtures -----------------------------------------------------------------------------------------------------

BOTH = """
import pytest
from fakensqd import on
from fakensqd.faults import disconnect


def test_both(nsqd):
    topic = nsqd.topic()
    nsqd.publish(topic, b"1")
    assert nsqd.messages(topic) == [b"1"]


@pytest.mark.nsqd(max_msg_size=5, threaded=True)
def test_option(nsqd):
    nsqd.publish("t", b"1")
    assert nsqd.messages("t") == [b"1"]


def test_cluster(nsqd_cluster, nsqlookupd):
    nsqd_cluster.publish("t", b"1", b"2")
    assert len(nsqd_cluster.messages("t")) == 2


def test_end(nsqd):
    nsqd.restart()


def test_fault(nsqd):
    nsqd.add(on.command("PUB"), disconnect(), optional=True)


def test_that_fails_before_it_asks(nsqd):
    try:
        assert nsqd.messages("t") == [b"wrong"]
    finally:
        nsqd.reset()


def test_attribute(nsqd, nsqd_cluster):
    assert nsqd_cluster.unfired


@pytest.mark.fake_only("it turns the clock")
def test_clock(nsqd):
    assert nsqd.clock


def test_that_fails(nsqd):
    nsqd.publish("t", b"1")
    assert nsqd.messages("t") == [b"2"]
"""
NONE = ["-p", "no:cacheprovider", "-p", "fakensqd.pytest_plugin", "-rs"]
COMPOSE = """#!/bin/sh
case "$2 $4" in
    "port 4150") echo 0.0.0.0:{tcp} ;;
    "port 4151") echo 0.0.0.0:{http} ;;
    "logs "*) echo 'a line of its log' ;;
esac
"""


@pytest.fixture
def pytest_run(tmp_path):
    """Run the tests with options of pytest and an environment; returns what pytest prints."""
    (tmp_path / "test_servers.py").write_text(BOTH)

    def run_tests(*options, **environment):
        environment = {
            "PATH": "/usr/bin:/bin",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": ":".join(sys.path),
        } | environment
        command = [sys.executable, "-m", "pytest", *NONE, *options, "test_servers.py"]
        done = run(*command, cwd=tmp_path, env=environment)
        return done.stdout + done.stderr

    return run_tests


def test_fixtures_are_the_emulator_without_an_option(pytest_run):
    said = pytest_run()

    assert "2 failed, 7 passed" in said
    assert "nsqd: " not in said.partition("collected")[0]


def test_fixtures_are_real_servers_with_one(pytest_run, programs):
    said = pytest_run("--nsqd=real", PATH=f"{programs}:/usr/bin:/bin")

    assert "2 failed, 4 passed, 3 skipped" in said
    assert "needs the emulator: it turns the clock" in said
    assert "add is the emulator's alone: RealNsqd has no such thing" in said
    assert "TCP: listening on" in said  # the log of the server, in the report of the failed test


@pytest.mark.parametrize("way", ["option", "variable", "setting"])
def test_program_is_named(pytest_run, programs, tmp_path, way):
    nsqd = str(programs / "nsqd")
    if way == "setting":
        (tmp_path / "pytest.ini").write_text(f"[pytest]\nnsqd = real\nnsqd-program = {nsqd}\n")
    options = ["--nsqd=real", f"--nsqd-program={nsqd}"] if way == "option" else []
    variables = {"NSQD": "real", "NSQD_PROGRAM": nsqd} if way == "variable" else {}

    said = pytest_run(*options, "-k", "both", **variables)

    assert "nsqd: real" in said
    assert "1 passed, 8 deselected" in said


def test_servers_that_were_only_named_are_left_running(pytest_run):
    with FakeNsqd().in_thread() as nsqd:
        said = pytest_run(f"--nsqd={nsqd.tcp_address},{nsqd.http_address.rpartition(':')[2]}")

        assert nsqd.depth("t") == 0
    assert "2 failed, 1 passed, 6 skipped" in said
    assert "the option max_msg_size needs an nsqd of the test's own: --nsqd=real" in said
    assert "nsqd_cluster: --nsqd=127.0.0.1" in said
    assert "was not started here" in said


def test_services_of_a_compose_file_are_asked_for(pytest_run, tmp_path):
    with FakeNsqd().in_thread() as nsqd:
        (tmp_path / "docker").write_text(COMPOSE.format(tcp=nsqd.tcp_port, http=nsqd.http_port))
        (tmp_path / "docker").chmod(0o755)
        said = pytest_run("--nsqd=compose", PATH=f"{tmp_path}:/usr/bin:/bin")

    assert "2 failed, 2 passed, 5 skipped" in said
    assert "a line of its log" in said


def test_word_that_names_no_servers_is_an_error(pytest_run):
    words = "is not fake, real, compose, or addresses such as 127.0.0.1:4150,4151"

    assert f"'reel' (--nsqd, NSQD in the environment, or nsqd in pytest's ini) {words}" in pytest_run("--nsqd=reel")
    assert "9 errors" in pytest_run(NSQD="/usr/bin/nsqd")
    assert "there is no program nsqd on PATH: install nsqd and nsqlookupd, or name them" in pytest_run("--nsqd=real")
