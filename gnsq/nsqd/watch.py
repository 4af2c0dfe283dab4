"""When nsqd is dead to us: silent for too long, or no longer reading. Decides only: reads no clock, closes nothing."""

from __future__ import annotations

from gnsq.errors import NSQConnectionClosed, NSQException, NSQTimeout

__all__ = ["STALL", "Watch"]

# Seconds between two looks at least.
SHORTEST = 0.01
# A greenlet that wakes this much later than it asked for was held up by our own process, not by the peer.
STALL = 1.0


class Watch:
    """Told the time whenever its pause is over; what our own stalls cost is not held against nsqd.

    Args:
        timeout: Of a send, in seconds.
        heartbeat_interval: Seconds, two of which nsqd may be silent for; 0 without heartbeats.
    """

    def __init__(self, timeout: float, heartbeat_interval: float) -> None:
        self._interval = heartbeat_interval
        self._timeout = timeout
        self._pause = min(timeout, self._interval or timeout) / 2
        # Up to here silence counts for nothing.
        self._excused = 0.0
        self._look_due = 0.0

    def begin(self, now: float) -> None:
        """Take note of the time of the first pause."""
        self._look_due = self._excused = now

    def pause(self, now: float, last_read: float) -> float:
        """Say how many seconds later to look again: where silence goes on, just when it has lasted too long."""
        left = max(last_read, self._excused) + 2 * self._interval - now if self._interval else self._pause
        self._look_due = now + max(min(self._pause, left), SHORTEST)
        return self._look_due - now

    def verdict(self, now: float, last_read: float, sending_since: float | None) -> NSQException | None:
        """Say why the connection must end, None if it need not.

        Args:
            last_read: When something came last.
            sending_since: When the send under way began; None if there is none.
        """
        if now > self._look_due + STALL:
            self._excused = self._look_due = now
        silence = now - max(last_read, self._excused)
        if self._interval and silence >= 2 * self._interval:
            return NSQConnectionClosed(f"no word from nsqd for {silence:.0f} s, 2 heartbeat intervals")
        waited = 0.0 if sending_since is None else now - max(sending_since, self._excused)
        if waited > self._timeout:
            return NSQTimeout(f"nsqd has not read what was sent for {waited:.0f} s, timeout is {self._timeout} s")
        return None
