"""Workers: a few native threads for calls that block, so that no hub is blocked. Knows nothing of what is called."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from queue import Empty

from gevent import monkey

from gnsq.concurrency.threads import get_hub_if_exists

__all__ = ["Workers"]

logger = logging.getLogger(__name__)

# Native ones, monkey-patched or not: gevent's would belong to one hub.
_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_SimpleQueue = monkey.get_original("queue", "SimpleQueue")

# Seconds after which a thread without work ends, for owners that forget close().
IDLE_TIMEOUT = 30.0


class Workers:
    """Threads that are made when they are needed, and end with the process; callers may be on any thread.

    Threads do not survive a fork: the child makes Workers of its own.

    Args:
        limit: How many tasks run at once; more wait for their turn.
        idle_timeout: Seconds that a thread waits for a task before it ends.
    """

    def __init__(self, limit: int, idle_timeout: float = IDLE_TIMEOUT) -> None:
        self._limit = limit
        self._idle_timeout = idle_timeout
        self._tasks = _SimpleQueue()
        # Guards the two counts, and that a thread ends only while nothing is queued.
        self._lock = _allocate_lock()
        self._threads = 0
        # Queued or running.
        self._unfinished = 0

    def __len__(self) -> int:
        """How many threads there are."""
        return self._threads

    def do(self, task: Callable[[], None]) -> None:
        """Let a thread call this soon; never waits. What it raises is logged."""
        with self._lock:
            self._unfinished += 1
            self._tasks.put(task)
            if self._threads < min(self._limit, self._unfinished):
                _start_new_thread(self._work, ())
                self._threads += 1

    def close(self) -> None:
        """Let each thread end when it has done what is queued."""
        with self._lock:
            for _ in range(self._threads):
                self._tasks.put(None)

    def _work(self) -> None:
        # What debuggers and coverage ask of new threads.
        sys.settrace(threading.gettrace())
        sys.setprofile(threading.getprofile())
        while (task := self._next()) is not None:
            try:
                task()
            except Exception:
                logger.exception("%r failed", task)
            # Or what it holds would live until the next one comes.
            del task
            with self._lock:
                self._unfinished -= 1
        # A task makes one if it uses gevent's sockets, as in a process that is patched in part.
        hub = get_hub_if_exists()
        if hub is not None:
            hub.destroy(destroy_loop=True)

    def _next(self) -> Callable[[], None] | None:
        """Wait for a task; None if the thread is to end, and is not counted any more."""
        while True:
            try:
                task: Callable[[], None] | None = self._tasks.get(timeout=self._idle_timeout)
            except Empty:
                told = False
            else:
                if task is not None:
                    return task
                told = True
            with self._lock:
                # A task that came just now has counted on this thread.
                if told or self._tasks.empty():
                    self._threads -= 1
                    return None
