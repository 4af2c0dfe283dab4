"""Calls a consumer's handlers, then finishes or requeues the message. Logs messages that failed or timed out.

Knows the signals and options of the consumer, but neither its connections nor its WorkerPool.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple, Protocol, TypeVar

import gevent

from gnsq.clock import Clock
from gnsq.concurrency.greenlets import check_is_failure, is_failure
from gnsq.consumer.dead_letters import DeadLetterPublisher
from gnsq.consumer.handlers import HandlerSignal, check_ran, handler_name
from gnsq.consumer.options import ConsumerOptions
from gnsq.consumer.worker_pool import RunningHandler
from gnsq.dead_letter import DeadLetter
from gnsq.errors import NSQConnectionClosed, NSQException, NSQGiveUp, NSQRequeueMessage, NSQTimeout
from gnsq.logs import LogOwner
from gnsq.message import Message, enable_async_all
from gnsq.nsqd.connection import Connection
from gnsq.signals import ExceptionReceiver, TypedSignal, notify
from gnsq.texts import counted, id_text

__all__ = ["HandlerRunner"]

# Limit of the log lines for given up messages in a minute. Further given up messages are only counted.
GIVEN_UP_LINES = 10
# Limit of the given up messages whose ids are remembered. The ids take 2 MB of memory.
MAX_GIVEN_UP = 10_000
# Limit of the messages whose last failure is remembered, and of the characters of an error's type and of its text.
MAX_FAILURES = 1000
MAX_ERROR_CHARACTERS = 200

# Seconds between two searches for handlers whose message has timed out.
OVERDUE_CHECK_INTERVAL = 10.0

# Folder of the code that calls handlers. The frames of a handler come after the frames of this code in a stack.
_CALLERS = os.path.join(os.path.dirname(__file__), "")

_OVERDUE_HINT = (
    "keep messages with `with message.touching():`, end handlers with handler_timeout, or ask for a longer msg_timeout"
)
_QUEUE_HINT = "lower max_in_flight, raise concurrency, or ask for a longer msg_timeout"

# Delay of a REQ if no handler is connected any more.
UNHANDLED_DELAY_MS = 1000


Key = TypeVar("Key")
Value = TypeVar("Value")


class Failure(NamedTuple):
    """Why a message failed, as far as the consumer knows.

    Attributes:
        type: Name of the exception's class; empty if no exception was raised, for example if the message timed out.
        text: Text of the exception, or what happened in its place. One line of at most 200 printable characters.
    """

    type: str
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


# Of a message that another consumer of the channel had before, or whose failure is forgotten.
UNSEEN = Failure("", "not seen here")


class HandlerOwner(Protocol):
    """The part of a Consumer that HandlerRunner uses."""

    topic: str
    channel: str
    logger: logging.Logger
    log_owner: LogOwner
    options: ConsumerOptions
    on_message: HandlerSignal
    on_giving_up: HandlerSignal
    on_exception: TypedSignal[ExceptionReceiver]

    def handle_message(self, conn: Connection | None, message: Message) -> None:
        """Handle a message. A subclass may override this."""


class HandlerRunner:
    """Calls the handlers of one consumer.

    Args:
        running: Returns the messages whose handlers run, with the greenlets of the handlers.
        letters: Publishes the messages that are given up; None: only give-up handlers keep them.

    Attributes:
        failed: Number of exceptions that handlers raised, except NSQRequeueMessage and NSQGiveUp for on_message, and
            those that end the greenlet; and of the dead letters that could not be published.
        given_up: Number of messages that were given up.
        handlers_timed_out: Number of messages that timed out while their handler ran.
        async_timed_out: Number of async messages that timed out.
    """

    def __init__(
        self,
        consumer: HandlerOwner,
        clock: Clock,
        running: Callable[[], list[RunningHandler]],
        letters: DeadLetterPublisher | None,
    ) -> None:
        self._receivers: tuple[Callable[..., object], ...] = ()
        self.failed = 0
        self.given_up = 0
        self.handlers_timed_out = 0
        self.async_timed_out = 0
        self._consumer = consumer
        self._clock = clock
        self._running = running
        self._letters = letters
        self._warned_of_false = False
        # Last failures, by nsqd and message id; the oldest is first.
        self._failures: OrderedDict[tuple[str | None, bytes], Failure] = OrderedDict()
        # Given up messages, by nsqd and message id, the oldest first. A give-up handler may answer them later.
        self._given_up: OrderedDict[tuple[str | None, bytes], None] = OrderedDict()
        # Timeouts of the running calls of an overridden handle_messages().
        self._batch_timeouts: set[gevent.Timeout | None] = set()
        self._logger = consumer.log_owner.log(consumer.logger)

    def look_up_handlers(self) -> None:
        """Find the handlers to call for the next messages. Called once for each read, since it takes 0.2 us."""
        self._receivers = self._consumer.on_message.handlers_for(self._consumer)
        if self._consumer.options.max_age is not None and self._receivers:
            # As the first handler, so that consumers without this option pay nothing for it with each message.
            self._receivers = (self._refuse_old, *self._receivers)

    def handle(self, message: Message) -> bool:
        """Call the handlers, then answer the message. Return False if it is async, unless a give-up handler got it.
        This method raises only what ends the greenlet, see is_failure()."""
        # This method is called for each message. So it enters _log_answer_errors() only after an exception.
        try:
            options = self._consumer.options
            if 0 < options.max_tries < message.attempts:
                self._give_up(message, None)
                return True
            if not self._receivers:
                text = "no handler is connected to on_message any more; requeued%s"
                hint = self._consumer.on_message.collected_hint()
                self._logger.limited(logging.ERROR, "unhandled", text, hint, message=message)
                message.requeue(UNHANDLED_DELAY_MS, backoff=False)
                return True
            try:
                if options.handler_timeout is None:
                    for receiver in self._receivers:
                        result = receiver(self._consumer, message=message)
                        if result is not None:
                            self._check_result(receiver, result, message)
                else:
                    with self._time_limit(options.handler_timeout):
                        for receiver in self._receivers:
                            self._check_result(receiver, receiver(self._consumer, message=message), message)
            except BaseException as error:  # noqa: BLE001  # a handler may raise anything; raised again if necessary
                self._on_handler_exception(message, error)
            else:
                return message.finish_if_unanswered()
        except Exception:  # FIN or REQ has failed
            with self._log_answer_errors(message):
                raise
        return not message.is_async()

    def handle_with_override(self, function: Callable[[Message], object], message: Message) -> bool:
        """Call an overridden handle_message(). Unless it raises, a message that it leaves unanswered becomes async."""
        try:
            check_ran(type(self._consumer).handle_message, function(message))
        except BaseException as error:  # noqa: BLE001  # the override may raise anything
            self._on_override_exception([message], error)
        if not message.has_responded():
            message.enable_async()
        return not message.is_async()

    def handle_batch_with_override(
        self, function: Callable[[list[Message]], object], messages: list[Message]
    ) -> list[Message]:
        """Give up messages with too many attempts and too old ones, and call an overridden handle_messages() with the
        others. Those left unanswered become async; if it raises, they are requeued or given up. Return the messages
        that are answered, not async."""
        options = self._consumer.options
        limit, oldest = options.max_tries or math.inf, self._oldest()
        due = [message for message in messages if message.attempts <= limit and message.timestamp >= oldest]
        if len(due) < len(messages):
            rest = set(messages).difference(due)
            for message in [message for message in messages if message in rest]:
                self.give_up(message, None if message.attempts > limit else self._too_old(message))
        if due:
            try:
                with self._time_limit(options.handler_timeout) as timeout:
                    self._batch_timeouts.add(timeout)
                    try:
                        check_ran(function, function(due[:]))  # a copy: the subclass may change the list
                    finally:
                        self._batch_timeouts.discard(timeout)
            except BaseException as error:  # noqa: BLE001  # the override may raise anything
                self._on_override_exception(due, error)
        return enable_async_all(messages)

    def _on_handler_exception(self, message: Message, error: BaseException) -> None:
        """Answer a message whose handler has raised an exception."""
        if isinstance(error, gevent.Timeout) and error in self._batch_timeouts:
            # The timeout is that of an overridden handle_messages() that has called this handler. Let it end that call.
            raise error
        if not is_failure(error):
            # The greenlet was killed, or the program ends. Requeue, so that nsqd does not wait for the msg_timeout.
            with contextlib.suppress(NSQException):
                self._requeue(message, backoff=False, at_once=True)
            raise error
        check_is_failure(error)
        options = self._consumer.options
        self.note_failure(message, error)
        if isinstance(error, NSQRequeueMessage):
            backoff = options.backoff_on_requeue if error.backoff is None else error.backoff
            self._requeue(message, bool(backoff))
        elif isinstance(error, NSQGiveUp):
            self._give_up(message, error)
        else:
            self._on_failure(message, error, is_final=options.gives_up_on(error))

    def _on_override_exception(self, messages: list[Message], error: BaseException) -> None:
        """Answer the messages of an override that has raised. Only the first unanswered one counts as a failure."""
        first, *others = [message for message in messages if not message.has_responded()] or messages
        is_killed = not is_failure(error)
        is_final = not is_killed and self._consumer.options.gives_up_on(error)
        for message in others:
            if not is_killed:
                self.note_failure(message, error)
            with self._log_answer_errors(message):
                if is_final:
                    self._give_up(message, error)
                else:
                    self._requeue(message, backoff=False, at_once=is_killed)
        with self._log_answer_errors(first):
            self._on_handler_exception(first, error)

    @contextlib.contextmanager
    def _log_answer_errors(self, message: Message) -> Iterator[None]:
        """Log an exception of the block. If the exception has prevented the answer, nsqd delivers the message again."""
        try:
            yield
        except NSQConnectionClosed as error:
            self._logger.limited(
                logging.INFO, "gone", "no answer sent, its connection is lost: %s", error, message=message
            )
        except Exception:  # for example, another thread has answered it meanwhile
            self._logger.exception("no answer sent", message=message)

    # --- timed out messages

    def on_timed_out(self, messages: list[Message]) -> None:
        """Count and log messages that have just timed out."""
        handled = {id(run.message) for run in self._running()}
        unanswered = [message for message in messages if id(message) not in handled]
        self.handlers_timed_out += len(messages) - len(unanswered)
        self.async_timed_out += len(unanswered)
        for message in messages:
            text = "timed out while its handler ran" if id(message) in handled else "timed out unanswered"
            self._note(message, Failure("", text))
        self.log_overdue()
        for message in unanswered:
            self._logger.limited(
                logging.WARNING,
                "unanswered",
                "not answered in the %.1f s since its delivery: its handler has "
                "returned and left the answer for later, its timeout is over, and nsqd delivers it again; call "
                "finish() or requeue() whatever happens, keep it with touching(), or ask for a longer msg_timeout",
                self._clock.monotonic() - message.received,
                message=message,
            )

    def overdue(self) -> list[RunningHandler]:
        """Return the handlers that still run after their unanswered message timed out, the longest-running first."""
        late = [run for run in self._running() if run.message.time_left == 0 and not run.message.has_responded()]
        return sorted(late, key=lambda run: run.began)

    def log_regularly(self) -> None:
        """Log overdue handlers and the number of given up messages at intervals, until the greenlet is killed."""
        while True:
            self._clock.sleep(OVERDUE_CHECK_INTERVAL)
            self.log_overdue()
            self.log_given_up_summary()

    def log_overdue(self) -> None:
        """Log the longest-running overdue handler and the number of the others, at most once a minute."""
        late = self.overdue() if self._logger.is_due("overdue") else []
        if not late:
            return
        now, first = self._clock.monotonic(), late[0]
        self._logger.limited(
            logging.WARNING,
            "overdue",
            "its handler has run for %.1f s and is at %s; it was delivered %.1f s ago, its "
            "timeout is over, and nsqd delivers it again; %s%s",
            now - first.began,
            _position(first.worker),
            now - first.message.received,
            _OVERDUE_HINT if _is_slow(first, now) else _QUEUE_HINT,
            f" ({counted(len(late) - 1, 'more handler')} likewise)" if len(late) > 1 else "",
            message=first.message,
        )

    def on_dropped(self, message: Message) -> None:
        """Log that a message timed out in the inbox."""
        self._note(message, Failure("", "timed out while it waited for a handler"))
        text = "not handled, it waited for a handler until its timeout was over and nsqd delivers it again: %s"
        # Make the hint only if the line will be logged: making the hint takes a search of all running handlers.
        hint = self._wait_hint() if self._logger.is_due("dropped") else _QUEUE_HINT
        self._logger.limited(logging.WARNING, "dropped", text, hint, message=message)

    def _wait_hint(self) -> str:
        """Explain why no worker was free for a message, and what to do."""
        now = self._clock.monotonic()
        slow = [run for run in self.overdue() if _is_slow(run, now)]
        if not slow:
            return _QUEUE_HINT
        workers = {run.worker for run in self._running()}
        return (
            f"{len(slow)} of the {len(workers)} running handlers are overdue, the longest has run "
            f"for {now - slow[0].began:.1f} s; {_OVERDUE_HINT}"
        )

    # --- calls of handlers

    def _check_result(self, handler: object, result: object, message: Message) -> None:
        """Raise TypeError if the result of a handler is a coroutine or a generator: then the code of the handler has
        not run. All other results are accepted. The first False is logged."""
        if result is not False:
            check_ran(handler, result)
        elif not self._warned_of_false:
            self._warned_of_false = True
            self._logger.warning(
                "handler %s returned False, and its message is finished as with any other result; "
                "raise an exception or call message.requeue() to have it delivered again (this is logged once)",
                handler_name(handler),
                message=message,
            )

    @contextlib.contextmanager
    def _time_limit(self, limit: float | None) -> Iterator[gevent.Timeout | None]:
        if limit is None:
            yield None
            return
        timeout = self._clock.timeout(limit)
        try:
            with timeout:
                yield timeout
        except gevent.Timeout as expired:
            if expired is not timeout:
                raise
            raise NSQTimeout(f"handler was interrupted after handler_timeout {limit} s") from expired

    # --- failures

    def give_up(self, message: Message, error: BaseException | None) -> None:
        """Give a message up as _give_up() does, but only log that its answer could not be sent."""
        with self._log_answer_errors(message):
            self._give_up(message, error)

    def _give_up(self, message: Message, error: BaseException | None) -> None:
        """Publish the dead letter of a message and call the give-up handlers, then finish the message unless one of
        them has answered it or made it async. If one fails, requeue it.

        Args:
            error: Why it is given up; None: it was delivered more often than max_tries.
        """
        if message.has_responded():
            return
        consumer, letters, was_async = self._consumer, self._letters, message.is_async()
        if letters is not None and message.time_left == 0:
            # No FIN can prevent that nsqd delivers it again, so its letter would be the first of several.
            text = "not given up yet: its timeout is over, and nsqd delivers it again"
            self._logger.limited(logging.WARNING, "given up late", text, message=message)
            message.drop()
            return
        receivers = list(consumer.on_giving_up.receivers_for(consumer))
        keepers = [handler_name(receiver) for receiver in receivers]
        _remember(self._given_up, (message.nsqd, message.id), None, MAX_GIVEN_UP)
        if error is not None:
            self.note_failure(message, error)
        if letters is not None:
            # First, because a give-up handler may finish the message.
            keepers.insert(0, f"topic {letters.topic}")
            try:
                letters.publish(self.dead_letter(message), message)
            except (Exception, gevent.Timeout) as failure:
                text = "no dead letter in topic %s, message is requeued: %s"
                self._logger.limited(logging.ERROR, "letter", text, letters.topic, failure, message=message)
                self._end_failure(message, failure, is_final=False)
                if isinstance(failure, gevent.Timeout):
                    raise  # it is not the publish's own: let it end what its owner limits
                return
            if message.has_responded():
                return  # a close() has requeued it meanwhile, so it comes again
        for receiver in receivers:
            try:
                self._check_result(receiver, receiver(consumer, message=message), message)
            except BaseException as failure:
                check_is_failure(failure)
                self._on_failure(message, failure, f"give-up handler {handler_name(receiver)}")
                if failure in self._batch_timeouts:
                    raise  # as in _on_handler_exception()
                return
        self.given_up += 1
        lost = "finished and lost: no dead_letter_topic, and nothing is connected to on_giving_up"
        self._logger.limited(
            logging.WARNING,
            "given up",
            "given up, delivered %s%s; %s; %s: %s",
            counted(message.attempts, "time"),
            f", max_tries is {consumer.options.max_tries}" if error is None else "",
            f"handed to {', '.join(keepers)}" if keepers else lost + consumer.on_giving_up.collected_hint(),
            "last error" if error is None else "reason",
            self._failures.pop((message.nsqd, message.id), UNSEEN),
            burst=GIVEN_UP_LINES,
            message=message,
        )
        if was_async and not message.has_responded():
            message.finish()
        else:
            message.finish_if_unanswered()

    def dead_letter(self, message: Message) -> DeadLetter:
        """Return the dead letter of a message that is given up now."""
        failure = self._failures.get((message.nsqd, message.id), UNSEEN)
        return DeadLetter(
            topic=self._consumer.topic,
            channel=self._consumer.channel,
            nsqd=message.nsqd,
            id=id_text(message.id),
            timestamp=message.timestamp,
            attempts=message.attempts,
            given_up_at=self._clock.time_ns() / 1e9,
            error=failure.type,
            reason=failure.text,
            body=message.body,
        )

    def _refuse_old(self, consumer: object, /, *, message: Message) -> None:
        if message.timestamp < self._oldest():
            raise self._too_old(message)

    def _oldest(self) -> float:
        """Return the timestamp of a message whose age is max_age; -inf: there is no limit."""
        limit = self._consumer.options.max_age
        return -math.inf if limit is None else self._clock.time_ns() - limit * 1e9

    def _too_old(self, message: Message) -> NSQGiveUp:
        age = (self._clock.time_ns() - message.timestamp) / 1e9
        reason = f"published {age:.0f} s ago, max_age is {self._consumer.options.max_age:g} s"
        failure = self.noted_failure(message.nsqd or "", message.id)
        return NSQGiveUp(f"{reason}; last error: {failure}" if failure else reason)

    def is_given_up(self, nsqd: str, message_id: bytes) -> bool:
        """Return True if _give_up() was called with a message. Its FIN counts neither as a success nor as a failure."""
        return (nsqd, message_id) in self._given_up

    def log_given_up_summary(self, *, at_once: bool = False) -> None:
        """Log how many messages were given up without a line of their own, if a minute is over or at_once is True."""
        self._logger.limited_rest(logging.WARNING, "given up", "more message", "%s given up", at_once=at_once)

    def noted_failure(self, nsqd: str, message_id: bytes) -> Failure | None:
        """Return why a message failed last, if that was noted."""
        return self._failures.get((nsqd, message_id))

    def note_failure(self, message: Message, error: BaseException) -> None:
        """Remember why a message failed."""
        self._note(message, _failure(error))

    def _note(self, message: Message, failure: Failure) -> None:
        _remember(self._failures, (message.nsqd, message.id), failure, MAX_FAILURES)

    def _on_failure(
        self, message: Message, error: BaseException, what: str = "handler", *, is_final: bool = False
    ) -> None:
        """Log an exception of a handler, send on_exception, and requeue the message if it is not answered.

        Args:
            what: Name of the handler in the log line.
            is_final: Give the message up instead.
        """
        kind, text = f"{what} {type(error).__qualname__}", "%s raised on attempt %d, message is %s"
        result = "answered already" if message.has_responded() else "given up" if is_final else "requeued"
        self._logger.limited(logging.ERROR, kind, text, what, message.attempts, result, message=message, exc_info=True)
        self._end_failure(message, error, is_final=is_final)

    def _end_failure(self, message: Message, error: BaseException, *, is_final: bool) -> None:
        self.failed += 1
        try:
            notify(self._consumer.on_exception, self._consumer, message=message, error=error)
        except BaseException:
            # Requeue even if the greenlet is killed in a receiver. Otherwise the WorkerPool would put the message into
            # the inbox again, and the message would fail again immediately.
            self._requeue(message, backoff=True)
            raise
        if is_final:
            self._give_up(message, error)
        else:
            self._requeue(message, backoff=True)

    def _requeue(self, message: Message, backoff: bool, *, at_once: bool = False) -> None:
        if not message.has_responded():
            message.requeue(0 if at_once else None, backoff)


def _remember(memory: OrderedDict[Key, Value], key: Key, value: Value, limit: int) -> None:
    """Add an entry as the newest one, and remove the oldest entry if there are more than the limit."""
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > limit:
        memory.popitem(last=False)


def _failure(error: BaseException) -> Failure:
    """Format an error in one short line. The error's own text may be long: it may contain a text or body of a peer."""
    try:
        text = str(error)
    except BaseException as raised:  # noqa: BLE001  # a user's own class may raise anything
        check_is_failure(raised)
        text = ""
    text = " ".join(text[:MAX_ERROR_CHARACTERS].split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return Failure(type(error).__qualname__[:MAX_ERROR_CHARACTERS], text)


def _is_slow(run: RunningHandler, now: float) -> bool:
    """Return True if a handler has run for at least as long as its message had waited for a handler."""
    return now - run.began >= run.began - run.message.received


def _position(worker: gevent.Greenlet) -> str:
    """Format where a handler waits: the line in the handler itself, and the innermost line that is not gevent's."""
    frame: FrameType | None = worker.gr_frame
    frames: list[FrameType] = []
    while frame is not None and not frame.f_code.co_filename.startswith(_CALLERS):
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("gevent", "greenlet"):
            frames.append(frame)
        frame = frame.f_back
    if not frames:
        return "an unknown line"
    text = _line(frames[-1])
    return text if len(frames) == 1 else f"{text} (innermost: {_line(frames[0])})"


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
