"""Measure what more of something costs: connections, publishing greenlets, bytes of a body, consumer processes.

The consumers are processes of their own, whose CPU time and memory are read from /proc (Linux). Many connections to one
nsqd: the same address in ways of writing that a resolver takes for the same, since a consumer connects once to each.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from integration.bench import compare
from integration.bench.compare import Task
from integration.bench.figures import CPU, RATE, Figure, Results
from integration.bench.servers import Nsqd
from tests.kit import allow_open_files

CONNECTIONS = (1, 10, 100, 300, 1000)
# Messages in flight for all connections: enough for each, and too few for many.
MAX_IN_FLIGHT = (2500, 200)
STEADY_RATE, STEADY_SECONDS = 2_000, 3.0
GREENLETS = (1, 10, 100, 1_000, 10_000)
BODIES = (16, 256, 4 << 10, 64 << 10, 1 << 20)
BODY_BYTES = 200 << 20  # all bodies of a size, at most
PROCESSES = (1, 2, 3, 4)
MESSAGES = 300_000


def measure(results: Results, nsqd: Nsqd) -> None:
    """Measure all curves."""
    allow_open_files(2 * max(CONNECTIONS) + 200)
    for name, function in (
        ("connections", measure_connections),
        ("publishing greenlets", measure_greenlets),
        ("bodies", measure_bodies),
        ("processes", measure_processes),
    ):
        print(f"curves, {name}", flush=True)
        function(results, nsqd)


def measure_connections(results: Results, nsqd: Nsqd) -> None:
    """Consume a steady stream through many connections; the memory is above that of a consumer with one."""
    for max_in_flight in MAX_IN_FLIGHT:
        alone = 0.0
        for count in CONNECTIONS:
            with nsqd.topic() as topic, consumers(nsqd, topic, 1, max_in_flight, count) as [pid]:
                alone = alone or memory(pid)
                idle = measured_cpu([pid], 2.0)
                each = (memory(pid) - alone) / max(count - 1, 1)
                with compare.publishing_with_time(nsqd.tcp, topic, STEADY_RATE):
                    time.sleep(0.5)  # the first messages are not counted
                    before = nsqd.channel(topic)["message_count"]
                    busy = measured_cpu([pid], STEADY_SECONDS)
                    done = nsqd.channel(topic)["message_count"] - before
            setting = f"connections, {STEADY_RATE:,} messages/s, {max_in_flight:,} in flight"
            _add(results, setting, count, CPU, "us a message", busy / done * 1e6)
            _add(results, setting, count, "CPU when idle", "% of a core", idle / 2.0 * 100)
            _add(results, setting, count, "memory", "KiB a connection", each)


def measure_greenlets(results: Results, nsqd: Nsqd) -> None:
    """Publish from many greenlets, each of which waits for its own OK."""
    setting = "publishing greenlets"
    for count in GREENLETS:
        messages = max(20_000, min(count * 1_000, 100_000))
        _measure_own(results, nsqd, setting, Task("publish", count, messages, "", count))


def measure_bodies(results: Results, nsqd: Nsqd) -> None:
    """Publish and consume bodies of many sizes."""
    for size in BODIES:
        count = max(200, min(100_000, BODY_BYTES // size))
        for workload, setting in (("publish", 100), ("consume", 200)):
            task = Task(workload, setting, count, "", size)
            name = f"bytes of a body, {workload}, {setting} {'waiting' if workload == 'publish' else 'in flight'}"
            _measure_own(results, nsqd, name, task, size)


def _measure_own(results: Results, nsqd: Nsqd, setting: str, task: Task, size: int = 200) -> None:
    command = [sys.executable, str(compare.CLIENTS), "gnsq"]
    for _ in range(compare.ROUNDS):
        said = compare.once(nsqd, task, command, task.count, "", lambda number: b"x" * size)
        if said is None:
            return
        _add(results, setting, task.x, RATE, "messages/s", said["rate"])
        _add(results, setting, task.x, CPU, "us a message", said["cpu"])
        if "bytes" in setting:
            _add(results, setting, task.x, "bytes", "MB/s", said["rate"] * size / 1e6)


def measure_processes(results: Results, nsqd: Nsqd) -> None:
    """Consume from one channel in several processes."""
    for count in PROCESSES:
        for _ in range(compare.ROUNDS):
            with nsqd.topic() as topic:
                nsqd.client.pause_channel(topic, "bench")
                nsqd.fill(topic, MESSAGES)
                with consumers(nsqd, topic, count, 200, 1) as pids:
                    before, started = sum(map(cpu, pids)), time.perf_counter()
                    nsqd.client.unpause_channel(topic, "bench")
                    nsqd.wait_until_empty(topic)
                    seconds, spent = time.perf_counter() - started, sum(map(cpu, pids)) - before
            setting = "consumer processes on one channel"
            _add(results, setting, count, RATE, "messages/s", MESSAGES / seconds)
            _add(results, setting, count, CPU, "us a message", spent / MESSAGES * 1e6)


def _add(results: Results, setting: str, x: float | None, quantity: str, unit: str, value: float) -> None:
    results.add(Figure("curves", setting, f"{x:,}", quantity, unit, x), value)


# --- consumers in processes of their own


def addresses(tcp: str, count: int) -> list[str]:
    """Return a number of ways to write an address of 127.0.0.1, by zeros in front of its parts."""
    port = tcp.rsplit(":", 1)[1]
    digits = [(number // 100 % 10, number // 10 % 10, number % 10) for number in range(count)]
    return [f"127.0{'0' * a}.0{'0' * b}.{'0' * c}1:{port}" for a, b, c in digits]


@contextlib.contextmanager
def consumers(nsqd: Nsqd, topic: str, processes: int, max_in_flight: int, connections: int) -> Iterator[list[int]]:
    """Start consumers that count nothing; returns their process ids when all their connections are subscribed."""
    command = [sys.executable, "-c", _CONSUMER, topic, str(max_in_flight), *addresses(nsqd.tcp, connections)]
    started = [subprocess.Popen(command) for _ in range(processes)]
    try:
        nsqd.wait_for_clients(topic, processes * connections)
        time.sleep(0.2)
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


_CONSUMER = """
import sys
import gnsq
topic, max_in_flight, *addresses = sys.argv[1:]
handle = lambda consumer, message: None
gnsq.Consumer(topic, "bench", addresses, message_handler=handle, max_in_flight=int(max_in_flight)).start()
"""


def measured_cpu(pids: list[int], seconds: float) -> float:
    """Return the seconds of CPU time that processes use in some seconds."""
    before = sum(map(cpu, pids))
    time.sleep(seconds)
    return sum(map(cpu, pids)) - before


def cpu(pid: int) -> float:
    """Return a process's CPU time in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> float:
    """Return a process's resident memory in KiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1024
