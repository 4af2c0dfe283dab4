"""Stalls: which links owe an answer for too long. Decides only: sends nothing, moves nothing, reads no clock."""

from __future__ import annotations

from collections.abc import Sequence

from gnsq.nsqd.requests import Request
from gnsq.producer.publish import Link

__all__ = ["Stalls"]


class Stalls:
    """Looks at links from time to time.

    Args:
        limit: Seconds without an answer that is due.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        # Of each link that owes something: what is its oldest, and since when we know.
        self._owed: dict[Link, tuple[Request, float]] = {}

    def forget(self, link: Link) -> None:
        """Take note that a link is gone."""
        self._owed.pop(link, None)

    def sort(self, links: Sequence[Link], aside: Sequence[Link], now: float) -> tuple[list[Link], list[Link]]:
        """Tell the links to be used from those to be left out; where all have stalled, all are used.

        Args:
            aside: Those that are left out already.
        """
        every = [*links, *aside]
        stalled = [link for link in every if self._is_stalled(link, now)]
        good = [link for link in every if link not in stalled]
        if not good:
            return every, []
        return good, stalled

    def _is_stalled(self, link: Link, now: float) -> bool:
        oldest = next(iter(link.sent), None)
        if oldest is None:
            self._owed.pop(link, None)
            return False
        known, since = self._owed.get(link, (None, now))
        if oldest is not known:
            since = now
            self._owed[link] = oldest, now
        return now - since >= self._limit
