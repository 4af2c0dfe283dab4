"""Passes messages from connections to handlers, and the results of handlers to RdyController.

Connects WorkerPool, HandlerRunner and RdyController with the connections. Knows nothing of nsqlookupd, of the
consumer's own thread, or of the start and close of the consumer.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Set
from typing import Protocol

from gnsq.addresses import parse_address
from gnsq.backofftimer import BackoffPhase
from gnsq.clock import Clock
from gnsq.consumer.dead_letters import DeadLetterPublisher
from gnsq.consumer.handler_runner import HandlerOwner, HandlerRunner
from gnsq.consumer.rdy_controller import RdyController
from gnsq.consumer.worker_pool import WorkerPool
from gnsq.errors import NSQErrorCode
from gnsq.message import Message
from gnsq.nsqd.connection import Connection, ConnectionListener
from gnsq.nsqd.pool import ConnectionPool
from gnsq.options import ConnectionOptions
from gnsq.signals import BackoffReceiver, FinishReceiver, TypedSignal, call_override, notify
from gnsq.stats import MessageCounts

__all__ = ["MessageDispatcher"]


class DispatcherOwner(HandlerOwner, Protocol):
    """The part of a Consumer that MessageDispatcher uses. Subclasses of Consumer may override the methods."""

    on_finish: TypedSignal[FinishReceiver]
    on_backoff: TypedSignal[BackoffReceiver]

    @property
    def concurrency(self) -> int: ...
    def handle_messages(self, messages: list[Message]) -> None: ...
    def handle_response(self, conn: Connection, response: bytes) -> None: ...
    def handle_error(self, conn: Connection, error: NSQErrorCode) -> None: ...
    def handle_finish(self, conn: Connection, message_id: bytes) -> None: ...
    def handle_requeue(self, conn: Connection, message_id: bytes, timeout: int, backoff: bool) -> None: ...


class MessageDispatcher(ConnectionListener):
    """The listener of a consumer's connections. Passes their messages to handlers, and the results of these to
    RdyController.

    Args:
        overrides: Those of handle_message, handle_messages and handle_finish that a subclass has overridden.

    Attributes:
        closed_counts: Message counts of closed connections, by the address of the nsqd.
    """

    def __init__(
        self,
        consumer: DispatcherOwner,
        pool: ConnectionPool,
        clock: Clock,
        overrides: Set[str],
        letters: DeadLetterPublisher | None,
    ) -> None:
        self.closed_counts: dict[str, MessageCounts] = {}
        self._last_error = ""  # of the last message that has failed, for the lines about the backoff
        self._consumer = consumer
        self._logger = consumer.log_owner.log(consumer.logger)
        self._pool = pool
        self._clock = clock
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
            pool.connections,
            clock,
            unanswered=self._unanswered_messages,
            on_timed_out=self.runner.on_timed_out,
            not_attempted=lambda: pool.not_attempted,
            on_phase=self._on_backoff_phase,
            want_answers=self._want_answers,
            owner=consumer.log_owner,
        )

    def handle_one(self, message: Message) -> object:
        """Call handle_message(), which may be overridden, and return its result."""
        handle: Callable[..., object] = self._consumer.handle_message  # an override may return anything
        return handle(self._pool.connections.get(message.nsqd or ""), message)

    def requeue_after(self, attempts: int) -> int:
        """Return the consumer's delay of a REQ in milliseconds. Its options may be replaced while it runs."""
        return self._consumer.options.requeue_after(attempts, self._consumer.log_owner)

    # --- connections

    def make_connection(self, address: str, options: ConnectionOptions) -> Connection:
        """Make a connection that passes its messages to this object. It is opened later."""
        host, port = parse_address(address)
        self._check_who_wants_finishes()
        return Connection(
            *(host, port, options, self._clock),
            listener=self,
            owner=self._consumer.log_owner,
            latency=self.workers.latency,
        )

    def add(self, connection: Connection) -> None:
        """Request messages of a connection that has subscribed."""
        self.rdy.add(connection)

    def remove(self, connection: Connection) -> None:
        """Handle the loss of a connection: keep its counts, and drop its messages that wait for a handler."""
        before = self.closed_counts.get(connection.address, MessageCounts())
        self.closed_counts[connection.address] = before + connection.in_flight_messages.totals
        self.workers.drop_from(connection.address)
        self.rdy.remove(connection)

    def on_response(self, connection: Connection, data: bytes) -> None:
        """Call handle_response(), which may be overridden."""
        call_override(self._logger, self._consumer.handle_response, connection, data)

    def on_error(self, connection: Connection, error: NSQErrorCode) -> None:
        """Call handle_error(), which may be overridden."""
        call_override(self._logger, self._consumer.handle_error, connection, error)

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
        connections = self._pool.connections.values()
        async_messages = [list(connection.in_flight_messages.async_messages) for connection in connections]
        return list(itertools.chain(self.workers.handling, *async_messages))

    # --- results

    def _check_who_wants_finishes(self) -> None:
        """Listen to FINs only while a receiver, an override or the backoff needs it: a call for each takes time."""
        self.wants_finishes = bool(
            self._consumer.on_finish.receivers or self.rdy.backoff.needs_successes or "handle_finish" in self._overrides
        )

    def _want_answers(self, wanted: bool) -> None:
        self.wants_answers = wanted

    def before_answer(self, connection: Connection, count: int) -> None:
        """Let a lower RDY be sent before FIN or REQ."""
        self.rdy.before_answer(connection, count)

    def on_finish(self, connection: Connection, message_id: bytes) -> None:
        """Handle that FIN was sent."""
        if self.runner.is_given_up(connection.address, message_id):
            self.rdy.record_neutral(connection)
        elif self.rdy.backoff.needs_successes:
            self.rdy.record_success()
            self._check_who_wants_finishes()
        call_override(self._logger, self._consumer.handle_finish, connection, message_id)

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
        call_override(self._logger, self._consumer.handle_requeue, connection, message_id, timeout, backoff)

    def _on_backoff_phase(self, phase: str, failures: int, duration: float, worked: bool) -> None:
        one_by_one = " one by one" if failures > 1 else ""
        if phase == "end":
            text = "messages are handled again, as many as before"
        elif worked:
            text = f"it works again; {failures} more to try{one_by_one}, the next in {duration:.1f} s"
        else:
            text = f"failed; no messages for {duration:.1f} s, then {failures} to try{one_by_one}"
        level = logging.WARNING if phase == "start" else logging.INFO
        self._logger.log(level, "%s; last error: %s", text, self._last_error)
        notify(self._consumer.on_backoff, self._consumer, phase=phase, failures=failures, duration=duration)
