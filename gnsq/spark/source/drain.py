"""Policies of a planner: when Trigger.AvailableNow, Trigger.Once and batch reads have read all messages, and when a
full spool needs an empty batch. Pure: callers pass facts and times; reads no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from gnsq.backofftimer import exponential_delay
from gnsq.texts import counted

__all__ = [
    "Depth",
    "DepthSample",
    "Drain",
    "DrainResult",
    "EmptyBatchTrigger",
    "NoReceiverWarning",
    "Outcome",
]

# nsqd moves a message from topic to channel, and from queue to in flight. During the move the message is counted in
# neither place, so one sample of a depth proves nothing.
MIN_SAMPLES = 2
# Seconds. If the depth of an nsqd is unknown, the drain ends after this time without a message, in addition to the time
# for which a message may wait for its segment.
QUIET_SECONDS = 2.0
# Seconds until the warning that a channel has messages but no receiver, and between two such warnings.
WARN_AFTER, WARN_INTERVAL = 10.0, 60.0
# Seconds without a message until an empty batch is needed: first if nsqd has messages, second if the depth is unknown.
TRIGGER_AFTER_DEPTH, TRIGGER_AFTER_UNKNOWN = 0.5, 5.0
# Seconds between empty batches that had no effect: the first pause, and the longest.
RETRY_INITIAL, RETRY_MAXIMUM = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Depth:
    """Numbers of messages of a channel: waiting (in its topic, too), in flight, deferred; and of its subscribers.

    Not exact if an nsqd did not respond: then there are at least this many messages.
    """

    waiting: int
    in_flight: int
    deferred: int
    subscribers: int = 0
    exact: bool = True

    def plus(self, other: Depth) -> Depth:
        """Return the sum of two depths; exact if both are."""
        return Depth(
            self.waiting + other.waiting,
            self.in_flight + other.in_flight,
            self.deferred + other.deferred,
            self.subscribers + other.subscribers,
            exact=self.exact and other.exact,
        )

    @property
    def total(self) -> int:
        """Messages that a consumer gets soon. Deferred messages, which may take an hour, are not included."""
        return self.waiting + self.in_flight


class Outcome(Enum):
    """End of a drain."""

    DRAINED = auto()
    # Messages may be left, so the caller must log a warning.
    LEFT = auto()
    # The caller must raise. If the query just ended, it would look as if it had read all messages.
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The end of a drain, and its reason."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class DepthSample:
    """The planner's knowledge of the spool and the channel at one time.

    Attributes:
        rows: Rows that came into the spool since the drain began. The spool is listed after the request for the
            depth, so the rows include what receivers finished before the request.
        depth: None if there was no request for the depth, or no nsqd has responded.
        is_paused: True if nothing can be received: the spool is full, or can't be written.
        is_reached: True if an nsqd was reached at any time, as far as the planner knows.
    """

    rows: int
    depth: Depth | None = None
    is_paused: bool = False
    is_reached: bool = True


class Drain:
    """Decides when to stop waiting for messages.

    Args:
        idle_timeout: Seconds without a new message after which the drain ends in any case.
        now: The time in seconds, by the same clock as in the calls of the methods.
        has_http: True if any nsqd can be asked for the depth.
        segment_wait: Seconds for which a message may wait for its segment: only messages in segments are seen.
    """

    def __init__(self, idle_timeout: float, now: float, *, has_http: bool = True, segment_wait: float = 0.0) -> None:
        self._idle_timeout = idle_timeout
        self._quiet = QUIET_SECONDS + segment_wait
        self._has_http = has_http
        self._last_time = now
        self._rows = 0
        self._was_paused = False
        # Seconds that the planner has waited since the last message, and in total.
        self._idle = self._waited = 0.0
        # Number of messages at the start: the highest number in the first samples.
        self._target = 0
        self._samples = self._exact_samples = self._empty_samples = 0
        self._left = 0

    def begin(self, now: float) -> None:
        """Begin to wait. The query was busy with a batch since the last sample: this time is not counted as idle."""
        self._last_time = now

    def record(self, rows: int, depth: Depth) -> None:
        """Record a depth. Called by update(), and by the planner before the receiver starts."""
        if (self._exact_samples if depth.exact else self._samples) < MIN_SAMPLES:
            self._target = max(self._target, rows + depth.total)
        self._samples += 1
        self._exact_samples += depth.exact
        self._empty_samples = self._empty_samples + 1 if depth.exact and not depth.total else 0
        self._left = depth.total

    def update(self, sample: DepthSample, now: float) -> DrainResult | None:
        """Record a sample. Return the result if the drain ends, otherwise None."""
        self._pass_time(sample, now)
        if sample.depth is not None:
            self.record(sample.rows, sample.depth)
        has_come = sample.rows >= self._target
        if has_come and self._exact_samples >= MIN_SAMPLES:
            return DrainResult(Outcome.DRAINED, "all that was there at the start has come")
        if self._empty_samples >= MIN_SAMPLES:
            return DrainResult(Outcome.DRAINED, "the channel is empty")
        if self._idle >= self._idle_timeout:
            return self._result_of_idle_timeout(sample)
        if has_come and sample.is_reached and not sample.is_paused:
            return self._result_without_depth()
        return None

    def _pass_time(self, sample: DepthSample, now: float) -> None:
        passed, self._last_time = now - self._last_time, now
        self._idle += passed
        self._waited += passed
        if sample.rows != self._rows:
            self._rows, self._empty_samples = sample.rows, 0
            self._idle = 0.0
        if sample.is_paused != self._was_paused:
            self._was_paused = sample.is_paused
            self._idle = 0.0

    def _result_without_depth(self) -> DrainResult | None:
        """Decide without an exact depth, so that the drain ends even if an nsqd does not tell its depth or messages are
        published all the time."""
        if self._idle >= self._quiet and (self._samples >= MIN_SAMPLES or not self._has_http):
            came = f"nothing has come for {self._quiet:g} s"
        elif self._waited >= self._idle_timeout:
            came = f"messages have come for {self._waited:.0f} s (idleTimeout)"
        else:
            return None
        return DrainResult(Outcome.LEFT, f"{came}, and not every nsqd tells its depth")

    def _result_of_idle_timeout(self, sample: DepthSample) -> DrainResult:
        seconds = f"{self._idle_timeout:g} s (idleTimeout)"
        if sample.is_paused:
            text = f"nothing could be received for {seconds}: the spool is full, or can't be written"
            return DrainResult(Outcome.FAILED, text)
        if not sample.is_reached:
            text = f"no nsqd was reached for {seconds}, so the depth is unknown: check addresses and topic"
            return DrainResult(Outcome.FAILED, text)
        waits = f"{counted(self._left, 'message waits', 'messages wait')} there"
        left = waits if self._left else "the channel is not known to be empty"
        return DrainResult(Outcome.LEFT, f"nothing has come for {seconds}, though {left}")


class EmptyBatchTrigger:
    """Decides when an empty batch is needed, so that segments that were read are deleted.

    Spark calls commit() for a batch only if there is a next batch. While receivers wait because the spool is full,
    there is none. A receiver in another process may have a lower limit, so a time without new messages counts, too.

    Args:
        after_depth: Seconds without a new message if nsqd has messages.
        after_unknown: Seconds without a new message if the depth is unknown.
        retry_initial: Seconds until the second try.
    """

    def __init__(
        self,
        after_depth: float = TRIGGER_AFTER_DEPTH,
        after_unknown: float = TRIGGER_AFTER_UNKNOWN,
        retry_initial: float = RETRY_INITIAL,
    ) -> None:
        self._after_depth = after_depth
        self._after_unknown = after_unknown
        self._retry_initial = retry_initial
        self._before = self._tries = 0
        self._due = 0.0

    def is_due(self, read: int, waiting: int | None, idle: float, now: float, *, is_paused: bool) -> bool:
        """Return True if an empty batch is needed now. Then the caller must make one.

        Args:
            read: Bytes in the spool that were read.
            waiting: Messages that wait at nsqd, as seen after the last message came; None if unknown.
            idle: Seconds since the last message came into the spool.
            is_paused: True if receivers are known to wait for space.
        """
        if read < self._before or not read:
            # Segments were deleted, so the last empty batch had an effect.
            self._before, self._tries, self._due = 0, 0, 0.0
        if not read or waiting == 0 or now < self._due:
            return False
        if not is_paused and idle < (self._after_unknown if waiting is None else self._after_depth):
            return False
        self._before = read
        self._tries += 1
        self._due = now + exponential_delay(self._tries, self._retry_initial, RETRY_MAXIMUM)
        return True

    @property
    def is_ineffective(self) -> bool:
        """True if at least two empty batches were needed, and nothing was deleted."""
        return self._tries > 1


class NoReceiverWarning:
    """Decides when to warn that a channel has messages and no subscriber."""

    def __init__(self, now: float, warn_after: float = WARN_AFTER) -> None:
        self._warn_after = warn_after
        self._due = now + warn_after

    def is_due(self, depth: Depth | None, now: float) -> bool:
        """Return True if a warning must be logged now. The depth is None if it is unknown."""
        if depth is None or not depth.waiting or depth.subscribers:
            self._due = now + self._warn_after
            return False
        if now < self._due:
            return False
        self._due = now + WARN_INTERVAL
        return True
