"""How long to wait after repeated failures. Decides only: reads no clock, waits for nothing."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable

__all__ = ["ConsumerBackoff", "BackoffTimer", "BackoffPhase", "exponential_delay"]

# Beyond this the power has long passed any sane limit; it keeps the numbers small.
_MAX_EXPONENT = 64


class BackoffTimer:
    """A random wait that grows with failures and shrinks with successes, as in gnsq 1.0.

    Args:
        ratio: Factor of every wait, seconds.
        max_interval: Seconds; None for no limit.
        min_interval: Seconds; None for no limit.
    """

    def __init__(self, ratio: float = 1, max_interval: float | None = None, min_interval: float | None = None) -> None:
        self.c = 0
        self.ratio = ratio
        self.max_interval = max_interval
        self.min_interval = min_interval

    def is_reset(self) -> bool:
        """Whether there are no failures left."""
        return self.c == 0

    def reset(self) -> BackoffTimer:
        """Forget all failures."""
        self.c = 0
        return self

    def success(self) -> BackoffTimer:
        """Forget one failure."""
        self.c = max(self.c - 1, 0)
        return self

    def failure(self) -> BackoffTimer:
        """Count one failure."""
        self.c += 1
        return self

    def get_interval(self) -> float:
        """Draw a wait: random x (2^failures - 1) x ratio, within the limits. Seconds."""
        interval = random.random() * (2.0 ** min(self.c, _MAX_EXPONENT) - 1) * self.ratio
        if self.max_interval is not None:
            interval = min(interval, self.max_interval)
        if self.min_interval is not None:
            interval = max(interval, self.min_interval)
        return interval


def exponential_delay(
    failures: int, initial: float, maximum: float, *, growth: float = 2.0, jitter: float = 0.0, spread: float = 0.0
) -> float:
    """Wait before trying again: initial, times growth with each failure in a row, up to maximum.

    Args:
        failures: In a row, 1 or more.
        jitter: Up to this share is taken off, so that those who failed together do not come back together.
        spread: A random number in [0, 1).
    """
    delay = initial * growth ** min(failures - 1, _MAX_EXPONENT)
    return min(delay, maximum) * (1 - jitter * spread)


class BackoffPhase(enum.Enum):
    """What a consumer that backs off does."""

    OFF = "off"
    WAITING = "waiting"
    PROBING = "probing"


class ConsumerBackoff:
    """When a consumer stops after failures, and when it tries one message again.

    Told results and the time; one result counts for each wait, the others are ignored. Source: the client guide,
    "ConsumerBackoff".

    Args:
        delay: Called with the failures in a row (1 or more); gives seconds.
        maximum: Of the delay, seconds; 0: never back off.
        jitter: Up to this share is taken off each delay.

    Attributes:
        phase: Whether there is nothing to wait for, a wait under way, or a message being tried.
        failures: In a row; each success takes one off.
        duration: Of the last wait, seconds.
        until: When the wait is over.
        maximum: May be changed at any time.
    """

    def __init__(
        self,
        delay: Callable[[int], float],
        maximum: float,
        jitter: float = 0.0,
        rng: random.Random | None = None,
    ) -> None:
        self.phase = BackoffPhase.OFF
        self.failures = 0
        self.duration = 0.0
        self.until = 0.0
        self._delay = delay
        self.maximum = maximum
        self._jitter = jitter
        self._rng = rng if rng is not None else random.Random()

    def record_failure(self, now: float) -> bool:
        """Note a failure; whether a wait begins with it."""
        if self.phase is BackoffPhase.WAITING or self.maximum <= 0:
            return False
        failures = self.failures + 1
        # Where more failures no longer make the wait longer they are not counted: as many successes would be needed.
        if self.failures and self._length(failures) <= self._length(self.failures):
            failures = self.failures
        self._wait(failures, now)
        return True

    def record_success(self, now: float) -> bool:
        """Note a success; whether it changes anything: a shorter wait, or none any more."""
        if self.phase is not BackoffPhase.PROBING:
            return False
        if self.failures > 1:
            self._wait(self.failures - 1, now)
        else:
            self.failures = 0
            self.phase = BackoffPhase.OFF
        return True

    def reset(self) -> bool:
        """Forget all failures; whether there were any."""
        ended = self.phase is not BackoffPhase.OFF
        self.failures = 0
        self.phase = BackoffPhase.OFF
        return ended

    def update(self, now: float) -> bool:
        """Note the time; whether the wait has just ended, so that a message is to be tried."""
        if self.phase is not BackoffPhase.WAITING or now < self.until:
            return False
        self.phase = BackoffPhase.PROBING
        return True

    def _wait(self, failures: int, now: float) -> None:
        # What may raise, a user's delay, comes first.
        self.duration = self._length(failures) * (1 - self._jitter * self._rng.random())
        self.failures = failures
        self.phase = BackoffPhase.WAITING
        self.until = now + self.duration

    def _length(self, failures: int) -> float:
        return max(0.0, min(self._delay(failures), self.maximum))
