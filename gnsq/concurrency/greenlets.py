"""Starts greenlets so that none dies unnoticed, and lets other greenlets run between the steps of a loop."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

import gevent

from gnsq.clock import Clock, RealClock

__all__ = ["CooperativeYield", "OnFailure", "run_until_done", "spawn", "supervised"]

logger = logging.getLogger(__name__)

# Seconds until a function that has raised an exception is called again.
RESTART_DELAY = 1.0
# Seconds. A loop that never waits must let the event loop run at this interval.
MAX_RUN_SECONDS = 0.01
# Seconds. The event loop runs during any sleep above 0, so this sleep is very short.
_EVENT_LOOP_SLEEP = 1e-6

# A gevent.Timeout that something has left behind is no Exception.
FAILURES = (Exception, gevent.Timeout)

OnFailure = Callable[[Exception], object]


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
        on_failure: Called, in the greenlet, with an Exception that the function raises: ends the owner with this
            error, or replaces the greenlet, and tells. A text: what does not happen any more; it is logged with the
            error, and the owner goes on. None: the caller calls the greenlet's get(), which raises the error.
        delay: Seconds until the greenlet starts; None: it starts in this round of the event loop.
    """
    greenlet = gevent.Greenlet(supervised(name, function, on_failure), *arguments)
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
    except FAILURES as error:  # top of a greenlet
        if isinstance(on_failure, str):
            logger.exception("internal error in greenlet %s: %s", name, on_failure)
        else:
            on_failure(error)
        return None


def run_until_done(
    what: str, function: Callable[[], object], logger: logging.Logger, clock: Clock | None = None
) -> None:
    """Call a function, and again whenever it raises an Exception: a bug must not end a loop.

    Args:
        what: Describes the greenlet, for the log.
    """
    while True:
        try:
            function()
        except FAILURES:  # top of a greenlet, which must continue after a bug
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
        if time.monotonic() < self._due:
            gevent.sleep(0)
            return
        gevent.sleep(_EVENT_LOOP_SLEEP)
        self._due = time.monotonic() + MAX_RUN_SECONDS
