"""Which connections have RDY 1 (a turn), and which wait for a turn. Pure; knows neither times nor RDY."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from gnsq.consumer.rdy_collections import RandomSet

__all__ = ["Turns"]


class _Connection(Hashable, Protocol):
    """The part of a connection's state that Turns uses.

    Attributes:
        has_backlog: True if the connection is known to have messages.
    """

    has_backlog: bool


Item = TypeVar("Item", bound=_Connection)


class Turns(Generic[Item]):
    """Connections that have a turn, and connections that wait. Each operation costs O(1), amortised.

    In a rotation each connection gets one turn, in random order.

    Attributes:
        active: Connections that have a turn.
        waiting_with_backlog: Number of waiting connections that are known to have messages.
    """

    def __init__(self, rng: random.Random) -> None:
        self.active: RandomSet[Item] = RandomSet()
        self.waiting_with_backlog = 0
        self._rng = rng
        # Number of connections that have a turn and are not known to have messages.
        self._searching = 0
        # By (has_backlog, whether they had a turn in this rotation).
        self._waiting: dict[tuple[bool, bool], RandomSet[Item]] = {
            (has_backlog, had_turn): RandomSet() for has_backlog in (False, True) for had_turn in (False, True)
        }
        # Connections that lost their turn. They wait from the next call of let_ended_wait() on.
        self._ended: list[Item] = []

    @property
    def has_waiting(self) -> bool:
        """True if a connection can be taken by take_waiting()."""
        return any(self._waiting.values())

    @property
    def is_wanted(self) -> bool:
        """True if a turn with messages must end; False if enough turns without messages will end instead."""
        return not self._searching or self.waiting_with_backlog > self._searching

    def begin(self, item: Item) -> None:
        """Add a connection that has a turn."""
        self.active.add(item)
        self._searching += not item.has_backlog

    def wait(self, item: Item, *, had_turn: bool = False) -> None:
        """Add a connection that waits."""
        self._waiting[item.has_backlog, had_turn].add(item)
        self.waiting_with_backlog += item.has_backlog

    def end(self, item: Item, *, is_silent: bool) -> None:
        """Take the turn from a connection. It waits, and can be taken after let_ended_wait().

        Args:
            is_silent: True if the turn ends because no messages came.
        """
        self.remove(item)
        item.has_backlog = item.has_backlog and not is_silent
        self.waiting_with_backlog += item.has_backlog
        self._ended.append(item)

    def let_ended_wait(self) -> None:
        """Let take_waiting() return the connections that lost their turn, too."""
        for item in self._ended:
            self._waiting[item.has_backlog, True].add(item)
        self._ended.clear()

    def remove(self, item: Item) -> None:
        """Remove a connection. An unknown connection is ignored."""
        if item in self.active:
            self.active.discard(item)
            self._searching -= not item.has_backlog
        for waiting in self._waiting.values():
            if item in waiting:
                waiting.discard(item)
                self.waiting_with_backlog -= item.has_backlog

    def note_backlog(self, item: Item) -> None:
        """Record that a connection is known to have messages."""
        is_active, had_turn = item in self.active, item in self._waiting[item.has_backlog, True]
        self.remove(item)
        item.has_backlog = True
        if is_active:
            self.begin(item)
        else:
            self.wait(item, had_turn=had_turn)

    def take_waiting(self, *, prefer_backlog: bool) -> Item:
        """Remove and return a random waiting connection, if possible one that had no turn in this rotation.

        Args:
            prefer_backlog: True: if possible, take one that is known to have messages.
        """
        waiting = self._waiting
        if prefer_backlog and (waiting[True, False] or waiting[True, True]):
            items = waiting[True, False] or waiting[True, True]
        else:
            if not (waiting[False, False] or waiting[True, False]):
                # All had a turn: another rotation begins.
                for key in (False, True):
                    waiting[key, False], waiting[key, True] = waiting[key, True], waiting[key, False]
            count = len(waiting[False, False])
            items = waiting[self._rng.randrange(count + len(waiting[True, False])) >= count, False]
        item = items.choose(self._rng)
        self.remove(item)
        return item
