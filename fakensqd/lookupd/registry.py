"""Topics and channels with their producers, as nsqlookupd knows them.

Pure: takes ``now`` (seconds of a monotonic clock). Source: nsqlookupd registration_db.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from gnsq.protocol.names import is_ephemeral

__all__ = ["Key", "Peer", "Producer", "Registry"]

_ANY = "*"
# What Go's UnixNano() returns for the zero time, which is too early for nanoseconds in 64 bits.
_NEVER = -6795364578871345152


class Key(NamedTuple):
    """Key of a registration: a client, a topic, or a channel of a topic."""

    category: str
    topic: str = ""
    channel: str = ""

    def matches(self, pattern: Key) -> bool:
        """Return True if this key matches a pattern, in which topic and channel may be ``*``."""
        return (
            self.category == pattern.category
            and pattern.topic in (_ANY, self.topic)
            and pattern.channel in (_ANY, self.channel)
        )


@dataclass(slots=True, eq=False)
class Peer:
    """A connected nsqd. The id is the remote address of its connection."""

    id: str
    broadcast_address: str
    hostname: str
    tcp_port: int
    http_port: int
    version: str
    last_update: float


@dataclass(slots=True, eq=False)
class Producer:
    """A peer that is registered under one key, such as a topic."""

    peer: Peer
    tombstoned_at: float | None = None

    def tombstoned(self, now: float, lifetime: float) -> bool:
        """Return True if a tombstone hides this producer now."""
        return self.tombstoned_at is not None and now - self.tombstoned_at < lifetime


@dataclass(slots=True)
class Registry:
    """All registrations. A name without producers stays; an ephemeral name goes when its last producer unregisters."""

    producers_by_key: dict[Key, dict[str, Producer]] = field(default_factory=dict)

    # --- nsqds --------------------------------------------------------------------------------------------------------

    def connect(self, peer: Peer) -> None:
        """Add an nsqd after its IDENTIFY."""
        self._add(Key("client"), peer)

    def register(self, peer: Peer, topic: str, channel: str) -> None:
        """Register a peer as producer of a topic and, if ``channel`` is not empty, of this channel."""
        if channel:
            self._add(Key("channel", topic, channel), peer)
        self._add(Key("topic", topic), peer)

    def unregister(self, peer: Peer, topic: str, channel: str) -> None:
        """Unregister a peer from a channel; if ``channel`` is empty, from the topic and all its channels."""
        if channel:
            self._remove(Key("channel", topic, channel), peer, forget=is_ephemeral(channel))
            return
        for key in self.find(Key("channel", topic, _ANY)):
            self._remove(key, peer, forget=False)
        self._remove(Key("topic", topic), peer, forget=is_ephemeral(topic))

    def disconnect(self, peer: Peer) -> None:
        """Remove a peer from the clients, and from all topics and channels. Even ephemeral names stay."""
        for producers in self.producers_by_key.values():
            producers.pop(peer.id, None)

    def _add(self, key: Key, peer: Peer) -> None:
        # A producer that is already registered keeps its tombstone.
        self.producers_by_key.setdefault(key, {}).setdefault(peer.id, Producer(peer))

    def _remove(self, key: Key, peer: Peer, *, forget: bool) -> None:
        producers = self.producers_by_key.get(key)
        if producers is None:
            return
        producers.pop(peer.id, None)
        if forget and not producers:
            del self.producers_by_key[key]

    # --- names --------------------------------------------------------------------------------------------------------

    def create(self, topic: str, channel: str = "") -> None:
        """Register names without a producer."""
        if channel:
            self.producers_by_key.setdefault(Key("channel", topic, channel), {})
        self.producers_by_key.setdefault(Key("topic", topic), {})

    def forget(self, pattern: Key) -> bool:
        """Delete matching keys with their producers. Return True if any key matched."""
        keys = self.find(pattern)
        for key in keys:
            del self.producers_by_key[key]
        return bool(keys)

    def find(self, pattern: Key) -> list[Key]:
        """List the registered keys that match."""
        if _ANY not in (pattern.topic, pattern.channel):
            return [pattern] if pattern in self.producers_by_key else []
        return [key for key in self.producers_by_key if key.matches(pattern)]

    # --- producers ----------------------------------------------------------------------------------------------------

    def producers(self, pattern: Key) -> list[Producer]:
        """List the producers of matching keys, each peer once."""
        found: dict[str, Producer] = {}
        for key in self.find(pattern):
            for peer_id, producer in self.producers_by_key[key].items():
                found.setdefault(peer_id, producer)
        return list(found.values())

    def topics_of(self, peer: Peer) -> Iterator[tuple[str, Producer]]:
        """List the topics of a peer, each with the Producer that stands for this peer."""
        for key, producers in self.producers_by_key.items():
            if key.category == "topic" and peer.id in producers:
                yield key.topic, producers[peer.id]

    def tombstone(self, topic: str, node: str, now: float) -> None:
        """Put a tombstone on those producers of a topic that have ``node`` as ``broadcast_address:http_port``."""
        for producer in self.producers(Key("topic", topic)):
            if f"{producer.peer.broadcast_address}:{producer.peer.http_port}" == node:
                producer.tombstoned_at = now

    def debug(self, wall_ns: Callable[[float], int]) -> dict[str, list[dict[str, object]]]:
        """List all keys that have producers, as GET /debug does."""
        return {
            f"{key.category}:{key.topic}:{key.channel}": [
                {
                    "broadcast_address": producer.peer.broadcast_address,
                    "hostname": producer.peer.hostname,
                    "http_port": producer.peer.http_port,
                    "id": producer.peer.id,
                    "last_update": wall_ns(producer.peer.last_update),
                    "tcp_port": producer.peer.tcp_port,
                    "tombstoned": producer.tombstoned_at is not None,
                    "tombstoned_at": _NEVER if producer.tombstoned_at is None else wall_ns(producer.tombstoned_at),
                    "version": producer.peer.version,
                }
                for producer in producers.values()
            ]
            for key, producers in sorted(self.producers_by_key.items(), key=itemgetter(0))
            if producers
        }
