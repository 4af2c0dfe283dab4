"""What a channel's depth tells: when it counts as drained (Trigger.AvailableNow, Trigger.Once and batch reads), and
when nobody receives it. PURE: is told facts, asks nobody."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Depth", "Drain", "Unattended"]

# nsqd moves a message from queue to in flight, and from topic to channel, with an instant in which it is in neither:
# one look at an empty channel proves nothing.
LOOKS = 2
# Without statistics: nothing new for so many seconds means empty.
QUIET = 2.0
# Messages wait and no consumer is connected: for so long it is no wonder, and it is said again so often.
UNATTENDED_AFTER = 10.0
UNATTENDED_AGAIN = 60.0


@dataclass(frozen=True, slots=True)
class Depth:
    """How many messages a channel has waiting (its topic's own queue included), in flight and deferred, and how many
    connections of consumers."""

    waiting: int
    in_flight: int
    deferred: int
    consumers: int = 0

    @property
    def total(self) -> int:
        """All that a consumer can get soon: what is deferred may take an hour."""
        return self.waiting + self.in_flight


class Drain:
    """Decides when to stop waiting for more.

    Args:
        target: Messages that were there at the start; None if nobody could say, then the first answer counts.
        askable: Whether there is anybody who could say.
        idle_timeout: Seconds without a new message, after which what is left is left.
        now: Seconds of some clock.
    """

    def __init__(self, target: int | None, idle_timeout: float, now: float, *, askable: bool = True) -> None:
        self._target = target
        self._idle_timeout = idle_timeout
        self._changed_at = now
        self._askable = askable
        self._rows = 0
        self._empty_looks = 0

    def is_done(self, rows: int, depth: Depth | None, now: float) -> str:
        """Say why it is over, or "" if it is not.

        Args:
            rows: Messages in the spool since the start. Asked for after depth: what is finished is in the spool.
            depth: What nsqd says; None if it was not asked now, or did not answer.
        """
        if rows != self._rows:
            self._rows, self._changed_at, self._empty_looks = rows, now, 0
        if self._target is not None and rows >= self._target:
            return "all that was there at the start has come"
        if depth is not None:
            if self._target is None:
                self._target = rows + depth.total
            self._empty_looks = self._empty_looks + 1 if depth.total == 0 else 0
            if self._empty_looks >= LOOKS:
                return "the channel is empty"
        idle = now - self._changed_at
        if not self._askable and idle >= QUIET:
            return f"nothing has come for {QUIET} s"
        if idle >= self._idle_timeout:
            return f"nothing has come for {self._idle_timeout} s, though the channel is not known to be empty"
        return ""


class Unattended:
    """Decides when to say that messages wait and nobody receives them.

    Args:
        now: Seconds of some clock.
    """

    def __init__(self, now: float) -> None:
        self._due = now + UNATTENDED_AFTER

    def is_due(self, depth: Depth | None, now: float) -> bool:
        """Whether to say it now; depth is None if nobody knows."""
        if depth is None or not depth.waiting or depth.consumers:
            self._due = now + UNATTENDED_AFTER
            return False
        if now < self._due:
            return False
        self._due = now + UNATTENDED_AGAIN
        return True
