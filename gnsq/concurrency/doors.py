"""Doors: the way into a hub from other OS threads."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import gevent

__all__ = ["Door", "door"]


class Door:
    """Where a hub takes in calls of other threads; made in its own.

    Not the loop's run_callback_threadsafe(): with gevent 26.9 and libev, calls of it beside other work make the loop
    miscount its watchers, until it ends with LoopExit or does not end. A watcher's send() is made for threads.
    """

    def __init__(self, loop: Any) -> None:  # Any: gevent has no types
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        # Not ref: a thread that could call keeps no program alive.
        self._watcher = loop.async_(ref=False)
        self._watcher.start(self._take_in)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:  # Any: the function's own
        """Call a function soon, in the hub itself: it must not wait. In the order of these calls.

        Raises:
            ValueError: If the hub's loop was destroyed.
        """
        self._calls.append((function, arguments))
        self._watcher.send()

    def close(self) -> None:
        """Take no more calls in: before the hub's loop is destroyed, which frees no watcher that is started."""
        self._watcher.close()

    def _take_in(self) -> None:
        # Each as a callback of its own: one that raises is printed by gevent, and the others go on.
        while self._calls:
            function, arguments = self._calls.popleft()
            self._loop.run_callback(function, *arguments)


# One for each hub.
_doors: weakref.WeakKeyDictionary[Any, Door] = weakref.WeakKeyDictionary()


def door() -> Door:
    """Give the door of the calling thread's hub."""
    hub = gevent.get_hub()
    found = _doors.get(hub)
    if found is None:
        found = _doors[hub] = Door(hub.loop)
    return found
