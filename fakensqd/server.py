"""Base class of the servers, and how to run a server on a thread with its own hub.

Plain threads, asyncio, subprocesses and other blocking code need a server that runs while they wait. The thread is
an OS thread even in a monkey-patched process. Callers in a gevent hub wait without blocking the hub.
"""

from __future__ import annotations

import enum
import functools
import math
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

import gevent

from fakensqd.faults.control import tell_unfired
from fakensqd.faults.rules import Rule
from gnsq.clock import monotonic
from gnsq.concurrency.hub_thread import HubThread
from gnsq.texts import counted

__all__ = ["Server", "ServerThread", "ThreadProxy"]

P = ParamSpec("P")
T = TypeVar("T")
_Server = TypeVar("_Server", bound="Server")
# After a server has stopped, wait for its hub's watchers until their number has not fallen for this many seconds.
_WATCHER_GRACE = 0.5
# Seconds that the thread may take to end, in addition to those that its server may take to stop.
_THREAD_GRACE = 5.0


class Server(ABC):
    """Base class of the servers: start() and stop(), or ``with``, run a server in the caller's hub."""

    @abstractmethod
    def start(self) -> Self:
        """Listen on all ports, and return this server. Does nothing if the server listens already.

        Raises:
            OSError: If the server can't listen on an address.
        """

    def stop(self) -> None:
        """Abort all connections and requests, and close the ports. Does nothing if the server is stopped.

        Raises:
            RuleNeverActed: If a fault rule that is not optional never acted, and no exception is under way, which
                otherwise gets a note. Each rule is told once.
        """
        self._shut_down()
        tell_unfired(self._added_rules(), sys.exception())

    @abstractmethod
    def _shut_down(self) -> None:
        """Do what stop() does, except for the rules."""

    def _added_rules(self) -> Sequence[Rule]:
        """Return all rules that were added to this server, also removed ones."""
        return ()

    def in_thread(self) -> ServerThread[Self]:
        """Make a thread that runs this server, for ``with`` or start(), which give a proxy of the server."""
        return ServerThread(self)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


class ThreadProxy:
    """Proxy of an object of another thread. Reads the object's attributes and calls its methods on that thread.

    A result that is an object of the emulator becomes a proxy, too. Lists, tuples and dicts are returned as copies;
    callables run on that thread; other results, exceptions, enum members and frozen dataclasses are unchanged. In the
    arguments of a call, each proxy is replaced by its object. isinstance() and type checkers see a proxy as its object.

    Args:
        call: Runs a function on the thread of the object.
        target: The object.
    """

    def __init__(self, call: Callable[..., Any], target: object) -> None:  # Any: attributes and results of the target
        self._call = call
        self._target = target

    @property  # type: ignore[misc]  # read-only
    def __class__(self) -> type[Any]:  # Any: the class of the target
        return type(self._target)

    def __repr__(self) -> str:
        return f"<proxy of {self._target!r}>"

    def __getattr__(self, name: str) -> Any:  # Any: the attribute's type
        """Read an attribute of the target, on its thread unless it is a method."""
        __tracebackhide__ = True
        # Methods do not change, so the calling thread may read them itself: a call then takes half the time.
        if isinstance(getattr(type(self._target), name, None), FunctionType):
            return self._wrapped(getattr(self._target, name))
        return self._wrapped(self._call(getattr, self._target, name))

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute of the target on its thread; a private attribute is set on the proxy itself."""
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self._call(setattr, self._target, name, self._unwrapped(value))

    def _wrapped(self, value: Any) -> Any:  # Any: of all types
        if type(value) in (list, tuple):
            return type(value)(self._wrapped(item) for item in value)
        if isinstance(value, dict):
            return {key: self._wrapped(item) for key, item in value.items()}
        if isinstance(value, Iterator):
            return iter(self._wrapped(self._call(list, value)))
        if callable(value) and not isinstance(value, type):

            @functools.wraps(value)  # also for pytest, which shows its name
            def call_there(*args: Any, **kwargs: Any) -> Any:  # Any: arguments and result of the callable
                __tracebackhide__ = True
                return self._wrapped(self._call(value, *self._unwrapped(args), **self._unwrapped(kwargs)))

            return call_there
        is_ours = type(value).__module__.partition(".")[0] == __name__.partition(".")[0]
        return ThreadProxy(self._call, value) if is_ours and not _is_data(value) else value

    def _unwrapped(self, value: Any) -> Any:  # Any: of all types
        if isinstance(value, ThreadProxy) and value._call == self._call:
            return value._target
        if type(value) in (list, tuple):
            return type(value)(self._unwrapped(item) for item in value)
        if type(value) is dict:
            return {key: self._unwrapped(item) for key, item in value.items()}
        return value


def _forwarded(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: any operator
    """Make a method of ThreadProxy for an operator: Python looks for operators in the class, not in the object."""

    def operate(self: ThreadProxy, *args: Any) -> Any:  # Any: operands and results of all types
        __tracebackhide__ = True
        return self._wrapped(self._call(function, self._target, *self._unwrapped(args)))

    return operate


for _name, _operator in {
    "__len__": len,
    "__bool__": bool,
    "__str__": str,
    "__hash__": hash,
    "__eq__": operator.eq,
    "__iter__": iter,
    "__enter__": lambda target: target.__enter__(),
    "__exit__": lambda target, *exc_info: target.__exit__(*exc_info),
}.items():
    setattr(ThreadProxy, _name, _forwarded(cast(Callable[..., Any], _operator)))


def _is_data(value: object) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return isinstance(value, (BaseException, enum.Enum, tuple)) or (parameters is not None and parameters.frozen)


class ServerThread(ThreadProxy, Generic[_Server]):
    """A thread that runs a server, and proxy of this server. start(), stop() and ``with`` act on thread and server.

    start() returns another proxy, whose start() and stop() only start and stop the server. While the thread does not
    run, attributes are read and methods are called on the caller's thread. call() runs a function of the caller on the
    server's thread.

    Args:
        server: A server that is not started yet.
        timeout: Seconds that the server may take to start, and to stop.
    """

    def __init__(self, server: _Server, *, timeout: float = 30.0) -> None:
        ThreadProxy.__init__(self, self._call_anywhere, server)
        self._server = server
        self._timeout = timeout
        self._thread: HubThread | None = None
        # Greenlets that run a call().
        self._calls: set[gevent.Greenlet] = set()
        # How many watchers of the hub were active before the server started.
        self._watchers_before = 0
        self._stop_error: BaseException | None = None

    def start(self) -> _Server:
        """Start the thread and the server, unless they run.

        Returns:
            A proxy of the server.

        Raises:
            Exception: The exception of the server's start().
            TimeoutError: If the server does not start in time.
        """
        if self._thread is None:
            # A test may monkey-patch. gevent can patch locked locks only if threading does not list this thread.
            thread = HubThread("fakensqd", self._stop, is_known=False, kill_greenlets=False)
            try:
                thread.call(self._start)
            except BaseException:  # also after ctrl-C: nothing else stops the thread
                thread.stop()
                raise
            self._thread = thread
        return cast(_Server, ThreadProxy(self._call_anywhere, self._server))

    def stop(self) -> None:
        """Stop the server, its hub and its thread. Each call() that still runs raises a RuntimeError.

        Raises:
            RuntimeError: If a watcher of the hub is left over, such as that of a greenlet that still sleeps.
            TimeoutError: If the server does not stop in time.
            RuleNeverActed: As the server's stop().
        """
        if self._thread is not None:
            # _stop(), which the thread calls at its end, waits at most self._timeout for the server.
            self._thread.stop(self._timeout + _THREAD_GRACE)
            self._thread = None
            if self._stop_error is not None:
                raise self._stop_error
            # Here and not on the thread, where no exception is under way.
            tell_unfired(self._server._added_rules(), sys.exception())

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a greenlet on the server's thread, without a timeout.

        The greenlet is killed if the caller is interrupted.

        Returns:
            The result of the function.

        Raises:
            RuntimeError: If the thread does not run, or is stopped during the call.
            Exception: The exception of the function.
        """
        __tracebackhide__ = True
        if self._thread is None:
            raise RuntimeError("the server's thread does not run")
        return self._thread.call(self._killable, functools.partial(function, *args, **kwargs))

    def _call_anywhere(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        return function(*args, **kwargs) if self._thread is None else self.call(function, *args, **kwargs)

    def __enter__(self) -> _Server:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    # --- on the thread ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._watchers_before = gevent.get_hub().loop.activecnt
        with gevent.Timeout(self._timeout, TimeoutError(f"the server did not start within {self._timeout:g} s")):
            self._server.start()

    def _stop(self) -> None:
        self._stop_error = None
        try:
            with gevent.Timeout(self._timeout, TimeoutError(f"the server did not stop within {self._timeout:g} s")):
                self._server._shut_down()
            gevent.killall(list(self._calls))
            if left := self._count_watchers():
                raise RuntimeError(f"{counted(left, 'watcher')} of the hub left over after the server was stopped")
        except BaseException as error:  # noqa: BLE001  # stop() raises it on the caller's thread
            self._stop_error = error

    def _killable(self, function: Callable[[], T]) -> T:
        """Call a function in the current greenlet. _stop() kills this greenlet if the function still runs."""
        __tracebackhide__ = True
        greenlet = gevent.getcurrent()
        if greenlet in self._calls:  # a call inside of a call
            return function()
        self._calls.add(greenlet)
        try:
            return function()
        except gevent.GreenletExit:
            raise RuntimeError("the server was stopped during the call") from None
        finally:
            self._calls.discard(greenlet)

    def _count_watchers(self) -> int:
        """Wait while the number of the server's active watchers falls; return how many are left."""
        # The watchers of thousands of connections need time to end. So does a name lookup on another thread.
        fewest = math.inf
        while True:
            gevent.sleep(0)
            left: int = gevent.get_hub().loop.activecnt - self._watchers_before
            if left < fewest:
                fewest, deadline = left, monotonic() + _WATCHER_GRACE
            if left <= 0 or monotonic() > deadline:
                return max(0, left)
            gevent.sleep(0.001)
