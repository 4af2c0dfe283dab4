"""ChannelClient: one topic and channel over all its nsqds' HTTP: create it, ask how much is in it. No policy."""

from __future__ import annotations

import logging

from gnsq import LookupdClient, NsqdHTTPClient
from gnsq.errors import NSQHttpError
from gnsq.spark.drain import Depth

__all__ = ["ChannelClient"]

logger = logging.getLogger(__name__)


class ChannelClient:
    """Asks in the calling greenlet's hub.

    Args:
        nsqd_http_addresses: ``host:port`` of each nsqd.
        lookupd_http_addresses: nsqlookupds that know more of them.
        timeout: Seconds, for each call.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        nsqd_http_addresses: tuple[str, ...] = (),
        lookupd_http_addresses: tuple[str, ...] = (),
        timeout: float = 5.0,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self._timeout = timeout
        self._named = {address: self._client(address) for address in nsqd_http_addresses}
        # Those that nsqlookupd told of, kept for their open connections.
        self._found: dict[str, NsqdHTTPClient] = {}
        self._lookupds = [LookupdClient.from_url(address, timeout=timeout) for address in lookupd_http_addresses]

    @property
    def can_ask(self) -> bool:
        """Whether there is any address to ask."""
        return bool(self._named or self._lookupds)

    def create(self, *others: str) -> None:
        """Create topic and channel on each nsqd that was named, and the channel on those that nsqlookupd knows.

        Args:
            others: Further channels of the topic, which get the same messages as the first: nsqd gives what waits in
                a topic to its first channel alone, so a topic without channels is paused until all are there.

        Raises:
            NSQHttpError: If one of them does not answer.
        """
        for address, nsqd in self._all().items():
            if address in self._named:
                nsqd.create_topic(self.topic)
            held = bool(others) and not self._has_channels(nsqd)
            if held:
                nsqd.pause_topic(self.topic)
            try:
                for channel in (self.channel, *others):
                    nsqd.create_channel(self.topic, channel)
            finally:
                if held:
                    nsqd.unpause_topic(self.topic)

    def _has_channels(self, nsqd: NsqdHTTPClient) -> bool:
        return any(topic["channels"] for topic in nsqd.stats(self.topic)["topics"] or ())

    def depth(self) -> Depth:
        """Add up what the nsqds have.

        Raises:
            NSQHttpError: If one of them does not answer: a sum without it would be wrong.
        """
        waiting = in_flight = deferred = 0
        for address, nsqd in self._all().items():
            # Not filtered by channel: nsqd would leave a topic out that does not have it.
            stats = nsqd.stats(self.topic)
            try:
                for topic in stats["topics"]:
                    waiting += topic["depth"]
                    for channel in topic["channels"]:
                        if channel["channel_name"] != self.channel:
                            continue
                        waiting += channel["depth"]
                        in_flight += channel["in_flight_count"]
                        deferred += channel["deferred_count"]
            except (KeyError, TypeError) as error:
                raise NSQHttpError(f"{address}: /stats is not nsqd's: {error!r}") from error
        return Depth(waiting, in_flight, deferred)

    def close(self) -> None:
        """Close the connections that are kept for further questions."""
        for client in (*self._named.values(), *self._found.values(), *self._lookupds):
            client.close()

    def _all(self) -> dict[str, NsqdHTTPClient]:
        """Say which nsqds to ask: those named, and those that any nsqlookupd has for the topic."""
        clients = dict(self._named)
        failures = []
        for lookupd in self._lookupds:
            try:
                producers = lookupd.lookup(self.topic)["producers"] or ()
            except NSQHttpError as error:
                # 404: no nsqd has the topic yet.
                if error.status != 404:
                    failures.append(error)
                continue
            for producer in producers:
                address = f"{producer['broadcast_address']}:{producer['http_port']}"
                if address not in clients:
                    clients[address] = self._found.setdefault(address, self._client(address))
        if failures and len(failures) == len(self._lookupds):
            raise failures[0]
        return clients

    def _client(self, address: str) -> NsqdHTTPClient:
        return NsqdHTTPClient.from_url(address, timeout=self._timeout)
