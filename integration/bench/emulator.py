"""Measure fakensqd: messages through one FakeNsqd, and its start; server and client in one hub, as tests have it."""

from __future__ import annotations

import time

import gevent
from gevent.event import Event

from fakensqd import FakeNsqd
from gnsq import Consumer, Message, Producer
from integration.bench.compare import ROUNDS
from integration.bench.figures import RATE, Figure, Results
from integration.bench.servers import BODY

MESSAGES, BATCH = 100_000, 1000


def through(messages: int = MESSAGES) -> float:
    """Publish messages, then consume them; returns messages per second."""
    left, done = messages, Event()

    def handle(consumer: Consumer, message: Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    with FakeNsqd(mem_queue_size=messages) as nsqd:
        channel = nsqd.broker.ensure_topic("t").ensure_channel("c", nsqd.now())
        started = time.perf_counter()
        with Producer(nsqd.tcp_address) as producer:
            for _ in range(messages // BATCH):
                producer.multipublish("t", [BODY] * BATCH)
        with Consumer("t", "c", nsqd.tcp_address, message_handler=handle, max_in_flight=2500):
            done.wait()
            while channel.in_flight_count:
                gevent.sleep(0)
            return messages / (time.perf_counter() - started)


def start_and_stop() -> float:
    """Start and stop a FakeNsqd; returns milliseconds."""
    started = time.perf_counter()
    with FakeNsqd():
        pass
    return (time.perf_counter() - started) * 1000


def measure(results: Results) -> None:
    """Measure both."""
    print("fakensqd", flush=True)
    for _ in range(ROUNDS):
        setting = f"MPUB of {BATCH:,}, consume and FIN, client in the same process"
        results.add(Figure("fakensqd", setting, "FakeNsqd", RATE, "messages/s"), through())
        results.add(Figure("fakensqd", "start and stop", "FakeNsqd", "time", "ms"), start_and_stop())
