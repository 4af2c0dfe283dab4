"""Run clients in processes of their own against the same nsqd, in turns: ratios mean something where seconds do not."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.bench.clients import NOT_INSTALLED, OWN, WORKLOADS
from integration.bench.figures import CPU, PERCENTILES, RATE, Figure, Results
from integration.bench.servers import BODY, Nsqd, echo

LIMIT = 120.0
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
CLIENTS = Path(__file__).with_name("clients.py")
# A slow client gets fewer messages, so that a round ends in about this time.
SECONDS = 1.5
LEAST = 500


@dataclass(frozen=True)
class Task:
    """What all clients do in turns.

    Attributes:
        setting: How many messages are in flight, or how many publishes wait.
        count: Messages in a round.
        name: Of the setting.
        x: Its place on the axis of a plot.
    """

    workload: str
    setting: int
    count: int
    name: str
    x: float | None = None


def in_flight(workload: str, setting: int, count: int, handler: str = "") -> Task:
    return Task(workload, setting, count, f"{setting:,} in flight{handler}", setting)


def waiting(workload: str, setting: int, count: int) -> Task:
    return Task(workload, setting, count, f"{setting:,} waiting", setting)


CONSUME = [in_flight("consume", *each) for each in ((1, 20_000), (10, 80_000), (100, 200_000))]
CONSUME += [in_flight("consume", *each) for each in ((200, 200_000), (2500, 200_000))]
WAITING = [
    in_flight("yield", 200, 200_000, ", each handler yields once"),
    in_flight("echo", 200, 40_000, ", a round trip to an echo server in each handler"),
]
PUBLISH = [waiting("publish", *each) for each in ((1, 15_000), (100, 100_000), (1000, 100_000))]
LATENCY = [
    Task("latency", 1, 15_000, "publish, one after the other"),
    Task("latency", 100, 60_000, "publish, 100 waiting"),
    Task("delivery", 1, 3_000, "from publish to handler, 1,000 messages a second, 1 in flight"),
]
DELIVERY_RATE = 1_000


def measure(command: list[str], *arguments: object, **environment: str) -> dict[str, Any] | None:
    """Run one client. Returns what it measured; None if it is not installed or has failed (then print why)."""
    whole = [*command, *map(str, arguments)]
    try:
        done = subprocess.run(
            whole, capture_output=True, text=True, timeout=LIMIT, check=False, cwd="/", env=os.environ | environment
        )
    except subprocess.TimeoutExpired:
        print(f"  {whole[:2]}: not done within {LIMIT:.0f} s")
        return None
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    if done.returncode != NOT_INSTALLED:
        print(f"  {' '.join(whole)}: failed: {done.stderr.strip().splitlines()[-1:]}")
    return None


def label(python: str, client: str) -> str | None:
    """Return a client's name with its version; None if it is not installed."""
    if client in OWN:
        return client
    code = f"from importlib.metadata import version; print(version({client!r}))"
    done = subprocess.run([python, "-E", "-c", code], capture_output=True, text=True, check=False, cwd="/")
    return f"{client} {done.stdout.strip()}" if done.returncode == 0 else None


def clients(workload: str) -> dict[str, list[str]]:
    """Return the command of each client, by its name."""
    found = {}
    for python in (sys.executable, *_words("BENCH_PYTHONS")):
        for client in WORKLOADS[workload]:
            name = label(python, client)
            if name and name not in found and (client not in OWN or python == sys.executable):
                # -E: PYTHONPATH would give this tree's gnsq to another release's interpreter.
                found[name] = [python, "-E", str(CLIENTS), client]
    programs = [each.partition("=") for each in _words("BENCH_PROGRAMS")]
    return found | {name: [path] for name, _, path in programs}


def _words(variable: str) -> list[str]:
    return list(filter(None, os.environ.get(variable, "").split(":")))


def compare(results: Results, nsqd: Nsqd, part: str, tasks: list[Task]) -> None:
    """Measure all clients at all tasks, in turns, ROUNDS times after a short one to warm up."""
    with echo() as address:
        for task in tasks:
            print(f"{part}, {task.name}", flush=True)
            found = clients(task.workload)
            counts = dict.fromkeys(found, max(task.count // 10, task.setting))
            for turn in range(ROUNDS + 1):
                for name in list(counts):
                    said = once(nsqd, task, found[name], counts[name], address)
                    if said is None:
                        del counts[name]
                    elif not turn:
                        counts[name] = min(task.count, max(LEAST, task.setting, int(said["rate"] * SECONDS)))
                    else:
                        note(results, part, task, name, said)


def once(
    nsqd: Nsqd,
    task: Task,
    command: list[str],
    count: int,
    echo_address: str,
    body: Callable[[int], bytes] = lambda number: BODY,
    **environment: str,
) -> dict[str, Any] | None:
    """Let one client do a task once, with a topic of its own and bodies that a function makes."""
    environment |= {"BENCH_ECHO": echo_address, "BENCH_BODY": str(len(body(0)))}
    with nsqd.topic() as topic:
        publishing: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if task.workload == "delivery":
            publishing = publishing_with_time(nsqd.tcp, topic, DELIVERY_RATE)
        elif task.workload not in ("publish", "latency"):
            # More than are counted, else nsqd's output buffer of 250 ms measures the tail.
            nsqd.fill(topic, count + count * 15 // 100 + task.setting, body)
        with publishing:
            return measure(command, task.workload, nsqd.tcp, topic, count, task.setting, **environment)


def note(results: Results, part: str, task: Task, client: str, said: dict[str, Any]) -> None:
    def add(quantity: str, unit: str, value: float) -> None:
        results.add(Figure(part, task.name, client, quantity, unit, task.x), value)

    latency = said.get("latency")
    if latency is None:
        add(RATE, "messages/s", said["rate"])
    add(CPU, "us a message", said["cpu"])
    for each in PERCENTILES if latency else ():
        add(each, "us", latency[each])


@contextlib.contextmanager
def publishing_with_time(tcp: str, topic: str, rate: int) -> Iterator[None]:
    """Publish on a thread every millisecond until the end; each body begins with its time in nanoseconds."""
    host, port = tcp.rsplit(":", 1)
    ended = threading.Event()

    def publish() -> None:
        started, sent = time.monotonic(), 0
        while not ended.wait(0.001):
            due = int((time.monotonic() - started) * rate) - sent
            for _ in range(due):
                body = struct.pack(">q", time.time_ns()).ljust(len(BODY), b"x")
                sock.sendall(b"PUB %s\n" % topic.encode() + struct.pack(">i", len(body)) + body)
            sent += due
            # Each response is OK: nothing is read from them but that they are there.
            left = 10 * due
            while left > 0:
                left -= len(sock.recv(left))

    with socket.create_connection((host, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b"  V2")
        thread = threading.Thread(target=publish, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
