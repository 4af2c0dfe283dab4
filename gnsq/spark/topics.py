"""Which topics are read, and how they share what may be in flight. PURE."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gnsq.spark.options import ReadOptions

__all__ = ["matching", "shares"]


def matching(options: ReadOptions, names: Iterable[str]) -> list[str]:
    """Pick the topics that are to be read, in the order of names, each once."""
    if options.topic_pattern:
        # nsqlookupd's names are nsqd's, so each is a valid one.
        fits = re.compile(options.topic_pattern).fullmatch
        return sorted({name for name in names if fits(name)})
    return sorted(set(options.topics).intersection(names))


def shares(total: int, topics: Iterable[str]) -> dict[str, int]:
    """Share out what may be in flight: evenly, the rest to the first, and at least 1 each."""
    names = sorted(topics)
    return {name: max((total + len(names) - 1 - index) // len(names), 1) for index, name in enumerate(names)}
