"""Runtime: the connections and greenlets of a started producer, in the hub in which it was started.

The runtime connects to the nsqds whose addresses the user gave, and to the nsqds that nsqlookupds know.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

import gevent

from gnsq.addresses import parse_address
from gnsq.clock import Clock
from gnsq.concurrency.greenlets import run_until_done, spawn
from gnsq.concurrency.threads import OwnerThread
from gnsq.discovery import AllNodes
from gnsq.errors import NSQErrorCode, NSQException, NSQNoConnections, NSQUnknownClosed
from gnsq.logs import LogOwner
from gnsq.lookupd import LookupdClient
from gnsq.nsqd.connection import Connection, ConnectionListener
from gnsq.nsqd.pool import ConnectionPool, FirstAttempts, ReconnectOptions
from gnsq.options import ConnectionOptions
from gnsq.producer.dispatcher import Dispatcher
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import PublishCounts, Unconfirmed, is_node_error
from gnsq.producer.result import ResultWaiters
from gnsq.producer.routing import TcpLink, make_strategy

__all__ = ["ProducerEvents", "ProducerRuntime", "RuntimeConfig"]

logger = logging.getLogger(__name__)

# Seconds in which connections may drain and close, even if the timeout of close() is over.
CLOSE_GRACE = 0.5


@dataclass(frozen=True)
class RuntimeConfig:
    """Settings and counters of a producer, made by its constructor.

    Attributes:
        connection: Options of each connection.
        addresses: Addresses that the user gave.
        owner: The Producer whose name is in the log lines.
        counts: Counts of messages by outcome.
    """

    options: ProducerOptions
    reconnect: ReconnectOptions
    connection: ConnectionOptions
    addresses: Sequence[str]
    lookupds: Sequence[LookupdClient]
    clock: Clock
    owner: LogOwner
    counts: PublishCounts


class ProducerEvents(Protocol):
    """Methods of a producer that are called when a response is read; subclasses may override them."""

    def handle_response(self, conn: Connection, response: bytes) -> None:
        """Handle a response."""

    def handle_error(self, conn: Connection, error: NSQErrorCode) -> None:
        """Handle an error of nsqd."""

    def handle_auth(self, conn: Connection, response: dict[str, object]) -> None:
        """Handle the response to AUTH."""


class ProducerRuntime(ConnectionListener):
    """The connections and greenlets of a running producer. Made in its thread; other threads only read it or abort it.

    Args:
        response_receivers: While this collection is empty, handle_response() of the events is not called.

    Attributes:
        owner_thread: The thread in which the runtime was made.
        waiters: Threads and callbacks that wait for results.
        dispatcher: Sends publishes.
        now: Returns monotonic seconds.
    """

    def __init__(self, config: RuntimeConfig, events: ProducerEvents, response_receivers: Sized) -> None:
        self.owner_thread = OwnerThread()
        options = self._options = config.options
        self._config = config
        self._events = events
        self.response_receivers = response_receivers
        self._clock = config.clock
        self.now = self._clock.monotonic
        self.waiters = ResultWaiters(self.owner_thread, self.now, config.owner.label)
        self.dispatcher = Dispatcher(
            options,
            self._clock,
            make_strategy(options.strategy, config.addresses),
            config.counts,
            nsqd_count=lambda: len(self._addresses),
            no_connection_error=self._no_connection_error,
            owner=config.owner,
        )
        self._addresses: set[str] = set()
        self._links: dict[Connection, TcpLink] = {}
        self._first_attempts = FirstAttempts(self._clock, config.owner, looks_up=bool(config.lookupds))
        # Each pool has one connection to each nsqd.
        self._pools = [self._make_pool() for _ in range(options.connections_per_nsqd)]
        self._nodes = AllNodes(config.lookupds, owner=config.owner)
        self._tasks: list[gevent.Greenlet] = []
        # Greenlet that is inside _marked(): one at most, since code inside _marked() does not wait.
        self._active: gevent.Greenlet | None = None

    def _make_pool(self) -> ConnectionPool:
        return ConnectionPool(
            self._config.reconnect,
            self._clock,
            make=self._make_connection,
            setup=self._setup,
            closed_without_fault=_is_blameless,
            owner=self._config.owner,
            first_attempts=self._first_attempts,
        )

    # --- start and close

    def start(self) -> None:
        """Start the greenlets that connect, check deadlines, send batches and query nsqlookupds. Does not wait."""
        for address in self._config.addresses:
            self.add(address)
        self._spawn("deadlines", self.dispatcher.deadlines.run)
        if self.dispatcher.batcher is not None:
            self._spawn("batches", self.dispatcher.batcher.run)
        if self._config.lookupds:
            self._spawn("lookup", self._poll_lookupds)

    def add(self, address: str) -> None:
        """Connect to an nsqd, and reconnect whenever the connection is lost."""
        with self._marked():
            for pool in self._pools:
                pool.add(address, permanent=True)
            self._addresses.add(address)

    def wait_started(self) -> None:
        """Wait as start() of a producer does."""
        self._first_attempts.wait()

    def flush(self, timeout: float) -> bool:
        """Send all batches, and wait until all pending publishes have ended.

        Returns:
            False if some publishes have not ended within the timeout (seconds).
        """
        with self._marked():
            self.dispatcher.flush_batches()
        return self.dispatcher.flush(timeout)

    @contextlib.contextmanager
    def _marked(self) -> Iterator[None]:
        """Mark the calling greenlet: in a signal handler that interrupts the block, close() must not wait."""
        self._active = gevent.getcurrent()
        try:
            yield
        finally:
            self._active = None

    def is_reentrant(self, greenlet: gevent.Greenlet) -> bool:
        """Return True if a greenlet of the calling thread runs code of this object. A close() in it must not wait."""
        return self.owner_thread.is_current and (
            self.dispatcher.is_reentrant(greenlet)
            or greenlet is self._active
            or greenlet in self._tasks
            or any(pool.owns_greenlet(greenlet) for pool in self._pools)
        )

    def close(self, timeout: float) -> list[Unconfirmed]:
        """Wait for pending publishes, up to the timeout in seconds, then close all connections.

        Returns:
            The publishes that were not confirmed.
        """
        deadline = self._clock.monotonic() + timeout
        self.dispatcher.stop_accepting()
        if self.dispatcher.batcher is not None:
            self.dispatcher.batcher.stop_waiting()
        self.flush(timeout)
        unconfirmed = self.dispatcher.close()
        for connection in list(self._links):
            if connection.writer.pending:
                # The timeout of close() is over, so end these publishes without their responses. Release the address
                # first: otherwise the pool, which is closed only later, would log that it connects again.
                for pool in self._pools:
                    pool.release(connection.address)
                connection.abort()
        for task in self._tasks:
            task.kill(block=False)
        # Close all pools at the same time, since each may need the whole time limit.
        left = max(deadline - self._clock.monotonic(), CLOSE_GRACE)
        gevent.joinall([spawn("gnsq-drain", pool.close, left, on_failure="not drained") for pool in self._pools])
        # Let the hub run one round, in which CompletionQueue wakes the last callers.
        gevent.sleep(0)
        return unconfirmed

    def after_fork_in_child(self, parent: int) -> None:
        """Stop in this child process. Connections are not ended here: they have their own after_fork_in_child()."""
        if not self.owner_thread.is_current:
            # The owner thread and its greenlets do not exist in this process. Waiting calls end by themselves.
            return
        self.abort(NSQUnknownClosed(f"published in process {parent}, which was forked and goes on with it"))

    def abort(self, error: NSQException) -> None:
        """End all publishes immediately with an error, and kill the greenlets that _spawn() has started."""
        for publish in list(self.dispatcher.pending_publishes()):
            self.dispatcher.fail(publish, error)
        self.dispatcher.close()
        for task in self._tasks:
            task.kill(block=False)

    def abort_from_other_thread(self, error: NSQException) -> list[Unconfirmed]:
        """End all publishes after the owner thread has ended. Another thread calls this, since the owner's hub does not
        run any more.

        Returns:
            The publishes that were not confirmed.
        """
        pending = list(self.dispatcher.pending_publishes())
        unconfirmed = [Unconfirmed(publish.topic, publish.bodies, publish.defer, error) for publish in pending]
        for publish in pending:
            publish.done, publish.error = True, error
            self._config.counts.count_failed(error, publish.messages)
            # Suppress errors: greenlets of the owner thread that waited for this publish no longer exist.
            with contextlib.suppress(Exception):
                if publish.result is not None:
                    publish.result.end(error)
                if publish.on_capacity is not None:
                    publish.on_capacity()
        for connection in list(self._links):
            with contextlib.suppress(Exception):
                connection.abort_without_owner(error)
        return unconfirmed

    def _spawn(self, name: str, loop: Callable[[], None]) -> None:
        what = f"the greenlet for {name} of {self._config.owner.label}"
        arguments = run_until_done, what, loop, logger, self._clock
        self._tasks.append(spawn(f"gnsq-producer-{name}", *arguments, on_failure="it has ended"))

    # --- nsqds

    def failures(self) -> dict[str, NSQException]:
        """Return the last error of each nsqd without a connection, by address."""
        failures: dict[str, NSQException] = {}
        for pool in self._pools:
            failures |= pool.failures()
        connected = {link.address for link in list(self._links.values())}
        return {address: error for address, error in failures.items() if address not in connected}

    @property
    def lookup_failures(self) -> dict[str, str]:
        """Return why the last queries of nsqlookupds failed, by address of the nsqlookupd. Others are left out."""
        return dict(self._nodes.report.failures)

    def why_not_ready(self) -> str:
        """Return the reason why no nsqd takes publishes now. Empty if an nsqd takes them."""
        if self.dispatcher.links or self.dispatcher.stalled_links:
            return ""
        failures = self.failures()
        reasons = [f"{address}: {error.explanation}" for address, error in sorted(failures.items())]
        reasons += [f"{address}: still connecting" for address in sorted(self._addresses - set(failures))]
        return "; ".join(reasons or self._nodes.report.explanations(self._config.lookupds))

    def _no_connection_error(self, limit: str) -> NSQException:
        return NSQNoConnections(f"no connection to any nsqd {limit}; tried {self.why_not_ready()}")

    def _poll_lookupds(self) -> None:
        options = self._options
        try:
            self._query_lookupds()
        finally:
            self._first_attempts.lookup_ended()
        failures = 0
        while True:
            # While no nsqd is known, query at the intervals of reconnects: nsqds may start later than this program.
            failures = 0 if self._addresses else failures + 1
            longest = options.lookupd_poll_interval * (1 - options.lookupd_poll_jitter * random.random())
            wait = min(self._config.reconnect.delay(failures), longest) if failures else longest
            if failures:
                self._nodes.report.log_empty_round(logger, self._config.lookupds, "", wait)
            self._clock.sleep(wait)
            self._query_lookupds()

    def _query_lookupds(self) -> None:
        # refresh() calls add() as soon as a response names an nsqd: other nsqlookupds may take long to respond.
        _, gone = self._nodes.refresh(self.add)
        for address in gone - set(self._config.addresses):
            self._config.owner.log(logger, nsqd=address).info("no nsqlookupd names it any more")
            self._addresses.discard(address)
            for pool in self._pools:
                pool.release(address)

    # --- connections

    def _make_connection(self, address: str) -> Connection:
        host, port = parse_address(address)
        return Connection(host, port, self._config.connection, self._clock, listener=self, owner=self._config.owner)

    def _setup(self, connection: Connection) -> None:
        if connection.identity.auth:
            self._call(self._events.handle_auth, connection, dict(connection.identity.auth))
        if connection.is_open:
            link = self._links[connection] = TcpLink(connection)
            self.dispatcher.add(link)

    def on_response(self, connection: Connection, data: bytes) -> None:
        """Call handle_response(), which may be overridden."""
        self._call(self._events.handle_response, connection, data)

    def on_error(self, connection: Connection, error: NSQErrorCode) -> None:
        """Call handle_error(), which may be overridden."""
        self._call(self._events.handle_error, connection, error)

    def on_closed(self, connection: Connection) -> None:
        """Submit no more publishes to a connection."""
        link = self._links.pop(connection, None)
        if link is not None:
            self.dispatcher.remove(link)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a method of ``events``. It must not wait for a response: this greenlet connects or reads responses."""
        greenlet, signal_greenlets = gevent.getcurrent(), self.dispatcher.signal_greenlets
        signal_greenlets.add(greenlet)
        try:
            function(*arguments)
        except Exception:  # a subclass may raise anything
            name = getattr(function, "__name__", function)
            log = self._config.owner.log(logger)
            log.exception("%s of a subclass raised", name)
        finally:
            signal_greenlets.discard(greenlet)


def _is_blameless(connection: Connection) -> bool:
    """Return True if an error of nsqd ended the connection, but not one about nsqd's own state, such as a full disk."""
    return isinstance(connection.error, NSQErrorCode) and not is_node_error(connection.error)
