"""Sends the commands of one connection. The commands are queued, and one greenlet sends all queued commands together.

After the handshake only this module writes to the socket, so no lock is needed. If the greenlet sleeps and no other
request is pending, submit() sends its request in the caller's greenlet, unless there is TLS or compression.
"""

from __future__ import annotations

from collections.abc import Callable

import gevent
from gevent.event import Event

from gnsq.nsqd.pending import PendingRequest, PendingRequests
from gnsq.protocol.commands import finish_all
from gnsq.transport import TcpTransport, Transport

__all__ = ["Writer"]

# Limit of one send in bytes. A send must end within the timeout, even if the network is slow.
SEND_SIZE = 256 * 1024
# Limits of the rounds of the event loop in which the greenlet waits for further FINs, and of the FINs of one wait.
# With 200 messages in flight and handlers that yield, a message takes 4.2 us of CPU time in place of 5.3 us.
FINISH_ROUNDS, MAX_FINISHES = 4, 128
# Seconds. If no request was sent for longer, the next request is sent only if nsqd has not closed the connection.
PEER_CHECK_AFTER = 1.0


class Writer:
    """Sends the commands of one connection. Any greenlet of the hub may queue commands; one greenlet calls run().

    Args:
        now: Returns monotonic seconds.
        refuse: Function that send(), finish() and submit() call after close(). It must raise an exception.

    Attributes:
        pending: Pending requests: commands that have no response yet.
        sending_since: Time of now() when the current send began; None if nothing is being sent.
    """

    def __init__(self, now: Callable[[], float], refuse: Callable[[], None]) -> None:
        self.sending_since: float | None = None
        self.pending = PendingRequests(self._wake_if_sendable)
        self._now = now
        self._refuse = refuse
        # Messages in flight when finish() was called last. Their FINs may follow soon.
        self._unfinished = 0
        # True while the greenlet sleeps: a new command must wake it. True after close(): a new command must be refused.
        self._needs_attention = False
        self._commands: list[bytes] = []
        # Ids for which FIN must be sent after _commands. To build all FINs together takes a tenth of the time.
        self._finished_ids: list[bytes] = []
        # The unsent rest of what _send_now() has sent in part.
        self._unsent_tail = b""
        self._sent_at = 0.0
        # The transport, if it can send without waiting; None with TLS or compression, or after nsqd has closed it.
        self._direct_transport: TcpTransport | None = None
        # The same while the greenlet sleeps, so that others may send; None while only run() sends.
        self._idle_transport: TcpTransport | None = None
        self._peer_closed = False
        self._greenlet: gevent.Greenlet | None = None
        self._flushed = Event()
        self._closed = False

    @property
    def unsent(self) -> int:
        """Number of queued commands that have no response and are not being sent yet."""
        return len(self._commands) + len(self._finished_ids)

    @property
    def is_idle(self) -> bool:
        """True if all that may be sent now is sent, and what comes next can be sent without waiting."""
        return self._idle_transport is not None

    def send(self, command: bytes) -> None:
        """Queue a command that has no response. This method does not wait."""
        if self._finished_ids:
            self._build_finishes()
        self._commands.append(command)
        if self._needs_attention:
            self._attend()

    def finish(self, message_id: bytes, unfinished: int = 0) -> None:
        """Queue FIN for a message id. This method does not wait.

        If no other message is in flight whose FIN could share the send, FIN is sent at once: without waking the
        writer's greenlet, a message takes 29 us of CPU time in place of 36 us if one is in flight.

        Args:
            unfinished: Number of the other messages in flight.
        """
        self._unfinished = unfinished
        self._finished_ids.append(message_id)
        if self._needs_attention:
            if unfinished or self._idle_transport is None:
                self._attend()
            else:
                data = finish_all(self._finished_ids, check=False)
                self._finished_ids.clear()
                self._send_now(self._idle_transport, data)

    def _attend(self) -> None:
        if self._closed:
            self._discard()
            self._refuse()
        self._wake()

    def _discard(self) -> None:
        self._commands.clear()
        self._finished_ids.clear()

    def _build_finishes(self) -> None:
        self._commands.append(finish_all(self._finished_ids, check=False))
        self._finished_ids.clear()

    def hold(self) -> bool:
        """Let the commands until release() share a send. The hub calls both, so nothing but handlers runs between them.

        Return False if the greenlet does not sleep: then it sends them soon, and release() must not be called.
        """
        if self._idle_transport is None:
            return False
        self._needs_attention = False
        return True

    def release(self) -> None:
        """Send the commands since hold(), without waking the greenlet for them."""
        transport = self._idle_transport
        if transport is None:
            return  # the greenlet was woken meanwhile: what was held did not fit into the socket, or close()
        self._needs_attention = True
        if self.pending.unsent:
            self._wake()
            return
        if self._finished_ids:
            self._build_finishes()
        if self._commands:
            data = b"".join(self._commands)
            self._commands.clear()
            self._send_now(transport, data)
        self._flushed.set()

    def submit(self, request: PendingRequest) -> None:
        """Queue a request, or send it now if no other is pending. This method does not wait.

        Sending it without waking the writer's greenlet saves a quarter of a publish's CPU time.
        """
        pending, transport = self.pending, self._idle_transport
        if transport is not None and not pending.sent and not pending.unsent:
            now = self._now()
            if now < request.deadline and not (now - self._sent_at > PEER_CHECK_AFTER and self._peer_has_closed(now)):
                self._sent_at = now
                data = request.encode()
                pending.put_sent(request)
                self._send_now(transport, data)
                return
        if self._needs_attention:
            if self._closed:
                self._refuse()
            if not pending.blocked:
                self._wake()
        pending.put(request)

    def run(self, transport: Transport) -> None:
        """Send queued commands, joined into sends of up to SEND_SIZE, until the writer is closed.

        Raises:
            NSQSocketError: If a send fails.
        """
        pending = self.pending
        self._direct_transport = transport if isinstance(transport, TcpTransport) else None
        while not self._closed:
            if self._finished_ids:
                self._wait_for_finishes()
                if self._closed:
                    return
                if self._finished_ids:  # send() may have built them meanwhile
                    self._build_finishes()
            data = self._unsent_tail + b"".join(self._commands)
            self._unsent_tail = b""
            self._commands.clear()
            if pending.unsent and not self._peer_has_closed(now := self._now()):
                data += pending.next_batch(SEND_SIZE, now)
            if not data:
                self._sleep()
                continue
            for start in range(0, len(data), SEND_SIZE):
                self.sending_since = self._now()
                transport.sendall(data[start : start + SEND_SIZE])
            self.sending_since = None

    def _wait_for_finishes(self) -> None:
        """Let handlers that have yielded finish their messages, too, so that one send has more FINs. Do so only while
        messages are in flight and each of these rounds brings FINs."""
        count = 1
        for _ in range(FINISH_ROUNDS):
            if not count < len(self._finished_ids) < MAX_FINISHES or not self._unfinished:
                return
            count = len(self._finished_ids)
            gevent.sleep(0)

    def wait_flushed(self) -> None:
        """Wait until all commands, and the requests that may be sent now, are sent, or the writer is closed."""
        while not self._needs_attention:
            self._flushed.clear()
            self._flushed.wait()

    def close(self) -> None:
        """Discard queued commands, and end run() and wait_flushed(). The caller must fail pending requests."""
        self._discard()
        if not self._closed and (self._needs_attention or self._idle_transport is not None):
            self._wake()
        self._closed = self._needs_attention = True
        self._flushed.set()

    def _send_now(self, transport: TcpTransport, data: bytes) -> None:
        """Send data while the greenlet sleeps. If the buffer of the socket is full, the greenlet sends the rest."""
        sent = transport.send_nowait(data)
        if sent < len(data):
            self._unsent_tail = data[sent:]
            self._wake()

    def _peer_has_closed(self, now: float) -> bool:
        """Return True if nsqd has closed the connection and the reader has not noticed that yet: the hub was blocked.

        Checked only after PEER_CHECK_AFTER without requests. If True, no request must be sent: the reader will notice.
        """
        before, self._sent_at = self._sent_at, now
        transport = self._direct_transport
        if now - before > PEER_CHECK_AFTER and transport is not None and transport.peer_has_closed():
            self._peer_closed, self._direct_transport = True, None
        return self._peer_closed

    # The greenlet sleeps by a switch to the hub, and a callback wakes it. With an Event, a publish takes 3 us longer.

    def _sleep(self) -> None:
        self._greenlet = gevent.getcurrent()
        self._needs_attention = True
        self._idle_transport = self._direct_transport
        self._flushed.set()
        gevent.get_hub().switch()  # returns after _wake()

    def _wake(self) -> None:
        assert self._greenlet is not None  # the greenlet sleeps, so it has started
        self._needs_attention = False
        self._idle_transport = None
        gevent.get_hub().loop.run_callback(self._greenlet.switch)

    def _wake_if_sendable(self) -> None:
        if self._needs_attention and not self._closed and self.pending.unsent:
            self._wake()
