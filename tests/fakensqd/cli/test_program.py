"""``fakensqd nsqd`` and ``fakensqd nsqlookupd`` as replacements of the real programs."""

import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from gevent import socket

from fakensqd.addresses import split_address
from fakensqd.cli.main import command_line
from gnsq.protocol import commands
from tests import kit
from tests.kit import run_program
from tests.kit.daemons import FREE_PORTS, LIMIT, command, program, run
from tests.kit.wire import Client, request

ROOT = Path(__file__).parents[3]
NAMES = ["nsqd", "nsqlookupd"]


@pytest.mark.parametrize("name", NAMES)
def test_version_of_a_daemon_is_that_of_the_real_program(name):
    result = CliRunner().invoke(command_line, [name, "-version"])

    assert (result.exit_code, result.output) == (0, f"{name} v1.3.0 (built w/go1.27.3)\n")


@pytest.mark.parametrize("where", ["working directory", "PYTHONPATH"])
@pytest.mark.subprocess
def test_program_imports_its_own_gnsq_beside_another_one(tmp_path, where):
    (tmp_path / "gnsq").mkdir()
    (tmp_path / "gnsq" / "__init__.py").write_text("raise RuntimeError('another gnsq')")
    path = [str(ROOT)] if where == "working directory" else [str(tmp_path), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    result = kit.run(*command("nsqd", "--version"), cwd=tmp_path, env=environment)

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.subprocess
def test_program_that_cannot_start_logs_one_line_and_exits_with_status_1():
    result = run("nsqd", *FREE_PORTS, "--tls-cert=none")

    assert (result.returncode, result.stdout) == (1, "")
    assert " CRITICAL: cannot start nsqd: tls_cert and tls_key must be given together" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("name", "number"), [("nsqd", signal.SIGINT), ("nsqlookupd", signal.SIGTERM)])
@pytest.mark.subprocess
def test_program_listens_on_its_ports_and_ends_by_a_signal(name, number):
    with program(name, *FREE_PORTS) as server:
        assert list(server.addresses) == ["TCP", "HTTP"]
        assert request(server.addresses["HTTP"], "GET", "/ping") == "OK"
        client = socket.create_connection(split_address(server.addresses["TCP"]), timeout=LIMIT)

        assert server.stop(number) == 0

        assert client.recv(1) == b""
        client.close()
        assert b"".join(server.lines).count(b"listening on") == 2
        assert len(server.lines) == 2


@pytest.mark.subprocess
def test_signal_in_code_that_drops_exceptions_ends_the_program():
    code = """
import signal, weakref
from fakensqd.__main__ import exit_on_signals
class Dropped: pass
exit_on_signals()
dropped = Dropped()
reference = weakref.ref(dropped, lambda _: signal.raise_signal(signal.SIGTERM))
del dropped
raise SystemExit("it goes on")
"""
    result = run_program(code)

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.subprocess
def test_flags_reach_the_server_and_ignored_ones_are_logged_once(tls_options, client_context):
    arguments = [
        *["--tcp-address=0.0.0.0:0", "--http-address=:0", "--https-address", "127.0.0.1:0", "--data-path=x"],
        *[f"--tls-cert={tls_options['tls_cert']}", f"--tls-key={tls_options['tls_key']}"],
        *["--max-rdy-count", "8", "-snappy=false", "--broadcast-address=b.example"],
        *["--verbose", "--sync-every=1", "--sync-every=2"],
    ]
    with program("nsqd", *arguments, listeners=3) as server:
        tcp, http = (f"127.0.0.1:{server.addresses[name].rpartition(':')[2]}" for name in ("TCP", "HTTP"))
        answer = Client(tcp).identify(snappy=True, tls_v1=True)
        info = request(http, "GET", "/info")
        assert request(server.addresses["HTTPS"], "GET", "/ping", context=client_context) == "OK"

    assert (answer["max_rdy_count"], answer["snappy"], answer["tls_v1"]) == (8, False, True)
    assert info["broadcast_address"] == "b.example"
    (warning,) = [line for line in server.lines if b"WARNING" in line]
    assert warning.endswith(b"flags that this emulator ignores: --verbose, --data-path, --sync-every\n")


@pytest.mark.subprocess
def test_program_imports_only_the_modules_that_it_needs():
    code = "import sys, fakensqd.nsqd.server, fakensqd.lookupd.server, fakensqd.cli.program; print(*sys.modules)"
    loaded = set(run_program(code, flags=()).stdout.split())
    assert "fakensqd.nsqd.server" in loaded

    late = {"nsqd.auth", "nsqd.auth_client", "lookupd.client", "tls", "faults.relay"}
    assert not {*(f"fakensqd.{name}" for name in late), "gnsq.tls", "cryptography", "click", "requests"} & loaded


@pytest.mark.subprocess
def test_address_without_a_port_is_a_unix_socket_in_the_current_directory(socket_folder):
    arguments = ["--tcp-address=nsqd.sock", "--http-address=127.0.0.1:0"]
    with program("nsqd", *arguments, cwd=socket_folder, env=os.environ | {"PYTHONPATH": str(ROOT)}) as server:
        assert server.addresses["TCP"] == "./nsqd.sock"
        info = request(server.addresses["HTTP"], "GET", "/info")
        assert (info["broadcast_address"], info["tcp_port"]) == (os.uname().nodename, -1)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(socket_folder / "nsqd.sock"))
            sock.sendall(commands.MAGIC_V2 + commands.publish("t", b"x"))
            assert sock.recv(100).endswith(b"OK")
        assert server.stop(signal.SIGTERM) == 0

    assert not (socket_folder / "nsqd.sock").exists()
