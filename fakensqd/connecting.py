"""Connecting to others, by the daemon's clock."""

from __future__ import annotations

from gevent import socket

from fakensqd.clock import Clock, run_within

__all__ = ["connect"]


def connect(address: tuple[str, int], clock: Clock, seconds: float) -> socket.socket:
    """Connect to a host and port within so many seconds of a clock; the socket itself has no limit.

    Raises:
        TimeoutError: If it takes longer.
        OSError: If it can't be done.
    """
    return run_within(clock, seconds, lambda: socket.create_connection(address))
