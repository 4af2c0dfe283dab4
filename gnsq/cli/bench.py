"""gnsq bench: measures how fast messages go through the nsqds that are given, on an ephemeral topic."""

from __future__ import annotations

import contextlib
import json
import os
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import gevent

from gnsq.cli.cluster import Cluster
from gnsq.cli.command import Command, before_signal
from gnsq.cli.nodes import NodePoller
from gnsq.cli.parameters import PAUSE, RATE, SIZE
from gnsq.cli.progress import Counter, RateLimiter
from gnsq.cli.receiving import Received, Receiver
from gnsq.cli.stats import report
from gnsq.cli.topics import Topics
from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQException, NSQHttpError
from gnsq.message import finish_all
from gnsq.producer import Producer
from gnsq.running import StopSignals
from gnsq.texts import counted

__all__ = ["bench"]

# Messages that are in flight, and that are handled at a time.
MAX_IN_FLIGHT, BATCH = 2500, 250
# Messages that have been made and have not come. Of an ephemeral topic nsqd keeps 10,000 by default (--mem-queue-size),
# and drops the others.
MAX_WAITING = 5000
# Milliseconds for which nsqd may collect messages before it sends them: the lowest value that it takes by default.
OUTPUT_BUFFER_TIMEOUT = 25
# Each message begins with the time at which it was made, in 20 bytes.
MIN_SIZE = 20
MAX_COUNT = 10_000_000
# Seconds between two looks at what has not come yet.
CHECK_INTERVAL = 0.005
# Seconds between two questions for the nsqds of the topic: it was made a moment ago.
LOOKUP_INTERVAL = 0.5
_EXAMPLES = """
    gnsq bench --nsqd 127.0.0.1:4150
    gnsq bench --cluster production --rate 1000 --time 10s
"""


@click.command(cls=Command, examples=_EXAMPLES)
@click.option(
    "-n",
    "--count",
    metavar="N",
    default=100_000,
    show_default=True,
    type=click.IntRange(1, MAX_COUNT),
    help="Number of messages.",
)
@click.option("--size", metavar="BYTES", default="200", show_default=True, type=SIZE, help="Size of a message.")
@click.option(
    "--time", "limit", metavar="TIME", default="30s", show_default=True, type=PAUSE, help="Limit of publishing."
)
@RATE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(
    cluster: Cluster,
    stop: StopSignals,
    count: int,
    size: float,
    limit: float,
    rate: float | None,
    as_json: bool,
) -> int:
    """Measure how fast this machine publishes and receives messages through the cluster.

    Publishes to an ephemeral topic with a random name on all nsqds, and receives it at the same time. At the end the
    topic is deleted; if this program is killed, nsqd deletes it with the last connection. Not more than 5,000 messages
    wait at a time, so both rates are that of the slower side. Without --rate this loads the nsqds as much as it can;
    with --rate, the latency is that of a cluster that has time.

    The latency is the time from the making of a message until its arrival in this program. The JSON of --json has
    messages, size, nsqds, published, received, publish_rate, receive_rate (messages a second), and latency, with
    median, p99 and max in seconds; null if nothing was received.
    """
    if not MIN_SIZE <= size <= 2**24:
        raise click.UsageError(f"--size {size:g} must be {MIN_SIZE} bytes to 16 MiB")
    topic = f"bench{os.urandom(4).hex()}#ephemeral"
    poller = NodePoller(cluster, topic)
    snapshot = before_signal(stop, poller.poll)
    if report(snapshot, None, None):
        return 1
    addresses = [node.address for node in snapshot.reached]
    receiver = Receiver(
        *(cluster, Topics((topic,)), "bench#ephemeral", stop, Counter("received")),
        max_in_flight=MAX_IN_FLIGHT,
        batch=BATCH,
        lookupd_poll_interval=LOOKUP_INTERVAL,
        output_buffer_timeout=OUTPUT_BUFFER_TIMEOUT,
    )
    with _topic_on(poller, addresses, topic), cluster.producer() as producer:
        run = _Run(topic, count, int(size), limit, len(addresses), cluster.timeout, receiver, producer)
        run.measure(RateLimiter(rate, stop.requested), stop)
    result = run.result()
    click.echo(json.dumps(result) if as_json else "\n".join(_lines(result)))
    if stop.number is not None:
        return 128 + stop.number
    if run.received < run.published:
        left = counted(run.published - run.received, "message has", "messages have", spec=",")
        click.echo(f"Error: {left} not come within {cluster.timeout:g} s: has nsqd a small --mem-queue-size?", err=True)
        return 1
    return 0


@contextlib.contextmanager
def _topic_on(poller: NodePoller, addresses: Sequence[str], topic: str) -> Iterator[None]:
    """Create a topic on nsqds, so that nsqlookupd knows it, and delete it after the block."""
    clients = [poller.client(address) for address in addresses]
    try:
        for client in clients:
            client.create_topic(topic)
        yield
    finally:
        for client in clients:
            with contextlib.suppress(NSQHttpError):  # nsqd has deleted it with the last connection
                client.delete_topic(topic)


@dataclass
class _Run:
    """Publishes and receives.

    Attributes:
        has_stalled: True after messages have not come in time.
        made: Number of messages that were made, to be published.
        limit: Seconds after which no more is published.
        nsqds: Number of the nsqds of the topic.
        patience: Seconds that the last messages may take.
        latencies: Seconds from the making of each message until its arrival.
        started: Monotonic time of the first publish.
        publishing, receiving: Seconds that each has taken.
    """

    topic: str
    count: int
    size: int
    limit: float
    nsqds: int
    patience: float
    receiver: Receiver
    producer: Producer
    has_stalled: bool = False
    made: int = 0
    published: int = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    started: float = 0.0
    publishing: float = 0.0
    receiving: float = 0.0

    @property
    def received(self) -> int:
        return len(self.latencies)

    def measure(self, limiter: RateLimiter, stop: StopSignals) -> None:
        """Publish in a greenlet, and receive until all has come, or its time is over, or a signal."""
        publisher = spawn("gnsq-bench", self._publish, limiter, stop, on_failure=self.receiver.fail)
        try:
            self.receiver.run(self._handle)
        finally:
            publisher.kill()

    def _publish(self, limiter: RateLimiter, stop: StopSignals) -> None:
        self._wait_for_consumer()
        self.started = time.monotonic()
        step = limiter.step or self.count
        while self.made < self.count and not self._is_over(stop):
            number = min(step, self.count - self.made)
            limiter.wait(number)
            self.producer.publish_many(self.topic, self._bodies(number, stop))
            self.published = self.made
            self.publishing = time.monotonic() - self.started
        self._wait_until_waiting(0, stop)
        self.receiver.end()

    def _is_over(self, stop: StopSignals) -> bool:
        return stop.is_set() or self.has_stalled or time.monotonic() - self.started > self.limit

    def _wait_until_waiting(self, most: int, stop: StopSignals) -> None:
        """Wait until only so many messages have not come, or their time is over, or a signal."""
        deadline = time.monotonic() + self.patience
        while self.made - self.received > most and not stop.is_set() and not self.has_stalled:
            self.has_stalled = time.monotonic() > deadline
            gevent.sleep(CHECK_INTERVAL)

    def _wait_for_consumer(self) -> None:
        """Wait until the consumer has a connection to each nsqd. It asks nsqlookupd again and again."""
        (consumer,) = self.receiver.consumers
        deadline = time.monotonic() + self.patience
        while len(consumer.stats().connections) < self.nsqds:
            if time.monotonic() > deadline:
                raise NSQException(f"not all nsqds can be reached: {consumer.stats().failures or 'no answer'}")
            gevent.sleep(CHECK_INTERVAL)

    def _bodies(self, number: int, stop: StopSignals) -> Iterator[bytes]:
        for index in range(number):
            if index % BATCH == 0:
                self._wait_until_waiting(MAX_WAITING, stop)
                if self._is_over(stop):
                    return
            self.made += 1
            yield (b"%019d " % time.monotonic_ns()).ljust(self.size, b".")

    def _handle(self, received: Sequence[Received]) -> None:
        now = time.monotonic_ns()
        self.latencies.extend((now - int(each.message.body[: MIN_SIZE - 1])) / 1e9 for each in received)
        self.receiving = time.monotonic() - self.started
        self.receiver.done(len(received))
        finish_all(each.message for each in received)

    def result(self) -> dict[str, Any]:  # Any: JSON
        """Return the object of --json."""
        ordered = sorted(self.latencies)
        latency = None
        if ordered:
            latency = {
                "median": ordered[len(ordered) // 2],
                "p99": ordered[len(ordered) * 99 // 100],
                "max": ordered[-1],
            }
        return {
            "messages": self.count,
            "size": self.size,
            "nsqds": self.nsqds,
            "published": self.published,
            "received": self.received,
            "publish_rate": self.published / self.publishing if self.publishing else None,
            "receive_rate": self.received / self.receiving if self.receiving else None,
            "latency": latency,
        }


def _lines(result: dict[str, Any]) -> Iterator[str]:  # Any: JSON
    for what, rate in (("published", result["publish_rate"]), ("received", result["receive_rate"])):
        speed = "" if rate is None else f", {rate:,.0f}/s, {rate * result['size'] / 1e6:,.1f} MB/s"
        yield f"{what:10} {counted(result[what], 'message', spec=',')} of {result['size']} bytes{speed}"
    if (latency := result["latency"]) is not None:
        yield "latency    " + ", ".join(f"{name} {seconds * 1000:,.1f} ms" for name, seconds in latency.items())
