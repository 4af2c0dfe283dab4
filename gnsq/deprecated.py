"""The names of gnsq before 1.0: they work, and a DeprecationWarning says what to use. Nothing else needs them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any, Self
from urllib.parse import urlsplit

from gnsq.consumer import Consumer
from gnsq.errors import NSQNoConnections
from gnsq.lookupd import LookupdClient
from gnsq.message import Message
from gnsq.nsqd import NsqdHTTPClient, NsqdTCPClient
from gnsq.protocol import commands

__all__ = ["Lookupd", "Nsqd", "Reader"]


def _warn(what: str, instead: str) -> None:
    # At the line that calls what calls this.
    warnings.warn(f"{what} is deprecated; use {instead}", DeprecationWarning, stacklevel=3)


class Reader(Consumer):
    """Deprecated: use Consumer.

    Args:
        max_concurrency: Handlers at once, Consumer's ``concurrency``; below 0: one for each CPU; 0: its default.
        async: Whether every message is asynchronous, for the handler to answer when it likes. A keyword of Python
            now, so it is given as ``**{"async": True}``.
        args, options: Consumer's.

    ``message.requeue()`` without a delay takes that of the consumer, as with Consumer; ``message.requeue(0)`` is the
    way of before.
    """

    def __init__(self, *args: Any, max_concurrency: int = 0, **options: Any) -> None:  # Any: Consumer's
        _warn("gnsq.Reader", "gnsq.Consumer")
        if max_concurrency < 0:
            max_concurrency = os.cpu_count() or 1
        self.max_concurrency = max_concurrency
        self._is_async = bool(options.pop("async", False))
        setattr(self, "async", self._is_async)
        if max_concurrency:
            options.setdefault("concurrency", max_concurrency)
        super().__init__(*args, **options)

    def start(self, *args: Any, **options: Any) -> None:  # Any: Consumer's
        """Connect and receive, as Consumer does."""
        if self._is_async and self.on_message.receivers:
            # Which receiver is called first does not matter: a message is finished behind the last.
            self.on_message.connect(self._make_async, weak=False)
        super().start(*args, **options)

    def _make_async(self, consumer: Consumer, message: Message) -> None:
        message.enable_async()

    def publish(self, topic: str, message: bytes) -> bytes:
        """Deprecated: use Producer. Publish over one of this consumer's connections, and wait until nsqd has confirmed.

        Returns:
            b"OK".

        Raises:
            NSQNoConnections: If there is no connection.
            NSQException: As Producer.publish().
        """
        _warn("Reader.publish", "gnsq.Producer")
        for connection in list(self._pool.connections.values()):
            if connection.is_open:
                return connection.call(commands.publish(topic, message))
        raise NSQNoConnections(f"consumer of {self.topic}/{self.channel} is connected to no nsqd")


class Nsqd:
    """Deprecated: use NsqdTCPClient or NsqdHTTPClient. One of each; whatever is not here is asked of the first that
    has it.

    Args:
        address, tcp_port, http_port: Where nsqd listens.
        options: NsqdTCPClient's.
    """

    def __init__(
        self,
        address: str = "127.0.0.1",
        tcp_port: int = 4150,
        http_port: int = 4151,
        **options: Any,  # Any: NsqdTCPClient's
    ) -> None:
        _warn("gnsq.Nsqd", "gnsq.NsqdTCPClient or gnsq.NsqdHTTPClient")
        self.address = address
        self.tcp_port = tcp_port
        self.http_port = http_port
        self._tcp = NsqdTCPClient(address, tcp_port, **options)
        self._http = NsqdHTTPClient(address, http_port)

    def __getattr__(self, name: str) -> Any:  # Any: the clients'
        # What copies and pickles asks before __init__ was called.
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
        """``http://host:port/`` of its HTTP."""
        return self._http.address

    def publish(self, topic: str, data: bytes, *args: Any, **options: Any) -> Any:  # Any: as in the client's publish()
        """Publish a message, over TCP if connected (the reply is yours to read), else over HTTP."""
        client: Any = self._tcp if self._tcp.is_connected else self._http
        return client.publish(topic, data, *args, **options)

    def multipublish(self, topic: str, messages: Iterable[bytes], *args: Any, **options: Any) -> Any:
        """Publish messages, as publish() does."""
        client: Any = self._tcp if self._tcp.is_connected else self._http
        return client.multipublish(topic, messages, *args, **options)

    def publish_tcp(self, topic: str, data: bytes, **options: Any) -> None:
        """Deprecated: use NsqdTCPClient.publish."""
        _warn("Nsqd.publish_tcp", "NsqdTCPClient.publish")
        self._tcp.publish(topic, data, **options)

    def publish_http(self, topic: str, data: bytes, **options: Any) -> None:
        """Deprecated: use NsqdHTTPClient.publish."""
        _warn("Nsqd.publish_http", "NsqdHTTPClient.publish")
        self._http.publish(topic, data, **options)

    def multipublish_tcp(self, topic: str, messages: Iterable[bytes], **options: Any) -> None:
        """Deprecated: use NsqdTCPClient.multipublish."""
        _warn("Nsqd.multipublish_tcp", "NsqdTCPClient.multipublish")
        self._tcp.multipublish(topic, messages, **options)

    def multipublish_http(self, topic: str, messages: Iterable[bytes], **options: Any) -> None:
        """Deprecated: use NsqdHTTPClient.multipublish."""
        _warn("Nsqd.multipublish_http", "NsqdHTTPClient.multipublish")
        self._http.multipublish(topic, messages, **options)


class Lookupd(LookupdClient):
    """Deprecated: use LookupdClient.

    Args:
        address: A URL or ``host[:port]``.
        options: LookupdClient's.
    """

    def __init__(self, address: str = "http://localhost:4161/", **options: Any) -> None:  # Any: LookupdClient's
        _warn("gnsq.Lookupd", "gnsq.LookupdClient")
        # Knows what may be in a URL; opens nothing.
        parsed = LookupdClient.from_url(address, **options)
        options["auth"] = parsed.options.auth
        path = urlsplit(parsed.address).path
        super().__init__(parsed.host, parsed.port, scheme=parsed.scheme, path=path, **options)

    @classmethod
    def from_url(cls, url: str, **kwargs: Any) -> Self:  # Any: the constructor's own
        """Make a client from a URL or ``host[:port]``."""
        return cls(url, **kwargs)

    @property
    def base_url(self) -> str:
        """``http://host:port/``."""
        return self.address

    def tombstone_topic_producer(self, topic: str, node: str) -> bytes:
        """Deprecated: use LookupdClient.tombstone_topic."""
        _warn("Lookupd.tombstone_topic_producer", "LookupdClient.tombstone_topic")
        return self.tombstone_topic(topic, node)
