"""The life of a client, which is a Consumer or a Producer.

It is started once, in the caller's hub or in a thread of its own, and closed once: by any thread, a handler or a signal
handler, at the end of the program, or because its thread has ended. In a forked child, a producer can be started again,
and a consumer is closed.

This code may be called from greenlets, threads, signal handlers and forked children. It uses no lock: a signal handler
would wait for ever for a lock that the interrupted thread has acquired.
"""

# The states of a client (stats().state):
#
#     +------+  start()  +---------+  close()  +---------+  all is done, or close_timeout is over  +--------+
#     | init | --------> | running | --------> | closing | ------------------------------------> | closed |
#     +------+           +---------+           +---------+                                       +--------+
#      |    ^                 |  |                                                                 ^    ^
#      |    +-----------------+  +--- its thread ends, or this is a forked child with a consumer --+    |
#      |     a forked child with a producer                                                             |
#      +------------------------------------- close() --------------------------------------------------+

from __future__ import annotations

import atexit
import contextlib
import enum
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import gevent

from gnsq.clock import Clock
from gnsq.concurrency.forks import register_after_fork
from gnsq.concurrency.greenlets import run_until_done, spawn
from gnsq.concurrency.hub_thread import HubThread
from gnsq.concurrency.threads import NO_TIMEOUT, Once, OwnerThread, ThreadEvent, checked_timeout, is_hub_greenlet
from gnsq.errors import NSQConnectionClosed, NSQErrorCode, NSQNotSentClosed, NSQNotSentTimeout, NSQTimeout
from gnsq.logs import ClientLog, LogOwner
from gnsq.nsqd.connection import Connection
from gnsq.options import Seconds, check_flag
from gnsq.signals import ClientSignals, notify

__all__ = ["Client", "ClientGreenlets", "Lifecycle", "Runtime", "State"]


class State(enum.Enum):
    """The state of a client. It changes only to one further down; in a forked child also to INIT."""

    INIT = "init"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


class ClientGreenlets:
    """Greenlets that a client's close waits for or ends: those of its loops, and those that run its code just now.

    close() and join() must not wait in them. The caller may also be a signal handler that has interrupted one of them.
    """

    def __init__(self, owner: LogOwner, clock: Clock, logger: logging.Logger) -> None:
        self._owner = owner
        self._clock = clock
        self._logger = logger
        self._loops: list[gevent.Greenlet] = []
        self._marked: set[gevent.Greenlet] = set()

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """Mark the calling greenlet during the block."""
        greenlet = gevent.getcurrent()
        if greenlet in self._marked:
            yield
            return
        self._marked.add(greenlet)
        try:
            yield
        finally:
            self._marked.discard(greenlet)

    def must_not_wait(self) -> bool:
        """Return True if the caller is the hub itself, a loop or a marked greenlet."""
        greenlet = gevent.getcurrent()
        return is_hub_greenlet() or greenlet in self._marked or greenlet in self._loops

    def run_loop(self, name: str, loop: Callable[[], None]) -> None:
        """Start a greenlet that runs a function until kill_loops(), and again if it raises an Exception."""
        what = f"the greenlet for {name} of {self._owner.label}"
        arguments = run_until_done, what, loop, self._logger, self._clock
        self._loops.append(spawn(f"gnsq-{name}-{self._owner.label}", *arguments, on_failure="it has ended"))

    def kill_loops(self) -> None:
        """Let the loops end soon, except that of the caller."""
        for greenlet in self._loops:
            if greenlet is not gevent.getcurrent():
                greenlet.kill(block=False)

    def forget_all(self) -> None:
        """Forget all greenlets, in a forked child: blocks of other threads never end there."""
        self._loops.clear()
        self._marked.clear()


class Runtime(Protocol):
    """The connections and greenlets of a started client, in the hub in which it was started."""

    def wait_started(self) -> None:
        """Wait until an nsqd is connected, or each attempt to connect has failed, or for a second."""

    def owns_greenlet(self, greenlet: gevent.Greenlet) -> bool:
        """Return True if close() and join() must not wait in a greenlet of this thread."""

    def what_is_left(self) -> str:
        """Return what a program that ends now does not complete. Empty: nothing."""

    def begin_close(self, timeout: float) -> None:
        """Accept nothing new. Called by any thread, also by a signal handler, so this must not wait."""

    def close(self, timeout: float) -> None:
        """Wait up to the timeout (seconds) until all is done, then close the connections."""

    def abort(self) -> None:
        """Close at once, because the thread ends. Its hub still runs."""

    def abort_without_hub(self) -> None:
        """Close at once, called by another thread because the own one has ended, so that the hub does not run."""

    def after_fork_in_child(self, parent: int) -> None:
        """Stop in this child process. The connections close themselves: see concurrency/forks.py."""


class _Start:
    """One attempt to start a client. The caller that acquires ``token`` makes the attempt, or cancels it to close the
    client. ``done`` is set when the attempt has succeeded, has failed or was cancelled."""

    __slots__ = ("done", "token")

    def __init__(self) -> None:
        self.token = Once()
        self.done = ThreadEvent()


RuntimeT = TypeVar("RuntimeT", bound=Runtime)


class Lifecycle(Generic[RuntimeT]):
    """Starts and closes one client.

    Args:
        kind: "consumer" or "producer", for texts.
        start: Makes and starts the runtime, in the hub of the thread that is given. Must not wait.
        grace: Seconds that a close may take longer than its timeout.
        on_fork: For a client that can be started again in a forked child, where this is called first.
        is_last: Close the client at the end of the program after those for which this is False.
        make_thread: Starts a thread with this name, which calls the function when it ends.

    Attributes:
        state: Other threads and signal handlers read it at any time.
        runtime: The started runtime, until the client has closed; otherwise None.
        owner_thread: The thread in which the client was started; None before the start.
        end_reason: Why the client has closed without close(). Empty: it has not.
        has_lost_thread: True if the reason is that its thread has ended.
    """

    def __init__(
        self,
        client: Client,
        kind: str,
        start: Callable[[OwnerThread], RuntimeT],
        greenlets: ClientGreenlets,
        *,
        grace: float,
        on_fork: Callable[[], None] | None = None,
        is_last: bool = False,
        make_thread: Callable[[str, Callable[[], None]], HubThread] = HubThread,
    ) -> None:
        self.state = State.INIT
        self.runtime: RuntimeT | None = None
        self.owner_thread: OwnerThread | None = None
        self.end_reason = ""
        self.has_lost_thread = False
        self.is_last = is_last
        self._client = client
        self._kind = kind
        self._start_runtime = start
        self._greenlets = greenlets
        self._grace = grace
        self._on_fork = on_fork
        self._make_thread = make_thread
        self._begin_life()
        _close_at_exit(self)

    def _begin_life(self) -> None:
        self._start = _Start()
        self._hub_thread: HubThread | None = None
        # Acquired by the first close(), which then sets the limit in seconds.
        self._asked_to_close = Once()
        self._close_limit: float | None = None
        # Acquired by the greenlet or thread that ends the runtime.
        self._end = Once()
        self._ended_runtime: RuntimeT | None = None
        self._closed = ThreadEvent()

    @property
    def is_running(self) -> bool:
        """True in the state RUNNING. mypy does not know that a call may change the state."""
        return self.state is State.RUNNING

    @property
    def _label(self) -> str:
        return self._client.log_owner.label

    @property
    def _logger(self) -> ClientLog:
        return self._client.log_owner.log(self._client.logger)

    # --- start

    def start(self) -> None:
        """Start the client, and wait until the first nsqd is connected, as Runtime.wait_started() does. If it runs
        already, log that instead.

        Raises:
            NSQConnectionClosed: If the client was closed, or its thread has ended.
            RuntimeError: If the hub itself must start a threaded client: the hub can't wait for the new thread.
        """
        if self.is_running:
            text = self.why_not_started()
            if self.owner_thread is not None and self.owner_thread.has_ended:
                raise NSQConnectionClosed(text)
            self._logger.warning("not started again: %s", text)
            return
        runtime = self.ensure_started(NO_TIMEOUT)
        try:
            if self.owner_thread is not None:
                self.owner_thread.call_and_wait(NO_TIMEOUT, runtime.wait_started)
        except NSQConnectionClosed:
            if self.is_running:
                raise
            # It was closed meanwhile, and its thread has ended.

    def ensure_started(self, limit: float) -> RuntimeT:
        """Start the client if it is not running: a threaded one in its own thread, others in the calling thread. Do not
        wait for a connection.

        Args:
            limit: Seconds to wait if another thread or greenlet is starting the client; 0: do not wait.

        Raises:
            NSQNotSentClosed: If the client was closed.
            NSQNotSentTimeout: If another thread or greenlet is starting the client and takes longer than the limit.
            RuntimeError: As start().
        """
        with self._greenlets.marked():
            while True:
                runtime = self.runtime
                if runtime is not None and self.state is State.RUNNING:
                    return runtime
                if self.state in (State.CLOSING, State.CLOSED):
                    raise NSQNotSentClosed(self.why_not_started())
                if self._client.threaded and is_hub_greenlet():
                    raise RuntimeError(
                        f"the hub itself can't wait for the {self._kind}'s thread; let a greenlet call start()"
                    )
                # Register before the start is acquired. In the other order, a client in a child that is forked between
                # the two steps would not be reset, and would wait for a start that nothing completes.
                register_after_fork(self)
                start = self._start
                if start.token.acquire():
                    self._start_now(start)
                elif not (start.done.is_set or (limit > 0 and start.done.wait(limit))):
                    raise NSQNotSentTimeout(f"another thread has not started the {self._kind} within {limit:g} s")

    def _start_now(self, start: _Start) -> None:
        try:
            if self._client.threaded:
                self._start_in_thread()
            else:
                self._start_here()
        except BaseException:
            if self.runtime is None:
                # Let the next call make a new attempt.
                self._start = _Start()
            raise
        finally:
            start.done.set()
            # The runtime is set, then the limit is read. close() sets the limit, then reads the runtime. So either this
            # call or close() begins the close, or both do.
            if self._close_limit is not None:
                self._begin_close(self._close_limit)

    def _start_here(self) -> None:
        self.owner_thread = OwnerThread()
        runtime = self._start_runtime(self.owner_thread)
        _close_at_exit(self, is_started=True)
        self.state = State.RUNNING
        # Last: whoever sees the runtime uses it. No greenlet of the runtime has run yet.
        self.runtime = runtime

    def _start_in_thread(self) -> None:
        self._hub_thread = self._make_thread(f"gnsq-{self._label}", self._abort_with_thread)
        try:
            self._hub_thread.call(self._start_here)
        except BaseException:
            if self.runtime is None:
                self._hub_thread.stop()
            raise

    def why_not_started(self) -> str:
        """Say why start() does nothing: in the state INIT, because another caller is starting the client."""
        if self.end_reason:
            return self.end_reason
        if self.state is State.RUNNING:
            if self.owner_thread is not None and self.owner_thread.has_ended:
                return f"the {self._kind}'s thread has ended; make a new one"
            return f"{self._kind} is running already"
        if self.state is State.INIT:
            return f"another thread or greenlet is starting the {self._kind}"
        return f"{self._kind} {'is closing' if self.state is State.CLOSING else 'was closed'}; make a new one"

    def why_not_running(self) -> str:
        """Say why stats().not_ready has no other reason. Empty: the client is running."""
        if self.state is State.INIT:
            return "not started"
        if self.end_reason:
            return f"closed: {self.end_reason}"
        return "" if self.state is State.RUNNING else self.state.value

    # --- close

    def close(self, timeout: float) -> RuntimeT | None:
        """Close the client. If another call is closing it, wait until that close ends, or the timeout is over.

        If the caller is the hub itself or a greenlet that the close waits for, the close continues in the background.

        Returns:
            The runtime, if this call has closed it. None if it was not started, if the close continues in the
            background, or if another call has begun it.

        Raises:
            NSQTimeout: If the close takes ``grace`` seconds longer than the timeout, for example because the hub of the
                client's thread does not run. The close continues.
        """
        may_wait = not self.must_not_wait()
        with self._greenlets.marked():
            is_first = self.ask_to_close(timeout)
            if not may_wait:
                return None
            if not self._wait_closed(timeout + self._grace):
                _open.discard(self)  # it would wait for the same again
                raise self._not_closed_error(timeout + self._grace)
            return self._ended_runtime if is_first else None

    def ask_to_close(self, timeout: float) -> bool:
        """Begin the close, without waiting. Return True if no other call has begun it before."""
        if not self._asked_to_close.acquire():
            return False
        self._close_limit = timeout
        self._begin_close(timeout)
        return True

    def _begin_close(self, timeout: float) -> None:
        runtime, owner = self.runtime, self.owner_thread
        if runtime is None or owner is None:
            start = self._start
            # If another caller has acquired it, that start begins the close when it is done.
            if start.token.acquire():
                self._finish(None)
                # Wake other threads: they may wait for this start, since they could not acquire it.
                start.done.set()
            return
        if self.state is State.RUNNING:
            self.state = State.CLOSING
            runtime.begin_close(timeout)

        def close_soon() -> None:
            # In a new greenlet, which continues even if the caller is killed or interrupted by a gevent.Timeout.
            arguments = self._close_runtime, runtime, timeout
            spawn(f"gnsq-close-{self._label}", *arguments, on_failure="not closed gracefully")

        try:
            if owner.is_current:
                close_soon()
            else:
                owner.call_soon(close_soon)
        except NSQConnectionClosed:
            self._abort(runtime, runtime.abort_without_hub)

    def _close_runtime(self, runtime: RuntimeT, timeout: float) -> None:
        if not self._end.acquire():
            return
        with self._greenlets.marked():  # so that close() and join() in receivers of signals do not wait
            try:
                runtime.close(timeout)
            except BaseException:
                # Its thread ends meanwhile, which kills this greenlet; or a bug. Leave nothing open.
                runtime.abort()
                raise
            finally:
                self._finish(runtime)

    def _abort_with_thread(self) -> None:
        """Called in the client's own thread when it ends: after the close, but also if a handler calls sys.exit()."""
        if self.runtime is not None:
            self._abort(self.runtime, self.runtime.abort)

    def _abort(self, runtime: RuntimeT, abort: Callable[[], None]) -> None:
        if self._end.acquire():
            self.state, self.end_reason, self.has_lost_thread = State.CLOSED, "its thread has ended", True
            try:
                abort()
            finally:
                self._finish(runtime)

    def _finish(self, runtime: RuntimeT | None) -> None:
        """Send on_close if the client was started, wake the callers of close() and join(), and stop its own thread."""
        self.state = State.CLOSED
        self._ended_runtime, self.runtime = runtime, None
        _open.discard(self)
        try:
            if runtime is not None:
                with self._greenlets.marked():  # so that close() and join() in its receivers do not wait
                    notify(self._client.on_close, self._client)
        finally:
            self._closed.set()
            if self._hub_thread is not None:
                # Call stop() last: it also kills the greenlet that runs this method.
                self._hub_thread.stop()

    def _wait_closed(self, limit: float) -> bool:
        is_closed = self._closed.wait(limit)
        if is_closed and self._hub_thread is not None and self.is_other_thread:
            self._hub_thread.stop()  # waits until the thread has ended
        return is_closed

    def _not_closed_error(self, limit: float) -> NSQTimeout:
        text = f"not closed within {limit:g} s, and goes on in the background"
        if self.is_other_thread:
            text += f" when the {self._kind}'s thread runs its hub"
            if self._client.threaded:
                text += ": a handler or other code blocks it"
            else:
                text += f"; in a program that blocks natively a {self._kind} needs threaded=True"
        return NSQTimeout(text)

    def join(self, timeout: float) -> None:
        """Wait until the client has closed, up to the timeout (seconds). Do not wait if it was never started, nor where
        close() does not wait."""
        if self._start.token.is_acquired and not self.must_not_wait():
            self._wait_closed(timeout)

    def close_at_exit(self) -> None:
        """At the end of the program, close a threaded client. For others, log what is left, or was never begun."""
        client, runtime = self._client, self.runtime
        if self.state is State.INIT:
            # Not after an exception that may have prevented the start. A program that has started others, such as a run
            # of tests, may have made this one for another purpose.
            if self._kind == "consumer" and not _was_started and not hasattr(sys, "last_value"):
                self._logger.warning("the program ends, and the consumer was never started: start() lets it receive")
        elif client.threaded:
            try:
                client.close()
            except NSQTimeout as error:
                self._logger.warning("%s", error)
        elif runtime is not None and (left := runtime.what_is_left()):
            self._logger.warning("the program ends with %s: close() waits for them", left)

    # --- other threads, and calls that must not wait

    @property
    def is_other_thread(self) -> bool:
        """True if the caller runs in another thread than the started client."""
        return self.owner_thread is not None and not self.owner_thread.is_current

    def must_not_wait(self) -> bool:
        """Return True if the caller must not wait for the close.

        These must not wait: the hub itself, a greenlet that the close waits for, such as that of a handler, and a
        signal handler that has interrupted one of them or a start().
        """
        if self._greenlets.must_not_wait():
            return True
        runtime = self.runtime
        return runtime is not None and not self.is_other_thread and runtime.owns_greenlet(gevent.getcurrent())

    def why_blocked(self, limit: float) -> str:
        """Return why the hub of the client's thread does not run a call within some seconds. Empty: it does."""
        try:
            if self.owner_thread is not None:
                self.owner_thread.call_and_wait(limit, lambda: None)
        except NSQTimeout:
            return f"the hub of its thread has not run for {limit:g} s: a handler or other code blocks it"
        except NSQConnectionClosed as error:
            return str(error)
        return ""

    # --- forks

    def after_fork_in_child(self, parent: int) -> None:
        """Close a consumer, and let a producer begin again, as if it had not been started in the parent."""
        runtime, self.runtime, state = self.runtime, None, self.state
        _open.discard(self)
        if runtime is not None:
            runtime.after_fork_in_child(parent)
        self._greenlets.forget_all()
        if state is State.INIT or (state is State.RUNNING and self._on_fork is not None):
            # Its own thread does not exist in this process. A start that the parent had begun might never end.
            self.state, self.owner_thread = State.INIT, None
            self._begin_life()
            if self._on_fork is not None:
                self._on_fork()
        elif state is not State.CLOSED:
            self.state, self._hub_thread = State.CLOSED, None
            self.end_reason = f"it runs in process {parent}, and this process was forked from it"
            self._closed.set()


class Client(ClientSignals):
    """What a Consumer and a Producer have in common."""

    logger: logging.Logger
    log_owner: LogOwner
    threaded: bool
    _lifecycle: Lifecycle[Any]  # Any: each has its own runtime

    def close(self, timeout: Seconds | None = None) -> object:
        """See the subclasses."""
        raise NotImplementedError  # a Consumer returns nothing, a Producer what is not confirmed

    def join(self, timeout: Seconds | None = None, raise_error: bool = False) -> None:
        """Wait until the client has closed, up to the timeout (seconds). Do not wait if it was never started.

        Callers that close() does not wait in do not wait here either. raise_error has no effect.
        """
        check_flag("raise_error", raise_error)
        self._lifecycle.join(checked_timeout(timeout, NO_TIMEOUT))

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """True from start() until close() or the end of the client's thread."""
        return self._lifecycle.is_running

    @property
    def is_closed(self) -> bool:
        """True after the end of close()."""
        return self._lifecycle.state is State.CLOSED

    @property
    def has_lost_thread(self) -> bool:
        """True if the client's thread has ended before close(), for example since a handler called sys.exit()."""
        return self._lifecycle.has_lost_thread

    def why_blocked(self, limit: float) -> str:
        """For a liveness probe: return why the client's thread does not run its hub within some seconds; "" if it does.
        Waits for that; in the client's own thread there is nothing to wait for."""
        return self._lifecycle.why_blocked(limit)

    # --- methods that subclasses may override, as in gnsq 1.0. If one raises an exception, the exception is logged.

    def handle_response(self, conn: Connection, response: bytes) -> None:
        """Send on_response."""
        notify(self.on_response, self, response=response)

    def handle_error(self, conn: Connection, error: NSQErrorCode) -> None:
        """Send on_error."""
        notify(self.on_error, self, error=error)

    def handle_auth(self, conn: Connection, response: dict[str, object]) -> None:
        """Send on_auth."""
        notify(self.on_auth, self, conn=conn, response=response)


# --- the end of the program

# Lives of the clients that were made and are not closed.
_open: weakref.WeakSet[Lifecycle[Any]] = weakref.WeakSet()
_is_registered = False
# True if a client was started in this process.
_was_started = False


def _close_at_exit(lifecycle: Lifecycle[Any], *, is_started: bool = False) -> None:
    global _is_registered, _was_started
    _was_started = _was_started or is_started
    if not _is_registered:
        # Register when the first client is made, so that an import of this module registers nothing.
        _is_registered = True
        atexit.register(_close_all)
    _open.add(lifecycle)


def _close_all() -> None:
    # Handlers may publish until their end, so producers come last. The stack calls the last one first, and all of them
    # even if one raises: Ctrl-C may interrupt a close, and a subclass may override it.
    with contextlib.ExitStack() as stack:
        for lifecycle in sorted(_open, key=lambda lifecycle: not lifecycle.is_last):
            stack.callback(lifecycle.close_at_exit)
