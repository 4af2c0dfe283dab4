"""nsqd's HTTP API: methods for all endpoints except /debug. A method checks its arguments before it sends a request.

Source: nsqd http.go.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, overload

from gnsq.errors import NSQException, NSQHttpError
from gnsq.http.responses import is_unknown_path
from gnsq.httpclient import HTTPClient
from gnsq.options import Milliseconds, Seconds
from gnsq.protocol.commands import check_messages, checked_milliseconds, multipublish_body
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name
from gnsq.stats import NsqdStats

__all__ = ["NsqdHTTPClient", "NewlineInMessage"]

_OPTION_NAME = re.compile(r"[a-z0-9_]+")


class NewlineInMessage(NSQException, ValueError):
    """A message contains a newline, which would split the message in two. Nothing was sent.

    What to do: call multipublish() with ``binary=True``.
    """

    at_fault = "message"


class NsqdHTTPClient(HTTPClient):
    """Client of nsqd's HTTP API.

    All methods that send a request raise NSQHttpError as request() does, and ValueError for invalid names. If nsqd does
    not know an endpoint's path, and versions before 1.0 had another one, that one is tried (not with defer or binary).

    Args:
        host, port: Address of nsqd's HTTP port; default: ``localhost``, 4151.
        args, kwargs: Arguments of HTTPClient.
    """

    default_port = 4151

    # --- publishing

    def publish(
        self, topic: str, data: bytes | str, defer: Milliseconds | None = None, *, timeout: Seconds | None = None
    ) -> bytes:
        """Publish a message. Return b"OK".

        Args:
            data: A str is sent as UTF-8.
            defer: Milliseconds until nsqd delivers the message, at most nsqd's --max-req-timeout. Servers before 0.3.6
                ignore the delay. If a server is so old that it does not know /pub, NSQHttpError is raised.
            timeout: Seconds for this call, instead of the client's timeout.

        Raises:
            ValueError: If the message is empty, defer is negative, or the topic is not valid.
            TypeError: If the message is neither bytes (or bytearray, memoryview) nor str, or defer is not an int.
        """
        assert_valid_topic_name(topic)
        body = _body("data", data)
        if defer is not None:
            defer = checked_milliseconds("defer", defer)
        if not defer:
            return self._publish("pub", "put", {"topic": topic}, body, timeout)
        with _too_old("defer"):
            return self._publish("pub", None, {"topic": topic, "defer": defer}, body, timeout)

    def multipublish(
        self, topic: str, messages: Iterable[bytes | str], binary: bool = False, *, timeout: Seconds | None = None
    ) -> bytes:
        """Publish messages: nsqd stores all of them or none. Return b"OK".

        Args:
            messages: Bodies as bytes, or as str to be sent as UTF-8. They must not contain newlines, unless binary.
            binary: Send messages with their sizes, so that they may contain newlines. Servers before 0.2.22 refuse
                such a request, and server 0.2.22 splits the messages at newlines even with binary.
            timeout: Seconds for this call, instead of the client's timeout.

        Raises:
            NewlineInMessage: If a message has a newline and binary is False. It is a ValueError and an NSQException.
            ValueError: If there are no messages, one message is empty, or the topic is not valid.
            TypeError: If messages is not an iterable or is a single message, or one message is neither bytes nor str.
        """
        assert_valid_topic_name(topic)
        check_messages(messages)
        bodies = [_body(f"message {index}", message) for index, message in enumerate(messages)]
        if not bodies:
            raise ValueError("multipublish of 0 messages; nsqd wants at least 1")
        if binary:
            with _too_old("binary"):
                params = {"topic": topic, "binary": "true"}
                return self._publish("mpub", None, params, multipublish_body(bodies), timeout)
        for index, body in enumerate(bodies):
            if b"\n" in body:
                raise NewlineInMessage(f"message {index} contains a newline, which separates messages; use binary=True")
        return self._publish("mpub", "mput", {"topic": topic}, b"\n".join(bodies), timeout)

    def _publish(
        self, path: str, old_path: str | None, params: Mapping[str, object], body: bytes, timeout: Seconds | None
    ) -> bytes:
        response: bytes = self.request("POST", path, params, body, old_path=old_path, timeout=timeout)
        return response

    # --- topics and channels

    def create_topic(self, topic: str) -> bytes:
        """Create a topic. An existing topic stays unchanged."""
        return self._topic("create", topic)

    def delete_topic(self, topic: str) -> bytes:
        """Delete a topic with its channels and messages, and disconnect its consumers."""
        return self._topic("delete", topic)

    def empty_topic(self, topic: str) -> bytes:
        """Delete the messages that are queued in a topic. Its channels keep their messages."""
        return self._topic("empty", topic)

    def pause_topic(self, topic: str) -> bytes:
        """Stop moving messages from a topic to its channels."""
        return self._topic("pause", topic)

    def unpause_topic(self, topic: str) -> bytes:
        """Move messages to the topic's channels again after pause_topic()."""
        return self._topic("unpause", topic)

    def create_channel(self, topic: str, channel: str) -> bytes:
        """Create a channel. An existing channel stays unchanged. The topic must exist."""
        return self._channel("create", topic, channel)

    def delete_channel(self, topic: str, channel: str) -> bytes:
        """Delete a channel with its messages, and disconnect its consumers."""
        return self._channel("delete", topic, channel)

    def empty_channel(self, topic: str, channel: str) -> bytes:
        """Delete all messages of a channel, including those in flight."""
        return self._channel("empty", topic, channel)

    def pause_channel(self, topic: str, channel: str) -> bytes:
        """Stop deliveries on a channel."""
        return self._channel("pause", topic, channel)

    def unpause_channel(self, topic: str, channel: str) -> bytes:
        """Deliver messages again after pause_channel()."""
        return self._channel("unpause", topic, channel)

    def _topic(self, verb: str, topic: str) -> bytes:
        assert_valid_topic_name(topic)
        response: bytes = self.request("POST", f"topic/{verb}", {"topic": topic}, old_path=f"{verb}_topic")
        return response

    def _channel(self, verb: str, topic: str, channel: str) -> bytes:
        assert_valid_topic_name(topic)
        assert_valid_channel_name(channel)
        params = {"topic": topic, "channel": channel}
        response: bytes = self.request("POST", f"channel/{verb}", params, old_path=f"{verb}_channel")
        return response

    # --- information and settings

    @overload
    def stats(
        self,
        topic: str | None = None,
        channel: str | None = None,
        text: Literal[False] = False,
        *,
        include_clients: bool | None = None,
        include_mem: bool | None = None,
    ) -> NsqdStats: ...

    @overload
    def stats(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        text: Literal[True],
        include_clients: bool | None = None,
        include_mem: bool | None = None,
    ) -> bytes: ...

    def stats(
        self,
        topic: str | None = None,
        channel: str | None = None,
        text: bool = False,
        *,
        include_clients: bool | None = None,
        include_mem: bool | None = None,
    ) -> NsqdStats | bytes:
        """Return statistics: a dict, or with text=True nsqd's text as bytes.

        Args:
            topic, channel: Return only this topic or channel. nsqd omits a topic that does not have the channel.
            include_clients: False omits the lists of clients. By default nsqd includes them.
            include_mem: False omits the statistics of nsqd's memory. To collect them, nsqd pauses briefly.
        """
        if topic:
            assert_valid_topic_name(topic)
        if channel:
            assert_valid_channel_name(channel)
        params = {
            "format": "text" if text else "json",
            "topic": topic or None,
            "channel": channel or None,
            "include_clients": _flag(include_clients),
            "include_mem": _flag(include_mem),
        }
        response: NsqdStats | bytes = self.request("GET", "stats", params)
        return response

    def config(self, option: str) -> Any:
        """Return the value of one of nsqd's options. The option's name is nsqd's flag with ``_`` for ``-``.

        Returns:
            A text as bytes; a number or list as a Python object; a duration in nanoseconds.
        """
        return self.request("GET", f"config/{_option(option)}")

    def set_config(self, option: str, value: Any) -> Any:  # Any: all types of JSON
        """Change one of nsqd's options. nsqd allows it for log_level (the name of a level) and nsqlookupd_tcp_addresses
        (a list of ``host:port``).

        Args:
            value: Bytes and str are sent unchanged, other values as JSON.

        Returns:
            The new value, in the form that config() returns.

        Raises:
            ValueError, TypeError: If the value is empty or JSON can't hold it, or the option's name is not valid.
        """
        name = _option(option)
        body = _body("value", value if isinstance(value, (bytes, bytearray, memoryview, str)) else json.dumps(value))
        return self.request("PUT", f"config/{name}", None, body)

    def ping(self) -> bytes:
        """Check that nsqd is healthy. Return b"OK".

        Raises:
            NSQHttpError: If nsqd is not healthy, for example after a failed write: status 500, and the reason.
        """
        response: bytes = self.request("GET", "ping")
        return response

    def info(self) -> dict[str, Any]:
        """Return what nsqd says about itself: its version, host names, ports and some limits."""
        response: dict[str, Any] = self.request("GET", "info")
        return response


def _body(subject: str, data: object) -> bytes:
    if isinstance(data, str):
        data = data.encode()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"{subject} must be bytes or str, not {type(data).__name__}")
    if not len(data):
        raise ValueError(f"{subject} is empty; nsqd wants at least 1 byte")
    return bytes(data)


@contextlib.contextmanager
def _too_old(what: str) -> Iterator[None]:
    """If nsqd does not know the path, say in the error that nsqd may be too old. The older path ignores ``what``."""
    try:
        yield
    except NSQHttpError as error:
        if is_unknown_path(error):
            error.hint = f"too old for {what}?"
        raise


def _flag(value: bool | None) -> str | None:
    return None if value is None else "true" if value else "false"


def _option(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name of an option must be a str, not {name!r}")
    if not _OPTION_NAME.fullmatch(name):
        raise ValueError(f"name of an option, {name!r}, is not valid: a flag of nsqd with _ for -, such as log_level")
    return name
