"""Computes how long to wait after failures. Reads no clock, waits for nothing."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable

__all__ = ["JITTER", "BackoffPhase", "BackoffTimer", "ConsumerBackoff", "exponential_delay", "jittered"]

# Largest share of a delay that is subtracted at random, so that not all clients of an nsqd retry in the same second.
JITTER = 0.3
# Largest exponent of the powers below. Without this limit, many failures would overflow a float, as 2.0 ** 1024 does.
_MAX_EXPONENT = 64


class BackoffTimer:
    """Computes random waits by the formula of gnsq 1.0. A failure makes them longer on average, a success shorter.

    Args:
        ratio: Seconds; a factor of the formula in get_interval().
        max_interval: Seconds; None for no limit.
        min_interval: Seconds; None for no limit.
    """

    def __init__(self, ratio: float = 1, max_interval: float | None = None, min_interval: float | None = None) -> None:
        self.c = 0
        self.ratio = ratio
        self.max_interval = max_interval
        self.min_interval = min_interval

    def is_reset(self) -> bool:
        """Return True if no failures are counted."""
        return self.c == 0

    def reset(self) -> BackoffTimer:
        """Set the number of failures to 0."""
        self.c = 0
        return self

    def success(self) -> BackoffTimer:
        """Reduce the number of failures by one, unless it is 0."""
        self.c = max(self.c - 1, 0)
        return self

    def failure(self) -> BackoffTimer:
        """Count one failure."""
        self.c += 1
        return self

    def get_interval(self) -> float:
        """Return a wait in seconds: random (0 to 1) x (2^failures - 1) x ratio, within the limits; failures <= 64."""
        interval = random.random() * (2.0 ** min(self.c, _MAX_EXPONENT) - 1) * self.ratio
        if self.max_interval is not None:
            interval = min(interval, self.max_interval)
        if self.min_interval is not None:
            interval = max(interval, self.min_interval)
        return interval


def exponential_delay(failures: int, initial: float, maximum: float, *, growth: float = 2.0) -> float:
    """Compute the delay before the next try: initial, times growth for each failure after the first, up to maximum.

    Args:
        failures: Failures in a row, 1 or more.
    """
    return min(initial * growth ** min(failures - 1, _MAX_EXPONENT), maximum)


def jittered(seconds: float) -> float:
    """Subtract a random share of a delay, up to JITTER."""
    return seconds * (1 - JITTER * random.random())


# Phases of a consumer's backoff:
#
#              failure with a pause                   pause is over
#     +-----+ ----------------------> +---------+ ----------------------> +---------+
#     | OFF |                         | WAITING |                         | PROBING |
#     +-----+   RDY as usual          +---------+   RDY 0                 +---------+   RDY 1 on one connection
#        ^                                 ^                                 |   |
#        |                                 |  failure: another pause         |   |
#        |                                 +---------------------------------+   |
#        |                                    success, failures left: pause      |
#        +-----------------------------------------------------------------------+
#                                             success, no failures left
#
# In OFF, failures in a row are counted: the answers of all connections, in the order in which they are sent. A success
# begins a new row. A failure whose delay is 0 begins no pause; by default this is the first of a row.
# In WAITING, failures and successes are ignored: they belong to messages that were delivered before the pause.


class BackoffPhase(enum.Enum):
    """Phase of a consumer's backoff. The diagram before this class shows the changes except reset(), which sets OFF."""

    OFF = "off"
    WAITING = "waiting"
    PROBING = "probing"


class ConsumerBackoff:
    """Decides when a consumer pauses after failures, and when it requests one message as a probe.

    Source: the client guide, "Backoff".

    Args:
        delay: Function that is called with the failures in a row (1 or more), and returns seconds; 0: no pause begins.
            After a pause, each success takes one of these failures back; those that did not lengthen the pause, with
            the one before them.
        maximum: Longest delay, seconds; 0: never pause.
        jitter: Largest share of a delay, 0 to 1, that is subtracted from the delay.

    Attributes:
        duration: Length of the last pause, seconds.
        until: Time at which the last pause ends or has ended, monotonic seconds.
        maximum: Longest delay, seconds; may be changed at any time.
    """

    def __init__(
        self, delay: Callable[[int], float], maximum: float, jitter: float = 0.0, rng: random.Random | None = None
    ) -> None:
        self.phase = BackoffPhase.OFF
        self.duration = 0.0
        self.until = 0.0
        self.maximum = maximum
        self._delay = delay
        self._in_a_row = 0
        # The failures that made the pause longer: how many were in a row then, and seconds. Each needs one success: if
        # each failure did, an hour of failures would need a success for each, with pauses between them.
        self._pauses: list[tuple[int, float]] = []
        self._jitter = jitter
        self._rng = rng if rng is not None else random.Random()

    def record_failure(self, now: float) -> bool:
        """Count a failure, unless a pause runs or maximum is 0. Return True if a pause starts."""
        if self.phase is BackoffPhase.WAITING or self.maximum <= 0:
            return False
        longest = self._pauses[-1][1] if self._pauses else -1.0
        # After the longest pause the count means nothing more, and would only grow until a user's power overflows.
        in_a_row = self._in_a_row + (longest < self.maximum)
        length = self._delay(in_a_row)
        self._in_a_row = in_a_row
        if length <= 0 and self.phase is BackoffPhase.OFF:
            return False
        if length > longest:
            self._pauses.append((in_a_row, length))
        self._pause(length, now)
        return True

    def record_success(self, now: float) -> bool:
        """While PROBING, subtract one failure; then start another pause or end the backoff, and return True."""
        if self.phase is BackoffPhase.OFF:
            self._in_a_row = 0
        if self.phase is not BackoffPhase.PROBING:
            return False
        self._pauses.pop()
        if self._pauses:
            self._in_a_row, length = self._pauses[-1]
            self._pause(length, now)
        else:
            self.reset()
        return True

    @property
    def needs_successes(self) -> bool:
        """True if record_success() has an effect: a failure was counted."""
        return self._in_a_row > 0

    @property
    def failures(self) -> int:
        """Number of successes that end the backoff: the failures that lengthened the pause, minus successes since."""
        return len(self._pauses)

    def reset(self) -> bool:
        """End the backoff. Return True if it was active."""
        was_on = self.phase is not BackoffPhase.OFF
        self._pauses.clear()
        self._in_a_row = 0
        self.phase = BackoffPhase.OFF
        return was_on

    def update(self, now: float) -> None:
        """Change to PROBING if the pause is over."""
        if self.phase is BackoffPhase.WAITING and now >= self.until:
            self.phase = BackoffPhase.PROBING

    def _pause(self, length: float, now: float) -> None:
        self.duration = min(length, self.maximum) * (1 - self._jitter * self._rng.random())
        self.phase = BackoffPhase.WAITING
        self.until = now + self.duration
