"""Running: a producer between start and end, in the hub that it was started in.

Owns the connections and greenlets; which nsqds there are, it is told or asks nsqlookupd.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

import gevent
from gevent.event import Event

from gnsq.clock import Clock
from gnsq.concurrency.greenlets import run_forever
from gnsq.concurrency.threads import OwnerThread
from gnsq.discovery import AllNodes
from gnsq.errors import NSQErrorCode, NSQException, NSQNoConnections, NSQUnknownClosed
from gnsq.logs import LogOwner
from gnsq.lookupd import LookupdClient
from gnsq.nsqd.connection import Connection
from gnsq.nsqd.pool import ConnectionPool, ReconnectOptions
from gnsq.options import ConnectionOptions
from gnsq.producer.batching import Batches
from gnsq.producer.completion import LONGEST
from gnsq.producer.dispatcher import Dispatcher
from gnsq.producer.http import HttpClients, HttpPool
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import Publish, Totals, Unconfirmed, is_about_the_nsqd
from gnsq.producer.result import ResultWaiters
from gnsq.producer.routing import TcpLink, make_strategy
from gnsq.stats import LatencyRecorder
from gnsq.texts import without_address

__all__ = ["ProducerEvents", "Running", "RuntimeConfig"]

logger = logging.getLogger(__name__)

# Seconds that connections without anything under way may take to close in order, however short the time is.
PARTING = 0.5

# How long the first publish waits until every nsqd was tried, seconds.
FIRST_TRY = 1.0


@dataclass(frozen=True)
class RuntimeConfig:
    """Settings and counters of a producer, as its constructor made them.

    Attributes:
        connection: Options of each connection over TCP.
        addresses: Those given, as ``host:port`` or, over HTTP, as a URL.
        http_clients: Makes the clients to publish over HTTP; None: publish over TCP.
        owner: Producer that log lines name.
        totals, latency: Counters, which go on over a restart.
    """

    options: ProducerOptions
    reconnect: ReconnectOptions
    connection: ConnectionOptions
    addresses: Sequence[str]
    lookupds: Sequence[LookupdClient]
    http_clients: HttpClients | None
    clock: Clock
    owner: LogOwner
    totals: Totals
    latency: LatencyRecorder


class ProducerEvents(Protocol):
    """Methods of a producer that are called when an answer is read; subclasses may override them."""

    @property
    def listeners(self) -> Sized:
        """Empty if handle_response() need not be called."""

    def handle_response(self, conn: Connection | None, response: bytes) -> None:
        """Handle a response; conn is None over HTTP."""

    def handle_error(self, conn: Connection | None, error: NSQErrorCode) -> None:
        """Handle an error of nsqd; conn is None over HTTP."""

    def handle_auth(self, conn: Connection, response: dict[str, object]) -> None:
        """Handle the answer to AUTH."""


class Running:
    """What a producer has while it runs; made in the thread that it runs in, and used there only.

    Args:
        events: Called when answers are read.

    Attributes:
        owner_thread: That thread.
        waiters: Of the results of its publishes.
        dispatcher: Takes publishes.
        now: Tells monotonic seconds.
        was_tried: Whether every nsqd known by then was tried once, or that took too long.
    """

    def __init__(self, config: RuntimeConfig, events: ProducerEvents) -> None:
        self.owner_thread = OwnerThread()
        options = self._options = config.options
        self._config = config
        self._events = events
        self._clock = config.clock
        self.now = self._clock.monotonic
        self.waiters = ResultWaiters(self.owner_thread, self.now, config.owner.label)
        self.was_tried = False
        self.dispatcher = Dispatcher(
            options,
            self._clock,
            make_strategy(options.strategy, config.addresses),
            config.totals,
            config.latency,
            nsqds=lambda: len(self._addresses),
            why_none=self.why_none,
            owner=config.owner,
        )
        self._batches = Batches(self.dispatcher, options, self._clock) if options.batch_messages else None
        self._addresses: set[str] = set()
        self._links: dict[Connection, TcpLink] = {}
        self._pools = self._tcp_pools() if config.http_clients is None else [self._http_pool(config.http_clients)]
        port = "tcp_port" if config.http_clients is None else "http_port"
        self._nodes = AllNodes(config.lookupds, port, options.max_nsqds, config.owner)
        # Set when any nsqd is known, and when all nsqlookupds were asked once, if there are any.
        self._known, self._asked = Event(), Event()
        self._tasks: list[gevent.Greenlet] = []
        # Greenlet that changes connections or batches, and does not wait meanwhile.
        self._active: gevent.Greenlet | None = None

    def _tcp_pools(self) -> Sequence[ConnectionPool | HttpPool]:
        """Make what holds connections: each pool one to each nsqd."""
        config = self._config
        return [
            ConnectionPool(
                config.connection,
                config.reconnect,
                self._clock,
                prepare=self._prepare,
                setup=self._setup,
                blameless=_is_blameless,
                owner=config.owner,
            )
            for _ in range(self._options.connections_per_nsqd)
        ]

    def _http_pool(self, clients: HttpClients) -> HttpPool:
        config, events = self._config, self._events
        return HttpPool(
            clients,
            config.reconnect,
            self._clock,
            self.dispatcher,
            at_once=self._options.http_requests_at_once,
            responded=lambda data: self._tell(events.handle_response, None, data),
            refused=lambda error: self._tell(events.handle_error, None, error),
            owner=config.owner,
        )

    # --- life

    def start(self) -> None:
        """Connect, in the background."""
        for address in self._config.addresses:
            self.add(address)
        self._spawn("deadlines", self.dispatcher.run)
        if self._batches is not None:
            self._spawn("batches", self._batches.run)
        if self._config.lookupds:
            self._spawn("lookup", self._poll_nodes)
        else:
            self._asked.set()

    def add(self, address: str) -> None:
        """Connect to an nsqd, and again whenever that is lost.

        Raises:
            ValueError: If nothing can be connected to so.
        """
        with self._marked():
            for pool in self._pools:
                pool.add(address, permanent=True)
            self._addresses.add(address)
        self._known.set()

    def wait_attempted(self) -> None:
        """Wait until all nsqlookupds were asked once, and every nsqd known so far was tried once."""
        self._wait_attempted(self._asked, LONGEST)

    def wait_first(self, limit: float) -> None:
        """Wait, as the first publish does, which has so many seconds, until some nsqds are known and were tried."""
        self._wait_attempted(self._known, min(limit, FIRST_TRY))

    def _wait_attempted(self, known: Event, limit: float) -> None:
        deadline = self._clock.monotonic() + limit
        if not known.is_set():
            self._clock.wait(known, limit)
        for pool in self._pools:
            pool.wait_attempted(max(deadline - self._clock.monotonic(), 0))
        self.was_tried = True

    def flush(self, timeout: float) -> bool:
        """Wait until all that is here now has ended; False if the timeout (seconds) ended first."""
        if self._batches is not None:
            with self._marked():
                self._batches.flush()
        return self.dispatcher.flush(timeout)

    @contextlib.contextmanager
    def _marked(self) -> Iterator[None]:
        """Mark the calling greenlet as one that must not wait for this object."""
        self._active = gevent.getcurrent()
        try:
            yield
        finally:
            self._active = None

    def is_reentrant(self, greenlet: gevent.Greenlet) -> bool:
        """Whether a greenlet of the calling thread runs code of this object, so that close() must not wait in it."""
        return self.owner_thread.is_current and (
            self.dispatcher.is_reentrant(greenlet)
            or greenlet is self._active
            or greenlet in self._tasks
            or any(pool.owns_greenlet(greenlet) for pool in self._pools)
        )

    def close(self, timeout: float) -> list[Unconfirmed]:
        """Wait for what has no answer, up to the timeout in seconds, then end everything; gives what is left."""
        deadline = self._clock.monotonic() + timeout
        self.dispatcher.refuse_more()
        if self._batches is not None:
            self._batches.hurry()
        self.flush(timeout)
        unconfirmed = self.dispatcher.close()
        for connection in list(self._links):
            if connection.pending:
                # The deadlines of its pending requests are over. The address is released first: the pool does not know
                # of the close yet, and would log that it tries again.
                for pool in self._pools:
                    pool.release(connection.address)
                connection.abort()
        for task in self._tasks:
            task.kill(block=False)
        # Together: each may take as long.
        left = max(deadline - self._clock.monotonic(), PARTING)
        gevent.joinall([gevent.spawn(pool.close, left) for pool in self._pools])
        # What was told last is told in the hub's next round.
        gevent.sleep(0)
        return unconfirmed

    def after_fork_in_child(self, parent: int) -> None:
        """Do nothing more in this child process. Connections have an after_fork_in_child() of their own."""
        if not self.owner_thread.is_current:
            # Neither the thread nor greenlets of it are in this process. Other threads that wait have a deadline.
            return
        self.abort(NSQUnknownClosed(f"published in process {parent}, which was forked and goes on with it"))

    def abort(self, error: NSQException) -> list[Unconfirmed]:
        """End everything at once, with an error; gives what has not ended."""
        left = self._undone()
        for publish in left:
            self.dispatcher.fail(publish, error)
        self.dispatcher.close()
        for task in self._tasks:
            task.kill(block=False)
        return [Unconfirmed(publish.topic, publish.bodies, publish.defer, error) for publish in left]

    def abort_from_other_thread(self, error: NSQException) -> list[Unconfirmed]:
        """End everything after the owner thread has ended, called in another thread: its hub takes no more calls."""
        left = self._undone()
        unconfirmed = [Unconfirmed(publish.topic, publish.bodies, publish.defer, error) for publish in left]
        for publish in left:
            publish.done, publish.error = True, error
            self.dispatcher.totals.count(error, publish.messages)
            # Whoever waited in greenlets of that thread is gone, and can't be called either.
            with contextlib.suppress(Exception):
                if publish.on_done is not None and publish.on_room is not None:
                    publish.on_room()
                publish.tell()
        for connection in list(self._links):
            with contextlib.suppress(Exception):
                connection.abort_without_owner(error)
        return unconfirmed

    def _undone(self) -> list[Publish]:
        return [publish for publish in self.dispatcher.undone() if not publish.done]

    def _spawn(self, name: str, loop: Callable[[], None]) -> None:
        what = f"the greenlet for {name} of {self._config.owner.label}"
        greenlet = gevent.spawn(run_forever, what, loop, logger, self._clock)
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

    @property
    def lookup_failures(self) -> dict[str, str]:
        """Why the last answers of nsqlookupds could not be used, by address."""
        return dict(self._nodes.report.failures)

    def why_not_ready(self) -> str:
        """Say why nothing can be published at this moment; empty if it can."""
        if self.dispatcher.links or self.dispatcher.aside:
            return ""
        failures = self.failures()
        reasons = [f"{address}: {without_address(error, address)}" for address, error in sorted(failures.items())]
        reasons += [f"{address}: still connecting" for address in sorted(self._addresses - set(failures))]
        return "; ".join(reasons or self._nodes.report.explanations(self._config.lookupds))

    def why_none(self, limit: str) -> NSQException:
        """Make the error that says why there is no connection."""
        return NSQNoConnections(f"no connection to any nsqd {limit}; tried {self.why_not_ready()}")

    def _poll_nodes(self) -> None:
        options = self._options
        try:
            self._ask_nodes()
        finally:
            self._asked.set()
        failures = 0
        while True:
            # Without any nsqd as often as one that is down is tried: at the start of everything it may be late.
            failures = 0 if self._addresses else failures + 1
            longest = options.lookupd_poll_interval * (1 - options.lookupd_poll_jitter * random.random())
            wait = min(self._config.reconnect.delay(failures), longest) if failures else longest
            line = self._nodes.report.empty_line(self._config.lookupds, "", wait) if failures else None
            if line is not None:
                # Once a minute, however soon they are asked again.
                owner = self._config.owner
                owner.rate_limited(logger).log(line[0], f"empty round {line[0]}", "%s: %s", owner.label, line[1])
            self._clock.sleep(wait)
            self._ask_nodes()

    def _ask_nodes(self) -> None:
        # Each as soon as it is named: a silent nsqlookupd holds up nobody.
        _, gone = self._nodes.refresh(self._add_named)
        for address in gone - set(self._config.addresses):
            logger.info("%s: no nsqlookupd names it any more", self._config.owner.at(address))
            self._addresses.discard(address)
            for pool in self._pools:
                pool.release(address)

    def _add_named(self, address: str) -> None:
        try:
            self.add(address)
        except ValueError as error:
            text = "%s: can't be published to, though an nsqlookupd names it: %s"
            logger.warning(text, self._config.owner.at(address), error)

    # --- connections

    def _prepare(self, connection: Connection) -> None:
        events = self._events
        connection.on_response = lambda connection, data: self._tell(events.handle_response, connection, data)
        connection.listeners = events.listeners
        connection.on_error = lambda connection, error: self._tell(events.handle_error, connection, error)
        connection.on_closed = self._handle_closed

    def _setup(self, connection: Connection) -> None:
        if connection.identity.auth:
            self._tell(self._events.handle_auth, connection, dict(connection.identity.auth))
        if connection.is_open:
            link = self._links[connection] = TcpLink(connection)
            self.dispatcher.add(link)

    def _handle_closed(self, connection: Connection) -> None:
        link = self._links.pop(connection, None)
        if link is not None:
            self.dispatcher.remove(link)

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        """Call what sends a signal, or a subclass has put in its place. Called by what reads: nobody may wait here
        for what comes from nsqd."""
        here, receiving = gevent.getcurrent(), self.dispatcher.receiving
        receiving.add(here)
        try:
            function(*arguments)
        except Exception:  # a subclass may raise anything
            name = getattr(function, "__name__", function)
            logger.exception("%s: %s of a subclass raised", self._config.owner.label, name)
        finally:
            receiving.discard(here)


def _is_blameless(connection: Connection) -> bool:
    """Whether nsqd has closed a connection for what a caller had published."""
    return isinstance(connection.error, NSQErrorCode) and not is_about_the_nsqd(connection.error)
