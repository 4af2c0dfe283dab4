"""Lifetime: starts and closes a producer, each once, for calls from greenlets, threads, signal handlers and children.

Holds no lock: a signal handler that interrupts a thread would wait for a lock that this thread holds. Knows nothing of
publishes.

Publishes that other threads than the producer's bring: handed over to its hub, waited for where they come from.
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
from gnsq.producer.publish import Publish, Unconfirmed
from gnsq.producer.result import PublishResult
from gnsq.producer.runtime import Running
from gnsq.texts import counted

__all__ = [
    "Lifetime",
    "begin",
    "publish_and_wait",
]

logger = logging.getLogger(__name__)


class _Start:
    """One try to start: acquired by the greenlet that does it; done is set when it has succeeded or failed."""

    __slots__ = ("done", "token")

    def __init__(self) -> None:
        self.token = Once()
        self.done = ThreadEvent()


class Lifetime:
    """Starts and closes one producer.

    Args:
        begin: Makes and starts what runs.
        label: The producer's name in log lines.
        threaded: Whether it runs on a thread of its own.
        close_timeout: Seconds for the close at the end of the program.
        on_close: Called when a producer that has run is closed.
        on_fork: Called in a forked child, before the producer can be started there.

    Attributes:
        state: Of the producer.
        running: Its connections and greenlets, while it is running or closing.
    """

    def __init__(
        self,
        begin: Callable[[], Running],
        label: str,
        *,
        threaded: bool,
        close_timeout: float,
        on_close: Callable[[], None],
        on_fork: Callable[[], None],
    ) -> None:
        self.state = State.INIT
        self.running: Running | None = None
        self._begin = begin
        self._label = label
        self._threaded = threaded
        self._close_timeout = close_timeout
        self._on_close = on_close
        self._on_fork = on_fork
        self._hub_thread: HubThread | None = None
        self._start = _Start()
        self._end = Once()
        self._closed = ThreadEvent()
        # Greenlets that run started() or close().
        self._active: set[gevent.Greenlet] = set()

    # --- the start

    def started(self, limit: float) -> Running:
        """Start the producer if it is not running, in the calling thread or in a thread of its own.

        Returns:
            What runs.

        Args:
            limit: Seconds to wait for another thread that is doing so; 0: do not wait.

        Raises:
            NSQNotSentClosed: If it was closed.
            NSQNotSentTimeout: If the other thread takes too long.
            RuntimeError: If that needs a thread of its own, for which the hub can't wait.
        """
        with self._marked():
            return self._started(limit)

    def _started(self, limit: float) -> Running:
        while True:
            running = self.running
            if running is not None and self.state is State.RUNNING:
                return running
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
            self.running = self._begin_in_thread() if self._threaded else self._begin()
        except BaseException:
            # The next call tries again.
            self._start = _Start()
            raise
        else:
            self.state = State.RUNNING
            _register_at_exit(self)
        finally:
            start.done.set()

    def _begin_in_thread(self) -> Running:
        hub_thread = HubThread(f"gnsq-{self._label}")
        try:
            running = hub_thread.call(self._begin)
        except BaseException:
            hub_thread.stop()
            raise
        self._hub_thread = hub_thread
        return running

    # --- the end

    def close(self, timeout: float) -> list[Unconfirmed]:
        """Close, unless that is done or under way: then wait for that.

        In the hub itself, and where it would hold up what it waits for, it goes on in the background.

        Returns:
            What had no answer by the timeout (seconds); empty in the background and where another one closes.

        Raises:
            NSQTimeout: If it takes much longer: the hub of the producer's thread does not run. It goes on all the same.
        """
        may_wait = not self._is_reentrant()
        with self._marked():
            return self._close_once(timeout, may_wait=may_wait)

    def _close_once(self, timeout: float, *, may_wait: bool) -> list[Unconfirmed]:
        if not self._end.acquire():
            if may_wait:
                self._closed.wait(timeout + CROSS_THREAD_GRACE)
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
        """Wait until it has closed, or the timeout (seconds) ends; not at all where it was not started."""
        if self.state is not State.INIT and not self._is_reentrant():
            self._closed.wait(NO_TIMEOUT if timeout is None else timeout)

    def close_at_exit(self) -> None:
        """Close a producer that has a thread of its own; for another one, log what is lost."""
        running = self.running
        if self._threaded:
            self._close_and_log(self.close, self._close_timeout)
        elif running is not None and running.dispatcher.pending:
            count = running.dispatcher.pending
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
            running = self.running
            if start.done.is_set and running is not None:
                return self._close_running(running, timeout)

    def _cancel_start(self, start: _Start) -> bool:
        """Close the producer if no start was begun. Returns: whether it was closed so."""
        if not start.token.acquire():
            return False
        self._finish()
        # Another thread may have seen that the start was acquired, and wait for it.
        start.done.set()
        return True

    def _close_running(self, running: Running, timeout: float) -> list[Unconfirmed]:
        self.state = State.CLOSING
        # Sets a flag only, so any thread may call it.
        running.dispatcher.refuse_more()
        pending = counted(running.dispatcher.pending, "publish", "publishes")
        logger.info("%s: closing, with up to %g s for %s pending", self._label, timeout, pending)
        ended: CrossThreadFuture[list[Unconfirmed]] = CrossThreadFuture()
        if not running.owner_thread.is_current:
            try:
                running.owner_thread.call_soon(gevent.spawn, self._end_running, running, timeout, ended)
            except NSQConnectionClosed:
                ended.set_result(self._abort_after_thread_end(running))
        else:
            # In a greenlet of its own, which goes on if the caller is killed or interrupted by a gevent.Timeout.
            gevent.spawn(self._end_running, running, timeout, ended)
        limit = timeout + CROSS_THREAD_GRACE
        if not ended.wait(limit):
            if running.owner_thread.is_current:
                raise NSQTimeout(f"not closed within {limit:g} s, and goes on in the background")
            text = f"the producer's thread has not run its hub for {limit:g} s, and closes when it does"
            raise NSQTimeout(f"{text}; in a program that blocks natively a producer needs threaded=True")
        if self._hub_thread is not None:
            self._hub_thread.stop()
        return ended.result()

    def _end_running(self, running: Running, timeout: float, ended: CrossThreadFuture[list[Unconfirmed]]) -> None:
        try:
            with self._marked():  # receivers of on_close may call close() and join()
                try:
                    unconfirmed = running.close(timeout)
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

    def _abort_after_thread_end(self, running: Running) -> list[Unconfirmed]:
        """Close a producer whose thread has ended, and with it the hub."""
        error = NSQUnknownClosed("the thread that started the producer has ended; nsqd may have it")
        try:
            unconfirmed = running.abort_from_other_thread(error)
            self._log_end(unconfirmed)
            return unconfirmed
        finally:
            self._finish()

    def _finish(self) -> None:
        self.state = State.CLOSED
        was_running, self.running = self.running is not None, None
        _open_producers.discard(self)
        self._closed.set()
        if was_running:
            self._on_close()

    # --- calls that must not wait

    @contextlib.contextmanager
    def _marked(self) -> Iterator[None]:
        """Mark the calling greenlet as one that runs code of this object."""
        here = gevent.getcurrent()
        if here in self._active:
            yield
            return
        self._active.add(here)
        try:
            yield
        finally:
            self._active.discard(here)

    def _is_reentrant(self) -> bool:
        """Whether the caller must not wait: it runs in the hub itself, in a greenlet of the producer, such as one that
        calls receivers of signals, or in a signal handler that has interrupted code of the producer."""
        here, running = gevent.getcurrent(), self.running
        return is_hub_greenlet() or here in self._active or (running is not None and running.is_reentrant(here))

    # --- forks

    def after_fork_in_child(self, parent: int) -> None:
        """Return to the state before the start in this child process, so that it can start the producer anew."""
        self._on_fork()
        running, self.running = self.running, None
        # A greenlet that was starting it may not be in this process; its own thread is not.
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
        if running is not None:
            running.after_fork_in_child(parent)


# Producers that are not closed, and may lose publishes when the program ends.
_open_producers: weakref.WeakSet[Lifetime] = weakref.WeakSet()
_registered = False


def _register_at_exit(lifetime: Lifetime) -> None:
    global _registered
    if not _registered:
        # With the first producer: importing registers nothing.
        _registered = True
        atexit.register(_close_all)
    _open_producers.add(lifetime)


def _close_all() -> None:
    for lifetime in list(_open_producers):
        lifetime.close_at_exit()


def publish_and_wait(running: Running, publish: Publish, *, block: bool) -> None:
    """Publish, and wait until it has ended.

    A publish ends by its deadline in the producer's hub; if that does not run, the wait ends
    CROSS_THREAD_GRACE seconds later.

    Raises:
        NSQException: As Producer.publish().
        RuntimeError: In a hub itself.
    """
    if is_hub_greenlet():
        raise RuntimeError("nothing can wait for a publish in the hub itself; let a greenlet do it")
    ended: CrossThreadFuture[None] = CrossThreadFuture()

    def tell(done: Publish) -> None:
        if done.error is None:
            ended.set_result(None)
        else:
            ended.set_exception(done.error)

    publish.on_done = tell
    _hand_over(running, publish, ended, block=block)


def begin(running: Running, publish: Publish, *, block: bool) -> PublishResult:
    """Publish, and wait until it has room; in a hub itself do not wait for that. Otherwise as publish_and_wait().

    Raises:
        NSQException: As Producer.publish_async(). In a hub itself that is in the result, too.
    """
    let_in: CrossThreadFuture[None] = CrossThreadFuture()
    result = running.waiters.new(publish.deadline)
    publish.on_done = lambda done: result.end(done.error)
    if is_hub_greenlet():
        _hand_over_and_go(running, publish, result)
    else:
        publish.on_room = lambda: let_in.set_result(None)
        _hand_over(running, publish, let_in, block=block)
    return result


def _hand_over(
    running: Running,
    publish: Publish,
    future: CrossThreadFuture[None],
    *,
    block: bool,
) -> None:
    once = Once()

    def take_over() -> None:
        if block and not running.was_tried:
            running.wait_first(publish.limit)
        if not once.acquire():
            return  # given up meanwhile
        try:
            running.dispatcher.submit(publish, block)
            if publish.room and publish.on_room is not None:
                publish.on_room()
        except Exception as error:  # noqa: BLE001  # it is the caller's, and raised there
            future.set_exception(error)

    if block and not running.was_tried:
        _soon(running, gevent.spawn, take_over)
    else:
        _soon(running, take_over)
    try:
        ended = future.wait(max(publish.deadline - running.now(), 0) + CROSS_THREAD_GRACE)
    except BaseException:
        # Killed, or a gevent.Timeout: nobody has its result, so it is logged if it fails. There, where that is read.
        with contextlib.suppress(NSQConnectionClosed):
            running.owner_thread.call_soon(setattr, publish, "on_done", None)
        raise
    if not ended:
        text = f"the producer's thread has not run its hub for {publish.limit + CROSS_THREAD_GRACE:g} s"
        text += "; in a program that blocks natively a producer needs threaded=True"
        raise NSQNotSentTimeout(text) if once.acquire() else NSQUnknownTimeout(text)
    future.result()


def _hand_over_and_go(running: Running, publish: Publish, result: PublishResult) -> None:
    def take_over() -> None:
        try:
            running.dispatcher.submit(publish, True)
            running.dispatcher.wait_for_room(publish)  # which is refused: this is the hub
        except Exception as error:  # noqa: BLE001  # it is the caller's, and raised there
            result.end(error)

    _soon(running, take_over)


def _soon(running: Running, function: Callable[..., object], *arguments: Any) -> None:  # Any: the function's own
    try:
        running.owner_thread.call_soon(function, *arguments)
    except NSQConnectionClosed as error:
        text = f"{error}: the producer was started there; with threaded=True it has a thread of its own"
        raise NSQNotSentClosed(text) from error
