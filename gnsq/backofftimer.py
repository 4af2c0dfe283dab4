"""How long to wait after repeated failures. Decides only: reads no clock, waits for nothing."""

from __future__ import annotations

import random

__all__ = ["BackoffTimer", "reconnect_delay"]

# Beyond this the power has long passed any sane limit; it keeps the numbers small.
_MAX_EXPONENT = 64


class BackoffTimer:
    """A random wait that grows with failures and shrinks with successes, as in gnsq 1.0.

    Args:
        ratio: Factor of every wait, seconds.
        max_interval: Seconds; None for no limit.
        min_interval: Seconds; None for no limit.
    """

    def __init__(self, ratio: float = 1, max_interval: float | None = None, min_interval: float | None = None) -> None:
        self.c = 0
        self.ratio = ratio
        self.max_interval = max_interval
        self.min_interval = min_interval

    def is_reset(self) -> bool:
        """Whether there are no failures left."""
        return self.c == 0

    def reset(self) -> BackoffTimer:
        """Forget all failures."""
        self.c = 0
        return self

    def success(self) -> BackoffTimer:
        """Forget one failure."""
        self.c = max(self.c - 1, 0)
        return self

    def failure(self) -> BackoffTimer:
        """Count one failure."""
        self.c += 1
        return self

    def get_interval(self) -> float:
        """Draw a wait: random x (2^failures - 1) x ratio, within the limits. Seconds."""
        interval = random.random() * (2.0 ** min(self.c, _MAX_EXPONENT) - 1) * self.ratio
        if self.max_interval is not None:
            interval = min(interval, self.max_interval)
        if self.min_interval is not None:
            interval = max(interval, self.min_interval)
        return interval


def reconnect_delay(failures: int, initial: float, maximum: float, jitter: float, spread: float) -> float:
    """Wait before connecting again: initial, doubled with each failure in a row, up to maximum.

    Args:
        failures: In a row, 1 or more.
        jitter: Up to this share is taken off, so that clients that lost one nsqd together do not come back together.
        spread: A random number in [0, 1).
    """
    delay = initial * 2.0 ** min(failures - 1, _MAX_EXPONENT)
    return min(delay, maximum) * (1 - jitter * spread)
