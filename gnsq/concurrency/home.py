"""Home: the OS thread whose hub something lives in, and the way there from other threads."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import gevent
from gevent._hub_local import get_hub_if_exists

from gnsq.concurrency.crossing import Crossing
from gnsq.concurrency.doors import door
from gnsq.concurrency.natives import get_ident, local
from gnsq.errors import NSQConnectionClosed, NSQException, NSQTimeout

__all__ = ["GRACE", "Home", "here", "in_hub"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# What another thread's hub may take beyond the time that it was given, seconds.
GRACE = 1.0
# How often to look whether a thread that is waited for has ended, seconds.
_LOOK = 1.0


class Mark:
    """What a thread has of its own, and nobody else holds: it is gone when the thread has ended. Numbers of threads
    that have ended are given to others.
    """

    __slots__ = ("__weakref__",)


class _Here(local):  # type: ignore[misc]  # gevent has no types
    """What is the calling thread's."""

    mark: Mark

    def __init__(self) -> None:
        self.mark = Mark()


here = _Here()


def in_hub() -> bool:
    """Whether the caller runs in its thread's hub itself, where nothing can wait."""
    hub = get_hub_if_exists()
    return hub is not None and gevent.getcurrent() is hub


class Home:
    """The calling thread, to be asked and called from others.

    Attributes:
        thread: What get_ident() gives in it.
        mark: Gives its mark, and None when it has ended.
    """

    __slots__ = ("_door", "mark", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        self.mark = weakref.ref(here.mark)
        self._door = door()

    @property
    def elsewhere(self) -> bool:
        """Whether the caller runs in another thread."""
        return here.mark is not self.mark()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:  # Any: the function's own
        """Call a function soon, in a greenlet of the home's hub; begun in the order of these calls. What it raises
        of ours is logged only.

        Raises:
            NSQConnectionClosed: If the thread has ended, or its hub is gone.
        """
        self.soon(gevent.spawn, _guarded, function, arguments)

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:  # Any: as call()
        """Call a function soon, in the home's hub itself: it must not wait, nor raise.

        Raises:
            NSQConnectionClosed: If the thread has ended, or its hub is gone.
        """
        self._check_not_ended()
        try:
            self._door.call(function, *arguments)
        except ValueError as error:  # gevent's word for a loop that was destroyed
            raise NSQConnectionClosed("the thread that this belongs to has ended") from error

    def wait_for(self, limit: float, function: Callable[..., _T], *arguments: Any) -> _T:  # Any: as call()
        """Call a function in a greenlet of the home's hub, and wait for it, in another thread; at home: just call it.

        Raises:
            NSQTimeout: If it takes longer than limit seconds.
            NSQConnectionClosed: If the thread has ended, before or meanwhile, or its hub is gone.
        """
        if not self.elsewhere:
            return function(*arguments)
        crossing: Crossing[_T] = Crossing()

        def work() -> None:
            try:
                crossing.set(function(*arguments))
            except BaseException as error:  # noqa: BLE001  # it is the caller's, and raised there
                crossing.set_exception(error)

        self.soon(gevent.spawn, work)
        end = time.monotonic() + limit
        while not crossing.wait(min(end - time.monotonic(), _LOOK)):
            self._check_not_ended()
            if time.monotonic() >= end:
                raise NSQTimeout(f"a call to another thread's hub was not done within {limit:g} s; does that hub run?")
        return crossing.result()

    def _check_not_ended(self) -> None:
        if self.mark() is None:
            raise NSQConnectionClosed("the thread that this belongs to has ended")


def _guarded(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except NSQException as error:
        # nsqd delivers the message again when its timeout ends.
        logger.info("an answer from another thread was not sent: %s", error)
