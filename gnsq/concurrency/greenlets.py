"""Helpers for loops: run a loop until its greenlet is killed, and let other greenlets run between its steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import gevent

from gnsq.clock import Clock

__all__ = ["CooperativeYield", "run_forever"]

# Seconds until a loop function that has raised an exception is called again.
RESTART_DELAY = 1.0
# Seconds. A loop that never waits must let the event loop run at this interval.
MAX_RUN_SECONDS = 0.01
# Seconds. The event loop runs during any sleep above 0, so this sleep is very short.
_EVENT_LOOP_SLEEP = 1e-6


def run_forever(what: str, loop: Callable[[], object], logger: logging.Logger, clock: Clock) -> None:
    """Call a function again and again until the greenlet is killed, even after an Exception: a bug must not end a loop.

    Args:
        what: Describes the function, for the log.
    """
    while True:
        try:
            loop()
        except Exception:  # top of a greenlet, which must continue after a bug
            logger.exception("internal error in %s; it goes on in %g s", what, RESTART_DELAY)
            clock.sleep(RESTART_DELAY)


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
