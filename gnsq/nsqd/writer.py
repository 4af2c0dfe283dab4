"""Writer: commands that wait to be sent, and the one greenlet that sends all of them at once.

Knows no answers and no frames. Nobody else touches the socket's write side, so there is no lock; but a request that
comes alone, while the greenlet sleeps and nothing else is under way, is sent at once by whoever brings it.
"""

from __future__ import annotations

from collections.abc import Callable

import gevent
from gevent.event import Event

from gnsq.nsqd.pending import PendingRequest, PendingRequests
from gnsq.transport import TcpTransport, Transport

__all__ = ["Writer"]

# Bytes in one send; each must be taken within the timeout, so that a slow peer is told from a dead one.
SEND_SIZE = 256 * 1024
# Seconds without a send behind which the next looks whether nsqd is still there.
IDLE = 1.0


class Writer:
    """Filled by any greenlet, emptied by the one that calls run().

    Args:
        now: Tells monotonic seconds.
        refuse: Called by put() and submit() when the outbox is closed; must raise.

    Attributes:
        pending: Commands that have an answer.
        sending_since: When the send under way began, by now(); None between sends.
    """

    __slots__ = (
        "_attend",
        "_closed",
        "_commands",
        "_direct",
        "_finished",
        "_flushed",
        "_now",
        "_over",
        "_parked",
        "_refuse",
        "_rest",
        "_sent_at",
        "_writer",
        "pending",
        "sending_since",
    )

    def __init__(self, now: Callable[[], float], refuse: Callable[[], None]) -> None:
        self.sending_since: float | None = None
        self.pending = PendingRequests(self._kick)
        self._now = now
        self._refuse = refuse
        # Whether put() has more to do than to queue: parked or closed. One look for both.
        self._attend = False
        self._commands: list[bytes] = []
        # Ids of messages whose FIN comes behind the commands: built for all at once, it costs a tenth. They are as nsqd
        # has sent them, so there is nothing to check.
        self._finished: list[bytes] = []
        # What is left of a send of the one who brought a request.
        self._rest = b""
        self._sent_at = 0.0
        self._over = False
        # Where that can be done: TLS and compression have their own order.
        self._direct: TcpTransport | None = None
        self._writer: gevent.Greenlet | None = None
        self._parked = False
        self._flushed = Event()
        self._closed = False

    def put(self, command: bytes) -> None:
        """Queue a command that has no answer; never waits."""
        if self._finished:
            self._build_finishes()
        self._commands.append(command)
        if self._attend:
            self._attended()

    def finish(self, message_id: bytes) -> None:
        """Queue the FIN of a message; never waits."""
        self._finished.append(message_id)
        if self._attend:
            self._attended()

    def _attended(self) -> None:
        if self._closed:
            self._drop()
            self._refuse()
        self._wake()

    def _drop(self) -> None:
        self._commands.clear()
        self._finished.clear()

    def _build_finishes(self) -> None:
        self._commands.append(b"FIN " + b"\nFIN ".join(self._finished) + b"\n")
        self._finished.clear()

    def submit(self, request: PendingRequest) -> None:
        """Queue a command that has an answer; never waits."""
        if not self._attend:
            self.pending.put(request)
            return
        if self._closed:
            self._refuse()
        alone = self._direct if not self.pending else None
        self.pending.put(request)
        if alone is not None:
            self._send_now(alone)
        elif not self.pending.blocked:
            self._wake()

    def run(self, transport: Transport) -> None:
        """Send what is queued, joined into sends of up to SEND_SIZE, as it comes; returns when the outbox is closed.

        Raises:
            NSQSocketError: If a send fails.
        """
        requests = self.pending
        self._direct = transport if isinstance(transport, TcpTransport) else None
        while not self._closed:
            if self._finished:
                self._build_finishes()
            data = self._rest + b"".join(self._commands)
            self._rest = b""
            self._commands.clear()
            if requests.unsent and not self._is_over():
                data += requests.next_batch(SEND_SIZE)
            if not data:
                self._park()
                continue
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
        """Drop what is queued, and end run() and all who wait; the requests are whoever's who closes."""
        self._closed = True
        self._drop()
        self._flushed.set()
        if self._parked:
            self._wake()
        self._attend = True

    def _send_now(self, transport: TcpTransport) -> None:
        """Save a lone publish the way over the writer: 15 us of 60."""
        if self._is_over():
            return
        data = self.pending.next_batch(SEND_SIZE)
        taken = transport.send_nowait(data)
        if taken < len(data):
            self._rest = data[taken:]
            self._wake()

    def _is_over(self) -> bool:
        """Whether nsqd has closed, and the reader has not come to that, as where the hub did not run for long. It will,
        and what has not been sent by then is known not to be executed."""
        now, before = self._now(), self._sent_at
        self._sent_at = now
        if now - before > IDLE and self._direct is not None:
            self._over = self._direct.peer_has_closed()
        return self._over

    # Parked in the hub and woken by one callback: a lone publish is faster by 3 us than with an Event.

    def _park(self) -> None:
        self._writer = gevent.getcurrent()
        self._parked = self._attend = True
        self._flushed.set()
        gevent.get_hub().switch()  # until put(), submit() or close()

    def _wake(self) -> None:
        assert self._writer is not None  # it is parked
        self._parked = self._attend = False
        gevent.get_hub().loop.run_callback(self._writer.switch)

    def _kick(self) -> None:
        """Look again whether a request may be sent."""
        if self._parked and not self._closed and self.pending.unsent:
            self._wake()
