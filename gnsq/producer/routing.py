"""Routing: strategies that choose the link for the next publish. Pure: they send nothing and read no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from gnsq.nsqd.connection import Connection

__all__ = ["Strategy", "StrategyOption", "make_strategy", "round_robin"]

# A function that chooses the link, a connection, for the next publish from those that can be used now, at least one.
Strategy = Callable[[Sequence[Connection]], Connection]
# The option of a producer. Any: a function of the user may have types of its own.
StrategyOption = Literal["round_robin"] | Callable[..., Any]


def round_robin() -> Strategy:
    """Use all links in turn."""
    turn = -1

    def choose(links: Sequence[Connection]) -> Connection:
        nonlocal turn
        turn = (turn + 1) % len(links)
        return links[turn]

    return choose


def make_strategy(strategy: StrategyOption) -> Strategy:
    """Make a strategy from its name, or from a function of the user.

    Raises:
        ValueError: If strategy is neither ``round_robin`` nor a function.
    """
    if callable(strategy):

        def choose(links: Sequence[Connection]) -> Connection:
            chosen: Connection = strategy(links)
            if chosen not in links:
                raise ValueError(f"strategy {strategy!r} returned {chosen!r}, which is none of its links")
            return chosen

        return choose
    if strategy != "round_robin":
        raise ValueError(f"strategy {strategy!r} is neither 'round_robin' nor a function that chooses one of the links")
    return round_robin()
