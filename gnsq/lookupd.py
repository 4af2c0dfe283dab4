"""LookupdClient: nsqlookupd's HTTP API, one method for each endpoint. No policy."""

from __future__ import annotations

from typing import Any

from gnsq.httpclient import HTTPClient
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name

__all__ = ["LookupdClient"]

Answer = dict[str, Any]


class LookupdClient(HTTPClient):
    """nsqlookupd over HTTP. All methods raise NSQHttpError as HTTPClient.request() does, and ValueError for bad names.

    Args:
        host, port: Where nsqlookupd's HTTP listens.
        kwargs: Of HTTPClient.
    """

    def __init__(self, host: str = "localhost", port: int = 4161, **kwargs: Any) -> None:  # Any: HTTPClient's
        super().__init__(host, port, **kwargs)

    def lookup(self, topic: str) -> Answer:
        """Ask which nsqds have a topic: ``{"channels": [...], "producers": [...]}``.

        Raises:
            NSQHttpError: With status 404 if no nsqd has it.
        """
        assert_valid_topic_name(topic)
        return self._ask("GET", "lookup", topic=topic)

    def topics(self) -> Answer:
        """List all topics."""
        return self._ask("GET", "topics")

    def channels(self, topic: str) -> Answer:
        """List a topic's channels."""
        assert_valid_topic_name(topic)
        return self._ask("GET", "channels", topic=topic)

    def nodes(self) -> Answer:
        """List all nsqds with their topics."""
        return self._ask("GET", "nodes")

    def create_topic(self, topic: str) -> bytes:
        """Add a topic to the registry."""
        assert_valid_topic_name(topic)
        return self._tell("topic/create", topic=topic)

    def delete_topic(self, topic: str) -> bytes:
        """Forget a topic."""
        assert_valid_topic_name(topic)
        return self._tell("topic/delete", topic=topic)

    def create_channel(self, topic: str, channel: str) -> bytes:
        """Add a channel, and its topic, to the registry."""
        assert_valid_topic_name(topic)
        assert_valid_channel_name(channel)
        return self._tell("channel/create", topic=topic, channel=channel)

    def delete_channel(self, topic: str, channel: str) -> bytes:
        """Forget a channel."""
        assert_valid_topic_name(topic)
        assert_valid_channel_name(channel)
        return self._tell("channel/delete", topic=topic, channel=channel)

    def tombstone_topic(self, topic: str, node: str) -> bytes:
        """Hide one nsqd (``broadcast_address:http_port``) from a topic's lookups for a while."""
        assert_valid_topic_name(topic)
        return self._tell("topic/tombstone", topic=topic, node=node)

    def ping(self) -> bytes:
        """Ask whether nsqlookupd answers. Returns b"OK"."""
        answer: bytes = self.request("GET", "ping")
        return answer

    def info(self) -> Answer:
        """Ask for the version."""
        return self._ask("GET", "info")

    def _ask(self, method: str, path: str, **params: str) -> Answer:
        answer: Answer = self.request(method, path, params)
        return answer

    def _tell(self, path: str, **params: str) -> bytes:
        answer: bytes = self.request("POST", path, params)
        return answer
