"""Hooks: a consumer's signals, and what subclasses may override.

Tells others; decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from blinker import Signal

from gnsq.errors import NSQErrorCode
from gnsq.message import Message
from gnsq.nsqd.connection import Connection
from gnsq.pool import ConnectionPool
from gnsq.repeats import Owner
from gnsq.signals import notify

if TYPE_CHECKING:
    from gnsq.consumer.handling import Handling

__all__ = ["Hooks"]


class Hooks:
    """Base of Consumer. What an override raises is logged, and changes nothing."""

    logger: logging.Logger
    _pool: ConnectionPool
    _handling: Handling
    log_owner: Owner

    def __init__(self) -> None:
        self.on_message = Signal()
        self.on_response = Signal()
        self.on_error = Signal()
        self.on_finish = Signal()
        self.on_requeue = Signal()
        self.on_giving_up = Signal()
        self.on_auth = Signal()
        self.on_exception = Signal()
        self.on_close = Signal()
        self.on_backoff = Signal()

    def handle_message(self, conn: Connection | None, message: Message) -> None:
        """Call the handlers of on_message, and answer by how they end. Runs in a worker; conn is None if it is gone."""
        self._handling.handle(message)

    def handle_messages(self, messages: list[Message]) -> None:
        """Handle all that has come with one call, in place of handle_message() for each; for subclasses to override:
        without one it is not called, and with one handlers of on_message only by super(). Runs in a worker.

        What an override leaves unanswered is taken for asynchronous, and to be answered later. What it raises is what
        a handler raises: one failure, for which all is requeued that it has not answered; on_exception is sent with the
        first. Messages above max_tries are not among those it gets; handler_timeout is for the whole call.
        """
        for message in messages:
            self._handle_one(message)

    def _handle_one(self, message: Message) -> None:
        self.handle_message(self._pool.connections.get(message.nsqd or ""), message)

    def _overridden(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(Hooks, name)

    def handle_response(self, conn: Connection, response: bytes) -> None:
        """Send on_response."""
        notify(self.on_response, self, response=response)

    def handle_error(self, conn: Connection, error: NSQErrorCode) -> None:
        """Send on_error."""
        notify(self.on_error, self, error=error)

    def handle_auth(self, conn: Connection, response: dict[str, object]) -> None:
        """Send on_auth."""
        notify(self.on_auth, self, conn=conn, response=response)

    def handle_finish(self, conn: Connection, message_id: bytes) -> None:
        """Send on_finish."""
        notify(self.on_finish, self, message_id=message_id)

    def handle_requeue(self, conn: Connection, message_id: bytes, timeout: int, backoff: bool) -> None:
        """Send on_requeue."""
        notify(self.on_requeue, self, message_id=message_id, timeout=timeout)

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        """Call what a subclass may have overridden; nothing of ours may depend on it."""
        try:
            function(*arguments)
        except Exception:  # a subclass may raise anything
            self.logger.exception(
                "%s: %s of a subclass raised", self.log_owner.label, getattr(function, "__name__", function)
            )
