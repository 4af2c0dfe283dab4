"""Lifecycle: starts and closes a producer, each once, and takes publishes from other threads than the producer's.

May be called from greenlets, threads, signal handlers and forked children. Holds no lock: a signal handler that
interrupts a thread would wait for a lock that this thread holds.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import gevent

from gnsq.concurrency.forks import register_after_fork
from gnsq.concurrency.hub_thread import HubThread
from gnsq.concurrency.threads import (
    CROSS_THREAD_GRACE,
    NO_TIMEOUT,
    CrossThreadFuture,
    Once,
    ThreadEvent,
    get_hub_if_exists,
    is_hub_greenlet,
    start_new_thread,
)
from gnsq.errors import (
    NSQConnectionClosed,
    NSQException,
    NSQNotSentClosed,
    NSQNotSentTimeout,
    NSQTimeout,
    NSQUnknownClosed,
    NSQUnknownTimeout,
)
from gnsq.nsqd.pool import State
from gnsq.producer.publish import PendingPublish, Unconfirmed
from gnsq.producer.result import PublishResult
from gnsq.producer.runtime import ProducerRuntime
from gnsq.texts import counted

__all__ = ["ProducerLifecycle", "publish_async_from_thread", "publish_from_thread"]

logger = logging.getLogger(__name__)


class _Start:
    """One attempt to start. One greenlet acquires it; done is set when it has succeeded or failed."""

    __slots__ = ("done", "token")

    def __init__(self) -> None:
        self.token = Once()
        self.done = ThreadEvent()


class ProducerLifecycle:
    """Starts and closes one producer.

    Args:
        start: Makes and starts the runtime.
        label: Names the producer in log lines.
        threaded: Whether to run on a thread of its own.
        close_timeout: Seconds for the close at the end of the program.
        on_close: Called when a producer that has run is closed.
        on_fork: Called in a forked child, before the producer can be started there.
        make_thread: Starts a thread of its own with a name.
        grace: Seconds beyond its timeout that a close may take.

    Attributes:
        state: Only advances, except in a forked child, where the producer can be started anew.
        runtime: Connections and greenlets while the producer is running or closing.
    """

    def __init__(
        self,
        start: Callable[[], ProducerRuntime],
        label: str,
        *,
        threaded: bool,
        close_timeout: float,
        on_close: Callable[[], None],
        on_fork: Callable[[], None],
        make_thread: Callable[[str], HubThread] = HubThread,
        grace: float = CROSS_THREAD_GRACE,
    ) -> None:
        self.state = State.INIT
        self.runtime: ProducerRuntime | None = None
        self._start_runtime = start
        self._label = label
        self._threaded = threaded
        self._close_timeout = close_timeout
        self._on_close = on_close
        self._on_fork = on_fork
        self._make_thread = make_thread
        self._grace = grace
        self._hub_thread: HubThread | None = None
        self._start = _Start()
        self._end = Once()
        self._closed = ThreadEvent()
        # Greenlets that run ensure_started() or close().
        self._active: set[gevent.Greenlet] = set()

    # --- start

    def ensure_started(self, limit: float) -> ProducerRuntime:
        """Start the producer if it is not running, in the calling thread or in a thread of its own.

        Args:
            limit: Seconds to wait if another thread is starting it; 0: do not wait.

        Raises:
            NSQNotSentClosed: If it was closed.
            NSQNotSentTimeout: If the other thread takes longer.
            RuntimeError: If it needs a thread of its own, and the hub itself calls, which can't wait for that.
        """
        with self._marked():
            return self._ensure_started(limit)

    def _ensure_started(self, limit: float) -> ProducerRuntime:
        while True:
            runtime = self.runtime
            if runtime is not None and self.state is State.RUNNING:
                return runtime
            if self.state is not State.INIT:
                raise NSQNotSentClosed("producer was closed; make a new one")
            if self._threaded and is_hub_greenlet():
                raise RuntimeError("the hub itself can't wait for the producer's thread; let a greenlet call start()")
            # Before the start is acquired: in a child that is forked after that, nothing would go on with the start.
            register_after_fork(self)
            start = self._start
            if start.token.acquire():
                self._start_now(start)
            elif not (start.done.is_set or (limit > 0 and start.done.wait(limit))):
                raise NSQNotSentTimeout(f"another thread has not started the producer within {limit:g} s")

    def _start_now(self, start: _Start) -> None:
        try:
            self.runtime = self._start_in_thread() if self._threaded else self._start_runtime()
        except BaseException:
            # The next call tries again.
            self._start = _Start()
            raise
        else:
            self.state = State.RUNNING
            _register_at_exit(self)
        finally:
            start.done.set()

    def _start_in_thread(self) -> ProducerRuntime:
        hub_thread = self._make_thread(f"gnsq-{self._label}")
        try:
            runtime = hub_thread.call(self._start_runtime)
        except BaseException:
            hub_thread.stop()
            raise
        self._hub_thread = hub_thread
        return runtime

    # --- close

    def close(self, timeout: float) -> list[Unconfirmed]:
        """Close the producer; if another call does so, wait for that.

        In the hub itself, and in greenlets for which the close waits, it goes on in the background.

        Returns:
            The publishes without a response at the timeout (seconds); empty in the background, and if another call
            closes.

        Raises:
            NSQTimeout: If it takes much longer, since the hub of the producer's thread does not run. The close goes on.
        """
        may_wait = not self._is_reentrant()
        with self._marked():
            if not self._end.acquire():
                if may_wait:
                    self._closed.wait(timeout + self._grace)
                return []
            if self._cancel_start(self._start):
                return []
            if may_wait:
                return self._close(timeout)
            if get_hub_if_exists() is not None:
                gevent.spawn(self._close_and_log, self._close, timeout)
            else:
                start_new_thread(self._close_and_log, (self._close, timeout))
            return []

    def _close_and_log(self, close: Callable[[float], object], timeout: float) -> None:
        """Close, and log an error: nothing waits for the result."""
        try:
            close(timeout)
        except NSQException as error:
            logger.warning("%s: not closed: %s", self._label, error)

    def join(self, timeout: float | None) -> None:
        """Wait until the producer has closed, or the timeout (seconds) ends. Does not wait if it was not started."""
        if self.state is not State.INIT and not self._is_reentrant():
            self._closed.wait(NO_TIMEOUT if timeout is None else timeout)

    def close_at_exit(self) -> None:
        """Close a producer that has a thread of its own; for another one, log how many publishes are lost."""
        runtime = self.runtime
        if self._threaded:
            self._close_and_log(self.close, self._close_timeout)
        elif runtime is not None and runtime.dispatcher.pending:
            count = runtime.dispatcher.pending
            text = "%s: the program ends with %s not confirmed: close() waits for them"
            logger.warning(text, self._label, counted(count, "publish", "publishes"))

    def _close(self, timeout: float) -> list[Unconfirmed]:
        while True:
            start = self._start
            # A start may have failed, so that a new one can be acquired.
            if self._cancel_start(start):
                return []
            # Until the start is done, since it sets the state last. In slices: in a child that is forked meanwhile
            # nothing sets this event.
            start.done.wait(CROSS_THREAD_GRACE)
            runtime = self.runtime
            if start.done.is_set and runtime is not None:
                return self._close_runtime(runtime, timeout)

    def _cancel_start(self, start: _Start) -> bool:
        """Close the producer if no start was begun. Returns: whether it was closed so."""
        if not start.token.acquire():
            return False
        self._finish()
        # Another thread may have seen that the start was acquired, and wait for it.
        start.done.set()
        return True

    def _close_runtime(self, runtime: ProducerRuntime, timeout: float) -> list[Unconfirmed]:
        self.state = State.CLOSING
        # Sets a flag only, so any thread may call it.
        runtime.dispatcher.stop_accepting()
        pending = counted(runtime.dispatcher.pending, "publish", "publishes")
        logger.info("%s: closing, with up to %g s for %s pending", self._label, timeout, pending)
        ended: CrossThreadFuture[list[Unconfirmed]] = CrossThreadFuture()
        if not runtime.owner_thread.is_current:
            try:
                runtime.owner_thread.call_soon(gevent.spawn, self._close_in_owner, runtime, timeout, ended)
            except NSQConnectionClosed:
                ended.set_result(self._abort_after_thread_death(runtime))
        else:
            # In a greenlet of its own, which goes on if the caller is killed or interrupted by a gevent.Timeout.
            gevent.spawn(self._close_in_owner, runtime, timeout, ended)
        limit = timeout + self._grace
        if not ended.wait(limit):
            if runtime.owner_thread.is_current:
                raise NSQTimeout(f"not closed within {limit:g} s, and goes on in the background")
            text = f"the producer's thread has not run its hub for {limit:g} s, and closes when it does"
            raise NSQTimeout(f"{text}; in a program that blocks natively a producer needs threaded=True")
        if self._hub_thread is not None:
            self._hub_thread.stop()
        return ended.result()

    def _close_in_owner(
        self, runtime: ProducerRuntime, timeout: float, ended: CrossThreadFuture[list[Unconfirmed]]
    ) -> None:
        try:
            with self._marked():  # receivers of on_close may call close() and join()
                try:
                    unconfirmed = runtime.close(timeout)
                    self._log_end(unconfirmed)
                finally:
                    self._finish()
            ended.set_result(unconfirmed)
        except BaseException as error:  # noqa: BLE001  # it is raised where close() waits
            ended.set_exception(error)
        finally:
            if self._hub_thread is not None:
                self._hub_thread.stop()

    def _log_end(self, unconfirmed: list[Unconfirmed]) -> None:
        if not unconfirmed:
            logger.info("%s: closed; nothing was left", self._label)
            return
        first = unconfirmed[0]
        text = "%s: closed with %s not confirmed, the first of them to %s: %s"
        what = counted(len(unconfirmed), "publish", "publishes")
        logger.warning(text, self._label, what, first.topic, first.error)

    def _abort_after_thread_death(self, runtime: ProducerRuntime) -> list[Unconfirmed]:
        """Close a producer whose thread has ended, and with it the hub."""
        error = NSQUnknownClosed("the thread that started the producer has ended; nsqd may have it")
        try:
            unconfirmed = runtime.abort_from_other_thread(error)
            self._log_end(unconfirmed)
            return unconfirmed
        finally:
            self._finish()

    def _finish(self) -> None:
        self.state = State.CLOSED
        had_runtime, self.runtime = self.runtime is not None, None
        _open_producers.discard(self)
        self._closed.set()
        if had_runtime:
            self._on_close()

    # --- calls that must not wait

    @contextlib.contextmanager
    def _marked(self) -> Iterator[None]:
        """Mark the calling greenlet as one that runs code of this object."""
        greenlet = gevent.getcurrent()
        if greenlet in self._active:
            yield
            return
        self._active.add(greenlet)
        try:
            yield
        finally:
            self._active.discard(greenlet)

    def _is_reentrant(self) -> bool:
        """Whether the caller must not wait: it is the hub itself, a greenlet of the producer, such as one that calls
        receivers of signals, or a signal handler that has interrupted code of the producer."""
        greenlet, runtime = gevent.getcurrent(), self.runtime
        return is_hub_greenlet() or greenlet in self._active or (runtime is not None and runtime.is_reentrant(greenlet))

    # --- forks

    def after_fork_in_child(self, parent: int) -> None:
        """Return to the state before the start, so that this child process can start the producer anew."""
        self._on_fork()
        runtime, self.runtime = self.runtime, None
        # A greenlet that was starting it may not be in this process, and its own thread is not.
        self._start = _Start()
        self._hub_thread = None
        self._active = set()
        if self.state is State.RUNNING:
            self.state = State.INIT
            self._end = Once()
        elif self.state is State.CLOSING:
            self.state = State.CLOSED
            self._closed.set()
        _open_producers.discard(self)
        if runtime is not None:
            runtime.after_fork_in_child(parent)


# Producers that are not closed, and may lose publishes when the program ends.
_open_producers: weakref.WeakSet[ProducerLifecycle] = weakref.WeakSet()
_registered = False


def _register_at_exit(lifecycle: ProducerLifecycle) -> None:
    global _registered
    if not _registered:
        # With the first producer: importing registers nothing.
        _registered = True
        atexit.register(_close_all)
    _open_producers.add(lifecycle)


def _close_all() -> None:
    for lifecycle in list(_open_producers):
        lifecycle.close_at_exit()


# --- publishes from other threads


def publish_from_thread(runtime: ProducerRuntime, publish: PendingPublish, *, block: bool) -> None:
    """Publish, called in another thread than the producer's, and wait until the publish has ended.

    The wait ends CROSS_THREAD_GRACE seconds after the deadline if the producer's hub does not run.

    Raises:
        NSQException: As Producer.publish().
        RuntimeError: In a hub itself.
    """
    if is_hub_greenlet():
        raise RuntimeError("nothing can wait for a publish in the hub itself; let a greenlet do it")
    ended: CrossThreadFuture[None] = CrossThreadFuture()

    def notify(done: PendingPublish) -> None:
        if done.error is None:
            ended.set_result(None)
        else:
            ended.set_exception(done.error)

    publish.on_done = notify
    _submit_in_owner(runtime, publish, ended, block=block)


def publish_async_from_thread(runtime: ProducerRuntime, publish: PendingPublish, *, block: bool) -> PublishResult:
    """Publish, called in another thread than the producer's, and wait until the publish has capacity.

    In a hub itself do not wait: if there is no capacity, the result has the error.

    Raises:
        NSQException: As Producer.publish_async().
    """
    result = runtime.waiters.new(publish.deadline)
    publish.on_done = lambda done: result.end(done.error)
    if is_hub_greenlet():

        def submit() -> None:
            try:
                runtime.dispatcher.submit(publish, True)
                runtime.dispatcher.wait_for_capacity(publish)  # raises if there is none: this is a hub
            except Exception as error:  # noqa: BLE001  # raised by get()
                result.end(error)

        _call_owner(runtime, submit)
    else:
        admitted: CrossThreadFuture[None] = CrossThreadFuture()
        publish.on_capacity = lambda: admitted.set_result(None)
        _submit_in_owner(runtime, publish, admitted, block=block)
    return result


def _submit_in_owner(
    runtime: ProducerRuntime, publish: PendingPublish, future: CrossThreadFuture[None], *, block: bool
) -> None:
    """Submit a publish in the producer's hub, and wait for the future."""
    once = Once()

    def submit() -> None:
        if block and not runtime.was_attempted:
            runtime.wait_first_attempts(publish.timeout)
        if not once.acquire():
            return  # the caller no longer waits
        try:
            runtime.dispatcher.submit(publish, block)
            if publish.reserved_bytes and publish.on_capacity is not None:
                publish.on_capacity()
        except Exception as error:  # noqa: BLE001  # raised in the calling thread
            future.set_exception(error)

    if block and not runtime.was_attempted:
        _call_owner(runtime, gevent.spawn, submit)
    else:
        _call_owner(runtime, submit)
    try:
        ended = future.wait(max(publish.deadline - runtime.now(), 0) + CROSS_THREAD_GRACE)
    except BaseException:
        # Killed, or a gevent.Timeout. Without on_done a failure is logged; set in the hub, which reads it.
        with contextlib.suppress(NSQConnectionClosed):
            runtime.owner_thread.call_soon(setattr, publish, "on_done", None)
        raise
    if not ended:
        text = f"the producer's thread has not run its hub for {publish.timeout + CROSS_THREAD_GRACE:g} s"
        text += "; in a program that blocks natively a producer needs threaded=True"
        raise NSQNotSentTimeout(text) if once.acquire() else NSQUnknownTimeout(text)
    future.result()


def _call_owner(
    runtime: ProducerRuntime,
    function: Callable[..., object],
    *arguments: Any,  # Any: the function's own
) -> None:
    try:
        runtime.owner_thread.call_soon(function, *arguments)
    except NSQConnectionClosed as error:
        text = f"{error}: the producer was started there; with threaded=True it has a thread of its own"
        raise NSQNotSentClosed(text) from error
