"""Publishes the messages that a consumer gives up: option dead_letter_topic. Knows neither handlers nor answers."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from gnsq.clock import Clock
from gnsq.dead_letter import DeadLetter, encode_dead_letter
from gnsq.errors import NSQBadMessage, NSQException
from gnsq.logs import LogOwner
from gnsq.message import Message
from gnsq.options import ConnectionOptions

if TYPE_CHECKING:
    from gnsq.producer import Producer

__all__ = ["DeadLetterPublisher"]

logger = logging.getLogger(__name__)

# Seconds. Shorter than the default of close_timeout, so that a close can still requeue a message without its letter.
PUBLISH_TIMEOUT = 10.0


class DeadLetterPublisher:
    """Publishes dead letters to the nsqds that the consumer is connected to, with its options of connections.

    Its connections are its own: nsqd closes a connection on which it refuses a publish, and the messages in flight must
    not be lost with it. They are opened for the first letter, since most consumers never give a message up.

    Args:
        topic: Topic of the letters.
        nsqds: Addresses of the nsqds that the consumer is connected to; changes with the connections.
        connection: As load_certificates() has returned it.
    """

    def __init__(
        self,
        topic: str,
        nsqds: Collection[str],
        connection: ConnectionOptions,
        clock: Clock,
        owner: LogOwner,
    ) -> None:
        from gnsq.producer import Producer  # takes 10 ms; a consumer without dead_letter_topic does not need it

        self.topic = topic
        self._make = Producer
        self._nsqds = nsqds
        self._options: dict[str, Any] = {  # Any: each option has its own type
            **{field.name: getattr(connection, field.name) for field in dataclasses.fields(connection)},
            "publish_timeout": PUBLISH_TIMEOUT,
        }
        self._clock = clock
        self._owner = owner
        self._producer: Producer | None = None

    def publish(self, letter: DeadLetter, message: Message) -> None:
        """Publish a letter, and keep its message while this waits. A body whose letter is too large for nsqd is
        published without it; then the log has the rest of the letter.

        Raises:
            NSQException: If no nsqd has confirmed it.
        """
        data = encode_dead_letter(letter)
        producer = self._current_producer(message)
        with message.touching():
            try:
                producer.publish(self.topic, data)
            except NSQBadMessage as error:
                producer.publish(self.topic, letter.body)
                text = "published to %s without its envelope, whose %d bytes are too many (%s); last error: %s %s"
                arguments = self.topic, len(data), error, letter.error, letter.reason
                self._owner.log(logger).warning(text, *arguments, message=message)

    def close(self) -> None:
        """Close the connections. Letters that are being published are not waited for."""
        if self._producer is not None:
            with contextlib.suppress(NSQException):  # the close goes on in the background
                self._producer.close(0)

    def _current_producer(self, message: Message) -> Producer:
        """Return the producer, for the nsqds that the consumer is connected to now, or else for those before."""
        nsqds = set(self._nsqds)
        if self._producer is None:
            name = f"{self._owner.label} dead letters"
            self._producer = self._make(nsqds or message.nsqd or "", name=name, clock=self._clock, **self._options)
        elif nsqds and nsqds != self._producer.nsqd_tcp_addresses:
            self._producer.set_nsqds(nsqds)
        return self._producer
