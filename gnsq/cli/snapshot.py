"""The numbers of topics and channels at one time: read from /stats of each nsqd, summed over all nsqds, with rates.

The numbers are dicts with the keys of ``gnsq stats --json``. One that can't be known is None. Only "paused" is another
one: the number of nsqds on which the topic or channel is paused. Pure: sends nothing, reads no clock.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq.http.responses import shown
from gnsq.protocol.names import checked_names

__all__ = ["Counts", "Node", "NodeStats", "Row", "Snapshot", "parse_stats", "set_rates"]

Counts = Mapping[str, Any]  # Any: int or None, and float for rates
# Bounds of Go's int64. nsqd sends no other numbers, and very large ones could be neither divided nor shown.
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class NodeStats:
    """The answer of one nsqd.

    Attributes:
        start_time: Start of nsqd in seconds of Unix time; None for servers that do not say it.
        counts: Numbers of topics and channels, by topic and channel; the channel of a topic itself is empty.
    """

    version: str
    health: str
    start_time: int | None
    counts: Mapping[tuple[str, str], Counts]


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
    for item in _objects(answer, "topics"):
        name = _name(item, "topic_name")
        channels = {_name(each, "channel_name"): each for each in _objects(item, "channels")}
        if channel is not None:
            channels = {each: channels[each] for each in channels if each == channel}
        if topic in (None, name) and (channel is None or channels):
            counts[name, ""] = _topic_counts(item)
            counts |= {(name, each): _channel_counts(channels[each]) for each in channels}
    return NodeStats(
        version=_name(answer, "version", ""),
        health=_name(answer, "health", ""),
        start_time=_numbers(answer, "start_time")["start_time"] if "start_time" in answer else None,
        counts=counts,
    )


def _topic_counts(item: Mapping[str, object]) -> Counts:
    numbers = _numbers(item, "depth", "backend_depth", "message_count")
    return {**numbers, "paused": int(item.get("paused") is True), "publish_rate": None}


def _channel_counts(item: Mapping[str, object]) -> Counts:
    counts = {key: number for key, number in _topic_counts(item).items() if key != "publish_rate"}
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


def _clients(item: Mapping[str, object]) -> int | None:
    """Return the number of subscribers. nsqd before 1.2.0 has no client_count, and always sends the list."""
    if "client_count" in item:
        return _numbers(item, "client_count")["client_count"]
    clients = item.get("clients")
    return len(clients) if isinstance(clients, list) else None


# --- rates


def set_rates(now: NodeStats, before: NodeStats, seconds: float) -> NodeStats:
    """Compute the rates of one nsqd, in messages a second, from two of its answers.

    A rate stays None if nsqd was started again in between, or the topic or channel is new or was made again: its
    counters have begun at 0.

    Args:
        seconds: Time between the answers.
    """
    if now.start_time != before.start_time or seconds <= 0:
        return now
    counts = {key: {**new, **_rates(new, before.counts.get(key), seconds)} for key, new in now.counts.items()}
    return dataclasses.replace(now, counts=counts)


def _rates(now: Counts, before: Counts | None, seconds: float) -> Counts:
    counters = [key for key in ("message_count", "requeue_count", "timeout_count") if key in now]
    if before is None or any(now[key] < before[key] for key in counters):
        return {}
    if "publish_rate" in now:
        return {"publish_rate": (now["message_count"] - before["message_count"]) / seconds}
    return {
        "deliver_rate": max(_delivered(now) - _delivered(before), 0) / seconds,
        "finish_rate": max(_finished(now) - _finished(before), 0) / seconds,
    }


def _finished(channel: Counts) -> int:
    """Number of messages that have left the channel, plus a constant: messages that were on disk at nsqd's start."""
    left: int = channel["message_count"] - channel["depth"] - channel["in_flight_count"] - channel["deferred_count"]
    return left


def _delivered(channel: Counts) -> int:
    """Number of deliveries, plus a constant. Each delivery is in flight, or was finished or requeued or timed out."""
    answered: int = channel["in_flight_count"] + channel["requeue_count"] + channel["timeout_count"]
    return _finished(channel) + answered


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
    counts: Counts
    by_nsqd: Mapping[str, Counts]
    channels: list[Row] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        """Names of topic and channel."""
        return self.topic, self.channel

    def document(self) -> dict[str, Any]:  # Any: JSON
        """Make the part of the JSON document."""
        document = {"channel" if self.channel else "topic": self.channel or self.topic, **_document(self.counts)}
        if not self.channel:
            document["channels"] = [row.document() for row in self.channels]
        document["nsqds"] = [{"http_address": address, **_document(counts)} for address, counts in self.by_nsqd.items()]
        return document


@dataclass(frozen=True)
class Snapshot:
    """The numbers of all nsqds at one time.

    Attributes:
        nodes: All nsqds that were found.
        lookupds: By address of each nsqlookupd: why it has not answered; empty if it has.
        time: Seconds of Unix time.
        seconds: Time since the poll before, from which the rates come; None for the first poll.
    """

    nodes: tuple[Node, ...]
    lookupds: Mapping[str, str]
    time: float
    seconds: float | None

    @property
    def reached(self) -> list[Node]:
        """The nsqds that have answered, each of them once."""
        return [node for node in self.nodes if node.stats is not None and not node.same_as]

    @property
    def unreached(self) -> list[Node]:
        """The nsqds that have not answered."""
        return [node for node in self.nodes if node.error]

    @functools.cached_property
    def topics(self) -> list[Row]:
        """The topics with their channels, by name."""
        found: dict[tuple[str, str], dict[str, Counts]] = {}
        for node in self.reached:
            assert node.stats is not None  # that is what reached means
            for key, counts in node.stats.counts.items():
                found.setdefault(key, {})[node.address] = counts
        topics: list[Row] = []
        for (topic, channel), by_nsqd in sorted(found.items()):  # a topic comes before its channels
            row = Row(topic, channel, _total(by_nsqd.values()), by_nsqd)
            (topics[-1].channels if channel else topics).append(row)
        return topics

    @property
    def topic_total(self) -> Counts:
        """Sum of all topics, without their channels."""
        return _total([_topic_counts({}), *(row.counts for row in self.topics)])

    @property
    def channel_total(self) -> Counts:
        """Sum of all channels."""
        counts = [row.counts for topic in self.topics for row in topic.channels]
        return _total([{**_channel_counts({}), "client_count": None if counts else 0}, *counts])

    def document(self) -> dict[str, Any]:  # Any: JSON
        """Make the JSON document of ``gnsq stats --json``, which the help of the command describes."""
        topics, channels = dict(self.topic_total), dict(self.channel_total)
        del topics["paused"], channels["paused"]
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


def _document(counts: Counts) -> dict[str, Any]:  # Any: JSON
    return {**counts, "paused": counts["paused"] > 0}


def _total(counts: Iterable[Counts]) -> Counts:
    """Add numbers. An unknown one is left out of a sum."""
    sums: dict[str, Any] = {}  # Any: as in Counts
    for each in counts:
        for key, number in each.items():
            before = sums.get(key)
            sums[key] = number if before is None else before if number is None else before + number
    return sums
