"""Publishes received messages elsewhere, and finishes each after nsqd has confirmed it: for gnsq copy and requeue-dead.

Of each message, in this order: the command decides what happens to it; it is published; nsqd responds with OK; FIN is
sent. If the publish fails, the message is requeued. So a message may be published twice, but is not lost. If FIN is
lost with the connection, nsqd delivers the message again: then it is finished, and not published again.
"""

from __future__ import annotations

import enum
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from gnsq.cli.receiving import Received, Receiver, requeue_all
from gnsq.errors import NSQErrorCode, NSQException, NSQUnknown
from gnsq.logs import LogOwner
from gnsq.message import Message, finish_all
from gnsq.producer import Producer
from gnsq.producer.publish import is_node_error
from gnsq.texts import counted

__all__ = ["BATCH", "Outcome", "Publication", "Republisher"]

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


class Publication(NamedTuple):
    """Body and topic to publish for a message."""

    topic: str
    body: bytes


class Outcome(enum.Enum):
    """What has happened to messages that were not just published and finished: what a summary says after their number.
    A message that came twice counts twice."""

    REFUSED = "refused and requeued"
    NOT_SENT = "not published and requeued"
    UNKNOWN = "requeued without a response, so they may be doubled"
    AGAIN = "came again after being published: finished, and not published again"
    # The connection was lost before FIN, or their time was over. They are no longer counted after they came again.
    UNFINISHED = "published but not finished, as the connection was lost, so they may be doubled"


class Republisher:
    """Publishes the messages of a Receiver, and finishes them.

    Args:
        producer: None if decide never returns a Publication.
        decide: Returns what to publish for a message; None if it has answered the message, or leaves it in flight.
        refused_delay: Seconds until a message comes again that nsqd has refused: it would refuse the next attempt, too.
        retry_delay: Seconds until a message comes again whose publish failed for another reason.
        tries_again: True if this command itself is to publish that one: the consumer pauses, and the end waits for it.
        is_fatal: Returns True for an error that ends the command.

    Attributes:
        counts: Numbers of messages.
    """

    def __init__(
        self,
        receiver: Receiver,
        producer: Producer | None,
        decide: Callable[[Received], Publication | None],
        *,
        refused_delay: float,
        retry_delay: float,
        tries_again: bool,
        is_fatal: Callable[[Exception], bool],
    ) -> None:
        self.counts: Counter[Outcome] = Counter()
        self._receiver = receiver
        self._producer = producer
        self._decide = decide
        self._refused_delay = refused_delay
        self._retry_delay = retry_delay
        self._tries_again = tries_again
        self._is_fatal = is_fatal
        self._error: Exception | None = None  # the last one
        # The last messages that were published, by nsqd and id. True: unfinished.
        self._published: dict[tuple[str | None, bytes], bool] = {}
        self._logger = LogOwner("", time.monotonic).log(logger)

    def run(self) -> None:
        """Republish until the end."""
        self._receiver.run(self._handle, SENDERS)

    def summary(self) -> list[str]:
        """Write the counts as parts of a sentence."""
        parts = []
        for outcome in Outcome:
            if number := self.counts[outcome]:
                error = f", last error: {self._error}" if outcome is Outcome.REFUSED else ""
                parts.append(f"{counted(number, 'message', spec=',')} {outcome.value}{error}")
        return parts

    def _handle(self, received: Sequence[Received]) -> None:
        """Decide about messages, publish them, and answer them."""
        messages = [each.message for each in received]
        again = {message for message in messages if (message.nsqd, message.id) in self._published}
        self._finish(again)
        self.counts[Outcome.AGAIN] += len(again)
        decided = [(each.message, self._decide(each)) for each in received if each.message not in again]
        chosen = [(message, publication) for message, publication in decided if publication is not None]
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
            self._receiver.done(len(confirmed))
            self._finish(confirmed)

    def _finish(self, messages: Collection[Message]) -> None:
        """Finish published messages, and remember them: nsqd delivers those again whose FIN does not arrive in time."""
        late = [message for message in messages if message.time_left == 0]
        unfinished = {*finish_all(messages), *late}
        for message in messages:
            key = (message.nsqd, message.id)
            self.counts[Outcome.UNFINISHED] -= self._published.pop(key, False)
            self._published[key] = message in unfinished
        self.counts[Outcome.UNFINISHED] += len(unfinished)
        while len(self._published) > MAX_REMEMBERED:
            del self._published[next(iter(self._published))]

    def _on_failure(self, message: Message, error: NSQException | ValueError) -> None:
        """Count and log a failure, and requeue the message."""
        is_refused = isinstance(error, (NSQErrorCode, ValueError)) and not is_node_error(error)
        if isinstance(error, NSQUnknown):
            self.counts[Outcome.UNKNOWN] += 1
        else:
            self.counts[Outcome.REFUSED if is_refused else Outcome.NOT_SENT] += 1
        self._error = error
        delay = self._refused_delay if is_refused else self._retry_delay
        is_tried_again = self._tries_again and not is_refused
        (consumer,) = self._receiver.consumers
        consumer.note_failure(message, error)
        requeue_all([message], delay, backoff=is_tried_again)
        if self._is_fatal(error):
            self._receiver.fail(error)
        elif is_tried_again:
            self._receiver.expect(delay + REQUEUE_LATENESS)  # the consumer logs the backoff with the reason
        else:
            text = "not published, requeued for %g s: %s"
            self._logger.limited(logging.WARNING, type(error).__name__, text, delay, error, message=message)
