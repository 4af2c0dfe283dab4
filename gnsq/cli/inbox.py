"""Receives messages of several consumers for a command that takes many of them at a time."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import gevent
from gevent.event import Event

from gnsq.cli.cluster import Cluster
from gnsq.cli.starting import start
from gnsq.concurrency.greenlets import spawn
from gnsq.consumer import Consumer
from gnsq.errors import NSQException
from gnsq.message import Message
from gnsq.running import StopSignals

__all__ = ["BATCH_SIZE", "MAX_WAITING_SIZE", "Inbox", "Received", "in_flight_for", "receive", "requeue_all", "touching"]

# Seconds. With a limit of the rate, messages of this time are in flight: they must not time out while they wait.
RATE_AHEAD = 10.0


# Bytes of bodies. Above the first limit, no more messages are requested until half of them are taken: a number of
# messages is no limit of the memory. At most the second limit, or one message, is taken at a time.
MAX_WAITING_SIZE, BATCH_SIZE = 64 << 20, 16 << 20


class Received(NamedTuple):
    """A message, and the topic that it came from."""

    topic: str
    message: Message


class Inbox:
    """Messages that wait until the command takes them. It is the handler of consumers: each message becomes async.

    Attributes:
        filled: Set while a message waits.
        kept: Messages of keep().
    """

    def __init__(self) -> None:
        self.filled = Event()
        self.kept: set[Message] = set()
        self._waiting: deque[Received] = deque()
        self._size = 0  # bytes of the bodies that wait
        self._paused: set[Consumer] = set()
        self._is_closed = False

    def __call__(self, consumer: Consumer, message: Message) -> None:
        """Add a message. After close(), requeue it."""
        if self._is_closed:
            message.requeue(0, backoff=False)
            return
        message.enable_async()
        self._waiting.append(Received(consumer.topic, message))
        self._size += len(message.body)
        if self._size > MAX_WAITING_SIZE and consumer not in self._paused:
            self._paused.add(consumer)
            consumer.pause()
        self.filled.set()

    def take(self, limit: float) -> list[Received]:
        """Remove and return up to a number of messages, without waiting. Messages that have timed out are dropped."""
        taken = self._take(limit, BATCH_SIZE)
        if self._size <= MAX_WAITING_SIZE // 2:
            while self._paused:
                self._paused.pop().resume()
        return taken

    def _take(self, limit: float, max_size: float) -> list[Received]:
        taken: list[Received] = []
        size = 0
        while self._waiting and len(taken) < limit:
            length = len(self._waiting[0].message.body)
            if taken and size + length > max_size:
                break
            received = self._waiting.popleft()
            self._size -= length
            size += length
            if received.message.time_left == 0:
                received.message.drop()  # nsqd delivers it again
            else:
                taken.append(received)
        if not self._waiting:
            self.filled.clear()
        return taken

    def requeue_waiting(self) -> None:
        """Give all messages that wait back to nsqd."""
        requeue_all([received.message for received in self._take(math.inf, math.inf)])

    def keep(self, messages: Iterable[Message]) -> None:
        """Keep messages, without their bodies, in flight until close(). They may time out before."""
        for message in messages:
            message.body = b""
            self.kept.add(message)

    def close(self) -> None:
        """Give all messages back to nsqd, also those that were kept, and those that arrive later."""
        self._is_closed = True
        self.requeue_waiting()
        requeue_all([message for message in self.kept if message.time_left != 0])


def requeue_all(messages: Sequence[Message], delay: float | None = 0.0, *, backoff: bool = False) -> None:
    """Requeue messages. A message whose connection is lost is left out: nsqd delivers it again.

    Args:
        delay: Seconds; None: as the consumer computes it.
    """
    for message in messages:
        with contextlib.suppress(NSQException):
            message.requeue(None if delay is None else round(delay * 1000), backoff=backoff)


@contextlib.contextmanager
def touching(messages: Iterable[Message]) -> Iterator[None]:
    """Keep messages from timing out while a block waits."""
    with contextlib.ExitStack() as opened:
        for message in messages:
            opened.enter_context(message.touching())
        yield


def in_flight_for(rate: float | None, count: int | None, most: int) -> int:
    """Return a max_in_flight that a limited rate or number of messages needs, but not more than most."""
    wanted = min(most, math.inf if rate is None else rate * RATE_AHEAD, math.inf if count is None else count)
    return max(1, math.ceil(wanted))


@contextlib.contextmanager
def receive(cluster: Cluster, consumers: Sequence[Consumer], inbox: Inbox, stop: StopSignals) -> Iterator[None]:
    """Start consumers whose handler is the inbox; at the end, give the messages that are left back, and close them."""
    try:
        start(cluster, consumers, stop)
        yield
    finally:
        for consumer in consumers:
            consumer.pause()  # otherwise nsqd would deliver the requeued messages here again
        inbox.close()
        closers = [spawn("gnsq-inbox-close", consumer.close, on_failure=None) for consumer in consumers]
        gevent.joinall(closers, raise_error=True)
