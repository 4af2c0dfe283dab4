"""Starts greenlets so that none dies unnoticed, tells failures of users' functions from the end of their greenlet, and
lets other greenlets run between the steps of a loop."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import gevent

from gnsq.clock import Clock, RealClock, monotonic

__all__ = [
    "CooperativeYield",
    "OnFailure",
    "OwnedGreenlet",
    "check_is_failure",
    "failure_watchers",
    "is_failure",
    "run_until_done",
    "spawn",
    "supervised",
]

logger = logging.getLogger(__name__)

# Seconds until a function that has raised an exception is called again.
RESTART_DELAY = 1.0
# Seconds. A loop that never waits must let the event loop run at this interval.
MAX_RUN_SECONDS = 0.01
# Seconds. The event loop runs during any sleep above 0, so this sleep is very short.
_EVENT_LOOP_SLEEP = 1e-6

OnFailure = Callable[[BaseException], object]

# Called with failures that are no Exceptions, in the greenlet in which they were raised: a test that waits in the same
# process must end by a pytest.fail() of a handler.
failure_watchers: list[Callable[[BaseException], object]] = []


class OwnedGreenlet(gevent.Greenlet):  # type: ignore[misc]  # gevent has no types
    """A greenlet that notes whether it was killed, since the functions that it calls may raise GreenletExit, too.

    kill(), killall() and a pool's kill() all call throw().
    """

    is_killed = False

    def throw(self, *error: Any) -> None:  # Any: a class, or an exception, or what sys.exc_info() returns
        kind = error[0] if error else gevent.GreenletExit
        if issubclass(kind if isinstance(kind, type) else type(kind), gevent.GreenletExit):
            self.is_killed = True
        super().throw(*error)


def is_failure(error: BaseException) -> bool:
    """Return True if an exception of a user's function is a failure of that function, False if it must end the caller:
    KeyboardInterrupt, SystemExit, and GreenletExit if the current greenlet was killed.

    Other libraries raise BaseExceptions that have no meaning in our greenlets, such as asyncio.CancelledError. A
    greenlet that is no OwnedGreenlet counts as killed, because it does not tell.
    """
    if not isinstance(error, gevent.GreenletExit):
        return not isinstance(error, (KeyboardInterrupt, SystemExit))
    greenlet = gevent.getcurrent()
    return not getattr(greenlet, "is_killed", isinstance(greenlet, gevent.Greenlet))


def check_is_failure(error: BaseException) -> None:
    """Raise an exception again unless is_failure(), and tell failure_watchers if it is no Exception."""
    if not is_failure(error):
        raise error
    if not isinstance(error, (Exception, gevent.Timeout)):
        for watch in list(failure_watchers):
            watch(error)


def spawn(
    name: str,
    function: Callable[..., object],
    *arguments: Any,  # Any: arguments of any function
    on_failure: OnFailure | str | None,
    delay: float | None = None,
) -> gevent.Greenlet:
    """Start a greenlet. All greenlets start here, since the owner of each must learn if an unexpected exception ends
    it: otherwise others may wait for a dead greenlet for ever.

    Args:
        on_failure: Called, in the greenlet, with what the function raises if that is_failure(): ends the owner with
            this error, or replaces the greenlet, and tells. A text: what does not happen any more; it is logged with
            the error, and the owner goes on. None: the caller calls the greenlet's get(), which raises the error.
        delay: Seconds until the greenlet starts; None: it starts in this round of the event loop.
    """
    greenlet = OwnedGreenlet(supervised(name, function, on_failure), *arguments)
    greenlet.name = name
    if delay is None:
        greenlet.start()
    else:
        greenlet.start_later(delay)
    return greenlet


def supervised(name: str, function: Callable[..., object], on_failure: OnFailure | str | None) -> Callable[..., object]:
    """Return a function for a greenlet that other code starts, such as a server for each connection."""
    return function if on_failure is None else functools.partial(_supervise, name, on_failure, function)


def _supervise(name: str, on_failure: OnFailure | str, function: Callable[..., object], *arguments: Any) -> object:
    # Any: as in spawn()
    gevent.getcurrent().name = name
    try:
        return function(*arguments)
    except BaseException as error:  # top of a greenlet
        check_is_failure(error)
        if isinstance(on_failure, str):
            logger.exception("internal error in greenlet %s: %s", name, on_failure)
        else:
            on_failure(error)
        return None


def run_until_done(
    what: str, function: Callable[[], object], logger: logging.Logger, clock: Clock | None = None
) -> None:
    """Call a function, and again whenever it fails: a bug must not end a loop.

    Args:
        what: Describes the greenlet, for the log.
    """
    while True:
        try:
            function()
        except BaseException as error:  # top of a greenlet, which must continue after a bug
            check_is_failure(error)
            logger.exception("internal error in %s; it goes on in %g s", what, RESTART_DELAY)
            (clock or RealClock()).sleep(RESTART_DELAY)
        else:
            return


class CooperativeYield:
    """Lets other greenlets run. A loop that may run without ever waiting calls this object between two steps.

    gevent's recv() and sendall() do not yield while the socket is ready. sleep(0) lets other greenlets run, but the
    event loop may check timers and sockets only after 50 such sleeps. So one call in each MAX_RUN_SECONDS sleeps
    until the event loop has run.
    """

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due = 0.0

    def __call__(self) -> None:
        if monotonic() < self._due:
            gevent.sleep(0)
            return
        gevent.sleep(_EVENT_LOOP_SLEEP)
        self._due = monotonic() + MAX_RUN_SECONDS
