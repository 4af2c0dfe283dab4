"""A delivered message and its answer, which is FIN or REQ. Knows no connection: a Responder sends the answer.

Methods of a message may be called from any OS thread.
"""

# The states of a message. The user answers an async message; others are answered when their handler ends or before.
#
#     open ---finish(), finish_if_unanswered(), requeue(), drop()---> answered
#       |                                                               ^
#       +---mark_timed_out()---> timed out ---the same methods----------+
#                                (nsqd has requeued the message, and refuses an answer to this delivery)

from __future__ import annotations

import itertools
import logging
import operator
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from blinker import Signal

from gnsq.concurrency.greenlets import check_is_failure
from gnsq.concurrency.threads import checked_seconds
from gnsq.errors import NSQException
from gnsq.logs import message_fields
from gnsq.options import Milliseconds, Seconds
from gnsq.protocol.commands import checked_milliseconds
from gnsq.protocol.frames import MessageFields
from gnsq.texts import counted, shown_argument

__all__ = ["Message", "Responder", "deliver", "enable_async_all", "finish_all"]

logger = logging.getLogger(__name__)

# Seconds between two TOUCHes of touching() if no interval is given and msg_timeout (default: 60 s) is unknown.
DEFAULT_TOUCH_INTERVAL = 20.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# By what a message was answered, for the error of a second answer.
_BY_RETURN = (
    "the return of its handler finished it; a handler whose message is answered later calls message.enable_async() "
    "before it returns"
)
_BY_REQUEUE = "it was requeued before"
_BY_LOSS = "its REQ could not be sent, and nsqd delivers it again"
_BY_TIMEOUT = "its timeout was over before that, and nsqd delivers it again"

_responder_of = operator.attrgetter("_responder")


class Responder(Protocol):
    """Sends the answers of messages to nsqd. InFlightMessages is a Responder. All methods may be called from any OS
    thread. requeue_after() returns the delay, in milliseconds, of a requeue() that is called without time_ms.
    """

    @property
    def nsqd(self) -> str: ...
    @property
    def msg_timeout(self) -> float | None: ...
    @property
    def max_msg_timeout(self) -> float | None: ...
    def now(self) -> float: ...
    def finish(self, message_id: bytes) -> None: ...
    def finish_all(self, message_ids: Sequence[bytes]) -> None: ...
    def requeue(self, message_id: bytes, timeout: int, backoff: bool) -> None: ...
    def requeue_after(self, attempts: int) -> int: ...
    def touch(self, message_id: bytes) -> None: ...
    def track_async(self, *messages: Message) -> None: ...
    def untrack_async(self, messages: Sequence[Message]) -> None: ...
    def mark_timed_out(self, message: Message) -> None: ...
    def touching(self, message: Message, interval: float) -> AbstractContextManager[None]: ...


class Message(MessageFields):
    """A message that nsqd has delivered.

    Call exactly one of finish() and requeue(), from any OS thread; a second call raises. If the message's connection is
    closed before that call, nsqd delivers the message again.

    Args:
        responder: Sends the answer; None for a message that no connection has delivered.

    Attributes:
        timestamp: Time of the publish, in nanoseconds of Unix time; the same on every delivery.
        attempts: Number of deliveries, this one included.
        id: 16 bytes; unique only within one topic of one nsqd.
        body: The published bytes.
        received: Time of the arrival, as the responder's now() gave it.
        timed_out: True after mark_timed_out(): a Consumer has noticed that the message's timeout is over.
    """

    __slots__ = (
        *("__weakref__", "_async", "_open", "_responder", "_answered_by", "_signals", "_touched"),
        *("timed_out", "received"),
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
        # Exists until the message is answered: an answer deletes this attribute. Since a deletion is one step of the
        # interpreter, only one of two threads that answer succeeds. A lock would double the time of the constructor.
        self._open = True
        self._async = False
        self.timed_out = False
        self._signals: dict[str, Signal] | None = None

    def __repr__(self) -> str:
        return f"<Message {self.id!r} attempts={self.attempts} of {counted(len(self.body), 'byte')}>"

    # --- facts

    @property
    def nsqd(self) -> str | None:
        """Address of the nsqd that has delivered the message, ``host:port``; None without a responder."""
        return None if self._responder is None else self._responder.nsqd

    @property
    def published_at(self) -> datetime:
        """Time of the publish in UTC: ``timestamp``, rounded down to microseconds."""
        return _EPOCH + timedelta(microseconds=self.timestamp // 1000)

    @property
    def age(self) -> float:
        """Seconds since the publish, never below 0: this host's clock now, minus that of nsqd's host at the publish."""
        return max(0.0, (time.time_ns() - self.timestamp) / 1e9)

    @property
    def time_left(self) -> float | None:
        """Seconds until nsqd requeues the unanswered message, never below 0; None if nsqd's msg_timeout is unknown.
        This client counts from the arrival or the last touch(), up to max_msg_timeout. nsqd counts from the moment at
        which it sent the message, so nsqd's timeout ends a little earlier.

        Source: nsqd channel.go TouchMessage.
        """
        if self._responder is None or self._responder.msg_timeout is None:
            return None
        left = getattr(self, "_touched", self.received) + self._responder.msg_timeout - self._responder.now()
        longest = self.max_time_left
        return max(0.0, left if longest is None else min(left, longest))

    @property
    def max_time_left(self) -> float | None:
        """Seconds until touch() can no longer keep the message in flight (max_msg_timeout); None if unknown."""
        if self._responder is None or self._responder.max_msg_timeout is None:
            return None
        return max(0.0, self.received + self._responder.max_msg_timeout - self._responder.now())

    # --- answers

    def finish(self) -> None:
        """Finish the message (FIN).

        Raises:
            NSQException: If the message was finished, requeued or dropped before.
            NSQConnectionClosed: If the message's connection is closed; nsqd will deliver the message again.
        """
        self._close()
        if self._responder is not None:
            self._responder.finish(self.id)
        if self._signals is not None:
            self._send("on_finish")

    def requeue(self, time_ms: Milliseconds | None = None, backoff: bool = True) -> None:
        """Requeue the message (REQ): nsqd delivers it again after time_ms milliseconds.

        Args:
            time_ms: 0 or more; nsqd limits it to its max-req-timeout (default: 1 h). None: the delay that the
                Consumer computes from the attempts (option requeue_delay); 0 without a Consumer.
            backoff: If True, the Consumer counts the requeue as a failure for its backoff.

        Raises:
            ValueError, TypeError: If time_ms is negative, or neither an int nor a timedelta. Then the message stays
                unanswered.
            NSQException: In the cases of finish().
        """
        if time_ms is None:
            time_ms = 0 if self._responder is None else self._responder.requeue_after(self.attempts)
        delay = checked_milliseconds("time_ms", time_ms)
        if backoff not in (True, False):
            raise TypeError(f"backoff must be True or False, not {shown_argument(backoff)}")
        self._close()
        self._answered_by = _BY_REQUEUE
        if self._responder is not None:
            try:
                self._responder.requeue(self.id, delay, backoff)
            except NSQException:
                self._answered_by = _BY_LOSS
                raise
        if self._signals is not None:
            self._send("on_requeue", timeout=delay, backoff=backoff)

    def _close(self) -> None:
        """Mark the message as answered, before its answer is sent."""
        try:
            del self._open
        except AttributeError:
            raise self._answered_twice_error() from None
        if self._responder is not None and self._is_tracked:
            self._responder.untrack_async((self,))

    @property
    def _is_tracked(self) -> bool:
        """True if the responder's untrack_async() must be called before the answer is sent."""
        return self._async or self.timed_out

    def touch(self) -> None:
        """Restart the message's timeout (TOUCH), up to nsqd's max-msg-timeout after the delivery.

        nsqd responds only if the timeout is over already: it sends E_TOUCH_FAILED, and the client sends its signal
        on_error. Raises the exceptions of finish().
        """
        if self.has_responded():
            raise self._answered_twice_error()
        if self._responder is not None:
            self._responder.touch(self.id)
            self._touched = self._responder.now()
        if self._signals is not None:
            self._send("on_touch")

    @contextmanager
    def touching(self, interval: Seconds | None = None) -> Iterator[None]:
        """Touch the message regularly while the block runs, from the connection's hub.

        Touching ends when the block ends, the message is answered or the connection is closed. It also ends at
        max_msg_timeout after the delivery: then a warning is logged, and nsqd delivers the message again while the
        block still runs. The block itself is never interrupted. While the block does not let the hub run, for example
        during a long computation, no TOUCH is sent.

            with message.touching():
                transcode(message.body)

        Args:
            interval: Seconds between two touches; default: a third of nsqd's msg_timeout, or 20 if msg_timeout is
                unknown. A touch comes earlier if half of time_left is shorter.

        Raises:
            ValueError, TypeError: If the interval is not above 0, or not a number.
        """
        seconds = None if interval is None else checked_seconds("interval", interval)
        if seconds is not None and not seconds > 0:
            raise ValueError(f"interval of {seconds} s is not above 0")
        if self._responder is None:
            yield
            return
        if seconds is None:
            seconds = (self._responder.msg_timeout or 0.0) / 3 or DEFAULT_TOUCH_INTERVAL
        with self._responder.touching(self, seconds):
            yield

    def drop(self) -> None:
        """Mark a message whose timeout is over as answered, but send no answer: nsqd delivers the message again."""
        if self.has_responded():
            return
        self._close()
        self._answered_by = _BY_TIMEOUT
        if self._responder is not None:
            self._responder.mark_timed_out(self)

    def mark_timed_out(self) -> None:
        """Count an unanswered message as timed out: its handler runs, or it is async. nsqd will refuse its answer."""
        if not self.has_responded() and not self.timed_out and self._responder is not None:
            self.timed_out = True
            self._responder.mark_timed_out(self)

    def finish_if_unanswered(self) -> bool:
        """Finish the message after its handler has returned, unless it is answered or async. Return False if the
        message is async; otherwise it is answered now."""
        # These lines repeat finish() instead of calling it. That saves 0.1 us for each message.
        if self._async:
            return False
        try:
            del self._open
        except AttributeError:
            return True
        self._answered_by = _BY_RETURN
        if self._responder is not None:
            if self.timed_out:
                self._responder.untrack_async((self,))
            self._responder.finish(self.id)
        if self._signals is not None:
            self._send("on_finish")
        return True

    def enable_async(self) -> None:
        """Make the message async: it is not finished when its handler returns. Finish or requeue it later."""
        if not self._async:
            self._async = True
            if self._responder is not None:
                self._responder.track_async(self)

    def _answered_twice_error(self) -> NSQException:
        # Most messages are finished, so finish() saves the time to store that.
        return NSQException(f"already responded: {getattr(self, '_answered_by', 'it was finished before')}")

    def is_async(self) -> bool:
        """Return True if the message was made async."""
        return self._async

    def has_responded(self) -> bool:
        """Return True if the message was finished, requeued or dropped."""
        return not hasattr(self, "_open")

    # --- signals

    @property
    def on_finish(self) -> Signal:
        """Signal: the message was finished."""
        return self._signal("on_finish")

    @property
    def on_requeue(self) -> Signal:
        """Signal: the message was requeued. Sent with ``timeout`` in milliseconds, and ``backoff``."""
        return self._signal("on_requeue")

    @property
    def on_touch(self) -> Signal:
        """Signal: the message was touched."""
        return self._signal("on_touch")

    def _signal(self, name: str) -> Signal:
        # A signal is made only when it is used: making three signals takes longer than making the message.
        if self._signals is None:
            self._signals = {}
        return self._signals.setdefault(name, Signal())

    def _send(self, name: str, **keywords: Any) -> None:  # Any: as in blinker's signature
        signal = self._signals.get(name) if self._signals else None
        if signal is not None:
            # As in gnsq.signals, which imports this module. The caller may have other messages to answer.
            try:
                signal.send(self, **keywords)
            except BaseException as error:
                check_is_failure(error)
                logger.exception("a receiver of %s of %r raised", name, self, extra=message_fields(self))


def deliver(messages: list[Message], responder: Responder, received: float) -> None:
    """Complete messages of which only the fields of MessageFields are set, as Message() does.

    Args:
        received: The responder's now() when the messages arrived.
    """
    for message in messages:
        message._responder = responder
        message.received = received
        message._open = True
        message._async = message.timed_out = False
        message._signals = None


def finish_all(messages: Iterable[Message]) -> list[Message]:
    """Finish many messages. One call for all takes a third of the time of a finish() for each.

    Returns:
        The messages that were not finished: they were answered before, or their connection is closed. If it is closed,
        nsqd delivers the messages again.

    Raises:
        TypeError: If messages is not an iterable, or one is not a Message. Then none was finished.
    """
    left: list[Message] = []
    answered: list[Message] = []
    for message in messages:
        try:
            del message._open
        except AttributeError:
            if not isinstance(message, Message):
                for each in answered:
                    each._open = True
                raise TypeError(
                    f"finish_all() takes an iterable of messages; one of them is {shown_argument(message)}"
                ) from None
            left.append(message)
        else:
            answered.append(message)
    for responder, run in _group_by_responder(answered):
        if responder is not None:
            tracked = [message for message in run if message._is_tracked]
            try:
                if tracked:
                    responder.untrack_async(tracked)
                responder.finish_all([message.id for message in run])
            except NSQException:
                left += run
                continue
        for message in [message for message in run if message._signals is not None]:
            message._send("on_finish")
    return left


def enable_async_all(messages: Iterable[Message]) -> list[Message]:
    """Make several messages async, such as all messages that one call of a handler got. Return the messages that were
    answered before: they can't become async."""
    answered: list[Message] = []
    made_async: list[Message] = []
    for message in messages:
        if message._async:
            continue
        if not hasattr(message, "_open"):
            answered.append(message)
            continue
        message._async = True
        made_async.append(message)
    for responder, run in _group_by_responder(made_async):
        if responder is not None:
            responder.track_async(*run)
    return answered


def _group_by_responder(messages: Iterable[Message]) -> list[tuple[Responder | None, list[Message]]]:
    """Group consecutive messages of the same connection."""
    return [(responder, list(run)) for responder, run in itertools.groupby(messages, _responder_of)]
