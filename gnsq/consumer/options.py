"""Options of a Consumer, and the delays that are computed from them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from gnsq.backofftimer import ConsumerBackoff, exponential_delay
from gnsq.discovery import MAX_NSQDS
from gnsq.nsqd.pool import ReconnectOptionsDict
from gnsq.options import ConnectionOptionsDict, Options, option

__all__ = ["ConsumerOptions", "ConsumerOptionsDict", "OptionAttribute"]

# Longest interval between two rounds of lookups while an nsqd is lost, seconds; with the default jitter below 30.
LOST_POLL_INTERVAL = 25.0
# Seconds after the loss of an nsqd until the usual interval is used again: a replaced nsqd does not come back.
LOST_FOR = 24 * 3600.0


class ConsumerOptionsDict(ReconnectOptionsDict, ConnectionOptionsDict, total=False):
    """All options of a Consumer as typed keywords, except for those that are parameters of its constructor."""

    max_nsqds: int
    low_ready_timeout: float
    ready_grace: float
    concurrency: int | None
    handler_timeout: float | None
    close_timeout: float
    requeue_initial: float
    requeue_growth: float
    requeue_maximum: float
    backoff_initial: float
    backoff_jitter: float
    backoff_strategy: Callable[[int], float] | None


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(Options):
    """Options of a Consumer. requeue_delay is in milliseconds, as in gnsq 1.0."""

    max_tries: int = option(5, "more attempts than this: given up; 0: never", unit="attempts", minimum=0)
    max_in_flight: int = option(1, "messages delivered and not yet answered", unit="messages", minimum=1)
    requeue_delay: float | None = option(
        None, "until a failed message comes again; default: grows with its attempts", unit="ms", minimum=0
    )
    lookupd_poll_interval: float = option(
        60,
        "between rounds of asking all nsqlookupds; 25 at most while an nsqd that was connected is lost",
        unit="s",
        minimum=0.001,
    )
    lookupd_poll_jitter: float = option(0.3, "share of the interval that is random", minimum=0, maximum=1)
    max_nsqds: int = option(
        MAX_NSQDS, "that nsqlookupds may name for the topic; more are left out, with a warning", unit="nsqds", minimum=1
    )
    low_ready_idle_timeout: float = option(
        10,
        "without a message until an nsqd must give RDY to others: all but 1 to those that have more, all of it where "
        "there are fewer messages in flight than nsqds",
        unit="s",
        minimum=0.001,
    )
    low_ready_timeout: float = option(
        30,
        "with fewer messages in flight than nsqds: until an nsqd that has messages must let others have a turn; "
        "shorter while many wait",
        unit="s",
        minimum=0.001,
    )
    ready_grace: float = option(
        1.0,
        "after a lower RDY, which nsqd does not acknowledge, until no message that it sent before can still arrive",
        unit="s",
        minimum=0.001,
    )
    max_backoff_duration: float = option(
        128, "longest pause of all messages after failures; 0: never pause", unit="s", minimum=0
    )
    backoff_on_requeue: bool = option(True, "NSQRequeueMessage that does not say is a failure to pause for")
    concurrency: int | None = option(None, "handlers at once; default: max_in_flight", unit="greenlets", minimum=1)
    handler_timeout: float | None = option(
        None, "until a handler is broken off, which is a failure; default: none", unit="s", minimum=0.001
    )
    close_timeout: float = option(
        30.0, "for what is in flight when close() is called; the rest is requeued then", unit="s", minimum=0
    )
    requeue_initial: float = option(1.0, "first delay of requeue_delay's default", unit="s", minimum=0)
    requeue_growth: float = option(4.0, "its factor with each further attempt", minimum=1)
    requeue_maximum: float = option(900.0, "its limit; nsqd's own is 1 h", unit="s", minimum=0)
    backoff_initial: float = option(1.0, "first pause; doubled with each failure, halved back", unit="s", minimum=0)
    backoff_jitter: float = option(0.3, "share of each pause that is random", minimum=0, maximum=1)
    backoff_strategy: Callable[[int], float] | None = option(
        None, "called with the failures in a row, gives the pause in seconds, in place of the two before"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backoff_strategy is not None and not callable(self.backoff_strategy):
            raise TypeError(f"backoff_strategy must be callable, not {self.backoff_strategy!r}")

    def poll_interval(self, losses: Iterable[float]) -> float:
        """Return the seconds between two rounds of lookups, without jitter.

        Args:
            losses: Seconds since the loss of each nsqd that has not come back.
        """
        is_recent = any(seconds < LOST_FOR for seconds in losses)
        return min(self.lookupd_poll_interval, LOST_POLL_INTERVAL) if is_recent else self.lookupd_poll_interval

    def requeue_after(self, attempts: int) -> int:
        """Return the delay in milliseconds of a REQ after a failure on this attempt."""
        if self.requeue_delay is not None:
            return round(self.requeue_delay)
        delay = exponential_delay(attempts, self.requeue_initial, self.requeue_maximum, growth=self.requeue_growth)
        return round(delay * 1000)

    def backoff(self, rng: random.Random) -> ConsumerBackoff:
        """Make the backoff of one consumer."""
        if self.backoff_strategy is not None:
            return ConsumerBackoff(self.backoff_strategy, self.max_backoff_duration)
        return ConsumerBackoff(self._pause, self.max_backoff_duration, self.backoff_jitter, rng)

    def _pause(self, failures: int) -> float:
        return exponential_delay(failures, self.backoff_initial, self.max_backoff_duration)


class OptionAttribute:
    """Attribute that reads or sets the option of the same name, as in gnsq 1.0."""

    _name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, consumer: Any, owner: type) -> Any:  # Any: each option has its own type
        return self if consumer is None else getattr(consumer.options, self._name)

    def __set__(self, consumer: Any, value: Any) -> None:
        consumer.options = replace(consumer.options, **{self._name: value})
        consumer.apply_options()
