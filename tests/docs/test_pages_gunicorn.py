"""The web application of the guide to forks runs in each kind of gunicorn's workers; the worker for Kubernetes, too."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys

import pytest
import yaml

from fakensqd import on
from fakensqd.faults import error
from tests.docs.pages import ROOT, blocks
from tests.docs.prose import Addresses
from tests.kit import child, refused_port, wait_for_program

pytestmark = pytest.mark.subprocess


LISTENING = re.compile(r"http://(127\.0\.0\.1:\d+)")


def write_files(page, folder, nsqd, lookupd):
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(Addresses(nsqd, lookupd).put_in(block.code))


def request(method, address, path, body=None):
    """Send a request; returns the status and the text of the response, or None if there was no response."""
    connection = http.client.HTTPConnection(address, timeout=30)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read().decode()


@contextlib.contextmanager
def program(folder, *command, **variables):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), **variables}
    with (
        (folder / "out").open("w") as out,
        child(sys.executable, *command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.parametrize("worker", ["sync", "gthread", "gevent"])
def test_application_stores_bodies_and_reports_errors(worker, fakensqd, fakelookupd, socket_folder):
    write_files("guides/forks-and-gunicorn.md", socket_folder, fakensqd, fakelookupd)

    # --timeout 0: on a busy machine a worker may be silent for 30 s.
    command = ("-m", "gunicorn", "-k", worker, "--preload", "--bind", "127.0.0.1:0", "--timeout", "0", "app:app")
    with program(socket_folder, *command) as process:
        wait_for_program(process, lambda: LISTENING.search((socket_folder / "out").read_text()))
        address = LISTENING.search((socket_folder / "out").read_text())[1]
        stored = request("POST", address, "/", b"42")
        refused = request("POST", address, "/", b"")
        with fakensqd.add(on.command("PUB").first(2), error("E_PUB_FAILED")):
            full = request("POST", address, "/", b"43")

    assert stored == (200, "stored")
    assert refused == (400, "this order can't be taken")
    assert full == (503, "not stored")
    assert fakensqd.messages("orders") == [b"42"]


def test_each_of_two_workers_has_its_metrics(fakensqd, fakelookupd, socket_folder):
    write_files("guides/forks-and-gunicorn.md", socket_folder, fakensqd, fakelookupd)
    write_files("guides/metrics.md", socket_folder, fakensqd, fakelookupd)
    ports = [refused_port() for _ in range(4)]
    path = socket_folder / "gunicorn.conf.py"
    path.write_text(path.read_text().replace("range(9100, 9104)", str(ports)))

    def metrics():
        return [answer[1] for port in ports if (answer := request("GET", f"127.0.0.1:{port}", "/metrics"))]

    command = ("-m", "gunicorn", "--workers", "2", "--bind", "127.0.0.1:0", "--timeout", "0", "app:app")
    with program(socket_folder, *command) as process:
        wait_for_program(process, lambda: len(metrics()) == 2)
        address = LISTENING.search((socket_folder / "out").read_text())[1]
        for _ in range(10):
            assert request("POST", address, "/", b"42") == (200, "stored")
        counts = [
            float(count)
            for page in metrics()
            for count in re.findall(r"^gnsq_producer_messages_confirmed_total (\S+)$", page, re.MULTILINE)
        ]

    assert (len(counts), sum(counts)) == (2, 10)


def test_worker_for_kubernetes_answers_probes_and_drains(fakecluster, socket_folder):
    write_files("guides/kubernetes.md", socket_folder, fakecluster.nsqds[0], fakecluster.lookupds[0])
    address = f"127.0.0.1:{refused_port()}"
    path = socket_folder / "worker.py"
    path.write_text(path.read_text().replace("8080", address.rpartition(":")[2]))
    fakecluster.publish("orders", b"42", b"43")

    lookupds = " ".join(fakecluster.lookupd_http_addresses)
    with program(socket_folder, "worker.py", LOOKUPD_HTTP_ADDRESSES=lookupds) as process:
        wait_for_program(process, lambda: request("GET", address, "/ready") == (200, "ok\n"))
        assert request("GET", address, "/live")[0] == 200
        assert request("GET", address, "/other")[0] == 404
        wait_for_program(process, lambda: (socket_folder / "out").read_text().count("bill b'4") == 2)
        fakecluster.nsqds[0].down()
        fakecluster.nsqds[1].down()
        wait_for_program(process, lambda: request("GET", address, "/ready")[0] == 503)


def test_manifests_are_yaml():
    manifests = [yaml.safe_load(block.code) for block in blocks("guides/kubernetes.md") if block.language == "yaml"]

    assert [list(manifest) for manifest in manifests] == [["apiVersion", "kind", "metadata", "spec"], ["lifecycle"]]
