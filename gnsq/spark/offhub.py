"""OffHub: one thread for what blocks on a file system, so that the hub's heartbeats go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from gevent.threadpool import ThreadPool

__all__ = ["OffHub"]

P = ParamSpec("P")
T = TypeVar("T")


class OffHub:
    """Calls functions one after the other, in a thread that is made at the first call; for the greenlets of one hub."""

    def __init__(self) -> None:
        self._pool: ThreadPool | None = None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function and wait for it, letting other greenlets run; what it raises is raised here."""
        if self._pool is None:
            # Not the hub's own pool, which resolves host names and has ten threads: order matters here.
            self._pool = ThreadPool(1)
        value, error = self._pool.apply(_caught, (function, args, kwargs))
        if error is not None:
            raise error
        return cast("T", value)  # gevent's pool has no types

    def close(self) -> None:
        """End the thread. One that still works, for a caller that was killed, ends when it has done that."""
        pool, self._pool = self._pool, None
        if pool is not None and not len(pool):
            pool.kill()
        elif pool is not None:
            # kill() would wait for it.
            pool.task_queue.put(None)


def _caught(
    function: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[T | None, Exception | None]:
    """Call a function; gevent's pool prints the traceback of what is raised in it, so errors come as a value."""
    try:
        return function(*args, **kwargs), None
    except Exception as error:  # noqa: BLE001  # handed over to the caller, whatever it is
        return None, error
