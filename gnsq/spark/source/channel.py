"""ChannelClient: one channel of some topics, over all their nsqds' HTTP: create it, ask its depth. No policy.

ChannelMonitor: creates a query's channel, asks its depth now and then, and says when nobody receives it.

What is connected runs on a hub thread; its methods are called from another one.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import gevent

from gnsq import LookupdClient, NsqdHTTPClient
from gnsq.concurrency.hub_thread import HubThread
from gnsq.errors import NSQException, NSQHttpError
from gnsq.spark.clients import http_keywords
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.subscriptions import matching_topics
from gnsq.spark.source.drain import Depth, NoReceiverWarning

__all__ = [
    "ChannelClient",
    "ChannelMonitor",
]

logger = logging.getLogger(__name__)


class ChannelClient:
    """Asks in the calling greenlet's hub.

    Args:
        options: Topics or their pattern, channel, and addresses of nsqds' and nsqlookupds' HTTP.

    Raises:
        ValueError: If an address is not valid, or a file can't be used.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._http = http_keywords(options)
        self._named = {address: self._client(address) for address in options.nsqd_http_addresses}
        # How they call themselves.
        self._names: dict[str, str] = {}
        # Those that nsqlookupd told of, kept for their open connections.
        self._found: dict[str, NsqdHTTPClient] = {}
        self._lookupds = [LookupdClient.from_url(address, **self._http) for address in options.lookupd_http_addresses]

    @property
    def has_http(self) -> bool:
        """Whether there is any address to ask."""
        return bool(self._named or self._lookupds)

    def create(self, *others: str) -> None:
        """Create topics and channel on each nsqd that was named, and the channel where nsqlookupd knows of a topic.

        Args:
            others: Further channels of the topics, which get the same messages as the first: nsqd gives what waits in
                a topic to its first channel alone, so a topic without channels is paused until all are there.

        Raises:
            NSQHttpError: If one of them does not answer; the others have the channel then.
        """
        places, failures = self._topics_by_nsqd()
        for address, topics in places.items():
            nsqd = self._client_of(address)
            try:
                for topic in topics:
                    if address in self._named:
                        nsqd.create_topic(topic)
                    self._create(nsqd, topic, others)
            except NSQHttpError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _create(self, nsqd: NsqdHTTPClient, topic: str, others: Sequence[str]) -> None:
        held = bool(others) and not _has_channels(nsqd, topic)
        if held:
            nsqd.pause_topic(topic)
        try:
            for channel in (self._options.channel, *others):
                nsqd.create_channel(topic, channel)
        finally:
            if held:
                nsqd.unpause_topic(topic)

    def depth(self, *, partial: bool = False) -> Depth:
        """Add up what the nsqds have.

        Args:
            partial: Give what is known where some do not answer, as a depth that is not exact.

        Raises:
            NSQHttpError: If one of them does not answer (partial: none), or nobody knows of any.
        """
        places, failures = self._topics_by_nsqd()
        found: list[Depth] = []
        for address, topics in places.items():
            try:
                found.append(self._depth_at(address, topics))
            except NSQHttpError as error:
                failures.append(error)
        if not places and not failures:
            wanted = self._options.topic_pattern or self._options.topic
            failures.append(NSQHttpError(f"no nsqlookupd names an nsqd with a topic {wanted!r}: does it exist yet?"))
        if failures and not (partial and found):
            raise failures[0]
        return Depth(
            sum(depth.waiting for depth in found),
            sum(depth.in_flight for depth in found),
            sum(depth.deferred for depth in found),
            sum(depth.subscribers for depth in found),
            exact=not failures,
        )

    def _depth_at(self, address: str, topics: Sequence[str]) -> Depth:
        waiting = in_flight = deferred = consumers = 0
        # Not filtered by channel: nsqd would leave a topic out that does not have it.
        stats = self._client_of(address).stats(topics[0] if len(topics) == 1 else None)
        try:
            for topic in stats["topics"] or ():
                if topic["topic_name"] not in topics:
                    continue
                waiting += topic["depth"]
                for channel in topic["channels"]:
                    if channel["channel_name"] != self._options.channel:
                        continue
                    waiting += channel["depth"]
                    in_flight += channel["in_flight_count"]
                    deferred += channel["deferred_count"]
                    # nsqd before 1.2 lists them only.
                    clients = channel.get("client_count")
                    consumers += len(channel["clients"] or ()) if clients is None else clients
        except (KeyError, TypeError) as error:
            raise NSQHttpError(f"{address}: /stats is not nsqd's: {error!r}") from error
        return Depth(waiting, in_flight, deferred, consumers)

    def close(self) -> None:
        """Close the connections that are kept for further questions."""
        for client in (*self._named.values(), *self._found.values(), *self._lookupds):
            client.close()

    def _topics_by_nsqd(self) -> tuple[dict[str, list[str]], list[NSQHttpError]]:
        """Say which nsqds to ask about which topics: those named about all, others about what a nsqlookupd says; and
        what was wrong with nsqlookupds, if that leaves open which: each of them is told of all nsqds."""
        places = {address: list(self._options.topics) for address in self._named}
        failures: list[NSQHttpError] = []
        for lookupd in self._lookupds:
            try:
                found = self._topics_of_lookupd(lookupd)
            except NSQHttpError as error:
                failures.append(error)
            else:
                places |= {address: topics for address, topics in found.items() if address not in places}
        return places, failures if len(failures) == len(self._lookupds) or not places else []

    def _topics_of_lookupd(self, lookupd: LookupdClient) -> dict[str, list[str]]:
        """Say which nsqds that were not named have which topics."""
        found: dict[str, list[str]] = {}
        nodes = lookupd.nodes()
        try:
            for node in nodes["producers"] or ():
                there = matching_topics(self._options, _topics_of(node))
                address = f"{node['broadcast_address']}:{node['http_port']}"
                if there and address not in self._advertised_addresses():
                    found[address] = there
        except (KeyError, TypeError, ValueError) as error:
            raise NSQHttpError(f"{lookupd}: /nodes is not nsqlookupd's: {error!r}") from error
        return found

    def _advertised_addresses(self) -> set[str]:
        """Say by what addresses nsqlookupd knows the nsqds that were named: else they would count twice."""
        for address, client in self._named.items():
            if address not in self._names:
                # One that is down may be known there, too: it counts as one that does not answer, once or twice.
                with contextlib.suppress(NSQHttpError, KeyError):
                    info = client.info()
                    self._names[address] = f"{info['broadcast_address']}:{info['http_port']}"
        return set(self._names.values())

    def _client_of(self, address: str) -> NsqdHTTPClient:
        client = self._named.get(address) or self._found.get(address)
        if client is None:
            client = self._found[address] = self._client(address)
        return client

    def _client(self, address: str) -> NsqdHTTPClient:
        return NsqdHTTPClient.from_url(address, **self._http)


def _topics_of(node: dict[str, Any]) -> list[str]:  # Any: JSON
    """List the topics of a node, but for those that it is to be asked for no more."""
    topics = node["topics"] or ()
    gone = node.get("tombstones") or [False] * len(topics)
    return [topic for topic, hidden in zip(topics, gone, strict=True) if not hidden]


def _has_channels(nsqd: NsqdHTTPClient, topic: str) -> bool:
    return any(each["channels"] for each in nsqd.stats(topic)["topics"] or ())


# Seconds between two looks by itself, and at least between two that somebody asks for.
POLL_INTERVAL = 2.0
MIN_POLL_INTERVAL = 0.2


class ChannelMonitor:
    """Nothing happens before start().

    Args:
        options: The query's.
        location: Its spool, for people.

    Attributes:
        depth: What was said last; None if nobody has said anything.
        asked_at: When that was asked for, in seconds of time.monotonic().
    """

    def __init__(self, hub: HubThread, options: ReadOptions, location: str) -> None:
        self.depth: Depth | None = None
        self.asked_at = 0.0
        self._hub = hub
        self._options = options
        self._location = location
        self._failed = False
        self._client = hub.call(ChannelClient, options)

    @property
    def has_http(self) -> bool:
        """Whether there is any address to ask."""
        return self._client.has_http

    def start(self) -> None:
        """Create the channel if it is missing, and begin to watch."""
        if self.has_http:
            self._hub.call(self._start)

    def ask(self, interval: float = MIN_POLL_INTERVAL) -> Depth | None:
        """Ask now; None if nobody answers, or somebody asked in the last seconds."""
        if not self.has_http or time.monotonic() - self.asked_at < interval:
            return None
        return self._hub.call(self._read)

    def close(self) -> None:
        """Close the connections."""
        self._hub.call(self._client.close)

    # --- in the hub

    def _start(self) -> None:
        try:
            self._client.create()
        except NSQException as error:
            # The consumer's SUB will create it; until then it is not seen in the depth.
            logger.warning("channel %s not created: %s", self._options.source, error)
        gevent.spawn(self._watch).name = f"gnsq-depth-{self._options.source}"

    def _read(self) -> Depth | None:
        asked_at = time.monotonic()
        try:
            self.depth = self._client.depth(partial=True)
        except NSQException as error:
            # Once, not at each look.
            level = logging.DEBUG if self._failed else logging.WARNING
            logger.log(level, "depth of %s unknown: %s", self._options.source, error)
            self.depth = None
        self.asked_at = asked_at
        self._failed = self.depth is None
        return self.depth

    def _watch(self) -> None:
        unattended = NoReceiverWarning(time.monotonic())
        while True:
            depth = self._read()
            if not self._options.receives_here and unattended.is_due(depth, time.monotonic()):
                self._warn()
            gevent.sleep(POLL_INTERVAL)

    def _warn(self) -> None:
        options = self._options
        remedy = "start receivers: python -m gnsq.spark.receiver --help"
        if options.receiver_count:
            remedy = "has the application cores for its receivers, do they fail? See its log, or use receivers=driver"
        logger.warning(
            "channel %s has messages waiting and no consumer, the spool %s gets nothing: %s",
            options.source,
            self._location,
            remedy,
        )
