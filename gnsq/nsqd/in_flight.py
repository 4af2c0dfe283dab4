"""Counts the messages in flight on one connection, and sends FIN, REQ and TOUCH.

A Message calls InFlightMessages, its Responder, to send its answer. Any OS thread may make this call. If
it is not the thread of the connection, the hub of the connection's thread executes the call later.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from gevent.event import Event

from gnsq.clock import Clock
from gnsq.concurrency.greenlets import spawn
from gnsq.concurrency.threads import OwnerThread, get_ident
from gnsq.errors import NSQConnectionClosed, NSQErrorCode, NSQException, NSQRequeueFailed, NSQTouchFailed
from gnsq.logs import ClientLog, LogOwner
from gnsq.message import Message
from gnsq.protocol import commands
from gnsq.stats import LatencyRecorder, MessageCounts
from gnsq.texts import id_text

__all__ = ["AnswerListener", "InFlightMessages", "touch_periodically"]

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_Source = TypeVar("_Source")

# Seconds. A short time_left makes TOUCH come earlier, but no sooner than this: nsqd checks timeouts only every 0.1 s.
MIN_TOUCH_INTERVAL = 0.1


class AnswerListener(Generic[_Source]):
    """Is told of the answers of connections, in their thread. This class itself ignores them.

    Attributes:
        wants_answers, wants_finishes: While True, before_answer() and on_finish() are called. A call for each message
            takes time, so a subclass sets these only while it needs the calls.
    """

    wants_answers = wants_finishes = False

    def before_answer(self, connection: _Source, count: int) -> None:
        """FIN or REQ of so many messages is sent next, and in_flight has been reduced: a lower RDY can be sent before
        it."""

    def on_finish(self, connection: _Source, message_id: bytes) -> None:
        """FIN was sent."""

    def on_requeue(self, connection: _Source, message_id: bytes, timeout: int, backoff: bool) -> None:
        """REQ was sent, with the timeout in milliseconds."""

    def requeue_after(self, attempts: int) -> int:
        """Return the delay in milliseconds of a requeue() without one. Called in any thread."""
        return 0


def _in_owner_thread(
    method: Callable[Concatenate[InFlightMessages, _P], None],
) -> Callable[Concatenate[InFlightMessages, _P], None]:
    """Decorate a method so that a call from another thread runs later in the hub of the connection's thread."""

    @functools.wraps(method)
    def call(self: InFlightMessages, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if self._owner_thread.is_current:
            method(self, *args, **kwargs)
        else:
            self.call_in_owner_thread(method, self, *args, **kwargs)

    return call


class InFlightMessages:
    """The messages in flight of one connection.

    Args:
        nsqd: Address of the nsqd.
        send: Function that queues or sends a command. Raises NSQConnectionClosed if the connection is closed.
        check: Function that raises NSQConnectionClosed if the connection is closed. Called in any thread.
        finish: Function that queues FIN, called with the message id and the number of other messages in flight;
            default: send is called with FIN.
        listener: Is told of the answers.
        source: The connection that the listener is told.
        latency: Records the times from the arrival of async messages to their answers; default: a new recorder.

    Attributes:
        in_flight: Number of delivered messages that are neither answered nor counted as timed out.
        msg_timeout: Seconds after which nsqd requeues an unanswered message; None if unknown.
        max_msg_timeout: Seconds from the delivery until TOUCH can no longer keep a message in flight; None if unknown.
        drained: Event that is set when in_flight becomes 0, and when the connection is closed.
        async_messages: Async messages that are neither answered nor timed out.
        received, timed_out: Number of delivered messages, and number of messages whose msg_timeout was over.
        refused: Number of FINs and REQs that nsqd has refused.
        refused_requeues: Number of these REQs.
    """

    def __init__(
        self,
        nsqd: str,
        send: Callable[[bytes], None],
        check: Callable[[], None],
        clock: Clock,
        owner: LogOwner | None = None,
        *,
        finish: Callable[[bytes, int], None] | None = None,
        listener: AnswerListener[Any] | None = None,  # Any: whatever the source is
        source: object = None,
        latency: LatencyRecorder | None = None,
    ) -> None:
        self.nsqd = nsqd
        self.in_flight = 0
        self.msg_timeout: float | None = None
        self.max_msg_timeout: float | None = None
        self.drained = Event()
        self.async_messages: set[Message] = set()
        self.received = 0
        self.timed_out = 0
        self.refused = 0
        self.refused_requeues = 0
        self.now = clock.monotonic
        self._listener = listener if listener is not None else AnswerListener()
        self._source = source
        self._latency = latency if latency is not None else LatencyRecorder()
        self._send = send
        self._finish = finish if finish is not None else lambda message_id, _: send(commands.finish(message_id))
        self._check = check
        self._clock = clock
        self._owner_thread = OwnerThread()
        self._thread = self._owner_thread.ident
        self._finished = 0
        self._requeued = 0
        self._touched = 0
        owner = owner if owner is not None else LogOwner("", clock.monotonic)
        self._logger = owner.log(logger, nsqd=nsqd)

    @property
    def is_other_thread(self) -> bool:
        """True if the caller runs in another thread than the connection."""
        return not self._owner_thread.is_current

    def call_in_owner_thread(self, function: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call a function soon, in a greenlet of the connection's thread.

        Raises:
            NSQConnectionClosed: If the connection is closed, or the thread has ended.
        """
        self._check()
        self._owner_thread.spawn(function, *args, **kwargs)

    @property
    def totals(self) -> MessageCounts:
        """Numbers of messages since the connection was opened: received, finished and so on."""
        return MessageCounts(self.received, self._finished, self._requeued, self._touched, self.timed_out)

    def add(self, count: int) -> None:
        """Count delivered messages."""
        self.in_flight += count
        self.received += count

    # --- answers

    def finish(self, message_id: bytes) -> None:
        """Send FIN."""
        # Called for each message: repeats the code of other methods instead of calling them, which saves 0.3 us.
        if get_ident() != self._thread:
            self.call_in_owner_thread(self.finish, message_id)
            return
        in_flight = self.in_flight = self.in_flight - 1
        listener = self._listener
        if listener.wants_answers:
            listener.before_answer(self._source, 1)
        self._finish(message_id, in_flight)
        if not in_flight:
            self.drained.set()
        self._finished += 1
        if listener.wants_finishes:
            listener.on_finish(self._source, message_id)

    @_in_owner_thread
    def finish_all(self, message_ids: Sequence[bytes]) -> None:
        """Send FIN for each message."""
        self._remove(len(message_ids))
        self._send(commands.finish_all(message_ids, check=False))
        self._finished += len(message_ids)
        if self._listener.wants_finishes:
            for message_id in message_ids:
                self._listener.on_finish(self._source, message_id)

    @_in_owner_thread
    def requeue(self, message_id: bytes, timeout: int, backoff: bool) -> None:
        """Send REQ with a timeout in milliseconds."""
        self._remove()
        self._send(commands.requeue(message_id, timeout))
        self._requeued += 1
        self._listener.on_requeue(self._source, message_id, timeout, backoff)

    def requeue_after(self, attempts: int) -> int:
        """Return the delay in milliseconds of a requeue() without one."""
        return self._listener.requeue_after(attempts)

    @_in_owner_thread
    def touch(self, message_id: bytes) -> None:
        """Send TOUCH."""
        self._send(commands.touch(message_id))
        self._touched += 1

    @contextlib.contextmanager
    def touching(self, message: Message, interval: float) -> Iterator[None]:
        """Touch a message at least every interval seconds while a block runs, in any thread."""
        stopped = Event()
        # If the connection is closed, nsqd has requeued the message already.
        with contextlib.suppress(NSQConnectionClosed):
            self._spawn_touches(message, interval, stopped)
        try:
            yield
        finally:
            if not self.is_other_thread:
                stopped.set()
            else:
                # If the owner thread has ended, the greenlet that sends TOUCH has ended, too.
                with contextlib.suppress(NSQConnectionClosed):
                    self._owner_thread.call_soon(stopped.set)

    @_in_owner_thread
    def _spawn_touches(self, message: Message, interval: float, stopped: Event) -> None:
        spawn(
            f"gnsq-touch-{message.id!r}",
            *(touch_periodically, message, interval, stopped, self._clock, self._logger),
            on_failure="the message is not touched any more",
        )

    def _remove(self, count: int = 1) -> None:
        self.in_flight -= count
        if self._listener.wants_answers:
            self._listener.before_answer(self._source, count)
        if not self.in_flight:
            self.drained.set()

    # --- timeouts and async messages

    @_in_owner_thread
    def mark_timed_out(self, message: Message) -> None:
        """Count a message as timed out and no longer in flight. The user may still answer the message later."""
        self.async_messages.discard(message)
        self.timed_out += 1
        self._remove()

    def record_refused_answer(self, error: NSQErrorCode) -> None:
        """Log nsqd's refusal of a FIN, REQ or TOUCH for a timed out message. Except for a TOUCH, add 1 to timed_out."""
        if not isinstance(error, NSQTouchFailed):
            self.timed_out += 1
            self.refused += 1
        if isinstance(error, NSQRequeueFailed):
            self.refused_requeues += 1
        self._logger.limited(
            logging.WARNING,
            error.code,
            "%s: its timeout was over before it was answered, nsqd delivers it again; let fewer messages be in flight, "
            "ask for a longer msg_timeout, or call touch()",
            error.explanation,
            extra={"message_id": id_text(error.message_id or b"")},
        )

    def track_async(self, *messages: Message) -> None:
        """Add async messages."""
        self.async_messages.update(messages)  # the interpreter does this in one step, so any thread may do it

    @_in_owner_thread
    def untrack_async(self, messages: Sequence[Message]) -> None:
        """Remove one or more async or timed out messages, and record latencies. Called before the answers are sent."""
        self.async_messages.difference_update(messages)
        # Undo mark_timed_out(): nsqd will refuse the answer, then record_refused_answer() counts the message.
        timed_out = sum(message.timed_out for message in messages)
        self.in_flight += timed_out
        self.timed_out -= timed_out
        self._latency.add_since(self.now(), [message.received for message in messages if message.is_async()])


def touch_periodically(message: Message, interval: float, stopped: Event, clock: Clock, log: ClientLog) -> None:
    """Touch a message until stopped is set, the message is answered, TOUCH can't keep it, or the connection closes.

    Args:
        interval: Seconds between two touches. A touch comes earlier if half of the message's time_left is shorter.
        log: Of the connection.
    """
    try:
        while not clock.wait(stopped, _seconds_to_touch(message, interval)) and not message.has_responded():
            if message.max_time_left == 0:
                text = (
                    "TOUCH can't keep it any longer, max_msg_timeout has passed since its delivery: "
                    "nsqd takes it back and delivers it again, while the work on it still goes on here; the answer to "
                    "this delivery will fail"
                )
                log.warning(text, message=message)
                return
            message.touch()
    except NSQException as error:
        # The message was answered after the check, or the connection was closed. Neither is an error here.
        log.debug("not touched any more: %s", error, message=message)


def _seconds_to_touch(message: Message, interval: float) -> float:
    left, longest = message.time_left, message.max_time_left
    # Touch after half of time_left at the latest: touching() may begin long after the message's arrival. But if
    # max_msg_timeout limits time_left, a touch adds no time, so no touch need come earlier than after the interval.
    if left is not None and (longest is None or left < longest):
        interval = min(interval, max(left / 2, MIN_TOUCH_INTERVAL))
    return interval if longest is None else min(interval, longest)
