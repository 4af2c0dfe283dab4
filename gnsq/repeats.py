"""Repeats: log lines that would come once a message, cut down to what a person can read."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["Repeats"]

# Seconds in which lines of one kind are one line.
INTERVAL = 60.0


class Repeats:
    """Says the first line of each kind at once, the others at DEBUG; once in INTERVAL one is said with their number.

    A kind may have several lines in an INTERVAL: burst.

    Args:
        logger: Where to.
        now: Tells monotonic seconds.
    """

    __slots__ = ("_kinds", "_logger", "_now")

    def __init__(self, logger: logging.Logger, now: Callable[[], float]) -> None:
        self._logger = logger
        self._now = now
        # By kind: when it may be said again, how often it was said in this interval, and how often not.
        self._kinds: dict[str, tuple[float, int, int]] = {}

    def log(self, level: int, kind: str, text: str, *arguments: object, exc_info: bool = False, burst: int = 1) -> None:
        """Log a line of some kind, or count it.

        Args:
            burst: Lines of this kind in one INTERVAL.
        """
        due, said, unsaid = self._kinds.get(kind, (0.0, 0, 0))
        now = self._now()
        if kind not in self._kinds or now >= due:
            due, said = now + INTERVAL, 0
        if said >= burst:
            self._kinds[kind] = (due, said, unsaid + 1)
            self._logger.debug(text, *arguments, exc_info=exc_info)
            return
        self._kinds[kind] = (due, said + 1, 0)
        if unsaid:
            text, arguments = text + " (and %d like it since the last such line)", (*arguments, unsaid)
        self._logger.log(level, text, *arguments, exc_info=exc_info)

    def is_due(self, kind: str, *, burst: int = 1) -> bool:
        """Whether a line of some kind would be logged now: one that costs much to put together is left out else."""
        due, said, _ = self._kinds.get(kind, (0.0, 0, 0))
        return said < burst or self._now() >= due

    def log_rest(self, level: int, kind: str, text: str, *arguments: object, at_once: bool = False) -> None:
        """Log how many lines of a kind were not said, when their interval is over and if there are any.

        Args:
            text: Has a %d for their number, before the arguments.
            at_once: The interval may still last.
        """
        due, said, unsaid = self._kinds.get(kind, (0.0, 0, 0))
        if unsaid and (at_once or self._now() >= due):
            self._kinds[kind] = (due, said, 0)
            self._logger.log(level, text, unsaid, *arguments)
