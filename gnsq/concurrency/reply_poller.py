"""Reads a socket again and again for a short time, instead of letting the event loop sleep until a reply comes."""

from __future__ import annotations

from collections.abc import Callable

from gnsq.clock import monotonic

__all__ = ["MAX_RUN_SECONDS", "MAX_SKIPPED", "POLL_SECONDS", "QUICK_REPLY", "ReplyPoller"]

# Seconds of one poll at most. To wake a sleeping processor takes 30 to 60 us on a virtual machine, which is longer than
# an nsqd nearby takes to respond. A longer poll would cost more processor time than it saves.
POLL_SECONDS = 0.0001
# Seconds. A reply that came through the event loop within this time may come within POLL_SECONDS if the loop does not
# sleep, so it is worth trying to poll for the next one.
QUICK_REPLY = 0.0003
# Seconds in which polls may follow each other before the event loop must run, so that other sockets are served, too.
MAX_RUN_SECONDS = 0.001
# If no reply has come when a poll ends, the next one is skipped. If the one after that ends in the same way, the next
# three are skipped, then the next seven, up to this number. So peers that are not quick enough cost next to nothing.
MAX_SKIPPED = 1000


class ReplyPoller:
    """Decides when to poll for a peer's reply to what was just sent to it, and polls.

    The processor time of a poll is at most the time for which the loop would otherwise sleep. There is no poll if
    replies are slow, if what follows a reply takes longer than MAX_RUN_SECONDS, or if nothing is awaited.

    Args:
        now: Returns monotonic seconds. Not a clock of the tests: the time of a manual clock does not pass in a poll.

    Attributes:
        polls: Number of polls.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.polls = 0
        self._now = now
        self._asked = 0.0  # when the last reply was awaited
        self._run_end = 0.0  # until when the event loop need not run
        self._is_quick = False  # True if the last reply was quick
        self._skip = self._left_to_skip = 0

    def record_reply(self) -> None:
        """Note that a reply has come through the event loop."""
        now = self._now()
        self._is_quick = now - self._asked < QUICK_REPLY
        self._run_end = now + MAX_RUN_SECONDS

    def poll(self, read: Callable[[], bytes]) -> bytes | None:
        """Return the reply; None if it must be awaited through the event loop.

        Args:
            read: Reads without waiting: raises BlockingIOError if there is nothing yet. Its other errors are raised.
        """
        now = self._asked = self._now()
        if not self._is_quick or now >= self._run_end:
            return None
        if self._left_to_skip:
            self._left_to_skip -= 1
            return None
        self.polls += 1
        end = now + POLL_SECONDS
        while True:
            try:
                reply = read()
            except BlockingIOError:
                if self._now() < end:
                    continue
                self._skip = self._left_to_skip = min(2 * self._skip + 1, MAX_SKIPPED)
                return None
            self._skip = 0
            return reply
