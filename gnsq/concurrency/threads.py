"""Calls between OS threads: runs a function in another thread's hub, and waits for its result.

Only this module imports from gevent._hub_local: gevent has no public function that returns a hub without making one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar

import gevent
from gevent import monkey
from gevent._hub_local import get_hub_if_exists
from gevent.event import Event

from gnsq.clock import monotonic
from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQConnectionClosed, NSQException, NSQTimeout
from gnsq.texts import shown_argument

__all__ = [
    "ALIVE_CHECK_INTERVAL",
    "CROSS_THREAD_GRACE",
    "NO_TIMEOUT",
    "CrossThreadFuture",
    "HubCallQueue",
    "Once",
    "OwnerThread",
    "ThreadEvent",
    "ThreadToken",
    "allocate_lock",
    "checked_seconds",
    "checked_timeout",
    "current_thread",
    "get_hub_if_exists",
    "get_ident",
    "hub_call_queue",
    "is_hub_greenlet",
    "local",
    "start_new_thread",
    "start_thread",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds. Used in place of "no timeout", since native locks and timers do not accept infinity.
NO_TIMEOUT = 1e9
# Seconds that a call into another thread's hub may take longer than its timeout.
CROSS_THREAD_GRACE = 1.0
# Seconds. A waiting thread returns to the interpreter at this interval, so that the interpreter handles signals.
SIGNAL_CHECK_INTERVAL = 1.0
# Seconds. A thread that waits for another thread checks at this interval if that other thread has ended.
ALIVE_CHECK_INTERVAL = 1.0


def checked_seconds(name: str, seconds: float | timedelta) -> float:
    """Return an argument of a call in seconds. Raise TypeError if it is neither a number nor a timedelta."""
    if type(seconds) is float or type(seconds) is int:
        return seconds
    if isinstance(seconds, timedelta):
        return seconds.total_seconds()
    # Decimal, Fraction and the numbers of numpy have __float__(), text has not. A bool is probably a mistake.
    if isinstance(seconds, bool) or not hasattr(seconds, "__float__"):
        raise TypeError(f"{name} must be a number of seconds, not {shown_argument(seconds)}")
    return float(seconds)


def checked_timeout(timeout: float | timedelta | None, default: float) -> float:
    """Return the argument ``timeout`` of a call, or the default if it is None.

    Raises:
        TypeError: If it is neither a number nor a timedelta.
        ValueError: If it is negative, NO_TIMEOUT or more, or nan.
    """
    if timeout is None:
        return default
    timeout = checked_seconds("timeout", timeout)
    if not 0 <= timeout < NO_TIMEOUT:
        raise ValueError(f"timeout {timeout} must be at least 0 and less than {NO_TIMEOUT:g} s")
    return timeout


# --- the interpreter's own thread primitives. Monkey-patching replaces them by gevent's, which identify greenlets
# instead of threads, or belong to one hub.

# Any: gevent has no types.
allocate_lock: Any = monkey.get_original("_thread", "allocate_lock")
get_ident: Callable[[], int] = monkey.get_original("_thread", "get_ident")
local: Any = monkey.get_original("_thread", "_local")
start_new_thread: Any = monkey.get_original("_thread", "start_new_thread")


def start_thread(
    function: Callable[..., object],
    *args: Any,  # Any: arguments of any function
    name: str = "",
) -> threading.Thread | None:
    """Start a native daemon thread.

    Args:
        name: Registers the thread with the threading module, so that log records have its name. A thread without a
            name, or of a monkey-patched process, is not registered. A reason to give no name: gevent can monkey-patch
            locked locks, such as the import lock, only while no thread but the main thread is registered.

    Returns:
        The threading module's thread; None if it is not registered.
    """
    if not name or monkey.is_module_patched("threading"):
        start_new_thread(_run_unregistered, (function, args))
        return None
    thread = threading.Thread(target=_run_registered, args=(function, args), name=name, daemon=True)
    thread.start()
    return thread


def _run_registered(function: Callable[..., object], args: tuple[Any, ...]) -> None:  # Any: arguments of any function
    try:
        function(*args)
    finally:
        if (ident := threading.get_ident()) != get_ident():
            # The process was monkey-patched meanwhile: the threading module looks for a thread by a greenlet's id now.
            _threads[ident] = _threads.pop(get_ident())


def _run_unregistered(function: Callable[..., object], args: tuple[Any, ...]) -> None:  # Any: arguments of any function
    # Set the trace and profile functions, as the threading module does: debuggers and coverage need these functions.
    sys.settrace(threading.gettrace())
    sys.setprofile(threading.getprofile())
    try:
        function(*args)
    finally:
        # Remove the dummy thread that logging in this thread registers: it would stay in the table for ever.
        _threads.pop(get_ident(), None)


# The threading module's table of threads, by ident. There is no public way to correct this table.
_threads: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]  # typeshed hides it


# --- calls into another thread's hub


class HubCallQueue:
    """Queue of functions. Any thread adds functions; the hub of the thread that made the queue calls them.

    The queue uses a watcher's send(), not the loop's run_callback_threadsafe(). With gevent 26.9 and libev, calls of
    run_callback_threadsafe() make a busy loop miscount its watchers. Then the loop ends with LoopExit, or never ends.
    """

    def __init__(self, loop: Any) -> None:  # Any: gevent has no types
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        # ref=False: the watcher does not keep the hub running.
        self._watcher = loop.async_(ref=False)
        self._watcher.start(self._drain)

    def call_soon_threadsafe(self, function: Callable[..., object], *arguments: Any) -> None:  # Any: any arguments
        """Let the hub itself call a function soon. The hub keeps the order of the calls. The function must not wait.

        Raises:
            ValueError: If the hub's loop was destroyed.
        """
        self._calls.append((function, arguments))
        self._watcher.send()

    def close(self) -> None:
        """Accept no more calls. Must be called before the hub's loop is destroyed: a loop frees no started watcher."""
        self._watcher.close()

    def _drain(self) -> None:
        # Each call has its own callback. If a function raises, gevent prints the exception and calls the others.
        while self._calls:
            function, arguments = self._calls.popleft()
            self._loop.run_callback(function, *arguments)


# The queue of each hub that has one.
_hub_call_queues: weakref.WeakKeyDictionary[Any, HubCallQueue] = weakref.WeakKeyDictionary()


def hub_call_queue() -> HubCallQueue:
    """Return the queue of the calling thread's hub."""
    hub = gevent.get_hub()
    found = _hub_call_queues.get(hub)
    if found is None:
        found = _hub_call_queues[hub] = HubCallQueue(hub.loop)
    return found


def is_hub_greenlet() -> bool:
    """Return True if the caller is a callback that the hub itself runs. Such a callback can't wait."""
    hub = get_hub_if_exists()
    return hub is not None and gevent.getcurrent() is hub


# --- waiting for another thread


class Once:
    """Tells the first of several callers from the others. The callers may be in different threads."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()

    @property
    def is_acquired(self) -> bool:
        """True after the first acquire()."""
        return bool(self._lock.locked())

    def acquire(self) -> bool:
        """Return True to the first caller and False to all others, without waiting."""
        return bool(self._lock.acquire(False))


class ThreadEvent:
    """Event that any number of threads and greenlets can wait for. Once set, it stays set.

    In a thread without a hub, an event does not make a hub.

    Attributes:
        is_set: True if the event is set.
        waiting: What set() calls: functions that wake a thread, and those of call_when_set(). Threads share this dict
            without a lock, since each call of a dict's method is atomic.
    """

    __slots__ = ("is_set", "waiting")

    def __init__(self) -> None:
        self.is_set = False
        self.waiting: dict[Callable[[], object], None] = {}

    def set(self) -> None:
        """Set the event, wake all waiting threads and greenlets, and call the functions of call_when_set()."""
        # Set is_set before reading waiting. All others add to waiting before reading is_set. So nothing is missed.
        self.is_set = True
        for function in list(self.waiting):
            # Only one of several threads takes a function out.
            if self.waiting.pop(function, function) is None:
                function()

    def call_when_set(self, function: Callable[[], object]) -> None:
        """Call a function when the event is set: in the thread that sets it, or here at once if it is set already."""
        self.waiting[function] = None
        if self.is_set:
            self.set()

    def wait(self, timeout: float) -> bool:
        """Wait until the event is set, up to the timeout in seconds.

        A thread without a hub blocks. In a thread with a hub other greenlets run meanwhile.

        Returns:
            True if the event is set.
        """
        if self.is_set:
            return True
        if get_hub_if_exists() is None:
            lock = allocate_lock()
            lock.acquire()
            self.waiting[wake := lock.release] = None
            end = monotonic() + timeout
            try:
                # Wait in short steps: a signal that comes just before the system call is handled only after the call.
                while not self.is_set and monotonic() < end:
                    lock.acquire(timeout=min(max(end - monotonic(), 0.0), SIGNAL_CHECK_INTERVAL))
            finally:
                self.waiting.pop(wake, None)
        else:
            event = Event()
            self.waiting[wake := functools.partial(_set_in_hub, hub_call_queue(), event)] = None
            try:
                if not self.is_set:
                    # The timer of this wait also keeps the loop running, which a HubCallQueue does not do.
                    event.wait(min(timeout, NO_TIMEOUT))
            finally:
                self.waiting.pop(wake, None)
        return self.is_set


def _set_in_hub(queue: HubCallQueue, event: Event) -> None:
    # The waiting thread's hub may have ended; then nothing waits.
    with contextlib.suppress(ValueError):
        queue.call_soon_threadsafe(event.set)


class CrossThreadFuture(ThreadEvent, Generic[T]):
    """Result that one thread sets and others wait for: an event that is set with the result or an exception."""

    __slots__ = ("_error", "_once", "_value")

    def __init__(self) -> None:
        super().__init__()
        self._once = Once()
        self._error: BaseException | None = None

    def set_result(self, value: T) -> None:
        """Set the result, without waiting. Any thread may call this. Only the first result or exception counts."""
        if self._once.acquire():
            self._value = value
            self.set()

    def set_exception(self, error: BaseException) -> None:
        """Set an exception, which result() raises. The rules of set_result() apply."""
        if self._once.acquire():
            self._error = error
            self.set()

    def set_from(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> None:  # Any: arguments of any function
        """Call a function, and set what it returns or raises."""
        __tracebackhide__ = True
        try:
            self.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  # raised by result()
            self.set_exception(error)

    def result(self) -> T:
        """Return the result, or raise the exception.

        Raises:
            RuntimeError: If the future is not set.
        """
        __tracebackhide__ = True
        if not self.is_set:
            raise RuntimeError("the future has no result yet")
        if self._error is not None:
            raise self._error
        return self._value


# --- the thread that owns a hub


class ThreadToken:
    """Identifies a thread. An ident is not enough: a later thread may get the ident of a thread that has ended."""

    __slots__ = ("__weakref__",)


class _CurrentThread(local):  # type: ignore[misc]  # gevent has no types
    """Data of the calling thread.

    Attributes:
        token: The ThreadToken of the thread. Other objects hold only weak references to it.
    """

    token: ThreadToken

    def __init__(self) -> None:
        self.token = ThreadToken()


current_thread = _CurrentThread()


class OwnerThread:
    """The thread that made this object. Other threads can call functions in the hub of the owner thread.

    Attributes:
        ident: What get_ident() returns in the owner thread.
        token: Weak reference to the thread's token; returns None when the thread has ended.
    """

    __slots__ = ("_queue", "ident", "token")

    def __init__(self) -> None:
        self.ident = get_ident()
        self.token = weakref.ref(current_thread.token)
        self._queue = hub_call_queue()

    @property
    def is_current(self) -> bool:
        """True if the caller runs in the owner thread."""
        return current_thread.token is self.token()

    @property
    def has_ended(self) -> bool:
        """True if the owner thread has ended."""
        return self.token() is None

    def spawn(self, function: Callable[..., object], *arguments: Any) -> None:  # Any: arguments of any function
        """Call a function in a new greenlet of the owner thread's hub. The calls begin in the order of spawn().

        An exception that the function raises is logged, since no caller waits for the function.

        Raises:
            NSQConnectionClosed: If the thread has ended, or its hub is gone.
        """
        self.call_soon(lambda: spawn("gnsq-call", _log_exceptions, function, arguments, on_failure="the call failed"))

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:  # Any: arguments of any function
        """Let the owner thread's hub itself call a function soon. The function must neither wait nor raise.

        Raises:
            NSQConnectionClosed: If the thread has ended, or its hub is gone.
        """
        self._check_not_ended()
        try:
            self._queue.call_soon_threadsafe(function, *arguments)
        except ValueError as error:  # raised by gevent for a loop that was destroyed
            raise NSQConnectionClosed("the thread that this belongs to has ended") from error

    def call_and_wait(self, limit: float, function: Callable[..., T], *arguments: Any) -> T:  # Any: any arguments
        """Call a function in a greenlet of the owner thread's hub, or directly in the owner thread. Return its result.

        If the caller is interrupted, for example by a gevent.Timeout, the greenlet is killed.

        Args:
            limit: Seconds to wait; no limit in the owner thread itself.

        Raises:
            NSQTimeout: If the function takes longer; it is not interrupted.
            NSQConnectionClosed: If the thread ended before the call or during it, or if its hub is gone.
        """
        __tracebackhide__ = True
        if self.is_current:
            return function(*arguments)
        future: CrossThreadFuture[T] = CrossThreadFuture()
        begun: list[gevent.Greenlet] = []
        call = functools.partial(spawn, "gnsq-call", future.set_from, function, *arguments, on_failure=None)
        self.call_soon(lambda: begun.append(call()))
        end = monotonic() + limit
        try:
            while not future.wait(min(end - monotonic(), ALIVE_CHECK_INTERVAL)) and monotonic() < end:
                self._check_not_ended()
        except BaseException:
            with contextlib.suppress(NSQConnectionClosed):
                self.call_soon(lambda: begun[0].kill(block=False))
            raise
        if not future.is_set:
            raise NSQTimeout(f"a call to another thread's hub was not done within {limit:g} s; does that hub run?")
        try:
            return future.result()
        except gevent.GreenletExit:
            raise NSQConnectionClosed("the call was killed in its thread, which may be ending") from None

    def _check_not_ended(self) -> None:
        if self.has_ended:
            raise NSQConnectionClosed("the thread that this belongs to has ended")


def _log_exceptions(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except NSQException as error:
        # No warning is needed: if no answer of a message is sent, nsqd delivers this message again.
        logger.info("an answer from another thread was not sent: %s", error)
