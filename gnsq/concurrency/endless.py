"""Endless: loops that others depend on, and that a bug must not end."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gnsq.clock import Clock

__all__ = ["run_endlessly"]

# Seconds before a loop that has failed goes on.
PAUSE = 1.0


def run_endlessly(what: str, loop: Callable[[], object], logger: logging.Logger, clock: Clock) -> None:
    """Call a loop, and call it again if it raises; for a greenlet that ends when it is killed.

    Args:
        what: It is, for the log.
    """
    while True:
        try:
            loop()
        except Exception:
            logger.exception("internal error in %s; it goes on in %g s", what, PAUSE)
            clock.sleep(PAUSE)
