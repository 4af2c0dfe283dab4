"""Home: the OS thread whose hub something lives in, and the way there from other threads."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import gevent
from gevent import monkey

from gnsq.errors import NSQConnectionClosed, NSQException

__all__ = ["Home", "get_ident"]

logger = logging.getLogger(__name__)

# Monkey patching makes the usual one tell greenlets apart, not threads.
get_ident: Callable[[], int] = monkey.get_original("_thread", "get_ident")


class _Door:
    """Where a hub takes in calls of other threads.

    Not the loop's run_callback_threadsafe(): with gevent 26.9 and libev, many calls of it beside other work make the
    loop miscount its watchers, until it ends with LoopExit. A watcher's send() is made for threads.
    """

    def __init__(self, loop: Any) -> None:  # Any: gevent has no types
        self.calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        # Not ref: a thread that could call keeps no program alive.
        self.watcher = loop.async_(ref=False)
        self.watcher.start(self._take_in)

    def _take_in(self) -> None:
        calls = self.calls
        while calls:
            gevent.spawn(_guarded, *calls.popleft())


# One for each hub.
_doors: weakref.WeakKeyDictionary[Any, _Door] = weakref.WeakKeyDictionary()


class Home:
    """The calling thread, to be asked and called from others.

    Attributes:
        thread: What get_ident() gives in it.
    """

    __slots__ = ("_door", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        hub = gevent.get_hub()
        door = _doors.get(hub)
        if door is None:
            door = _doors[hub] = _Door(hub.loop)
        self._door = door

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
        self._door.calls.append((function, arguments))
        try:
            self._door.watcher.send()
        except ValueError as error:  # gevent's word for a loop that was destroyed
            raise NSQConnectionClosed("the thread that the connection belongs to has ended") from error


def _guarded(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except NSQException as error:
        # nsqd delivers the message again when its timeout ends.
        logger.info("an answer from another thread was not sent: %s", error)
