"""What several toxics do to one direction of a connection, one after the other; they may come and go on the way.

Pure: takes ``now``. Keeps the bytes that wait, each at the toxic that holds it, so that removing one toxic lets go of
what it held and nothing else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import replace

from fakensqd.faults.passage import Deliver, Effect, End, State

__all__ = ["Chain"]


class _Stage:
    """One toxic at work, and what it lets through only later."""

    __slots__ = ("held", "key", "state")

    def __init__(self, key: Hashable, state: State) -> None:
        self.key = key
        self.state = state
        self.held: deque[Effect] = deque()

    def feed(self, effect: Effect, now: float) -> int:
        """Take an effect in; give back how many bytes this has made of those that came."""
        if not isinstance(effect, Deliver):
            self.held.append(replace(effect, at=self.state.end(now)))
            return 0
        effects = list(self.state.take(effect.data, now))
        self.held += effects
        return _size(effects)


class Chain:
    """The stages of one direction. Bytes keep their order; End and Reset are the last that comes out.

    Attributes:
        held: How many bytes have been pushed and not come out yet.
    """

    def __init__(self) -> None:
        self.held = 0
        self._stages: list[_Stage] = []
        self._out: deque[Effect] = deque()
        self._over = False

    def add(self, key: Hashable, state: State) -> None:
        """Put a toxic behind the others; what has passed them already does not meet it."""
        self._stages.append(_Stage(key, state))

    def remove(self, key: Hashable, now: float) -> None:
        """Take a toxic away; what it held goes on. Does nothing if there is none of that key."""
        for index, stage in enumerate(self._stages):
            if stage.key == key:
                del self._stages[index]
                for effect in stage.held:
                    self._feed(index, effect, now)
                self._move(now)
                return

    def push(self, data: bytes, now: float) -> None:
        """Take in a chunk; b"" is the end of the stream."""
        if not self._over:
            self.held += len(data)
            self._feed(0, Deliver(data, now) if data else End(now), now)
            # At once: the next toxic counts from now, whenever somebody comes to pop().
            self._move(now)

    def pop(self, now: float) -> Effect | None:
        """Take out what comes next, if its time has come."""
        self._move(now)
        if self._over or not self._out:
            return None
        effect = self._out.popleft()
        if isinstance(effect, Deliver):
            self.held -= len(effect.data)
        else:
            self._over = True
            self.held = 0
        return effect

    @property
    def due(self) -> float:
        """When pop() has more to give; infinity if that depends on others."""
        if self._over:
            return math.inf
        if self._out:
            return -math.inf
        return min((stage.held[0].at for stage in self._stages if stage.held), default=math.inf)

    def _move(self, now: float) -> None:
        for index, stage in enumerate(self._stages):
            while stage.held and stage.held[0].at <= now:
                self._feed(index + 1, stage.held.popleft(), now)

    def _feed(self, index: int, effect: Effect, now: float) -> None:
        if index < len(self._stages):
            self.held += self._stages[index].feed(effect, now) - _size([effect])
        else:
            self._out.append(effect)


def _size(effects: Iterable[Effect]) -> int:
    return sum(len(effect.data) for effect in effects if isinstance(effect, Deliver))
