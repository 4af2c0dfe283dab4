"""The producers and consumers of a run: ``python -m integration.chaos.workers SETTINGS``. Each writes a ledger."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gevent
from gevent.util import print_run_info

from fakensqd import FakeAuthServer, Grant
from gnsq import Consumer, Message, NSQRequeueMessage, Producer, finish_all
from gnsq.clock import RealClock
from gnsq.contrib.batch import BatchHandler
from gnsq.dead_letter import decode_dead_letter
from gnsq.errors import NSQErrorCode, NSQException, NSQGiveUp, NSQNotSent, NSQUnknown
from gnsq.producer.routing import round_robin
from gnsq.running import StopSignals, run

# Seconds.
TICK, GAP, SAMPLE_INTERVAL, CLOCK_STEP = 0.2, 0.5, 5.0, 3600.0


class Planned(Exception):
    """What a handler raises on purpose."""


class Ledger:
    """Appends lines to a file, each by one write() without a buffer."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def write(self, kind: str, *values: object) -> None:
        os.write(self._descriptor, json.dumps([kind, time.monotonic(), *values]).encode() + b"\n")


class LedgerLog(logging.Handler):
    """Writes to the ledger which connections were lost, and every exception that is not planned."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.INFO)
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "lost" in text and hasattr(record, "nsqd"):
            self._ledger.write("C", record.nsqd, text)
        error = record.exc_info and record.exc_info[1]
        if error and not isinstance(error, Planned):
            self._ledger.write("X", f"{text}: {error!r}")


class SteppedClock(RealClock):
    """The real clock, whose time of day may be set."""

    offset = 0.0

    def time_ns(self) -> int:  # type: ignore[override]
        return time.time_ns() + int(self.offset * 1e9)


def body_of(key: str) -> bytes:
    """Make the body of a key, whose last part is the number of further bytes."""
    return f"{key}:{zlib.crc32(key.encode()):x}:".encode() + b"x" * int(key.rpartition("-")[2])


def key_of(body: bytes) -> str:
    """Return the key of a body, or all its text if it is not the whole body of a key: the judge compares that."""
    key, _, rest = body.partition(b":")
    size = len(rest.partition(b":")[2])
    is_whole = key.endswith(b"-%d" % size) and body == body_of(key.decode("latin-1"))
    return (key if is_whole else body).decode("latin-1")


def watch(
    ledger: Ledger, clock: SteppedClock, chosen: random.Random, counts: Callable[[], dict[str, object]] = dict
) -> None:
    """Step the clock at random, and write when the process did not run, and what it uses."""
    last = sampled = time.monotonic()
    while True:
        gevent.sleep(TICK)
        now = time.monotonic()
        if now - last > TICK + GAP:
            ledger.write("S", now - last)
        last = now
        if now - sampled > SAMPLE_INTERVAL:
            sampled = now
            ledger.write("T", usage(), counts())
        if chosen.random() < 0.02:
            clock.offset = chosen.uniform(-CLOCK_STEP, CLOCK_STEP)


def usage() -> dict[str, int]:
    pages, objects = int(Path("/proc/self/statm").read_text().split()[1]), gc.get_objects()
    return {
        "KiB": pages * 4,
        "objects": len(objects),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "greenlets": sum(isinstance(each, gevent.Greenlet) and not each.ready() for each in objects),
    }


# --- producer


def _least_pending(links: Sequence[Any]) -> Any:
    return min(links, key=lambda link: link.pending)


class Publisher:
    """Publishes in each way, and writes the outcome of each body, with the nsqds that were chosen meanwhile."""

    def __init__(self, settings: dict[str, Any], ledger: Ledger, clock: SteppedClock, chosen: random.Random) -> None:
        self._ledger, self._chosen, self._name = ledger, chosen, settings["name"]
        self._topic, self._pause = settings["topic"], 4 / settings["rate"]
        self._inner = chosen.choice([round_robin(), _least_pending])
        self._addresses: list[str] = []  # of all choices
        self._timeout = settings["options"]["publish_timeout"]
        self.producer = Producer(strategy=self._choose, clock=clock, name=self._name, **settings["options"])
        self._count = 0

    def _choose(self, links: Sequence[Any]) -> Any:
        link = self._inner(links)
        self._addresses.append(link.address)
        return link

    def run(self, stop: StopSignals) -> None:
        while not stop.is_set():
            kind = self._chosen.choice(["pub", "pub", "mpub", "dpub", "async"])
            number = self._chosen.randint(2, 12) if kind in ("mpub", "async") else 1
            self._publish(kind, number)
            stop.wait(self._chosen.expovariate(1 / (self._pause * number)))

    def counts(self) -> dict[str, object]:
        stats = self.producer.stats()
        names = ("confirmed", "refused", "not_sent", "unknown", "possibly_duplicated")
        return {name: getattr(stats, name) for name in names}

    def _publish(self, kind: str, number: int) -> None:
        self._count += 1
        call = f"{self._name}-{self._count}"
        sizes = [self._chosen.choice([0, 10, 200, 200, 5000]) for _ in range(number)]
        keys = [f"{call}-{index}-{size}" for index, size in enumerate(sizes)]
        bodies = [body_of(key) for key in keys]
        defer = self._chosen.randint(100, 2000) if kind == "dpub" else None
        due = 0.0 if defer is None else time.time() + defer / 1000
        first = len(self._addresses)
        self._ledger.write("P", call, self._topic, self._timeout, due, keys)
        if kind == "mpub":
            self._end(call, first, keys, lambda: self.producer.multipublish(self._topic, bodies))
        elif kind == "async":
            publish = self.producer.publish_async
            results = [(key, publish(self._topic, body)) for key, body in zip(keys, bodies, strict=True)]
            for key, result in results:
                self._end(call, first, [key], result.get)
        else:
            self._end(call, first, keys, lambda: self.producer.publish(self._topic, bodies[0], defer))

    def _end(self, call: str, first: int, keys: Sequence[str], get: Callable[[], object]) -> None:
        """Wait for the end of a publish, and write its outcome.

        Args:
            first: Index of the first choice since its call.
        """
        outcome, text = "confirmed", ""
        try:
            get()
        except NSQException as error:
            kinds = {NSQUnknown: "unknown", NSQNotSent: "not sent", NSQErrorCode: "refused"}
            outcome = next((name for kind, name in kinds.items() if isinstance(error, kind)), "other")
            text = f"{type(error).__name__}: {error}"
        self._ledger.write("O", call, outcome, sorted({*self._addresses[first:]}), keys, text)


def produce(settings: dict[str, Any], ledger: Ledger, clock: SteppedClock, chosen: random.Random) -> None:
    publisher = Publisher(settings, ledger, clock, chosen)
    watcher = gevent.spawn(watch, ledger, clock, chosen, publisher.counts)
    with StopSignals() as stop:
        jobs = [gevent.spawn(publisher.run, stop) for _ in range(4)]
        stop.requested.wait()
        gevent.joinall(jobs, raise_error=True)
        publisher.producer.close()
    watcher.kill()
    ledger.write("Q", publisher.counts())


# --- consumer


class Handlers:
    """A handler of each way to answer. Whether it fails depends on the message alone, so that a seed repeats it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._pool = ThreadPoolExecutor(4)
        self._waiting: list[tuple[str, Message]] = []
        self._lock = threading.Lock()
        self.batches = BatchHandler(8, self._batch, self._took, timeout=0.3, spawn=2)

    def _took(self, message: Message) -> tuple[str, Message]:
        """Write that a handler has got a message. Return its key."""
        key = key_of(message.body)
        values = message.nsqd, message.id.decode(), message.attempts
        self._ledger.write("D", key, *values, message.received, time.time())
        return key, message

    def _answer(self, key: str, message: Message, answer: str) -> str:
        self._ledger.write("A", key, message.nsqd, message.id.decode(), message.attempts, answer)
        return answer

    def _decide(self, key: str, message: Message) -> str:
        number = random.Random(f"{key}{message.attempts}").random() if message.attempts < 6 else 1.0
        answer = "fail" if number < 0.015 else "requeue" if number < 0.03 else "finish"
        return self._answer(key, message, answer)

    def _end(self, key: str, message: Message) -> None:
        """Let the consumer answer."""
        answer = self._decide(key, message)
        if answer != "finish":
            raise Planned(key) if answer == "fail" else NSQRequeueMessage(key)

    def _answer_now(self, key: str, message: Message) -> None:
        """Answer an async message, from any thread."""
        with contextlib.suppress(NSQException):  # the connection is lost, or it was requeued by close()
            if self._decide(key, message) == "finish":
                message.finish()
            else:
                message.requeue(200)

    def returning(self, consumer: Consumer, message: Message) -> None:
        key, _ = self._took(message)
        gevent.sleep(random.expovariate(1 / 0.1))
        self._end(key, message)

    def late(self, consumer: Consumer, message: Message) -> None:
        key, _ = self._took(message)
        if random.Random(key).random() < 0.03 and message.attempts == 1:
            gevent.sleep(2.6)
        self._end(key, message)

    def touching(self, consumer: Consumer, message: Message) -> None:
        key, _ = self._took(message)
        with message.touching():
            gevent.sleep(3.2 if random.Random(key).random() < 0.02 else 0.01)
        self._end(key, message)

    def giving_up(self, consumer: Consumer, message: Message) -> None:
        key, _ = self._took(message)
        if random.Random(key).random() < 0.05:
            self._answer(key, message, "give up")
            raise NSQGiveUp(key)
        self._end(key, message)

    def threads(self, consumer: Consumer, message: Message) -> None:
        key, _ = self._took(message)
        message.enable_async()
        self._pool.submit(self._answer_in_thread, key, message)

    def _answer_in_thread(self, key: str, message: Message) -> None:
        time.sleep(0.01)
        try:
            self._answer_now(key, message)
        except Exception as error:  # noqa: BLE001  # a thread pool would swallow it
            self._ledger.write("X", f"in a thread: {error!r}")

    def finish_all(self, consumer: Consumer, message: Message) -> None:
        message.enable_async()
        with self._lock:
            self._waiting.append(self._took(message))

    def finish_waiting(self) -> None:
        while True:
            gevent.sleep(0.05)
            with self._lock:
                waiting, self._waiting = self._waiting, []
            finished = [message for key, message in waiting if self._decide(key, message) == "finish"]
            finish_all(finished)
            for _, message in waiting:
                if message not in finished:
                    with contextlib.suppress(NSQException):
                        message.requeue(200)

    def _batch(self, items: list[tuple[str, Message]]) -> None:
        gevent.sleep(0.02)
        key, first = items[0]
        # By its attempts, too: a message that comes alone each time would fail for ever.
        fails = random.Random(f"{key}{len(items)}{first.attempts}").random() < 0.02
        for each, message in items:
            self._answer(each, message, "fail" if fails else "finish")
        if fails:
            raise Planned(key)

    def dead_letters(self, consumer: Consumer, message: Message) -> None:
        letter = decode_dead_letter(message.body)
        key, channel = (message.body.decode("latin-1"), "") if letter is None else (key_of(letter.body), letter.channel)
        self._ledger.write("L", key, channel, message.nsqd)


class ManyConsumer(Consumer):
    """Handles all messages that wait with one call."""

    handlers: Handlers

    def handle_messages(self, messages: list[Message]) -> None:
        for message in messages:
            self.handlers._answer_now(*self.handlers._took(message))


def consume(settings: dict[str, Any], ledger: Ledger, clock: SteppedClock, chosen: random.Random) -> None:
    handlers, way, options = Handlers(ledger), settings["way"], settings["options"]
    make = ManyConsumer if way == "messages" else Consumer
    first = chosen.randint(1, 10)
    ledger.write("M", first)
    consumer = make(
        settings["topic"],
        settings["channel"],
        threaded=settings["threaded"],
        message_handler=None if way == "messages" else getattr(handlers, way),
        max_in_flight=first,
        requeue_delay=lambda attempts: min(200 * attempts, 1000),
        client_id=settings["name"],
        clock=clock,
        **options,
    )
    if isinstance(consumer, ManyConsumer):
        consumer.handlers = handlers
    jobs = [gevent.spawn(watch, ledger, clock, chosen), gevent.spawn(change_limit, consumer, ledger, chosen)]
    if way == "finish_all":
        jobs.append(gevent.spawn(handlers.finish_waiting))
    try:
        run(consumer)
    finally:
        gevent.killall(jobs)
        ledger.write("Q", {"unanswered": consumer.stats().unanswered})


def change_limit(consumer: Consumer, ledger: Ledger, chosen: random.Random) -> None:
    """Change max_in_flight, mostly to less than there would be in flight otherwise."""
    while True:
        gevent.sleep(chosen.uniform(0.5, 12))
        limit = chosen.choice([1, 2, 3, 4, 40])
        ledger.write("M", limit)
        consumer.max_in_flight = limit
        if chosen.random() < 0.1:
            consumer.pause()
            gevent.sleep(chosen.uniform(0.1, 1))
            consumer.resume()


def serve_auth(settings: dict[str, Any], ledger: Ledger, clock: SteppedClock, chosen: random.Random) -> None:
    with (
        StopSignals() as stop,
        FakeAuthServer({"all": [Grant()]}, http_address=settings["address"], ttl=settings["ttl"]),
    ):
        stop.requested.wait()


def main(path: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the clients start
    # For a worker that does not end: where its greenlets are, and if its hub does not run, where its threads are.
    signal.signal(signal.SIGUSR2, lambda *_: print_run_info())
    faulthandler.enable()
    settings = json.loads(Path(path).read_text())
    ledger, clock, chosen = Ledger(f"{path}l"), SteppedClock(), random.Random(f"{settings['seed']}{path}")
    log = logging.FileHandler(Path(path).with_suffix(".log"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=[log])
    logging.getLogger("gnsq").addHandler(LedgerLog(ledger))
    functions = {"producer": produce, "consumer": consume, "auth": serve_auth}
    functions[settings["kind"]](settings, ledger, clock, chosen)


if __name__ == "__main__":
    main(sys.argv[1])
