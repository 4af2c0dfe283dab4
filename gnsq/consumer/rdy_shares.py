"""Divides RDY equally among connections. Pure; changes as few RDY counts as possible."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

__all__ = ["Shares", "equal_shares"]


class _Connection(Hashable, Protocol):
    """The part of a connection's state that Shares uses.

    Attributes:
        limit: Largest RDY that its nsqd allows.
        target: Its RDY.
    """

    @property
    def limit(self) -> int: ...
    @property
    def target(self) -> int: ...


Item = TypeVar("Item", bound=_Connection)


class Shares(Generic[Item]):
    """Connections with equal shares. While such a connection is here, its target changes only after divide()."""

    def __init__(self) -> None:
        self._count = 0
        # By limit and target. There are few of both: all nsqds may have the same limit, and targets differ by 1.
        self._items: dict[int, dict[int, dict[Item, None]]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, item: Item) -> None:
        """Add a connection that has no share."""
        self._items.setdefault(item.limit, {}).setdefault(item.target, {})[item] = None
        self._count += 1

    def remove(self, item: Item) -> None:
        """Remove a connection that has a share."""
        del self._items[item.limit][item.target][item]
        self._count -= 1

    def divide(self, count: int, reserved: int) -> list[tuple[Item, int]]:
        """Divide count as equal_shares() does. Return connections with their new targets, which the caller must set."""
        sizes = {limit: sum(map(len, items.values())) for limit, items in self._items.items()}
        changes: list[tuple[Item, int]] = []
        for limit, wanted in equal_shares(sizes, count, reserved).items():
            items = self._items[limit]
            moved: list[Item] = []
            for target, having in list(items.items()):
                moved += [having.popitem()[0] for _ in range(len(having) - wanted.get(target, 0))]
                if not having:
                    del items[target]
            for target, number in wanted.items():
                for item in [moved.pop() for _ in range(number - len(items.get(target, ())))]:
                    items.setdefault(target, {})[item] = None
                    changes.append((item, target))
        return changes


def equal_shares(sizes: dict[int, int], count: int, reserved: int) -> dict[int, dict[int, int]]:
    """Divide count equally among connections and a reserved number of others. If none is reserved, some get the
    remainder. The part above the limit of an nsqd goes to the other connections.

    Args:
        sizes: By limit, the number of connections that have it.

    Returns:
        For each limit: how many of its connections get which target.
    """
    shares: dict[int, dict[int, int]] = {}
    waiting, each, remainder, is_final = sum(sizes.values()), 0, 0, False
    # Start with the lowest limits, so that connections with higher limits divide the rest.
    for limit, size in sorted(sizes.items()):
        if size and not is_final:
            each, remainder = divmod(count, waiting + reserved)
            if reserved:
                each, remainder = max(each, 1), 0
            is_final = limit > each
        if is_final:
            more = min(remainder, size)
            shares[limit] = {each: size - more, each + 1: more}
            remainder -= more
        else:
            shares[limit] = {limit: size}
            waiting -= size
            count -= limit * size
    return shares
