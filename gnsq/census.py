"""Census: which nsqds there are, and what each of them has. Asks all of them at the same time, at their HTTP ports.

The way of the numbers: `AllNodes` in discovery.py asks the nsqlookupds, and names each nsqd with its registered topics.
The Census asks it, and each given nsqd, for /stats, which `parse_stats` makes a `NodeStats`. A `Node` is that, or why
there is none. A `Poll` has the Nodes of one round.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gevent

from gnsq.addresses import Addresses, is_port
from gnsq.concurrency.greenlets import spawn
from gnsq.discovery import AllNodes, parse_lookupds, registered_topics
from gnsq.errors import NSQHttpError
from gnsq.http.responses import shown
from gnsq.nsqd import NsqdHTTPClient
from gnsq.protocol.names import checked_names
from gnsq.texts import printable

__all__ = [
    *["Census", "Client", "Counts", "Node", "NodeStats", "Poll", "channel_counts", "parse_stats"],
    *["short_address", "topic_counts"],
]

# Numbers of a topic or channel by their keys in /stats; None: not known. "paused" is 1 or 0.
Counts = Mapping[str, Any]  # Any: int or None
# Bounds of Go's int64. nsqd sends no other numbers, and very large ones could be neither divided nor shown.
_INT64 = range(-(2**63), 2**63)
# What is wrong with a server that has not answered within the limit of a poll.
UNANSWERED = "no answer yet"


@dataclass(frozen=True, slots=True)
class Client:
    """A consumer's connection, as nsqd has it.

    Attributes:
        user_agent: Name and version of the client's library.
        connect_ts: Seconds of Unix time.
    """

    client_id: str
    hostname: str
    user_agent: str
    remote_address: str
    connect_ts: int
    ready_count: int
    in_flight_count: int


@dataclass(frozen=True, slots=True)
class NodeStats:
    """The answer of one nsqd.

    Attributes:
        start_time: Start of nsqd in seconds of Unix time; None for servers that do not say it.
        counts: Numbers of topics and channels, by topic and channel; the channel of a topic itself is empty.
        clients: The consumers of the channel, if they were asked for.
    """

    version: str
    health: str
    start_time: int | None
    counts: Mapping[tuple[str, str], Counts]
    clients: tuple[Client, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One nsqd, or an address of one.

    Attributes:
        address: URL of its HTTP port.
        stats: Its numbers; None if it has not answered, or was not asked.
        error: Why it has not answered; empty if it has, or was not asked.
        same_as: Address of the same nsqd, which is counted there; empty if this is the only one.
        registered: Its topics that nsqlookupds have, except those that a tombstone hides; None for given addresses.
        polled_at: Monotonic time of the answer.
        is_named: False if no nsqlookupd has named it this time, and it was not given: it may have gone.
    """

    address: str
    stats: NodeStats | None = None
    error: str = ""
    same_as: str = ""
    registered: Collection[str] | None = None
    polled_at: float = 0.0
    is_named: bool = True

    @property
    def counts(self) -> Mapping[tuple[str, str], Counts]:
        """The numbers of its topics and channels, as in NodeStats; empty if it has not answered."""
        return self.stats.counts if self.stats else {}


@dataclass(frozen=True)
class Poll:
    """What all servers have answered at one time.

    Attributes:
        nodes: All nsqds that are known, the given ones first.
        lookupds: By address of each nsqlookupd: why it has not answered; empty if it has.
    """

    nodes: tuple[Node, ...]
    lookupds: Mapping[str, str]

    @property
    def reached(self) -> list[Node]:
        """The nsqds that have answered, each of them once."""
        return [node for node in self.nodes if node.stats is not None and not node.same_as]

    @property
    def unreached(self) -> list[Node]:
        """The nsqds that have not answered."""
        return [node for node in self.nodes if node.error]

    @property
    def topic_names(self) -> set[str]:
        """Topics that an nsqd has, or that an nsqlookupd names."""
        named = {topic for node in self.nodes for topic in node.registered or ()}
        return named | {topic for node in self.nodes for topic, _ in node.counts}

    @property
    def failures(self) -> list[str]:
        """Say of each server that has not answered why."""
        lookupds = [("nsqlookupd", address, error) for address, error in self.lookupds.items() if error]
        nsqds = [("nsqd", node.address, node.error) for node in self.unreached]
        return [f"{kind} {short_address(address)}: {printable(error)}" for kind, address, error in (*lookupds, *nsqds)]


def short_address(url: str) -> str:
    """Write the URL of a server without what all of them have in common."""
    return url.removeprefix("http://").rstrip("/")


# --- the servers


@dataclass
class _Known:
    """An nsqd that is known.

    Attributes:
        registered: As that of a Node.
        identity: Facts that no two nsqds have in common; empty if unknown.
        start_time: That of its last answer; -1 before the first.
    """

    client: NsqdHTTPClient
    registered: Collection[str] | None
    identity: tuple[object, ...] = ()
    start_time: int | None = -1


class Census:
    """Asks the nsqds that are given, and those that nsqlookupds name, for the numbers of topics and channels.

    Args:
        nsqds, lookupds: HTTP addresses.
        http: Options of HttpOptions.

    Attributes:
        lookupds: The clients of the nsqlookupds.

    Raises:
        TypeError, ValueError: If an address or option is not valid.
    """

    def __init__(self, nsqds: Iterable[str], lookupds: Addresses, http: Mapping[str, Any]) -> None:
        # Any: each option has its own type
        self._http = http
        self.lookupds = parse_lookupds(lookupds, http)
        self._nodes = AllNodes(self.lookupds, "http_port")
        # By the URL of the HTTP port.
        self._known: dict[str, _Known] = {}
        # Those URLs by the host:port that nsqlookupds name: of a URL, the host is in small letters.
        self._urls: dict[str, str] = {}
        for address in nsqds:
            self._add(address, None)

    def _add(self, address: str, registered: Collection[str] | None) -> str:
        client = NsqdHTTPClient.from_url(address, **self._http)
        self._known.setdefault(client.address, _Known(client, registered))
        return client.address

    def client(self, address: str) -> NsqdHTTPClient:
        """Return the client of an nsqd that a poll has named."""
        return self._known[address].client

    def registered(self, *topic: str) -> set[str]:
        """Return the names of the topics, or of a topic's channels, that nsqlookupds know; without those that fail."""
        names: set[str] = set()
        for lookupd in self.lookupds:
            with contextlib.suppress(NSQHttpError):
                answer = (lookupd.channels if topic else lookupd.topics)(*topic)
                names.update(answer.get("channels" if topic else "topics") or ())
        return names

    def close(self) -> None:
        """Close the connections."""
        for client in (*self.lookupds, *(known.client for known in self._known.values())):
            client.close()

    def poll(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        limit: float | None = None,
        is_wanted: Callable[[Collection[str]], bool] = lambda topics: True,
        has_clients: bool = False,
    ) -> Poll:
        """Ask all servers at the same time, each with the timeout, and wait for all.

        Args:
            topic, channel: Ask only for this topic or channel.
            limit: Seconds after which those that have not answered are not waited for.
            is_wanted: Says by the registered topics of an nsqd that was not given whether it is asked.
            has_clients: Ask for the consumers of the channel, too.
        """
        # Of this poll alone: another one may run at the same time.
        nodes: dict[str, Node] = {}
        named: dict[str, set[str]] = {}
        with gevent.Timeout(limit, False):
            self._ask_all(nodes, named, functools.partial(self._ask, topic, channel, has_clients), is_wanted)
        return Poll(
            tuple(self._merged(nodes, named)), {each.address: self._failure(each.address) for each in self.lookupds}
        )

    def _failure(self, lookupd: str) -> str:
        return self._nodes.failures.get(lookupd, "" if self._nodes.has_answered(lookupd) else UNANSWERED)

    def _ask_all(
        self,
        nodes: dict[str, Node],
        named: dict[str, set[str]],
        ask: Callable[[_Known], Node],
        is_wanted: Callable[[Collection[str]], bool],
    ) -> None:
        """Ask; fill nodes, and named with the topics of those that nsqlookupds name, by their URLs."""
        asks: list[gevent.Greenlet] = []

        def start(address: str, known: _Known) -> None:
            def run() -> None:
                nodes[address] = ask(known)

            if address not in nodes and (known.registered is None or is_wanted(known.registered)):
                nodes[address] = Node(address, error=UNANSWERED)
                asks.append(spawn(f"gnsq-poll-{address}", run, on_failure=None))

        def add(address: str, producer: Mapping[str, object]) -> None:
            topics = registered_topics(producer)
            if self._urls.get(address) not in self._known:
                self._urls[address] = self._add(address, topics)
            url = self._urls[address]
            # An nsqd has the topics with which any nsqlookupd names it.
            registered, known = named.setdefault(url, set()), self._known[url]
            registered.update(topics)
            if known.registered is not None:
                known.registered = registered
            start(url, known)

        try:
            for address, known in self._known.items():
                if known.registered is None:
                    start(address, known)
            # The nsqds of a fast nsqlookupd do not wait for a slow one.
            _, gone = self._nodes.refresh(add)
            for url in {self._urls.pop(address, "") for address in gone}:
                if url in self._known and self._known[url].registered is not None:
                    self._known.pop(url).client.close()
            for address, known in self._known.items():
                start(address, known)
            gevent.joinall(asks, raise_error=True)
        finally:
            gevent.killall(asks)

    def _ask(self, topic: str | None, channel: str | None, has_clients: bool, known: _Known) -> Node:
        address = known.client.address
        try:
            answer = known.client.stats(topic, channel, include_clients=has_clients, include_mem=False)
            now = time.monotonic()
            stats = parse_stats(answer, topic, channel)
        except NSQHttpError as error:
            return Node(address, error=error.explanation)
        except ValueError as error:
            return Node(address, error=str(error))
        if stats.start_time != known.start_time:
            known.identity, known.start_time = _identity(known.client, stats), stats.start_time
        return Node(address, stats, polled_at=now)

    def _merged(self, nodes: Mapping[str, Node], named: Collection[str]) -> Iterator[Node]:
        """Return the nsqds, and name the addresses that lead to the same one: it must not be counted twice."""
        first: dict[tuple[object, ...], str] = {}
        for address, known in self._known.items():
            node = nodes.get(address, Node(address))
            same = first.setdefault(known.identity, address) if node.stats is not None and known.identity else address
            same_as = "" if same == address else same
            is_named = known.registered is None or address in named
            yield dataclasses.replace(node, same_as=same_as, registered=known.registered, is_named=is_named)


def _identity(client: NsqdHTTPClient, stats: NodeStats) -> tuple[object, ...]:
    try:
        info = client.info()
    except NSQHttpError:
        return ()
    keys = ("hostname", "broadcast_address", "tcp_port", "http_port")
    # An nsqd on a unix socket says port -1, and an old one says no port.
    if not isinstance(info, Mapping) or not is_port(info.get("http_port")):
        return ()
    return (*(str(info.get(key)) for key in keys), stats.start_time)


# --- /stats


def parse_stats(answer: object, topic: str | None = None, channel: str | None = None) -> NodeStats:
    """Read an answer to /stats.

    Args:
        topic, channel: Leave out other topics and channels, which servers before 0.2.21 send, too.

    Raises:
        ValueError: If the answer is not nsqd's.
    """
    if not isinstance(answer, dict) or "topics" not in answer:
        raise ValueError(f"answer is not nsqd's: no topics in {shown(answer)}")
    counts: dict[tuple[str, str], Counts] = {}
    clients: list[Client] = []
    for item in _objects(answer, "topics"):
        name = _name(item, "topic_name")
        channels = {_name(each, "channel_name"): each for each in _objects(item, "channels")}
        if channel is not None:
            channels = {each: channels[each] for each in channels if each == channel}
        if topic in (None, name) and (channel is None or channels):
            counts[name, ""] = topic_counts(item)
            counts |= {(name, each): channel_counts(channels[each]) for each in channels}
            if channel is not None:
                clients += map(_client, _objects(channels[channel], "clients"))
    return NodeStats(
        version=_name(answer, "version", ""),
        health=_name(answer, "health", ""),
        start_time=_numbers(answer, "start_time")["start_time"] if "start_time" in answer else None,
        counts=counts,
        clients=tuple(clients),
    )


def topic_counts(item: Mapping[str, object]) -> Counts:
    """Read the numbers of a topic. Those that are missing are 0, and rates None."""
    numbers = _numbers(item, "depth", "backend_depth", "message_count")
    return {**numbers, "paused": int(item.get("paused") is True), "publish_rate": None}


def channel_counts(item: Mapping[str, object]) -> Counts:
    """Read the numbers of a channel, as topic_counts()."""
    counts = {key: number for key, number in topic_counts(item).items() if key != "publish_rate"}
    numbers = _numbers(item, "in_flight_count", "deferred_count", "requeue_count", "timeout_count")
    return {**counts, **numbers, "client_count": _clients(item), "deliver_rate": None, "finish_rate": None}


def _objects(owner: Mapping[str, object], key: str) -> list[dict[str, object]]:
    items = owner.get(key)
    if items is None:  # Go writes a list that was never filled as null
        return []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"answer is not nsqd's: {key} are {shown(items)}")
    return items


def _name(item: Mapping[str, object], key: str, default: str | None = None) -> str:
    name = item.get(key, default)
    if not isinstance(name, str):
        raise ValueError(f"answer is not nsqd's: {key} is {shown(name)}")
    if default is None:
        checked_names([name], key.partition("_")[0])
    return name


def _numbers(item: Mapping[str, object], *keys: str) -> dict[str, int]:
    numbers = {}
    for key in keys:
        number = item.get(key, 0)
        if not isinstance(number, int) or isinstance(number, bool) or number not in _INT64:
            raise ValueError(f"answer is not nsqd's: {key} is {shown(number)}")
        numbers[key] = number
    return numbers


def _client(item: Mapping[str, object]) -> Client:
    numbers = _numbers(item, "connect_ts", "ready_count", "in_flight_count")
    client_id, hostname, user_agent, address = (
        _name(item, key, "") for key in ("client_id", "hostname", "user_agent", "remote_address")
    )
    return Client(client_id, hostname, user_agent, address, **numbers)


def _clients(item: Mapping[str, object]) -> int | None:
    """Return the number of subscribers. nsqd before 1.2.0 has no client_count, and always sends the list."""
    if "client_count" in item:
        return _numbers(item, "client_count")["client_count"]
    clients = item.get("clients")
    return len(clients) if isinstance(clients, list) else None
