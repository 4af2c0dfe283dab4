"""An OS thread with its own gevent hub. Other threads can let this hub call functions.

A program that blocks its threads natively, for example with asyncio or Spark, needs such a thread for its connections:
the hub of a blocked thread does not run. Then heartbeats are not answered, and nsqd closes the connection.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, Self, TypeVar

import gevent
from gevent.event import Event

from gnsq.concurrency.threads import NO_TIMEOUT, OwnerThread, ThreadEvent, hub_call_queue, start_thread
from gnsq.errors import NSQConnectionClosed

__all__ = ["HubThread"]

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

# Seconds that a thread and its greenlets may take to end.
STOP_TIMEOUT = 5.0
# Seconds that a thread may take to end after _run() is done.
_JOIN_TIMEOUT = 0.5


class HubThread:
    """Daemon thread that runs greenlets. The constructor starts it, and stop() ends it.

    After a fork, the child does not have the thread: make a new HubThread in the child. If a greenlet of another hub
    waits for this thread, the other greenlets of that hub continue to run.

    Args:
        on_end: Called in the thread at its end, before its greenlets are killed. This function may wait.
        is_known: Register the thread with the threading module; see start_thread().
        kill_greenlets: When the thread ends, search for the greenlets that still run, and kill them. The search looks
            at all objects of the garbage collector, and takes 0.1 ms for 1000 objects.
    """

    def __init__(
        self,
        name: str,
        on_end: Callable[[], object] | None = None,
        *,
        is_known: bool = True,
        kill_greenlets: bool = True,
    ) -> None:
        self.name = name
        self._on_end = on_end
        self._kills_greenlets = kill_greenlets
        self._process = os.getpid()
        # True if further calls are refused.
        self._stopped = False
        self._stop_timeout = STOP_TIMEOUT
        self._owner: OwnerThread
        self._stop: Event
        self._is_unwanted = False
        self._begun, self._ended = ThreadEvent(), ThreadEvent()
        _running.add(self)
        # None if the thread is not registered with the threading module, as in a monkey-patched process.
        self._thread = start_thread(self._run, name=self.name if is_known else "")
        try:
            self._begun.wait(NO_TIMEOUT)
        except BaseException:
            # A gevent.Timeout of the caller, for example: nobody else knows the thread. It looks at this after it has
            # begun, so if it has not looked yet, it ends by itself.
            self._is_unwanted = True
            if self._begun.is_set:
                with contextlib.suppress(NSQConnectionClosed, AttributeError):  # it has looked, or has failed before
                    self._owner.call_soon(self._stop.set)
            raise
        if self._ended.is_set:
            _running.discard(self)
            raise self._stopped_error()

    @property
    def is_current(self) -> bool:
        """True if the caller runs in this thread."""
        return self._owner.is_current and self._process == os.getpid()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a greenlet of the hub, and wait for its result. In the thread itself, call it directly.

        There is no timeout. If the caller is interrupted, for example by a gevent.Timeout, the greenlet is killed.

        Raises:
            RuntimeError: If the thread was stopped, before or during the call, or started before a fork.
            Exception: What the function raises.
        """
        __tracebackhide__ = True
        self._check()
        try:
            return self._owner.call_and_wait(NO_TIMEOUT, functools.partial(function, *args, **kwargs))
        except NSQConnectionClosed as error:
            if self._stopped or self._owner.has_ended:
                raise self._stopped_error() from error
            raise

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:  # Any: arguments of any function
        """Let the hub itself call a function soon. The hub keeps the order of the calls. The function must not wait.

        Calls that are made while the thread is being stopped may be lost.

        Raises:
            RuntimeError: If the thread was stopped.
        """
        self._check()
        try:
            self._owner.call_soon(function, *args)
        except NSQConnectionClosed as error:
            raise self._stopped_error() from error

    def _check(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(f"thread {self.name} was started before the fork; make a new one in this process")
        # After stop(), only this thread's greenlets, which are being killed, may still use it.
        if self._stopped and not self.is_current:
            raise self._stopped_error()

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """End the thread: kill its greenlets (see kill_greenlets), and raise RuntimeError in calls that still wait.

        May be called twice. Does nothing in a forked child process. If called in the thread itself, it does not wait.

        Args:
            timeout: Seconds to wait at most.
        """
        if self._process != os.getpid():
            return
        self._stopped = True
        self._stop_timeout = timeout
        with contextlib.suppress(NSQConnectionClosed):  # raised if the thread has ended
            self._owner.call_soon(self._stop.set)
        if self.is_current:
            return
        if not self._ended.wait(timeout):
            logger.warning("thread %s has not ended within %g s", self.name, timeout)
        elif self._thread is not None:
            # The thread has executed all except its last lines, so it ends soon.
            self._thread.join(_JOIN_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _stopped_error(self) -> RuntimeError:
        return RuntimeError(f"thread {self.name} was stopped")

    # --- in the thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException:
            # For example, one of the greenlets has raised SystemExit or KeyboardInterrupt.
            logger.exception("thread %s has failed", self.name)
        finally:
            self._stopped = True
            self._ended.set()
            self._begun.set()

    def _serve(self) -> None:
        hub = gevent.get_hub()
        self._owner, self._stop = OwnerThread(), Event()
        # Keeps the event loop running while it has nothing to do, for example before the first call.
        keep_alive = hub.loop.async_()
        keep_alive.start(lambda: None)
        with contextlib.ExitStack() as at_end:  # calls the callbacks in reverse order
            at_end.callback(self._destroy, hub)
            at_end.callback(keep_alive.close)
            if self._kills_greenlets:
                at_end.callback(self._kill_greenlets, hub)
            if self._on_end is not None:
                at_end.callback(self._on_end)
            at_end.callback(setattr, self, "_stopped", True)
            self._begun.set()
            if self._is_unwanted:
                return
            self._stop.wait()  # without a timeout: until stop() is called

    def _kill_greenlets(self, hub: Any) -> None:  # Any: gevent has no types
        with gevent.Timeout(self._stop_timeout / 2, False):
            while left := _greenlets_of(hub):
                gevent.killall(left)

    def _destroy(self, hub: Any) -> None:  # Any: gevent has no types
        hub_call_queue().close()
        hub.destroy(destroy_loop=True)
        # End the hub, which gevent leaves suspended: a greenlet that is suspended when its thread ends leaks 10 KiB.
        hub.throw()


def _greenlets_of(hub: Any) -> list[gevent.Greenlet]:  # Any: gevent has no types
    """Search all objects for a hub's greenlets that have not ended: gevent keeps no list of greenlets."""
    # Do not use isinstance(): it reads the __class__ of an object, and for some objects this raises an error.
    found = [obj for obj in gc.get_objects() if issubclass(type(obj), gevent.Greenlet)]
    return [greenlet for greenlet in found if greenlet.parent is hub and not greenlet.dead]


# Threads that may be running.
_running: weakref.WeakSet[HubThread] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Stop all threads before the interpreter ends.

    Up to Python 3.13 an interpreter that ends unwinds the stack of each thread that asks for the GIL. Then greenlet's
    destructors run without the GIL, and the process crashes.
    """
    for hub_thread in list(_running):
        hub_thread.stop()
