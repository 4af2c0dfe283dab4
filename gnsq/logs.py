"""Log lines of one owner: which Consumer or Producer they are of, and how often those of one kind are said."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from gnsq.texts import counted

__all__ = ["Owner", "Repeats"]

# Seconds in which lines of one kind are one line.
INTERVAL = 60.0
# Kinds that are remembered; then those whose interval is over are forgotten, with their number.
MAX_KINDS = 1000


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

    def log(
        self,
        level: int,
        kind: str,
        text: str,
        *arguments: object,
        exc_info: bool | BaseException | None = False,
        burst: int = 1,
        since: float = -math.inf,
    ) -> None:
        """Log a line of some kind, or count it.

        Args:
            burst: Lines of this kind in one INTERVAL.
            since: What was said before this time, by now(), is another story: this line is the first of a new one.
        """
        due, said, unsaid = self._kinds.get(kind, (0.0, 0, 0))
        now = self._now()
        if kind not in self._kinds or now >= due or due - INTERVAL < since:
            due, said = now + INTERVAL, 0
        if said >= burst:
            self._kinds[kind] = (due, said, unsaid + 1)
            self._logger.debug(text, *arguments, exc_info=exc_info)
            return
        if len(self._kinds) >= MAX_KINDS:
            self._kinds = {known: entry for known, entry in self._kinds.items() if now < entry[0]}
        self._kinds[kind] = (due, said + 1, 0)
        if unsaid:
            text, arguments = text + " (and %d like it since the last such line)", (*arguments, unsaid)
        self._logger.log(level, text, *arguments, exc_info=exc_info)

    def is_due(self, kind: str, *, burst: int = 1) -> bool:
        """Whether a line of some kind would be logged now: one that costs much to put together is left out else."""
        due, said, _ = self._kinds.get(kind, (0.0, 0, 0))
        return said < burst or self._now() >= due

    def log_rest(self, level: int, kind: str, noun: str, text: str, *arguments: object, at_once: bool = False) -> None:
        """Log how many lines of a kind were not said, when their interval is over and if there are any.

        Args:
            noun: Of what is counted.
            text: Has a %s for their number with the noun, after those for the arguments.
            at_once: The interval may still last.
        """
        due, said, unsaid = self._kinds.get(kind, (0.0, 0, 0))
        if unsaid and (at_once or self._now() >= due):
            self._kinds[kind] = (due, said, 0)
            self._logger.log(level, text, *arguments, counted(unsaid, noun))


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
