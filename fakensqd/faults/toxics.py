"""Toxics imitate a bad network: they delay, limit, cut, stall, end, reset or corrupt one direction of a connection.

Pure: takes ``now`` and a random generator; knows no socket and no clock. A toxic has only settings. Its start() makes
a function for one direction of one connection. A ToxicChain passes the bytes from one function to the next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from random import Random
from typing import Protocol

__all__ = [
    "ConnectionReset",
    "Deliver",
    "Outcome",
    "Passage",
    "StreamEnd",
    "Toxic",
    "ToxicChain",
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


# What a toxic does with a chunk that arrives now, in one direction of one connection. b"" is an end or a reset: it is
# passed on at the latest time in these outcomes, and otherwise now, but never before earlier bytes.
Passage = Callable[[bytes, float], Iterable[Outcome]]


class Toxic(Protocol):
    """Settings of a toxic."""

    def start(self, rng: Random) -> Passage:
        """Make the function for one direction of one connection, with its own state."""


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

    def start(self, rng: Random) -> Passage:
        def delay(data: bytes, now: float) -> Iterable[Outcome]:
            return [Deliver(data, now + max(0.0, self.seconds + rng.uniform(-self.jitter, self.jitter)))]

        return delay


@dataclass(frozen=True)
class bandwidth:
    """Deliver at most this number of bytes per second."""

    bytes_per_second: float

    def __post_init__(self) -> None:
        _check("bytes_per_second", self.bytes_per_second, minimum=1)

    def start(self, rng: Random) -> Passage:
        size = max(1, int(self.bytes_per_second * _PIECE_SECONDS))
        free_at = -math.inf

        def slow_down(data: bytes, now: float) -> Iterator[Outcome]:
            nonlocal free_at
            for start in range(0, len(data), size):
                piece = data[start : start + size]
                free_at = max(free_at, now) + len(piece) / self.bytes_per_second
                yield Deliver(piece, free_at)

        return slow_down


@dataclass(frozen=True)
class stall:
    """After this number of bytes, deliver no bytes and no end of the stream until this toxic is removed."""

    _: KW_ONLY
    after: int = 0

    def __post_init__(self) -> None:
        _check("after", self.after)

    def start(self, rng: Random) -> Passage:
        return _cut(self.after, None)


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

    def start(self, rng: Random) -> Passage:
        last_at = -math.inf

        def cut_up(data: bytes, now: float) -> Iterator[Outcome]:
            nonlocal last_at
            start = 0
            while start < len(data):
                stop = start + self.size + rng.randint(-self.variation, self.variation)
                last_at = max(now, last_at + self.delay)
                yield Deliver(data[start:stop], last_at)
                start = stop

        return cut_up


# --- ended, reset, corrupted ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class limit_bytes:
    """End the stream after this number of bytes; with 0, when the next byte arrives."""

    count: int

    def __post_init__(self) -> None:
        _check("count", self.count)

    def start(self, rng: Random) -> Passage:
        return _cut(self.count, StreamEnd)


@dataclass(frozen=True)
class reset:
    """Reset the connection after this number of bytes; with 0, when the next byte arrives."""

    _: KW_ONLY
    after: int = 0

    def __post_init__(self) -> None:
        _check("after", self.after)

    def start(self, rng: Random) -> Passage:
        return _cut(self.after, ConnectionReset)


def _cut(left: int, end: type[StreamEnd | ConnectionReset] | None) -> Passage:
    """Pass a number of bytes. Then comes ``end``; if that is None, later bytes wait until the toxic is removed.

    The passage gets b"" at the end of the stream.
    """
    has_ended = False

    def pass_some(data: bytes, now: float) -> Iterator[Outcome]:
        nonlocal left, has_ended
        passing, held = data[:left], data[left:]
        left -= len(passing)
        if passing:
            yield Deliver(passing, now)
        if left:
            return
        if end is None and (held or not data):
            yield Deliver(held, math.inf)
        elif end is not None and data and not has_ended:
            has_ended = True
            yield end(now)

    return pass_some


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

    def start(self, rng: Random) -> Passage:
        passed = 0

        def change(data: bytes, now: float) -> Iterable[Outcome]:
            nonlocal passed
            positions = {at - passed for at in self.at if 0 <= at - passed < len(data)}
            positions |= {position for position in range(len(data) if self.share else 0) if rng.random() < self.share}
            changed = bytearray(data)
            for position in positions:
                changed[position] ^= rng.randint(1, 255)
            passed += len(data)
            return [Deliver(bytes(changed), now)]

        return change


# --- several toxics ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stage:
    """One toxic in a chain, and its outcomes that wait for their time."""

    key: Hashable
    passage: Passage
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

    def add(self, key: Hashable, passage: Passage) -> None:
        """Append a toxic. It does not get bytes that have already passed the other toxics."""
        self._stages.append(_Stage(key, passage))

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
            outcomes = list(stage.passage(outcome.data, now))
            self.held_bytes += sum(len(each.data) for each in outcomes if isinstance(each, Deliver)) - len(outcome.data)
            stage.waiting += outcomes
        else:
            at = max((each.at for each in stage.passage(b"", now)), default=now)
            stage.waiting.append(replace(outcome, at=at))
