"""Producer: connections to some nsqds, and publishes that each end in nsqd's answer or an exception.

Policy only: which connection takes a publish, how long it may wait. Bytes and pending replies are Connection's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from blinker import Signal
from gevent.event import AsyncResult, Event

from gnsq.addresses import Addresses, parse_addresses
from gnsq.clock import Clock, RealClock
from gnsq.errors import NSQErrorCode, NSQException, NSQNoConnections, NSQTimeout
from gnsq.nsqd.connection import Connection
from gnsq.nsqd.opening import prepared
from gnsq.options import ConnectionOptions, Options, option
from gnsq.pool import ConnectionPool, Life, ReconnectOptions
from gnsq.protocol import commands
from gnsq.protocol.names import MAX_NAME_LENGTH, assert_valid_topic_name
from gnsq.signals import notify

__all__ = ["Producer", "ProducerOptions"]


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(Options):
    """How a Producer waits, and what it refuses."""

    publish_timeout: float = option(
        60.0, "for a connection, sending and nsqd's answer, unless publish() says otherwise", unit="s", minimum=0.001
    )
    max_msg_size: int | None = option(
        None, "longer bodies are refused before they are sent; default: nsqd decides", unit="bytes", minimum=1
    )
    close_timeout: float = option(30.0, "for pending answers when close() is called", unit="s", minimum=0)


class Producer:
    """Publish messages.

    Args:
        nsqd_tcp_addresses: ``host:port``, or a list, tuple or set of them; they take turns.
        max_backoff_duration: Seconds; longest wait before an nsqd is tried again.
        options: Those of ProducerOptions, ReconnectOptions and ConnectionOptions.

    A publish that returns was confirmed by nsqd. One that raises NSQConnectionClosed or NSQTimeout may or may not
    have arrived: publishing it again can duplicate it, not publishing it again can lose it. With any other exception
    nsqd has not taken it.

    Raises:
        ValueError, TypeError: As Consumer.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses = (),
        max_backoff_duration: float = 128,
        *,
        clock: Clock | None = None,
        **options: Any,  # Any: each option's own type, checked where they are taken apart
    ) -> None:
        self.nsqd_tcp_addresses = parse_addresses(nsqd_tcp_addresses)
        if not self.nsqd_tcp_addresses:
            raise ValueError("producer has no address: give nsqd_tcp_addresses")
        self.max_backoff_duration = max_backoff_duration
        self.logger = logging.getLogger("gnsq.producer")
        self.options = ProducerOptions.take(options)
        options.setdefault("reconnect_initial", 0.1)
        # 0 switched backoff off in 1.0; it must not mean trying without a pause.
        options.setdefault("reconnect_maximum", max(max_backoff_duration, 0.1))
        reconnect = ReconnectOptions.take(options)
        self.on_response = Signal()
        self.on_error = Signal()
        self.on_auth = Signal()
        self.on_close = Signal()
        self._clock = clock if clock is not None else RealClock()
        connection_options = prepared(ConnectionOptions.of("Producer", options, ProducerOptions, ReconnectOptions))
        self._max_name_length = connection_options.max_name_length
        self._pool = ConnectionPool(
            connection_options,
            reconnect,
            self._clock,
            prepare=self._prepare,
            setup=self._setup,
            on_lost=lambda connection: None,
        )
        self._turn = 0
        self._state = Life.INIT
        self._closed = Event()

    # --- life

    def start(self) -> None:
        """Connect. Returns when every nsqd has been tried once; those that are down are tried again.

        Raises:
            NSQException: If it was closed.
        """
        if self._state in (Life.CLOSING, Life.CLOSED):
            raise NSQException("producer was closed; make a new one")
        if self._state is Life.RUNNING:
            self.logger.warning("producer is running already")
            return
        self._state = Life.RUNNING
        for address in self.nsqd_tcp_addresses:
            self._pool.add(address, permanent=True)
        self._pool.wait_tried()

    def close(self) -> None:
        """Wait for pending answers, up to close_timeout, and close the connections; publishes that have none by then
        raise NSQConnectionClosed. A second call waits for the first."""
        if self._state is Life.RUNNING:
            self._state = Life.CLOSING
            try:
                self._pool.close(self.options.close_timeout)
            finally:
                self._state = Life.CLOSED
                self._closed.set()
                notify(self.on_close, self)
        elif self._state is Life.INIT:
            self._state = Life.CLOSED
            self._closed.set()
        self.join()

    def join(self, timeout: float | None = None, raise_error: bool = False) -> None:
        """Wait until the producer has closed, or the timeout (seconds) ends."""
        self._closed.wait(timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether it was started and not closed."""
        return self._state is Life.RUNNING

    # --- publishing

    def publish(
        self,
        topic: str,
        data: bytes,
        defer: int | None = None,
        block: bool = True,
        timeout: float | None = None,
        raise_error: bool = True,
    ) -> Any:
        """Publish a message and wait until nsqd has confirmed it.

        Args:
            defer: Milliseconds that nsqd holds it back (up to its max-req-timeout).
            block: Whether to wait for a connection when there is none.
            timeout: Seconds, for all of it: connection, sending, answer; default publish_timeout.
            raise_error: If False, return an AsyncResult as soon as it is queued; it will hold what this would have
                returned or raised, but knows no timeout.

        Returns:
            b"OK".

        Raises:
            ValueError, TypeError: For a topic, body or delay that nsqd would refuse; nothing was sent.
            NSQNoConnections: If there was no connection in time; nothing was sent.
            NSQErrorCode: What nsqd said instead; it has not taken the message.
            NSQTimeout, NSQConnectionClosed: If no answer came; nsqd may have the message.
        """
        self._check_name(topic)
        self._check_size(data)
        command = commands.publish(topic, data) if defer is None else commands.deferpublish(topic, data, defer)
        return self._request(command, block, timeout, raise_error)

    def multipublish(
        self,
        topic: str,
        messages: Iterable[bytes],
        block: bool = True,
        timeout: float | None = None,
        raise_error: bool = True,
    ) -> Any:
        """Publish messages, all or none, and wait until nsqd has confirmed them. Otherwise as publish()."""
        self._check_name(topic)
        bodies = messages if isinstance(messages, (bytes, bytearray, str)) else list(messages)
        for body in bodies:
            self._check_size(body)
        return self._request(commands.multipublish(topic, bodies), block, timeout, raise_error)

    def _check_name(self, topic: str) -> None:
        # The command's builder checks against what nsqd takes today.
        if self._max_name_length < MAX_NAME_LENGTH:
            assert_valid_topic_name(topic, self._max_name_length)

    def _check_size(self, body: object) -> None:
        limit = self.options.max_msg_size
        if limit is not None and isinstance(body, bytes) and len(body) > limit:
            raise ValueError(f"message body of {len(body)} bytes exceeds max_msg_size {limit}")

    def _request(self, command: bytes, block: bool, timeout: float | None, raise_error: bool) -> Any:
        limit = self.options.publish_timeout if timeout is None else timeout
        deadline = self._clock.monotonic() + limit
        connection = self._take_turn() or self._wait_for_connection(block, limit)
        reply: AsyncResult = connection.request(command)
        if not raise_error:
            return reply
        # Not get(timeout=...): a gevent.Timeout that the caller has set must stay the caller's.
        if not self._clock.wait(reply, max(deadline - self._clock.monotonic(), 0)):
            raise NSQTimeout(f"{connection.address}: publish not answered within {limit} s; nsqd may have it")
        return reply.get()

    def _take_turn(self) -> Connection | None:
        """Choose the next connection that can send, in turn."""
        if self._state is not Life.RUNNING:
            raise NSQException("producer is not running: call start(), or it was closed")
        connections = [connection for connection in self._pool.connections.values() if connection.is_open]
        if not connections:
            if self._pool.inherited:
                raise NSQException("producer was started before the fork; make and start a new one in this process")
            return None
        self._turn = (self._turn + 1) % len(connections)
        return connections[self._turn]

    def _wait_for_connection(self, block: bool, limit: float) -> Connection:
        deadline = self._clock.monotonic() + limit
        while block and (left := deadline - self._clock.monotonic()) > 0:
            self._pool.changed.clear()
            self._clock.wait(self._pool.changed, left)
            connection = self._take_turn()
            if connection is not None:
                return connection
        tried = "; ".join(f"{address}: {error}" for address, error in sorted(self._pool.failures().items()))
        waited = f"within {limit} s" if block else "now"
        raise NSQNoConnections(f"no connection to any nsqd {waited}; tried {tried or 'none yet'}")

    # --- signals

    def _prepare(self, connection: Connection) -> None:
        connection.on_response = self._handle_response
        connection.on_error = self._handle_error

    def _setup(self, connection: Connection) -> None:
        if connection.identity.auth:
            notify(self.on_auth, self, conn=connection, response=dict(connection.identity.auth))

    def _handle_response(self, connection: Connection, data: bytes) -> None:
        notify(self.on_response, self, response=data)

    def _handle_error(self, connection: Connection, error: NSQErrorCode) -> None:
        notify(self.on_error, self, error=error)
