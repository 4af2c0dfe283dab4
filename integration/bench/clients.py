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

BODY = b"x" * int(os.environ.get("BENCH_BODY", "200"))
NOT_INSTALLED = 3  # or not made for the setting
# In workload "echo": the bytes that each handler sends to the echo server and reads back.
ECHO_SIZE = 64
PERCENTILES = ("50", "90", "99", "99.9")

Workload = Callable[[str, int, str, int, int], "Clock"]


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


def _raw_socket(host: str, port: int) -> socket.socket:
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"  V2")
    return sock


def raw_consume(host: str, port: int, topic: str, count: int, in_flight: int, *, ages: bool = False) -> Clock:
    sock = _raw_socket(host, port)
    sock.sendall(b"SUB %s bench\nRDY %d\n" % (topic.encode(), in_flight))
    clock, tail = Clock(count), b""
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


def raw_delivery(host: str, port: int, topic: str, count: int, in_flight: int) -> Clock:
    return raw_consume(host, port, topic, count, in_flight, ages=True)


def raw_publish(host: str, port: int, topic: str, count: int, waiting: int) -> Clock:
    """Publish on one connection, with a number of pending publishes."""
    sock = _raw_socket(host, port)
    command = b"PUB %s\n" % topic.encode() + struct.pack(">i", len(BODY)) + BODY
    sent = answered = pending = 0
    clock = Clock(count).start()
    while answered < count:
        fresh = min(waiting - (sent - answered), count - sent)
        if fresh:
            sock.sendall(command * fresh)
            sent += fresh
        pending += len(sock.recv(65536))
        answered += pending // 10
        pending %= 10
    return clock.stop(count)


def raw_latency(host: str, port: int, topic: str, count: int, waiting: int) -> Clock:
    """Publish one message after the other; not measured where several wait."""
    if waiting > 1:
        sys.exit(NOT_INSTALLED)
    sock = _raw_socket(host, port)
    command = b"PUB %s\n" % topic.encode() + struct.pack(">i", len(BODY)) + BODY
    clock = Clock(count).start()
    for _ in range(count):
        before = time.perf_counter()
        sock.sendall(command)
        sock.recv(65536)
        clock.latencies.append(time.perf_counter() - before)
    return clock.stop(count)


# --- gnsq, and gnsq 1.0.2, which has the same API


def gnsq_consume(host: str, port: int, topic: str, count: int, in_flight: int) -> Clock:
    return _gnsq_consume(host, port, topic, count, in_flight, lambda clock, message: None)


def gnsq_yield(host: str, port: int, topic: str, count: int, in_flight: int) -> Clock:
    import gevent

    return _gnsq_consume(host, port, topic, count, in_flight, lambda clock, message: gevent.sleep(0))


def gnsq_delivery(host: str, port: int, topic: str, count: int, in_flight: int) -> Clock:
    return _gnsq_consume(host, port, topic, count, in_flight, lambda clock, message: clock.note_age(message.body))


def gnsq_echo(host: str, port: int, topic: str, count: int, in_flight: int) -> Clock:
    call = _gevent_calls()
    return _gnsq_consume(host, port, topic, count, in_flight, lambda clock, message: call(message.body))


def _gnsq_consume(
    host: str,
    port: int,
    topic: str,
    count: int,
    in_flight: int,
    work: Callable[[Clock, typing.Any], object],
) -> Clock:
    import gnsq

    clock = Clock(count)
    options = json.loads(os.environ.get("BENCH_OPTIONS", "{}"))

    def handle(consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        work(clock, message)
        if clock.tick() and clock.seen == count:
            consumer.close()

    options["max_in_flight"] = in_flight
    gnsq.Consumer(topic, "bench", f"{host}:{port}", message_handler=handle, **options).start()
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


def greenlets_echo(host: str, port: int, topic: str, count: int, in_flight: int) -> Clock:
    """Make the calls of gnsq_echo without NSQ, with as many greenlets as it has messages in flight."""
    import gevent

    call, clock = _gevent_calls(), Clock(count)

    def work() -> None:
        while not clock.tick():
            call(BODY)

    gevent.joinall([gevent.spawn(work) for _ in range(in_flight)], raise_error=True)
    return clock


def gnsq_publish(host: str, port: int, topic: str, count: int, waiting: int) -> Clock:
    return _gnsq_publish(host, port, topic, count, waiting, ages=False)


def gnsq_latency(host: str, port: int, topic: str, count: int, waiting: int) -> Clock:
    return _gnsq_publish(host, port, topic, count, waiting, ages=True)


def gnsq_batches(host: str, port: int, topic: str, count: int, waiting: int) -> Clock:
    """Publish with automatic batching, in greenlets of which each waits for its own response."""
    batch = max(waiting // 5, 1)
    return _gnsq_publish(host, port, topic, count, waiting, ages=False, batch_messages=batch)


def _gnsq_publish(host: str, port: int, topic: str, count: int, waiting: int, *, ages: bool, **options: int) -> Clock:
    import gevent

    import gnsq

    producer = gnsq.Producer(f"{host}:{port}", **options)
    producer.start()
    each, clock = count // waiting, Clock(count)

    def publish() -> None:
        for _ in range(each):
            producer.publish(topic, BODY)

    def publish_with_ages() -> None:
        for _ in range(each):
            before = time.perf_counter()
            producer.publish(topic, BODY)
            clock.latencies.append(time.perf_counter() - before)

    clock.start()
    gevent.joinall([gevent.spawn(publish_with_ages if ages else publish) for _ in range(waiting)], raise_error=True)
    clock.stop(each * waiting)
    producer.close()
    return clock


def gnsq_async_batches(host: str, port: int, topic: str, count: int, waiting: int) -> Clock:
    """Publish with automatic batching in one greenlet, with a number of pending results; it reads each result."""
    from collections import deque

    import gnsq

    with gnsq.Producer(f"{host}:{port}", batch_messages=max(waiting // 5, 1)) as producer:
        results: deque[typing.Any] = deque()  # Any: gevent's results
        clock = Clock(count).start()
        for _ in range(count):
            if len(results) == waiting:
                results.popleft().get()
            results.append(producer.publish_async(topic, BODY))
        for result in results:
            result.get()
        return clock.stop(count)


# --- other clients


def pynsq_consume(host: str, port: int, topic: str, count: int, in_flight: int) -> Clock:
    import nsq

    clock = Clock(count)

    def handle(message: nsq.Message) -> bool:
        if clock.tick():
            import tornado.ioloop

            tornado.ioloop.IOLoop.current().stop()
        return True

    nsq.Reader(
        topic=topic,
        channel="bench",
        nsqd_tcp_addresses=[f"{host}:{port}"],
        max_in_flight=in_flight,
        message_handler=handle,
    )
    nsq.run()
    return clock


def asyncnsq_consume(host: str, port: int, topic: str, count: int, in_flight: int) -> Clock:
    import asyncnsq

    async def run() -> Clock:
        clock = Clock(count)
        reader = await asyncnsq.create_reader(nsqd_tcp_addresses=[f"{host}:{port}"], max_in_flight=in_flight)
        await reader.subscribe(topic, "bench")
        async for message in reader.messages():
            await message.fin()
            if clock.tick():
                break
        return clock

    return asyncio.run(run())


def asyncnsq_yield(host: str, port: int, topic: str, count: int, in_flight: int) -> Clock:
    async def work(body: bytes) -> None:
        await asyncio.sleep(0)

    return _asyncnsq_tasks(host, port, topic, count, in_flight, work)


def asyncnsq_echo(host: str, port: int, topic: str, count: int, in_flight: int) -> Clock:
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(body: bytes) -> None:
        reader, writer = idle.pop() if idle else await asyncio.open_connection(*echo_address())
        writer.write(body[:ECHO_SIZE])
        await reader.readexactly(ECHO_SIZE)
        idle.append((reader, writer))

    return _asyncnsq_tasks(host, port, topic, count, in_flight, call)


def _asyncnsq_tasks(
    host: str,
    port: int,
    topic: str,
    count: int,
    in_flight: int,
    work: Callable[[bytes], typing.Coroutine[object, object, None]],
) -> Clock:
    """Handle each message in a task of its own."""
    import asyncnsq

    async def run() -> Clock:
        clock, done, tasks = Clock(count), asyncio.Event(), set()

        async def handle(message: typing.Any) -> None:  # Any: asyncnsq's message
            await work(message.body)
            await message.fin()
            if clock.tick():
                done.set()

        async def read() -> None:
            reader = await asyncnsq.create_reader(nsqd_tcp_addresses=[f"{host}:{port}"], max_in_flight=in_flight)
            await reader.subscribe(topic, "bench")
            async for message in reader.messages():
                task = asyncio.create_task(handle(message))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        reading = asyncio.create_task(read())
        await asyncio.wait([reading, asyncio.create_task(done.wait())], return_when=asyncio.FIRST_COMPLETED)
        return clock

    return asyncio.run(run())


def ansq_consume(host: str, port: int, topic: str, count: int, in_flight: int) -> Clock:
    """Consume with the only RDY count that ansq has, 1."""
    if in_flight > 1:
        sys.exit(NOT_INSTALLED)
    import ansq

    async def run() -> Clock:
        clock = Clock(count)
        reader = await ansq.create_reader(
            topic=topic,
            channel="bench",
            nsqd_tcp_addresses=[f"{host}:{port}"],
            connection_options=ansq.ConnectionOptions(),
        )
        async for message in reader.messages():
            await message.fin()
            if clock.tick():
                break
        return clock

    return asyncio.run(run())


# For each workload, by the name of a client: the module that it needs, and what runs it.
WORKLOADS: dict[str, dict[str, tuple[str, Workload]]] = {
    "consume": {
        "raw": ("socket", raw_consume),
        "gnsq": ("gnsq", gnsq_consume),
        "asyncnsq": ("asyncnsq", asyncnsq_consume),
        "pynsq": ("nsq", pynsq_consume),
        "ansq": ("ansq", ansq_consume),
    },
    "yield": {
        "gnsq": ("gnsq", gnsq_yield),
        "asyncnsq": ("asyncnsq", asyncnsq_yield),
    },
    "echo": {
        "greenlets": ("gevent", greenlets_echo),
        "gnsq": ("gnsq", gnsq_echo),
        "asyncnsq": ("asyncnsq", asyncnsq_echo),
    },
    "delivery": {
        "raw": ("socket", raw_delivery),
        "gnsq": ("gnsq", gnsq_delivery),
    },
    "publish": {
        "raw": ("socket", raw_publish),
        "gnsq": ("gnsq", gnsq_publish),
        "gnsq batches": ("gnsq", gnsq_batches),
        "gnsq async": ("gnsq", gnsq_async_batches),
    },
    "latency": {
        "raw": ("socket", raw_latency),
        "gnsq": ("gnsq", gnsq_latency),
    },
}
# Clients that are measured only with this interpreter.
OWN = ("raw", "greenlets", "gnsq batches", "gnsq async")


def main() -> int:
    client, workload, address, topic, count, setting = sys.argv[1:]
    module, run = WORKLOADS[workload][client]
    try:
        importlib.import_module(module)
    except ImportError:
        return NOT_INSTALLED
    host, port = address.rsplit(":", 1)
    print(run(host, int(port), topic, int(count), int(setting)).json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
