"""The numbers of topics and channels at one time: read from /stats of each nsqd, summed over all nsqds, with rates.

Pure: sends nothing, reads no clock. A number that can't be known is None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from gnsq.http.responses import shown
from gnsq.protocol.names import checked_names

__all__ = ["ChannelCounts", "Node", "NodeStats", "Row", "Snapshot", "TopicCounts", "parse_stats", "set_rates"]

# Bounds of Go's int64. nsqd sends no other numbers, and very large ones could be neither divided nor shown.
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Numbers of a topic or channel, on one nsqd or summed with +.

    Attributes:
        paused: Number of nsqds on which it is paused.
        nsqds: Number of nsqds that have it.
    """

    depth: int
    backend_depth: int
    message_count: int
    paused: int
    nsqds: int = field(default=1, kw_only=True)

    def __add__(self, other: Self) -> Self:
        names = [each.name for each in dataclasses.fields(self)]
        sums: dict[str, Any] = {name: _sum(getattr(self, name), getattr(other, name)) for name in names}  # Any: numbers
        return type(self)(**sums)

    def document(self) -> dict[str, Any]:  # Any: JSON
        """Make the part of the JSON document."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "nsqds"}
        return {**values, "paused": self.paused > 0}


@dataclass(frozen=True, slots=True)
class TopicCounts(_Counts):
    """Numbers of a topic, without those of its channels.

    Attributes:
        publish_rate: Messages a second that were published.
    """

    publish_rate: float | None = None


@dataclass(frozen=True, slots=True)
class ChannelCounts(_Counts):
    """Numbers of a channel.

    Attributes:
        client_count: Number of subscribers.
        deliver_rate: Messages a second that were sent to clients.
        finish_rate: Messages a second that left the channel: finished, or deleted by emptying the channel.
    """

    in_flight_count: int
    deferred_count: int
    requeue_count: int
    timeout_count: int
    client_count: int | None
    deliver_rate: float | None = None
    finish_rate: float | None = None


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


@dataclass(frozen=True, slots=True)
class NodeStats:
    """The answer of one nsqd.

    Attributes:
        start_time: Start of nsqd in seconds of Unix time; None for servers that do not say it.
        topics: Numbers of the topics.
        channels: Numbers of the channels, by topic and channel.
    """

    version: str
    health: str
    start_time: int | None
    topics: Mapping[str, TopicCounts]
    channels: Mapping[tuple[str, str], ChannelCounts]


def parse_stats(answer: object, topic: str | None = None, channel: str | None = None) -> NodeStats:
    """Read an answer to /stats.

    Args:
        topic, channel: Leave out other topics and channels, which servers before 0.2.21 send, too.

    Raises:
        ValueError: If the answer is not nsqd's.
    """
    if not isinstance(answer, dict) or "topics" not in answer:
        raise ValueError(f"answer is not nsqd's: no topics in {shown(answer)}")
    topics: dict[str, TopicCounts] = {}
    channels: dict[tuple[str, str], ChannelCounts] = {}
    for item in _objects(answer, "topics"):
        name = _name(item, "topic_name")
        items = [each for each in _objects(item, "channels") if channel in (None, _name(each, "channel_name"))]
        if topic not in (None, name) or (channel is not None and not items):
            continue
        topics[name] = TopicCounts(**_numbers(item, *_TOPIC_KEYS), paused=_is_paused(item))
        for each in items:
            channels[name, _name(each, "channel_name")] = ChannelCounts(
                **_numbers(each, *_CHANNEL_KEYS), paused=_is_paused(each), client_count=_clients(each)
            )
    return NodeStats(
        version=_name(answer, "version", ""),
        health=_name(answer, "health", ""),
        start_time=_numbers(answer, "start_time")["start_time"] if "start_time" in answer else None,
        topics=topics,
        channels=channels,
    )


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


_TOPIC_KEYS = ("depth", "backend_depth", "message_count")
_CHANNEL_KEYS = (*_TOPIC_KEYS, "in_flight_count", "deferred_count", "requeue_count", "timeout_count")


def _numbers(item: Mapping[str, object], *keys: str) -> dict[str, int]:
    numbers = {}
    for key in keys:
        number = item.get(key, 0)
        if not isinstance(number, int) or isinstance(number, bool) or number not in _INT64:
            raise ValueError(f"answer is not nsqd's: {key} is {shown(number)}")
        numbers[key] = number
    return numbers


def _is_paused(item: Mapping[str, object]) -> int:
    return int(item.get("paused") is True)


def _clients(item: Mapping[str, object]) -> int | None:
    """Return the number of subscribers. nsqd before 1.2.0 has no client_count, and always sends the list."""
    if "client_count" in item:
        return _numbers(item, "client_count")["client_count"]
    clients = item.get("clients")
    return len(clients) if isinstance(clients, list) else None


# --- rates


def set_rates(now: NodeStats, before: NodeStats, seconds: float) -> NodeStats:
    """Compute the rates of one nsqd from two of its answers.

    A rate stays None if nsqd was started again in between, or the topic or channel is new or was made again: its
    counters have begun at 0.

    Args:
        seconds: Time between the answers.
    """
    if now.start_time != before.start_time or seconds <= 0:
        return now
    topics, channels = dict(now.topics), dict(now.channels)
    for name, topic in now.topics.items():
        old = before.topics.get(name)
        if old is not None and topic.message_count >= old.message_count:
            rate = (topic.message_count - old.message_count) / seconds
            topics[name] = dataclasses.replace(topic, publish_rate=rate)
    for key, channel in now.channels.items():
        previous = before.channels.get(key)
        if previous is not None and _has_continued(channel, previous):
            channels[key] = dataclasses.replace(
                channel,
                deliver_rate=max(_delivered(channel) - _delivered(previous), 0) / seconds,
                finish_rate=max(_finished(channel) - _finished(previous), 0) / seconds,
            )
    return dataclasses.replace(now, topics=topics, channels=channels)


def _has_continued(now: ChannelCounts, before: ChannelCounts) -> bool:
    counters = ("message_count", "requeue_count", "timeout_count")
    return all(getattr(now, name) >= getattr(before, name) for name in counters)


def _finished(channel: ChannelCounts) -> int:
    """Number of messages that have left the channel, plus a constant: messages that were on disk at nsqd's start."""
    return channel.message_count - channel.depth - channel.in_flight_count - channel.deferred_count


def _delivered(channel: ChannelCounts) -> int:
    """Number of deliveries, plus a constant. Each delivery is in flight, or was finished or requeued or timed out."""
    return _finished(channel) + channel.in_flight_count + channel.requeue_count + channel.timeout_count


# --- sums


@dataclass(frozen=True, slots=True)
class Node:
    """One nsqd, or an address of one.

    Attributes:
        address: URL of its HTTP port.
        stats: Its numbers; None if it has not answered.
        error: Why it has not answered; empty if it has.
        same_as: Address of the same nsqd, which is counted there; empty if this is the only one.
    """

    address: str
    stats: NodeStats | None = None
    error: str = ""
    same_as: str = ""

    def document(self) -> dict[str, Any]:  # Any: JSON
        """Make the part of the JSON document."""
        stats = self.stats
        return {
            "http_address": self.address,
            "version": stats.version if stats else None,
            "health": stats.health if stats else None,
            "start_time": stats.start_time if stats else None,
            "error": self.error or None,
            "same_as": self.same_as or None,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """A topic, or a channel of a topic.

    Attributes:
        channel: Name of the channel; empty for a topic.
        counts: Numbers of all nsqds together.
        by_nsqd: Numbers of each nsqd, by its address.
        channels: The channels of a topic.
    """

    topic: str
    channel: str
    counts: TopicCounts | ChannelCounts
    by_nsqd: Mapping[str, TopicCounts | ChannelCounts]
    channels: tuple[Row, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Names of topic and channel."""
        return self.topic, self.channel

    def document(self) -> dict[str, Any]:  # Any: JSON
        """Make the part of the JSON document."""
        document = {"channel" if self.channel else "topic": self.channel or self.topic, **self.counts.document()}
        if not self.channel:
            document["channels"] = [row.document() for row in self.channels]
        document["nsqds"] = [{"http_address": address, **counts.document()} for address, counts in self.by_nsqd.items()]
        return document


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The numbers of all nsqds at one time.

    Attributes:
        nodes: All nsqds that were found.
        lookupds: By address of each nsqlookupd: why it has not answered; empty if it has.
        time: Seconds of Unix time.
        seconds: Time since the poll before, from which the rates come; None for the first poll.
        topics: The topics with their channels, by name.
    """

    nodes: tuple[Node, ...]
    lookupds: Mapping[str, str]
    time: float
    seconds: float | None
    topics: tuple[Row, ...] = field(init=False)

    def __post_init__(self) -> None:
        topics: dict[str, dict[str, TopicCounts]] = {}
        channels: dict[tuple[str, str], dict[str, ChannelCounts]] = {}
        for node in self.reached:
            assert node.stats is not None  # that is what reached means
            for name, topic in node.stats.topics.items():
                topics.setdefault(name, {})[node.address] = topic
            for key, channel in node.stats.channels.items():
                channels.setdefault(key, {})[node.address] = channel
        rows: dict[str, list[Row]] = {}
        for (topic_name, name), by_nsqd in sorted(channels.items()):
            rows.setdefault(topic_name, []).append(Row(topic_name, name, _total(by_nsqd.values()), by_nsqd))
        made = [
            Row(name, "", _total(found.values()), found, tuple(rows.get(name, ()))) for name, found in topics.items()
        ]
        # The class is frozen, so object sets the attribute.
        object.__setattr__(self, "topics", tuple(sorted(made, key=lambda row: row.topic)))

    @property
    def reached(self) -> list[Node]:
        """The nsqds that have answered, each of them once."""
        return [node for node in self.nodes if node.stats is not None and not node.same_as]

    @property
    def unreached(self) -> list[Node]:
        """The nsqds that have not answered."""
        return [node for node in self.nodes if node.error]

    @property
    def topic_total(self) -> TopicCounts:
        """Sum of all topics, without their channels."""
        return _total([row.counts for row in self.topics]) or TopicCounts(0, 0, 0, 0, nsqds=0)

    @property
    def channel_total(self) -> ChannelCounts:
        """Sum of all channels."""
        counts = [row.counts for topic in self.topics for row in topic.channels]
        return _total(counts) or ChannelCounts(0, 0, 0, 0, 0, 0, 0, 0, 0, nsqds=0)

    def document(self) -> dict[str, Any]:  # Any: JSON
        """Make the JSON document of ``gnsq stats --json``, which the help of the command describes."""
        topics, channels = self.topic_total.document(), self.channel_total.document()
        for total in (topics, channels):
            del total["paused"]
        return {
            "time": self.time,
            "seconds": self.seconds,
            "topics": [row.document() for row in self.topics],
            "totals": {
                "topics": {"count": len(self.topics), **topics},
                "channels": {"count": sum(len(row.channels) for row in self.topics), **channels},
            },
            "nsqds": [node.document() for node in self.nodes],
            "lookupds": [{"http_address": address, "error": error or None} for address, error in self.lookupds.items()],
        }


def _total(counts: Iterable[Any]) -> Any:  # Any: counts of one type, and their sum
    total = None
    for each in counts:
        total = each if total is None else total + each
    return total
