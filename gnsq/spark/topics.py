"""Which topics are read, and how they share what may be in flight. PURE."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from gnsq.spark.options import ReadOptions

__all__ = ["matching", "shares"]

# Of its share a topic that is not hungry keeps one part in so many.
LENT = 10


def matching(options: ReadOptions, names: Iterable[str]) -> list[str]:
    """Pick the topics that are to be read, in the order of names, each once."""
    if options.topic_pattern:
        # nsqlookupd's names are nsqd's, so each is a valid one.
        fits = re.compile(options.topic_pattern).fullmatch
        return sorted({name for name in names if fits(name)})
    return sorted(set(options.topics).intersection(names))


def shares(total: int, topics: Iterable[str], hungry: Collection[str] = ()) -> dict[str, int]:
    """Share out what may be in flight: evenly, the rest to the first, and at least 1 each.

    Args:
        hungry: Those that could do with more. The others lend them nine tenths of their shares.
    """
    names = sorted(topics)
    eaters = [name for name in names if name in hungry]
    if not eaters or len(eaters) == len(names):
        return {name: max((total + len(names) - 1 - index) // len(names), 1) for index, name in enumerate(names)}
    kept = max(total // len(names) // LENT, 1)
    left = total - kept * (len(names) - len(eaters))
    return dict.fromkeys(names, kept) | shares(left, eaters)
