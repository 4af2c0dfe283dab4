"""Breath: how a loop that may never have to wait lets others run."""

from __future__ import annotations

import time

import gevent

__all__ = ["Breath"]

# Seconds after which it is the event loop's turn.
SLICE = 0.01
# The shortest sleep that goes through the event loop.
_ROUND = 1e-6


class Breath:
    """Called between two steps of a loop.

    gevent's recv() and sendall() do not yield while the socket is ready, and sleep(0) only lets other greenlets run:
    up to 50 of its rounds pass before the event loop looks at timers and sockets again. So every SLICE it is a sleep
    that the loop itself has to end.
    """

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due = 0.0

    def __call__(self) -> None:
        if time.monotonic() < self._due:
            gevent.sleep(0)
            return
        gevent.sleep(_ROUND)
        self._due = time.monotonic() + SLICE
