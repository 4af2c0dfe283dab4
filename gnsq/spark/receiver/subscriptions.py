"""Subscriptions: the consumers of all topics that a receiver reads. They share one max_in_flight.

Gets topics from nsqlookupd if they are given as a pattern, divides max_in_flight between topics, and adds connections.
The receiver decides what happens to messages.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable

import gevent
from gevent.pool import Group

from gnsq import Consumer, LookupdClient
from gnsq.concurrency.greenlets import run_until_done, spawn
from gnsq.consumer.consumer import BulkConsumer, OnMessages
from gnsq.errors import NSQHttpError, NSQSubFailed
from gnsq.protocol.names import checked_names
from gnsq.spark.clients import connection_keywords, http_keywords
from gnsq.spark.options import ReadOptions

__all__ = ["Subscription", "Subscriptions", "matching_topics", "split_max_in_flight"]

logger = logging.getLogger(__name__)

# Maximum number of consumers of one topic.
MAX_CONNECTIONS = 8
# Least seconds between changes of shares of max_in_flight for starved topics, and between additions of connections.
REBALANCE_INTERVAL = 0.1
# Seconds for which a topic counts as starved after nsqd has delivered nearly all messages that RDY allows.
STARVED_SECONDS = 2.0
# A topic that is not starved keeps its share divided by this number, and lends the rest to starved topics.
LENDER_DIVISOR = 10
# Well below the default of segment_time, 100 ms, so that the end of a burst does not stay in nsqd's output buffer. nsqd
# allows no lower value unless its min-output-buffer-timeout is changed.
OUTPUT_BUFFER_TIMEOUT_MS = 25


def matching_topics(options: ReadOptions, names: Iterable[str]) -> list[str]:
    """Return those names that are topics of the options, or match their pattern; sorted, each once."""
    if options.topic_pattern:
        # nsqlookupd has the names from nsqd, so all of them are valid.
        matches = re.compile(options.topic_pattern).fullmatch
        return sorted({name for name in names if matches(name)})
    return sorted(set(options.topics).intersection(names))


def split_max_in_flight(total: int, topics: Iterable[str], starved: Collection[str] = ()) -> dict[str, int]:
    """Split max_in_flight between topics, at least 1 each; evenly unless some are starved. The first get the remainder.

    Args:
        starved: Topics that could use more. The other topics lend nine tenths of their shares to these topics.
    """
    names = sorted(topics)
    borrowers = [name for name in names if name in starved]
    if not borrowers or len(borrowers) == len(names):
        return {name: max((total + len(names) - 1 - index) // len(names), 1) for index, name in enumerate(names)}
    kept = max(total // len(names) // LENDER_DIVISOR, 1)
    left = total - kept * (len(names) - len(borrowers))
    return dict.fromkeys(names, kept) | split_max_in_flight(left, borrowers)


class Subscription:
    """The consumers of one topic, which share its max_in_flight.

    nsqd limits the messages in flight of one connection (its max-rdy-count, 2500 by default). More messages in flight
    make larger segments: with 10,000, receiving is 50% faster than with 2500. So a busy topic gets several consumers.

    Args:
        make: Makes a consumer with a max_in_flight.
    """

    def __init__(self, make: Callable[[int], Consumer], max_in_flight: int) -> None:
        self._make = make
        self._max_connections = MAX_CONNECTIONS
        self.consumers = [make(max_in_flight)]

    @property
    def max_in_flight(self) -> int:
        """Sum of the consumers' max_in_flight, at least 1 each; may be set.

        After it is lowered, and after a consumer is added, more messages may be in flight until they are finished.
        """
        return sum(consumer.max_in_flight for consumer in self.consumers)

    @max_in_flight.setter
    def max_in_flight(self, value: int) -> None:
        count = len(self.consumers)
        for index, consumer in enumerate(self.consumers):
            consumer.max_in_flight = max((value + count - 1 - index) // count, 1)

    @property
    def in_flight(self) -> int:
        """Number of messages that are delivered, and neither finished nor requeued."""
        return sum(consumer.total_in_flight for consumer in self.consumers)

    @property
    def ready_count(self) -> int:
        """Number of messages that nsqds may deliver before they wait for FIN or REQ."""
        return sum(consumer.total_ready_count for consumer in self.consumers)

    @property
    def is_starved(self) -> bool:
        """True if all consumers with RDY or messages in flight are starved. nsqd still delivers to any that is not."""
        active = [consumer for consumer in self.consumers if consumer.total_ready_count or consumer.total_in_flight]
        return bool(active) and all(consumer.is_starved for consumer in active)

    @property
    def nsqds(self) -> set[str]:
        """Addresses of the connected nsqds."""
        return {connection.address for consumer in self.consumers for connection in consumer.stats().connections}

    @property
    def failures(self) -> dict[str, str]:
        """Reasons why nsqds are not connected, by address; without nsqds to which another consumer is connected."""
        connected = self.nsqds
        found = [failure for consumer in self.consumers for failure in consumer.stats().failures.items()]
        return {address: text for address, text in found if address not in connected}

    def add_connection(self) -> Consumer | None:
        """Add a consumer, up to max_connections, if all are busy and nsqds allow them less than max_in_flight in all.

        With large messages, or few of them, a further consumer gains nothing.

        Returns:
            The consumer, which the caller must start; None if none was added.
        """
        self._remove_refused()
        connections = [consumer.stats().connections for consumer in self.consumers]
        allowed = sum(each.max_rdy_count for some in connections for each in some)
        busy = all(any(each.in_flight * 2 >= each.max_rdy_count for each in some) for some in connections)
        limit = self.max_in_flight
        if not busy or allowed >= limit or len(connections) >= self._max_connections:
            return None
        self.consumers.append(self._make(1))
        self.max_in_flight = limit
        return self.consumers[-1]

    def _remove_refused(self) -> None:
        """Close an added consumer that nsqd refuses, and add no more: the channel has its maximum of consumers."""
        for consumer in self.consumers[1:]:
            stats = consumer.stats()
            refusals = [text for text in stats.failures.values() if text.startswith(NSQSubFailed.code)]
            if refusals and not stats.connections:
                logger.info("topic %s: no further connections, %s", consumer.topic, refusals[0])
                limit = self.max_in_flight
                self.consumers.remove(consumer)
                self.max_in_flight = limit
                self._max_connections = len(self.consumers)
                consumer.close()


class Subscriptions:
    """All topics of one receiver.

    Args:
        on_messages: Called with a consumer and all its messages that have arrived. Must later finish or requeue them.
        close_timeout: Seconds after which close() requeues the messages that are not finished.
        create_channels: Called before a new topic is read; creates the channels of all queries in topics without any.

    Raises:
        ValueError: If an address is not valid, or a file that an option names can't be used.
    """

    def __init__(
        self,
        options: ReadOptions,
        on_messages: OnMessages,
        close_timeout: float,
        *,
        create_channels: Callable[[], None] | None = None,
    ) -> None:
        self._options = options
        self._on_messages = on_messages
        self._close_timeout = close_timeout
        self._create_channels = create_channels
        self._keywords = connection_keywords(options)
        self._subscriptions: dict[str, Subscription] = {}
        self._paused = False
        self._starting = Group()
        self._poller: gevent.Greenlet | None = None
        # Topic -> last time at which the topic was starved.
        self._starved_at: dict[str, float] = {}
        self._rebalanced_at = self._extended_at = 0.0
        self._lookupds: list[LookupdClient] = []
        if options.topic_pattern:
            http = http_keywords(options)
            self._lookupds = [LookupdClient.from_url(address, **http) for address in options.lookupd_http_addresses]
        self._add(list(options.topics))

    def start(self) -> None:
        """Connect in the background: an nsqd or nsqlookupd that does not respond does not delay the others."""
        if self._lookupds:
            name = f"gnsq-topics-{self._options.source}"
            arguments = run_until_done, name, self._poll, logger
            self._poller = spawn(name, *arguments, on_failure="new topics are not read")
        self._start(self.consumers)

    def close(self) -> None:
        """Receive no more messages, and wait until all connections are closed. Delivered messages can be finished or
        requeued meanwhile."""
        if self._poller is not None:
            self._poller.kill()
        self._starting.kill()
        for consumer in self.consumers:
            consumer.pause()
        failed = "a consumer is not closed"
        closers = [spawn("gnsq-close", consumer.close, on_failure=failed) for consumer in self.consumers]
        for lookupd in self._lookupds:
            lookupd.close()
        gevent.joinall(closers)

    def pause(self) -> None:
        """Ask for no more messages, also in topics that are added later."""
        self._paused = True
        for consumer in self.consumers:
            consumer.pause()

    def resume(self) -> None:
        """Undo pause()."""
        self._paused = False
        for consumer in self.consumers:
            consumer.resume()

    @property
    def consumers(self) -> list[Consumer]:
        """The present consumers of all topics."""
        return [consumer for subscription in self._subscriptions.values() for consumer in subscription.consumers]

    @property
    def topics(self) -> list[str]:
        """Names of the subscribed topics, sorted."""
        return sorted(self._subscriptions)

    @property
    def nsqds(self) -> int:
        """Number of connected nsqds, each counted once for each of its topics."""
        return sum(len(subscription.nsqds) for subscription in self._subscriptions.values())

    @property
    def ready_count(self) -> int:
        """Number of messages that nsqds may deliver before they wait for FIN or REQ."""
        return sum(subscription.ready_count for subscription in self._subscriptions.values())

    def failures(self) -> dict[str, str]:
        """List why nsqds are not connected, by address."""
        each = [subscription.failures.items() for subscription in self._subscriptions.values()]
        return {address: text for failures in each for address, text in failures}

    def add_connections(self) -> None:
        """Add a consumer to each topic that can use one, unless paused or just done. Called when a segment is full."""
        now = time.monotonic()
        if not self._paused and now - self._extended_at >= REBALANCE_INTERVAL:
            self._extended_at = now
            added = [subscription.add_connection() for subscription in self._subscriptions.values()]
            self._start([consumer for consumer in added if consumer is not None])

    def is_starved(self) -> bool:
        """Return True if some topic is starved: an nsqd has delivered nearly all messages that RDY allows.

        Also changes the shares of several topics: a starved topic borrows from topics that are not starved.
        """
        starved = [topic for topic, subscription in self._subscriptions.items() if subscription.is_starved]
        if len(self._subscriptions) == 1:
            return bool(starved)
        now = time.monotonic()
        self._starved_at.update(dict.fromkeys(starved, now))
        if starved and now - self._rebalanced_at >= REBALANCE_INTERVAL:
            self._rebalanced_at = now
            self._rebalance()
        return bool(starved)

    # --- topics

    def _add(self, topics: list[str]) -> list[Consumer]:
        shares = split_max_in_flight(self._options.max_in_flight, [*self._subscriptions, *topics])
        added = {topic: Subscription(functools.partial(self._make_consumer, topic), shares[topic]) for topic in topics}
        self._subscriptions |= added
        self._rebalance()
        return [consumer for subscription in added.values() for consumer in subscription.consumers]

    def _make_consumer(self, topic: str, max_in_flight: int) -> Consumer:
        consumer = BulkConsumer(
            self._on_messages,
            topic,
            self._options.channel,
            max_tries=0,
            max_in_flight=max_in_flight,
            # No backoff: the handler never fails, and the receiver pauses by itself while the disk fails.
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
        """Give each topic its share. A share grows only after other topics have fewer messages in flight."""
        topics, total = self._subscriptions, self._options.max_in_flight
        since = time.monotonic() - STARVED_SECONDS
        shares = split_max_in_flight(total, topics, {topic for topic, at in self._starved_at.items() if at > since})
        for topic, share in shares.items():
            if share < topics[topic].max_in_flight:
                topics[topic].max_in_flight = share
        spare = total - sum(max(each.max_in_flight, each.in_flight) for each in topics.values())
        for topic, share in shares.items():
            more = min(share - topics[topic].max_in_flight, spare)
            if more > 0:
                topics[topic].max_in_flight += more
                spare -= more

    def _start(self, consumers: list[Consumer]) -> None:
        for consumer in consumers:
            self._starting.add(spawn("gnsq-start", consumer.start, False, on_failure="the topic is not read"))

    def _poll(self) -> None:
        has_warned = False
        while True:
            self._start(self._follow_lookupds())
            if not self._subscriptions and not has_warned:
                has_warned = True
                logger.warning(
                    "no topic matches topicPattern %r yet; asking nsqlookupd again every %g s",
                    self._options.topic_pattern,
                    self._options.lookupd_poll_interval,
                )
            gevent.sleep(self._options.lookupd_poll_interval)

    def _follow_lookupds(self) -> list[Consumer]:
        """Ask all nsqlookupds for topics; add new ones. If all respond, unsubscribe from those gone and not connected.

        Returns:
            The consumers of new topics, to be started.
        """
        names: set[str] = set()
        complete = True
        for lookupd in self._lookupds:
            try:
                names.update(_topic_names(lookupd))
            except (NSQHttpError, ValueError) as error:
                logger.warning("topics of %s: %s", self._options.source, error)
                complete = False
        found = matching_topics(self._options, names)
        if complete:
            self._unsubscribe([topic for topic in self._subscriptions if topic not in found])
        new = [topic for topic in found if topic not in self._subscriptions]
        if new and self._create_channels is not None:
            try:
                self._create_channels()
            except NSQHttpError as error:
                logger.warning("%s: topics %s are not read yet: %s", self._options.source, ", ".join(new), error)
                return []
        if new:
            logger.info("%s: reading topics %s", self._options.source, ", ".join(new))
        return self._add(new)

    def _unsubscribe(self, topics: list[str]) -> None:
        """Unsubscribe from topics without a connection. An nsqd may have a topic that nsqlookupd has forgotten."""
        for topic in topics:
            if not self._subscriptions[topic].nsqds:
                logger.info("%s: topic %s is gone", self._options.source, topic)
                for consumer in self._subscriptions.pop(topic).consumers:
                    consumer.close()


def _topic_names(lookupd: LookupdClient) -> list[str]:
    """Ask an nsqlookupd for its topics. Raise ValueError if they are not a list of valid names."""
    try:
        return checked_names(lookupd.topics().get("topics"), "topic")
    except ValueError as error:
        raise ValueError(f"{lookupd.address}: answer is not nsqlookupd's: {error}") from error
