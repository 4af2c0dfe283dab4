"""Options of a Consumer, and the delays that are computed from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from gnsq.backofftimer import exponential_delay
from gnsq.concurrency.greenlets import check_is_failure
from gnsq.errors import NSQGiveUp, NSQRequeueMessage
from gnsq.logs import LogOwner
from gnsq.nsqd.pool import ReconnectOptionsDict
from gnsq.options import MAX_INTERVAL, ConnectionOptionsDict, Options, checked_value, option
from gnsq.protocol.names import assert_valid_topic_name, is_ephemeral

__all__ = ["ConsumerOptions", "ConsumerOptionsDict", "Delay", "Exceptions", "OptionAttribute"]

logger = logging.getLogger(__name__)

# A delay: a number, a timedelta, or a function of a count that returns one of these.
Delay = float | timedelta | Callable[[int], float | timedelta]
# As in an except clause.
Exceptions = type[BaseException] | tuple[type[BaseException], ...]

# Seconds until a failed message comes again by default: 1, 4, 16, 64, 256, then 900. The first retry comes soon enough
# for a connection that was lost, and the five deliveries of max_tries last for more than a minute.
REQUEUE_INITIAL, REQUEUE_GROWTH, REQUEUE_MAXIMUM = 1.0, 4.0, 900.0
# By default, the first pause of a backoff comes with this failure in a row: one failure among messages that work is
# that of its message. The pause doubles with each further failure.
BACKOFF_AFTER = 2
# Seconds of the first pause by default.
BACKOFF_INITIAL = 1.0
# Seconds. Longest interval between two lookups while an nsqd is lost; with the default jitter it stays below 30 s.
LOST_POLL_INTERVAL = 25.0
# Seconds after the loss of an nsqd until the usual interval is used again: the nsqd may never come back.
LOST_FOR = 24 * 3600.0


class ConsumerOptionsDict(ReconnectOptionsDict, ConnectionOptionsDict, total=False):
    """All options of a Consumer as typed keywords, except for those that are parameters of its constructor."""

    concurrency: int | None
    handler_timeout: float | timedelta | None
    close_timeout: float | timedelta
    backoff: Delay | None
    dead_letter_topic: str | None
    give_up_on: Exceptions
    retry_on: Exceptions
    max_age: float | timedelta | None


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(Options):
    """Options of a Consumer. requeue_delay is in milliseconds, as it was in gnsq 1.0."""

    max_tries: int = option(
        5,
        "limit of the deliveries of a message; after that it is given up; 0 or None: no limit",
        unit="attempts",
        minimum=0,
        none=0,  # as in gnsq 1.0: with the default, messages would be given up that were not before
        common=True,
    )
    max_in_flight: int = option(
        1, "limit of the messages in flight, for all nsqds together", unit="messages", minimum=1, common=True
    )
    requeue_delay: Delay | None = option(
        None,
        "delay of a failed message: a number, a `timedelta`, or a function that is called with the attempts and "
        "returns one of these; default: 1 s, 4 s, 16 s ..., up to 15 min",
        unit="ms",
        minimum=0,
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
        None,
        "limit of the handlers that run at the same time; default: max_in_flight",
        unit="greenlets",
        minimum=1,
        common=True,
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
    backoff: Delay | None = option(
        None,
        "pause after failures, up to max_backoff_duration: a number (0: never pause), a `timedelta`, or a function "
        "that is called with the failures in a row and returns one of these (0: no pause yet); default: 0, 1, 2, 4 "
        "..., up to 30 % less",
        unit="s",
        minimum=0,
    )
    dead_letter_topic: str | None = option(
        None,
        "topic that gets a dead letter for each message that is given up, before the message is finished; if the "
        "letter can't be published, the message is requeued; create a channel for it, gnsq channel create TOPIC "
        "requeue-dead, which keeps the letters; default: none",
        common=True,
    )
    give_up_on: Exceptions = option(
        (),
        "classes of exceptions after which a message is given up at once, as after NSQGiveUp, but with a traceback",
    )
    retry_on: Exceptions = option(
        (), "classes of exceptions after which a message is tried again; all others give it up at once; default: all"
    )
    max_age: float | None = option(
        None,
        "age from which on a message is given up without being handled: the time here, minus that of its nsqd at the "
        "publish; default: no limit",
        unit="s",
        minimum=0.001,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dead_letter_topic is not None:
            try:
                assert_valid_topic_name(self.dead_letter_topic)
            except ValueError as error:
                raise ValueError(f"dead_letter_topic: {error}") from None
            if is_ephemeral(self.dead_letter_topic):
                raise ValueError(
                    f"dead_letter_topic {self.dead_letter_topic!r} is ephemeral: nsqd may drop its messages"
                )
        for kind in self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,):
            if issubclass(kind, self.give_up_on):
                raise ValueError(f"retry_on {kind.__name__} has no effect: give_up_on has it, or a base of it, too")

    def gives_up_on(self, error: BaseException) -> bool:
        """Return True if a message is given up at once after an exception of its handler.

        NSQGiveUp and NSQRequeueMessage come first, then give_up_on, then retry_on.
        """
        if isinstance(error, (NSQGiveUp, NSQRequeueMessage)):
            return isinstance(error, NSQGiveUp)
        return isinstance(error, self.give_up_on) or (bool(self.retry_on) and not isinstance(error, self.retry_on))

    def poll_interval(self, losses: Iterable[float]) -> float:
        """Return the seconds between two lookups at all nsqlookupds, without jitter.

        Args:
            losses: Seconds since the loss of each nsqd that was lost and is not connected again.
        """
        is_recent = any(seconds < LOST_FOR for seconds in losses)
        return min(self.lookupd_poll_interval, LOST_POLL_INTERVAL) if is_recent else self.lookupd_poll_interval

    def requeue_after(self, attempts: int, owner: LogOwner) -> int:
        """Return the delay of a REQ in milliseconds, for a message that was delivered this number of times."""
        default = exponential_delay(attempts, REQUEUE_INITIAL, REQUEUE_MAXIMUM, growth=REQUEUE_GROWTH) * 1000
        # nsqd cuts a delay to its max-req-timeout, but a number that overflows there becomes a delay of 0.
        return round(min(self._delay("requeue_delay", attempts, default, owner), MAX_INTERVAL * 1000))

    def pause_after(self, failures: int, owner: LogOwner) -> float:
        """Return the seconds of a backoff's pause, without jitter, after this number of failures in a row."""
        default = 0.0
        if failures >= BACKOFF_AFTER:
            default = exponential_delay(failures - BACKOFF_AFTER + 1, BACKOFF_INITIAL, self.max_backoff_duration)
        return min(self._delay("backoff", failures, default, owner), self.longest_pause)

    @property
    def longest_pause(self) -> float:
        """Limit of a backoff's pause in seconds; 0: no pauses."""
        is_off = self.backoff is not None and not self.backoff
        return 0.0 if is_off else self.max_backoff_duration

    def _delay(self, name: str, count: int, default: float, owner: LogOwner) -> float:
        """Return what an option says for a count, in its unit. The default replaces what a failing function says: a
        message must be requeued all the same."""
        value: Any = getattr(self, name)  # Any: a number that was checked, a function, or None
        if value is None:
            return default
        if not callable(value):
            return float(value)
        try:
            return float(checked_value(self.__dataclass_fields__[name], value(count)))
        except BaseException as error:  # noqa: BLE001  # a user's function may raise any exception
            check_is_failure(error)
            text = "the function of option %s failed for %d; its default is used"
            owner.log(logger).limited(logging.ERROR, name, text, name, count, exc_info=True)
            return default


class OptionAttribute:
    """Attribute of a Consumer that reads or sets the option of the same name. gnsq 1.0 had these attributes."""

    _name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, consumer: Any, owner: type) -> Any:  # Any: each option has its own type
        return self if consumer is None else getattr(consumer.options, self._name)

    def __set__(self, consumer: Any, value: Any) -> None:
        consumer.options = replace(consumer.options, **{self._name: value})
        consumer._in_owner_thread(consumer._runtime.rdy.configure, consumer.options)
