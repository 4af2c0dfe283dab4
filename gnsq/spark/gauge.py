"""SpoolGauge: how full a spool is, by what was written and what listings say. PURE: is told both, and the time."""

from __future__ import annotations

__all__ = ["SpoolGauge"]


class SpoolGauge:
    """Counts what its own receiver writes; others write too and the reader deletes, so above the limit it asks for a
    listing, and again as long as that is above.

    Args:
        limit: Bytes.
        interval: Seconds between listings, at least.
    """

    def __init__(self, limit: int, interval: float) -> None:
        self.size = 0
        self.is_full = False
        self._limit = limit
        self._interval = interval
        self._looked_at = -interval

    def add(self, size: int) -> None:
        """Count a segment that was written."""
        self.size += size

    def is_due(self, now: float) -> bool:
        """Whether the spool is to be listed now."""
        return (self.is_full or self.size >= self._limit) and now - self._looked_at >= self._interval

    def look(self, size: int, now: float) -> None:
        """Take over what a listing has found."""
        self.size = size
        self.is_full = size >= self._limit
        self._looked_at = now
