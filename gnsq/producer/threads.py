"""Publishes that other threads than the producer's bring: handed over to its hub, waited for where they come from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gevent

from gnsq.concurrency.threads import CROSS_THREAD_GRACE, CrossThreadFuture, Once, is_hub_greenlet
from gnsq.errors import NSQConnectionClosed, NSQNotSentClosed, NSQNotSentTimeout, NSQUnknownTimeout
from gnsq.producer.publish import Publish
from gnsq.producer.result import PublishResult
from gnsq.producer.running import Running

__all__ = ["begin", "publish_and_wait"]


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
