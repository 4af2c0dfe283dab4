"""``make bench``: every client of every workload measures what it says, and the report has all of it."""

import importlib.util
import sys
from pathlib import Path

import pytest

from fakensqd import FakeNsqd
from integration.bench import clients, compare, emulator, layers
from integration.bench.figures import RATE, Results
from integration.bench.servers import Nsqd, echo

ROOT = Path(__file__).parent.parent
OURS = [(workload, client) for workload, found in clients.WORKLOADS.items() for client in found]


@pytest.fixture
def nsqd(fakensqd_certificates):
    files = fakensqd_certificates.server()
    with FakeNsqd(tls_cert=files.certificate, tls_key=files.key).in_thread() as fake:
        yield Nsqd("fakensqd", fake.tcp_address, fake.http_address)


@pytest.mark.subprocess
@pytest.mark.parametrize(("workload", "client"), OURS)
def test_client_of_a_workload_measures_rate_and_cpu_time(nsqd, workload, client):
    module = clients.WORKLOADS[workload][client][0]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    setting = 1 if workload == "latency" or client == "ansq" else 10
    command = [sys.executable, str(compare.CLIENTS), client]

    with echo() as address:
        said = compare.once(nsqd, compare.Task(workload, setting, 300, ""), command, 300, address)

    assert said["rate"] > 0
    assert said["cpu"] > 0
    assert ("latency" in said) == (workload in ("latency", "delivery"))
    assert all(said["latency"][each] > 0 for each in said.get("latency", ()))


@pytest.mark.subprocess
def test_each_layer_is_measured(nsqd, fakensqd_certificates, monkeypatch):
    monkeypatch.setattr(compare, "ROUNDS", 1)
    results = Results()
    layers.measure(results, nsqd, str(fakensqd_certificates.ca), 1000)

    rates = {figure.client: figure.median for figure in results.figures if figure.quantity == RATE}
    assert [*rates] == ["plain", "tls", "snappy", "deflate"]
    assert min(rates.values()) > 0


def test_messages_through_the_emulator_and_its_start_are_measured():
    assert emulator.through(2000) > 0
    assert emulator.start_and_stop() > 0
