"""Receives messages of several consumers for a command that takes many of them at a time."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import gevent
from gevent.event import Event

from gnsq.concurrency.greenlets import spawn
from gnsq.consumer import Consumer
from gnsq.errors import NSQException
from gnsq.message import Message

__all__ = ["Inbox", "Received", "in_flight_for", "receive", "requeue_all", "touching"]

# Seconds. With a limit of the rate, messages of this time are in flight: they must not time out while they wait.
RATE_AHEAD = 10.0


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
        self._is_closed = False

    def __call__(self, consumer: Consumer, message: Message) -> None:
        """Add a message. After close(), requeue it."""
        if self._is_closed:
            message.requeue(0, backoff=False)
            return
        message.enable_async()
        self._waiting.append(Received(consumer.topic, message))
        self.filled.set()

    def take(self, limit: float) -> list[Received]:
        """Remove and return up to a number of messages, without waiting. Messages that have timed out are dropped."""
        taken: list[Received] = []
        while self._waiting and len(taken) < limit:
            received = self._waiting.popleft()
            if received.message.time_left == 0:
                received.message.drop()  # nsqd delivers it again
            else:
                taken.append(received)
        if not self._waiting:
            self.filled.clear()
        return taken

    def requeue_waiting(self) -> None:
        """Give all messages that wait back to nsqd."""
        requeue_all([received.message for received in self.take(math.inf)])

    def keep(self, messages: Iterable[Message]) -> None:
        """Keep messages in flight until close(). They may time out before."""
        self.kept.update(messages)

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
def receive(consumers: Sequence[Consumer], inbox: Inbox) -> Iterator[None]:
    """Start consumers whose handler is the inbox; at the end, give the messages that are left back, and close them."""
    try:
        starts = [spawn("gnsq-start", consumer.start, False, on_failure=None) for consumer in consumers]
        gevent.joinall(starts, raise_error=True)
        yield
    finally:
        # Close first: otherwise nsqd would deliver the requeued messages here again.
        for consumer in consumers:
            consumer.close()
        inbox.close()
        for consumer in consumers:
            consumer.join()
