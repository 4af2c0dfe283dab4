"""HubThread: an OS thread with a gevent hub of its own, called from plain threads.

Spark's Python processes block natively between Spark's calls, and a hub on such a thread does not run meanwhile:
heartbeats would stay unanswered and nsqd would hang up. So what is connected lives here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import gevent
from gevent.event import Event

__all__ = ["HubThread"]

P = ParamSpec("P")
T = TypeVar("T")


class HubThread:
    """A daemon thread that runs greenlets; started by the constructor, ended by stop().

    Make it after any fork, in the process that uses it.
    """

    def __init__(self, name: str) -> None:
        self._loop: Any = None  # Any: gevent's loop, which has no types
        self._stop: Event | None = None
        self._stopped = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a greenlet of the hub and wait for it; what it raises is raised here.

        It has to end by itself: there is no timeout here, since the greenlet would go on unseen.

        Raises:
            RuntimeError: If the thread was stopped.
        """
        if self._stopped:
            raise RuntimeError(f"thread {self._thread.name} was stopped")
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # handed over to the caller, whatever it is
                result.set_exception(error)

        self._loop.run_callback_threadsafe(gevent.spawn, run)
        return result.result()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread; greenlets that still run in it are gone. Waits up to timeout seconds."""
        if self._stop is not None and not self._stopped:
            self._stopped = True
            self._loop.run_callback_threadsafe(self._stop.set)
            self._thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        hub = gevent.get_hub()
        self._loop = hub.loop
        self._stop = Event()
        # Keeps the loop from finding nothing to do, and going home, before the first call.
        keep_alive = hub.loop.timer(3600, repeat=3600)
        keep_alive.start(lambda: None)
        self._ready.set()
        self._stop.wait()
        keep_alive.close()
        hub.destroy(destroy_loop=True)
