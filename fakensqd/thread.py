"""Run a server on an OS thread of its own, with a hub of its own.

So that plain threads, asyncio, subprocesses and blocking code find a server that answers while they wait. Owns the
thread and its hub. Native in monkey-patched processes, too, and patches nothing; callers in a gevent hub wait without
blocking it.
"""

from __future__ import annotations

import math
import time
from abc import ABCMeta
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

import gevent
from gevent.event import Event
from gevent.pool import Group

from gnsq.concurrency.threads import NO_TIMEOUT, CrossThreadFuture, start_thread
from gnsq.texts import counted

__all__ = ["Forwarder", "Server", "Threadable", "Threaded"]

_Value = TypeVar("_Value")
# Starting and stopping take milliseconds; the limit is for an overloaded machine. Calls have no limit.
_PATIENCE = 30.0
_SETTLING = 0.5


class Server(Protocol):
    """What can be run: FakeNsqd, FakeLookupd, FakeCluster, FakeAuthServer."""

    @property
    def errors(self) -> list[BaseException]:
        """What should not have happened."""

    def start(self) -> None:
        """Begin to listen."""

    def stop(self) -> None:
        """Close everything."""


class Threaded:
    """Start a server on a thread, stop it and the thread in the end: start() or ``with``.

    What start() gives, and this object, have the attributes of the server: they are read, and methods called, on the
    server's own thread while it runs; what they raise is raised here. Plain data comes back as it is; the emulator's
    own objects come back as forwarders, too. Code of the caller that is to run beside the server goes through call().

    Args:
        server: Not started yet.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._running = False
        self._hub: Any = None  # Any: gevent has no types
        self._stop: Event
        self._stopped: CrossThreadFuture[None]
        self._due: deque[Callable[[], object]] = deque()
        self._keeper: Any = None  # Any: as above
        # What callers on other threads wait for.
        self._awaited: dict[CrossThreadFuture[Any], None] = {}  # Any: what is called gives anything

    def start(self) -> Any:  # Any: the forwarder has the attributes of the server
        """Start the server and give back what forwards to it. Starts nothing if it runs.

        Raises:
            Exception: What the server's start() raises.
            TimeoutError: If it has not started within half a minute.
        """
        if self._running:
            return Forwarder(self.call, self._server)
        started: CrossThreadFuture[None] = CrossThreadFuture()
        self._stopped = CrossThreadFuture()
        self._running = True
        # Without a name: a program that a test imports may patch the process.
        start_thread(self._main, started)
        try:
            _result(started, "start", _PATIENCE)
        except BaseException as error:
            self._running = False
            # If it starts all the same, it stops at once.
            if not started.set_exception(error):
                self._soon(self._stop.set)
            raise
        return Forwarder(self.call, self._server)

    def stop(self) -> None:
        """Stop the server, its hub and its thread. Calls that still wait for something end with a RuntimeError.

        Raises:
            RuntimeError: If a greenlet or watcher is left over.
            TimeoutError: If it has not stopped within half a minute.
        """
        if not self._running:
            return
        self._running = False
        self._soon(self._stop.set)
        _result(self._stopped, "stop", _PATIENCE)

    def call(self, function: Callable[..., _Value], *args: Any, **kwargs: Any) -> _Value:  # Any: the function's own
        """Call something on the server's thread, in a greenlet, and give back what it returns or raise what it raises.

        It may take as long as it likes. If the caller is interrupted meanwhile, it is ended.

        Raises:
            RuntimeError: If the thread does not run, or is stopped meanwhile.
        """
        __tracebackhide__ = True
        crossing: CrossThreadFuture[_Value] = CrossThreadFuture()
        running: list[gevent.Greenlet] = []

        def work() -> None:
            __tracebackhide__ = True
            try:
                crossing.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # it is the caller's, and raised there
                crossing.set_exception(_stopped() if isinstance(error, gevent.GreenletExit) else error)

        def begin() -> None:
            running.append(self._calls.spawn(work))

        # Noted before the thread is looked at: a stop() in between finds the call.
        self._awaited[crossing] = None
        try:
            if not self._running or not self._soon(begin):
                raise RuntimeError("the server's thread does not run")
            return _result(crossing)
        except BaseException:
            if self._running and not crossing.is_done:
                self._soon(lambda: running[0].kill(block=False))
            raise
        finally:
            del self._awaited[crossing]

    def _soon(self, function: Callable[[], object]) -> bool:
        """Call a function in the server's hub; say whether the hub is still there."""
        self._due.append(function)
        try:
            self._keeper.send()
        except ValueError:  # gevent's word for a loop that was destroyed
            return False
        return True

    def _take_in(self) -> None:
        while self._due:
            self._hub.loop.run_callback(self._due.popleft())

    def __getattr__(self, name: str) -> Any:  # Any: whatever the server has
        """Read an attribute of the server: over there while it runs, else here."""
        if not self._running:
            return getattr(self._server, name)
        return getattr(Forwarder(self.call, self._server), name)

    def __repr__(self) -> str:
        return f"<threaded {self._server!r}>"

    def __enter__(self) -> Any:  # Any: as start()
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _main(self, started: CrossThreadFuture[None]) -> None:
        self._hub = gevent.get_hub()
        self._stop = Event()
        self._calls = Group()
        # Takes in what other threads want done, and keeps the loop alive while nothing else waits. The loop's
        # run_callback_threadsafe() is not as safe as its name: see gnsq.concurrency.threads.HubCallQueue.
        keeper = self._keeper = self._hub.loop.async_()
        keeper.start(self._take_in)
        outcome: BaseException | None = None
        try:
            watchers = self._hub.loop.activecnt
            try:
                self._server.start()
            except BaseException as error:  # noqa: BLE001  # raised by start(), in the caller
                started.set_exception(error)
                return
            if started.set_result(None):
                self._stop.wait()  # until stop(), whenever that is
            self._server.stop()
            self._calls.kill()
            left = self._left_over(watchers)
            if left > 0:
                outcome = RuntimeError(f"{counted(left, 'watcher')} of the hub left over after the server was stopped")
        except BaseException as error:  # noqa: BLE001  # raised by stop(), in the caller
            outcome = error
        finally:
            keeper.stop()
            keeper.close()
            self._hub.destroy(destroy_loop=True)
            if not self._hub.dead:
                # gevent leaves it suspended, and what is so when its thread ends is never freed: 10 KiB each time.
                self._hub.throw()
            for crossing in list(self._awaited):
                crossing.set_exception(_stopped())  # it came too late to be begun
            if outcome is None:
                self._stopped.set_result(None)
            else:
                self._stopped.set_exception(outcome)

    def _left_over(self, before: int) -> int:
        """Count what still waits in the hub.

        A name that is being resolved on another thread gets time to end, thousands of connections as long as they end.
        """
        fewest = math.inf
        while True:
            gevent.sleep(0)
            left: int = self._hub.loop.activecnt - before
            if left < fewest:
                fewest, deadline = left, time.monotonic() + _SETTLING
            if left <= 0 or time.monotonic() > deadline:
                return left
            gevent.sleep(0.001)


class Threadable(ABCMeta):
    """Makes the classes of servers take ``threaded=True``: what is made then is Threaded, around the server."""

    def __call__(cls, *args: Any, threaded: bool = False, **kwargs: Any) -> Any:  # Any: each server's own
        server = super().__call__(*args, **kwargs)
        return Threaded(server) if threaded else server


class Forwarder:
    """Stands for an object on another thread: reads attributes and calls methods there.

    Args:
        call: Runs a function on that thread.
    """

    def __init__(self, call: Callable[..., Any], target: object) -> None:  # Any: whatever the target gives
        self._call = call
        self._target = target

    def __getattr__(self, name: str) -> Any:  # Any: whatever the target gives
        """Read an attribute of the target there; methods come back callable here."""
        return self._wrapped(self._call(getattr, self._target, name))

    def __repr__(self) -> str:
        return f"<forwarder to {self._target!r}>"

    def __enter__(self) -> Any:  # Any: whatever the target gives
        """Enter the target, over there."""
        return self._wrapped(self._call(self._target.__enter__))  # type: ignore[attr-defined]  # it is one of contexts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the target, over there."""
        self._call(self._target.__exit__, kind, error, trace)  # type: ignore[attr-defined]  # as above

    def _wrapped(self, value: Any) -> Any:  # Any: as __getattr__()
        if callable(value) and not isinstance(value, type):

            def call_there(*args: Any, **kwargs: Any) -> Any:  # Any: as above
                __tracebackhide__ = True
                return self._wrapped(self._call(value, *args, **kwargs))

            return call_there
        if isinstance(value, (list, tuple)):
            return type(value)(self._wrapped(item) for item in value)
        if isinstance(value, dict):
            return {key: self._wrapped(item) for key, item in value.items()}
        if type(value).__module__.partition(".")[0] == __name__.partition(".")[0]:
            return Forwarder(self._call, value)
        return value


def _stopped() -> RuntimeError:
    return RuntimeError("the server's thread was stopped meanwhile")


def _result(crossing: CrossThreadFuture[_Value], deed: str = "", limit: float = NO_TIMEOUT) -> _Value:
    """Wait for a result, without blocking the hub of this thread if it has one.

    Raises:
        TimeoutError: If the deed has not been done within the limit, in seconds.
    """
    __tracebackhide__ = True
    if not crossing.wait(limit):  # NO_TIMEOUT: as long as the call takes
        raise TimeoutError(f"the server's thread did not {deed} within {limit:g} s")
    return crossing.result()
