"""SpoolGauge: how full a spool is, by what was written and what listings say. PURE: is told both, and the time."""

from __future__ import annotations

import math

__all__ = ["SpoolGauge"]

# Between two listings a receiver adds at most this part of the limit.
PART = 4


class SpoolGauge:
    """Counts what its own receiver writes. Others write too and the reader deletes, and there may be much from the
    start, so now and then it asks for a listing: more often the more was written, and as long as the spool is full.

    Args:
        limit: Bytes.
        interval: Seconds between listings, at least.
        longest: Seconds between listings, at most: others write, too.
    """

    def __init__(self, limit: int, interval: float, longest: float) -> None:
        self.size = 0
        self.is_full = False
        self._limit = limit
        self._interval = interval
        self._longest = longest
        self._added = 0
        self._looked_at = -math.inf

    def add(self, size: int) -> None:
        """Count a segment that was written."""
        self.size += size
        self._added += size

    def is_due(self, now: float) -> bool:
        """Whether the spool is to be listed now."""
        if self.size >= self._limit and not self.is_full:
            # Not to be put off: what comes meanwhile is over the limit.
            return True
        hurried = self.is_full or self._added >= self._limit / PART
        return now - self._looked_at >= (self._interval if hurried else self._longest)

    def look(self, size: int, now: float) -> None:
        """Take over what a listing has found."""
        self.size = size
        self.is_full = size >= self._limit
        self._added = 0
        self._looked_at = now
