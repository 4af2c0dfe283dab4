"""When nsqd looks for messages whose time has come, and where: at every scan, in some channels of its last listing.

Pure. Seconds; scans and listings are counted from the start. Source: nsqd nsqd.go queueScanLoop.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["last_listing", "next_listing", "next_scan", "scan"]

_Channel = TypeVar("_Channel")

# Source: nsqd options.go, queue-scan-interval and queue-scan-refresh-interval.
_SCAN = 0.1
_LISTING = 5.0
# Source: the same, queue-scan-dirty-percent.
_DIRTY = 0.25
# What is due at a scan is not to wait for the next because of the last bit of a float.
_CLOSE = 1e-9


def next_scan(due: float, now: float, since: float) -> float:
    """When something that falls due is looked for: never before it, and later than now."""
    scan = max(math.ceil((due - since) / _SCAN - _CLOSE), math.floor((now - since) / _SCAN + _CLOSE) + 1)
    return since + scan * _SCAN


def last_listing(now: float, since: float) -> float:
    """When it was last looked which channels there are."""
    return since + math.floor((now - since) / _LISTING + _CLOSE) * _LISTING


def next_listing(now: float, since: float) -> float:
    """When that will be done again."""
    return last_listing(now, since) + _LISTING


def scan(channels: Sequence[_Channel], count: int, chance: random.Random, expire: Callable[[_Channel], bool]) -> None:
    """Look into so many of the channels, by chance; and again, while more than a quarter had something.

    Args:
        expire: Looks into one; says whether anything's time had come.
    """
    count = min(count, len(channels))
    while sum([expire(channel) for channel in chance.sample(channels, count)]) > _DIRTY * count:
        pass
