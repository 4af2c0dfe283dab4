"""What comes of bytes on a link, and what a toxic is, apart from the toxics there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Protocol

__all__ = ["Deliver", "Effect", "End", "Reset", "State", "Toxic"]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Let these bytes through at a time, but not before what came earlier."""

    data: bytes
    at: float


@dataclass(frozen=True, slots=True)
class End:
    """End the stream at a time, behind what came earlier."""

    at: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Break the connection at a time, behind what came earlier: the peer sees a reset, not an end."""

    at: float


Effect = Deliver | End | Reset


class State(Protocol):
    """What a toxic knows of one direction of one connection."""

    def take(self, data: bytes, now: float) -> Iterable[Effect]:
        """Say what becomes of a chunk that arrives now."""

    def end(self, now: float) -> float:
        """Say when an end, or a reset, that arrives now is let through."""


class Toxic(Protocol):
    """The settings of a toxic."""

    def begin(self, chance: Random) -> State:
        """Make the state for one direction of one connection."""
