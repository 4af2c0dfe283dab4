"""``fakensqd nsqd`` and ``fakensqd nsqlookupd`` in the place of the real programs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gevent import socket

from fakensqd.addresses import split_address
from fakensqd.flags import LOOKUPD_FLAGS, NSQD_FLAGS, faults_flags, options_of
from fakensqd.goflags import parse
from gnsq.protocol import commands
from tests.fakensqd.programs import FREE_PORTS, LIMIT, command, program, run
from tests.fakensqd.wire import Client, consumer, request
from tests.helpers import wait_until

ROOT = Path(__file__).parent.parent.parent
NAMES = ["nsqd", "nsqlookupd"]


def flags(name, tmp_path):
    return [*FREE_PORTS, f"--data-path={tmp_path}"] if name == "nsqd" else FREE_PORTS


@pytest.mark.parametrize("name", NAMES)
def test_version(name):
    result = run(name, "--version")

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{name} v1.3.0 (built w/go1.27.3)\n"


@pytest.mark.parametrize("where", ["working directory", "PYTHONPATH"])
def test_other_gnsq_beside_the_suite_that_starts_it_is_no_hindrance(tmp_path, where):
    (tmp_path / "gnsq").mkdir()
    (tmp_path / "gnsq" / "__init__.py").write_text("raise RuntimeError('another gnsq')")
    path = [str(ROOT)] if where == "working directory" else [str(tmp_path), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    result = subprocess.run(
        command("nsqd", "--version"), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("--foo", "flag provided but not defined: -foo\n"),
        ("--tcp-address", "flag needs an argument: -tcp-address\n"),
        ("--log-level=loud", 'invalid value "loud" for flag -log-level: '),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_bad_flags(name, word, text):
    result = run(name, word)

    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(text)
    assert f"Usage of {name}:\n" in result.stderr


def test_help_of_a_daemon():
    result = run("nsqd", "-h")

    assert result.returncode == 0
    assert "-lookupd-tcp-address value" in result.stderr


@pytest.mark.parametrize(("name", "flags"), [("nsqd", NSQD_FLAGS), ("nsqlookupd", LOOKUPD_FLAGS)])
def test_help_prints_defaults_that_the_flags_take_back(name, flags):
    flags = (*flags, *faults_flags(name))
    hostname = os.uname().nodename
    printed = re.findall(r"^  -(\S+).*\n    \t.*\(default (.*)\)$", run(name, "--help").stderr, re.MULTILINE)
    words = ["--" + flag + "=" + value.strip('"') for flag, value in printed]
    expected = options_of(flags, {}, hostname=hostname) | {"faults_over_http": True}

    assert {flag.name for flag in flags if flag.kind == "duration" and flag.field} < {flag for flag, _ in printed}
    assert options_of(flags, parse(flags, words), hostname=hostname) == expected


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--max-deflate-level=10"], "failed to instantiate nsqd - --max-deflate-level must be [1,9]"),
        (
            ["--tls-cert=none", "--tls-key=none"],
            "failed to instantiate nsqd - failed to build TLS config - open none: no such file",
        ),
        (["--tcp-address=x:y"], "failed to instantiate nsqd - address 'x:y' is not host:port"),
        (
            ["--e2e-processing-latency-percentile=2"],
            "failed to instantiate nsqd - invalid E2E processing lat",
        ),
        (["--data-path=none"], "failed to instantiate nsqd - failed to lock data-path: open none: no such file"),
        (["--config=none"], "failed to load config file none - [Errno 2] No such file or directory: 'none'"),
        (["--http-address=192.0.2.1:1"], "failed to instantiate nsqd - listen (192.0.2.1:1) failed - Cannot assign"),
        (["--faults-http-address=192.0.2.1:1"], "failed to instantiate nsqd - listen (192.0.2.1:1) failed - Cannot"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_fatal(words, text, tmp_path):
    result = run("nsqd", *flags("nsqd", tmp_path), "--https-address=127.0.0.1:0", *words)

    assert (result.returncode, result.stdout) == (1, "")
    assert f" FATAL: {text}" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", NAMES)
def test_it_listens_where_it_says_and_ends_in_order(name, number, tmp_path):
    with program(name, *flags(name, tmp_path)) as server:
        assert list(server.addresses) == ["TCP", "HTTP"]
        assert request(server.addresses["HTTP"], "GET", "/ping") == "OK"
        client = socket.create_connection(split_address(server.addresses["TCP"]), timeout=LIMIT)

        assert server.stop(number) == 0

        assert client.recv(1) == b""
        client.close()
        assert b"".join(server.lines).count(b"listening on") == 2
        assert len(server.lines) == 3


def test_a_signal_before_it_listens_ends_it_as_well():
    process = subprocess.Popen(command("nsqlookupd", *FREE_PORTS), stderr=subprocess.PIPE)
    time.sleep(0.06)
    process.terminate()

    # Python itself may not be up by then.
    assert process.wait(LIMIT) in (0, -signal.SIGTERM)
    process.stderr.close()


def test_flags_reach_the_server(tmp_path, tls_options):
    files = [f"--tls-cert={tls_options['tls_cert']}", f"--tls-key={tls_options['tls_key']}"]
    words = [
        *flags("nsqd", tmp_path),
        *files,
        "--https-address",
        "127.0.0.1:0",
        "--max-rdy-count",
        "7",
        "-snappy=false",
    ]
    with program("nsqd", *words, "--broadcast-address=b.example", listeners=3) as server:
        assert list(server.addresses) == ["TCP", "HTTP", "HTTPS"]
        answer = Client(server.addresses["TCP"]).identify(snappy=True, tls_v1=True)
        assert (answer["max_rdy_count"], answer["snappy"], answer["tls_v1"]) == (7, False, True)
        assert request(server.addresses["HTTP"], "GET", "/info")["broadcast_address"] == "b.example"
        with socket.create_connection(split_address(server.addresses["HTTPS"]), timeout=LIMIT) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.0 400 Bad Request\r\n")


@pytest.mark.parametrize("name", NAMES)
def test_a_port_in_use_is_fatal_in_one_line(name, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run(name, *flags(name, tmp_path), f"--tcp-address={address}")

    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert (
        f"FATAL: failed to instantiate {name} - listen ({address}) failed - Address already in use\n" in result.stderr
    )


@pytest.mark.parametrize("name", NAMES)
def test_faults_are_steered_over_http_even_while_it_is_down(name, tmp_path):
    with program(name, *flags(name, tmp_path), "--faults-http-address=127.0.0.1:0", listeners=3) as server:
        assert list(server.addresses) == ["TCP", "HTTP", "FAULTS"]
        faults = server.addresses["FAULTS"]
        assert request(server.addresses["HTTP"], "GET", "/faults") == {"rules": []}

        assert request(faults, "POST", "/faults/down")["down"]
        with pytest.raises(ConnectionRefusedError):
            request(server.addresses["HTTP"], "GET", "/ping")
        assert not request(faults, "POST", "/faults/up")["down"]

        assert request(server.addresses["HTTP"], "GET", "/ping") == "OK"
        assert request(faults, "POST", "/faults/down")["down"]
        assert server.stop(signal.SIGTERM) == 0


def test_without_a_flag_there_is_no_faults_port(tmp_path):
    with program("nsqd", *flags("nsqd", tmp_path)) as server:
        assert request(server.addresses["HTTP"], "GET", "/faults") == {"message": "NOT_FOUND"}
        assert server.stop(signal.SIGTERM) == 0

    assert list(server.addresses) == ["TCP", "HTTP"]
    assert b"FAULTS" not in b"".join(server.lines)


def test_flags_without_a_meaning_are_named_once(tmp_path):
    with program("nsqd", *flags("nsqd", tmp_path), "--verbose", "--sync-every=1", "--sync-every=2") as server:
        told = [line for line in server.lines if b"WARNING" in line]

    assert len(told) == 1
    assert told[0].endswith(b"accepted, and without a meaning in this emulator: --verbose, --sync-every\n")


def test_a_program_loads_only_what_it_needs():
    code = "import sys, fakensqd.server, fakensqd.lookupd, fakensqd.flags; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )

    late = {
        "auth",
        "auth_client",
        "lookup_peer",
        "tls",
        "faults.actions",
        "faults.jsonform",
        "faults.toxics",
        "faults_http",
    }
    assert not {*(f"fakensqd.{name}" for name in late), "gnsq.layers", "cryptography", "click", "requests"} & loaded


def test_a_configuration_file(tmp_path):
    file = tmp_path / "nsqd.toml"
    file.write_text('msg_timeout = "2s"\nmax_rdy_count = 7\nlog_prefix = "[mine] "\nid = 5\n')
    with program("nsqd", *flags("nsqd", tmp_path), f"--config={file}", "--max-rdy-count=8") as server:
        assert request(server.addresses["HTTP"], "GET", "/config/msg_timeout") == "2000000000"
        assert request(server.addresses["HTTP"], "GET", "/config/max_rdy_count") == "8"
        assert request(server.addresses["HTTP"], "GET", "/config/id") == "5"
        assert server.lines[-1].startswith(b"[mine] ")


def publish(server, body):
    client = Client(server.addresses["TCP"])
    client.send(commands.publish("t", body))
    assert client.frame() == (0, b"OK")


def fixed_ports(server, tmp_path):
    tcp, http = server.addresses["TCP"], server.addresses["HTTP"]
    return [f"--tcp-address={tcp}", f"--http-address={http}", f"--data-path={tmp_path}"]


def test_after_a_kill_topics_are_there_and_the_ports_are_free(tmp_path):
    with program("nsqd", *flags("nsqd", tmp_path)) as server:
        consumer(server.addresses["TCP"])
        publish(server, b"lost")
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        with program("nsqd", *fixed_ports(server, tmp_path)) as again:
            assert again.addresses == server.addresses
            (topic,) = request(again.addresses["HTTP"], "GET", "/stats?format=json")["topics"]

    assert (topic["topic_name"], topic["channels"][0]["channel_name"]) == ("t", "c")
    assert topic["channels"][0]["depth"] == 0


def test_after_a_stop_messages_are_there(tmp_path):
    with program("nsqd", *flags("nsqd", tmp_path)) as server:
        consumer(server.addresses["TCP"], ready=0)
        publish(server, b"kept")
        assert server.stop(signal.SIGTERM) == 0
        with program("nsqd", *fixed_ports(server, tmp_path)) as again:
            assert consumer(again.addresses["TCP"]).frame()[1].endswith(b"kept")


def test_a_second_nsqd_on_the_same_data_path(tmp_path):
    with program("nsqd", *flags("nsqd", tmp_path)):
        result = run("nsqd", *flags("nsqd", tmp_path))

    assert result.returncode == 1
    assert f"FATAL: failed to instantiate nsqd - failed to lock data-path: cannot flock directory {tmp_path}" in (
        result.stderr
    )


def test_nsqlookupd_sees_changes_at_once(tmp_path):
    with program("nsqlookupd", *FREE_PORTS, "--broadcast-address=127.0.0.1") as lookupd:
        words = [f"--lookupd-tcp-address={lookupd.addresses['TCP']}", "--broadcast-address=b.example"]
        with program("nsqd", *flags("nsqd", tmp_path), *words) as server:
            nodes = f"http://{lookupd.addresses['HTTP']}/nodes".split("/")[2]
            wait_until(lambda: request(nodes, "GET", "/nodes")["producers"])
            publish(server, b"x")
            wait_until(lambda: request(nodes, "GET", "/topics") == {"topics": ["t"]})
            (found,) = request(nodes, "GET", "/lookup?topic=t")["producers"]
            assert found["tcp_port"] == int(server.addresses["TCP"].rpartition(":")[2])
            server.stop(signal.SIGKILL)
            wait_until(lambda: request(nodes, "GET", "/nodes") == {"producers": []})


def test_a_unix_path(tmp_path):
    path = tmp_path / "nsqd.sock"
    with program("nsqd", f"--tcp-address={path}", "--http-address=127.0.0.1:0", f"--data-path={tmp_path}") as server:
        assert server.addresses["TCP"] == str(path)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(commands.MAGIC_V2 + commands.publish("t", b"x"))
            assert sock.recv(100).endswith(b"OK")
        assert server.stop(signal.SIGTERM) == 0

    assert not path.exists()


def test_every_address_means_ipv6_as_well(tmp_path):
    words = ["--tcp-address=0.0.0.0:0", "--http-address=:0", f"--data-path={tmp_path}"]
    with program("nsqd", *words) as server:
        port = server.addresses["HTTP"].rpartition(":")[2]
        assert server.addresses["HTTP"] == f"[::]:{port}"
        assert request(f"127.0.0.1:{port}", "GET", "/ping") == "OK"


def test_stderr_that_nobody_reads_does_not_stop_it(tmp_path):
    """Each of these warnings is a line; a pipe holds 64 KiB."""
    with program("nsqd", *flags("nsqd", tmp_path), f"--log-prefix=[{'x' * 3000}] ") as server:
        for number in range(60):
            body = json.dumps([f"127.0.0.1:{number % 2 + 1}"]).encode()
            request(server.addresses["HTTP"], "PUT", "/config/nsqlookupd_tcp_addresses", body)
        assert request(server.addresses["HTTP"], "GET", "/ping") == "OK"
        server.process.terminate()
        assert server.process.wait(LIMIT) == 0


def test_it_runs_in_the_current_directory_by_default(tmp_path):
    process = subprocess.Popen(
        command("nsqd", *FREE_PORTS),
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    try:
        wait_until((tmp_path / "nsqd.dat").exists)
    finally:
        process.terminate()
        assert process.wait(LIMIT) == 0
