"""Handling: what becomes of a message, by how its handlers end.

Knows the signals and options of its consumer; neither connections nor workers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import gevent

from gnsq.clock import Clock
from gnsq.consumer.hooks import check_ran, handler_name
from gnsq.errors import NSQConnectionClosed, NSQException, NSQRequeueMessage, NSQTimeout
from gnsq.message import Message, enable_async_all
from gnsq.repeats import Repeats
from gnsq.signals import notify

if TYPE_CHECKING:
    from gnsq.consumer.consumer import Consumer

__all__ = ["Handling"]

# A message that no handler saw, because none is connected any more, comes again after so many milliseconds.
UNHANDLED_DELAY = 1000


class Handling:
    """Calls a consumer's handlers and answers messages.

    Attributes:
        receivers: Who is called with each message; looked up once for each chunk.
        failed: Handlers that raised, NSQRequeueMessage aside.
        given_up: Messages delivered more often than max_tries.
    """

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        self.receivers: tuple[Callable[..., object], ...] = ()
        self.failed = 0
        self.given_up = 0
        self._consumer = consumer
        self._clock = clock
        self._warned_of_false = False
        # Limits of calls to a subclass's handle_messages() that run.
        self._limits: set[gevent.Timeout] = set()
        self._logger = consumer.logger
        self._repeats = Repeats(consumer.logger, clock.monotonic)

    def handle(self, message: Message) -> bool:
        """Call the handlers, and answer according to how they end; whether it is answered, and not asynchronously.
        Raises nothing but what is no Exception."""
        # Not a with block around it all: this is called for each message, and a try costs nothing.
        try:
            options = self._consumer.options
            if 0 < options.max_tries < message.attempts:
                self._give_up(message)
                return True
            if not self.receivers:
                self._repeats.log(
                    logging.ERROR,
                    "unhandled",
                    "message %s: no handler is connected to on_message any more; requeued%s",
                    message.id,
                    self._consumer.on_message.collected_hint(),
                )
                message.requeue(UNHANDLED_DELAY, backoff=False)
                return True
            try:
                if options.handler_timeout is None:
                    for receiver in self.receivers:
                        result = receiver(self._consumer, message=message)
                        if result is not None:
                            self._check_result(receiver, result, message)
                else:
                    self._call_within(options.handler_timeout, message)
            except BaseException as error:  # noqa: BLE001  # a handler may raise anything; what is ours to raise is
                self._ended_by(message, error)
            else:
                return message.settle()
        except Exception:
            with self._reporting(message):
                raise
        return not message.is_async()

    def handle_by(self, function: Callable[[Message], object], message: Message) -> bool:
        """Let a subclass handle a message; what it raises is what a handler raises. One that it leaves unanswered is
        taken for asynchronous."""
        with self._reporting(message):
            try:
                check_ran(type(self._consumer).handle_message, function(message))
            except BaseException as error:  # noqa: BLE001  # as in handle()
                self._ended_by(message, error)
            else:
                if not message.has_responded():
                    message.enable_async()
        return not message.is_async()

    def handle_all(self, function: Callable[[list[Message]], object], messages: list[Message]) -> list[Message]:
        """Let a subclass handle messages with one call. If it raises, those are requeued that it has not answered;
        else they are taken for asynchronous. Gives those that are answered, and not asynchronously."""
        options = self._consumer.options
        due = messages
        if options.max_tries > 0:
            due = [message for message in messages if message.attempts <= options.max_tries]
        if len(due) < len(messages):
            for message in messages:
                if message.attempts > options.max_tries:
                    with self._reporting(message):
                        self._give_up(message)
        if due:
            try:
                # The list is the subclass's to change.
                if options.handler_timeout is None:
                    check_ran(function, function(due[:]))
                else:
                    with self._time_limit(options.handler_timeout) as limit:
                        self._limits.add(limit)
                        try:
                            check_ran(function, function(due[:]))
                        finally:
                            self._limits.discard(limit)
            except BaseException as error:  # noqa: BLE001  # as in handle()
                self._all_ended_by(due, error)
        return enable_async_all(messages)

    def _ended_by(self, message: Message, error: BaseException) -> None:
        """Answer a message whose handler raised."""
        if isinstance(error, gevent.Timeout) and error in self._limits:
            # Handled inside of a call to handle_messages(), whose time is over: handle_all() answers.
            raise error
        if isinstance(error, NSQRequeueMessage):
            backoff = self._consumer.options.backoff_on_requeue if error.backoff is None else error.backoff
            self._requeue(message, bool(backoff))
        elif isinstance(error, (Exception, gevent.Timeout)):
            self._handler_failed(message, error)
        else:
            # Killed, or the program ends: the message must not wait for its timeout.
            with contextlib.suppress(NSQException):
                self._requeue(message, backoff=False, at_once=True)
            raise error

    def _all_ended_by(self, messages: list[Message], error: BaseException) -> None:
        """Answer messages whose handler raised. It is one failure, and told of once, with the first of them."""
        first, *others = [message for message in messages if not message.has_responded()] or messages
        is_killed = not isinstance(error, (Exception, gevent.Timeout))
        for message in others:
            with self._reporting(message):
                self._requeue(message, backoff=False, at_once=is_killed)
        with self._reporting(first):
            self._ended_by(first, error)

    @contextlib.contextmanager
    def _reporting(self, message: Message) -> Iterator[None]:
        """Log what keeps a message from being answered; nsqd delivers it again when its timeout ends."""
        try:
            yield
        except NSQConnectionClosed as error:
            self._repeats.log(
                logging.INFO, "gone", "message %s: no answer sent, its connection is gone: %s", message.id, error
            )
        except Exception:  # a receiver of the message's own signals may raise anything
            self._logger.exception("message %s: a receiver of its signals raised", message.id)

    def dropped(self, message: Message) -> None:
        """Tell that a message timed out while it waited for a worker."""
        self._repeats.log(
            logging.WARNING,
            "dropped",
            "message %s: not handled, it waited for a handler until its timeout was over and nsqd delivers it again: "
            "lower max_in_flight, raise concurrency, or ask for a longer msg_timeout",
            message.id,
        )

    def _call_within(self, limit: float, message: Message) -> None:
        with self._time_limit(limit):
            for receiver in self.receivers:
                self._check_result(receiver, receiver(self._consumer, message=message), message)

    def _check_result(self, handler: object, result: object, message: Message) -> None:
        """Look at what a handler returned: all finishes its message but what shows that the handler has not run.

        Raises:
            TypeError: If it is a coroutine or generator; it is closed.
        """
        if result is not False:
            check_ran(handler, result)
        elif not self._warned_of_false:
            self._warned_of_false = True
            self._logger.warning(
                "%s/%s: message %s: handler %s returned False, and its message is finished as with any other result; "
                "raise an exception or call message.requeue() to have it delivered again (this is logged once)",
                self._consumer.topic,
                self._consumer.channel,
                message.id,
                handler_name(handler),
            )

    @contextlib.contextmanager
    def _time_limit(self, limit: float) -> Iterator[gevent.Timeout]:
        timeout = self._clock.timeout(limit)
        try:
            with timeout:
                yield timeout
        except gevent.Timeout as expired:
            if expired is not timeout:
                raise
            raise NSQTimeout(f"handler was broken off after handler_timeout {limit} s") from expired

    def _give_up(self, message: Message) -> None:
        """Let those who want it have it; nobody else ever sees it again, so a failure of theirs is a failure."""
        consumer = self._consumer
        wanted = list(consumer.on_giving_up.receivers_for(consumer))
        # The only trace of a message that nobody takes.
        self._logger.log(
            logging.DEBUG if wanted else logging.WARNING,
            "message %s: given up, delivered %d times, max_tries is %d",
            message.id,
            message.attempts,
            consumer.options.max_tries,
        )
        try:
            for receiver in wanted:
                receiver(consumer, message=message)
        except (Exception, gevent.Timeout) as error:  # noqa: BLE001  # the message is not lost: it is requeued
            self._handler_failed(message, error)
            return
        self.given_up += 1
        message.settle()

    def _handler_failed(self, message: Message, error: BaseException) -> None:
        self.failed += 1
        self._repeats.log(
            logging.ERROR,
            type(error).__qualname__,
            "message %s: handler raised on attempt %d, message is %s",
            message.id,
            message.attempts,
            "answered already" if message.has_responded() else "requeued",
            exc_info=True,
        )
        try:
            notify(self._consumer.on_exception, self._consumer, message=message, error=error)
        finally:
            # Whatever a receiver raises: unanswered, its worker would hand it on, to fail again at once.
            self._requeue(message, backoff=True)

    def _requeue(self, message: Message, backoff: bool, *, at_once: bool = False) -> None:
        if not message.has_responded():
            delay = 0 if at_once else self._consumer.options.requeue_after(message.attempts)
            message.requeue(delay, backoff)
