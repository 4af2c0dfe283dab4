"""Proven: which publishes a connection's nsqd is known to take. PURE: sends nothing.

nsqd does not say how long a body may be, how long a delay, or which topics a secret allows. What it refuses costs the
connection and all that was sent behind. So a publish that goes beyond everything that was confirmed is a doubtful one.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Claim", "Proven"]


class Claim(Protocol):
    """What a request asks of nsqd's limits."""

    @property
    def largest(self) -> int:
        """Bytes of its largest message."""

    @property
    def together(self) -> int:
        """Bytes of an MPUB's body; 0: none."""

    @property
    def defer(self) -> int:
        """Milliseconds of a DPUB; 0: none."""

    @property
    def topic(self) -> str:
        """Where it publishes to; empty: it does not."""


class Proven:
    """What was confirmed so far.

    Attributes:
        largest: Bytes of the largest message.
        topics: Those published to; None: all are allowed.
    """

    __slots__ = ("_defer", "_together", "largest", "topics")

    def __init__(self) -> None:
        self.largest = 0
        self.topics: set[str] | None = None
        self._together = 0
        self._defer = 0

    def by_topic(self) -> None:
        """Doubt topics that nothing was published to."""
        self.topics = {""}

    def doubts(self, claim: Claim) -> bool:
        """Whether nsqd may refuse this."""
        return (
            claim.largest > self.largest
            or claim.together > self._together
            or claim.defer > self._defer
            or (self.topics is not None and claim.topic not in self.topics)
        )

    def proved(self, claim: Claim) -> None:
        """Note that nsqd has taken this."""
        self.largest = max(self.largest, claim.largest)
        self._together = max(self._together, claim.together)
        self._defer = max(self._defer, claim.defer)
        if self.topics is not None:
            self.topics.add(claim.topic)
