"""Log lines of a Consumer or Producer (their owner): the owner's name in the lines, and a limit for similar lines."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from gnsq.texts import counted

__all__ = ["INTERVAL", "LogOwner", "RateLimitedLogger"]

# Seconds in which only the first lines of a kind, by default one line, are logged at their level.
INTERVAL = 60.0
# Number of remembered kinds at which the kinds whose interval is over are forgotten, with their counts.
MAX_KINDS = 1000


class RateLimitedLogger:
    """Logs the first line of a kind (or more: ``burst``) at its level, and the others at DEBUG, until INTERVAL is over.

    The next line of a kind at its level tells how many lines of this kind were logged at DEBUG meanwhile.

    Args:
        logger: Logs the lines.
        now: Returns monotonic seconds.
    """

    def __init__(self, logger: logging.Logger, now: Callable[[], float]) -> None:
        self._logger = logger
        self._now = now
        # By kind: end of the interval, lines logged at their level in it, lines logged at DEBUG and not yet told.
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
        """Log a line of some kind; if there were too many of this kind, log the line at DEBUG, and count it.

        Args:
            burst: Number of lines of this kind that are logged at their level in one INTERVAL.
            since: Start a new interval if the current one began before this time, monotonic seconds.
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
        """Return True if log() logs a line of this kind at its level now. If not, a long text need not be built."""
        due, said, _ = self._kinds.get(kind, (0.0, 0, 0))
        return said < burst or self._now() >= due

    def log_rest(self, level: int, kind: str, noun: str, text: str, *arguments: object, at_once: bool = False) -> None:
        """Log how many lines of a kind were logged at DEBUG and not yet told, if any and the interval is over.

        Args:
            noun: Noun after the number, in the singular.
            text: Format of the line. The last %s is for the number with the noun, the others for the arguments.
            at_once: Log also if the interval is not over.
        """
        due, said, unsaid = self._kinds.get(kind, (0.0, 0, 0))
        if unsaid and (at_once or self._now() >= due):
            self._kinds[kind] = (due, said, 0)
            self._logger.log(level, text, *arguments, counted(unsaid, noun))


class LogOwner:
    """Stands for the Consumer or Producer that log lines name. All parts of a client share one LogOwner.

    Args:
        label: Name of the Consumer or Producer in log lines; empty: the lines name none.
        now: Returns monotonic seconds, for the rate limits.
    """

    def __init__(self, label: str, now: Callable[[], float]) -> None:
        self.label = label
        self._now = now
        self._loggers: dict[str, RateLimitedLogger] = {}

    def at(self, address: str) -> str:
        """Return the start of a log line about a peer: the peer's address, then the label, if any."""
        return f"{address}: {self.label}" if self.label else address

    def rate_limited(self, logger: logging.Logger) -> RateLimitedLogger:
        """Return the rate-limited logger of a module, which all objects of this owner share."""
        if logger.name not in self._loggers:
            self._loggers[logger.name] = RateLimitedLogger(logger, self._now)
        return self._loggers[logger.name]
