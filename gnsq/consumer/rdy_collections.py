"""Collections for decisions that cost what has changed, and not the number of all connections. Pure."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

__all__ = ["Deadlines", "RandomSet"]

Item = TypeVar("Item", bound=Hashable)


class Deadlines(Generic[Item]):
    """One time for each item. The earliest times are found first: each operation costs O(log n), amortised.

    Callers may store the time at which a period begins, and pass the length of all periods to first() and pop(): so a
    changed length needs no changes here.
    """

    def __init__(self) -> None:
        self._times: dict[Item, float] = {}
        # Has an entry for each time that was set. An entry is stale if its item has another time now, or none.
        self._heap: list[tuple[float, int, Item]] = []
        self._numbers = itertools.count()  # so that equal times are in the order of the calls of set()

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, item: object) -> bool:
        return item in self._times

    def set(self, item: Item, time: float) -> None:
        """Set or change the time of an item."""
        if self._times.get(item) == time:
            return
        if len(self._heap) > 2 * len(self._times) + 10:
            self._heap = [entry for entry in self._heap if self._times.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
        self._times[item] = time
        heapq.heappush(self._heap, (time, next(self._numbers), item))

    def discard(self, item: Item) -> None:
        """Remove an item. An unknown item is ignored."""
        self._times.pop(item, None)

    def clear(self) -> None:
        """Remove all items."""
        self._times.clear()
        self._heap.clear()

    def first(self, period: float = 0.0) -> float:
        """Return the earliest time plus the period; infinity if there is no item."""
        heap, times = self._heap, self._times
        while heap and times.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] + period if heap else math.inf

    def refresh(self, time_of: Callable[[Item], float]) -> None:
        """Replace times by those of a function, from the earliest on, until one has not changed. If times only become
        later, first() is exact then. The cost is O(log n) for each time that has changed since it was set."""
        while self.first() < math.inf:
            item = self._heap[0][2]
            time = time_of(item)
            if time == self._times[item]:
                return
            self.set(item, time)

    def pop(self, now: float, period: float = 0.0) -> list[Item]:
        """Remove and return the items whose time plus the period is over."""
        due = []
        while self.first(period) <= now:
            item = heapq.heappop(self._heap)[2]
            del self._times[item]
            due.append(item)
        return due


class RandomSet(Generic[Item]):
    """A set of which a random item can be chosen. Each operation costs O(1)."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items = list(items)
        self._indexes = {item: index for index, item in enumerate(self._items)}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: object) -> bool:
        return item in self._indexes

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def add(self, item: Item) -> None:
        """Add an item that is not in the set."""
        self._indexes[item] = len(self._items)
        self._items.append(item)

    def discard(self, item: Item) -> None:
        """Remove an item. An unknown item is ignored."""
        index = self._indexes.pop(item, None)
        if index is not None:
            last = self._items.pop()
            if last is not item:
                self._items[index] = last
                self._indexes[last] = index

    def choose(self, rng: random.Random) -> Item:
        """Return a random item."""
        return rng.choice(self._items)
