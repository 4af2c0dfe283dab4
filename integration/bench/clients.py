"""Run one client of the benchmark in this process, and print what it measured as a line of JSON.

``clients.py CLIENT WORKLOAD HOST:PORT TOPIC COUNT SETTING``; what the workloads are is said in __main__.py. A client
that is not installed here ends with exit status 3. Standard library at the top only: each client imports its own, and
the interpreter may be another one than that of the benchmark.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import socket
import struct
import sys
import time
import typing
from collections.abc import Callable
from dataclasses import dataclass

BODY = b"x" * int(os.environ.get("BENCH_BODY", "200"))
NOT_INSTALLED = 3  # or not made for the setting
# In workload "echo": the bytes that each handler sends to the echo server and reads back.
ECHO_SIZE = 64
PERCENTILES = ("50", "90", "99", "99.9")


@dataclass(frozen=True)
class Job:
    """What a client does; the setting is how many messages are in flight, or how many publishes wait."""

    client: str
    workload: str
    address: str
    topic: str
    count: int
    setting: int

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, port = self.address.rsplit(":", 1)
        return host, int(port)


class Clock:
    """Counts messages, and measures time and this process's CPU time from the first to the last."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen = 0
        self.latencies: list[float] = []

    def start(self) -> Clock:
        """Begin now, not with the first message: a publisher's clock."""
        self.started, self.cpu = time.perf_counter(), time.process_time()
        return self

    def stop(self, done: int) -> Clock:
        """End now, when so many messages are done since the beginning."""
        self.seconds, self.cpu = time.perf_counter() - self.started, time.process_time() - self.cpu
        self.done = done
        return self

    def tick(self) -> bool:
        """Count one message. Returns: whether it was the last."""
        if not self.seen:
            self.start()
        self.seen += 1
        if self.seen == self.count:
            self.stop(self.count - 1)
        return self.seen >= self.count

    def note_age(self, body: bytes) -> None:
        """Note how old a message is, whose body begins with the nanoseconds of its publishing.

        The first fifth is not noted: it waited until this process had started.
        """
        if self.seen >= self.count // 5:
            self.latencies.append((time.time_ns() - int.from_bytes(body[:8], "big")) / 1e9)

    def json(self) -> str:
        """Return messages a second, microseconds of CPU time a message, and percentiles of latency in microseconds."""
        found: dict[str, typing.Any] = {"rate": self.done / self.seconds, "cpu": self.cpu / self.done * 1e6}
        if self.latencies:
            values = sorted(self.latencies)
            found["latency"] = {
                each: values[min(int(len(values) * float(each) / 100), len(values) - 1)] * 1e6 for each in PERCENTILES
            }
        return json.dumps(found)


def echo_address() -> tuple[str, int]:
    host, port = os.environ["BENCH_ECHO"].rsplit(":", 1)
    return host, int(port)


# --- raw: a blocking socket, with the least work that a client can do


def _raw_socket(job: Job) -> socket.socket:
    sock = socket.create_connection(job.host_and_port)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"  V2")
    return sock


def raw_consume(job: Job) -> Clock:
    sock, ages = _raw_socket(job), job.workload == "delivery"
    sock.sendall(b"SUB %s bench\nRDY %d\n" % (job.topic.encode(), job.setting))
    clock, tail = Clock(job.count), b""
    while True:
        data = tail + sock.recv(65536)
        start, end, answers = 0, len(data), []
        while end - start >= 8:
            size, kind = struct.unpack_from(">ii", data, start)
            if start + 4 + size > end:
                break
            if kind == 2:
                answers.append(b"FIN %s\n" % data[start + 18 : start + 34])
                if ages:
                    clock.note_age(data[start + 34 : start + 42])
                if clock.tick():
                    return clock
            start += 4 + size
        tail = data[start:]
        if answers:
            sock.sendall(b"".join(answers))


def raw_publish(job: Job) -> Clock:
    """Publish on one connection, with a number of pending publishes. The time of one is known if no other waits."""
    ages = job.workload == "latency"
    if ages and job.setting > 1:
        sys.exit(NOT_INSTALLED)
    sock = _raw_socket(job)
    command = b"PUB %s\n" % job.topic.encode() + struct.pack(">i", len(BODY)) + BODY
    sent = answered = pending = 0
    clock = Clock(job.count).start()
    while answered < job.count:
        before = time.perf_counter() if ages else 0.0
        fresh = min(job.setting - (sent - answered), job.count - sent)
        if fresh:
            sock.sendall(command * fresh)
            sent += fresh
        pending += len(sock.recv(65536))
        answered += pending // 10
        pending %= 10
        if ages:
            clock.latencies.append(time.perf_counter() - before)
    return clock.stop(job.count)


# --- gnsq, and gnsq 1.0.2, which has the same API


def gnsq_consume(job: Job) -> Clock:
    import gevent

    import gnsq

    clock, call = Clock(job.count), _gevent_calls()
    work: Callable[[bytes], object] = {
        "consume": lambda body: None,
        "yield": lambda body: gevent.sleep(0),
        "delivery": clock.note_age,
        "echo": call,
    }[job.workload]

    def handle(consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        work(message.body)
        if clock.tick() and clock.seen == job.count:
            consumer.close()

    options = {**json.loads(os.environ.get("BENCH_OPTIONS", "{}")), "max_in_flight": job.setting}
    gnsq.Consumer(job.topic, "bench", job.address, message_handler=handle, **options).start()
    return clock


def _gevent_calls() -> Callable[[bytes], None]:
    """Return a function that makes a round trip to the echo server, on an idle connection or a new one."""
    from gevent import socket as gevent_socket

    idle: list[typing.Any] = []

    def call(body: bytes) -> None:
        sock = idle.pop() if idle else gevent_socket.create_connection(echo_address())
        sock.sendall(body[:ECHO_SIZE])
        left = ECHO_SIZE
        while left:
            left -= len(sock.recv(left))
        idle.append(sock)

    return call


def greenlets_echo(job: Job) -> Clock:
    """Make the calls of gnsq without NSQ, with as many greenlets as it has messages in flight."""
    import gevent

    call, clock = _gevent_calls(), Clock(job.count)

    def work() -> None:
        while not clock.tick():
            call(BODY)

    gevent.joinall([gevent.spawn(work) for _ in range(job.setting)], raise_error=True)
    return clock


def gnsq_publish(job: Job) -> Clock:
    """Publish in greenlets of which each waits for its own response; "gnsq batches" with automatic batching."""
    import gevent

    import gnsq

    options = {"batch_messages": max(job.setting // 5, 1)} if job.client == "gnsq batches" else {}
    producer = gnsq.Producer(job.address, **options)
    producer.start()
    each, clock = job.count // job.setting, Clock(job.count)

    def publish() -> None:
        for _ in range(each):
            producer.publish(job.topic, BODY)

    def publish_with_ages() -> None:
        for _ in range(each):
            before = time.perf_counter()
            producer.publish(job.topic, BODY)
            clock.latencies.append(time.perf_counter() - before)

    clock.start()
    run = publish_with_ages if job.workload == "latency" else publish
    gevent.joinall([gevent.spawn(run) for _ in range(job.setting)], raise_error=True)
    clock.stop(each * job.setting)
    producer.close()
    return clock


def gnsq_async_batches(job: Job) -> Clock:
    """Publish with automatic batching in one greenlet, with a number of pending results; it reads each result."""
    from collections import deque

    import gnsq

    with gnsq.Producer(job.address, batch_messages=max(job.setting // 5, 1)) as producer:
        results: deque[typing.Any] = deque()  # Any: gevent's results
        clock = Clock(job.count).start()
        for _ in range(job.count):
            if len(results) == job.setting:
                results.popleft().get()
            results.append(producer.publish_async(job.topic, BODY))
        for result in results:
            result.get()
        return clock.stop(job.count)


# --- other clients


def pynsq_consume(job: Job) -> Clock:
    import nsq
    import tornado.ioloop

    clock = Clock(job.count)

    def handle(message: nsq.Message) -> bool:
        if clock.tick():
            tornado.ioloop.IOLoop.current().stop()
        return True

    options = {"nsqd_tcp_addresses": [job.address], "max_in_flight": job.setting}
    nsq.Reader(topic=job.topic, channel="bench", message_handler=handle, **options)
    nsq.run()
    return clock


async def _asyncnsq_reader(job: Job) -> typing.Any:  # Any: asyncnsq has no types
    import asyncnsq

    reader = await asyncnsq.create_reader(nsqd_tcp_addresses=[job.address], max_in_flight=job.setting)
    await reader.subscribe(job.topic, "bench")
    return reader


async def _finished(job: Job, reader: typing.Any) -> Clock:  # Any: of asyncnsq or ansq
    """Finish all messages of a reader, one after the other."""
    clock = Clock(job.count)
    async for message in reader.messages():
        await message.fin()
        if clock.tick():
            break
    return clock


async def asyncnsq_consume(job: Job) -> Clock:
    return await _finished(job, await _asyncnsq_reader(job))


async def asyncnsq_tasks(job: Job) -> Clock:
    """Handle each message in a task of its own, which yields once or calls the echo server."""
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    clock, done, tasks = Clock(job.count), asyncio.Event(), set()

    async def call(body: bytes) -> None:
        reader, writer = idle.pop() if idle else await asyncio.open_connection(*echo_address())
        writer.write(body[:ECHO_SIZE])
        await reader.readexactly(ECHO_SIZE)
        idle.append((reader, writer))

    async def handle(message: typing.Any) -> None:  # Any: asyncnsq's message
        await (call(message.body) if job.workload == "echo" else asyncio.sleep(0))
        await message.fin()
        if clock.tick():
            done.set()

    async def read() -> None:
        reader = await _asyncnsq_reader(job)
        async for message in reader.messages():
            task = asyncio.create_task(handle(message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    reading = asyncio.create_task(read())
    await asyncio.wait([reading, asyncio.create_task(done.wait())], return_when=asyncio.FIRST_COMPLETED)
    return clock


async def ansq_consume(job: Job) -> Clock:
    """Consume with the only RDY count that ansq has, 1."""
    if job.setting > 1:
        sys.exit(NOT_INSTALLED)
    import ansq

    options = {"nsqd_tcp_addresses": [job.address], "connection_options": ansq.ConnectionOptions()}
    return await _finished(job, await ansq.create_reader(topic=job.topic, channel="bench", **options))


# For each workload, by the name of a client: the module that it needs, and what runs it.
WORKLOADS: dict[str, dict[str, tuple[str, Callable[[Job], typing.Any]]]] = {  # Any: a clock, or a coroutine of one
    "consume": {
        "raw": ("socket", raw_consume),
        "gnsq": ("gnsq", gnsq_consume),
        "asyncnsq": ("asyncnsq", asyncnsq_consume),
        "pynsq": ("nsq", pynsq_consume),
        "ansq": ("ansq", ansq_consume),
    },
    "yield": {"gnsq": ("gnsq", gnsq_consume), "asyncnsq": ("asyncnsq", asyncnsq_tasks)},
    "echo": {
        "greenlets": ("gevent", greenlets_echo),
        "gnsq": ("gnsq", gnsq_consume),
        "asyncnsq": ("asyncnsq", asyncnsq_tasks),
    },
    "delivery": {"raw": ("socket", raw_consume), "gnsq": ("gnsq", gnsq_consume)},
    "publish": {
        "raw": ("socket", raw_publish),
        "gnsq": ("gnsq", gnsq_publish),
        "gnsq batches": ("gnsq", gnsq_publish),
        "gnsq async": ("gnsq", gnsq_async_batches),
    },
    "latency": {"raw": ("socket", raw_publish), "gnsq": ("gnsq", gnsq_publish)},
}
# Clients that are measured only with this interpreter.
OWN = ("raw", "greenlets", "gnsq batches", "gnsq async")


def main() -> int:
    *words, count, setting = sys.argv[1:]
    job = Job(*words, int(count), int(setting))
    module, run = WORKLOADS[job.workload][job.client]
    try:
        importlib.import_module(module)
    except ImportError:
        return NOT_INSTALLED
    clock = run(job)
    print((clock if isinstance(clock, Clock) else asyncio.run(clock)).json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
