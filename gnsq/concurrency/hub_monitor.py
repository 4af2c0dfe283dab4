"""StallWatch: says in the log that, and where, something keeps a hub from running.

Owns one OS thread for each hub that has connections. Looks and logs only: it can't end a stall, and a connection must
not depend on it.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import weakref
from typing import Any

import gevent
from gevent import monkey

from gnsq.concurrency.natives import start_thread

__all__ = ["StallWatch"]

logger = logging.getLogger(__name__)

# A hub that has not been seen for so long is told of, seconds.
STALL = 1.0
# How often a hub shows itself, seconds.
BEAT = 0.25

# What belongs to the OS whatever has been patched: patched, these would wait for the very hub that is stalled. Any:
# gevent has no type hints.
_allocate_lock: Any = monkey.get_original("_thread", "allocate_lock")
_get_ident: Any = monkey.get_original("_thread", "get_ident")
_get_native_id: Any = monkey.get_original("_thread", "get_native_id")
_monotonic: Any = monkey.get_original("time", "monotonic")
_here: Any = monkey.get_original("_thread", "_local")()


class _Witness:
    """Lives in an OS thread's locals: gone when the thread is."""


class StallWatch:
    """Watches the calling thread's hub, from acquire() until as many release()s.

    A timer of the hub notes the time; a daemon thread looks when that was. The timer does not count as work of the
    hub, nor the thread as work of the process: both may end. Stalls are logged once each, as a warning with the stack
    that holds the hub, and once more when they are over.
    """

    def __init__(self) -> None:
        hub = gevent.get_hub()
        self._hub = weakref.ref(hub)
        self._timer: Any = None  # Any: gevent's watcher, which has no types
        self._stop: Any = None  # Any: the original lock
        self._users = 0
        self._process = os.getpid()
        self._thread = _get_ident()
        self._native_id = _get_native_id()
        self._seen = 0.0
        _here.watch, _here.witness = self, _Witness()
        self._witness = weakref.ref(_here.witness)

    @classmethod
    def acquire(cls) -> StallWatch:
        """Watch the hub of the calling thread; give back whom to release(), once, from the same thread."""
        watch: StallWatch | None = getattr(_here, "watch", None)
        if watch is None or watch._hub() is not gevent.get_hub() or watch._process != os.getpid():
            # fork() takes along what we know, but not the thread.
            watch = cls()
        watch._users += 1
        if watch._users == 1:
            watch._start()
        return watch

    def release(self) -> None:
        """Undo one acquire(); the last one ends the timer and the thread, and waits for neither."""
        self._users -= 1
        if self._users:
            return
        self._timer.stop()
        self._timer.close()
        self._stop.release()

    def _start(self) -> None:
        self._seen = _monotonic()
        self._timer = gevent.get_hub().loop.timer(BEAT, BEAT, ref=False)
        self._timer.start(self._beat)
        self._stop = _allocate_lock()
        self._stop.acquire()
        try:
            start_thread(self._run, self._stop, name="gnsq-stalls")
        except RuntimeError as error:
            logger.debug("hub of thread %d is not watched: %s", self._native_id, error)

    def _beat(self) -> None:
        self._seen = _monotonic()

    # --- in the OS thread

    def _run(self, stop: Any) -> None:  # Any: the original lock
        pause = STALL
        while not stop.acquire(timeout=pause):
            pause = self._seen + STALL - _monotonic()
            if pause > 0:
                continue
            if not self._is_there():
                return
            if self._tell(stop, overdue=-pause):
                return
            pause = STALL

    def _is_there(self) -> bool:
        """Whether the hub can still come round: neither it nor its thread has ended without a release()."""
        hub = self._hub()
        return hub is not None and not hub.dead and self._witness() is not None

    def _tell(self, stop: Any, overdue: float) -> bool:  # Any: the original lock
        """Log a stall, wait for its end, log that; gives whether this thread is to end, too."""
        seen = self._seen
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return True
        stack = "".join(traceback.format_stack(frame))
        # It would keep alive what its functions have at hand.
        del frame
        hint = ""
        if overdue > STALL / 2:
            # The process was stopped, or an extension kept the interpreter's lock.
            hint = f" (nothing of this process ran for {overdue:.1f} s of it, so the stack may be of afterwards)"
        logger.warning(
            "the hub of thread %d has not come round for %.1f s; until it does, no heartbeat is answered and no other "
            "greenlet runs%s. It is held here, innermost last:\n%s",
            self._native_id,
            _monotonic() - seen,
            hint,
            stack,
        )
        stopped = False
        while self._seen == seen and not stopped:
            stopped = stop.acquire(timeout=BEAT)
            if not self._is_there():
                return True
        end = _monotonic() if self._seen == seen else self._seen
        logger.warning("the hub of thread %d runs again, after %.1f s", self._native_id, end - seen)
        return bool(stopped)
