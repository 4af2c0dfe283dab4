"""Outbox: commands that wait to be sent, and the one greenlet that sends all of them at once.

Knows no replies and no frames. Nobody else touches the socket's write side, so there is no lock.
"""

from __future__ import annotations

from collections.abc import Callable

import gevent
from gevent.event import Event

from gnsq.transport import Transport

__all__ = ["Outbox"]

# Bytes in one send; each must be taken within the timeout, so that a slow peer is told from a dead one.
SEND_SIZE = 256 * 1024


class Outbox:
    """Filled by any greenlet, emptied by the one that calls run().

    Args:
        now: Tells monotonic seconds.
        refuse: Called by put() when the outbox is closed; must raise.

    Attributes:
        sending_since: When the send under way began, by now(); None between sends.
    """

    __slots__ = (
        "_attend",
        "_closed",
        "_commands",
        "_flushed",
        "_now",
        "_parked",
        "_refuse",
        "_writer",
        "sending_since",
    )

    def __init__(self, now: Callable[[], float], refuse: Callable[[], None]) -> None:
        self.sending_since: float | None = None
        self._now = now
        self._refuse = refuse
        # Whether put() has more to do than to queue: parked or closed. One look for both.
        self._attend = False
        self._commands: list[bytes] = []
        self._writer: gevent.Greenlet | None = None
        self._parked = False
        self._flushed = Event()
        self._closed = False

    def put(self, command: bytes) -> None:
        """Queue a command; never waits."""
        self._commands.append(command)
        if self._attend:
            if self._closed:
                self._commands.clear()
                self._refuse()
            self._wake()

    def run(self, transport: Transport) -> None:
        """Send what is queued, joined into sends of up to SEND_SIZE, as it comes; returns when the outbox is closed.

        Raises:
            NSQSocketError: If a send fails.
        """
        commands = self._commands
        while not self._closed:
            if not commands:
                self._park()
                continue
            data = b"".join(commands)
            commands.clear()
            for start in range(0, len(data), SEND_SIZE):
                self.sending_since = self._now()
                transport.sendall(data[start : start + SEND_SIZE])
            self.sending_since = None

    def wait_flushed(self) -> None:
        """Wait until all that is queued has been sent, or the outbox is closed."""
        while not self._parked and not self._closed:
            self._flushed.clear()
            self._flushed.wait()

    def close(self) -> None:
        """Drop what is queued, and end run() and all who wait."""
        self._closed = True
        self._commands.clear()
        self._flushed.set()
        if self._parked:
            self._wake()
        self._attend = True

    # Parked in the hub and woken by one callback: a lone publish is faster by 3 us than with an Event.

    def _park(self) -> None:
        self._writer = gevent.getcurrent()
        self._parked = self._attend = True
        self._flushed.set()
        gevent.get_hub().switch()  # until put() or close()

    def _wake(self) -> None:
        assert self._writer is not None  # it is parked
        self._parked = self._attend = False
        gevent.get_hub().loop.run_callback(self._writer.switch)
