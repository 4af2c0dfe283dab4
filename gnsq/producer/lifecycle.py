"""Starts a producer once and closes it once, and passes publishes of other threads to the producer's thread.

This code may be called from greenlets, threads, signal handlers and forked children. It uses no lock: a signal handler
would wait for ever for a lock that the interrupted thread has acquired.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

import gevent

from gnsq.concurrency.forks import register_after_fork
from gnsq.concurrency.greenlets import spawn
from gnsq.concurrency.hub_thread import HubThread
from gnsq.concurrency.threads import (
    CROSS_THREAD_GRACE,
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
from gnsq.lifecycle import ActiveGreenlets, call_at_exit, call_not_at_exit, not_closed_error, why_not_started
from gnsq.nsqd.pool import State
from gnsq.producer.publish import PendingPublish, Unconfirmed
from gnsq.producer.result import PublishResult
from gnsq.producer.runtime import ProducerRuntime
from gnsq.texts import counted

__all__ = ["ProducerLifecycle", "publish_from_thread"]

logger = logging.getLogger(__name__)


class _Start:
    """One attempt to start a producer. The caller that acquires ``token`` makes the attempt, or cancels it to close the
    producer. ``done`` is set when the attempt has succeeded, has failed or was cancelled."""

    __slots__ = ("done", "token")

    def __init__(self) -> None:
        self.token = Once()
        self.done = ThreadEvent()


class ProducerLifecycle:
    """Starts and closes one producer.

    Args:
        start: Function that makes and starts the runtime, and returns it.
        label: The producer's name in log lines.
        threaded: True if the producer runs on its own thread.
        close_timeout: Timeout of the close at the end of the program, seconds.
        on_close: Called after the close of a producer that was started.
        on_fork: Called in a forked child, before the producer can be started there.
        make_thread: Function that is called with a name, and starts the producer's own thread.
        grace: Seconds that a close may take longer than its timeout.

    Attributes:
        state: Changes only to a later state, except in a forked child, which can start the producer again.
        runtime: Connections and greenlets while the producer is running or closing; otherwise None.
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
        self._active = ActiveGreenlets()

    # --- start

    def ensure_started(self, limit: float) -> ProducerRuntime:
        """Start the producer if it is not running: a threaded producer in its own thread, others in the calling thread.

        Args:
            limit: Seconds to wait if another thread or greenlet is starting the producer; 0: do not wait.

        Raises:
            NSQNotSentClosed: If the producer was closed.
            NSQNotSentTimeout: If another thread or greenlet is starting the producer and takes longer than the limit.
            RuntimeError: If the hub itself must start a threaded producer: the hub can't wait for the new thread.
        """
        with self._active.marked():
            return self._ensure_started(limit)

    def _ensure_started(self, limit: float) -> ProducerRuntime:
        while True:
            runtime = self.runtime
            if runtime is not None and self.state is State.RUNNING:
                return runtime
            if self.state is not State.INIT:
                raise NSQNotSentClosed(why_not_started("producer", self.state))
            if self._threaded and is_hub_greenlet():
                raise RuntimeError("the hub itself can't wait for the producer's thread; let a greenlet call start()")
            # Register before the start is acquired. In the other order, a producer in a child that is forked between
            # the two steps would not be reset, and would wait for a start that nothing completes.
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
            # The attempt has failed: let the next call make a new attempt.
            self._start = _Start()
            raise
        else:
            self.state = State.RUNNING
            call_at_exit(ProducerLifecycle.close_at_exit, self, last=True)
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
        """Close the producer. If another call is closing it, wait until that call ends or the timeout is over.

        If the caller is the hub itself or a greenlet that the close waits for, the close continues in the background.

        Returns:
            The publishes that were not confirmed within the timeout (seconds). Empty if the close continues in the
            background, or if another call closes the producer.

        Raises:
            NSQTimeout: If the close takes ``grace`` seconds longer than the timeout, for example because the hub of the
                producer's thread does not run. The close continues.
        """
        may_wait = not self._is_reentrant()
        with self._active.marked():
            if not self._end.acquire():
                if may_wait and not self._closed.wait(timeout + self._grace):
                    raise self._not_closed(timeout)
                return []
            if self._cancel_start(self._start):
                return []
            if may_wait:
                return self._close(timeout)
            if get_hub_if_exists() is not None:
                spawn("gnsq-producer-close", self._close_and_log, self._close, timeout, on_failure="not closed")
            else:
                start_new_thread(self._close_and_log, (self._close, timeout))
            return []

    def _close_and_log(self, close: Callable[[float], object], timeout: float) -> None:
        """Call ``close``. Log an error instead of raising it, since no caller waits for the result."""
        try:
            close(timeout)
        except NSQException as error:
            logger.warning("%s: not closed: %s", self._label, error)

    def join(self, timeout: float) -> None:
        """Wait until the producer has closed, up to the timeout (seconds). Do not wait if it was never started."""
        if self.state is not State.INIT and not self._is_reentrant():
            self._closed.wait(timeout)

    def close_at_exit(self) -> None:
        """At the end of the program, close a threaded producer. For others, log how many publishes are unconfirmed."""
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
            # Repeat this: if the start that this call waits for fails, another caller can acquire the next start.
            if self._cancel_start(start):
                return []
            # Wait for the start to end: otherwise it could set the state after this close. Wait in short steps: in a
            # child that is forked during the start, the event of this start is never set.
            start.done.wait(CROSS_THREAD_GRACE)
            runtime = self.runtime
            if start.done.is_set and runtime is not None:
                return self._close_runtime(runtime, timeout)

    def _cancel_start(self, start: _Start) -> bool:
        """Close the producer if no greenlet has begun to start it. Return True if this call has closed it."""
        if not start.token.acquire():
            return False
        self._finish()
        # Wake other threads: they may wait for this start, since they could not acquire it.
        start.done.set()
        return True

    def _close_runtime(self, runtime: ProducerRuntime, timeout: float) -> list[Unconfirmed]:
        self.state = State.CLOSING
        # stop_accepting() only sets a flag, so any thread may call it.
        runtime.dispatcher.stop_accepting()
        pending = counted(runtime.dispatcher.pending, "publish", "publishes")
        logger.info("%s: closing, with up to %g s for %s pending", self._label, timeout, pending)
        ended: CrossThreadFuture[list[Unconfirmed]] = CrossThreadFuture()
        try:
            # Close in a new greenlet, which continues even if the caller is killed or interrupted by a gevent.Timeout.
            runtime.owner_thread.spawn(self._close_in_owner, runtime, timeout, ended)
        except NSQConnectionClosed:
            ended.set_result(self._abort_after_thread_death(runtime))
        if not ended.wait(timeout + self._grace):
            raise self._not_closed(timeout)
        if self._hub_thread is not None:
            self._hub_thread.stop()
        return ended.result()

    def _not_closed(self, timeout: float) -> NSQTimeout:
        if self._threaded:
            call_not_at_exit(self)  # it would wait for the same again
        owner = None if self.runtime is None else self.runtime.owner_thread
        return not_closed_error("producer", timeout + self._grace, owner, threaded=self._threaded)

    def _close_in_owner(
        self, runtime: ProducerRuntime, timeout: float, ended: CrossThreadFuture[list[Unconfirmed]]
    ) -> None:
        try:
            with self._active.marked():  # so close() and join() in receivers of on_close do not wait
                try:
                    unconfirmed = runtime.close(timeout)
                    self._log_end(unconfirmed)
                finally:
                    self._finish()
            ended.set_result(unconfirmed)
        except BaseException as error:  # noqa: BLE001  # _close_runtime() raises it
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
        """Close a producer whose thread, and thus whose hub, has ended."""
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
        call_not_at_exit(self)
        self._closed.set()
        if had_runtime:
            self._on_close()

    # --- calls that must not wait

    def _is_reentrant(self) -> bool:
        """Return True if the caller must not wait for the close.

        These must not wait: the hub itself, a greenlet of the producer (for example one that calls receivers of
        signals), and a signal handler that has interrupted code of the producer.
        """
        runtime = self.runtime
        return self._active.must_not_wait() or (runtime is not None and runtime.is_reentrant(gevent.getcurrent()))

    # --- forks

    def after_fork_in_child(self, parent: int) -> None:
        """Return a running producer to the state before its start, so that this child process can start it again."""
        self._on_fork()
        runtime, self.runtime = self.runtime, None
        # The producer's own thread does not exist in this process. A start that the parent had begun might never end.
        self._start = _Start()
        self._hub_thread = None
        self._active = ActiveGreenlets()
        if self.state is State.RUNNING:
            self.state = State.INIT
            self._end = Once()
        elif self.state is State.CLOSING:
            self.state = State.CLOSED
            self._closed.set()
        call_not_at_exit(self)
        if runtime is not None:
            runtime.after_fork_in_child(parent)


# --- publishes from other threads


def publish_from_thread(
    runtime: ProducerRuntime, publish: PendingPublish, *, block: bool, until_end: bool
) -> PublishResult:
    """Publish from another thread than the producer's, and wait until the publish has capacity.

    If the producer's hub does not run, the wait ends CROSS_THREAD_GRACE seconds after the deadline. If the caller is a
    hub itself, the call does not wait: if there is no capacity, the result gets the error.

    Args:
        until_end: Wait until the publish has ended, and not only until it has capacity.

    Raises:
        NSQException: In the cases of Producer.publish_async().
        RuntimeError: If until_end is True and the caller is a hub itself.
    """
    can_wait = not is_hub_greenlet()
    if until_end and not can_wait:
        raise RuntimeError("nothing can wait for a publish in the hub itself; let a greenlet do it")
    result = publish.result = runtime.waiters.new(publish.deadline)
    reached: CrossThreadFuture[None] = CrossThreadFuture()
    if until_end:
        result.add_done_callback(lambda result: reached.set_result(None))
    else:
        publish.on_capacity = lambda: reached.set_result(None)
    once = Once()

    def submit() -> None:
        if not once.acquire():
            return  # the caller no longer waits
        try:
            runtime.dispatcher.submit(publish, block)
            if not can_wait:
                runtime.dispatcher.wait_for_capacity(publish)  # in the hub this method raises instead of waiting
            elif publish.reserved_bytes and publish.on_capacity is not None:
                publish.on_capacity()
        except Exception as error:  # noqa: BLE001  # raised in the calling thread, or by get()
            reached.set_exception(error)
            result.end(error)

    try:
        runtime.owner_thread.call_soon(submit)
    except NSQConnectionClosed as error:
        text = f"{error}: the producer was started there; with threaded=True it has a thread of its own"
        raise NSQNotSentClosed(text) from error
    if not can_wait:
        return result
    try:
        is_reached = reached.wait(max(publish.deadline - runtime.now(), 0) + CROSS_THREAD_GRACE)
    except BaseException:
        # The caller was killed or interrupted by a gevent.Timeout. Let the producer's hub, which reads publish.result,
        # clear this attribute. Then a failure of the publish is logged.
        with contextlib.suppress(NSQConnectionClosed):
            runtime.owner_thread.call_soon(setattr, publish, "result", None)
        raise
    if not is_reached:
        text = f"the producer's thread has not run its hub for {publish.timeout + CROSS_THREAD_GRACE:g} s"
        text += "; in a program that blocks natively a producer needs threaded=True"
        raise NSQNotSentTimeout(text) if once.acquire() else NSQUnknownTimeout(text)
    reached.result()
    return result
