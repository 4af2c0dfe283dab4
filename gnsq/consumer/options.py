"""Options of a Consumer, and the delays that are computed from them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from gnsq.backofftimer import JITTER, ConsumerBackoff, exponential_delay
from gnsq.nsqd.pool import ReconnectOptionsDict
from gnsq.options import ConnectionOptionsDict, Options, option

__all__ = ["ConsumerOptions", "ConsumerOptionsDict", "OptionAttribute"]

# Seconds. Longest interval between two lookups while an nsqd is lost; with the default jitter it stays below 30 s.
LOST_POLL_INTERVAL = 25.0
# Seconds after the loss of an nsqd until the usual interval is used again: the nsqd may never come back.
LOST_FOR = 24 * 3600.0


class ConsumerOptionsDict(ReconnectOptionsDict, ConnectionOptionsDict, total=False):
    """All options of a Consumer as typed keywords, except for those that are parameters of its constructor."""

    concurrency: int | None
    busy_poll: bool
    handler_timeout: float | None
    close_timeout: float
    requeue_initial: float
    requeue_growth: float
    requeue_maximum: float
    backoff_initial: float
    backoff_strategy: Callable[[int], float] | None


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(Options):
    """Options of a Consumer. requeue_delay is in milliseconds, as it was in gnsq 1.0."""

    max_tries: int = option(
        5, "limit of the deliveries of a message; after that it is given up; 0: no limit", unit="attempts", minimum=0
    )
    max_in_flight: int = option(
        1, "limit of the messages in flight, for all nsqds together", unit="messages", minimum=1
    )
    requeue_delay: float | None = option(
        None, "delay of a failed message; by default it grows with the attempts", unit="ms", minimum=0
    )
    lookupd_poll_interval: float = option(
        60,
        "time between two lookups at all nsqlookupds; at most 25 while the connection to an nsqd is lost",
        unit="s",
        minimum=0.001,
    )
    lookupd_poll_jitter: float = option(0.3, "part of this time that is random, 0 to 1", minimum=0, maximum=1)
    low_ready_idle_timeout: float = option(
        10,
        "time without a message after which an nsqd is reduced to RDY 1 if others have more messages, "
        "or to RDY 0 if max_in_flight is below the number of nsqds",
        unit="s",
        minimum=0.001,
    )
    max_backoff_duration: float = option(128, "limit of the pause after failures; 0: never pause", unit="s", minimum=0)
    backoff_on_requeue: bool = option(
        True, "an NSQRequeueMessage counts as a failure, unless its own argument backoff says otherwise"
    )
    concurrency: int | None = option(
        None, "limit of the handlers that run at the same time; default: max_in_flight", unit="greenlets", minimum=1
    )
    busy_poll: bool = option(
        False,
        "after messages that follow others immediately, the event loop does not sleep for up to 0.3 ms: with few "
        "messages in flight these come faster, and each read costs up to this much processor time",
    )
    handler_timeout: float | None = option(
        None,
        "time after which a handler is interrupted, which counts as a failure; default: no limit",
        unit="s",
        minimum=0.001,
    )
    close_timeout: float = option(
        30.0, "time that close() waits for answers; it then requeues the messages in flight", unit="s", minimum=0
    )
    requeue_initial: float = option(1.0, "without requeue_delay: delay after the first attempt", unit="s", minimum=0)
    requeue_growth: float = option(
        4.0, "without requeue_delay: the delay is multiplied by this after each further attempt", minimum=1
    )
    requeue_maximum: float = option(
        900.0, "without requeue_delay: limit of the delay; nsqd's own limit is 1 h", unit="s", minimum=0
    )
    backoff_initial: float = option(
        1.0, "length of the first pause; each failure doubles it, and each success halves it", unit="s", minimum=0
    )
    backoff_strategy: Callable[[int], float] | None = option(
        None,
        "function that is called with the number of failures in a row and returns the pause in seconds; "
        "backoff_initial is not used then",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backoff_strategy is not None and not callable(self.backoff_strategy):
            raise TypeError(f"backoff_strategy must be callable, not {self.backoff_strategy!r}")

    def poll_interval(self, losses: Iterable[float]) -> float:
        """Return the seconds between two lookups at all nsqlookupds, without jitter.

        Args:
            losses: Seconds since the loss of each nsqd that was lost and is not connected again.
        """
        is_recent = any(seconds < LOST_FOR for seconds in losses)
        return min(self.lookupd_poll_interval, LOST_POLL_INTERVAL) if is_recent else self.lookupd_poll_interval

    def requeue_after(self, attempts: int) -> int:
        """Return the delay of a REQ in milliseconds, for a message that was delivered this number of times."""
        if self.requeue_delay is not None:
            return round(self.requeue_delay)
        delay = exponential_delay(attempts, self.requeue_initial, self.requeue_maximum, growth=self.requeue_growth)
        return round(delay * 1000)

    def backoff(self, rng: random.Random) -> ConsumerBackoff:
        """Make the backoff of one consumer."""
        if self.backoff_strategy is not None:
            return ConsumerBackoff(self.backoff_strategy, self.max_backoff_duration)
        return ConsumerBackoff(self._pause, self.max_backoff_duration, JITTER, rng)

    def _pause(self, failures: int) -> float:
        return exponential_delay(failures, self.backoff_initial, self.max_backoff_duration)


class OptionAttribute:
    """Attribute of a Consumer that reads or sets the option of the same name. gnsq 1.0 had these attributes."""

    _name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, consumer: Any, owner: type) -> Any:  # Any: each option has its own type
        return self if consumer is None else getattr(consumer.options, self._name)

    def __set__(self, consumer: Any, value: Any) -> None:
        consumer.options = replace(consumer.options, **{self._name: value})
        consumer.apply_options()
