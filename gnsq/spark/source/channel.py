"""The channel of a query: creates it over HTTP at each nsqd, asks for its depth, and warns if it has no receiver.

`ChannelClient` sends the requests in the hub of its caller. `ChannelMonitor` calls a ChannelClient on a hub thread.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import gevent

from gnsq import LookupdClient, NsqdHTTPClient
from gnsq.addresses import checked_address, format_address, is_unix
from gnsq.concurrency.greenlets import run_until_done, spawn
from gnsq.concurrency.hub_thread import HubThread
from gnsq.errors import NSQException, NSQHttpError
from gnsq.spark.clients import http_keywords
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.subscriptions import matching_topics
from gnsq.spark.source.drain import WARN_AFTER, Depth, NoReceiverWarning

__all__ = ["ChannelClient", "ChannelMonitor"]

logger = logging.getLogger(__name__)

# Seconds between two regular requests of a monitor, and minimum between two requests by ask().
POLL_INTERVAL = 2.0
MIN_POLL_INTERVAL = 0.2

# A channel of a topic that is paused while its channels are created. If this process is killed meanwhile, it remains:
# then the next one knows that the topic is not paused by somebody else.
_UNFINISHED = "gnsq-unfinished#ephemeral"


class ChannelClient:
    """One channel of some topics, at all nsqds that the options name or nsqlookupd knows.

    Raises:
        ValueError: If an HTTP address is not valid, or a TLS file can't be used.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._http = http_keywords(options)
        self._configured = {address: self._make_client(address) for address in options.nsqd_http_addresses}
        # Configured address -> the address that the nsqd advertises.
        self._advertised: dict[str, str] = {}
        # Clients of the nsqds that nsqlookupd knows, kept so that their connections are used again.
        self._found: dict[str, NsqdHTTPClient] = {}
        # True if an nsqlookupd has named any nsqd in the last round of requests.
        self._knows_nsqds = False
        self._lookupds = [LookupdClient.from_url(address, **self._http) for address in options.lookupd_http_addresses]

    @property
    def has_http(self) -> bool:
        """True if an HTTP address of nsqd or nsqlookupd is configured, so that the depth can be asked for."""
        return bool(self._configured or self._lookupds)

    def create(self) -> None:
        """Create topics and channel at each configured nsqd; at other nsqds, create the channel in existing topics.

        Also create the other channels of the options. nsqd gives the messages that wait in a topic only to the topic's
        first channel. So a topic without channels is paused until all channels exist. Of a topic that no nsqd has yet,
        nsqlookupds are told the channels: an nsqd asks them for these before it gives a new topic's messages to any.

        Source: nsqd.go, GetTopic.

        Raises:
            NSQHttpError: If an nsqd, or each nsqlookupd, fails. Known nsqds without a failure have the channel then.
        """
        nsqds, failures = self._topics_by_nsqd()
        if missing := set(self._options.topics).difference(*nsqds.values()):
            self._register(missing)
            nsqds, failures = self._topics_by_nsqd()  # an nsqd may have got the topic just before
        for address, topics in nsqds.items():
            nsqd = self._client_of(address)
            try:
                for topic in topics:
                    if address in self._configured:
                        nsqd.create_topic(topic)
                    self._create_channels(nsqd, topic, self._options.others_of(topic))
            except NSQHttpError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _register(self, topics: Iterable[str]) -> None:
        for lookupd in self._lookupds:
            # An nsqlookupd that is down is a failure of _topics_by_nsqd(), unless another one has responded.
            with contextlib.suppress(NSQHttpError):
                for topic in topics:
                    if others := self._options.others_of(topic):
                        for channel in (self._options.channel, *others):
                            lookupd.create_channel(topic, channel)

    def _create_channels(self, nsqd: NsqdHTTPClient, topic: str, others: Sequence[str]) -> None:
        found = [each["channel_name"] for stats in nsqd.stats(topic)["topics"] or () for each in stats["channels"]]
        must_pause = (bool(others) and not found) or _UNFINISHED in found
        if must_pause:
            nsqd.pause_topic(topic)
            nsqd.create_channel(topic, _UNFINISHED)
        try:
            for channel in (self._options.channel, *others):
                nsqd.create_channel(topic, channel)
        finally:
            if must_pause:
                nsqd.unpause_topic(topic)
                with contextlib.suppress(NSQHttpError):  # another query of the table may have been faster
                    nsqd.delete_channel(topic, _UNFINISHED)

    def depth(self, *, partial: bool = False, may_be_missing: bool = False) -> Depth:
        """Return the sum of the depths of all topics at all nsqds.

        Args:
            partial: If some nsqds do not respond, return the sum of the others, marked as not exact.
            may_be_missing: If all nsqlookupds respond, know nsqds, and name none with a topic, there is no message.

        Raises:
            NSQHttpError: If an nsqd, or each nsqlookupd, fails (if partial: if no nsqd responds), or no nsqd is known.
        """
        nsqds, failures = self._topics_by_nsqd()
        found: list[Depth] = []
        for address, topics in nsqds.items():
            try:
                found += self._depths_at(address, topics)
            except NSQHttpError as error:
                failures.append(error)
        # An nsqlookupd that was just started knows no nsqd: then it is not known whether there are messages.
        if not nsqds and not failures and not (may_be_missing and self._knows_nsqds):
            wanted = "that fits topicPattern" if self._options.topic_pattern else repr(self._options.topic)
            failures.append(NSQHttpError(f"no nsqlookupd names an nsqd with a topic {wanted}: does it exist yet?"))
        if failures and not (partial and found):
            raise failures[0]
        return functools.reduce(Depth.plus, found, Depth(0, 0, 0, exact=not failures))

    def _depths_at(self, address: str, topics: Sequence[str]) -> list[Depth]:
        """Ask an nsqd for the depths of topics and of their channel. An empty depth says that it has responded."""
        # Ask for the topic, not for the channel: nsqd would omit a topic without the channel, but the topic's own depth
        # counts, too.
        stats = self._client_of(address).stats(topics[0] if len(topics) == 1 else None)
        found = [Depth(0, 0, 0)]
        try:
            for topic in stats["topics"] or ():
                if topic["topic_name"] not in topics:
                    continue
                found.append(Depth(topic["depth"], 0, 0))
                for channel in topic["channels"]:
                    if channel["channel_name"] == self._options.channel:
                        # nsqd before 1.2 has no client_count.
                        count = channel.get("client_count")
                        subscribers = len(channel["clients"] or ()) if count is None else count
                        depth = (channel["depth"], channel["in_flight_count"], channel["deferred_count"], subscribers)
                        found.append(Depth(*depth))
        except (KeyError, TypeError) as error:
            raise NSQHttpError(f"{address}: /stats is not nsqd's: {error!r}") from error
        return found

    def close(self) -> None:
        """Close the connections."""
        for client in (*self._configured.values(), *self._found.values(), *self._lookupds):
            client.close()

    def _topics_by_nsqd(self) -> tuple[dict[str, list[str]], list[NSQHttpError]]:
        """Find out which nsqds to ask about which topics.

        Returns:
            Topics by HTTP address, and failures of nsqlookupds. No failures if one nsqlookupd has responded and an nsqd
            is known, since each nsqlookupd knows all nsqds.
        """
        nsqds = {address: list(self._options.topics) for address in self._configured}
        failures: list[NSQHttpError] = []
        self._knows_nsqds = False
        for lookupd in self._lookupds:
            try:
                nsqds = self._topics_of_lookupd(lookupd) | nsqds
            except NSQHttpError as error:
                failures.append(error)
        return nsqds, failures if len(failures) == len(self._lookupds) or not nsqds else []

    def _topics_of_lookupd(self, lookupd: LookupdClient) -> dict[str, list[str]]:
        """Ask nsqlookupd for nsqds and those of their topics that the options select. Configured nsqds are left out."""
        found: dict[str, list[str]] = {}
        nodes = lookupd.nodes()
        try:
            for node in nodes["producers"] or ():
                self._knows_nsqds = True
                topics = matching_topics(self._options, _topics_of_node(node))
                address = _address_of_node(node)
                if topics and address not in self._advertised_addresses():
                    found[address] = topics
        except (KeyError, TypeError, ValueError) as error:
            raise NSQHttpError(f"{lookupd}: /nodes is not nsqlookupd's: {error!r}") from error
        return found

    def _advertised_addresses(self) -> set[str]:
        """Ask the configured nsqds for the addresses that nsqlookupd has of them, so that none is counted twice."""
        for address, client in self._configured.items():
            if address not in self._advertised:
                # If an nsqd is down, this address stays unknown, and nsqlookupd may name the nsqd a second time. That
                # does no harm: no request to this nsqd succeeds.
                with contextlib.suppress(NSQHttpError, KeyError):
                    info = client.info()
                    self._advertised[address] = format_address(info["broadcast_address"], info["http_port"])
        return set(self._advertised.values())

    def _client_of(self, address: str) -> NsqdHTTPClient:
        client = self._configured.get(address) or self._found.get(address)
        if client is None:
            client = self._found[address] = self._make_client(address)
        return client

    def _make_client(self, address: str) -> NsqdHTTPClient:
        return NsqdHTTPClient.from_url(address, **self._http)


def _topics_of_node(node: dict[str, Any]) -> list[str]:  # Any: JSON
    """List the topics of an nsqd, except those that a tombstone hides."""
    topics = node["topics"] or ()
    tombstones = node.get("tombstones") or [False] * len(topics)
    return [topic for topic, hidden in zip(topics, tombstones, strict=True) if not hidden]


def _address_of_node(node: dict[str, Any]) -> str:  # Any: JSON
    """Return the HTTP address of an nsqd. ValueError or TypeError if it is not a valid address."""
    host, port = node["broadcast_address"], node["http_port"]
    if not isinstance(host, str) or is_unix(host):
        raise ValueError(f"broadcast_address {host!r} is neither a host name nor an IP address")
    return checked_address(host, port)


class ChannelMonitor:
    """Creates a query's channel, asks for its depth regularly, and warns if it has messages and no receiver.

    Its methods are called in Spark's thread, not in the thread of the gevent hub. Sends nothing before start().

    Args:
        location: Location of the spool, for log lines.
        poll_interval: Seconds between two regular requests.
        warn_after: Seconds without a receiver until the warning, which is only for receivers in other processes.

    Attributes:
        depth: The last depth; None before the first request, or if the last request has failed.
        asked_at: Time of the last request for the depth, by time.monotonic(); 0 before the first.
        may_be_missing: As for ChannelClient.depth(). At first only with a pattern, since a topic may be misspelled.
    """

    def __init__(
        self,
        hub: HubThread,
        options: ReadOptions,
        location: str,
        poll_interval: float = POLL_INTERVAL,
        warn_after: float = WARN_AFTER,
    ) -> None:
        self.depth: Depth | None = None
        self.asked_at = 0.0
        self.may_be_missing = bool(options.topic_pattern)
        self._hub = hub
        self._options = options
        self._location = location
        self._poll_interval = poll_interval
        self._warn_after = warn_after
        self._has_failed = False
        self._client = hub.call(ChannelClient, options)

    @property
    def has_http(self) -> bool:
        """True if an HTTP address of nsqd or nsqlookupd is configured, so that the depth can be asked for."""
        return self._client.has_http

    def start(self) -> None:
        """If an HTTP address is configured, create the channel if it is missing, and begin to ask for its depth."""
        if self.has_http:
            self._hub.call(self._start)

    def ask(self, interval: float = MIN_POLL_INTERVAL) -> Depth | None:
        """Ask for the depth now. Return None if that fails, without HTTP, or within interval seconds of a request."""
        if not self.has_http or time.monotonic() - self.asked_at < interval:
            return None
        return self._hub.call(self._ask)

    def close(self) -> None:
        """Close the connections."""
        self._hub.call(self._client.close)

    # --- in the hub

    def _start(self) -> None:
        try:
            self._client.create()
        except NSQException as error:
            # A consumer's SUB will create the channel. Until then the depth does not include it.
            logger.warning("channel %s not created: %s", self._options.source, error)
        name = f"gnsq-depth-{self._options.source}"
        spawn(name, run_until_done, name, self._poll, logger, on_failure="the depth is not asked any more")

    def _ask(self) -> Depth | None:
        asked_at = time.monotonic()
        try:
            self.depth = self._client.depth(partial=True, may_be_missing=self.may_be_missing)
        except NSQException as error:
            # Of several failures in a row, only the first is logged as a warning.
            level = logging.DEBUG if self._has_failed else logging.WARNING
            logger.log(level, "depth of %s unknown: %s", self._options.source, error)
            self.depth = None
        self.asked_at = asked_at
        self._has_failed = self.depth is None
        return self.depth

    def _poll(self) -> None:
        warning = NoReceiverWarning(time.monotonic(), self._warn_after)
        while True:
            depth = self._ask()
            if not self._options.receives_here and warning.is_due(depth, time.monotonic()):
                self._warn()
            gevent.sleep(self._poll_interval)

    def _warn(self) -> None:
        logger.warning(
            "channel %s has messages waiting and no subscriber, the spool %s gets nothing: "
            "start receivers: python -m gnsq.spark.receiver --help",
            self._options.source,
            self._location,
        )
