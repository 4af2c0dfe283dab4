"""Home: the OS thread whose hub something lives in, and the way there from other threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent
from gevent import monkey

from gnsq.doors import door
from gnsq.errors import NSQConnectionClosed, NSQException

__all__ = ["Home", "get_ident"]

logger = logging.getLogger(__name__)

# Monkey patching makes the usual one tell greenlets apart, not threads.
get_ident: Callable[[], int] = monkey.get_original("_thread", "get_ident")


class Home:
    """The calling thread, to be asked and called from others.

    Attributes:
        thread: What get_ident() gives in it.
    """

    __slots__ = ("_door", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        self._door = door()

    @property
    def elsewhere(self) -> bool:
        """Whether the caller runs in another thread."""
        return get_ident() != self.thread

    def call(self, function: Callable[..., object], *arguments: Any) -> None:  # Any: the function's own
        """Call a function soon, in a greenlet of the home's hub; begun in the order of these calls. What it raises
        of ours is logged only.

        Raises:
            NSQConnectionClosed: If the home's hub is gone.
        """
        try:
            self._door.call(gevent.spawn, _guarded, function, arguments)
        except ValueError as error:  # gevent's word for a loop that was destroyed
            raise NSQConnectionClosed("the thread that the connection belongs to has ended") from error


def _guarded(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except NSQException as error:
        # nsqd delivers the message again when its timeout ends.
        logger.info("an answer from another thread was not sent: %s", error)
