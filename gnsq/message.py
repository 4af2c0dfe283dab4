"""Message: one delivery of a message, and the one answer it gets.

Knows nothing of connections: it holds a Responder. Made per message, so slotted and plain, and without a lock: its
methods may be called from any OS thread, and the Responder carries what they say to where it belongs.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from blinker import Signal

from gnsq.errors import NSQException
from gnsq.protocol.frames import MESSAGE, MESSAGE_FRAME, decode_message
from gnsq.texts import counted

__all__ = ["Message", "Responder", "enable_async_all", "finish_all", "read_messages"]

# How often touching() sends TOUCH to an nsqd that has not said its msg_timeout, seconds; its default is 60.
UNKNOWN_TIMEOUT_INTERVAL = 20.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_unpack_frame = MESSAGE_FRAME.unpack_from
_FRAME_HEADER_SIZE = MESSAGE_FRAME.size
_new = object.__new__
_responder_of = operator.attrgetter("_responder")


def _nothing() -> None:
    """Do nothing."""


class Responder(Protocol):
    """Who carries a message's answers to nsqd. All of it may be asked and called from any OS thread.

    One with ``requeue_after(attempts)`` says after how many milliseconds a message comes again that is requeued without
    a delay; without, it comes again at once.
    """

    @property
    def nsqd(self) -> str:
        """The nsqd the message came from, ``host:port``."""

    @property
    def msg_timeout(self) -> float | None:
        """Seconds until nsqd takes an unanswered message back; None if it did not say."""

    @property
    def max_msg_timeout(self) -> float | None:
        """Seconds after its delivery beyond which TOUCH can't keep a message; None if nsqd did not say."""

    def now(self) -> float:
        """Tell the connection's monotonic time, seconds."""

    def finish(self, message_id: bytes) -> None:
        """Send FIN."""

    def finish_all(self, message_ids: Sequence[bytes]) -> None:
        """Send FIN for each."""

    def requeue(self, message_id: bytes, timeout: int, backoff: bool) -> None:
        """Send REQ; timeout in milliseconds."""

    def touch(self, message_id: bytes) -> None:
        """Send TOUCH."""

    def track_async(self, *messages: Message) -> None:
        """Take note of messages that are answered later, by whomever."""

    def untrack_async(self, message: Message, /) -> None:
        """Take note that such a message was answered."""

    def untrack_async_all(self, messages: Sequence[Message], /) -> None:
        """Take note that some were answered."""

    def remove_in_flight(self, message: Message) -> None:
        """Take note that nsqd has taken a message back, unanswered, and that nobody will answer it any more."""

    def mark_timed_out(self, message: Message, /) -> None:
        """Take note that nsqd has taken a message back, while somebody still works on it."""

    def start_periodic_touch(self, message: Message, interval: float) -> Callable[[], None]:
        """Touch a message every interval seconds, in the connection's hub; gives what ends it, which never raises.

        Raises:
            NSQException: If the connection is gone.
        """


class Message:
    """A message as nsqd delivered it.

    Attributes:
        timestamp: When it was published, in nanoseconds of Unix time; the same on every delivery.
        attempts: How often nsqd has delivered it, this time included.
        id: 16 bytes; unique on one nsqd and topic only.
        body: What was published.
        received: The connection's monotonic time at its arrival, seconds.
        timed_out: Whether it was seen that nsqd has taken it back.

    Exactly one of finish() and requeue() may be called, from any OS thread: of two at once, one raises. The connection
    it came from may be gone by then, and nsqd delivers it again.

    Args:
        responder: Who carries the answer; None for a message that came from nowhere.
        received: The responder's now() at its arrival.
    """

    __slots__ = (
        *("__weakref__", "_async", "_tracked", "_open", "_responder", "_settled", "_signals", "_touched"),
        *("attempts", "body", "id", "timed_out", "received", "timestamp"),
    )

    def __init__(
        self,
        timestamp: int,
        attempts: int,
        id: bytes,
        body: bytes,
        responder: Responder | None = None,
        received: float = 0.0,
    ) -> None:
        self.timestamp = timestamp
        self.attempts = attempts
        self.id = id
        self.body = body
        self._responder = responder
        self.received = received
        # There until the message is answered. Deleting it is one step for the interpreter, so of two threads exactly
        # one succeeds; a lock would cost as much as the rest of the message.
        self._open = True
        self._async = False
        # Whether the responder must be told of its answer.
        self._tracked = False
        self.timed_out = False
        self._signals: dict[str, Signal] | None = None

    def __repr__(self) -> str:
        return f"<Message {self.id!r} attempts={self.attempts} of {counted(len(self.body), 'byte')}>"

    # --- facts

    @property
    def nsqd(self) -> str | None:
        """The nsqd it came from, ``host:port``; None for a message that came from none."""
        return None if self._responder is None else self._responder.nsqd

    @property
    def published_at(self) -> datetime:
        """When it was published, in UTC; microseconds, of the nanoseconds in ``timestamp``."""
        return _EPOCH + timedelta(microseconds=self.timestamp // 1000)

    @property
    def age(self) -> float:
        """Seconds since it was published, by the wall clocks of nsqd's host and this one; 0 if those disagree."""
        return max(0.0, (time.time_ns() - self.timestamp) / 1e9)

    @property
    def time_left(self) -> float | None:
        """Seconds until nsqd takes the message back and delivers it again; None if nsqd did not say its msg_timeout.

        Counted from the arrival, or from the last touch() but not beyond max_msg_timeout; never below 0. nsqd counts
        from sending, so it is a little ahead of this.

        Source: nsqd channel.go TouchMessage.
        """
        if self._responder is None or self._responder.msg_timeout is None:
            return None
        left = getattr(self, "_touched", self.received) + self._responder.msg_timeout - self._responder.now()
        longest = self.max_time_left
        return max(0.0, left if longest is None else min(left, longest))

    @property
    def max_time_left(self) -> float | None:
        """Seconds for which touch() can keep the message, until max_msg_timeout after its arrival; None if unknown."""
        if self._responder is None or self._responder.max_msg_timeout is None:
            return None
        return max(0.0, self.received + self._responder.max_msg_timeout - self._responder.now())

    # --- answers

    def finish(self) -> None:
        """Tell nsqd that the message is done with (FIN).

        Raises:
            NSQException: If it was finished or requeued before.
            NSQConnectionClosed: If its connection is gone; nsqd will deliver it again.
        """
        try:
            del self._open
        except AttributeError:
            raise self._refusal() from None
        if self._tracked:
            self._untrack()
        if self._responder is not None:
            self._responder.finish(self.id)
        if self._signals is not None:
            self._send("on_finish")

    def requeue(self, time_ms: int | None = None, backoff: bool = True) -> None:
        """Give the message back to nsqd (REQ), to be delivered again after time_ms milliseconds.

        Args:
            time_ms: 0 or more; nsqd cuts it to its max-req-timeout (1 h). Default: for a message that a Consumer
                delivered, the delay that it computes from the attempts when a handler raises (its requeue_delay, or
                requeue_initial and so on); else 0.
            backoff: Whether this counts as a failure.

        Raises:
            ValueError, TypeError: If time_ms is negative or no int; the message is still to be answered.
            NSQException: As finish().
        """
        if time_ms is None:
            requeue_after = getattr(self._responder, "requeue_after", None)
            time_ms = 0 if requeue_after is None else requeue_after(self.attempts)
        if not isinstance(time_ms, int):
            raise TypeError(f"requeue delay must be an int of milliseconds, not {time_ms!r}")
        if time_ms < 0:
            raise ValueError(f"requeue delay of {time_ms} ms is negative")
        try:
            del self._open
        except AttributeError:
            raise self._refusal() from None
        if self._tracked:
            self._untrack()
        if self._responder is not None:
            self._responder.requeue(self.id, time_ms, backoff)
        if self._signals is not None:
            self._send("on_requeue", timeout=time_ms, backoff=backoff)

    def touch(self) -> None:
        """Begin the message's timeout anew (TOUCH), up to nsqd's max-msg-timeout after its delivery.

        nsqd answers nothing; where it refuses, because its timeout has ended, E_TOUCH_FAILED comes as an event of the
        connection.

        Raises:
            NSQException: As finish().
        """
        if self.has_responded():
            raise self._refusal()
        if self._responder is not None:
            self._responder.touch(self.id)
            self._touched = self._responder.now()
        if self._signals is not None:
            self._send("on_touch")

    @contextmanager
    def touching(self, interval: float | None = None) -> Iterator[None]:
        """Keep the message alive while the block runs: touch it every so often, from the connection's hub.

        It ends with the block, with the answer, with the connection, and at max_msg_timeout after the delivery: then
        a warning is logged, and nsqd delivers the message again while the block still runs. The block itself is
        never broken off. A block that does not let the hub run (a computation outside of a thread pool) keeps the
        touches from being sent, too.

            with message.touching():
                transcode(message.body)

        Args:
            interval: Seconds; default: a third of nsqd's msg_timeout, 20 where that is not known. The first touch
                comes earlier where little time is left.

        Raises:
            ValueError: If the interval is not above 0.
        """
        if interval is not None and not interval > 0:
            raise ValueError(f"touching interval of {interval} s is not above 0")
        stop = self._start_periodic_touch(interval)
        try:
            yield
        finally:
            stop()

    def _start_periodic_touch(self, interval: float | None) -> Callable[[], None]:
        if self._responder is None:
            return _nothing
        if interval is None:
            timeout = self._responder.msg_timeout
            interval = timeout / 3 if timeout and timeout > 0 else UNKNOWN_TIMEOUT_INTERVAL
        try:
            return self._responder.start_periodic_touch(self, interval)
        except NSQException:
            # The connection is gone: there is nobody to keep the message from.
            return _nothing

    def drop(self) -> None:
        """Take the message as one whose timeout is over: nothing is sent, nsqd delivers it again. For who holds
        messages back; it counts as answered."""
        if self.has_responded():
            return
        del self._open
        if self._tracked:
            self._untrack()
        if self._responder is not None:
            self._responder.remove_in_flight(self)

    def mark_timed_out(self) -> None:
        """Take the message as one that nsqd has taken back though somebody works on it: it no longer counts as in
        flight, and may still be answered, which nsqd refuses."""
        if not self.has_responded() and not self.timed_out and self._responder is not None:
            self._tracked = self.timed_out = True
            self._responder.mark_timed_out(self)

    def finish_if_unanswered(self) -> bool:
        """Finish the message, unless it was answered or is answered later; whether it is answered now.

        For who has called a handler that returned. Raises as finish(), but for a message that was answered.
        """
        # Written out, not put together: it is called for each message, and this way costs 0.1 us less.
        if self._async:
            return False
        try:
            del self._open
        except AttributeError:
            return True
        self._settled = True
        if self._tracked:
            self._untrack()
        if self._responder is not None:
            self._responder.finish(self.id)
        if self._signals is not None:
            self._send("on_finish")
        return True

    def enable_async(self) -> None:
        """Leave the answer to whoever calls finish() or requeue() later; the handler's return no longer finishes it."""
        if not self._async:
            self._async = self._tracked = True
            if self._responder is not None:
                self._responder.track_async(self)

    def _refusal(self) -> NSQException:
        """Build the error of a second answer."""
        if hasattr(self, "_settled"):
            return NSQException(
                "already responded: the return of its handler finished it; a handler whose message is answered later "
                "calls message.enable_async() before it returns"
            )
        return NSQException("already responded")

    def _untrack(self) -> None:
        if self._responder is not None:
            self._responder.untrack_async(self)

    def is_async(self) -> bool:
        """Whether enable_async() was called."""
        return self._async

    def has_responded(self) -> bool:
        """Whether it was finished or requeued."""
        return not hasattr(self, "_open")

    # --- signals

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


def read_messages(
    messages: list[Message],
    responder: Responder,
    received: float,
    data: bytes,
    start: int,
    max_size: int,
    large: bytes | None = None,
) -> int:
    """Read message frames from a chunk, up to the first that is none, is not all here, or is not in order.

    Args:
        messages: Takes them in.
        received: The responder's now() when the chunk arrived.
        start: Where the first begins, which must be whole.
        max_size: The largest size that a frame may announce.
        large: The body of the only message, if data ends before it: so it is not copied.

    Returns:
        Where it stopped, behind the last one that was read.

    Raises:
        NSQFrameError: If the first is too short for a message.
    """
    # What FrameDecoder.feed(), decode_message() and Message() do, written out: it is the largest part of what a message
    # costs, and this way 0.5 us of 0.9.
    append = messages.append
    first, end = start, len(data)
    if large is not None:
        timestamp, attempts, message_id, _ = decode_message(data[start + 8 :])
        append(Message(timestamp, attempts, message_id, large, responder, received))
        return end
    while end - start >= _FRAME_HEADER_SIZE:
        size, kind, timestamp, attempts, message_id = _unpack_frame(data, start)
        stop = start + 4 + size
        body = start + _FRAME_HEADER_SIZE
        if kind != MESSAGE or size > max_size or not body <= stop <= end:
            break
        message = _new(Message)
        message.timestamp = timestamp
        message.attempts = attempts
        message.id = message_id
        message.body = data[body:stop]
        message._responder = responder
        message.received = received
        message._open = True
        message._async = message._tracked = message.timed_out = False
        message._signals = None
        append(message)
        start = stop
    if start == first:
        size = int.from_bytes(data[start : start + 4])
        decode_message(data[start + 8 : start + 4 + size])  # raises
    return start


def finish_all(messages: Iterable[Message]) -> list[Message]:
    """Finish many messages at once, for a third of what it costs one by one.

    Returns:
        Those that were not finished: they were answered before, or their connection is gone and nsqd delivers them
        again.
    """
    left: list[Message] = []
    answered: list[Message] = []
    for message in messages:
        try:
            del message._open
        except AttributeError:
            left.append(message)
        else:
            answered.append(message)
    for responder, run in _group_by_responder(answered):
        if responder is not None:
            noted = [message for message in run if message._tracked]
            try:
                if noted:
                    responder.untrack_async_all(noted)
                responder.finish_all([message.id for message in run])
            except NSQException:
                left += run
                continue
        for message in [message for message in run if message._signals is not None]:
            message._send("on_finish")
    return left


def enable_async_all(messages: Iterable[Message]) -> list[Message]:
    """Leave the answers to whoever gives them later, as enable_async(); for who has let many be handled at once.

    Returns:
        Those that were answered before, and not asynchronously.
    """
    answered: list[Message] = []
    held: list[Message] = []
    for message in messages:
        if message._async:
            continue
        if not hasattr(message, "_open"):
            answered.append(message)
            continue
        message._async = message._tracked = True
        held.append(message)
    for responder, run in _group_by_responder(held):
        if responder is not None:
            responder.track_async(*run)
    return answered


def _group_by_responder(messages: Iterable[Message]) -> list[tuple[Responder | None, list[Message]]]:
    """Split messages into runs that came over one connection."""
    return [(responder, list(run)) for responder, run in itertools.groupby(messages, _responder_of)]
