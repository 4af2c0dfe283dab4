"""Crossing: what a thread waits with for something that is done in another thread; Token: which of them may do it;
Gate: what happens once, for all threads.

Knows threads and hubs only, and nothing of what is done.
"""

from __future__ import annotations

import contextlib
import time
from typing import Generic, TypeVar

from gevent._hub_local import get_hub_if_exists
from gevent.event import Event

from gnsq.concurrency.doors import Door, door
from gnsq.concurrency.natives import allocate_lock

__all__ = ["EVER", "Crossing", "Gate", "Token"]

T = TypeVar("T")

# What stands for no limit, seconds: native locks and timers know no infinity.
EVER = 1e9
# A plain thread that waits looks so often, in seconds, whether a signal has come.
LOOK = 1.0


class Crossing(Generic[T]):
    """A value or an error, given once by any thread, and the wait of one other thread for it.

    Made for each thing that is waited for: a microsecond, and no hub where there is none.
    """

    __slots__ = ("_done", "_error", "_given", "_value", "_waiter", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._given = Token()
        self._error: BaseException | None = None
        # Held until it is done: a plain thread waits for this.
        self._done = allocate_lock()
        self._done.acquire()
        # A thread with a hub waits for this.
        self._waiter: tuple[Door, Event] | None = None

    def set(self, value: T) -> bool:
        """Give the value, from any thread, never waiting. Ignored, and False, if something was given before."""
        if not self._given.claim():
            return False
        self._value = value
        self._finish()
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Give an error for result() to raise; otherwise as set()."""
        if not self._given.claim():
            return False
        self._error = error
        self._finish()
        return True

    def wait(self, timeout: float) -> bool:
        """Wait up to timeout seconds, one thread at a time; say whether something was given.

        Blocks a thread that has no hub. In one that has, other greenlets run meanwhile.
        """
        if not self.is_set:
            if get_hub_if_exists() is None:
                self._wait_without_hub(timeout)
            else:
                self._wait_in_hub(timeout)
        return self.is_set

    def result(self) -> T:
        """Give the value, or raise the error.

        Raises:
            RuntimeError: If nothing was given yet.
        """
        __tracebackhide__ = True
        if not self.is_set:
            raise RuntimeError("nothing was given yet")
        if self._error is not None:
            raise self._error
        return self._value

    def _finish(self) -> None:
        # In this order, while _wait_in_hub() goes the other way: one of the two sees the other.
        self.is_set = True
        self._done.release()
        if self._waiter is not None:
            where, woken = self._waiter
            # The hub may have ended: then nobody waits.
            with contextlib.suppress(ValueError):
                where.call(woken.set)

    def _wait_without_hub(self, timeout: float) -> None:
        # A signal that strikes between the interpreter's last look and the system call would be seen behind it only.
        end = time.monotonic() + timeout
        while not self._done.acquire(timeout=min(max(end - time.monotonic(), 0.0), LOOK)):
            if time.monotonic() >= end:
                return

    def _wait_in_hub(self, timeout: float) -> None:
        woken = Event()
        self._waiter = (door(), woken)
        if not self.is_set:
            # Its timer keeps the loop alive, too, which a door does not.
            woken.wait(min(timeout, EVER))


class Token:
    """Something that one of several threads gets: what is taken by one is not given up by another."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()

    def claim(self) -> bool:
        """Say True to the first caller of all, False to each other; never waits."""
        return bool(self._lock.acquire(False))


class Gate:
    """Something that happens once, for any number of threads and greenlets to wait for."""

    __slots__ = ("_waiting", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: dict[Crossing[None], None] = {}

    def open(self) -> None:
        """Let all go on, now and later; never waits."""
        # In this order, while wait() goes the other way: one of the two sees the other.
        self.is_open = True
        for crossing in list(self._waiting):
            crossing.set(None)

    def wait(self, timeout: float) -> bool:
        """Wait up to timeout seconds, as Crossing.wait() does; say whether it is open."""
        crossing: Crossing[None] = Crossing()
        self._waiting[crossing] = None
        try:
            if not self.is_open:
                crossing.wait(timeout)
        finally:
            del self._waiting[crossing]
        return self.is_open
