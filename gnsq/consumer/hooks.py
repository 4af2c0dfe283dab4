"""Hooks: a consumer's signals, and what subclasses may override.

Tells others; decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from blinker import Signal

from gnsq.errors import NSQErrorCode
from gnsq.nsqd.connection import Connection
from gnsq.signals import notify

__all__ = ["Hooks"]


class Hooks:
    """Base of Consumer. What an override raises is logged, and changes nothing."""

    logger: logging.Logger

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
            self.logger.exception("%s of a subclass raised", getattr(function, "__name__", function))
