"""Subscription: the consumers of one topic, which share what may be in flight.

An nsqd sets a limit to what one connection may have in flight (its max-rdy-count, 2500 by default), and the more may
be, the larger are the segments of the spool: 10,000 instead of 2500 are received half again as fast. So more consumers
join when much comes. Knows neither other topics nor what happens to messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gnsq import Consumer
from gnsq.errors import NSQSubFailed

__all__ = ["Subscription"]

logger = logging.getLogger(__name__)

# Consumers of one topic, at most.
MOST = 8


class Subscription:
    """One topic.

    Args:
        make: Makes a consumer that may have so many messages in flight.
        max_in_flight: Of all of them together.
    """

    def __init__(self, make: Callable[[int], Consumer], max_in_flight: int) -> None:
        self._make = make
        self._most = MOST
        self.consumers = [make(max_in_flight)]

    @property
    def max_in_flight(self) -> int:
        """Messages, of all consumers; may be set. At least one each. For a moment there may be more in flight, when one
        joins or it is lowered: what was delivered is not taken back."""
        return sum(consumer.max_in_flight for consumer in self.consumers)

    @max_in_flight.setter
    def max_in_flight(self, value: int) -> None:
        count = len(self.consumers)
        for index, consumer in enumerate(self.consumers):
            consumer.max_in_flight = max((value + count - 1 - index) // count, 1)

    @property
    def in_flight(self) -> int:
        """Messages delivered and not yet answered."""
        return sum(consumer.total_in_flight for consumer in self.consumers)

    @property
    def ready_count(self) -> int:
        """Messages that nsqds may deliver before they wait for answers."""
        return sum(consumer.total_ready_count for consumer in self.consumers)

    @property
    def is_starved(self) -> bool:
        """Whether some nsqd has delivered nearly all it may, to all of them: they get its messages in turns."""
        asked = [consumer for consumer in self.consumers if consumer.total_ready_count or consumer.total_in_flight]
        return bool(asked) and all(consumer.is_starved for consumer in asked)

    @property
    def nsqds(self) -> set[str]:
        """Addresses of those that are connected."""
        return {connection.address for consumer in self.consumers for connection in consumer.stats().connections}

    @property
    def failures(self) -> dict[str, str]:
        """What keeps nsqds from being connected, by address; not of those that some consumer is connected to."""
        connected = self.nsqds
        return {
            address: text
            for consumer in self.consumers
            for address, text in consumer.stats().failures.items()
            if address not in connected
        }

    def widen(self) -> Consumer | None:
        """Add a consumer, to be started, if those that are there may have more in flight than their nsqds allow, and
        each has about as much from some nsqd: with large messages, or in a topic with few, nothing is gained by it."""
        self._give_up_refused()
        connections = [consumer.stats().connections for consumer in self.consumers]
        allowed = sum(each.max_rdy_count for some in connections for each in some)
        used = all(any(each.in_flight * 2 >= each.max_rdy_count for each in some) for some in connections)
        if not used or allowed >= self.max_in_flight or len(connections) >= self._most:
            return None
        limit = self.max_in_flight
        self.consumers.append(self._make(1))
        self.max_in_flight = limit
        return self.consumers[-1]

    def _give_up_refused(self) -> None:
        """Close a further consumer that nsqd refuses, and add none any more: the channel has all it may have."""
        for consumer in self.consumers[1:]:
            stats = consumer.stats()
            refusals = [text for text in stats.failures.values() if text.startswith(NSQSubFailed.code)]
            if refusals and not stats.connections:
                logger.info("topic %s: no further connections, %s", consumer.topic, refusals[0])
                limit = self.max_in_flight
                self.consumers.remove(consumer)
                self.max_in_flight = limit
                self._most = len(self.consumers)
                consumer.close()
