"""What a bad link does to one direction of a connection: late, slow, cut to pieces, held up, ended, reset, corrupted.

Pure: takes ``now``, knows no socket and no clock; randomness comes from a generator that is handed in. A toxic is a
frozen setting; begin() makes its state for one direction of one connection. How several work together is Chain's.

What comes of bytes on a link, and what a toxic is, apart from the toxics there are.

What several toxics do to one direction of a connection, one after the other; they may come and go on the way.

Pure: takes ``now``. Keeps the bytes that wait, each at the toxic that holds it, so that removing one toxic lets go of
what it held and nothing else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from random import Random
from typing import Protocol

__all__ = [
    "TOXICS",
    "Chain",
    "Deliver",
    "Effect",
    "End",
    "Reset",
    "State",
    "Toxic",
    "bandwidth",
    "corrupt_bytes",
    "latency",
    "limit_bytes",
    "reset",
    "slice_bytes",
    "stall",
]


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


# bandwidth() lets bytes through in pieces that take so long, seconds.
_GRAIN = 0.05


def _check(name: str, value: float, *, minimum: float = 0, maximum: float = math.inf) -> None:
    if not minimum <= value <= maximum:
        bounds = f"{minimum} or more" if maximum == math.inf else f"within {minimum} to {maximum}"
        raise ValueError(f"{name} {value} must be {bounds}")


# --- late and slow ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Latency:
    """Everything comes that many seconds later, give or take the jitter; the order stays."""

    seconds: float
    _: KW_ONLY
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _check("seconds", self.seconds)
        _check("jitter", self.jitter)

    def begin(self, chance: Random) -> State:
        return _LatencyState(self, chance)


class _LatencyState:
    def __init__(self, settings: _Latency, chance: Random) -> None:
        self._settings = settings
        self._chance = chance

    def take(self, data: bytes, now: float) -> Iterable[Effect]:
        return [Deliver(data, self.end(now))]

    def end(self, now: float) -> float:
        jitter = self._settings.jitter
        return now + max(0.0, self._settings.seconds + self._chance.uniform(-jitter, jitter))


@dataclass(frozen=True)
class _Bandwidth:
    """No more than so many bytes in each second."""

    bytes_per_second: float

    def __post_init__(self) -> None:
        _check("bytes_per_second", self.bytes_per_second, minimum=1)

    def begin(self, chance: Random) -> State:
        return _BandwidthState(self.bytes_per_second)


class _BandwidthState:
    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._size = max(1, int(rate * _GRAIN))
        self._free = -math.inf

    def take(self, data: bytes, now: float) -> Iterator[Effect]:
        for piece in _pieces(data, self._size):
            self._free = max(self._free, now) + len(piece) / self._rate
            yield Deliver(piece, self._free)

    def end(self, now: float) -> float:
        return max(self._free, now)


@dataclass(frozen=True)
class _Stall:
    """Nothing more passes, not even the end, once so many bytes have; what is held goes on when this is removed."""

    _: KW_ONLY
    after: int = 0

    def __post_init__(self) -> None:
        _check("after", self.after)

    def begin(self, chance: Random) -> State:
        return _StallState(self.after)


class _StallState:
    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, data: bytes, now: float) -> Iterator[Effect]:
        passing, held = data[: self._left], data[self._left :]
        self._left -= len(passing)
        if passing:
            yield Deliver(passing, now)
        if held:
            yield Deliver(held, math.inf)

    def end(self, now: float) -> float:
        return now if self._left else math.inf


# --- cut to pieces ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SliceBytes:
    """Chunks are cut to pieces of a size, give or take the variation, each that many seconds after the one before."""

    size: int = 1
    _: KW_ONLY
    variation: int = 0
    delay: float = 0.0

    def __post_init__(self) -> None:
        _check("size", self.size, minimum=1)
        _check("variation", self.variation, maximum=self.size - 1)
        _check("delay", self.delay)

    def begin(self, chance: Random) -> State:
        return _SliceState(self, chance)


class _SliceState:
    def __init__(self, settings: _SliceBytes, chance: Random) -> None:
        self._settings = settings
        self._chance = chance
        self._last = -math.inf

    def take(self, data: bytes, now: float) -> Iterator[Effect]:
        settings = self._settings
        start = 0
        while start < len(data):
            stop = start + settings.size + self._chance.randint(-settings.variation, settings.variation)
            self._last = max(now, self._last + settings.delay)
            yield Deliver(data[start:stop], self._last)
            start = stop

    def end(self, now: float) -> float:
        return max(now, self._last)


# --- ended, reset, corrupted ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LimitBytes:
    """The stream ends behind so many bytes."""

    count: int

    def __post_init__(self) -> None:
        _check("count", self.count)

    def begin(self, chance: Random) -> State:
        return _LimitState(self.count, End)


@dataclass(frozen=True)
class _ResetAfter:
    """The connection is reset behind so many bytes; with 0, by the next one."""

    _: KW_ONLY
    after: int = 0

    def __post_init__(self) -> None:
        _check("after", self.after)

    def begin(self, chance: Random) -> State:
        return _LimitState(self.after, Reset)


class _LimitState:
    def __init__(self, left: int, final: type[End | Reset]) -> None:
        self._left = left
        self._final = final
        self._over = False

    def take(self, data: bytes, now: float) -> Iterator[Effect]:
        passing = data[: self._left]
        self._left -= len(passing)
        if passing:
            yield Deliver(passing, now)
        if not self._left and not self._over:
            self._over = True
            yield self._final(now)

    def end(self, now: float) -> float:
        return now


@dataclass(frozen=True)
class _CorruptBytes:
    """Each byte is another with this probability; and those at these places of the stream, from 0, always."""

    share: float = 0.0
    _: KW_ONLY
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check("share", self.share, maximum=1)
        for place in self.at:
            _check("at", place)

    def begin(self, chance: Random) -> State:
        return _CorruptState(self, chance)


class _CorruptState:
    def __init__(self, settings: _CorruptBytes, chance: Random) -> None:
        self._settings = settings
        self._chance = chance
        self._seen = 0

    def take(self, data: bytes, now: float) -> Iterable[Effect]:
        changed = bytearray(data)
        for place in self._places(len(data)):
            changed[place] ^= self._chance.randint(1, 255)
        self._seen += len(data)
        return [Deliver(bytes(changed), now)]

    def _places(self, count: int) -> set[int]:
        """Where the next so many bytes are hit."""
        share, chance = self._settings.share, self._chance
        always = {place - self._seen for place in self._settings.at if 0 <= place - self._seen < count}
        return always | {place for place in range(count if share else 0) if chance.random() < share}

    def end(self, now: float) -> float:
        return now


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


# How a test says it.
latency = _Latency
bandwidth = _Bandwidth
stall = _Stall
slice_bytes = _SliceBytes
limit_bytes = _LimitBytes
reset = _ResetAfter
corrupt_bytes = _CorruptBytes

TOXICS: dict[str, Callable[..., Toxic]] = {
    "latency": latency,
    "bandwidth": bandwidth,
    "slice_bytes": slice_bytes,
    "stall": stall,
    "limit_bytes": limit_bytes,
    "reset": reset,
    "corrupt_bytes": corrupt_bytes,
}


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
