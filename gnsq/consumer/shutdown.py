"""Shutdown of a consumer: waits a limited time until delivered messages are answered, then requeues the rest."""

from __future__ import annotations

import contextlib
import logging

from gevent.event import Event

from gnsq.clock import Clock
from gnsq.concurrency.greenlets import spawn
from gnsq.consumer.worker_pool import WorkerPool
from gnsq.errors import NSQException
from gnsq.message import Message
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
        self._requeued = 0
        self._done = Event()
        # Number of handlers that are in join(). wait_for_others() does not wait for their messages.
        self._waiting_handlers = 0

    def run(self) -> int:
        """Close each connection when it has no message in flight. After the timeout, requeue the messages in flight.

        Returns:
            Number of messages that were requeued or not answered.
        """
        connections = list(self._pool.connections.values())
        in_flight = sum(connection.in_flight for connection in connections)
        text = "%s: closing, with up to %g s for %s in flight on %s"
        what = counted(in_flight, "message"), counted(len(connections), "connection")
        self._log.info(text, self._label, self._timeout, *what)
        closer = spawn(
            f"gnsq-drain-{self._label}", self._pool.close, self._timeout + REQUEUE_GRACE, on_failure="not drained"
        )
        closer.rawlink(lambda _: self._done.set())
        try:
            if not self._clock.wait(self._done, self._timeout) and self._requeue_unanswered():
                end = self._clock.monotonic() + REQUEUE_GRACE
                # Messages that nsqd sent before it read the CLS may still arrive.
                while not self._clock.wait(self._done, POLL_INTERVAL) and self._clock.monotonic() < end:
                    self._requeue_unanswered()
        finally:
            # Messages that are still in the inbox have lost their connections: nsqd delivers them again.
            self._workers.inbox.clear()
            self._done.set()
            closer.kill()  # aborts the connections that are still open
            lost = sum(connection.in_flight for connection in connections)
            self._log_end(lost)
        return self._requeued + lost

    def _log_end(self, lost: int) -> None:
        left = []
        if self._requeued:
            left.append(f"{counted(self._requeued, 'message')} requeued")
        if lost:
            left.append(f"{counted(lost, 'message')} not answered, which nsqd delivers again")
        self._log.info("%s: closed; %s", self._label, " and ".join(left) or "nothing was left")

    def wait_for_others(self, timeout: float | None) -> None:
        """For a handler: wait up to timeout seconds until only handlers in this method have unanswered messages."""
        end = None if timeout is None else self._clock.monotonic() + timeout
        self._waiting_handlers += 1
        try:
            while not self._done.is_set() and self._has_other_messages():
                left = POLL_INTERVAL if end is None else min(POLL_INTERVAL, end - self._clock.monotonic())
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
        running = self._workers.handling
        rest: list[Message] = [*running, *self._workers.inbox]
        for connection in self._pool.connections.values():
            rest += connection.in_flight_messages.async_messages
        self._workers.inbox.clear()
        left = [message for message in dict.fromkeys(rest) if not message.has_responded()]
        if left:
            logger.warning(
                "%s: %s not answered within %s s of close(), %d of them by handlers that still run; requeued, to be "
                "delivered again at once",
                self._label,
                counted(len(left), "message was", "messages were"),
                self._timeout,
                sum(not message.has_responded() for message in running),
            )
        for message in left:
            with contextlib.suppress(NSQException):
                message.requeue(0, backoff=False)
                self._requeued += 1
        return bool(left)
