"""Repeats: log lines that would come once a message, cut down to what a person can read."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["Repeats"]

# Seconds in which lines of one kind are one line.
INTERVAL = 60.0


class Repeats:
    """Says the first line of each kind at once, the others at DEBUG; once in INTERVAL one is said with their number.

    Args:
        logger: Where to.
        now: Tells monotonic seconds.
    """

    __slots__ = ("_kinds", "_logger", "_now")

    def __init__(self, logger: logging.Logger, now: Callable[[], float]) -> None:
        self._logger = logger
        self._now = now
        # By kind: when it may be said again, and how often it was not said.
        self._kinds: dict[str, tuple[float, int]] = {}

    def log(self, level: int, kind: str, text: str, *arguments: object, exc_info: bool = False) -> None:
        """Log a line of some kind, or count it."""
        due, unsaid = self._kinds.get(kind, (0.0, 0))
        now = self._now()
        if kind in self._kinds and now < due:
            self._kinds[kind] = (due, unsaid + 1)
            self._logger.debug(text, *arguments, exc_info=exc_info)
            return
        self._kinds[kind] = (now + INTERVAL, 0)
        if unsaid:
            text, arguments = text + " (and %d like it since the last such line)", (*arguments, unsaid)
        self._logger.log(level, text, *arguments, exc_info=exc_info)
