"""Latency: how long things took, counted into buckets that double."""

from __future__ import annotations

from gnsq.stats import Histogram

__all__ = ["BOUNDS", "Latency"]

# Milliseconds whose number has n bits are below 2**n: from 1 ms to 70 minutes, beyond any max_msg_timeout in use.
_BITS = 22
_LAST = _BITS + 1
BOUNDS = tuple(2**bits / 1000 for bits in range(_BITS + 1))


class Latency:
    """Counts; adding costs 0.2 us.

    Attributes:
        counts: By bucket of BOUNDS.
        total: Seconds.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (_BITS + 2)
        self.total = 0.0

    def add(self, seconds: float, number: int = 1) -> None:
        """Count one, or some that took the same time."""
        self.total += seconds * number
        bits = int(seconds * 1000).bit_length()
        self.counts[bits if bits < _LAST else _LAST] += number  # min() costs 0.06 us

    def histogram(self) -> Histogram:
        """Copy what was counted."""
        return Histogram(BOUNDS, tuple(self.counts), self.total)
