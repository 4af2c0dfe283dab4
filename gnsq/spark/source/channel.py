"""The channel of a query: creates it over HTTP at each nsqd, asks for its depth, and warns if it has no receiver.

`ChannelClient` sends the requests in the hub of its caller. `ChannelMonitor` calls a ChannelClient on a hub thread.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import gevent

from gnsq import NsqdHTTPClient
from gnsq.census import Census, Node, Poll, parse_stats
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
        http = http_keywords(options)
        self._census = Census(options.nsqd_http_addresses, options.lookupd_http_addresses, http)

    @property
    def has_http(self) -> bool:
        """True if an HTTP address of nsqd or nsqlookupd is configured, so that the depth can be asked for."""
        return bool(self._options.nsqd_http_addresses or self._options.lookupd_http_addresses)

    def create(self) -> None:
        """Create topics and channel at each configured nsqd; at other nsqds, create the channel in existing topics.

        Also create the other channels of the options. nsqd gives the messages that wait in a topic only to the topic's
        first channel. So a topic without channels is paused until all channels exist. Of a topic that no nsqd has yet,
        nsqlookupds are told the channels: an nsqd asks them for these before it gives a new topic's messages to any.

        Source: nsqd.go, GetTopic.

        Raises:
            NSQHttpError: If an nsqd, or each nsqlookupd, fails. Known nsqds without a failure have the channel then.
        """
        polled = self._poll()
        if missing := set(self._options.topics).difference(*(self._topics_of(node) for node in polled.nodes)):
            self._register(missing)
            polled = self._poll()  # an nsqd may have got the topic just before
        failures = self._failures(polled)
        for node in polled.reached:
            nsqd = self._census.client(node.address)
            try:
                for topic in self._topics_of(node):
                    if node.registered is None:
                        nsqd.create_topic(topic)
                    self._create_channels(nsqd, topic, self._options.others_of(topic))
            except (NSQHttpError, ValueError) as error:  # ValueError: its answer is not nsqd's
                failures.append(str(error))
        if failures:
            raise NSQHttpError(failures[0])

    def _register(self, topics: Iterable[str]) -> None:
        for lookupd in self._census.lookupds:
            # An nsqlookupd that is down is a failure of _poll(), unless another one has responded.
            with contextlib.suppress(NSQHttpError):
                for topic in topics:
                    if others := self._options.others_of(topic):
                        for channel in (self._options.channel, *others):
                            lookupd.create_channel(topic, channel)

    def _create_channels(self, nsqd: NsqdHTTPClient, topic: str, others: Sequence[str]) -> None:
        # Asked for now: nsqd may have got channels of a new topic from nsqlookupds, and another query may create some.
        found = [channel for _, channel in parse_stats(nsqd.stats(topic), topic).counts if channel]
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
        polled = self._poll()
        failures = self._failures(polled)
        # An nsqlookupd that was just started knows no nsqd: then it is not known whether there are messages.
        if not failures and not polled.reached and not (may_be_missing and polled.nodes):
            wanted = "that fits topicPattern" if self._options.topic_pattern else repr(self._options.topic)
            failures.append(f"no nsqlookupd names an nsqd with a topic {wanted}: does it exist yet?")
        if failures and not (partial and polled.reached):
            raise NSQHttpError(failures[0])
        depths = [self._depth_at(node) for node in polled.reached]
        return functools.reduce(Depth.plus, depths, Depth(0, 0, 0, exact=not failures))

    def _depth_at(self, node: Node) -> Depth:
        """Return the sum of the depths at an nsqd: of the channel, and of the topics themselves."""
        topics = self._topics_of(node)
        total: Counter[str] = Counter()
        for (topic, channel), counts in node.counts.items():
            if topic in topics and channel in ("", self._options.channel):
                for key, number in counts.items():
                    total[key] += number or 0
        return Depth(total["depth"], total["in_flight_count"], total["deferred_count"], total["client_count"])

    def close(self) -> None:
        """Close the connections."""
        self._census.close()

    # --- which nsqds are asked

    def _poll(self) -> Poll:
        """Ask the nsqds that the options name, and those that nsqlookupds name with a topic of the options."""
        # Ask for the topic, not for the channel: nsqd would omit a topic without the channel, but the topic's own depth
        # counts, too.
        topics = self._options.topics
        only = topics[0] if len(topics) == 1 else None
        return self._census.poll(only, is_wanted=lambda names: bool(matching_topics(self._options, names)))

    def _topics_of(self, node: Node) -> list[str]:
        return matching_topics(self._options, self._options.topics if node.registered is None else node.registered)

    def _failures(self, polled: Poll) -> list[str]:
        """Say why servers have failed. One nsqlookupd that has responded suffices if an nsqd is known, since each
        knows all nsqds."""
        if polled.lookupds and not all(polled.lookupds.values()):
            # So one that no nsqlookupd names any more has gone, though the census waits for all of them to say so.
            nodes = tuple(node for node in polled.nodes if node.is_named or not node.error)
            is_known = any(node.error or node.stats for node in nodes)
            polled = Poll(nodes, {} if is_known else polled.lookupds)
        return polled.failures


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
