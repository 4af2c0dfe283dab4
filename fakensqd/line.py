"""Order and time of what leaves one connection, where faults delay, swap or hold frames.

Pure: takes ``now``. A delay holds everything behind it, as a slow server would; what is sent later, or behind the next
frame, lets the rest pass.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable

from fakensqd.effects import Close, Effect, Reset, Send, SendBehind, SendLater, Step, Wait

__all__ = ["Line"]


class Line:
    """What has been said on one connection and has not left it."""

    def __init__(self) -> None:
        self._ready: list[bytes] = []
        self._end: Close | Reset | None = None
        self._ending = False
        self._stalled: deque[Step] = deque()
        self._until = -math.inf
        self._behind: list[bytes] = []
        self._later: list[tuple[float, int, bytes]] = []
        self._order = itertools.count()

    @property
    def due(self) -> float:
        """When something held will be free; infinity if nothing is."""
        stalled = self._until if self._stalled else math.inf
        return min(stalled, self._later[0][0]) if self._later else stalled

    @property
    def held_until(self) -> float:
        """When all that is stalled so far begins to move; in the past if nothing is."""
        return self._until if self._stalled else -math.inf

    @property
    def ended(self) -> bool:
        """Whether the end of the connection has been said, if only later."""
        return self._end is not None or any(isinstance(step, (Close, Reset)) for step in self._stalled)

    @property
    def busy(self) -> bool:
        """Whether anything that has been said has not left it."""
        return bool(self._ready or self._stalled or self._behind or self._later or self._end)

    def end(self) -> None:
        """Say the end of the connection: behind all that has been said, what is late included."""
        self._ending = True

    def put(self, steps: Iterable[Step], now: float) -> None:
        """Say something; what is not for a connection's output is left out."""
        for step in steps:
            if self._stalled:
                self._stalled.append(step)
            elif isinstance(step, Wait):
                # The wait itself marks the line as stalled until it is over.
                self._until = now + step.seconds
                self._stalled.append(step)
            else:
                self._let_go(step, now)

    def take(self, now: float) -> list[Effect]:
        """Give what may leave now: one Send at most, then the end if it has come."""
        while self._stalled and self._until <= now:
            self._stalled.popleft()  # the wait that is over
            self._move(now)
        while self._later and self._later[0][0] <= now and self._end is None:
            self._ready.append(heapq.heappop(self._later)[2])
        if self._ending and not (self._stalled or self._later):
            self._let_go(Close(), now)
        effects: list[Effect] = []
        if self._ready:
            effects.append(Send(b"".join(self._ready)))
            self._ready.clear()
        if self._end is not None:
            effects.append(self._end)
        return effects

    def _move(self, now: float) -> None:
        """Let go of what stood behind a wait, up to the next one, which begins now."""
        while self._stalled:
            step = self._stalled[0]
            if isinstance(step, Wait):
                self._until = max(self._until, now) + step.seconds
                return
            self._let_go(self._stalled.popleft(), now)

    def _let_go(self, step: Step, now: float) -> None:
        if self._end is not None:
            return
        match step:
            case Send(data):
                self._ready += [data, *self._behind]
                self._behind.clear()
            case SendBehind(data):
                self._behind.append(data)
            case SendLater(data, seconds):
                heapq.heappush(self._later, (now + seconds, next(self._order), data))
            case Close() | Reset():
                # Behind it nothing comes, so what waits for the next frame goes now.
                self._ready += self._behind
                self._behind.clear()
                self._end = step
            case _:
                pass
