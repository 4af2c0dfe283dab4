"""Running: a producer between start and end, in the hub that it was started in.

Owns the connections and greenlets; which nsqds there are, it is told or asks nsqlookupd.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import gevent
from gevent.event import Event

from gnsq.addresses import joined
from gnsq.discovery import Nodes
from gnsq.errors import NSQErrorCode, NSQException, NSQNoConnections, NSQUnknownClosed
from gnsq.nsqd.connection import Connection
from gnsq.nsqd.home import Home
from gnsq.pool import ConnectionPool
from gnsq.producer.batches import Batches
from gnsq.producer.deadlines import LONGEST
from gnsq.producer.dispatcher import Dispatcher
from gnsq.producer.httplinks import HttpClients
from gnsq.producer.httppool import HttpPool
from gnsq.producer.links import TcpLink
from gnsq.producer.outcomes import is_about_the_nsqd
from gnsq.producer.publish import Unconfirmed
from gnsq.producer.strategies import make_strategy
from gnsq.signals import notify

if TYPE_CHECKING:
    from gnsq.producer.producer import Producer

__all__ = ["Running"]

logger = logging.getLogger(__name__)

# Seconds that connections without anything under way may take to close in order, however short the time is.
PARTING = 0.5

# How long the first publish waits until every nsqd was tried, seconds.
FIRST_TRY = 1.0


class Running:
    """What a producer has while it runs; made in the thread that it runs in, and used there only.

    Attributes:
        home: That thread.
        dispatcher: Takes publishes.
        now: Tells monotonic seconds.
        was_tried: Whether every nsqd was tried once, or that took too long.
    """

    def __init__(self, producer: Producer) -> None:
        self.home = Home()
        options = self._options = producer.options
        self._producer = producer
        self._clock = producer.clock
        self.now = self._clock.monotonic
        self.was_tried = False
        self.dispatcher = Dispatcher(
            options,
            self._clock,
            make_strategy(options.strategy, producer.addresses),
            producer.totals,
            producer.latency,
            nsqds=lambda: len(self._addresses),
            why_none=self.why_none,
        )
        self._batches = Batches(self.dispatcher, options, self._clock) if options.batch_messages else None
        if self._batches is not None:
            self.dispatcher.forward = self._batches.add
            self.dispatcher.batched = self._batches.members
        self._addresses: set[str] = set()
        self._links: dict[Connection, TcpLink] = {}
        self._pools = self._tcp_pools() if producer.http_clients is None else [self._http_pool(producer.http_clients)]
        self._nodes = Nodes(producer.lookupds, "tcp_port" if producer.http_clients is None else "http_port")
        # Set when nsqlookupds were asked once, if there are any.
        self._asked = Event()
        self._tasks: list[gevent.Greenlet] = []

    def _tcp_pools(self) -> Sequence[ConnectionPool | HttpPool]:
        """Make what holds connections: each pool one to each nsqd."""
        producer = self._producer
        return [
            ConnectionPool(
                producer.connection_options,
                producer.reconnect,
                self._clock,
                prepare=self._prepare,
                setup=self._setup,
                on_lost=self._lost,
                blameless=_is_blameless,
            )
            for _ in range(self._options.connections_per_nsqd)
        ]

    def _http_pool(self, clients: HttpClients) -> HttpPool:
        producer = self._producer
        return HttpPool(
            clients,
            producer.reconnect,
            self._clock,
            self.dispatcher,
            at_once=self._options.http_requests_at_once,
            sender=producer,
            on_response=producer.on_response,
            on_error=producer.on_error,
        )

    # --- life

    def start(self) -> None:
        """Connect, in the background."""
        for address in self._producer.addresses:
            self.add(address)
        self._spawn("deadlines", self.dispatcher.run)
        if self._batches is not None:
            self._spawn("batches", self._batches.run)
        if self._producer.lookupds:
            self._spawn("lookup", self._poll_nodes)

    def add(self, address: str) -> None:
        """Connect to an nsqd, and again whenever that is lost."""
        self._addresses.add(address)
        for pool in self._pools:
            pool.add(address, permanent=True)

    def wait_tried(self, limit: float | None = None) -> None:
        """Wait until every nsqd known so far has been tried once, up to a limit in seconds."""
        if limit is None:
            limit = LONGEST
        deadline = self._clock.monotonic() + limit
        if self._producer.lookupds:
            self._clock.wait(self._asked, limit)
        for pool in self._pools:
            pool.wait_tried(max(deadline - self._clock.monotonic(), 0))
        self.was_tried = True

    def wait_first(self, limit: float) -> None:
        """Wait likewise, as the first publish does, which has so many seconds."""
        self.wait_tried(min(limit, FIRST_TRY))

    def flush(self, timeout: float) -> bool:
        """Wait until all that is here now has ended; False if the timeout (seconds) ended first."""
        if self._batches is not None:
            self._batches.flush()
        return self.dispatcher.flush(timeout)

    def close(self, timeout: float) -> list[Unconfirmed]:
        """Wait for what has no answer, up to the timeout in seconds, then end everything; gives what is left."""
        deadline = self._clock.monotonic() + timeout
        self.dispatcher.refuse_more()
        if self._batches is not None:
            self._batches.hurry()
        self.flush(timeout)
        unconfirmed = self.dispatcher.close()
        for connection in list(self._links):
            if connection.requests:
                # What it still owes nobody waits for any more: its time is over.
                connection.abort()
        for task in self._tasks:
            task.kill(block=False)
        for pool in self._pools:
            pool.close(max(deadline - self._clock.monotonic(), PARTING))
        # What was told last is told in the hub's next round.
        gevent.sleep(0)
        return unconfirmed

    def give_up(self, parent: int) -> None:
        """Do nothing more in this process, which was forked meanwhile; the connections look after themselves."""
        if self.home.elsewhere:
            # Its thread is not in this process, nor who waited there. Others have deadlines of their own.
            return
        self.abandon(NSQUnknownClosed(f"published in process {parent}, which was forked and goes on with it"))

    def abandon(self, error: NSQException) -> list[Unconfirmed]:
        """End everything at once, with an error, in a hub that may not run any more; gives what has not ended."""
        left = [publish for publish in self.dispatcher.undone() if not publish.done]
        for publish in left:
            self.dispatcher.fail(publish, error)
        self.dispatcher.close()
        for task in self._tasks:
            task.kill(block=False)
        return [Unconfirmed(publish.topic, publish.bodies, publish.defer, error) for publish in left]

    def _spawn(self, name: str, loop: Callable[[], None]) -> None:
        greenlet = gevent.spawn(loop)
        greenlet.name = f"gnsq-producer-{name}"
        self._tasks.append(greenlet)

    # --- nsqds

    def failures(self) -> dict[str, NSQException]:
        """Say what went wrong last with each nsqd that has no connection."""
        failures: dict[str, NSQException] = {}
        for pool in self._pools:
            failures |= pool.failures()
        connected = {link.address for link in list(self._links.values())}
        return {address: error for address, error in failures.items() if address not in connected}

    def why_none(self, limit: str) -> NSQException:
        """Say why there is no connection."""
        tried = "; ".join(f"{address}: {error}" for address, error in sorted(self.failures().items()))
        return NSQNoConnections(f"no connection to any nsqd {limit}; tried {tried or 'none yet'}")

    def _poll_nodes(self) -> None:
        options = self._options
        try:
            self._ask_nodes()
        finally:
            self._asked.set()
        while True:
            jitter = options.lookupd_poll_jitter * random.random()
            self._clock.sleep(options.lookupd_poll_interval * (1 - jitter))
            self._ask_nodes()

    def _ask_nodes(self) -> None:
        found, gone = self._nodes.ask()
        for address in sorted(found):
            self.add(address)
        for address in gone - set(self._producer.addresses):
            logger.info("%s: no nsqlookupd names it any more", address)
            self._addresses.discard(address)
            for pool in self._pools:
                pool.release(address)

    def connect_to(self, host: str, port: int) -> None:
        """Connect to one more nsqd."""
        self.add(joined(host, port))

    # --- connections

    def _prepare(self, connection: Connection) -> None:
        connection.on_response = self._handle_response
        connection.listeners = self._producer.on_response.receivers
        connection.on_error = self._handle_error
        connection.on_closed = self._handle_closed

    def _setup(self, connection: Connection) -> None:
        if connection.identity.auth:
            notify(self._producer.on_auth, self._producer, conn=connection, response=dict(connection.identity.auth))
        if connection.is_open:
            link = self._links[connection] = TcpLink(connection)
            self.dispatcher.add(link)

    def _handle_closed(self, connection: Connection) -> None:
        link = self._links.pop(connection, None)
        if link is not None:
            self.dispatcher.remove(link)

    def _lost(self, connection: Connection) -> None:
        """Nothing: it was noted when the connection was closed."""

    def _handle_response(self, connection: Connection, data: bytes) -> None:
        notify(self._producer.on_response, self._producer, response=data)

    def _handle_error(self, connection: Connection, error: NSQErrorCode) -> None:
        notify(self._producer.on_error, self._producer, error=error)


def _is_blameless(connection: Connection) -> bool:
    """Whether nsqd has closed a connection for what a caller had published."""
    return isinstance(connection.error, NSQErrorCode) and not is_about_the_nsqd(connection.error)
