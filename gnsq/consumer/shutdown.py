"""Shutdown of a consumer: waits a limited time until delivered messages are answered, then requeues the rest."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from gevent.event import Event

from gnsq.clock import Clock
from gnsq.concurrency.greenlets import spawn
from gnsq.consumer.worker_pool import WorkerPool
from gnsq.errors import NSQException
from gnsq.message import Message
from gnsq.nsqd.connection import Connection
from gnsq.nsqd.pool import ConnectionPool
from gnsq.texts import counted

__all__ = ["Shutdown"]

logger = logging.getLogger(__name__)

# Seconds after the end of the timeout, in which the REQs are sent and nsqd closes the connections.
REQUEUE_GRACE = 2.0
# Seconds between two checks whether other handlers have ended, or whether further messages have arrived.
POLL_INTERVAL = 0.05


class Shutdown:
    """The shutdown of one consumer.

    Args:
        timeout: Seconds to wait for the answers to delivered messages.
        label: Name of the consumer in log lines.
        log: Logger of the consumer.
    """

    def __init__(
        self,
        timeout: float,
        workers: WorkerPool,
        pool: ConnectionPool,
        clock: Clock,
        label: str,
        log: logging.Logger,
    ) -> None:
        self._timeout = timeout
        self._workers = workers
        self._pool = pool
        self._clock = clock
        self._label = label
        self._log = log
        # The messages that were not answered: each is counted once.
        self._requeued = self._timed_out = self._lost = 0
        self._done = Event()
        # Number of handlers that are in join(). wait_for_others() does not wait for their messages.
        self._waiting_handlers = 0

    def run(self) -> int:
        """Close each connection when it has no message in flight. After the timeout, requeue the messages in flight.

        Returns:
            Number of messages that were not answered: the requeued, the timed out and the lost ones.
        """
        connections = list(self._pool.connections.values())
        in_flight = sum(connection.in_flight for connection in connections)
        late = sum(map(_is_timed_out, self._unanswered()))
        text = "%s: closing, with up to %g s for %s in flight%s on %s"
        what = counted(in_flight, "message"), f" and {late} timed out" if late else ""
        self._log.info(text, self._label, self._timeout, *what, counted(len(connections), "connection"))
        closer = spawn(
            f"gnsq-drain-{self._label}", self._pool.close, self._timeout + REQUEUE_GRACE, on_failure="not drained"
        )
        closer.rawlink(lambda _: self._done.set())
        refused = _refused_requeues(connections)
        try:
            is_drained = self._clock.wait(self._done, self._timeout)
            refused = _refused_requeues(connections)
            if not is_drained and self._requeue_unanswered():
                end = self._clock.monotonic() + REQUEUE_GRACE
                # Messages that nsqd sent before it read the CLS may still arrive.
                while not self._clock.wait(self._done, POLL_INTERVAL) and self._clock.monotonic() < end:
                    self._requeue_unanswered()
        finally:
            # Messages that are still in the inbox have lost their connections: nsqd delivers them again.
            self._workers.inbox.clear()
            self._done.set()
            closer.kill()  # aborts the connections that are still open
            self._lost += sum(connection.in_flight for connection in connections)
            self._log_end(_refused_requeues(connections) - refused)
        return self._requeued + self._timed_out + self._lost

    def _log_end(self, refused: int) -> None:
        left = []
        if requeued := self._requeued - refused:
            left.append(f"{counted(requeued, 'message')} requeued")
        if timed_out := self._timed_out + refused:
            left.append(f"{counted(timed_out, 'message')} timed out")
        if self._lost:
            left.append(f"{counted(self._lost, 'message')} not answered, which nsqd delivers again")
        self._log.info("%s: closed; %s", self._label, " and ".join(left) or "nothing was left")

    def wait_for_others(self, timeout: float) -> None:
        """For a handler: wait up to timeout seconds until only handlers in this method have unanswered messages."""
        end = self._clock.monotonic() + timeout
        self._waiting_handlers += 1
        try:
            while not self._done.is_set() and self._has_other_messages():
                left = min(POLL_INTERVAL, end - self._clock.monotonic())
                if left <= 0:
                    return
                self._clock.wait(self._done, left)
        finally:
            self._waiting_handlers -= 1

    def _has_other_messages(self) -> bool:
        connections = self._pool.connections.values()
        async_messages = sum(len(connection.in_flight_messages.async_messages) for connection in connections)
        return len(self._workers.inbox) + self._workers.busy + async_messages > self._waiting_handlers

    def _requeue_unanswered(self) -> bool:
        """Requeue the messages that are not answered. Return True if there were any."""
        left, running = self._unanswered(), set(self._workers.handling)
        self._workers.inbox.clear()
        late = [message for message in left if _is_timed_out(message)]
        if left:
            parts = [f"{len(left) - len(late)} requeued"] * (len(late) < len(left))
            parts += [f"{len(late)} timed out before"] * bool(late)
            logger.warning(
                "%s: %s not answered within %s s of close(), %d of them by handlers that still run; %s: nsqd delivers "
                "them again",
                self._label,
                counted(len(left), "message was", "messages were"),
                self._timeout,
                sum(message in running for message in left),
                " and ".join(parts),
            )
        for message in late:
            message.drop()  # nsqd has taken it back, and would refuse a REQ
        self._timed_out += len(late)
        for message in left:
            if message.has_responded():
                continue
            try:
                message.requeue(0, backoff=False)
                self._requeued += 1
            except NSQException:
                self._lost += 1
        return bool(left)

    def _unanswered(self) -> list[Message]:
        """Return the messages that are not answered, timed out ones included whose handlers still run."""
        rest: list[Message] = [*self._workers.handling, *self._workers.inbox]
        for connection in self._pool.connections.values():
            rest += connection.in_flight_messages.async_messages
        return [message for message in dict.fromkeys(rest) if not message.has_responded()]


def _is_timed_out(message: Message) -> bool:
    return message.timed_out or message.time_left == 0


def _refused_requeues(connections: Iterable[Connection]) -> int:
    return sum(connection.in_flight_messages.refused_requeues for connection in connections)
