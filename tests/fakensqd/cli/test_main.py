"""The ``fakensqd`` command: help, version, and a cluster that runs."""

import contextlib
import json
import signal
import socket

import pytest
from click.testing import CliRunner

import gnsq
from fakensqd.cli.main import command_line
from tests.kit import run_program
from tests.kit.daemons import child, command, run
from tests.kit.wire import request

pytestmark = pytest.mark.subprocess


def test_help_names_the_commands_and_version_the_emulated_one():
    shown = CliRunner().invoke(command_line, ["--help"])
    version = CliRunner().invoke(command_line, ["--version"], prog_name="fakensqd")

    assert (shown.exit_code, version.exit_code) == (0, 0)
    assert 'exec fakensqd nsqd "$@"' in shown.output
    assert [name for name in ("nsqd", "nsqlookupd", "cluster") if f"\n  {name} " not in shown.output] == []
    assert version.output == f"fakensqd {gnsq.__version__}, emulates nsqd and nsqlookupd 1.3.0\n"


def cluster(*arguments):
    return child(*command("cluster", *arguments))


def free_base_port(*offsets):
    """A port such that those so far above it are free, too."""
    for base in range(20000, 30000, 17):
        with contextlib.ExitStack() as stack:
            try:
                for offset in offsets:
                    stack.enter_context(socket.create_server(("127.0.0.1", base + offset)))
            except OSError:
                continue
            return base
    raise AssertionError("no free ports from 20000 to 30000")


def test_cluster_prints_addresses_and_ends_by_sigterm():
    with cluster("--nsqds", "3", "--lookupds", "2") as process:
        lines = [process.stdout.readline().split() for _ in range(6)]
        assert [line[0] for line in lines] == ["nsqlookupd"] * 2 + ["nsqd"] * 3 + ["nsqadmin"]
        for line in lines[:2]:
            assert len(request(line[4], "GET", "/nodes")["producers"]) == 3
        assert lines[5][1:] == [f"--lookupd-http-address={line[4]}" for line in lines[:2]]
        assert "SIGTERM" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert process.stderr.read() == ""


def test_cluster_without_nsqlookupds_passes_its_nsqds_to_nsqadmin():
    with cluster("--nsqds=1", "--lookupds=0") as process:
        nsqd = process.stdout.readline().split()

        assert process.stdout.readline() == f"nsqadmin --nsqd-http-address={nsqd[4]}\n"


def test_cluster_on_fixed_ports_prints_json():
    base = free_base_port(0, 1, 10, 11, 100, 101)
    with cluster(f"--base-port={base}", "--json") as process:
        described = json.loads(process.stdout.readline())

        def addresses(first):
            names = {"tcp_address": 0, "http_address": 1}
            return {name: f"127.0.0.1:{first + offset}" for name, offset in names.items()}

        assert described == {
            "nsqds": [addresses(base), addresses(base + 100)],
            "nsqlookupds": [addresses(base + 10)],
            "nsqadmin": f"nsqadmin --lookupd-http-address=127.0.0.1:{base + 11}",
            "pid": process.pid,
        }
        process.send_signal(signal.SIGINT)
        assert (process.wait(), process.stdout.read(), process.stderr.read()) == (0, "", "")


def test_cluster_for_clients_elsewhere_prints_the_address_that_it_is_given():
    with cluster("--host=0.0.0.0", "--broadcast-address=nsq.test", "--json") as process:
        described = json.loads(process.stdout.readline())

    addresses = [address for name in ("nsqds", "nsqlookupds") for row in described[name] for address in row.values()]
    assert [address.partition(":")[0] for address in addresses] == ["nsq.test"] * 6
    assert described["nsqadmin"] == f"nsqadmin --lookupd-http-address={described['nsqlookupds'][0]['http_address']}"


def test_cluster_names_a_port_that_is_in_use():
    base = free_base_port(0, 1, 10, 11, 100, 101)
    with socket.create_server(("127.0.0.1", base + 101)):
        result = run("cluster", f"--base-port={base}")

    address = f"127.0.0.1:{base + 101}"
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"Error: cannot listen on {address}: Address already in use; give another --base-port\n"


def test_cluster_refuses_ports_that_do_not_exist():
    result = CliRunner().invoke(command_line, ["cluster", "--base-port=65000", "--nsqds=9"])

    assert result.exit_code == 2
    assert "--base-port: base_port 65000 must be from 1 to 64734 with nsqds=9, lookupds=1\n" in result.output


def test_program_without_click_names_the_package_to_install():
    code = (
        "import sys; sys.modules['click'] = None; sys.argv = ['fakensqd']; from fakensqd.__main__ import main; main()"
    )
    result = run_program(code, flags=())

    assert result.returncode == 1
    assert result.stderr.startswith("fakensqd's command line needs click: pip install 'gnsq[fakensqd]'")
