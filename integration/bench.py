"""``make bench``: compare consumer and producer with a raw socket and all installed Python clients.

Each client runs in a process of its own against the same nsqd in the same run, so ratios mean something where seconds
do not. The nsqd is a real one if there is one (NSQD, or on PATH), else fakensqd, which is slower than its clients:
then the figures say little. Peers are looked for in this interpreter and in those that BENCH_PYTHONS names
(colon-separated): gnsq 1.0.2 needs one of its own. Clients in other languages are programs that BENCH_PROGRAMS names
(NAME=PATH, colon-separated), called with WORKLOAD HOST:PORT TOPIC COUNT SETTING and printing messages a second.
Workloads:

- consume: messages of 200 bytes that wait in a channel, handled by a function that counts; the setting is
  max_in_flight. 15 % more than are counted wait, else nsqd's 250 ms output buffer measures the tail.
- publish: messages of 200 bytes, each waiting for its OK; the setting is how many wait at once. Ours is measured with
  automatic batching, too: "batches" with as many greenlets, "async" with as many results of publish_async().
- layers: what TLS, snappy and deflate cost our consumer; see bench_layers.py.
- fakensqd: what the emulator itself does, in one process; see bench_fake.py.
- spark: the data source, the batch writer and the receiver; see bench_spark.py.

``bench.py layers``, ``bench.py fakensqd``, ``bench.py consume``, ``bench.py publish`` and ``bench.py spark`` measure
only that.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from fakensqd.certificates import CertificateFiles, Certificates
from gnsq import NsqdHTTPClient, Producer
from integration import bench_fake, bench_spark
from integration.bench_layers import LAYERS, body
from integration.bench_peers import NOT_INSTALLED, OWN, WORKLOADS
from integration.servers import program, running

LIMIT = 120.0
ROUNDS = 3
PEERS = Path(__file__).with_name("bench_peers.py")
CONSUME = [(200, 200_000), (2500, 200_000)]
LAYER_COUNT = 100_000
PUBLISH = [(1, 10_000), (100, 100_000), (1000, 100_000)]


@contextlib.contextmanager
def server(certificate: CertificateFiles) -> Iterator[tuple[str, str]]:
    """Start a server with TLS; returns its TCP and HTTP addresses."""
    tls = [f"--tls-cert={certificate.certificate}", f"--tls-key={certificate.key}"]
    if program("nsqd"):
        print(f"server: real nsqd, {program('nsqd')}")
        with running("nsqd", "--mem-queue-size=1000000", *tls) as nsqd:
            yield nsqd.tcp_address, nsqd.http_address
        return
    print("server: fakensqd, since no nsqd was found; put a real one on PATH for figures that mean something")
    command = [sys.executable, "-c", FAKE, *certificate]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        tcp, http = process.stdout.readline().split()
        yield tcp, http
        process.terminate()


FAKE = """
import sys
import gevent
from fakensqd import FakeNsqd
with FakeNsqd(mem_queue_size=1000000, tls_cert=sys.argv[1], tls_key=sys.argv[2]) as nsqd:
    print(nsqd.tcp_address, nsqd.http_address, flush=True)
    gevent.sleep(3600)
"""


def measure(name: str, client: list[str], *arguments: object) -> float | None:
    """Run one client. Returns messages per second; None if it is not installed or has failed (then print why)."""
    command = [*client, *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, cwd="/")
    except subprocess.TimeoutExpired:
        print(f"  {name}: not done within {LIMIT:.0f} s")
        return None
    if done.returncode == 0:
        return float(done.stdout)
    if done.returncode != NOT_INSTALLED:
        print(f"  {name}: failed: {done.stderr.strip().splitlines()[-1:]}")
    return None


def fill(tcp: str, http: str, topic: str, count: int, body: Callable[[int], bytes] = lambda number: b"x" * 200) -> None:
    """Publish messages to a topic with the channel bench."""
    client = NsqdHTTPClient.from_url(http)
    client.create_topic(topic)
    client.create_channel(topic, "bench")
    with Producer(tcp) as producer:
        for first in range(0, count, 1000):
            producer.multipublish(topic, [body(number) for number in range(first, first + 1000)])


def pythons() -> list[str]:
    """Return this interpreter and those of the variable BENCH_PYTHONS."""
    return [sys.executable, *filter(None, os.environ.get("BENCH_PYTHONS", "").split(":"))]


def label(python: str, client: str) -> str:
    """Return a client's name; that of gnsq has its version, since 1.0.2 runs the same code."""
    if client != "gnsq":
        return client
    code = "import gnsq; print(gnsq.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    return f"gnsq {done.stdout.strip()}" if done.returncode == 0 else client


def clients(workload: str) -> dict[str, list[str]]:
    """Return the command of each client, by its name."""
    found = {}
    for python in pythons():
        for client in WORKLOADS[workload]:
            if client not in OWN or python == sys.executable:
                found[label(python, client)] = [python, str(PEERS), client]
    for given in filter(None, os.environ.get("BENCH_PROGRAMS", "").split(":")):
        name, _, path = given.partition("=")
        found[name] = [path]
    return found


def rates(tcp: str, http: str, workload: str, setting: int, count: int) -> dict[str, float]:
    """Measure all clients in turn, ROUNDS times; returns the median of each."""
    waiting = clients(workload)
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, client in list(waiting.items()):
            topic = f"bench-{uuid.uuid4().hex[:8]}"
            if workload == "consume":
                fill(tcp, http, topic, count + count * 15 // 100)
            rate = measure(name, client, workload, tcp, topic, count, setting)
            if rate is None:
                del waiting[name]
            else:
                found.setdefault(name, []).append(rate)
            with contextlib.suppress(Exception):  # a workload that failed early made no topic
                NsqdHTTPClient.from_url(http).delete_topic(topic)
    return {name: statistics.median(values) for name, values in found.items()}


def layer_costs(tcp: str, http: str, ca: str) -> dict[str, list[tuple[float, float]]]:
    """Measure all layers in turn, ROUNDS times: microseconds of CPU time per message, in total and in the codec."""
    found: dict[str, list[tuple[float, float]]] = {layer: [] for layer in LAYERS}
    for _ in range(ROUNDS):
        for layer, costs in found.items():
            topic = f"bench-{uuid.uuid4().hex[:8]}"
            fill(tcp, http, topic, LAYER_COUNT + LAYER_COUNT * 15 // 100, body)
            command = [sys.executable, "-m", "integration.bench_layers", layer, tcp, topic, str(LAYER_COUNT), ca]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
            whole, alone = map(float, done.stdout.split())
            costs.append((whole, alone))
            NsqdHTTPClient.from_url(http).delete_topic(topic)
    return found


def show_layers(costs: dict[str, list[tuple[float, float]]]) -> None:
    print(f"layers, consume, {LAYER_COUNT} messages, median of {ROUNDS}; CPU time of the client for each message")
    plain = statistics.median(whole for whole, _ in costs["plain"])
    print(f"  plain    {plain:5.2f} us")
    for layer in LAYERS[1:]:
        whole, alone = (statistics.median(column) for column in zip(*costs[layer], strict=True))
        share = (whole - plain) / alone
        print(
            f"  {layer:<8} {whole:5.2f} us: {whole - plain:5.2f} above plain, {share:4.2f} of the codec's {alone:4.2f}"
        )


def main() -> int:
    only = sys.argv[1] if sys.argv[1:] else None
    if only in (None, "fakensqd"):
        bench_fake.show()
    if only == "fakensqd":
        return 0
    with tempfile.TemporaryDirectory() as folder:
        certificates = Certificates(folder)
        return measure_all(only, certificates.server(), certificates.ca)


def measure_all(only: str | None, certificate: CertificateFiles, ca: str) -> int:
    with server(certificate) as (tcp, http):
        for workload, settings in (("consume", CONSUME), ("publish", PUBLISH)):
            if only in (None, workload):
                measure_peers(tcp, http, workload, settings)
        if only in (None, "layers"):
            show_layers(layer_costs(tcp, http, ca))
        if only in (None, "spark"):
            bench_spark.show(tcp, http, fill)
    return 0


def measure_peers(tcp: str, http: str, workload: str, settings: list[tuple[int, int]]) -> None:
    for setting, count in settings:
        print(f"{workload}, setting {setting}, {count} messages, median of {ROUNDS}", flush=True)
        found = rates(tcp, http, workload, setting, count)
        raw = found.get("raw", float("nan"))
        for name, rate in sorted(found.items(), key=lambda item: -item[1]):
            print(f"  {name:<16} {rate:>10,.0f} messages/s   {rate / raw:5.2f} of raw", flush=True)


if __name__ == "__main__":
    sys.exit(main())
