"""The result of publish_async(). Any thread can wait for it.

Greenlets of the producer's thread wait as for every AsyncResult of gevent. The objects for other threads and for
callbacks are made only when they are needed, so that publishes without them are faster.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

import gevent
from gevent.event import AsyncResult

from gnsq.clock import monotonic
from gnsq.concurrency.greenlets import check_is_failure, run_until_done, spawn
from gnsq.concurrency.threads import (
    ALIVE_CHECK_INTERVAL,
    CROSS_THREAD_GRACE,
    NO_TIMEOUT,
    OwnerThread,
    ThreadEvent,
    checked_seconds,
    get_hub_if_exists,
    get_ident,
)
from gnsq.errors import NSQUnknownClosed, NSQUnknownTimeout
from gnsq.options import Seconds
from gnsq.protocol.frames import OK
from gnsq.texts import shown_argument

__all__ = ["PublishResult", "ResultWaiters"]

logger = logging.getLogger(__name__)

Callback = Callable[["PublishResult"], object]


class ResultWaiters:
    """Wakes other threads that wait for results of one producer, and calls callbacks.

    Args:
        owner_thread: The producer's thread.
        now: Returns monotonic seconds.
        label: The producer's name in log lines.

    Attributes:
        pending: Event of each result that has not ended, if something waits for it. Threads share this dict without a
            lock, since each call of a dict's method is atomic.
        links: Greenlets that rawlink() has started in other threads, by result, callback and thread.
    """

    __slots__ = ("_now", "label", "links", "owner_thread", "pending")

    def __init__(self, owner_thread: OwnerThread, now: Callable[[], float], label: str) -> None:
        self.owner_thread = owner_thread
        self.pending: dict[PublishResult, ThreadEvent] = {}
        self.links: dict[tuple[PublishResult, Callback, int], gevent.Greenlet] = {}
        self._now = now
        self.label = label

    def new(self, deadline: float) -> PublishResult:
        """Make the result of a publish. The deadline is in monotonic seconds, as now() returns them."""
        result = PublishResult()
        result.waiters = self
        result.deadline = deadline
        return result

    def of(self, result: PublishResult) -> ThreadEvent:
        """Return the event that is set when a result has ended."""
        event = self.pending.setdefault(result, ThreadEvent())
        # The event is there before this check. The producer's thread ends the result before it looks for the event. So
        # the event is always set.
        if result.ready():
            self.notify(result)
        return event

    def notify(self, result: PublishResult) -> None:
        """Set the event of a result that has ended, if there is one."""
        event = self.pending.pop(result, None)
        if event is not None:
            event.set()

    def check_owner(self, result: PublishResult) -> None:
        """If the producer's thread has ended, end the result in its place.

        Raises:
            NSQUnknownTimeout: If the deadline passed over a second ago: the producer's thread does not run its hub.
        """
        if self.owner_thread.token() is None:
            text = "the thread that started the producer has ended, or is not in this process after a fork"
            result.end(NSQUnknownClosed(f"{text}; nsqd may have the publish"))
        elif self._now() > result.deadline + CROSS_THREAD_GRACE:
            raise NSQUnknownTimeout("the producer's thread has not run its hub; nsqd may have the publish")


class PublishResult(AsyncResult):  # type: ignore[misc]  # gevent has no types
    """Result of publish_async(): an AsyncResult of gevent. Any thread can wait for it.

    The result ends at the deadline of its publish at the latest. If the producer's thread does not run its hub, get()
    and wait() raise NSQUnknownTimeout one second after the deadline. While get() or wait() waits, other greenlets of
    the calling thread run; a thread without a hub is blocked. gevent.wait() and gevent.iwait() accept a result in every
    thread with a hub. With asyncio, await ``asyncio.wrap_future(result.as_future())``. A publish can't be cancelled:
    cancel() returns False.
    """

    __slots__ = ("deadline", "waiters")

    # ResultWaiters.new() sets these attributes.
    deadline: float
    waiters: ResultWaiters

    if TYPE_CHECKING:  # gevent's own

        @property
        def value(self) -> bytes | None: ...
        @property
        def exception(self) -> Exception | None: ...
        def ready(self) -> bool: ...
        def done(self) -> bool: ...
        def successful(self) -> bool: ...
        def cancel(self) -> bool: ...
        def cancelled(self) -> bool: ...
        def get_nowait(self) -> bytes: ...

    def get(self, block: bool = True, timeout: Seconds | None = None) -> bytes:
        """Wait until the publish has ended, and return b"OK".

        Args:
            block: If False, raise gevent.Timeout immediately unless the publish has ended.
            timeout: Seconds to wait; default: until the deadline of the publish.

        Raises:
            gevent.Timeout: If the publish has not ended within the timeout. This class is not a subclass of Exception.
            NSQException: In the cases of Producer.publish(). Each call raises the same object with a new traceback.
            NSQUnknownTimeout: In the cases of Producer.publish(), and if the producer's thread does not run its hub.
        """
        value = self.value
        if value is not None:
            return value
        seconds = None if timeout is None else checked_seconds("timeout", timeout)
        if block and not self.ready() and self._is_other_thread:
            self._wait_in_other_thread(seconds)
            if not self.ready():
                raise gevent.Timeout(seconds)
        error = self.exception
        if error is not None:
            # Reset the traceback: in gevent 24.2 it becomes longer with each call.
            raise error.with_traceback(None)
        ok: bytes = super().get(block, seconds)
        return ok

    def result(self, timeout: Seconds | None = None) -> bytes:
        """Do the same as get()."""
        return self.get(timeout=timeout)

    def wait(self, timeout: Seconds | None = None) -> bytes | None:
        """Wait until the publish has ended, up to the timeout (seconds).

        Returns:
            b"OK"; None if the publish has failed, or has not ended.

        Raises:
            NSQUnknownTimeout: If the producer's thread does not run its hub.
        """
        seconds = None if timeout is None else checked_seconds("timeout", timeout)
        if not self.ready() and self._is_other_thread:
            self._wait_in_other_thread(seconds)
            return self.value
        ok: bytes | None = super().wait(seconds)
        return ok

    def add_done_callback(self, callback: Callable[[PublishResult], object]) -> None:
        """Call a function with this result when the publish has ended.

        The hub of the producer's thread calls the function, or another thread if that one has ended. So the function
        can't wait. If the publish has ended already, add_done_callback() itself calls the function. If the function
        raises an exception, the exception is logged, and the other callbacks are called.
        """
        if not callable(callback):
            raise TypeError(f"callback must be a function, not {shown_argument(callback)}")

        def call() -> None:
            try:
                callback(self)
            except BaseException as error:  # a user's function may raise any exception
                check_is_failure(error)
                logger.exception("%s: a callback of a publish's result raised", self.waiters.label)

        self.waiters.of(self).call_when_set(call)

    def as_future(self) -> Future[bytes]:
        """Make a concurrent.futures.Future that gets the outcome of the publish. Each call makes a new future.

        The state of the future is "running" until the publish has ended, so the future's cancel() returns False.
        """
        future: Future[bytes] = Future()
        future.set_running_or_notify_cancel()

        def copy_outcome(result: PublishResult) -> None:
            if result.exception is None:
                future.set_result(OK)
            else:
                future.set_exception(result.exception)

        self.add_done_callback(copy_outcome)
        return future

    def rawlink(self, callback: Callable[[PublishResult], object]) -> None:
        """Call a function with this result, in the hub of the calling thread, when the publish has ended.
        In a thread without a hub this does the same as add_done_callback().
        """
        if not self._is_other_thread:
            super().rawlink(callback)
        elif get_hub_if_exists() is None:
            self.add_done_callback(callback)
        else:
            key = (self, callback, get_ident())
            if key not in self.waiters.links:
                arguments = run_until_done, "a greenlet that waits for a publish", self._wait_for_link, logger
                job = spawn("gnsq-link", *arguments, on_failure="the callback is called early")
                self.waiters.links[key] = job
                job.rawlink(lambda job: self.waiters.links.pop(key, None) is job and callback(self))

    def unlink(self, callback: Callable[[PublishResult], object]) -> None:
        """Undo a rawlink() that the same thread has called."""
        job = self.waiters.links.pop((self, callback, get_ident()), None)
        if job is None:
            super().unlink(callback)
        else:
            job.kill(block=False)

    def end(self, error: Exception | None) -> None:
        """End the result with b"OK" or an error. The producer calls this."""
        if error is None:
            self.set(OK)
        else:
            self.set_exception(error)
        if self.waiters.pending:
            self.waiters.notify(self)

    @property
    def _is_other_thread(self) -> bool:
        return not self.waiters.owner_thread.is_current

    def _wait_in_other_thread(self, timeout: float | None) -> None:
        until = monotonic() + (NO_TIMEOUT if timeout is None else timeout)
        ended = self.waiters.of(self)
        while not self.ready():
            self.waiters.check_owner(self)
            left = until - monotonic()
            if left <= 0:
                return
            ended.wait(min(left, ALIVE_CHECK_INTERVAL))

    def _wait_for_link(self) -> None:
        while not self.ready():
            with contextlib.suppress(NSQUnknownTimeout):
                self._wait_in_other_thread(None)
            # Continue to wait without a limit, as gevent does: the hub of the producer's thread may run again.
            if not self.ready():
                gevent.sleep(ALIVE_CHECK_INTERVAL)
