"""How long messages take from their publishing to FIN: the percentiles of /stats.

Pure. Exact, of as many as are kept; nsqd keeps estimates. Source: nsq internal/quantile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

__all__ = ["Latencies", "human", "summary"]

# Each of the two halves of a window keeps so many, the oldest of it.
_KEPT = 100_000

Summary = dict[str, Any]  # Any: JSON


class Latencies:
    """The latencies of a channel, over a window that moves on by half of itself.

    Args:
        percentiles: What is wanted, each over 0, up to 1.
        window: Seconds.
        now: The time, seconds.
    """

    def __init__(self, percentiles: Sequence[float], window: float, now: float) -> None:
        self.percentiles = percentiles
        self._half = window / 2
        self._halves: tuple[list[int], list[int]] = ([], [])
        self._moved = now

    def add(self, nanoseconds: int, now: float) -> None:
        """Take note of a message that is finished."""
        self._move(now)
        current = self._halves[0]
        if len(current) < _KEPT:
            current.append(nanoseconds)

    def kept(self, now: float) -> list[int]:
        """List those in the window, nanoseconds."""
        self._move(now)
        return self._halves[0] + self._halves[1]

    def _move(self, now: float) -> None:
        if now <= self._moved + self._half:
            return
        recent = now <= self._moved + 2 * self._half
        self._halves = ([], self._halves[0] if recent else [])
        self._moved = self._moved + self._half if recent else now


def summary(latencies: Sequence[Latencies], now: float) -> Summary:
    """Build what /stats says of a channel, or of those of a topic; of none if nobody measures."""
    if not latencies:
        return {"count": 0, "percentiles": None}
    kept = sorted(one for each in latencies for one in each.kept(now))
    wanted = latencies[0].percentiles
    percentiles = [{"quantile": _plain(fraction), "value": _quantile(kept, fraction)} for fraction in wanted]
    return {"count": len(kept), "percentiles": percentiles}


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number


def _quantile(ordered: Sequence[int], fraction: float) -> int:
    if not ordered:
        return 0
    # Rounded up twice. Source: bmizerany/perks quantile.go, query.
    return ordered[min(math.ceil(fraction * len(ordered)), len(ordered) - 1)]


def human(nanoseconds: float) -> str:
    """Write a latency as the text of /stats has it. Source: nsq internal/stringy."""
    for unit, suffix in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if nanoseconds > unit:
            return f"{nanoseconds / unit:.1f}{suffix}"
    return f"{nanoseconds:.1f}ns"
