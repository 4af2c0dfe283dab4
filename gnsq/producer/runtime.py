"""Runtime: the connections and greenlets of a started producer, in the hub in which it was started.

The runtime connects to the nsqds whose addresses the user gave, and to the nsqds that nsqlookupds know.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Sized
from typing import Protocol

import gevent

from gnsq.addresses import parse_address
from gnsq.backofftimer import jittered
from gnsq.clock import Clock
from gnsq.concurrency.greenlets import spawn
from gnsq.concurrency.threads import CROSS_THREAD_GRACE, CrossThreadFuture, Once, OwnerThread, is_hub_greenlet
from gnsq.discovery import AllNodes
from gnsq.errors import (
    NSQConnectionClosed,
    NSQErrorCode,
    NSQException,
    NSQNoConnections,
    NSQNotSentClosed,
    NSQNotSentTimeout,
    NSQUnknownClosed,
    NSQUnknownTimeout,
)
from gnsq.lifecycle import ClientGreenlets
from gnsq.logs import LogOwner
from gnsq.lookupd import LookupdClient
from gnsq.nsqd.connection import Connection, ConnectionListener
from gnsq.nsqd.pool import ConnectionPool, FirstAttempts, ReconnectOptions
from gnsq.options import ConnectionOptions
from gnsq.producer.dispatcher import Dispatcher
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import PendingPublish, PublishCounts, Unconfirmed, is_node_error
from gnsq.producer.result import PublishResult, ResultWaiters
from gnsq.producer.routing import make_strategy
from gnsq.signals import call_override
from gnsq.texts import counted

__all__ = ["ProducerRuntime"]

logger = logging.getLogger(__name__)

# Seconds in which connections may drain and close, even if the timeout of close() is over.
CLOSE_GRACE = 0.5


class RuntimeOwner(Protocol):
    """The part of a Producer that its runtime uses. Subclasses of Producer may override the methods."""

    options: ProducerOptions
    addresses: list[str]
    lookupds: list[LookupdClient]
    log_owner: LogOwner

    def handle_response(self, conn: Connection, response: bytes) -> None: ...
    def handle_error(self, conn: Connection, error: NSQErrorCode) -> None: ...
    def handle_auth(self, conn: Connection, response: dict[str, object]) -> None: ...


class ProducerRuntime(ConnectionListener):
    """The connections and greenlets of a running producer. Made in its thread; other threads only read it or abort it.

    Args:
        response_receivers: While this collection is empty, handle_response() is not called.
        greenlets: Those of the producer.
        counts: Counts of messages by outcome.

    Attributes:
        unconfirmed: After the end: the publishes that were not confirmed.
        owner_thread: The thread in which the runtime was made.
        waiters: Threads and callbacks that wait for results.
        dispatcher: Sends publishes.
        now: Returns monotonic seconds.
    """

    def __init__(
        self,
        producer: RuntimeOwner,
        clock: Clock,
        connection: ConnectionOptions,
        reconnect: ReconnectOptions,
        response_receivers: Sized,
        greenlets: ClientGreenlets,
        counts: PublishCounts,
        owner_thread: OwnerThread,
    ) -> None:
        self.owner_thread = owner_thread
        self.unconfirmed: list[Unconfirmed] = []
        self._producer = producer
        self._clock = clock
        self._connection_options = connection
        self._reconnect = reconnect
        self.response_receivers = response_receivers
        self._greenlets = greenlets
        self._counts = counts
        options, owner = producer.options, producer.log_owner
        self._log = owner.log(logger)
        self.now = self._clock.monotonic
        self.waiters = ResultWaiters(self.owner_thread, self.now, owner.label)
        self.dispatcher = Dispatcher(
            options,
            self._clock,
            make_strategy(options.strategy),
            counts,
            nsqd_count=lambda: len(self._addresses),
            no_connection_error=self._no_connection_error,
            owner=owner,
        )
        self._addresses: set[str] = set()
        self._links: list[Connection] = []
        self._first_attempts = FirstAttempts(self._clock, owner, looks_up=bool(producer.lookupds))
        # Each pool has one connection to each nsqd.
        self._pools = [self._make_pool() for _ in range(options.connections_per_nsqd)]
        self._nodes = AllNodes(producer.lookupds, owner=owner)

    def _make_pool(self) -> ConnectionPool:
        return ConnectionPool(
            self._reconnect,
            self._clock,
            make=self._make_connection,
            setup=self._setup,
            closed_without_fault=_is_blameless,
            owner=self._producer.log_owner,
            first_attempts=self._first_attempts,
            is_urgent=self.dispatcher.waits_for_connection,
        )

    # --- start and close

    def start(self) -> None:
        """Start the greenlets that connect, check deadlines, send batches and query nsqlookupds. Does not wait."""
        for address in self._producer.addresses:
            self.add(address)
        self._greenlets.run_loop("deadlines", self.dispatcher.deadlines.run)
        if self.dispatcher.batcher is not None:
            self._greenlets.run_loop("batches", self.dispatcher.batcher.run)
        if self._producer.lookupds:
            self._greenlets.run_loop("lookup", self._poll_lookupds)

    def add(self, address: str) -> None:
        """Connect to an nsqd, and reconnect whenever the connection is lost."""
        with self._greenlets.marked():
            for pool in self._pools:
                pool.add(address, permanent=True)
            self._addresses.add(address)

    def set_nsqds(self, addresses: Collection[str]) -> None:
        """Connect to nsqds, and do not reconnect to any other one."""
        for address in addresses:
            self.add(address)
        self._forget(self._addresses.difference(addresses))

    def _forget(self, addresses: Iterable[str]) -> None:
        """Do not reconnect to nsqds. Their connections go on until they are lost."""
        for address in addresses:
            self._addresses.discard(address)
            for pool in self._pools:
                pool.release(address)

    def wait_started(self) -> None:
        """Wait as Producer.start() does."""
        self._first_attempts.wait()

    def flush(self, timeout: float) -> bool:
        """Send all batches, and wait until all pending publishes have ended.

        Returns:
            False if some publishes have not ended within the timeout (seconds).
        """
        with self._greenlets.marked():
            self.dispatcher.flush_batches()
        return self.dispatcher.flush(timeout)

    def owns_greenlet(self, greenlet: gevent.Greenlet) -> bool:
        """Return True if a greenlet of this thread connects, reads responses, or is inside a publish."""
        return self.dispatcher.is_reentrant(greenlet) or any(pool.owns_greenlet(greenlet) for pool in self._pools)

    def what_is_left(self) -> str:
        """See Runtime."""
        pending = self.dispatcher.pending
        return f"{counted(pending, 'publish', 'publishes')} not confirmed" if pending else ""

    def begin_close(self, timeout: float) -> None:
        """Refuse further publishes. Any thread may call this, since it only sets a flag."""
        self.dispatcher.stop_accepting()
        pending = counted(self.dispatcher.pending, "publish", "publishes")
        self._log.info("closing, with up to %g s for %s pending", timeout, pending)

    def close(self, timeout: float) -> None:
        """Wait for pending publishes, up to the timeout in seconds, then close all connections."""
        deadline = self._clock.monotonic() + timeout
        if self.dispatcher.batcher is not None:
            self.dispatcher.batcher.stop_waiting()
        self.flush(timeout)
        self.unconfirmed = self.dispatcher.close()
        for connection in list(self._links):
            if connection.writer.pending:
                # The timeout of close() is over, so end these publishes without their responses. Release the address
                # first: otherwise the pool, which is closed only later, would log that it connects again.
                for pool in self._pools:
                    pool.release(connection.address)
                connection.abort()
        self._greenlets.kill_loops()
        # Close all pools at the same time, since each may need the whole time limit.
        left = max(deadline - self._clock.monotonic(), CLOSE_GRACE)
        gevent.joinall([spawn("gnsq-drain", pool.close, left, on_failure="not drained") for pool in self._pools])
        # Let the hub run one round, in which the last callers are woken.
        gevent.sleep(0)
        self._log_end()

    def abort(self) -> None:
        """End all publishes at once, because the thread ends."""
        self.dispatcher.stop_accepting()
        self._fail_all(NSQUnknownClosed("the producer's thread has ended; nsqd may have it"))
        for pool in self._pools:
            pool.close(0)
        gevent.sleep(0)  # as in close()
        self._log_end()

    def abort_without_hub(self) -> None:
        """End all publishes after the owner thread has ended. Another thread calls this, since the owner's hub does not
        run any more."""
        error = NSQUnknownClosed("the thread that started the producer has ended; nsqd may have it")
        pending = list(self.dispatcher.pending_publishes())
        self.unconfirmed = [Unconfirmed(publish.topic, publish.bodies, publish.defer, error) for publish in pending]
        for publish in pending:
            publish.done, publish.error = True, error
            self._counts.count_failed(error, publish.messages)
            # Suppress errors: greenlets of the owner thread that waited for this publish no longer exist.
            with contextlib.suppress(Exception):
                if publish.result is not None:
                    publish.result.end(error)
                if publish.on_capacity is not None:
                    publish.on_capacity()
        for connection in list(self._links):
            with contextlib.suppress(Exception):
                connection.abort_without_owner(error)
        self._log_end()

    def after_fork_in_child(self, parent: int) -> None:
        """End all publishes in this child process. If the owner thread is another one, it does not exist in this
        process, and waiting calls end by themselves."""
        if self.owner_thread.is_current:
            self._fail_all(NSQUnknownClosed(f"published in process {parent}, which was forked and goes on with it"))

    def _fail_all(self, error: NSQException) -> None:
        for publish in list(self.dispatcher.pending_publishes()):
            self.dispatcher.fail(publish, error)
        self.unconfirmed = self.dispatcher.close()
        self._greenlets.kill_loops()

    def _log_end(self) -> None:
        if not self.unconfirmed:
            self._log.info("closed; nothing was left")
            return
        first, what = self.unconfirmed[0], counted(len(self.unconfirmed), "publish", "publishes")
        self._log.warning("closed with %s not confirmed, the first of them to %s: %s", what, first.topic, first.error)

    # --- publishes from other threads

    def publish_from_thread(self, publish: PendingPublish, *, block: bool, until_end: bool) -> PublishResult:
        """Publish from another thread than the producer's, and wait until the publish has capacity.

        If the producer's hub does not run, the wait ends CROSS_THREAD_GRACE seconds after the deadline. If the caller
        is a hub itself, the call does not wait: if there is no capacity, the result gets the error.

        Args:
            until_end: Wait until the publish has ended, and not only until it has capacity.

        Raises:
            NSQException: In the cases of Producer.publish_async().
            RuntimeError: If until_end is True and the caller is a hub itself.
        """
        can_wait = not is_hub_greenlet()
        if until_end and not can_wait:
            raise RuntimeError("nothing can wait for a publish in the hub itself; let a greenlet do it")
        result = publish.result = self.waiters.new(publish.deadline)
        reached: CrossThreadFuture[None] = CrossThreadFuture()
        if until_end:
            result.add_done_callback(lambda result: reached.set_result(None))
        else:
            publish.on_capacity = lambda: reached.set_result(None)
        once = Once()

        def submit() -> None:
            if not once.acquire():
                return  # the caller no longer waits
            try:
                self.dispatcher.submit(publish, block)
                if not can_wait:
                    self.dispatcher.wait_for_capacity(publish)  # in the hub this method raises instead of waiting
                elif publish.reserved_bytes and publish.on_capacity is not None:
                    publish.on_capacity()
            except Exception as error:  # noqa: BLE001  # raised in the calling thread, or by get()
                reached.set_exception(error)
                result.end(error)

        try:
            self.owner_thread.call_soon(submit)
        except NSQConnectionClosed as error:
            text = f"{error}: the producer was started there; with threaded=True it has a thread of its own"
            raise NSQNotSentClosed(text) from error
        if not can_wait:
            return result
        try:
            is_reached = reached.wait(max(publish.deadline - self.now(), 0) + CROSS_THREAD_GRACE)
        except BaseException:
            # The caller was killed or interrupted by a gevent.Timeout. Let the producer's hub, which reads
            # publish.result, clear this attribute. Then a failure of the publish is logged.
            with contextlib.suppress(NSQConnectionClosed):
                self.owner_thread.call_soon(setattr, publish, "result", None)
            raise
        if not is_reached:
            text = f"the producer's thread has not run its hub for {publish.timeout + CROSS_THREAD_GRACE:g} s"
            text += "; in a program that blocks natively a producer needs threaded=True"
            raise NSQNotSentTimeout(text) if once.acquire() else NSQUnknownTimeout(text)
        reached.result()
        return result

    # --- nsqds

    def failures(self) -> dict[str, NSQException]:
        """Return the last error of each nsqd without a connection, by address."""
        failures: dict[str, NSQException] = {}
        for pool in self._pools:
            failures |= pool.failures()
        connected = {link.address for link in list(self._links)}
        return {address: error for address, error in failures.items() if address not in connected}

    @property
    def lookup_failures(self) -> dict[str, str]:
        """Return why the last queries of nsqlookupds failed, by address of the nsqlookupd. Others are left out."""
        return dict(self._nodes.failures)

    def why_not_ready(self) -> str:
        """Return the reason why no nsqd takes publishes now. Empty if an nsqd takes them."""
        if self.dispatcher.links or self.dispatcher.stalled_links:
            return ""
        failures = self.failures()
        reasons = [f"{address}: {error.explanation}" for address, error in sorted(failures.items())]
        reasons += [f"{address}: still connecting" for address in sorted(self._addresses - set(failures))]
        return "; ".join(reasons or self._nodes.explanations())

    def _no_connection_error(self, limit: str) -> NSQException:
        error = NSQNoConnections(f"no connection to any nsqd {limit}; tried {self.why_not_ready()}")
        # The facts that all nsqds have in common: a missing secret, for example.
        common = {(failure.code, failure.name, failure.at_fault) for failure in self.failures().values()}
        if len(common) == 1:
            error.code, error.name, error.at_fault = common.pop()
        return error

    def _poll_lookupds(self) -> None:
        try:
            self._query_lookupds()
        finally:
            self._first_attempts.lookup_ended()
        failures = 0
        while True:
            # While no nsqd is known, query at the intervals of reconnects: nsqds may start later than this program.
            failures = 0 if self._addresses else failures + 1
            longest = jittered(self._producer.options.lookupd_poll_interval)
            wait = min(self._reconnect.delay(failures), longest) if failures else longest
            if failures:
                self._nodes.log_empty_round(logger, wait)
            self._clock.sleep(wait)
            self._query_lookupds()

    def _query_lookupds(self) -> None:
        # refresh() calls add() as soon as a response names an nsqd: other nsqlookupds may take long to respond.
        _, gone = self._nodes.refresh(lambda address, _: self.add(address))
        gone.difference_update(self._producer.addresses)
        for address in gone:
            self._producer.log_owner.log(logger, nsqd=address).info("no nsqlookupd names it any more")
        self._forget(gone)

    # --- connections

    def _make_connection(self, address: str) -> Connection:
        host, port = parse_address(address)
        return Connection(
            host, port, self._connection_options, self._clock, listener=self, owner=self._producer.log_owner
        )

    def _setup(self, connection: Connection) -> None:
        if connection.identity.auth:
            self._call(self._producer.handle_auth, connection, dict(connection.identity.auth))
        if connection.is_open:
            self._links.append(connection)
            self.dispatcher.add(connection)

    def on_oks(self, connection: Connection, requests: list[PendingPublish]) -> None:  # type: ignore[override]
        """Confirm publishes: a producer sends no other requests."""
        self.dispatcher.confirm(requests)

    def on_response(self, connection: Connection, data: bytes) -> None:
        """Call handle_response(), which may be overridden."""
        self._call(self._producer.handle_response, connection, data)

    def on_error(self, connection: Connection, error: NSQErrorCode) -> None:
        """Call handle_error(), which may be overridden."""
        self._call(self._producer.handle_error, connection, error)

    def on_closed(self, connection: Connection) -> None:
        """Submit no more publishes to a connection."""
        if connection in self._links:
            self._links.remove(connection)
            self.dispatcher.remove(connection)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a method of the producer. It must not wait for a response: this greenlet connects or reads responses."""
        greenlet, signal_greenlets = gevent.getcurrent(), self.dispatcher.signal_greenlets
        signal_greenlets.add(greenlet)
        try:
            call_override(self._log, function, *arguments)
        finally:
            signal_greenlets.discard(greenlet)


def _is_blameless(connection: Connection) -> bool:
    """Return True if an error of nsqd ended the connection, but not one about nsqd's own state, such as a full disk."""
    return isinstance(connection.error, NSQErrorCode) and not is_node_error(connection.error)
