"""nsqlookupd's HTTP API: one method for each endpoint but /debug/pprof. A method checks its names before
it sends a request.

Sources: nsqlookupd http.go of 1.3.0, and of 0.2.16 for old servers.
"""

from __future__ import annotations

from typing import Any

from gnsq.errors import NSQHttpError
from gnsq.http.responses import is_unknown_path, shown
from gnsq.httpclient import HTTPClient
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name
from gnsq.texts import shown_argument

__all__ = ["LookupdClient", "is_unknown_topic"]

Answer = dict[str, Any]

# nsqlookupd's error texts for an unknown topic. The second one is of servers before 0.2.29.
_UNKNOWN_TOPIC = {"TOPIC_NOT_FOUND", "INVALID_ARG_TOPIC"}


class LookupdClient(HTTPClient):
    """Client of nsqlookupd over HTTP.

    All methods raise NSQHttpError as HTTPClient.request() does, and ValueError for invalid names. If a server does not
    know the path of a POST, the POST is sent to the path that servers before 1.0 have. The envelope of an old server's
    answer is removed.

    Args:
        host, port: HTTP address of nsqlookupd; default: ``localhost``, 4161.
        args, kwargs: Arguments of HTTPClient.
    """

    default_port = 4161

    def lookup(self, topic: str) -> Answer:
        """Ask for a topic's channels and nsqds: ``{"channels": [...], "producers": [...]}``.

        Raises:
            NSQHttpError: With status 404 if the topic is not registered (then is_unknown_topic() returns True).
        """
        try:
            return self._get("lookup", topic=topic)
        except NSQHttpError as error:
            # An old server calls an unknown topic invalid. But the name is valid: it was checked before the request.
            if error.status != 404 and is_unknown_topic(error):
                error.status, error.hint = 404, "no nsqd has that topic"
            raise

    def topics(self) -> Answer:
        """List all topics: ``{"topics": [...]}``."""
        return self._get("topics")

    def channels(self, topic: str) -> Answer:
        """List a topic's channels: ``{"channels": [...]}``; the list is empty for an unknown topic."""
        return self._get("channels", topic=topic)

    def nodes(self) -> Answer:
        """List all nsqds with their topics: ``{"producers": [...]}``."""
        return self._get("nodes")

    def create_topic(self, topic: str) -> bytes:
        """Add a topic to the registry."""
        return self._post("topic/create", "create_topic", topic=topic)

    def delete_topic(self, topic: str) -> bytes:
        """Remove a topic from the registry. nsqds keep the topic, and register it when they connect again."""
        return self._post("topic/delete", "delete_topic", topic=topic)

    def create_channel(self, topic: str, channel: str) -> bytes:
        """Add a channel and its topic to the registry."""
        return self._post("channel/create", "create_channel", topic=topic, channel=channel)

    def delete_channel(self, topic: str, channel: str) -> bytes:
        """Remove a channel from the registry.

        Raises:
            NSQHttpError: With status 404 if the channel is unknown.
        """
        return self._post("channel/delete", "delete_channel", topic=topic, channel=channel)

    def tombstone_topic(self, topic: str, node: str) -> bytes:
        """Let lookups of a topic leave out one nsqd, for the time of nsqlookupd's option --tombstone-lifetime.

        Args:
            node: ``broadcast_address:http_port``, as in nodes(). An unknown node is ignored.

        Raises:
            TypeError, ValueError: If the node is not a str, or not host:port.
        """
        _check_node(node)
        return self._post("topic/tombstone", "tombstone_topic_producer", topic=topic, node=node)

    def ping(self) -> bytes:
        """Check that nsqlookupd answers. Return b"OK"."""
        answer: bytes = self.request("GET", "ping")
        return answer

    def info(self) -> Answer:
        """Ask for nsqlookupd's version."""
        return self._get("info")

    def debug(self) -> Answer:
        """Ask for all registrations. The keys are ``topic:T:`` (T is a topic), ``channel:T:C`` and ``client::``."""
        return self._get("debug")

    def _get(self, path: str, **params: str) -> Answer:
        _check_names(params)
        try:
            answer = self.request("GET", path, params)
        except NSQHttpError as error:
            if is_unknown_path(error):
                error.hint = (
                    "nsqlookupd knows this path; is it nsqd's HTTP port (4151) in place of nsqlookupd's (4161)?"
                )
            raise
        if not isinstance(answer, dict):
            text, request = f"answer is not nsqlookupd's: {shown(answer)}", f"GET {self.address}{path}"
            raise NSQHttpError(text, 200, address=self.address, request=request)
        return answer

    def _post(self, path: str, old_path: str, **params: str) -> bytes:
        _check_names(params)
        answer: bytes = self.request("POST", path, params, old_path=old_path)
        return answer


def _check_names(params: dict[str, str]) -> None:
    if "topic" in params:
        assert_valid_topic_name(params["topic"])
    if "channel" in params:
        assert_valid_channel_name(params["channel"])


def is_unknown_topic(error: NSQHttpError) -> bool:
    """Return True if lookup() failed because nsqlookupd does not know the topic.

    Another server, which does not know the path, also responds with 404, but with another text."""
    return error.status is not None and error.code in _UNKNOWN_TOPIC


def _check_node(node: object) -> None:
    """Refuse a node that is not host:port. An IPv6 host needs no brackets: nsqlookupd writes none."""
    if not isinstance(node, str):
        raise TypeError(f"node must be a str, 'host:port', not {shown_argument(node)}")
    host, _, port = node.rpartition(":")
    if not host or not node.isprintable() or " " in node or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"node {node!r} must be host:port: an nsqd's broadcast address and HTTP port")


def __getattr__(name: str) -> Any:  # Any: type checkers learn of no class, since to import it would be a circle
    """Load the deprecated Lookupd of gnsq 1.0. Source: PEP 562."""
    if name == "Lookupd":
        import gnsq

        return gnsq.Lookupd
    raise AttributeError(f"module 'gnsq.lookupd' has no attribute {name!r}")
