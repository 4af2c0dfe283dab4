"""BlockingIOThread: an OS thread for calls that block on a file system."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from gevent.threadpool import ThreadPool
from gevent.util import wrap_errors

from gnsq.clock import monotonic

__all__ = ["BlockingIOThread"]

P = ParamSpec("P")
T = TypeVar("T")


class BlockingIOThread:
    """One OS thread for calls that block on a file system, one after the other, while the greenlets of the hub run.

    It must be made in the hub that calls it.
    """

    def __init__(self) -> None:
        # One thread keeps the calls in order. The hub's own pool has ten threads, and also resolves host names.
        self._pool = ThreadPool(1)
        # Monotonic time at which the present call has begun.
        self._busy_since: float | None = None

    @property
    def busy_seconds(self) -> float | None:
        """Seconds since the present call has begun; None if there is none."""
        since = self._busy_since
        return None if since is None else monotonic() - since

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function and wait for its result; an exception of the function is raised here."""
        # Return an exception as a value: if a call raised it, gevent's pool would print its traceback.
        result = self._pool.spawn(wrap_errors(BaseException, self._timed), function, *args, **kwargs).get()
        if isinstance(result, Exception):
            raise result
        if isinstance(result, BaseException):
            # A panic of a library that is written in Rust is no Exception, and would end the greenlet unnoticed.
            raise RuntimeError(repr(result)) from result
        return cast("T", result)  # gevent's pool has no types

    def _timed(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run in the thread, also after the greenlet that has called was killed."""
        self._busy_since = monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            self._busy_since = None

    def close(self) -> None:
        """End the thread. If a call still runs, the thread ends after that call, but close() does not wait for it."""
        if len(self._pool):
            self._pool.task_queue.put(None)  # kill() would wait
        else:
            self._pool.kill()
