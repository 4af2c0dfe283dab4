"""Lets the event loop poll instead of sleep for a short time, while something is awaited that usually comes soon."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import gevent

__all__ = ["MAX_SKIPPED", "POLL_SECONDS", "SEQUENTIAL_WITHIN", "Awaited", "BusyPoller"]

# Seconds: the longest poll, and the longest time between two calls of poll() for which polling is useful. nsqd responds
# after 0.1 ms on a virtual machine. With polls of 0.1 ms, many end just before, and a publish takes 1.5 times as long.
POLL_SECONDS, SEQUENTIAL_WITHIN = 0.0003, 0.0008
# If nothing has come when a poll ends, the next call of poll() is skipped. If the poll after that ends in the same way,
# the next three calls are skipped, then the next seven, up to MAX_SKIPPED calls.
MAX_SKIPPED = 1000


class Awaited(Protocol):
    """Something that is awaited, such as a publish without a response.

    Attributes:
        done: True after it has come.
    """

    done: bool


class BusyPoller:
    """Lets the event loop of the hub in which it is made poll briefly, if poll() is called again and again.

    Waking a sleeping processor takes 30 to 60 us on a virtual machine, which is longer than an nsqd nearby takes
    to respond. While the loop polls, it asks for events without sleeping, and handles all events. The cost is processor
    time: at most the time that the loop would otherwise sleep. There is no polling if the calls come with pauses, and
    little if what is awaited comes late.

    Args:
        now: Returns monotonic seconds. Not a clock of the tests, since the time of a manual clock does not pass while
            the loop polls.

    Attributes:
        rounds: Number of rounds of the event loop while this object let it poll.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.rounds = 0
        self._now = now
        # While this idle watcher runs, no round of the loop sleeps.
        self._watcher = gevent.get_hub().loop.idle(ref=False)
        self._is_polling = False
        self._end = 0.0
        self._last_poll = 0.0
        self._awaited: Awaited | None = None
        self._skip = self._left_to_skip = 0

    def poll(self, awaited: Awaited) -> None:
        """Poll until something comes, if the call follows the previous one closely, and need not be skipped since
        earlier things came late."""
        now = self._now()
        is_sequential, self._last_poll = now - self._last_poll < SEQUENTIAL_WITHIN, now
        if not is_sequential:
            return
        if self._left_to_skip:
            self._left_to_skip -= 1
            return
        self._awaited = awaited
        self._end = now + POLL_SECONDS
        if not self._is_polling:
            self._is_polling = True
            self._watcher.start(self._check)

    def close(self) -> None:
        """Stop polling, and do not poll again."""
        self._is_polling = True  # so that poll() does not start the watcher
        self._watcher.stop()
        self._watcher.close()

    def _check(self) -> None:
        self.rounds += 1
        has_come = self._awaited is None or self._awaited.done
        if not has_come and self._now() < self._end:
            return
        self._is_polling = False
        self._watcher.stop()
        if has_come:
            self._skip = 0
        else:
            self._skip = self._left_to_skip = min(2 * self._skip + 1, MAX_SKIPPED)
        self._awaited = None
