"""When to wait, when to stop and when to make room: what a channel's depth and a spool's size tell a planner, for
Trigger.AvailableNow, Trigger.Once and batch reads, and for a stream whose spool is full. PURE: is told facts, asks
nobody."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from gnsq.texts import counted

__all__ = ["Depth", "Drain", "DrainResult", "DepthSample", "EmptyBatchTrigger", "Outcome", "NoReceiverWarning"]

# nsqd moves a message from queue to in flight, and from topic to channel, with an instant in which it is in neither:
# one look at a channel proves nothing.
MIN_SAMPLES = 2
# Where nobody can say what is left: nothing new for so many seconds means that it was all.
QUIET_SECONDS = 2.0
# Messages wait and no consumer is connected: for so long it is no wonder, and it is said again so often.
WARN_AFTER = 10.0
WARN_INTERVAL = 60.0
# Seconds without anything new until what was read is deleted for receivers that may be waiting for room: where nsqd
# has messages, and where nobody knows.
TRIGGER_AFTER_DEPTH, TRIGGER_AFTER_UNKNOWN = 0.5, 5.0
# Seconds between tries while nothing gets deleted.
RETRY_INITIAL, RETRY_MAXIMUM = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Depth:
    """How many messages a channel has waiting (its topic's own queue included), in flight and deferred, and how many
    connections of consumers. Not exact, if some nsqd did not answer: then there are so many at least."""

    waiting: int
    in_flight: int
    deferred: int
    subscribers: int = 0
    exact: bool = True

    @property
    def total(self) -> int:
        """All that a consumer can get soon: what is deferred may take an hour."""
        return self.waiting + self.in_flight


class Outcome(Enum):
    """How the waiting for more ends."""

    DRAINED = auto()
    # Messages may be left: to be said as a warning.
    LEFT = auto()
    # To be raised: a query that ended now would look as if it had read all.
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class DrainResult:
    """That it is over, and why."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class DepthSample:
    """What is known now.

    Attributes:
        rows: Messages in the spool since the start. Asked for after depth: what is finished is in the spool.
        depth: What nsqd says; None if it was not asked now, or did not answer.
        is_paused: Whether nothing can come: the spool is full, or can't be written.
        is_reached: Whether any nsqd was ever reached, as far as can be known.
    """

    rows: int
    depth: Depth | None = None
    is_paused: bool = False
    is_reached: bool = True


class Drain:
    """Decides when to stop waiting for more.

    Args:
        idle_timeout: Seconds without a new message, after which what is left is left.
        now: Seconds of some clock.
        has_http: Whether there is anybody who could say how much there is.
    """

    def __init__(self, idle_timeout: float, now: float, *, has_http: bool = True) -> None:
        self._idle_timeout = idle_timeout
        self._askable = has_http
        self._seen_at = now
        self._rows = 0
        self._was_paused = False
        # Seconds that somebody waited here: since the last message, and altogether.
        self._idle = self._waited = 0.0
        # The most that the first looks have seen, which is what was there at the start; and how many there were.
        self._target = 0
        self._looks = self._exact_looks = 0
        self._empty_looks = 0
        self._waiting = 0

    def begin(self, now: float) -> None:
        """Wait from now on: what has passed since the last look was the query's time, in which nothing had to come."""
        self._seen_at = now

    def record(self, rows: int, depth: Depth) -> None:
        """Take in what nsqd says: is_done() does, and whoever asks before there is anything to wait for."""
        if (self._exact_looks if depth.exact else self._looks) < MIN_SAMPLES:
            self._target = max(self._target, rows + depth.total)
        self._looks += 1
        self._exact_looks += depth.exact
        self._empty_looks = self._empty_looks + 1 if depth.exact and not depth.total else 0
        self._waiting = depth.total

    def is_done(self, look: DepthSample, now: float) -> DrainResult | None:
        """Say that it is over, and why; None if it is not."""
        self._pass_time(look, now)
        if look.depth is not None:
            self.record(look.rows, look.depth)
        has_come = look.rows >= self._target
        if has_come and self._exact_looks >= MIN_SAMPLES:
            return DrainResult(Outcome.DRAINED, "all that was there at the start has come")
        if self._empty_looks >= MIN_SAMPLES:
            return DrainResult(Outcome.DRAINED, "the channel is empty")
        if self._idle >= self._idle_timeout:
            return self._idled_out(look)
        if has_come and self._exact_looks < MIN_SAMPLES and look.is_reached and not look.is_paused:
            return self._guess()
        return None

    def _pass_time(self, look: DepthSample, now: float) -> None:
        passed, self._seen_at = now - self._seen_at, now
        self._idle += passed
        self._waited += passed
        if look.rows != self._rows:
            self._rows, self._empty_looks = look.rows, 0
            self._idle = 0.0
        if look.is_paused != self._was_paused:
            self._was_paused = look.is_paused
            self._idle = 0.0

    def _guess(self) -> DrainResult | None:
        """Where not all can say what there is: it ends, too, however much is published meanwhile."""
        if self._idle >= QUIET_SECONDS and (self._looks >= MIN_SAMPLES or not self._askable):
            return DrainResult(
                Outcome.LEFT, f"nothing has come for {QUIET_SECONDS:g} s, and not every nsqd says what it has"
            )
        if self._waited >= self._idle_timeout:
            return DrainResult(
                Outcome.LEFT,
                f"messages have come for {self._waited:.0f} s (idleTimeout), and not every nsqd says what it has",
            )
        return None

    def _idled_out(self, look: DepthSample) -> DrainResult:
        seconds = f"{self._idle_timeout:g} s (idleTimeout)"
        if look.is_paused:
            return DrainResult(
                Outcome.FAILED, f"nothing could be received for {seconds}: the spool is full, or can't be written"
            )
        if not look.is_reached:
            return DrainResult(
                Outcome.FAILED,
                f"no nsqd was reached for {seconds}, so nobody knows what there is to read: check addresses and topic",
            )
        left = (
            f"{counted(self._waiting, 'message waits', 'messages wait')} there"
            if self._waiting
            else "the channel is not known to be empty"
        )
        return DrainResult(Outcome.LEFT, f"nothing has come for {seconds}, though {left}")


class EmptyBatchTrigger:
    """Decides when what was read is to be deleted out of turn. Spark says that a batch is done only behind the next
    one, and none comes while receivers wait for room in the spool; where their limit is, nobody else knows."""

    def __init__(self) -> None:
        self._before = 0
        self._delay = 0.0
        self._due = 0.0

    def update(self, read: int) -> None:
        """Tell how many bytes lie in the spool that were read; to be told whenever that is known."""
        if read < self._before or not read:
            # It helped.
            self._before, self._delay, self._due = 0, 0.0, 0.0

    def is_due(self, read: int, waiting: int | None, idle: float, now: float, *, is_paused: bool) -> bool:
        """Whether to do it now; whoever is told so does it.

        Args:
            read: As above.
            waiting: Messages that nsqd has waiting since nothing more came; None if nobody knows.
            idle: Seconds since something new came into the spool.
            is_paused: Whether it is known that receivers wait for room.
        """
        self.update(read)
        if not read or waiting == 0 or now < self._due:
            return False
        if not is_paused and idle < (TRIGGER_AFTER_UNKNOWN if waiting is None else TRIGGER_AFTER_DEPTH):
            return False
        self._before = read
        self._delay = min(self._delay * 2, RETRY_MAXIMUM) or RETRY_INITIAL
        self._due = now + self._delay
        return True

    @property
    def is_ineffective(self) -> bool:
        """Whether it was done twice and more, and nothing got less."""
        return self._delay > RETRY_INITIAL


class NoReceiverWarning:
    """Decides when to say that messages wait and nobody receives them.

    Args:
        now: Seconds of some clock.
    """

    def __init__(self, now: float) -> None:
        self._due = now + WARN_AFTER

    def is_due(self, depth: Depth | None, now: float) -> bool:
        """Whether to say it now; depth is None if nobody knows."""
        if depth is None or not depth.waiting or depth.subscribers:
            self._due = now + WARN_AFTER
            return False
        if now < self._due:
            return False
        self._due = now + WARN_INTERVAL
        return True
