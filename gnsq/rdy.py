"""Who gets which RDY. Decides only: sends nothing, reads no clock.

nsqd 1.3.0 treats RDY as a ceiling on what is in flight, so lowering it takes nothing back: what one connection
gives up may be granted to another only as its messages are answered. Source: the client guide, "RDY State".
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

__all__ = ["RdyPolicy"]

Key = TypeVar("Key", bound=Hashable)


class RdyPolicy(Generic[Key]):
    """Spread max_in_flight over connections so that the sum of max(RDY, in flight) never exceeds it.

    In flight is what has arrived: what an nsqd had sent before it read a lower RDY comes on top, for a moment.

    Args:
        max_in_flight: Messages, 1 or more; may be changed at any time, decide() then says what follows.
        rng: Source of randomness for who gets the remainder.
    """

    def __init__(self, max_in_flight: int, rng: random.Random | None = None) -> None:
        self.max_in_flight = max_in_flight
        self.paused = False
        self._rng = rng if rng is not None else random.Random()
        self._limits: dict[Key, int] = {}
        self._rdy: dict[Key, int] = {}
        self._order: list[Key] = []
        self._owed = False

    @property
    def owed(self) -> bool:
        """Whether some connection waits for RDY that others must free first: ask decide() again as answers go out."""
        return self._owed

    @property
    def crowded(self) -> bool:
        """Whether there are more connections than messages that may be in flight, so that some have RDY 0."""
        return len(self._order) > self.max_in_flight

    def add(self, key: Key, max_rdy_count: int) -> None:
        """Take in a connection that has RDY 0 and whose nsqd allows up to max_rdy_count."""
        self._limits[key] = max_rdy_count
        self._rdy[key] = 0
        self._order.insert(self._rng.randint(0, len(self._order)), key)

    def remove(self, key: Key) -> None:
        """Forget a connection."""
        if key in self._limits:
            del self._limits[key]
            del self._rdy[key]
            self._order.remove(key)

    def rotate(self) -> None:
        """Choose anew, at random, who is first when there is not enough for all."""
        self._rng.shuffle(self._order)

    def decide(self, in_flight: Mapping[Key, int]) -> dict[Key, int]:
        """Say which connections are to be sent which RDY now; those not named keep theirs.

        Args:
            in_flight: Messages in flight on each connection.
        """
        targets = self._targets()
        changes: dict[Key, int] = {}
        for key, target in targets.items():
            if target < self._rdy[key]:
                changes[key] = self._rdy[key] = target
        free = self.max_in_flight - sum(max(rdy, in_flight.get(key, 0)) for key, rdy in self._rdy.items())
        self._owed = False
        for key, target in targets.items():
            rdy = self._rdy[key]
            if target <= rdy:
                continue
            # What is in flight beyond its RDY is counted already; it needs no free place to be allowed again.
            held = max(rdy, in_flight.get(key, 0))
            granted = min(target, held + max(free, 0))
            free -= max(granted - held, 0)
            if granted > rdy:
                changes[key] = self._rdy[key] = granted
            if granted < target:
                self._owed = True
        return changes

    def _targets(self) -> dict[Key, int]:
        """An even share for each, the remainder to the first in order, no more than each nsqd allows."""
        if self.paused or not self._order:
            return dict.fromkeys(self._order, 0)
        share, remainder = divmod(self.max_in_flight, len(self._order))
        return {
            key: min(share + (1 if index < remainder else 0), self._limits[key])
            for index, key in enumerate(self._order)
        }
