"""HubMonitor: logs when something blocks a hub, with the stack that blocks it.

Owns one OS thread for each hub that has connections. It only watches and logs: it can't end the block, and connections
do not depend on it.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
import weakref
from typing import Any

import gevent
from gevent import monkey

from gnsq.concurrency.threads import allocate_lock, current_thread, get_ident, local, start_thread

__all__ = ["HubMonitor"]

logger = logging.getLogger(__name__)

# A hub that has not run for so many seconds is blocked.
BLOCKED_AFTER = 1.0
# Seconds between two runs of the hub's timer.
HEARTBEAT_INTERVAL = 0.25

# Any: gevent has no types.
_get_native_id: Any = monkey.get_original("_thread", "get_native_id")
_monotonic = time.monotonic
# Has the monitor of each thread.
_local: Any = local()


class HubMonitor:
    """Monitors the calling thread's hub, from the first acquire() to the last release().

    A timer of the hub stores the time, and a daemon thread checks it. Neither counts as work: the hub and the process
    may end. Each block is logged as a warning, once with the stack and once when it is over.
    """

    def __init__(self) -> None:
        hub = gevent.get_hub()
        self._hub = weakref.ref(hub)
        self._timer: Any = None  # Any: gevent's watcher, which has no types
        self._stop: Any = None  # Any: the original lock
        self._users = 0
        self._process = os.getpid()
        self._thread = get_ident()
        self._native_id = _get_native_id()
        self._last_heartbeat = 0.0
        # Gone when the thread has ended.
        self._token = weakref.ref(current_thread.token)
        _local.monitor = self

    @classmethod
    def acquire(cls) -> HubMonitor:
        """Monitor the hub of the calling thread. Returns: the monitor, to release() once in the same thread."""
        monitor: HubMonitor | None = getattr(_local, "monitor", None)
        if monitor is None or monitor._hub() is not gevent.get_hub() or monitor._process != os.getpid():
            # A forked child has a copy of the monitor, but not its thread.
            monitor = cls()
        monitor._users += 1
        if monitor._users == 1:
            monitor._start()
        return monitor

    def release(self) -> None:
        """Undo one acquire(). The last one stops the timer and the thread, and does not wait for them."""
        self._users -= 1
        if self._users:
            return
        self._timer.stop()
        self._timer.close()
        self._stop.release()

    def _start(self) -> None:
        self._last_heartbeat = _monotonic()
        self._timer = gevent.get_hub().loop.timer(HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL, ref=False)
        self._timer.start(self._heartbeat)
        self._stop = allocate_lock()
        self._stop.acquire()
        try:
            start_thread(self._run, self._stop, name="gnsq-hub-monitor")
        except RuntimeError as error:
            logger.debug("hub of thread %d is not monitored: %s", self._native_id, error)

    def _heartbeat(self) -> None:
        self._last_heartbeat = _monotonic()

    # --- in the OS thread

    def _run(self, stop: Any) -> None:  # Any: the original lock
        pause = BLOCKED_AFTER
        while not stop.acquire(timeout=pause):
            pause = self._last_heartbeat + BLOCKED_AFTER - _monotonic()
            if pause > 0:
                continue
            if not self._is_alive():
                return
            if self._log_block(stop, overdue=-pause):
                return
            pause = BLOCKED_AFTER

    def _is_alive(self) -> bool:
        """Whether the hub can run again: neither the hub nor its thread has ended without a release()."""
        hub = self._hub()
        return hub is not None and not hub.dead and self._token() is not None

    def _log_block(self, stop: Any, overdue: float) -> bool:  # Any: the original lock
        """Log that the hub is blocked, wait until it runs again, and log that.

        Args:
            overdue: Seconds by which this check is late.

        Returns:
            Whether the monitor's thread must end.
        """
        blocked_since = self._last_heartbeat
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return True
        stack = "".join(traceback.format_stack(frame))
        # A frame keeps the local variables of its function alive.
        del frame
        hint = ""
        if overdue > BLOCKED_AFTER / 2:
            # The process was stopped, or an extension kept the interpreter's lock.
            hint = f" (no thread of this process ran for {overdue:.1f} s of it, so the stack may be a later one)"
        logger.warning(
            "the hub of thread %d has been blocked for %.1f s; until it runs again, no heartbeat is answered and no "
            "other greenlet runs%s. It is blocked here, innermost last:\n%s",
            self._native_id,
            _monotonic() - blocked_since,
            hint,
            stack,
        )
        stopped = False
        while self._last_heartbeat == blocked_since and not stopped:
            stopped = stop.acquire(timeout=HEARTBEAT_INTERVAL)
            if not self._is_alive():
                return True
        end = _monotonic() if self._last_heartbeat == blocked_since else self._last_heartbeat
        logger.warning("the hub of thread %d runs again, after %.1f s", self._native_id, end - blocked_since)
        return bool(stopped)
