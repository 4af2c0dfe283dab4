"""Measure fakensqd: messages through one FakeNsqd, connections, and starts; and its command line beside a real nsqd.

The first in this process, server and client in one hub, as tests have it.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import gevent
from gevent import socket
from gevent.event import Event

from fakensqd import FakeNsqd
from fakensqd.clock import RealClock
from fakensqd.faults.link import Link
from gnsq import Consumer, Message, Producer
from gnsq.transport import Transport
from integration.bench import compare
from integration.bench.compare import ROUNDS
from integration.bench.figures import RATE, Figure, Results
from integration.bench.servers import Nsqd
from integration.bench.servers import emulator as command_line

MESSAGES = 100_000
BATCH = 1000
CONNECTIONS = (1000, 5000)
STARTS = 200
CALLS = 1_000_000
BODY = b"x" * 200


def through() -> tuple[float, float, float]:
    """Publish messages of 200 bytes, then consume them; returns messages per second of each, and of both."""
    left, done = MESSAGES, Event()

    def handle(consumer: Consumer, message: Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    with FakeNsqd(mem_queue_size=MESSAGES) as nsqd:
        channel = nsqd.broker.ensure_topic("t").ensure_channel("c", nsqd.now())
        with Producer(nsqd.tcp_address) as producer:
            started = time.perf_counter()
            for _ in range(MESSAGES // BATCH):
                producer.multipublish("t", [BODY] * BATCH)
            published = time.perf_counter() - started
        started = time.perf_counter()
        with Consumer("t", "c", nsqd.tcp_address, message_handler=handle, max_in_flight=2500):
            done.wait()
            while channel.in_flight_count:
                gevent.sleep(0)
            consumed = time.perf_counter() - started
    return MESSAGES / published, MESSAGES / consumed, MESSAGES / (published + consumed)


def memory_for_each(count: int) -> float:
    """Open connections that subscribe, with plain sockets; returns KiB of the server for each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * count + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), max(hard, wanted)))
    with FakeNsqd() as nsqd, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(count)]
        before = _resident()
        for client in clients:
            client.connect(("127.0.0.1", nsqd.tcp_port))
            client.sendall(b"  V2SUB t c\nRDY 1\n")
            client.recv(100)
        assert len(nsqd.sessions) == count
        return (_resident() - before) / count


def _resident() -> float:
    """Return the memory of this process in KiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1024


def starts(*, threaded: bool) -> float:
    """Start and stop a FakeNsqd; returns milliseconds."""
    times = []
    for _ in range(STARTS):
        nsqd = FakeNsqd().in_thread() if threaded else FakeNsqd()
        started = time.perf_counter()
        nsqd.start()
        nsqd.stop()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


class _Nothing:
    """A transport that does nothing, to measure the calls."""

    def recv(self, size: int) -> bytes:
        return b"x"

    def sendall(self, data: bytes) -> None:
        pass

    def shutdown_write(self) -> None:
        pass

    def close(self) -> None:
        pass


def link_cost() -> float:
    """Return the nanoseconds that a link without toxics adds to each recv()."""
    nothing = _Nothing()
    linked: Transport = Link(RealClock()).wrap(nothing, nothing.close)
    return min(_timed(linked.recv) - _timed(nothing.recv) for _ in range(ROUNDS))


def _timed(receive: Callable[[int], bytes]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        receive(65536)
    return (time.perf_counter() - started) / CALLS * 1e9


def measure(results: Results, nsqd: Nsqd) -> None:
    """Measure everything."""
    print("fakensqd", flush=True)
    _measure_in_process(results)
    if nsqd.name != "fakensqd":
        _measure_command_line(results, nsqd)


def _measure_in_process(results: Results) -> None:
    def add(setting: str, quantity: str, unit: str, *values: float) -> None:
        results.add(Figure("fakensqd", setting, "FakeNsqd", quantity, unit), *values)

    for _ in range(ROUNDS):
        published, consumed, both = _alone("through")
        add(f"MPUB of {BATCH:,}, client in the same process", RATE, "messages/s", published)
        add("consume and FIN, 2,500 in flight, client in the same process", RATE, "messages/s", consumed)
        add("MPUB, consume and FIN, client in the same process", RATE, "messages/s", both)
    for count in CONNECTIONS:
        add(f"{count:,} connections that wait", "memory", "KiB a connection", _alone("memory_for_each", count)[0])
    for threaded in (False, True):
        add(
            f"start and stop, {'on a thread of its own' if threaded else 'in the hub of the caller'}",
            "time",
            "ms",
            *(starts(threaded=threaded) for _ in range(ROUNDS)),
        )
    add("a link without toxics", "time", "ns for each recv()", link_cost())


def _alone(function: str, *arguments: object) -> list[float]:
    """Call a function of this module in a new process: memory that was freed before would hide new memory."""
    code = f"import json; from integration.bench import emulator; print(json.dumps(emulator.{function}(*{arguments})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return found if isinstance(found, list) else [found]


def _measure_command_line(results: Results, nsqd: Nsqd) -> None:
    """Let the same clients consume from both, and publish to both."""
    tasks = [compare.in_flight("consume", 200, 100_000), compare.waiting("publish", 100, 50_000)]
    with command_line() as emulated:
        for task in tasks:
            for client, command in compare.clients(task.workload).items():
                if client not in ("raw", *compare.programs()):
                    continue
                setting = f"{task.workload}, {task.name}, by {client}"
                for _ in range(ROUNDS):
                    for server in (nsqd, emulated):
                        said = compare.once(server, task, command, task.count, "")
                        if said:
                            results.add(Figure("fakensqd", setting, server.name, RATE, "messages/s"), said["rate"])
