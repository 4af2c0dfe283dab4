"""Measure fakensqd: messages through one FakeNsqd, connections, and starts.

All in this process, server and client in one hub, as tests have it. Run by bench.py, or alone:
``python -m integration.bench_fake``.
"""

from __future__ import annotations

import contextlib
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

ROUNDS = 3
MESSAGES = 100_000
BATCH = 1000
CONNECTIONS = 1000
STARTS = 200
CALLS = 1_000_000
BODY = b"x" * 200


def through() -> tuple[float, float]:
    """Publish messages of 200 bytes, then consume them; returns messages per second of both."""
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
    return MESSAGES / published, MESSAGES / consumed


def memory_for_each() -> float:
    """Open connections that subscribe, with plain sockets; returns KiB of the server for each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), max(hard, wanted)))
    with FakeNsqd() as nsqd, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(CONNECTIONS)]
        before = _resident()
        for client in clients:
            client.connect(("127.0.0.1", nsqd.tcp_port))
            client.sendall(b"  V2SUB t c\nRDY 1\n")
            client.recv(100)
        assert len(nsqd.sessions) == CONNECTIONS
        return (_resident() - before) / CONNECTIONS


def _resident() -> float:
    """Return the memory of this process in KiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1024


def starts(*, threaded: bool) -> float:
    """Start and stop a FakeNsqd; returns milliseconds."""
    times = []
    for _ in range(STARTS):
        nsqd = FakeNsqd(threaded=threaded)
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


def show() -> None:
    """Print all measurements."""
    print(f"fakensqd, client in the same process, median of {ROUNDS}")
    published, consumed = (statistics.median(rates) for rates in zip(*(through() for _ in range(ROUNDS)), strict=True))
    print(f"  {MESSAGES} messages of 200 bytes, MPUB of {BATCH}: {published:,.0f} messages/s")
    print(f"  consume and FIN, 2500 in flight:            {consumed:,.0f} messages/s")
    # In a new process: memory that was freed before would hide new memory.
    command = [sys.executable, "-c", "from integration.bench_fake import memory_for_each; print(memory_for_each())"]
    memory = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(f"  {CONNECTIONS} connections that wait: {memory:.1f} KiB each, of the server and the client's socket")
    for threaded in (False, True):
        where = "on a thread of its own" if threaded else "in the hub of the caller"
        print(f"  start and stop, {where}: {starts(threaded=threaded):.2f} ms")
    print(f"  a link without toxics: {link_cost():.0f} ns for each recv()", flush=True)


if __name__ == "__main__":
    show()
