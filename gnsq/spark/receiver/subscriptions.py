"""Subscriptions: all topics that a receiver reads; together they keep to one max_in_flight.

Owns the consumers of each and, for a pattern, the greenlet that asks nsqlookupd for topics. Topics that want more
borrow from those that don't. What happens to messages is the receiver's business.

Subscription: the consumers of one topic, which share what may be in flight.

An nsqd sets a limit to what one connection may have in flight (its max-rdy-count, 2500 by default), and the more may
be, the larger are the segments of the spool: 10,000 instead of 2500 are received half again as fast. So more consumers
join when much comes. Knows neither other topics nor what happens to messages.

Which topics are read, and how they share what may be in flight. PURE.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import gevent
from gevent.pool import Group

from gnsq import Consumer, LookupdClient, Message
from gnsq.errors import NSQHttpError, NSQSubFailed
from gnsq.spark.clients import connection_keywords, http_keywords
from gnsq.spark.options import ReadOptions

__all__ = [
    "Subscription",
    "Subscriptions",
    "matching_topics",
    "split_max_in_flight",
]

logger = logging.getLogger(__name__)


# Consumers of one topic, at most.
MAX_CONNECTIONS = 8


class Subscription:
    """One topic.

    Args:
        make: Makes a consumer that may have so many messages in flight.
        max_in_flight: Of all of them together.
    """

    def __init__(self, make: Callable[[int], Consumer], max_in_flight: int) -> None:
        self._make = make
        self._most = MAX_CONNECTIONS
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

    def add_connection(self) -> Consumer | None:
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


# Of its share a topic that is not starved keeps one part in so many.
BORROWED_SHARE = 10


def matching_topics(options: ReadOptions, names: Iterable[str]) -> list[str]:
    """Pick the topics that are to be read, in the order of names, each once."""
    if options.topic_pattern:
        # nsqlookupd's names are nsqd's, so each is a valid one.
        fits = re.compile(options.topic_pattern).fullmatch
        return sorted({name for name in names if fits(name)})
    return sorted(set(options.topics).intersection(names))


def split_max_in_flight(total: int, topics: Iterable[str], starved: Collection[str] = ()) -> dict[str, int]:
    """Share out what may be in flight: evenly, the rest to the first, and at least 1 each.

    Args:
        starved: Those that could do with more. The others lend them nine tenths of their split_max_in_flight.
    """
    names = sorted(topics)
    active = [name for name in names if name in starved]
    if not active or len(active) == len(names):
        return {name: max((total + len(names) - 1 - index) // len(names), 1) for index, name in enumerate(names)}
    kept = max(total // len(names) // BORROWED_SHARE, 1)
    left = total - kept * (len(names) - len(active))
    return dict.fromkeys(names, kept) | split_max_in_flight(left, active)


# Well below the segment's waiting time, else the tail of a burst sits in nsqd's buffer; the least that nsqd allows
# unless its min-output-buffer-timeout says otherwise.
OUTPUT_BUFFER_TIMEOUT_MS = 25
# Seconds between changes of shares, or of how many consumers there are, and for which a topic that had all it may have
# counts as starved.
REBALANCE_INTERVAL = 0.1
STARVED_SECONDS = 2.0


class _TopicConsumer(Consumer):
    """Hands over all that has come at once: for each message by itself it would cost as much again."""

    def __init__(
        self, take: Callable[[Consumer, list[Message]], None], *arguments: Any, **options: Any
    ) -> None:  # Any: Consumer's own
        super().__init__(*arguments, **options)
        self._take = take

    def handle_messages(self, messages: list[Message]) -> None:
        self._take(self, messages)


class Subscriptions:
    """What is subscribed to.

    Args:
        take: Called with a consumer and messages of its topic, all that have come; answers them itself, some time.
        close_timeout: Seconds until what is unanswered at the end is given back.

    Raises:
        ValueError: If an address is not valid, or a file that an option names can't be used.
    """

    def __init__(
        self, options: ReadOptions, take: Callable[[Consumer, list[Message]], None], close_timeout: float
    ) -> None:
        self._options = options
        self._take = take
        self._close_timeout = close_timeout
        self._keywords = connection_keywords(options)
        self._subscriptions: dict[str, Subscription] = {}
        self._paused = False
        self._starting = Group()
        self._poller: gevent.Greenlet | None = None
        # Topic -> when it last had all it may have.
        self._starved_at: dict[str, float] = {}
        self._shared_at = self._widened_at = 0.0
        self._lookupds: list[LookupdClient] = []
        if options.topic_pattern:
            http = http_keywords(options)
            self._lookupds = [LookupdClient.from_url(address, **http) for address in options.lookupd_http_addresses]
        self._add(list(options.topics))

    def start(self) -> None:
        """Connect, in the background: an nsqd or nsqlookupd that is silent holds up nobody."""
        if self._lookupds:
            self._poller = gevent.spawn(self._poll)
            self._poller.name = f"gnsq-topics-{self._options.source}"
        self._start(self._consumers)

    def close(self) -> None:
        """Take no more messages; those that were delivered can still be answered. join() waits for the end."""
        if self._poller is not None:
            self._poller.kill()
        self._starting.kill()
        for consumer in self._consumers:
            consumer.pause()
            consumer.close()
        for lookupd in self._lookupds:
            lookupd.close()

    def join(self, timeout: float) -> None:
        """Wait until all connections are closed, or for so many seconds."""
        gevent.joinall([gevent.spawn(consumer.join, timeout) for consumer in self._consumers])

    def pause(self) -> None:
        """Ask for no more messages, of topics that join later either."""
        self._paused = True
        for consumer in self._consumers:
            consumer.pause()

    def resume(self) -> None:
        """Undo pause()."""
        self._paused = False
        for consumer in self._consumers:
            consumer.resume()

    @property
    def _consumers(self) -> list[Consumer]:
        return [consumer for subscription in self._subscriptions.values() for consumer in subscription.consumers]

    @property
    def ready_count(self) -> int:
        """Messages that nsqds may deliver before they wait for answers."""
        return sum(subscription.ready_count for subscription in self._subscriptions.values())

    def add_connection(self) -> None:
        """Connect once more where nsqds let one connection deliver less than may be in flight. For who gets much."""
        now = time.monotonic()
        if not self._paused and now - self._widened_at >= REBALANCE_INTERVAL:
            self._widened_at = now
            added = [subscription.add_connection() for subscription in self._subscriptions.values()]
            self._start([consumer for consumer in added if consumer is not None])

    def is_starved(self) -> bool:
        """Say whether some nsqd has delivered nearly all it may, whatever the others have; topics of which that is so
        may have more from then on, if others don't need it."""
        starved = [topic for topic, subscription in self._subscriptions.items() if subscription.is_starved]
        if len(self._subscriptions) == 1:
            return bool(starved)
        now = time.monotonic()
        self._starved_at.update(dict.fromkeys(starved, now))
        if starved and now - self._shared_at >= REBALANCE_INTERVAL:
            self._shared_at = now
            self._rebalance()
        return bool(starved)

    @property
    def topics(self) -> list[str]:
        """What is subscribed to now."""
        return sorted(self._subscriptions)

    @property
    def nsqds(self) -> int:
        """How many are connected now, each counted for each of its topics."""
        return sum(len(subscription.nsqds) for subscription in self._subscriptions.values())

    def failures(self) -> dict[str, str]:
        """Say what keeps nsqds from being connected, by address."""
        return {
            address: text
            for subscription in self._subscriptions.values()
            for address, text in subscription.failures.items()
        }

    # --- topics

    def _add(self, topics: list[str]) -> list[Consumer]:
        due = split_max_in_flight(self._options.max_in_flight, [*self._subscriptions, *topics])
        added = {topic: Subscription(functools.partial(self._consumer, topic), due[topic]) for topic in topics}
        self._subscriptions |= added
        self._rebalance()
        return [consumer for subscription in added.values() for consumer in subscription.consumers]

    def _consumer(self, topic: str, max_in_flight: int) -> Consumer:
        consumer = _TopicConsumer(
            self._take,
            topic,
            self._options.channel,
            max_tries=0,
            max_in_flight=max_in_flight,
            # Nothing fails here that a pause would help: the receiver pauses by itself while the disk refuses.
            max_backoff_duration=0,
            concurrency=1,
            close_timeout=self._close_timeout,
            output_buffer_timeout=OUTPUT_BUFFER_TIMEOUT_MS,
            msg_timeout=self._options.msg_timeout,
            reconnect_initial=0.5,
            reconnect_maximum=15.0,
            **self._keywords,
        )
        if self._paused:
            consumer.pause()
        return consumer

    def _rebalance(self) -> None:
        """Let each have its share; what one is to give back to another, that other gets when it is answered."""
        all_, total = self._subscriptions, self._options.max_in_flight
        recent = time.monotonic() - STARVED_SECONDS
        due = split_max_in_flight(total, all_, {topic for topic, since in self._starved_at.items() if since > recent})
        for topic, share in due.items():
            if share < all_[topic].max_in_flight:
                all_[topic].max_in_flight = share
        spare = total - sum(max(each.max_in_flight, each.in_flight) for each in all_.values())
        for topic, share in due.items():
            more = min(share - all_[topic].max_in_flight, spare)
            if more > 0:
                all_[topic].max_in_flight += more
                spare -= more

    def _start(self, consumers: list[Consumer]) -> None:
        for consumer in consumers:
            self._starting.spawn(consumer.start, block=False)

    def _poll(self) -> None:
        is_told = False
        while True:
            try:
                self._start(self._resolve())
            except Exception:  # top of a greenlet: topics that are there go on, and the next round may do better
                logger.exception("topics of %s not followed: internal error", self._options.source)
            if not self._subscriptions and not is_told:
                is_told = True
                logger.warning(
                    "no topic matches topicPattern %r yet; looking again every %g s",
                    self._options.topic_pattern,
                    self._options.lookupd_poll_interval,
                )
            gevent.sleep(self._options.lookupd_poll_interval)

    def _resolve(self) -> list[Consumer]:
        """Ask all nsqlookupds for topics; add consumers for new ones, end those of topics that are quite gone."""
        names: set[str] = set()
        complete = True
        for lookupd in self._lookupds:
            try:
                names.update(lookupd.topics().get("topics") or ())
            except NSQHttpError as error:
                logger.warning("topics of %s: %s", self._options.source, error)
                complete = False
        found = matching_topics(self._options, names)
        if complete:
            self._unsubscribe([topic for topic in self._subscriptions if topic not in found])
        new = [topic for topic in found if topic not in self._subscriptions]
        if new:
            logger.info("%s: reading topics %s", self._options.source, ", ".join(new))
        return self._add(new)

    def _unsubscribe(self, vanished: list[str]) -> None:
        """End the consumers that have no connection left; nsqlookupd may forget a topic that nsqd still has."""
        for topic in vanished:
            if not self._subscriptions[topic].nsqds:
                logger.info("%s: topic %s is gone", self._options.source, topic)
                for consumer in self._subscriptions.pop(topic).consumers:
                    consumer.close()
