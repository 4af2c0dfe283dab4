"""nsqlookupd's HTTP API over a Registry.

Pure: knows no socket and no clock. Source: nsqlookupd http.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fakensqd.lookupd.registry import Key, Peer, Producer, Registry
from fakensqd.options import LookupdOptions
from fakensqd.router import (
    HttpError,
    Request,
    Route,
    Router,
    make_router,
    topic_and_channel_names,
)
from gnsq.protocol.names import valid_topic_name

__all__ = ["lookupd_application"]


def lookupd_application(
    registry: Registry,
    options: LookupdOptions,
    now: Callable[[], float],
    wall_ns: Callable[[float], int],
    on_error: Callable[[BaseException], None],
) -> Router:
    """Make the application.

    Args:
        now: Returns the monotonic time, seconds.
        wall_ns: Converts a monotonic time to the wall clock's time, in nanoseconds since 1970.
        on_error: Called with an exception that is a bug of the emulator.
    """
    api = _Api(registry, options, now)
    get = {
        "/info": lambda request: {"version": options.release},
        "/lookup": api.lookup,
        "/topics": lambda request: {"topics": [key.topic for key in registry.find(Key("topic", "*"))]},
        "/channels": lambda request: {"channels": api.channel_names(request.required("topic"))},
        "/nodes": api.nodes,
        "/debug": lambda request: registry.debug(wall_ns),
    }
    post = {
        "/topic/create": api.create_topic,
        "/topic/delete": api.delete_topic,
        "/topic/tombstone": api.tombstone_topic,
        "/channel/create": api.create_channel,
        "/channel/delete": api.delete_channel,
    }
    routes: dict[str, Mapping[str, Route]] = {"/ping": {"GET": Route(lambda request: "OK", plain=True)}}
    routes |= {path: {"GET": Route(handler)} for path, handler in get.items()}
    routes |= {path: {"POST": Route(handler)} for path, handler in post.items()}
    return make_router(routes, on_error, options)


class _Api:
    def __init__(self, registry: Registry, options: LookupdOptions, now: Callable[[], float]) -> None:
        self._registry = registry
        self._options = options
        self._now = now

    def lookup(self, request: Request) -> object:
        topic = request.required("topic")
        if not self._registry.find(Key("topic", topic)):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        now, lifetime = self._now(), self._options.tombstone_lifetime
        return {
            "channels": self.channel_names(topic),
            "producers": [
                _node(producer.peer)
                for producer in self._registry.producers(Key("topic", topic))
                if self._is_active(producer) and not producer.tombstoned(now, lifetime)
            ],
        }

    def nodes(self, request: Request) -> object:
        """List all active nodes, even nodes with a tombstone."""
        now, lifetime = self._now(), self._options.tombstone_lifetime
        nodes = []
        for producer in self._registry.producers(Key("client")):
            if self._is_active(producer):
                topics = dict(self._registry.topics_of(producer.peer))
                tombstones = [of_topic.tombstoned(now, lifetime) for of_topic in topics.values()]
                nodes.append(_node(producer.peer) | {"tombstones": tombstones, "topics": list(topics)})
        return {"producers": nodes}

    def create_topic(self, request: Request) -> None:
        topic = request.required("topic")
        if not valid_topic_name(topic):
            raise HttpError(400, "INVALID_ARG_TOPIC")
        self._registry.create(topic)

    def delete_topic(self, request: Request) -> None:
        """Delete the registrations of a topic and its channels. The nsqds keep them."""
        topic = request.required("topic")
        self._registry.forget(Key("channel", topic, "*"))
        self._registry.forget(Key("topic", topic))

    def tombstone_topic(self, request: Request) -> None:
        topic, node = request.required("topic"), request.required("node")
        self._registry.tombstone(topic, node, self._now())

    def create_channel(self, request: Request) -> None:
        """Register a channel, and its topic, without a producer."""
        self._registry.create(*topic_and_channel_names(request))

    def delete_channel(self, request: Request) -> None:
        if not self._registry.forget(Key("channel", *topic_and_channel_names(request))):
            raise HttpError(404, "CHANNEL_NOT_FOUND")

    def channel_names(self, topic: str) -> list[str]:
        return [key.channel for key in self._registry.find(Key("channel", topic, "*"))]

    def _is_active(self, producer: Producer) -> bool:
        return self._now() - producer.peer.last_update <= self._options.inactive_producer_timeout


def _node(peer: Peer) -> dict[str, object]:
    return {
        "remote_address": peer.id,
        "hostname": peer.hostname,
        "broadcast_address": peer.broadcast_address,
        "tcp_port": peer.tcp_port,
        "http_port": peer.http_port,
        "version": peer.version,
    }
