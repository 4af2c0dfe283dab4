"""Messages in flight on one connection, and the way of FIN, REQ and TOUCH to its writer.

Is the Responder of the connection's messages, so it may be called from any OS thread: what comes from another is done
in the connection's own hub.

PeriodicTouch: keeps one message from timing out while somebody works on it.

Owns the greenlet that sends TOUCH. Asks the message how much time is left, and reads no wire.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import gevent
from gevent.event import Event

from gnsq.clock import Clock
from gnsq.concurrency.threads import OwnerThread, get_ident
from gnsq.errors import NSQConnectionClosed, NSQErrorCode, NSQException, NSQTouchFailed
from gnsq.logs import LogOwner
from gnsq.message import Message
from gnsq.protocol import commands
from gnsq.stats import LatencyRecorder, MessageCounts
from gnsq.texts import without_address

__all__ = [
    "InFlightMessages",
    "PeriodicTouch",
]

logger = logging.getLogger(__name__)


# However little time is left, it does not hurry more than this, seconds: nsqd looks for timeouts every 0.1 s.
SHORTEST_PAUSE = 0.1


class PeriodicTouch:
    """Touches a message until it is stopped, the message is answered, its connection is gone or TOUCH is of no use.

    Belongs to the hub that calls start().

    Args:
        interval: Seconds between two touches. One comes earlier than that when half of the time left has passed.
        clock: What to sleep by.
        subject: How log lines begin: which nsqd has delivered the message, and to which consumer.
    """

    def __init__(self, message: Message, interval: float, clock: Clock, subject: str) -> None:
        self._message = message
        self._subject = subject
        self._interval = interval
        self._clock = clock
        self._greenlet: gevent.Greenlet | None = None
        self._stopped = False
        self._asleep = False

    def start(self) -> None:
        """Begin; once, and never behind stop()."""
        if self._greenlet is None and not self._stopped:
            self._greenlet = gevent.spawn(self._run)
            self._greenlet.name = f"gnsq-touch-{self._message.id!r}"

    def stop(self) -> None:
        """Send no more TOUCH from here on. Does not wait; may be repeated; for any greenlet of the hub."""
        self._stopped = True
        # Only out of its sleep: a send must not be cut short.
        if self._greenlet is not None and self._asleep:
            self._greenlet.kill(block=False)

    @property
    def ended(self) -> bool:
        """Whether it has been started and no greenlet of it is left."""
        return self._greenlet is not None and bool(self._greenlet.dead)

    def _run(self) -> None:
        try:
            self._touch_on()
        except NSQException as error:
            # Answered in this very moment, or the connection is gone; both are told elsewhere.
            logger.debug("%s: message %s: not touched any more: %s", self._subject, self._message.id, error)
        except Exception:  # top of a greenlet: a receiver of on_touch may raise anything
            logger.exception("%s: message %s: not touched any more", self._subject, self._message.id)

    def _touch_on(self) -> None:
        message = self._message
        while not self._stopped:
            self._asleep = True
            self._clock.sleep(self._pause())
            self._asleep = False
            if self._stopped or message.has_responded():
                return
            if message.max_time_left == 0:
                logger.warning(
                    "%s: message %s: TOUCH can't keep it any longer, max_msg_timeout has passed since its delivery: "
                    "nsqd takes it back and delivers it again, while the work on it still goes on here; the answer to "
                    "this delivery will fail",
                    self._subject,
                    message.id,
                )
                return
            message.touch()

    def _pause(self) -> float:
        """Decide how long to wait before the next touch, or for the end of what touching can do."""
        left, longest = self._message.time_left, self._message.max_time_left
        pause = self._interval
        # Half: work may begin long after the arrival. At the end of max_msg_timeout a touch adds nothing, and is sent
        # by the interval only, to learn whether the connection is still there.
        if left is not None and (longest is None or left < longest):
            pause = min(pause, max(left / 2, SHORTEST_PAUSE))
        return pause if longest is None else min(pause, longest)


class InFlightMessages:
    """The messages in flight of one connection, counted.

    Args:
        nsqd: Its address.
        send: Queues a command; raises NSQConnectionClosed where the connection is closed.
        check: Raises NSQConnectionClosed where the connection is closed; called in any thread.
        clock: Replaceable time.
        owner: Consumer or Producer that log lines name.
        finish: Queues the FIN of a message; default: by send.

    Attributes:
        in_flight: Messages delivered and not yet answered.
        msg_timeout: Seconds until nsqd takes an unanswered message back; None if it did not say and was not told.
        max_msg_timeout: Seconds after its delivery that touches can keep a message; None if nsqd did not say.
        max_req_timeout: Milliseconds; the longest delay that nsqd takes in REQ. None while that is not known.
        drained: Set by the answer to the last message in flight.
        requeue_after: Asked, with the attempts, for the delay in ms of a message requeued without one; None: 0. In any
            thread.
        before_answer: Called before each FIN and REQ is sent, when in_flight no longer counts it: a lower RDY must
            arrive first. None: not called.
        on_finish, on_requeue: Called with (id[, timeout in ms, backoff]) after FIN and REQ; None: not called.
        async_messages: Messages that are answered later, outside of a handler.
        latency: Of messages from their arrival to their answer.
        received, timed_out: How many came, and how many nsqd took back.
    """

    def __init__(
        self,
        nsqd: str,
        send: Callable[[bytes], None],
        check: Callable[[], None],
        clock: Clock,
        owner: LogOwner | None = None,
        *,
        finish: Callable[[bytes], None] | None = None,
    ) -> None:
        self.nsqd = nsqd
        self.in_flight = 0
        self.msg_timeout: float | None = None
        self.max_msg_timeout: float | None = None
        self.max_req_timeout: int | None = None
        self.drained = Event()
        self.before_answer: Callable[[], object] | None = None
        self.on_finish: Callable[[bytes], object] | None = None
        self.on_requeue: Callable[[bytes, int, bool], object] | None = None
        self.requeue_after: Callable[[int], int] | None = None
        self.async_messages: set[Message] = set()
        self.latency = LatencyRecorder()
        self.received = 0
        self.timed_out = 0
        self.now = clock.monotonic
        self._send = send
        self._finish = finish if finish is not None else lambda message_id: send(commands.finish(message_id))
        self._check = check
        self._clock = clock
        self._owner_thread = OwnerThread()
        self._thread = self._owner_thread.ident
        self._finished = 0
        self._requeued = 0
        self._touched = 0
        owner = owner if owner is not None else LogOwner("", clock.monotonic)
        self._subject = owner.at(nsqd)
        self._rate_limited = owner.rate_limited(logger)

    @property
    def is_other_thread(self) -> bool:
        """Whether the caller runs in another thread than the connection."""
        return not self._owner_thread.is_current

    @property
    def totals(self) -> MessageCounts:
        """How many messages, since the connection was opened."""
        return MessageCounts(self.received, self._finished, self._requeued, self._touched, self.timed_out)

    def record_refused_answer(self, error: NSQErrorCode) -> None:
        """Note an error that answers a FIN, REQ or TOUCH: nsqd had taken the message back before."""
        if not isinstance(error, NSQTouchFailed):
            self.timed_out += 1
        self._rate_limited.log(
            logging.WARNING,
            error.code,
            "%s: %s: its timeout was over before it was answered, nsqd delivers it again; let fewer messages be in "
            "flight, ask for a longer msg_timeout, or call touch()",
            self._subject,
            without_address(error, self.nsqd),
        )

    def add(self, count: int) -> None:
        """Count messages that nsqd delivered."""
        self.in_flight += count
        self.received += count

    def remove_in_flight(self, message: Message) -> None:
        """Count a message as timed out and no longer in flight, unanswered."""
        if not self._owner_thread.is_current:
            self._call_in_owner(self.remove_in_flight, message)
            return
        self.timed_out += 1
        self._answered()

    def finish(self, message_id: bytes) -> None:
        """Send FIN; a message of this connection is no longer in flight."""
        # The hot path: what others do by calls is written out here, 0.3 us for each message.
        if get_ident() != self._thread:
            self._call_in_owner(self.finish, message_id)
            return
        self.in_flight -= 1
        if self.before_answer is not None:
            self.before_answer()
        self._finish(message_id)
        self._finished += 1
        if not self.in_flight:
            self.drained.set()
        if self.on_finish is not None:
            self.on_finish(message_id)

    def finish_all(self, message_ids: Sequence[bytes]) -> None:
        """Send FIN for messages of this connection; they are no longer in flight."""
        if not self._owner_thread.is_current:
            self._call_in_owner(self.finish_all, message_ids)
            return
        self.in_flight -= len(message_ids) - 1
        self._answered()
        self._send(commands.finish_all(message_ids))
        self._finished += len(message_ids)
        if self.on_finish is not None:
            for message_id in message_ids:
                self.on_finish(message_id)

    def requeue(self, message_id: bytes, timeout: int, backoff: bool) -> None:
        """Send REQ, timeout in milliseconds, cut to max_req_timeout; the message is no longer in flight."""
        if not self._owner_thread.is_current:
            self._call_in_owner(self.requeue, message_id, timeout, backoff)
            return
        if self.max_req_timeout is not None and timeout > self.max_req_timeout:
            self._log_cut(timeout)
            timeout = self.max_req_timeout
        self._answered()
        self._send(commands.requeue(message_id, timeout))
        self._requeued += 1
        if self.on_requeue is not None:
            self.on_requeue(message_id, timeout, backoff)

    def _log_cut(self, timeout: int) -> None:
        self._rate_limited.log(
            logging.WARNING,
            "cut",
            "%s: requeued with a delay of %d ms in place of %d ms: nsqd before 1.1.0 closes the connection for more "
            "than its --max-req-timeout; raise it, or requeue with a shorter delay",
            self._subject,
            self.max_req_timeout,
            timeout,
        )

    def touch(self, message_id: bytes) -> None:
        """Send TOUCH."""
        if not self._owner_thread.is_current:
            self._call_in_owner(self.touch, message_id)
            return
        self._send(commands.touch(message_id))
        self._touched += 1

    def track_async(self, *messages: Message) -> None:
        """Take note of messages that are answered later."""
        self.async_messages.update(messages)  # one step for the interpreter, so right from any thread

    def untrack_async(self, message: Message) -> None:
        """Take note that such a message was answered, or one that had lapsed; before the answer itself."""
        latency = self.now() - message.received
        if not self._owner_thread.is_current:
            self._call_in_owner(self._untrack, message, latency)
        else:
            self._untrack(message, latency)

    def untrack_async_all(self, messages: Sequence[Message]) -> None:
        """Take note that some of them were answered: of those that are held, or had lapsed."""
        now = self.now()
        if not self._owner_thread.is_current:
            self._call_in_owner(self._untrack_all, messages, now)
        else:
            self._untrack_all(messages, now)

    def _untrack_all(self, messages: Sequence[Message], now: float) -> None:
        # Those of one chunk have come together, and are counted together.
        arrived, count = now, 0
        for message in messages:
            if message.timed_out:
                self._untrack(message, now - message.received)
            elif message.received == arrived:
                count += 1
            else:
                self.latency.add(now - arrived, count)
                arrived, count = message.received, 1
        self.latency.add(now - arrived, count)
        self.async_messages.difference_update(messages)

    def _untrack(self, message: Message, latency: float) -> None:
        self.async_messages.discard(message)
        if message.timed_out:
            # Counted once more with its answer, which nsqd refuses.
            self.in_flight += 1
            self.timed_out -= 1
        if message.is_async():
            self.latency.add(latency)

    def start_periodic_touch(self, message: Message, interval: float) -> Callable[[], None]:
        """Touch a message every interval seconds; returns what stops it."""
        toucher = PeriodicTouch(message, interval, self._clock, self._subject)
        if self._owner_thread.is_current:
            toucher.start()
            return toucher.stop
        self._call_in_owner(toucher.start)
        return lambda: self._stop_from_other_thread(toucher)

    def _stop_from_other_thread(self, toucher: PeriodicTouch) -> None:
        # If that thread has ended, the toucher has ended, too.
        with contextlib.suppress(NSQConnectionClosed):
            self._owner_thread.spawn(toucher.stop)

    def mark_timed_out(self, message: Message) -> None:
        """Count a message as timed out and no longer in flight; its answer may still come."""
        self.async_messages.discard(message)
        self.timed_out += 1
        self._answered()

    def _answered(self) -> None:
        self.in_flight -= 1
        if self.before_answer is not None:
            self.before_answer()
        if not self.in_flight:
            self.drained.set()

    def _call_in_owner(self, function: Callable[..., object], *arguments: Any) -> None:  # Any: the function's own
        self._check()
        self._owner_thread.spawn(function, *arguments)
