"""The numbers of topics and channels at one time, summed over all nsqds, with rates.

The numbers are dicts with the keys of ``gnsq stats --json``. One that can't be known is None. Only "paused" is another
one: the number of nsqds on which the topic or channel is paused. Pure: sends nothing, reads no clock.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq.census import Client, Counts, Node, NodeStats, Poll, channel_counts, topic_counts

__all__ = ["Row", "Snapshot", "set_rates"]

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
class Snapshot(Poll):
    """The numbers of all nsqds at one time.

    Attributes:
        time: Seconds of Unix time.
        seconds: Time since the poll before, from which the rates come; None for the first poll.
    """

    time: float
    seconds: float | None

    @property
    def failures(self) -> list[str]:
        """Say of each server that has not answered why, and if none is known."""
        is_empty = not self.nodes and not all(self.lookupds.values())
        return [*super().failures, *(["no nsqd is registered with nsqlookupd"] if is_empty else [])]

    @functools.cached_property
    def topics(self) -> list[Row]:
        """The topics with their channels, by name."""
        found: dict[tuple[str, str], dict[str, Counts]] = {}
        for node in self.reached:
            for key, counts in node.counts.items():
                found.setdefault(key, {})[node.address] = counts
        topics: list[Row] = []
        for (topic, channel), by_nsqd in sorted(found.items()):  # a topic comes before its channels
            row = Row(topic, channel, _total(by_nsqd.values()), by_nsqd)
            (topics[-1].channels if channel else topics).append(row)
        return topics

    @property
    def clients(self) -> list[tuple[str, Client]]:
        """The consumers of a channel, with the addresses of their nsqds."""
        return [(node.address, client) for node in self.reached if node.stats for client in node.stats.clients]

    @property
    def topic_total(self) -> Counts:
        """Sum of all topics, without their channels."""
        return _total([topic_counts({}), *(row.counts for row in self.topics)])

    @property
    def channel_total(self) -> Counts:
        """Sum of all channels."""
        counts = [row.counts for topic in self.topics for row in topic.channels]
        return _total([{**channel_counts({}), "client_count": None if counts else 0}, *counts])

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
            "clients": [{"http_address": address, **dataclasses.asdict(each)} for address, each in self.clients],
            "nsqds": [_node_document(node) for node in self.nodes],
            "lookupds": [{"http_address": address, "error": error or None} for address, error in self.lookupds.items()],
        }


def _node_document(node: Node) -> dict[str, Any]:  # Any: JSON
    stats = node.stats
    return {
        "http_address": node.address,
        "version": stats.version if stats else None,
        "health": stats.health if stats else None,
        "start_time": stats.start_time if stats else None,
        "error": node.error or None,
        "same_as": node.same_as or None,
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
