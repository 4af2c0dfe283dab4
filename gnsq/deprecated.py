"""Classes of gnsq before 1.0. They still work. A DeprecationWarning names what to use instead."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Self

from gnsq.consumer import Consumer
from gnsq.errors import NSQNoConnections
from gnsq.httpclient import arguments_of
from gnsq.lookupd import LookupdClient
from gnsq.message import Message
from gnsq.nsqd import NsqdHTTPClient, NsqdTCPClient
from gnsq.protocol import commands

__all__ = ["Lookupd", "Nsqd", "Reader"]


def _warn(what: str, instead: str) -> None:
    # stacklevel 3: the warning shows the line of the program that uses the deprecated name.
    warnings.warn(f"{what} is deprecated; use {instead}", DeprecationWarning, stacklevel=3)


class Reader(Consumer):
    """Deprecated: use Consumer.

    Args:
        max_concurrency: The option ``concurrency``, if that is not given; below 0: the number of CPUs; 0: its default.
        async: True makes messages async, if on_message has receivers at start(). Pass it as ``**{"async": True}``.
        args, options: Arguments of Consumer.

    ``message.requeue()`` without a delay uses the delay that Consumer computes. Before gnsq 1.0 the delay was 0.
    """

    def __init__(self, *args: Any, max_concurrency: int = 0, **options: Any) -> None:  # Any: arguments of Consumer
        _warn("gnsq.Reader", "gnsq.Consumer")
        if max_concurrency < 0:
            max_concurrency = os.cpu_count() or 1
        self.max_concurrency = max_concurrency
        self._is_async = bool(options.pop("async", False))
        setattr(self, "async", self._is_async)
        if max_concurrency:
            options.setdefault("concurrency", max_concurrency)
        super().__init__(*args, **options)

    def start(self, *args: Any, **options: Any) -> None:  # Any: arguments of Consumer
        """Start as Consumer does."""
        if self._is_async and self.on_message.receivers:
            # The order of the receivers does not matter: a message is finished only after all receivers have returned.
            self.on_message.connect(self._make_async, weak=False)
        super().start(*args, **options)

    def _make_async(self, consumer: Consumer, message: Message) -> None:
        message.enable_async()

    def publish(self, topic: str, message: bytes) -> bytes:
        """Deprecated: use Producer. Publish over one of this consumer's connections, and return nsqd's OK.

        Raises:
            ValueError, TypeError: If the topic or the message is not valid.
            NSQNoConnections: If no connection is open.
            NSQException: If nsqd refuses the message or does not respond, or the connection is closed.
        """
        _warn("Reader.publish", "gnsq.Producer")
        for connection in list(self._runtime.pool.connections.values()):
            if connection.is_open:
                return connection.call(commands.publish(topic, message))
        raise NSQNoConnections(f"consumer of {self.topic}/{self.channel} is connected to no nsqd")


def _publish_over(protocol: str, name: str) -> Callable[..., Any]:  # Any: type of the client's answer
    """Make a method of Nsqd that gives a DeprecationWarning and calls the method of the TCP or the HTTP client."""

    def publish(self: Nsqd, *args: Any, **options: Any) -> Any:  # Any: arguments of the client's method, and its answer
        _warn(f"Nsqd.{name}_{protocol}", f"Nsqd{protocol.upper()}Client.{name}")
        return getattr(getattr(self, f"_{protocol}"), name)(*args, **options)

    return publish


class Nsqd:
    """Deprecated: use NsqdTCPClient or NsqdHTTPClient. Has the attributes of both; NsqdTCPClient's go first.

    Args:
        address, tcp_port, http_port: Host and ports of nsqd.
        options: Options of NsqdTCPClient.
    """

    def __init__(
        self,
        address: str = "127.0.0.1",
        tcp_port: int = 4150,
        http_port: int = 4151,
        **options: Any,  # Any: arguments of NsqdTCPClient
    ) -> None:
        _warn("gnsq.Nsqd", "gnsq.NsqdTCPClient or gnsq.NsqdHTTPClient")
        self.address = address
        self.tcp_port = tcp_port
        self.http_port = http_port
        self._tcp = NsqdTCPClient(address, tcp_port, **options)
        self._http = NsqdHTTPClient(address, http_port)

    def __getattr__(self, name: str) -> Any:  # Any: type of the client's attribute
        # copy and pickle read attributes before __init__ has set _tcp. Without this check, self._tcp would recurse.
        if name in ("_tcp", "_http"):
            raise AttributeError(name)
        return getattr(self._tcp if hasattr(self._tcp, name) else self._http, name)

    def __str__(self) -> str:
        return str(self._tcp)

    def __repr__(self) -> str:
        return f"<Nsqd {self._tcp} {self.base_url}>"

    def __hash__(self) -> int:
        return hash(str(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nsqd) and str(self) == str(other)

    def __lt__(self, other: Nsqd) -> bool:
        return str(self) < str(other)

    @property
    def base_url(self) -> str:
        """``http://host:port/`` of the HTTP client."""
        return self._http.address

    @property
    def _connected(self) -> Any:  # Any: one of the two clients
        return self._tcp if self._tcp.is_connected else self._http

    def publish(self, topic: str, data: bytes, *args: Any, **options: Any) -> Any:  # Any: the client's types
        """Publish a message: over TCP if the TCP client is connected (the caller must read the response), else HTTP."""
        return self._connected.publish(topic, data, *args, **options)

    def multipublish(self, topic: str, messages: Iterable[bytes], *args: Any, **options: Any) -> Any:
        """Publish messages, as publish() does."""
        return self._connected.multipublish(topic, messages, *args, **options)

    publish_tcp = _publish_over("tcp", "publish")
    publish_http = _publish_over("http", "publish")
    multipublish_tcp = _publish_over("tcp", "multipublish")
    multipublish_http = _publish_over("http", "multipublish")


class Lookupd(LookupdClient):
    """Deprecated: use LookupdClient.

    Args:
        address: A URL or ``host[:port]``.
        options: Options of LookupdClient.
    """

    def __init__(self, address: str = "http://localhost:4161/", **options: Any) -> None:  # Any: options of any type
        _warn("gnsq.Lookupd", "gnsq.LookupdClient")
        super().__init__(**arguments_of(address, options))

    @classmethod
    def from_url(cls, url: str, **kwargs: Any) -> Self:  # Any: arguments of the constructor
        """Make a client from a URL or ``host[:port]``."""
        return cls(url, **kwargs)

    @property
    def base_url(self) -> str:
        """The URL of nsqlookupd, such as ``http://host:port/``."""
        return self.address

    def tombstone_topic_producer(self, topic: str, node: str) -> bytes:
        """Deprecated: use LookupdClient.tombstone_topic."""
        _warn("Lookupd.tombstone_topic_producer", "LookupdClient.tombstone_topic")
        return self.tombstone_topic(topic, node)
