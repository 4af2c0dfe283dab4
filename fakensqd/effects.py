"""What a session wants done to its connection. Values only; who performs them owns the socket."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Close", "Effect", "Send"]


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Send what is queued, then close the connection."""


Effect = Send | Close
