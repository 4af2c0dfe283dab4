"""Log lines of one owner: which Consumer or Producer they are of, and how often those of one kind are said."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

__all__ = ["Owner", "Repeats"]

# Seconds in which lines of one kind are one line.
INTERVAL = 60.0
# Kinds that are remembered; then those whose interval is over are forgotten, with their number.
MAX_KINDS = 1000


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

    def log(
        self,
        level: int,
        kind: str,
        text: str,
        *arguments: object,
        exc_info: bool | BaseException | None = False,
        since: float = -math.inf,
    ) -> None:
        """Log a line of some kind, or count it.

        Args:
            since: What was said before this time, by now(), is another story: this line is the first of a new one.
        """
        due, unsaid = self._kinds.get(kind, (0.0, 0))
        now = self._now()
        if kind in self._kinds and now < due and due - INTERVAL >= since:
            self._kinds[kind] = (due, unsaid + 1)
            self._logger.debug(text, *arguments, exc_info=exc_info)
            return
        if len(self._kinds) >= MAX_KINDS:
            self._kinds = {known: entry for known, entry in self._kinds.items() if now < entry[0]}
        self._kinds[kind] = (now + INTERVAL, 0)
        if unsaid:
            text, arguments = text + " (and %d like it since the last such line)", (*arguments, unsaid)
        self._logger.log(level, text, *arguments, exc_info=exc_info)


class Owner:
    """The Consumer or Producer that log lines are of; handed to all that it makes, which log on its behalf.

    Args:
        label: Its name in log lines; empty: none is named.
        now: Tells monotonic seconds, for the rate limits.
    """

    __slots__ = ("_now", "_repeats", "label")

    def __init__(self, label: str, now: Callable[[], float]) -> None:
        self.label = label
        self._now = now
        self._repeats: dict[str, Repeats] = {}

    def at(self, address: str) -> str:
        """Write how a line about a peer begins: its address, then the owner."""
        return f"{address}: {self.label}" if self.label else address

    def repeats(self, logger: logging.Logger) -> Repeats:
        """Give the rate limit of a module's lines: one for all that the owner has of a kind, such as connections."""
        if logger.name not in self._repeats:
            self._repeats[logger.name] = Repeats(logger, self._now)
        return self._repeats[logger.name]
