"""Toxics imitate a bad network: they delay, limit, cut, stall, end, reset or corrupt one direction of a connection.

Pure: takes ``now`` and a random generator; knows no socket and no clock. A toxic has only settings. Its start() makes
the state for one direction of one connection. A ToxicChain passes the bytes from one state to the next.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from random import Random
from typing import Protocol

__all__ = [
    "TOXICS",
    "ConnectionReset",
    "Deliver",
    "Outcome",
    "StreamEnd",
    "Toxic",
    "ToxicChain",
    "ToxicState",
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
    """Deliver these bytes at the time ``at``, but not before all earlier bytes are delivered."""

    data: bytes
    at: float


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """End the stream at the time ``at``, but not before all earlier bytes are delivered."""

    at: float


@dataclass(frozen=True, slots=True)
class ConnectionReset:
    """Reset the connection at the time ``at``, but not before all earlier bytes are delivered."""

    at: float


Outcome = Deliver | StreamEnd | ConnectionReset


class ToxicState(Protocol):
    """State of a toxic for one direction of one connection."""

    @abstractmethod
    def on_data(self, data: bytes, now: float) -> Iterable[Outcome]:
        """Return the outcomes for a chunk that arrives now."""

    def on_end(self, now: float) -> float:
        """Return the time at which an end or a reset that arrives now is passed on, if all bytes are delivered."""
        return now


class Toxic(Protocol):
    """Settings of a toxic."""

    def start(self, rng: Random) -> ToxicState:
        """Make the state for one direction of one connection."""


# --- delayed and slow -------------------------------------------------------------------------------------------------

# bandwidth() cuts chunks into pieces of the bytes that it delivers in this many seconds, but of 1 byte at least.
_PIECE_SECONDS = 0.05


def _check(name: str, value: float, *, minimum: float = 0, maximum: float = math.inf) -> None:
    if not minimum <= value <= maximum:
        bounds = f"{minimum} or more" if maximum == math.inf else f"within {minimum} to {maximum}"
        raise ValueError(f"{name} {value} must be {bounds}")


@dataclass(frozen=True)
class latency:
    """Deliver all bytes some seconds later, plus or minus a random part of the jitter. The bytes keep their order."""

    seconds: float
    _: KW_ONLY
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _check("seconds", self.seconds)
        _check("jitter", self.jitter)

    def start(self, rng: Random) -> ToxicState:
        return _LatencyState(self, rng)


@dataclass
class _LatencyState(ToxicState):
    toxic: latency
    rng: Random

    def on_data(self, data: bytes, now: float) -> Iterable[Outcome]:
        return [Deliver(data, self.on_end(now))]

    def on_end(self, now: float) -> float:
        jitter = self.toxic.jitter
        return now + max(0.0, self.toxic.seconds + self.rng.uniform(-jitter, jitter))


@dataclass(frozen=True)
class bandwidth:
    """Deliver at most this number of bytes per second."""

    bytes_per_second: float

    def __post_init__(self) -> None:
        _check("bytes_per_second", self.bytes_per_second, minimum=1)

    def start(self, rng: Random) -> ToxicState:
        return _BandwidthState(self.bytes_per_second)


class _BandwidthState(ToxicState):
    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._size = max(1, int(rate * _PIECE_SECONDS))
        self._free_at = -math.inf

    def on_data(self, data: bytes, now: float) -> Iterator[Outcome]:
        for start in range(0, len(data), self._size):
            piece = data[start : start + self._size]
            self._free_at = max(self._free_at, now) + len(piece) / self._rate
            yield Deliver(piece, self._free_at)


@dataclass(frozen=True)
class stall:
    """After this number of bytes, deliver no bytes and no end of the stream until this toxic is removed."""

    _: KW_ONLY
    after: int = 0

    def __post_init__(self) -> None:
        _check("after", self.after)

    def start(self, rng: Random) -> ToxicState:
        return _CutState(self.after, None)


# --- cut to pieces ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class slice_bytes:
    """Cut chunks into pieces of ``size`` plus or minus at most ``variation`` bytes, ``delay`` seconds apart."""

    size: int = 1
    _: KW_ONLY
    variation: int = 0
    delay: float = 0.0

    def __post_init__(self) -> None:
        _check("size", self.size, minimum=1)
        _check("variation", self.variation, maximum=self.size - 1)
        _check("delay", self.delay)

    def start(self, rng: Random) -> ToxicState:
        return _SliceState(self, rng)


@dataclass
class _SliceState(ToxicState):
    toxic: slice_bytes
    rng: Random
    last_at: float = -math.inf

    def on_data(self, data: bytes, now: float) -> Iterator[Outcome]:
        toxic = self.toxic
        start = 0
        while start < len(data):
            stop = start + toxic.size + self.rng.randint(-toxic.variation, toxic.variation)
            self.last_at = max(now, self.last_at + toxic.delay)
            yield Deliver(data[start:stop], self.last_at)
            start = stop


# --- ended, reset, corrupted ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class limit_bytes:
    """End the stream after this number of bytes; with 0, when the next byte arrives."""

    count: int

    def __post_init__(self) -> None:
        _check("count", self.count)

    def start(self, rng: Random) -> ToxicState:
        return _CutState(self.count, StreamEnd)


@dataclass(frozen=True)
class reset:
    """Reset the connection after this number of bytes; with 0, when the next byte arrives."""

    _: KW_ONLY
    after: int = 0

    def __post_init__(self) -> None:
        _check("after", self.after)

    def start(self, rng: Random) -> ToxicState:
        return _CutState(self.after, ConnectionReset)


@dataclass
class _CutState(ToxicState):
    """Passes a number of bytes. Then comes ``end``; if that is None, later bytes wait until the toxic is removed."""

    left: int
    end: type[StreamEnd | ConnectionReset] | None
    has_ended: bool = False

    def on_data(self, data: bytes, now: float) -> Iterator[Outcome]:
        passing, held = data[: self.left], data[self.left :]
        self.left -= len(passing)
        if passing:
            yield Deliver(passing, now)
        if self.end is None and held:
            yield Deliver(held, math.inf)
        elif self.end is not None and not self.left and not self.has_ended:
            self.has_ended = True
            yield self.end(now)

    def on_end(self, now: float) -> float:
        return now if self.left or self.end is not None else math.inf


@dataclass(frozen=True)
class corrupt_bytes:
    """Change each byte with the probability ``share``, and each byte ``at`` a position; 0: this toxic's first byte."""

    share: float = 0.0
    _: KW_ONLY
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check("share", self.share, maximum=1)
        for position in self.at:
            _check("at", position)

    def start(self, rng: Random) -> ToxicState:
        return _CorruptState(self, rng)


@dataclass
class _CorruptState(ToxicState):
    toxic: corrupt_bytes
    rng: Random
    passed: int = 0

    def on_data(self, data: bytes, now: float) -> Iterable[Outcome]:
        share, rng = self.toxic.share, self.rng
        positions = {at - self.passed for at in self.toxic.at if 0 <= at - self.passed < len(data)}
        positions |= {position for position in range(len(data) if share else 0) if rng.random() < share}
        changed = bytearray(data)
        for position in positions:
            changed[position] ^= rng.randint(1, 255)
        self.passed += len(data)
        return [Deliver(bytes(changed), now)]


TOXICS: dict[str, Callable[..., Toxic]] = {
    toxic.__name__: toxic for toxic in (latency, bandwidth, slice_bytes, stall, limit_bytes, reset, corrupt_bytes)
}


# --- several toxics ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stage:
    """State of one toxic in a chain, and the outcomes that wait for their time."""

    key: Hashable
    state: ToxicState
    waiting: deque[Outcome] = field(default_factory=deque)


class ToxicChain:
    """Toxics of one direction of a connection, one after another. They may be added and removed at any time.

    Bytes keep their order. A StreamEnd or ConnectionReset is the last outcome.

    Attributes:
        held_bytes: Number of bytes in the chain: pushed, not dropped by a toxic, and not popped yet.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._stages: list[_Stage] = []
        self._ready: deque[Outcome] = deque()
        self._has_ended = False

    def add(self, key: Hashable, state: ToxicState) -> None:
        """Append a toxic. It does not get bytes that have already passed the other toxics."""
        self._stages.append(_Stage(key, state))

    def remove(self, key: Hashable, now: float) -> None:
        """Remove the toxic with this key, and pass on the bytes that it holds. Does nothing if there is none."""
        for index, stage in enumerate(self._stages):
            if stage.key == key:
                del self._stages[index]
                for outcome in stage.waiting:
                    self._feed(index, outcome, now)
                self._advance(now)
                return

    def push(self, data: bytes, now: float) -> None:
        """Add a chunk to the chain; b"" is the end of the stream."""
        if not self._has_ended:
            self.held_bytes += len(data)
            self._feed(0, Deliver(data, now) if data else StreamEnd(now), now)
            # Bytes that a toxic does not delay go on now, not in pop(): the delays of the next toxic begin now.
            self._advance(now)

    def pop(self, now: float) -> Outcome | None:
        """Return the next outcome whose time has come; None if there is none."""
        self._advance(now)
        if self._has_ended or not self._ready:
            return None
        outcome = self._ready.popleft()
        if isinstance(outcome, Deliver):
            self.held_bytes -= len(outcome.data)
        else:
            self._has_ended = True
            self.held_bytes = 0
        return outcome

    @property
    def due(self) -> float:
        """The time from which pop() may return an outcome; infinity: not before the next push() or remove()."""
        if self._has_ended:
            return math.inf
        if self._ready:
            return -math.inf
        return min((stage.waiting[0].at for stage in self._stages if stage.waiting), default=math.inf)

    def _advance(self, now: float) -> None:
        for index, stage in enumerate(self._stages):
            while stage.waiting and stage.waiting[0].at <= now:
                self._feed(index + 1, stage.waiting.popleft(), now)

    def _feed(self, index: int, outcome: Outcome, now: float) -> None:
        """Pass an outcome to the stage with this index, or out of the chain after the last stage."""
        if index == len(self._stages):
            self._ready.append(outcome)
            return
        stage = self._stages[index]
        if isinstance(outcome, Deliver):
            outcomes = list(stage.state.on_data(outcome.data, now))
            self.held_bytes += sum(len(each.data) for each in outcomes if isinstance(each, Deliver)) - len(outcome.data)
            stage.waiting += outcomes
        else:
            stage.waiting.append(replace(outcome, at=stage.state.on_end(now)))
