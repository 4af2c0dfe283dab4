"""Publishes received messages elsewhere, and finishes each after nsqd has confirmed it: for gnsq copy and requeue-dead.

Of each message, in this order: the command decides what happens to it; it is published; nsqd responds with OK; FIN is
sent. If the publish fails, the message is requeued. So a message may be published twice, but is not lost. If FIN is
lost with the connection, nsqd delivers the message again: then it is finished, and not published again.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import gevent
from gevent.event import Event

from gnsq.cli.inbox import Inbox, Received, requeue_all, touching
from gnsq.cli.progress import Counter, RateLimiter
from gnsq.concurrency.greenlets import spawn
from gnsq.consumer import Consumer
from gnsq.errors import NSQErrorCode, NSQException, NSQUnknown
from gnsq.logs import LogOwner
from gnsq.message import Message, finish_all
from gnsq.producer import Producer
from gnsq.producer.publish import is_node_error
from gnsq.running import StopSignals
from gnsq.texts import counted

__all__ = ["Answer", "FailurePolicy", "Publication", "Republisher", "RepublishCounts", "Step", "summary"]

logger = logging.getLogger(__name__)

# Number of messages that one sender takes at a time, and number of the senders.
BATCH = 250
SENDERS = 4
# Seconds between two checks whether nothing has come for some time.
IDLE_CHECK_INTERVAL = 0.1
# Seconds by which nsqd may deliver a requeued message later than its delay says: it finds a channel that was made a
# moment ago only after this time. Source: nsqd nsqd.go, queueScanLoop; --queue-scan-refresh-interval.
REQUEUE_LATENESS = 5.0
# Number of published messages that are remembered, since they may come again. nsqd has up to max_in_flight messages
# whose FIN may be lost.
MAX_REMEMBERED = 20_000


class Answer(enum.Enum):
    """Answer to a message that is not published."""

    FINISH = "finish it"
    LEAVE = "requeue it with the delay of the policy"
    KEEP = "keep it in flight, and requeue it without delay at the end"


@dataclass(frozen=True)
class Publication:
    """Body and topic to publish for a message."""

    topic: str
    body: bytes


Step = Publication | Answer


@dataclass(frozen=True)
class FailurePolicy:
    """When a message comes again that was not published.

    Attributes:
        leave_delay: Seconds, for Answer.LEAVE.
        refused_delay: Seconds, if nsqd has refused the message: it would refuse the next attempt, too.
        retry_delay: Seconds, for all other failures.
        tries_again: True if the command itself is to publish these: the consumer pauses, and run() waits for them.
        is_fatal: Returns True for an error that ends the command.
    """

    leave_delay: float
    refused_delay: float
    retry_delay: float
    tries_again: bool
    is_fatal: Callable[[Exception], bool]


@dataclass
class RepublishCounts:
    """Numbers of messages by what happened to them. A message that came twice counts twice.

    Attributes:
        published: Confirmed.
        unfinished: Published, but nsqd delivers them again: the connection was lost before FIN, or their time was over.
        again: Came again after they were published, and were only finished. They are not unfinished any more.
        finished, left: Not chosen.
        refused: nsqd or the producer has refused them.
        unknown: No response came, so nsqd may have them. They are requeued.
        not_sent: nsqd does not have them. They are requeued.
        error: Text of the last failure.
    """

    published: int = 0
    unfinished: int = 0
    again: int = 0
    finished: int = 0
    left: int = 0
    refused: int = 0
    unknown: int = 0
    not_sent: int = 0
    error: str = ""

    @property
    def failed(self) -> int:
        """Number of the failures."""
        return self.refused + self.unknown + self.not_sent


class Republisher:
    """Takes messages out of an inbox, publishes and finishes them.

    Args:
        producer: None if decide never returns a Publication.
        decide: Called with each message.
        limiter: Limit of the publications.

    Attributes:
        counts: What has happened.
        is_idle: True if run() has ended since no message came.
    """

    def __init__(
        self,
        consumer: Consumer,
        inbox: Inbox,
        producer: Producer | None,
        decide: Callable[[Received], Step],
        policy: FailurePolicy,
        counter: Counter,
        limiter: RateLimiter,
        stop: StopSignals,
    ) -> None:
        self.counts = RepublishCounts()
        self.is_idle = False
        self._consumer = consumer
        self._inbox = inbox
        self._producer = producer
        self._decide = decide
        self._policy = policy
        self._counter = counter
        self._limiter = limiter
        self._stop = stop
        self._left: int | None = None
        self._busy = 0  # number of senders that have messages
        self._active_until = 0.0  # monotonic seconds; later than now, if requeued messages are expected
        self._error: Exception | None = None
        # The last messages that were published, by nsqd and id. True: unfinished.
        self._published: dict[tuple[str | None, bytes], bool] = {}
        self._is_over = Event()
        self._logger = LogOwner("", time.monotonic).log(logger)
        stop.requested.rawlink(lambda _: self._is_over.set())

    def end(self) -> None:
        """Let run() end. Messages that senders have taken are published before."""
        self._is_over.set()

    def run(self, count: int | None, idle: float | None, patience: float) -> None:
        """Publish until a signal comes, count messages are published, or end() is called.

        Args:
            idle: Seconds without a message after which this ends; None: no limit.
            patience: With idle, seconds that the consumer has for connecting.

        Raises:
            NSQException: If a failure is fatal, or no nsqd can be reached within the patience.
            Exception: What decide raises, and any other error that has ended a sender.
        """
        self._left = count
        if self._stop.number is not None:
            return
        # Each sender waits for its responses. With a limit, the next messages depend on them.
        number = SENDERS if count is None and self._limiter.step is None else 1
        senders = [spawn("gnsq-sender", self._send, on_failure=self._fail) for _ in range(number)]
        if idle is not None:
            self._wait_idle(idle, patience)
        self._is_over.wait()
        gevent.joinall(senders)
        if self._error is not None:
            raise self._error

    def _wait_idle(self, idle: float, patience: float) -> None:
        ready = last = time.monotonic()
        while not self._is_over.wait(IDLE_CHECK_INTERVAL):
            now = time.monotonic()
            stats = self._consumer.stats()
            if stats.not_ready:
                if now - ready > patience + idle:
                    self._fail(NSQException(f"{stats.topic}: no nsqd can be reached: {stats.not_ready}"))
                last = now
                continue
            ready = now
            if self._busy or self._inbox.filled.is_set() or stats.backoff != "off":
                last = now
            last = max(last, self._active_until)
            if now - last >= idle:
                self.is_idle = True
                self._is_over.set()

    # --- senders

    def _send(self) -> None:
        while not self._is_over.is_set():
            gevent.wait([self._inbox.filled, self._is_over], count=1)
            limit = min(BATCH, self._limiter.step or BATCH, BATCH if self._left is None else self._left)
            if received := self._inbox.take(limit):
                self._handle(received)
            if self._left == 0:
                self._is_over.set()

    def _fail(self, error: Exception) -> None:
        """Let run() end with an error."""
        self._error = self._error or error
        self._is_over.set()

    def _handle(self, received: Sequence[Received]) -> None:
        self._busy += 1
        messages = [each.message for each in received]
        again = {message for message in messages if (message.nsqd, message.id) in self._published}
        try:
            self._finish(again)
            self.counts.again += len(again)
            steps = [(each.message, self._decide(each)) for each in received if each.message not in again]
            self._answer([message for message, step in steps if step is Answer.FINISH], Answer.FINISH)
            self._answer([message for message, step in steps if step is Answer.LEAVE], Answer.LEAVE)
            self._inbox.keep([message for message, step in steps if step is Answer.KEEP])
            self._publish([(message, step) for message, step in steps if isinstance(step, Publication)])
        finally:
            # After an exception, and after a signal that came before the publish.
            kept = self._inbox.kept
            requeue_all([message for message in messages if not message.has_responded() and message not in kept])
            self._active_until = max(self._active_until, time.monotonic())
            self._busy -= 1

    def _answer(self, messages: Sequence[Message], answer: Answer) -> None:
        if answer is Answer.FINISH:
            self.counts.finished += len(messages) - len(finish_all(messages))
        else:
            requeue_all(messages, self._policy.leave_delay)
            self.counts.left += len(messages)

    def _publish(self, steps: Sequence[tuple[Message, Publication]]) -> None:
        if not steps:
            return
        with touching([message for message, _ in steps] if self._limiter.step == 1 else ()):  # a slow rate
            self._limiter.wait(len(steps))
        if self._stop.number is not None:
            return
        assert self._producer is not None
        publish = self._producer.publish_async
        confirmed: list[Message] = []
        try:
            results = []
            for message, publication in steps:
                try:
                    results.append((message, publish(publication.topic, publication.body)))
                except (NSQException, ValueError) as error:
                    self._on_failure(message, error)
            for message, result in results:
                try:
                    result.get()
                except NSQException as error:
                    self._on_failure(message, error)
                else:
                    confirmed.append(message)
        finally:
            self._finish(confirmed)
            self.counts.published += len(confirmed)
            self._counter.add(len(confirmed))
            if self._left is not None:
                self._left -= len(confirmed)

    def _finish(self, messages: Collection[Message]) -> None:
        """Finish published messages, and remember them: nsqd delivers those again whose FIN does not arrive in time."""
        late = [message for message in messages if message.time_left == 0]
        unfinished = {*finish_all(messages), *late}
        for message in messages:
            key = (message.nsqd, message.id)
            self.counts.unfinished -= self._published.pop(key, False)
            self._published[key] = message in unfinished
        self.counts.unfinished += len(unfinished)
        while len(self._published) > MAX_REMEMBERED:
            del self._published[next(iter(self._published))]

    def _on_failure(self, message: Message, error: NSQException | ValueError) -> None:
        """Count and log a failure, and requeue the message."""
        policy = self._policy
        is_refused = isinstance(error, (NSQErrorCode, ValueError)) and not is_node_error(error)
        if isinstance(error, NSQUnknown):
            self.counts.unknown += 1
        elif is_refused:
            self.counts.refused += 1
        else:
            self.counts.not_sent += 1
        self.counts.error = str(error)
        delay = policy.refused_delay if is_refused else policy.retry_delay
        requeue_all([message], delay, backoff=policy.tries_again and not is_refused)
        if policy.is_fatal(error):
            self._fail(error)
            return
        if policy.tries_again and not is_refused:
            self._active_until = max(self._active_until, time.monotonic() + delay + REQUEUE_LATENESS)
        text = "not published, requeued for %g s: %s"
        self._logger.limited(logging.WARNING, type(error).__name__, text, delay, error, message=message)


def summary(counts: RepublishCounts, *, finished: str = "", left: str = "") -> list[str]:
    """Write the counts of what was not published, as parts of a sentence.

    Args:
        finished, left: What is said of messages that were finished or left.
    """
    parts = [
        (counts.finished, finished),
        (counts.left, left),
        (counts.refused, f"refused and requeued, last error: {counts.error}"),
        (counts.not_sent, "not published and requeued"),
        (counts.unknown, "requeued without a response, so they may be doubled"),
        (counts.again, "came again after being published: finished, and not published again"),
        (counts.unfinished, "published but not finished, as the connection was lost, so they may be doubled"),
    ]
    return [f"{counted(number, 'message', spec=',')} {text}" for number, text in parts if number]
