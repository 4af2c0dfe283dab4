"""Run one client of the benchmark in this process, and print its messages per second.

``bench_peers.py CLIENT WORKLOAD HOST:PORT TOPIC COUNT SETTING``; what the workloads are is said in bench.py. A client
that is not installed here ends with exit status 3. Standard library at the top only: each client imports its own.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
import struct
import sys
import time
import typing
from collections.abc import Callable

BODY = b"x" * 200
NOT_INSTALLED = 3

Workload = Callable[[str, int, str, int, int], float]


class Clock:
    """Counts messages, and measures the time from the first to the last."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen = 0
        self.started = self.ended = 0.0

    def tick(self) -> bool:
        """Count one message. Returns: whether it was the last."""
        if not self.seen:
            self.started = time.perf_counter()
        self.seen += 1
        if self.seen == self.count:
            self.ended = time.perf_counter()
        return self.seen >= self.count

    @property
    def rate(self) -> float:
        return (self.count - 1) / (self.ended - self.started)


# --- raw: a blocking socket, with the least work that a client can do


def _raw_socket(host: str, port: int) -> socket.socket:
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"  V2")
    return sock


def raw_consume(host: str, port: int, topic: str, count: int, in_flight: int) -> float:
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
                if clock.tick():
                    return clock.rate
            start += 4 + size
        tail = data[start:]
        if answers:
            sock.sendall(b"".join(answers))


def raw_publish(host: str, port: int, topic: str, count: int, waiting: int) -> float:
    """Publish on one connection, with a number of pending publishes."""
    sock = _raw_socket(host, port)
    command = b"PUB %s\n" % topic.encode() + struct.pack(">i", len(BODY)) + BODY
    sent = answered = pending = 0
    started = time.perf_counter()
    while answered < count:
        fresh = min(waiting - (sent - answered), count - sent)
        if fresh:
            sock.sendall(command * fresh)
            sent += fresh
        pending += len(sock.recv(65536))
        answered += pending // 10
        pending %= 10
    return count / (time.perf_counter() - started)


# --- gnsq, and gnsq 1.0.2, which has the same API


def gnsq_consume(host: str, port: int, topic: str, count: int, in_flight: int) -> float:
    import gnsq

    clock = Clock(count)

    def handle(consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        if clock.tick() and clock.seen == count:
            consumer.close()

    gnsq.Consumer(topic, "bench", f"{host}:{port}", message_handler=handle, max_in_flight=in_flight).start()
    return clock.rate


def gnsq_publish(host: str, port: int, topic: str, count: int, waiting: int) -> float:
    import gevent

    import gnsq

    producer = gnsq.Producer(f"{host}:{port}")
    producer.start()
    each = count // waiting

    def publish() -> None:
        for _ in range(each):
            producer.publish(topic, BODY)

    started = time.perf_counter()
    gevent.joinall([gevent.spawn(publish) for _ in range(waiting)], raise_error=True)
    elapsed = time.perf_counter() - started
    producer.close()
    return each * waiting / elapsed


def gnsq_batches(host: str, port: int, topic: str, count: int, waiting: int) -> float:
    """Publish with automatic batching, in greenlets of which each waits for its own response."""
    import gevent

    import gnsq

    each = count // waiting
    with gnsq.Producer(f"{host}:{port}", batch_messages=max(waiting // 5, 1)) as producer:

        def publish() -> None:
            for _ in range(each):
                producer.publish(topic, BODY)

        started = time.perf_counter()
        gevent.joinall([gevent.spawn(publish) for _ in range(waiting)], raise_error=True)
        return each * waiting / (time.perf_counter() - started)


def gnsq_async_batches(host: str, port: int, topic: str, count: int, waiting: int) -> float:
    """Publish with automatic batching in one greenlet, with a number of pending results; it reads each result."""
    from collections import deque

    import gnsq

    with gnsq.Producer(f"{host}:{port}", batch_messages=max(waiting // 5, 1)) as producer:
        results: deque[typing.Any] = deque()  # Any: gevent's results
        started = time.perf_counter()
        for _ in range(count):
            if len(results) == waiting:
                results.popleft().get()
            results.append(producer.publish_async(topic, BODY))
        for result in results:
            result.get()
        return count / (time.perf_counter() - started)


# --- other clients


def pynsq_consume(host: str, port: int, topic: str, count: int, in_flight: int) -> float:
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
    return clock.rate


def asyncnsq_consume(host: str, port: int, topic: str, count: int, in_flight: int) -> float:
    import asyncnsq

    async def run() -> float:
        clock = Clock(count)
        reader = await asyncnsq.create_reader(nsqd_tcp_addresses=[f"{host}:{port}"], max_in_flight=in_flight)
        await reader.subscribe(topic, "bench")
        async for message in reader.messages():
            await message.fin()
            if clock.tick():
                break
        return clock.rate

    return asyncio.run(run())


def ansq_consume(host: str, port: int, topic: str, count: int, in_flight: int) -> float:
    import ansq

    async def run() -> float:
        clock = Clock(count)
        reader = await ansq.create_reader(
            topic=topic,
            channel="bench",
            nsqd_tcp_addresses=[f"{host}:{port}"],
            connection_options=ansq.ConnectionOptions(),
        )
        await reader.set_max_in_flight(in_flight)
        async for message in reader.messages():
            await message.fin()
            if clock.tick():
                break
        return clock.rate

    return asyncio.run(run())


WORKLOADS: dict[str, dict[str, tuple[str, Workload]]] = {
    "consume": {
        "raw": ("socket", raw_consume),
        "gnsq": ("gnsq", gnsq_consume),
        "asyncnsq": ("asyncnsq", asyncnsq_consume),
        "pynsq": ("nsq", pynsq_consume),
        "ansq": ("ansq", ansq_consume),
    },
    "publish": {
        "raw": ("socket", raw_publish),
        "gnsq": ("gnsq", gnsq_publish),
        "gnsq batches": ("gnsq", gnsq_batches),
        "gnsq async": ("gnsq", gnsq_async_batches),
    },
}
# Clients that are measured only with this interpreter.
OWN = ("raw", "gnsq batches", "gnsq async")


def main() -> int:
    client, workload, address, topic, count, setting = sys.argv[1:]
    module, run = WORKLOADS[workload][client]
    try:
        importlib.import_module(module)
    except ImportError:
        return NOT_INSTALLED
    host, port = address.rsplit(":", 1)
    print(f"{run(host, int(port), topic, int(count), int(setting)):.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
