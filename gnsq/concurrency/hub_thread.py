"""HubThread: an OS thread with a gevent hub of its own, called from other threads.

For what is connected while the threads that use it block natively, as asyncio's, Spark's and plain ones do: a hub on
such a thread does not run meanwhile, heartbeats stay unanswered, and nsqd hangs up.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import gevent
from gevent.event import Event

from gnsq.concurrency.crossing import EVER, Crossing
from gnsq.concurrency.doors import Door, door
from gnsq.concurrency.natives import get_ident, start_thread

__all__ = ["HubThread"]

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

# How long a thread and its greenlets may take to end, seconds.
_PATIENCE = 5.0
# How long a thread that has nothing left to do may take to be gone, seconds.
_SETTLING = 0.5


class HubThread:
    """A daemon thread that runs greenlets; started by the constructor, ended by stop().

    Make it after any fork, in the process that uses it. Who waits for it in a hub of its own blocks no other greenlet
    there.

    Args:
        on_end: Called in the thread before its greenlets are killed, however it ends; may wait.
    """

    def __init__(self, name: str, on_end: Callable[[], object] | None = None) -> None:
        self.name = name
        self._on_end = on_end
        self._process = os.getpid()
        # Of the thread, until it has ended.
        self._ident: int | None = None
        # Nothing is taken in any more.
        self._stopped = False
        # Seconds for greenlets to end.
        self._patience = _PATIENCE
        self._door: Door
        self._stop: Event
        # What others wait for: all of it is settled when the thread ends.
        self._awaited: dict[Crossing[Any], None] = {}  # Any: what is called gives anything
        # None in a monkey-patched process.
        self._thread: threading.Thread | None = None
        _running.add(self)
        with self._awaiting() as started:
            self._thread = start_thread(self._run, started, name=self.name)
            started.wait(EVER)
        started.result()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in this thread."""
        return get_ident() == self._ident and self._process == os.getpid()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a greenlet of the hub and wait for it; what it raises is raised here. In the thread itself:
        just call it.

        It may take as long as it likes. If the caller is interrupted meanwhile, by a gevent.Timeout for one, it is
        killed.

        Raises:
            RuntimeError: If the thread was stopped, before or meanwhile.
        """
        if self.is_here:
            return function(*args, **kwargs)
        begun: list[gevent.Greenlet] = []

        def work() -> None:
            try:
                crossing.set(function(*args, **kwargs))
            except gevent.GreenletExit:
                killed = RuntimeError(f"a call was killed in thread {self.name}")
                crossing.set_exception(self._ended() if self._stopped else killed)
            except BaseException as error:  # noqa: BLE001  # handed over to the caller, whatever it is
                crossing.set_exception(error)

        with self._awaiting() as crossing:
            self.soon(lambda: begun.append(gevent.spawn(work)))
            try:
                crossing.wait(EVER)
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    self.soon(lambda: begun[0].kill(block=False))
                raise
        result: T = crossing.result()
        return result

    def soon(self, function: Callable[..., object], *args: Any) -> None:  # Any: the function's own
        """Call a function in the hub itself, without waiting for that; in the order of these calls. It must not wait.

        What comes while the thread is being stopped may be lost.

        Raises:
            RuntimeError: If the thread was stopped.
        """
        if self._process != os.getpid():
            raise RuntimeError(f"thread {self.name} was started before the fork; make a new one in this process")
        # What still runs there may need it to end.
        if self._stopped and not self.is_here:
            raise self._ended()
        try:
            self._door.call(function, *args)
        except ValueError as error:  # gevent's word for a loop that was destroyed
            raise self._ended() from error

    def stop(self, timeout: float = _PATIENCE) -> None:
        """End the thread: greenlets that still run in it are killed, calls that still wait get a RuntimeError. May be
        called twice, and in a child process, which does nothing. In the thread itself it does not wait.

        Args:
            timeout: Seconds to wait at most.
        """
        if self._process != os.getpid():
            return
        self._stopped = True
        self._patience = timeout
        with contextlib.suppress(ValueError):  # it has ended
            self._door.call(self._stop.set)
        if self.is_here:
            return
        with self._awaiting() as ended:
            if self._ident is not None and not ended.wait(timeout):
                logger.warning("thread %s has not ended within %g s", self.name, timeout)
            elif self._thread is not None:
                # It has nothing left to do.
                self._thread.join(_SETTLING)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @contextlib.contextmanager
    def _awaiting(self) -> Iterator[Crossing[Any]]:  # Any: as above
        """Make what is settled with an error if the thread ends. Before the thread is looked at: it looks at this
        last."""
        crossing: Crossing[Any] = Crossing()
        self._awaited[crossing] = None
        try:
            yield crossing
        finally:
            del self._awaited[crossing]

    def _ended(self) -> RuntimeError:
        return RuntimeError(f"thread {self.name} was stopped")

    # --- in the thread

    def _run(self, started: Crossing[None]) -> None:
        try:
            self._serve(started)
        except BaseException:
            # What ends programs, as SystemExit does, in one of the greenlets.
            logger.exception("thread %s has failed", self.name)
        finally:
            self._stopped, self._ident = True, None
            for crossing in list(self._awaited):
                crossing.set_exception(self._ended())

    def _serve(self, started: Crossing[None]) -> None:
        hub = gevent.get_hub()
        # Keeps the loop from finding nothing to do, and going home, before the first call.
        keep_alive = hub.loop.async_()
        keep_alive.start(lambda: None)
        self._door, self._stop, self._ident = door(), Event(), get_ident()
        try:
            started.set(None)
            self._stop.wait()  # until stop(), whenever that is
        finally:
            self._stopped = True
            try:
                try:
                    if self._on_end is not None:
                        self._on_end()
                finally:
                    self._kill_greenlets(hub)
            finally:
                keep_alive.close()
                self._destroy(hub)

    def _kill_greenlets(self, hub: Any) -> None:  # Any: gevent has no types
        with gevent.Timeout(self._patience / 2, False):
            while left := _greenlets_of(hub):
                gevent.killall(left)

    def _destroy(self, hub: Any) -> None:  # Any: as above
        self._door.close()
        hub.destroy(destroy_loop=True)
        # gevent leaves it suspended, and what is so when its thread ends is never freed: 10 KiB each time.
        hub.throw()


def _greenlets_of(hub: Any) -> list[gevent.Greenlet]:  # Any: as above
    """Find the greenlets of a hub that have not ended. gevent keeps no list."""
    # Not isinstance(): it asks the objects, and some answer with an error.
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), gevent.Greenlet)]
    return [greenlet for greenlet in found if greenlet.parent is hub and not greenlet.dead]


# Those that may still run.
_running: weakref.WeakSet[HubThread] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Wait for all threads before the interpreter ends.

    Up to Python 3.13 it ends a thread that asks for the GIL meanwhile, and unwinds its stack. greenlet's destructors
    run there without the GIL, and the process crashes.
    """
    for hub_thread in list(_running):
        hub_thread.stop()
