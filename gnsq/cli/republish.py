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

from gnsq.cli.receiving import Received, Receiver, requeue_all
from gnsq.errors import NSQErrorCode, NSQException, NSQUnknown
from gnsq.logs import LogOwner
from gnsq.message import Message, finish_all
from gnsq.producer import Producer
from gnsq.producer.publish import is_node_error
from gnsq.texts import counted

__all__ = ["Answer", "FailurePolicy", "Publication", "Republisher", "RepublishCounts", "Step", "summary"]

logger = logging.getLogger(__name__)

# Number of messages that are published at a time, and how often at the same time: each waits for its responses.
BATCH = 250
SENDERS = 4
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
    KEEP = "leave it in flight until the end"


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
        tries_again: True if the command itself is to publish these: the consumer pauses, and the end waits for them.
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
    """Publishes the messages of a Receiver, and finishes them.

    Args:
        producer: None if decide never returns a Publication.
        decide: Called with each message.

    Attributes:
        counts: What has happened.
    """

    def __init__(
        self,
        receiver: Receiver,
        producer: Producer | None,
        decide: Callable[[Received], Step],
        policy: FailurePolicy,
    ) -> None:
        self.counts = RepublishCounts()
        self._receiver = receiver
        self._producer = producer
        self._decide = decide
        self._policy = policy
        # The last messages that were published, by nsqd and id. True: unfinished.
        self._published: dict[tuple[str | None, bytes], bool] = {}
        self._logger = LogOwner("", time.monotonic).log(logger)

    def run(self) -> None:
        """Republish until the end."""
        self._receiver.run(self._handle, SENDERS)

    def _handle(self, received: Sequence[Received]) -> None:
        """Decide about messages, publish them, and answer them."""
        messages = [each.message for each in received]
        again = {message for message in messages if (message.nsqd, message.id) in self._published}
        self._finish(again)
        self.counts.again += len(again)
        steps = [(each.message, self._decide(each)) for each in received if each.message not in again]
        finished = [message for message, step in steps if step is Answer.FINISH]
        self.counts.finished += len(finished) - len(finish_all(finished))
        left = [message for message, step in steps if step is Answer.LEAVE]
        requeue_all(left, self._policy.leave_delay)
        self.counts.left += len(left)
        chosen = [(message, step) for message, step in steps if isinstance(step, Publication)]
        if chosen and self._receiver.pace(len(chosen)):
            self._publish(chosen)

    def _publish(self, steps: Sequence[tuple[Message, Publication]]) -> None:
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
            self.counts.published += len(confirmed)
            self._receiver.done(len(confirmed))
            self._finish(confirmed)

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
        (consumer,) = self._receiver.consumers
        consumer.note_failure(message, error)
        requeue_all([message], delay, backoff=policy.tries_again and not is_refused)
        if policy.is_fatal(error):
            self._receiver.fail(error)
            return
        if policy.tries_again and not is_refused:
            self._receiver.expect(delay + REQUEUE_LATENESS)
            return  # the consumer logs the backoff with the reason
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
