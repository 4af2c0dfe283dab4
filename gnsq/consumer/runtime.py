"""The connections and greenlets of a consumer: discovery of nsqds, what they do while it runs, and their shutdown.

It listens to the connections: passes messages to handlers, and the results of handlers to RdyController. The shutdown
waits a limited time until delivered messages are answered, then requeues the rest.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import random
from collections.abc import Callable, Iterable, Set
from typing import Protocol

import gevent
from gevent.event import Event

from gnsq.addresses import parse_address
from gnsq.backofftimer import BackoffPhase
from gnsq.clock import Clock
from gnsq.concurrency.greenlets import spawn
from gnsq.concurrency.threads import OwnerThread
from gnsq.consumer.dead_letters import DeadLetterPublisher
from gnsq.consumer.handler_runner import HandlerOwner, HandlerRunner
from gnsq.consumer.rdy_controller import RdyController
from gnsq.consumer.worker_pool import WorkerPool
from gnsq.discovery import MAX_NSQDS, TopicNodes
from gnsq.errors import NSQConnectionClosed, NSQErrorCode, NSQException
from gnsq.lifecycle import ClientGreenlets
from gnsq.lookupd import LookupdClient
from gnsq.message import Message
from gnsq.nsqd.connection import Connection, ConnectionListener, ConnectionState
from gnsq.nsqd.pool import ConnectionPool, FirstAttempts, ReconnectOptions
from gnsq.options import ConnectionOptions
from gnsq.signals import BackoffReceiver, FinishReceiver, TypedSignal, call_override, notify
from gnsq.stats import ConsumerStats, MessageCounts
from gnsq.texts import counted

__all__ = ["ConsumerRuntime"]

# Seconds after the end of the timeout of a close, in which the REQs are sent and nsqd closes the connections.
REQUEUE_GRACE = 2.0
# Seconds between two checks whether other handlers have ended, or whether further messages have arrived.
POLL_INTERVAL = 0.05


class RuntimeOwner(HandlerOwner, Protocol):
    """The part of a Consumer that its runtime uses. Subclasses of Consumer may override the methods."""

    nsqd_tcp_addresses: set[str]
    lookupds: list[LookupdClient]
    on_finish: TypedSignal[FinishReceiver]
    on_backoff: TypedSignal[BackoffReceiver]

    @property
    def concurrency(self) -> int: ...
    def query_nsqd(self) -> None: ...
    def query_lookupd(self) -> None: ...
    def handle_auth(self, conn: Connection, response: dict[str, object]) -> None: ...
    def handle_messages(self, messages: list[Message]) -> None: ...
    def handle_response(self, conn: Connection, response: bytes) -> None: ...
    def handle_error(self, conn: Connection, error: NSQErrorCode) -> None: ...
    def handle_finish(self, conn: Connection, message_id: bytes) -> None: ...
    def handle_requeue(self, conn: Connection, message_id: bytes, timeout: int, backoff: bool) -> None: ...


class ConsumerRuntime(ConnectionListener):
    """The connections and greenlets of one consumer. It exists from the constructor of the consumer on, which may be
    called in another thread than start().

    Args:
        overrides: Those of handle_message, handle_messages and handle_finish that a subclass has overridden.
        greenlets: Those of the consumer.

    Attributes:
        unanswered: After the end: the number of messages that were not answered.
        closed_counts: Message counts of closed connections, by the address of the nsqd.
    """

    def __init__(
        self,
        consumer: RuntimeOwner,
        clock: Clock,
        connection: ConnectionOptions,
        reconnect: ReconnectOptions,
        overrides: Set[str],
        greenlets: ClientGreenlets,
    ) -> None:
        self._consumer = consumer
        self._clock = clock
        self._connection_options = connection
        self._greenlets = greenlets
        owner = self._owner = consumer.log_owner
        self._log = owner.log(consumer.logger)
        self._first_attempts = FirstAttempts(clock, owner, looks_up=bool(consumer.lookupds))
        self.pool = ConnectionPool(
            reconnect,
            clock,
            make=self.make_connection,
            setup=self._setup_connection,
            on_lost=self._on_connection_lost,
            owner=owner,
            first_attempts=self._first_attempts,
        )
        topic = consumer.options.dead_letter_topic
        letters = DeadLetterPublisher(topic, self.pool.connections, connection, clock, owner) if topic else None
        self._letters = letters
        self.closed_counts: dict[str, MessageCounts] = {}
        self._last_error = ""  # of the last message that has failed, for the lines about the backoff
        self._overrides = overrides
        self.runner = HandlerRunner(consumer, clock, lambda: self.workers.running, letters)
        self.workers = WorkerPool(
            f"gnsq-worker-{consumer.topic}",
            lambda: consumer.concurrency,
            functools.partial(self.runner.handle_with_override, self.handle_one)
            if "handle_message" in overrides
            else self.runner.handle,
            functools.partial(self.runner.handle_batch_with_override, consumer.handle_messages)
            if "handle_messages" in overrides
            else None,
            self.runner.on_dropped,
            clock,
        )
        self.rdy = RdyController(
            consumer.options,
            self.pool.connections,
            clock,
            unanswered=self._unanswered_messages,
            on_timed_out=self.runner.on_timed_out,
            not_attempted=lambda: self.pool.not_attempted,
            on_phase=self._on_backoff_phase,
            want_answers=functools.partial(setattr, self, "wants_answers"),
            owner=owner,
        )
        # A lower RDY may have to be sent before FIN or REQ.
        self.before_answer = self.rdy.before_answer  # type: ignore[method-assign]
        self.nodes = TopicNodes(consumer.lookupds, consumer.topic, owner)
        self._looked_up = False  # True if any nsqlookupd answered the last query_lookupd()
        # Time of the loss of each nsqd that was lost and is not connected again; of the last MAX_NSQDS of them.
        self._lost_nsqds: dict[str, float] = {}
        self._nsqd_lost = Event()
        # Messages that the shutdown has requeued, that have timed out, or that have lost their connection.
        self._requeued = self._timed_out = self._lost = 0
        self.unanswered = 0
        self._drained = Event()
        # Number of handlers that are in join(). wait_for_others() does not wait for their messages.
        self._waiting_handlers = 0

    @property
    def connections(self) -> list[Connection]:
        """The open connections. Any thread may read this."""
        return list(self.pool.connections.values())

    @property
    def in_flight(self) -> int:
        """Number of messages in flight."""
        return sum(connection.in_flight for connection in self.connections)

    # --- start and end

    def start(self, owner_thread: OwnerThread) -> ConsumerRuntime:
        """Start the greenlets that connect, send RDY and query nsqlookupds. Does not wait."""
        self._consumer.query_nsqd()
        self._greenlets.run_loop("rdy", self.rdy.run)
        self._greenlets.run_loop("overdue", self.runner.log_regularly)
        if self._consumer.lookupds:
            self._greenlets.run_loop("lookup", self._poll_lookupds)
        return self

    def wait_started(self) -> None:
        """Wait as Consumer.start() does."""
        self._first_attempts.wait()

    def owns_greenlet(self, greenlet: gevent.Greenlet) -> bool:
        """Return True if a greenlet of this thread handles messages, connects or reads from a connection."""
        return self.workers.is_current or self.pool.owns_greenlet(greenlet)

    def what_is_left(self) -> str:
        """See Runtime."""
        in_flight = self.in_flight
        return f"{counted(in_flight, 'message')} in flight, which nsqd delivers again" if in_flight else ""

    def begin_close(self, timeout: float) -> None:
        """Any thread may call this: so it does nothing, and close() sends RDY 0."""

    def abort(self) -> None:
        """Close at once, because the thread ends, for example when a handler calls sys.exit()."""
        # Abort, do not drain: during a drain, nsqd could redeliver the message whose handler ended the thread.
        self.unanswered = self.in_flight
        for connection in self.connections:
            connection.abort()
        self.pool.close(0)

    def abort_without_hub(self) -> None:
        """Close at once after the thread has ended, and thus its hub. Another thread calls this."""
        self.unanswered = self.in_flight
        for connection in self.connections:
            with contextlib.suppress(Exception):
                connection.abort_without_owner(NSQConnectionClosed("the consumer's thread has ended"))

    def after_fork_in_child(self, parent: int) -> None:
        """Stop in this child process. In the parent the consumer continues. See concurrency/forks.py."""
        self._greenlets.kill_loops()
        self.workers.abort()
        # Only forget the connections: Connection.after_fork_in_child() closes this process's copies of their sockets.
        self.pool.connections.clear()

    # --- shutdown

    def close(self, timeout: float) -> None:
        """Request no more messages. Close each connection when it has no message in flight. After the timeout in
        seconds, requeue the messages in flight."""
        self._greenlets.kill_loops()
        self.rdy.stop()
        try:
            self._drain(timeout)
        finally:
            self.unanswered = self._requeued + self._timed_out + self._lost
            self.workers.close()
        self.runner.log_given_up_summary(at_once=True)
        if self._letters:
            self._letters.close()
        for lookupd in self._consumer.lookupds:
            lookupd.close()

    def _drain(self, timeout: float) -> None:
        connections, owner = self.connections, self._owner
        late = sum(map(_is_timed_out, self._unanswered()))
        text = "closing, with up to %g s for %s in flight%s on %s"
        what = counted(self.in_flight, "message"), f" and {late} timed out" if late else ""
        self._log.info(text, timeout, *what, counted(len(connections), "connection"))
        closer = spawn(f"gnsq-drain-{owner.label}", self.pool.close, timeout + REQUEUE_GRACE, on_failure="not drained")
        closer.rawlink(lambda _: self._drained.set())
        refused = _refused_requeues(connections)
        try:
            is_drained = self._clock.wait(self._drained, timeout)
            refused = _refused_requeues(connections)
            if not is_drained and self._requeue_unanswered(timeout):
                end = self._clock.monotonic() + REQUEUE_GRACE
                # Messages that nsqd sent before it read the CLS may still arrive.
                while not self._clock.wait(self._drained, POLL_INTERVAL) and self._clock.monotonic() < end:
                    self._requeue_unanswered(timeout)
        finally:
            # Messages that are still in the inbox have lost their connections: nsqd delivers them again.
            self.workers.inbox.clear()
            self._drained.set()
            closer.kill()  # aborts the connections that are still open
            self._lost += sum(connection.in_flight for connection in connections)
            self._log_end(_refused_requeues(connections) - refused)

    def _log_end(self, refused: int) -> None:
        left = []
        if requeued := self._requeued - refused:
            left.append(f"{counted(requeued, 'message')} requeued")
        if timed_out := self._timed_out + refused:
            left.append(f"{counted(timed_out, 'message')} timed out")
        if self._lost:
            left.append(f"{counted(self._lost, 'message')} not answered, which nsqd delivers again")
        self._log.info("closed; %s", " and ".join(left) or "nothing was left")

    def wait_for_others(self, timeout: float) -> None:
        """For a handler: wait up to timeout seconds until only handlers in this method have unanswered messages."""
        end = self._clock.monotonic() + timeout
        self._waiting_handlers += 1
        try:
            while not self._drained.is_set() and self._has_other_messages():
                left = min(POLL_INTERVAL, end - self._clock.monotonic())
                if left <= 0:
                    return
                self._clock.wait(self._drained, left)
        finally:
            self._waiting_handlers -= 1

    def _has_other_messages(self) -> bool:
        async_messages = sum(len(connection.in_flight_messages.async_messages) for connection in self.connections)
        return len(self.workers.inbox) + self.workers.busy + async_messages > self._waiting_handlers

    def _requeue_unanswered(self, timeout: float) -> bool:
        """Requeue the messages that are not answered. Return True if there were any."""
        left, running = self._unanswered(), set(self.workers.handling)
        self.workers.inbox.clear()
        late = [message for message in left if _is_timed_out(message)]
        for message in late:
            message.drop()  # nsqd has taken it back, and would refuse a REQ
        requeued = lost = 0
        for message in left:
            if message.has_responded():
                continue
            try:
                message.requeue(0, backoff=False)
                requeued += 1
            except NSQException:
                lost += 1
        if left:
            what = ((requeued, "requeued"), (len(late), "timed out before"), (lost, "on a lost connection"))
            self._log.warning(
                "%s not answered within %s s of close(), %d of them by handlers that still run; %s: nsqd delivers them "
                "again%s",
                counted(len(left), "message was", "messages were"),
                timeout,
                sum(message in running for message in left),
                " and ".join(f"{number} {text}" for number, text in what if number),
                " unless it was killed" if lost else "",
            )
        self._requeued += requeued
        self._timed_out += len(late)
        self._lost += lost
        return bool(left)

    def _unanswered(self) -> list[Message]:
        """Return the messages that are not answered, timed out ones included whose handlers still run."""
        rest: list[Message] = [*self.workers.handling, *self.workers.inbox]
        for connection in self.connections:
            rest += connection.in_flight_messages.async_messages
        return [message for message in dict.fromkeys(rest) if not message.has_responded()]

    # --- discovery

    def query_lookupd(self) -> None:
        """Query all nsqlookupds once, and start connecting to the nsqds that they name."""
        consumer, before = self._consumer, self.nodes.addresses

        def add(address: str) -> None:
            self.pool.add(address, permanent=False)
            if address not in before:
                # The nsqd has registered since the last query: connect now, even after many failed attempts.
                self.pool.retry(address)

        self._looked_up = self.nodes.refresh(add, self.pool.connections.keys() - consumer.nsqd_tcp_addresses)
        self.pool.retain_only(self.nodes.addresses)
        if not self.pool.connections:
            self.nodes.log_empty_round(consumer.logger, self._poll_interval)

    @property
    def _poll_interval(self) -> float:
        """Seconds between two lookups, without jitter."""
        return self._consumer.options.poll_interval(
            self._clock.monotonic() - since for since in self._lost_nsqds.values()
        )

    def _poll_lookupds(self) -> None:
        try:
            self._consumer.query_lookupd()
        finally:
            self._first_attempts.lookup_ended()
        while True:
            spread = 1 + self._consumer.options.lookupd_poll_jitter * (random.random() - 0.5)
            began = self._clock.monotonic()
            while (left := began + self._poll_interval * spread - self._clock.monotonic()) > 0:
                self._nsqd_lost.clear()
                self._clock.wait(self._nsqd_lost, left)
            self._consumer.query_lookupd()

    # --- connections

    def make_connection(self, address: str) -> Connection:
        """Make a connection, which is opened later."""
        host, port = parse_address(address)
        self._check_who_wants_finishes()
        return Connection(
            *(host, port, self._connection_options, self._clock),
            listener=self,
            owner=self._owner,
            latency=self.workers.latency,
        )

    def _setup_connection(self, connection: Connection) -> None:
        consumer = self._consumer
        if connection.identity.auth:
            call_override(self._log, consumer.handle_auth, connection, dict(connection.identity.auth))
        connection.subscribe(consumer.topic, consumer.channel)
        self._lost_nsqds.pop(connection.address, None)
        self.rdy.add(connection)

    def _on_connection_lost(self, connection: Connection) -> None:
        before = self.closed_counts.get(connection.address, MessageCounts())
        self.closed_counts[connection.address] = before + connection.in_flight_messages.totals
        self.workers.drop_from(connection.address)
        self.rdy.remove(connection)
        if len(self._lost_nsqds) >= MAX_NSQDS:
            del self._lost_nsqds[next(iter(self._lost_nsqds))]
        self._lost_nsqds[connection.address] = self._clock.monotonic()
        self._nsqd_lost.set()

    def on_response(self, connection: Connection, data: bytes) -> None:
        """Call handle_response(), which may be overridden."""
        call_override(self._log, self._consumer.handle_response, connection, data)

    def on_error(self, connection: Connection, error: NSQErrorCode) -> None:
        """Call handle_error(), which may be overridden."""
        call_override(self._log, self._consumer.handle_error, connection, error)

    # --- messages

    def on_messages(self, connection: Connection, messages: list[Message]) -> None:
        """Receive the messages of one read. Look up the receivers of signals once for all these messages."""
        self.runner.look_up_handlers()
        if self._consumer.on_finish.receivers or self.wants_finishes:
            self._check_who_wants_finishes()
        self.rdy.on_messages(connection, len(messages))
        # Update RDY before handlers run: a BatchHandler does not wait for more messages than RDY allows.
        self.workers.put(messages, at_once=not self.rdy.is_update_scheduled)
        if connection.is_over_ready:
            self.rdy.check_in_flight(connection, lambda: [*self.workers.inbox, *self._unanswered_messages()])

    def may_handle_in_hub(self) -> bool:
        """Return True if on_messages() does not wait: it logs nothing of a backoff, and of messages that timed out."""
        return not self.workers.inbox and self.rdy.backoff.phase is BackoffPhase.OFF

    def _unanswered_messages(self) -> list[Message]:
        """Return the messages whose handlers still run, and the async messages."""
        # Other threads may change the sets of async messages. So copy each by list(), one step of the interpreter.
        connections = self.pool.connections.values()
        async_messages = [list(connection.in_flight_messages.async_messages) for connection in connections]
        return list(itertools.chain(self.workers.handling, *async_messages))

    def handle_one(self, message: Message) -> object:
        """Call handle_message(), which may be overridden, and return its result."""
        handle: Callable[..., object] = self._consumer.handle_message  # an override may return anything
        return handle(self.pool.connections.get(message.nsqd or ""), message)

    # --- results

    def requeue_after(self, attempts: int) -> int:
        """Return the consumer's delay of a REQ in milliseconds. Its options may be replaced while it runs."""
        return self._consumer.options.requeue_after(attempts, self._owner)

    def _check_who_wants_finishes(self) -> None:
        """Listen to FINs only while a receiver, an override or the backoff needs it: a call for each takes time."""
        self.wants_finishes = bool(
            self._consumer.on_finish.receivers or self.rdy.backoff.needs_successes or "handle_finish" in self._overrides
        )

    def on_finish(self, connection: Connection, message_id: bytes) -> None:
        """Handle that FIN was sent."""
        if self.runner.is_given_up(connection.address, message_id):
            self.rdy.record_neutral(connection)
        elif self.rdy.backoff.needs_successes:
            self.rdy.record_success()
            self._check_who_wants_finishes()
        call_override(self._log, self._consumer.handle_finish, connection, message_id)

    def on_requeue(self, connection: Connection, message_id: bytes, timeout: int, backoff: bool) -> None:
        """Handle that REQ was sent."""
        if backoff:
            self._last_error = str(
                self.runner.noted_failure(connection.address, message_id) or "requeued by the program"
            )
            self.rdy.record_failure()
            self._check_who_wants_finishes()
        else:
            self.rdy.record_neutral(connection)
        call_override(self._log, self._consumer.handle_requeue, connection, message_id, timeout, backoff)

    def _on_backoff_phase(self, phase: str, failures: int, duration: float, worked: bool) -> None:
        one_by_one = " one by one" if failures > 1 else ""
        if phase == "end":
            text = "messages are handled again, as many as before"
        elif worked:
            text = f"it works again; {failures} more to try{one_by_one}, the next in {duration:.1f} s"
        else:
            text = f"failed; no messages for {duration:.1f} s, then {failures} to try{one_by_one}"
        level = logging.WARNING if phase == "start" else logging.INFO
        self._log.log(level, "%s; last error: %s", text, self._last_error)
        notify(self._consumer.on_backoff, self._consumer, phase=phase, failures=failures, duration=duration)

    # --- state

    @property
    def is_subscribed(self) -> bool:
        """True if an nsqd sends messages."""
        return any(connection.state is ConnectionState.SUBSCRIBED for connection in self.connections)

    @property
    def waits_for_topic(self) -> bool:
        """True if an nsqlookupd has answered that no nsqd has the topic, and none has had it."""
        known = self._consumer.nsqd_tcp_addresses or self.nodes.addresses or self._lost_nsqds or self.pool.failures()
        return self._looked_up and not (known or self.nodes.wrong)

    @property
    def can_receive(self) -> bool:
        """True if an nsqd is connected, or an nsqlookupd answered the last query, and no server has failed."""
        if self.nodes.wrong:
            return False
        return bool(self.pool.connections) or (self._looked_up and not self.pool.failures())

    def failures(self) -> dict[str, str]:
        """Return why there is no connection, by address of the nsqd."""
        return {address: error.explanation for address, error in self.pool.failures().items()}

    def why_not_ready(self) -> str:
        """Return the reason why no nsqd sends messages. Empty: one does."""
        if self.is_subscribed:
            return ""
        failures, consumer = self.failures(), self._consumer
        reasons = [f"{address}: {text}" for address, text in failures.items()]
        connecting = sorted((consumer.nsqd_tcp_addresses | self.nodes.addresses) - failures.keys())
        reasons += [f"{address}: still connecting" for address in connecting]
        if not self.nodes.addresses:
            reasons += self.nodes.explanations()
        return "; ".join(reasons)

    def stats(self, state: str, why_not_running: str) -> ConsumerStats:
        """Return the statistics of the consumer, which is in a state."""
        rdy, workers, runner = self.rdy, self.workers, self.runner
        connections = tuple(connection.stats() for connection in self.connections)
        counts = dict(self.closed_counts)
        for connection in connections:
            counts[connection.address] = counts.get(connection.address, MessageCounts()) + connection.counts
        return ConsumerStats(
            topic=self._consumer.topic,
            channel=self._consumer.channel,
            state=state,
            max_in_flight=rdy.max_in_flight,
            connections=connections,
            counts=sum(counts.values(), MessageCounts()),
            given_up=runner.given_up,
            failed=runner.failed,
            waiting=len(workers.inbox),
            handling=len(workers.handling),
            backoff=rdy.backoff.phase.value,
            backoff_failures=rdy.backoff.failures,
            backoff_remaining=rdy.backoff_remaining,
            latency=workers.latency.histogram(),
            handlers_overdue=len(runner.overdue()),
            handlers_timed_out=runner.handlers_timed_out,
            async_timed_out=runner.async_timed_out,
            failures=self.failures(),
            lookupd_failures=dict(self.nodes.failures),
            not_ready=why_not_running or self.why_not_ready(),
            unanswered=self.unanswered,
            counts_by_nsqd=counts,
        )


def _is_timed_out(message: Message) -> bool:
    return message.timed_out or message.time_left == 0


def _refused_requeues(connections: Iterable[Connection]) -> int:
    return sum(connection.in_flight_messages.refused_requeues for connection in connections)
