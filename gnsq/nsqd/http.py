"""NsqdHTTPClient: nsqd's HTTP API, one method for each endpoint. No policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gnsq.httpclient import HTTPClient
from gnsq.protocol.commands import multipublish_body
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name

__all__ = ["NsqdHTTPClient"]


class NsqdHTTPClient(HTTPClient):
    """nsqd over HTTP. All methods raise NSQHttpError as HTTPClient.request() does, and ValueError for bad names.

    Args:
        host, port: Where nsqd's HTTP listens.
        kwargs: Of HTTPClient.
    """

    def __init__(self, host: str = "localhost", port: int = 4151, **kwargs: Any) -> None:  # Any: HTTPClient's
        super().__init__(host, port, **kwargs)

    def publish(self, topic: str, data: bytes | str, defer: int | None = None) -> bytes:
        """Publish a message; deferred by so many milliseconds if asked to. Returns b"OK"."""
        assert_valid_topic_name(topic)
        body = data.encode() if isinstance(data, str) else data
        answer: bytes = self.request("POST", "pub", {"topic": topic, "defer": defer}, body)
        return answer

    def multipublish(self, topic: str, messages: Iterable[bytes | str], binary: bool = False) -> bytes:
        """Publish messages, all or none; by lines unless binary. Returns b"OK".

        Raises:
            ValueError: If a message holds a newline and binary is off; nothing was sent.
        """
        assert_valid_topic_name(topic)
        bodies = [message.encode() if isinstance(message, str) else message for message in messages]
        for index, body in enumerate(bodies):
            if b"\n" in body and not binary:
                raise ValueError(f"message {index} holds a newline, which separates messages; use binary=True")
        body = multipublish_body(bodies) if binary else b"\n".join(bodies)
        answer: bytes = self.request("POST", "mpub", {"topic": topic, "binary": "true" if binary else None}, body)
        return answer

    def create_topic(self, topic: str) -> bytes:
        """Create a topic; no-op if it exists."""
        return self._topic("create", topic)

    def delete_topic(self, topic: str) -> bytes:
        """Delete a topic with its channels and messages."""
        return self._topic("delete", topic)

    def empty_topic(self, topic: str) -> bytes:
        """Drop what is queued in a topic, not in its channels."""
        return self._topic("empty", topic)

    def pause_topic(self, topic: str) -> bytes:
        """Keep messages from moving on to the channels."""
        return self._topic("pause", topic)

    def unpause_topic(self, topic: str) -> bytes:
        """Undo pause_topic()."""
        return self._topic("unpause", topic)

    def create_channel(self, topic: str, channel: str) -> bytes:
        """Create a channel; no-op if it exists. nsqd wants the topic to exist."""
        return self._channel("create", topic, channel)

    def delete_channel(self, topic: str, channel: str) -> bytes:
        """Delete a channel with its messages; its consumers are disconnected."""
        return self._channel("delete", topic, channel)

    def empty_channel(self, topic: str, channel: str) -> bytes:
        """Drop all messages of a channel, those in flight too."""
        return self._channel("empty", topic, channel)

    def pause_channel(self, topic: str, channel: str) -> bytes:
        """Stop deliveries on a channel."""
        return self._channel("pause", topic, channel)

    def unpause_channel(self, topic: str, channel: str) -> bytes:
        """Undo pause_channel()."""
        return self._channel("unpause", topic, channel)

    def stats(self, topic: str | None = None, channel: str | None = None, text: bool = False) -> Any:
        """Ask for statistics, as a dict or as text (bytes)."""
        params = {"topic": topic, "channel": channel, "format": "text" if text else "json"}
        return self.request("GET", "stats", params)

    def ping(self) -> bytes:
        """Ask whether nsqd is healthy. Returns b"OK"."""
        answer: bytes = self.request("GET", "ping")
        return answer

    def info(self) -> dict[str, Any]:
        """Ask for version, ports and limits."""
        answer: dict[str, Any] = self.request("GET", "info")
        return answer

    def _topic(self, verb: str, topic: str) -> bytes:
        assert_valid_topic_name(topic)
        answer: bytes = self.request("POST", f"topic/{verb}", {"topic": topic})
        return answer

    def _channel(self, verb: str, topic: str, channel: str) -> bytes:
        assert_valid_topic_name(topic)
        assert_valid_channel_name(channel)
        answer: bytes = self.request("POST", f"channel/{verb}", {"topic": topic, "channel": channel})
        return answer
