"""Message: one delivery of a message, and the one answer it gets.

Knows nothing of connections: it holds a Responder. Made per message, so slotted and plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from blinker import Signal

from gnsq.errors import NSQException
from gnsq.protocol.frames import decode_message

__all__ = ["Message", "Responder"]


class Responder(Protocol):
    """Who carries a message's answers to nsqd."""

    @property
    def nsqd(self) -> str:
        """The nsqd the message came from, ``host:port``."""

    def finish(self, message_id: bytes) -> None:
        """Send FIN."""

    def requeue(self, message_id: bytes, timeout: int, backoff: bool) -> None:
        """Send REQ; timeout in milliseconds."""

    def touch(self, message_id: bytes) -> None:
        """Send TOUCH."""


class Message:
    """A message as nsqd delivered it.

    Attributes:
        timestamp: When it was published, in nanoseconds of Unix time; the same on every delivery.
        attempts: How often nsqd has delivered it, this time included.
        id: 16 bytes; unique on one nsqd and topic only.
        body: What was published.

    Exactly one of finish() and requeue() may be called; the connection it came from may be gone by then, and nsqd
    delivers it again.
    """

    __slots__ = ("__weakref__", "_async", "_responded", "_responder", "_signals", "attempts", "body", "id", "timestamp")

    def __init__(
        self, timestamp: int, attempts: int, id: bytes, body: bytes, responder: Responder | None = None
    ) -> None:
        self.timestamp = timestamp
        self.attempts = attempts
        self.id = id
        self.body = body
        self._responder = responder
        self._responded = False
        self._async = False
        self._signals: dict[str, Signal] | None = None

    @classmethod
    def from_frame(cls, data: bytes, responder: Responder) -> Message:
        """Read the data of a message frame.

        Raises:
            NSQFrameError: If it is too short.
        """
        timestamp, attempts, message_id, body = decode_message(data)
        return cls(timestamp, attempts, message_id, body, responder)

    def __repr__(self) -> str:
        return f"<Message {self.id!r} attempts={self.attempts} of {len(self.body)} bytes>"

    @property
    def nsqd(self) -> str | None:
        """The nsqd it came from, ``host:port``; None for a message that came from none."""
        return None if self._responder is None else self._responder.nsqd

    def finish(self) -> None:
        """Tell nsqd that the message is done with (FIN).

        Raises:
            NSQException: If it was finished or requeued before.
            NSQConnectionClosed: If its connection is gone; nsqd will deliver it again.
        """
        if self._responded:
            raise NSQException("already responded")
        self._responded = True
        if self._responder is not None:
            self._responder.finish(self.id)
        if self._signals is not None:
            self._send("on_finish")

    def requeue(self, time_ms: int = 0, backoff: bool = True) -> None:
        """Give the message back to nsqd (REQ), to be delivered again after time_ms milliseconds.

        Args:
            time_ms: 0 or more; nsqd cuts it to its max-req-timeout (1 h).
            backoff: Whether this counts as a failure.

        Raises:
            ValueError, TypeError: If time_ms is negative or no int; the message is still to be answered.
            NSQException: As finish().
        """
        if not isinstance(time_ms, int):
            raise TypeError(f"requeue delay must be an int of milliseconds, not {time_ms!r}")
        if time_ms < 0:
            raise ValueError(f"requeue delay of {time_ms} ms is negative")
        if self._responded:
            raise NSQException("already responded")
        self._responded = True
        if self._responder is not None:
            self._responder.requeue(self.id, time_ms, backoff)
        if self._signals is not None:
            self._send("on_requeue", timeout=time_ms, backoff=backoff)

    def touch(self) -> None:
        """Begin the message's timeout anew (TOUCH), up to nsqd's max-msg-timeout after its delivery.

        Raises:
            NSQException: As finish().
        """
        if self._responded:
            raise NSQException("already responded")
        if self._responder is not None:
            self._responder.touch(self.id)
        if self._signals is not None:
            self._send("on_touch")

    def enable_async(self) -> None:
        """Leave the answer to whoever calls finish() or requeue() later; the handler's return no longer finishes it."""
        self._async = True

    def is_async(self) -> bool:
        """Whether enable_async() was called."""
        return self._async

    def has_responded(self) -> bool:
        """Whether it was finished or requeued."""
        return self._responded

    @property
    def on_finish(self) -> Signal:
        """Signal: finish() was called."""
        return self._signal("on_finish")

    @property
    def on_requeue(self) -> Signal:
        """Signal: requeue() was called; ``timeout`` in milliseconds, ``backoff``."""
        return self._signal("on_requeue")

    @property
    def on_touch(self) -> Signal:
        """Signal: touch() was called."""
        return self._signal("on_touch")

    def _signal(self, name: str) -> Signal:
        # Made on first access: three signals a message would cost more than the message.
        if self._signals is None:
            self._signals = {}
        return self._signals.setdefault(name, Signal())

    def _send(self, name: str, **keywords: Any) -> None:  # Any: blinker's signature
        signal = self._signals.get(name) if self._signals else None
        if signal is not None:
            signal.send(self, **keywords)


# What on_message receivers and message_handler look like.
Handler = Callable[..., object]
