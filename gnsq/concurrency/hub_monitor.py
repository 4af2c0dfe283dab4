"""Logs a warning if code blocks a hub, with the stack of the blocking code.

Each hub in which a Consumer or Producer has TCP connections gets an OS thread that checks the hub. This thread
can't interrupt the blocking code.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import gevent
from gevent import monkey

from gnsq.clock import monotonic
from gnsq.concurrency.threads import allocate_lock, current_thread, get_ident, local, start_thread

__all__ = ["HubMonitor"]

logger = logging.getLogger(__name__)

# Any: gevent has no types.
_get_native_id: Any = monkey.get_original("_thread", "get_native_id")
# Thread-local: the monitor of each thread.
_local: Any = local()


class HubMonitor:
    """Monitors the calling thread's hub, from the first acquire() to the last release().

    A timer of the hub stores the time, and a daemon thread checks the stored time. Neither the timer nor the daemon
    thread keeps the hub or the process running. If the hub is blocked, two warnings are logged: one with the stack, and
    one when the hub runs again. The constructor makes its object the monitor of the calling thread.

    Args:
        blocked_after: Seconds; a hub that has not run for longer is considered blocked.
        now: Returns monotonic seconds.
    """

    def __init__(self, blocked_after: float = 1.0, now: Callable[[], float] = monotonic) -> None:
        self._blocked_after = blocked_after
        self._now = now
        self._hub = weakref.ref(gevent.get_hub())
        self._timer: Any = None  # Any: gevent's watcher, which has no types
        self._stop: Any = None  # Any: a native lock, which has no type
        self._users = 0
        self._process = os.getpid()
        self._thread = get_ident()
        self._native_id = _get_native_id()
        self._last_heartbeat = 0.0
        # A weak reference: self._token() returns None after the monitored thread has ended.
        self._token = weakref.ref(current_thread.token)
        _local.monitor = self

    @classmethod
    def acquire(cls) -> HubMonitor:
        """Monitor the hub of the calling thread. Return the monitor; call its release() once, in the same thread."""
        monitor: HubMonitor | None = getattr(_local, "monitor", None)
        if monitor is None or monitor._hub() is not gevent.get_hub() or monitor._process != os.getpid():
            # A forked child needs a new monitor: it has a copy of the monitor, but not the monitor's OS thread.
            monitor = cls()
        monitor._users += 1
        if monitor._users == 1:
            monitor._start()
        return monitor

    def release(self) -> None:
        """Undo one acquire(). The last release() stops the timer and the daemon thread, without waiting for them."""
        self._users -= 1
        if self._users == 0:
            if getattr(_local, "monitor", None) is self:
                _local.monitor = None
            self._timer.stop()
            self._timer.close()
            self._stop.release()

    def _start(self) -> None:
        self._heartbeat()
        interval = self._blocked_after / 4
        self._timer = gevent.get_hub().loop.timer(interval, interval, ref=False)
        self._timer.start(self._heartbeat)
        self._stop = allocate_lock()
        self._stop.acquire()
        try:
            start_thread(self._run, self._stop, name="gnsq-hub-monitor")
        except RuntimeError as error:
            logger.debug("hub of thread %d is not monitored: %s", self._native_id, error)

    def _heartbeat(self) -> None:
        self._last_heartbeat = self._now()

    # --- in the OS thread

    def _run(self, stop: Any) -> None:  # Any: a native lock, which has no type
        # While the hub is blocked and a warning was logged: the time of the hub's last heartbeat. Otherwise None.
        blocked_since: float | None = None
        pause = self._blocked_after
        while not stop.acquire(timeout=pause):
            if not self._is_alive():
                return
            heartbeat, now = self._last_heartbeat, self._now()
            if blocked_since is not None and heartbeat != blocked_since:
                self._log_end(heartbeat - blocked_since)
                blocked_since = None
            pause = heartbeat + self._blocked_after - now
            if pause <= 0:
                if blocked_since is None:
                    blocked_since = heartbeat
                    self._log_block(now - heartbeat)
                pause = self._blocked_after / 4
        if blocked_since is not None:
            self._log_end(self._now() - blocked_since)

    def _is_alive(self) -> bool:
        """Return False if the hub or its thread has ended, which is possible without a release()."""
        hub = self._hub()
        return hub is not None and not hub.dead and self._token() is not None

    def _log_block(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return  # the thread has just ended
        hint = ""
        if seconds > 1.5 * self._blocked_after:
            # The monitor's thread did not run in time either: the process was stopped, or an extension kept the GIL.
            # The stack may show code that ran only afterwards and is not the cause.
            late = seconds - self._blocked_after
            hint = f" (no thread of this process ran for {late:.1f} s of it, so the stack may be a later one)"
        logger.warning(
            "the hub of thread %d has been blocked for %.1f s; until it runs again, no heartbeat is answered and no "
            "other greenlet runs%s. It is blocked here, innermost last:\n%s",
            *(self._native_id, seconds, hint, "".join(traceback.format_stack(frame))),
        )

    def _log_end(self, seconds: float) -> None:
        logger.warning("the hub of thread %d runs again, after %.1f s", self._native_id, seconds)
