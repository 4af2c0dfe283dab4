"""Finds the nsqds of a cluster and asks all of them for their statistics at the same time."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import gevent

from gnsq.addresses import format_address, is_port, is_unix, parse_address
from gnsq.cli.cluster import Cluster
from gnsq.cli.snapshot import Node, NodeStats, Snapshot, parse_stats, set_rates
from gnsq.concurrency.greenlets import spawn
from gnsq.discovery import AllNodes
from gnsq.errors import NSQHttpError
from gnsq.nsqd import NsqdHTTPClient
from gnsq.texts import printable

__all__ = ["NodePoller", "failures", "http_address", "short_address"]

# What is wrong with a server that has not answered within the limit of a poll.
UNANSWERED = "no answer yet"


def http_address(nsqd: str) -> str:
    """Guess the HTTP address of an nsqd from its TCP address: the port is one higher, as in nsqd's defaults.

    Raises:
        ValueError: If there is no such port.
    """
    host, port = parse_address(nsqd)
    if is_unix(host) or not is_port(port + 1):
        raise ValueError(f"{nsqd} has no HTTP port one above it; give its HTTP address: --nsqd-http HOST:PORT")
    return format_address(host, port + 1)


def short_address(url: str) -> str:
    """Write the URL of a server without what all of them have in common."""
    return url.removeprefix("http://").rstrip("/")


@dataclass
class _Polled:
    """An nsqd, and what it has answered last.

    Attributes:
        is_guessed: True if the port is the TCP port + 1.
        counted_at: Monotonic time of the answer.
        identity: Facts that no two nsqds have in common; empty if unknown.
    """

    client: NsqdHTTPClient
    node: Node
    is_guessed: bool = False
    stats: NodeStats | None = None
    counted_at: float = 0.0
    identity: tuple[object, ...] = ()


class NodePoller:
    """Asks the nsqds of a cluster for the numbers of topics and channels.

    The nsqds are those that the nsqlookupds name, and those of --nsqd, at their HTTP addresses.

    Args:
        topic, channel: Ask only for this topic or channel.

    Attributes:
        lookupds: The clients of the nsqlookupds.
    """

    def __init__(self, cluster: Cluster, topic: str | None = None, channel: str | None = None) -> None:
        self._cluster = cluster
        self._topic = topic
        self._channel = channel
        self.lookupds = cluster.lookupd_clients()
        self._nodes = AllNodes(self.lookupds, "http_port") if self.lookupds else None
        self._polled: dict[str, _Polled] = {}
        # Addresses in --nsqd for which there is no HTTP address.
        self._unusable: list[Node] = []
        self._polled_at: float | None = None
        for address in cluster.nsqds_http:
            self._add(address)
        if not cluster.nsqds_http:
            for nsqd in cluster.nsqds:
                try:
                    self._add(http_address(nsqd), is_guessed=True)
                except ValueError as error:
                    self._unusable.append(Node(nsqd, error=str(error)))
        # Addresses that no nsqlookupd has named: they stay.
        self._given = set(self._polled)

    def _add(self, address: str, *, is_guessed: bool = False) -> _Polled:
        client = self._cluster.nsqd_client(address)
        polled = _Polled(client, Node(client.address, error=UNANSWERED), is_guessed)
        return self._polled.setdefault(client.address, polled)

    def client(self, address: str) -> NsqdHTTPClient:
        """Return the client of an nsqd that a snapshot names."""
        return self._polled[address].client

    def registered(self, *topic: str) -> set[str]:
        """Return the names of the topics, or of a topic's channels, that nsqlookupds know; without those that fail."""
        names: set[str] = set()
        for lookupd in self.lookupds:
            with contextlib.suppress(NSQHttpError):
                answer = (lookupd.channels if topic else lookupd.topics)(*topic)
                names.update(answer.get("channels" if topic else "topics") or ())
        return names

    def poll(self, limit: float | None = None) -> Snapshot:
        """Ask all nsqds, each with the timeout, and wait for all.

        Args:
            limit: Seconds after which those that have not answered are not waited for.
        """
        with gevent.Timeout(limit, False):
            self._ask_all()
        now = time.monotonic()
        seconds = None if self._polled_at is None else now - self._polled_at
        self._polled_at = now
        return Snapshot(
            nodes=(*self._merged(), *self._unusable),
            lookupds={}
            if self._nodes is None
            else {each.address: self._failure(each.address) for each in self.lookupds},
            time=time.time(),
            seconds=seconds,
        )

    def _failure(self, lookupd: str) -> str:
        assert self._nodes is not None  # there is an nsqlookupd
        return self._nodes.failures.get(lookupd, "" if self._nodes.has_answered(lookupd) else UNANSWERED)

    def _ask_all(self) -> None:
        asked: set[str] = set()
        asks: list[gevent.Greenlet] = []

        def ask(polled: _Polled) -> None:
            if polled.client.address not in asked:
                asked.add(polled.client.address)
                asks.append(spawn(f"gnsq-poll-{polled.client.address}", self._ask, polled, on_failure=None))

        try:
            for polled in list(self._polled.values()):
                ask(polled)
            if self._nodes is not None:
                # The nsqds of a fast nsqlookupd do not wait for a slow one.
                _, gone = self._nodes.refresh(lambda address: ask(self._add(address)))
                for address in {self._cluster.nsqd_client(each).address for each in gone} - self._given:
                    self._polled.pop(address, None)
            gevent.joinall(asks, raise_error=True)
        finally:
            gevent.killall(asks)

    def _ask(self, polled: _Polled) -> None:
        """Ask one nsqd, and store the result."""
        client, before = polled.client, polled.stats
        try:
            answer = client.stats(self._topic, self._channel, include_clients=False, include_mem=False)
            now = time.monotonic()
            stats = parse_stats(answer, self._topic, self._channel)
            if before is None or stats.start_time != before.start_time:
                polled.identity = self._identity(client, stats)
        except (NSQHttpError, ValueError) as error:
            polled.node = Node(client.address, error=_reason(error, polled))
            return
        polled.stats = stats
        seconds, polled.counted_at = now - polled.counted_at, now
        polled.node = Node(client.address, set_rates(stats, before, seconds) if before is not None else stats)

    def _identity(self, client: NsqdHTTPClient, stats: NodeStats) -> tuple[object, ...]:
        try:
            info = client.info()
        except NSQHttpError:
            return ()
        keys = ("hostname", "broadcast_address", "tcp_port", "http_port")
        # An nsqd on a unix socket says port -1, and an old one says no port.
        if not isinstance(info, Mapping) or not is_port(info.get("http_port")):
            return ()
        return (*(str(info.get(key)) for key in keys), stats.start_time)

    def _merged(self) -> list[Node]:
        """Return the nsqds, and name the addresses that lead to the same one: it must not be counted twice."""
        first: dict[tuple[object, ...], str] = {}
        nodes = []
        for polled in self._polled.values():
            node = polled.node
            if node.stats is not None and polled.identity:
                same = first.setdefault(polled.identity, node.address)
                node = dataclasses.replace(node, same_as="" if same == node.address else same)
            nodes.append(node)
        return nodes


def _reason(error: Exception, polled: _Polled) -> str:
    text = error.explanation if isinstance(error, NSQHttpError) else str(error)
    if polled.is_guessed:
        text += "; the port is that of --nsqd + 1: if nsqd's HTTP port is another one, give --nsqd-http HOST:PORT"
    return text


def failures(snapshot: Snapshot) -> Iterator[str]:
    """Say of each server that has not answered why."""
    for address, error in snapshot.lookupds.items():
        if error:
            yield f"nsqlookupd {short_address(address)}: {printable(error)}"
    for node in snapshot.unreached:
        yield f"nsqd {short_address(node.address)}: {printable(node.error)}"
    if not snapshot.nodes and not all(snapshot.lookupds.values()):
        yield "no nsqd is registered with nsqlookupd"
