"""BatchHandler: collects messages and handles them in batches. Owns the incomplete batch, and the greenlet that runs
the incomplete batch in time."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gevent
from gevent.pool import Pool

from gnsq.clock import Clock, RealClock
from gnsq.concurrency.greenlets import OwnedGreenlet, check_is_failure, spawn
from gnsq.concurrency.threads import checked_seconds
from gnsq.consumer.handlers import check_ran, check_runs
from gnsq.errors import NSQException, NSQGiveUp, NSQRequeueMessage
from gnsq.logs import LogOwner
from gnsq.options import Seconds
from gnsq.texts import counted

if TYPE_CHECKING:
    from gnsq.consumer import Consumer
    from gnsq.message import Message

__all__ = ["BatchHandler"]

logger = logging.getLogger(__name__)

# Seconds between two checks whether an incomplete batch must run.
CHECK_INTERVAL = 0.1

Spawn = Callable[..., object]


class BatchHandler:
    """Collect messages and handle them in batches; for a Consumer's ``on_message``.

        consumer = Consumer("clicks", "archive", address, max_in_flight=2000)
        consumer.on_message.connect(BatchHandler(1000, handle_batch=insert), weak=False)

    A batch runs when one of these is true:

    - The batch is full.
    - Its first message has waited ``timeout`` seconds, or one of its messages for half of the time that it had left. A
      RuntimeWarning says that batch_size is too large, or timeout too short.
    - The consumer is starved, and all its messages in flight wait in this batch. If a message is added then, a
      RuntimeWarning says that batch_size is too large: max_in_flight, divided among the nsqds, should be above it.
    - The consumer closes.

    A message that times out before its batch runs is left out, since nsqd delivers it again. A batch that runs longer
    than msg_timeout must keep its messages with ``message.touching()``.

    ``handle_message``, ``handle_batch``, ``handle_message_error`` and ``handle_batch_error`` may be given or
    overridden. They may answer messages themselves. The other messages are finished, or requeued with the delay that
    the consumer computes from their attempts. Exceptions are logged. After NSQGiveUp, and other exceptions that the
    consumer does not retry, the messages are given up, one after another.

    Args:
        batch_size: Number of messages of a full batch.
        handle_batch: Called with the list of the results of handle_message. If it returns, all messages are finished.
            If it raises, all are requeued. Backoff counts that as one failure, but for an NSQRequeueMessage only if its
            ``backoff`` is True, or is None and the consumer's option backoff_on_requeue is True.
        handle_message: Called with each message when its batch runs. Returns the item for the batch; default: the
            message. If handle_message raises, this message is requeued, and the others stay in the batch.
        handle_batch_error: Called with (error, messages, items) before the messages are requeued.
        handle_message_error: Called with (error, message) before the message is requeued.
        timeout: Seconds that a message may wait for its batch; None: no limit except half of its time left.
        spawn: Function that runs a batch; default: in a new greenlet. Or the number of batches that may run at the same
            time: further batches, and messages after them, wait.
        clock: The clock of the consumer, if the consumer was given one.

    Raises:
        TypeError: If handle_batch is missing, or is a coroutine function or a generator function.
        ValueError: If batch_size, or spawn as a number, is below 1.
    """

    def __init__(
        self,
        batch_size: int,
        handle_batch: Callable[[list[Any]], object] | None = None,  # Any: handle_message may return any item
        handle_message: Callable[[Message], Any] | None = None,
        handle_batch_error: Callable[[BaseException, list[Message], list[Any]], object] | None = None,
        handle_message_error: Callable[[BaseException, Message], object] | None = None,
        timeout: Seconds | None = 10,
        spawn: Spawn | int = gevent.spawn,
        *,
        clock: Clock | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size} is below 1")
        if isinstance(spawn, int) and spawn < 1:
            raise ValueError(f"spawn {spawn} is below 1 batch at once")
        if handle_batch is None and type(self).handle_batch is BatchHandler.handle_batch:
            raise TypeError("handle_batch is missing: give it, or override it")
        given: dict[str, object] = {"handle_batch": handle_batch, "handle_message": handle_message}
        given |= {"handle_batch_error": handle_batch_error, "handle_message_error": handle_message_error}
        for name, function in given.items():
            if function is not None:
                setattr(self, name, function)
        check_runs(self.handle_batch, "handle_batch")
        self.batch_size = batch_size
        self.timeout = None if timeout is None else checked_seconds("timeout", timeout)
        # An OwnedGreenlet can tell a GreenletExit that handle_batch raises from its own end.
        own: Spawn = Pool(spawn, OwnedGreenlet).spawn if isinstance(spawn, int) else OwnedGreenlet.spawn
        self.spawn = spawn if callable(spawn) and spawn is not gevent.spawn else own
        self._clock = clock if clock is not None else RealClock()
        self._logger = LogOwner("", self._clock.monotonic).log(logger)
        self._messages: list[Message] = []
        self._deadline = math.inf
        self._consumer: Consumer | None = None
        self._watcher: gevent.Greenlet | None = None

    def __call__(self, consumer: Consumer, message: Message) -> None:
        """Add a message to the batch. Waits only if the batch must run and the limit of running batches is reached."""
        message.enable_async()
        self._consumer = consumer
        now = self._clock.monotonic()
        if not self._messages:
            self._deadline = math.inf if self.timeout is None else now + self.timeout
        self._messages.append(message)
        left = message.time_left
        if left is not None:
            self._deadline = min(self._deadline, now + left / 2)
        if len(self._messages) >= self.batch_size:
            self._start_batch()
        elif self._is_starved(consumer):
            _warn("consumer is starved before the batch is full: batch_size is too large for its max_in_flight")
            self._start_batch()
        elif self._watcher is None:
            self._watcher = spawn("gnsq-batch", self._watch, on_failure="the next message runs its batch")

    # --- start of a batch

    def _is_starved(self, consumer: Consumer) -> bool:
        # While the consumer's inbox has messages, the batch need not run: these messages will be added to the batch.
        return consumer.is_starved and consumer.total_in_flight <= len(self._messages)

    def _watch(self) -> None:
        """Run each incomplete batch in time. A greenlet that polls takes less time than a timer for each message."""
        try:
            while self._messages:
                if self._is_due():
                    self._start_batch()
                else:
                    self._clock.sleep(min(CHECK_INTERVAL, self._deadline - self._clock.monotonic()))
        finally:
            self._watcher = None

    def _is_due(self) -> bool:
        consumer = self._consumer
        if consumer is None or not consumer.is_running:
            return True
        if self._clock.monotonic() >= self._deadline:
            _warn("batch is not full when its time is over: batch_size is too large, or timeout too short")
            return True
        return self._is_starved(consumer)

    def _start_batch(self) -> None:
        messages, self._messages = self._messages, []
        try:
            self.spawn(self.run_batch, messages)
        except BaseException:
            self._requeue(messages, backoff=False)
            raise

    # --- run of a batch

    def run_batch(self, messages: Sequence[Message]) -> None:
        """Handle messages as one batch, and answer them."""
        messages = [message for message in messages if not self._is_answered_or_timed_out(message)]
        try:
            with contextlib.nullcontext() if self._consumer is None else self._consumer.answering():
                self._run(messages)
        except BaseException:
            # The greenlet was killed, or the program ends. Requeue, so that nsqd does not wait for the msg_timeout.
            self._requeue(messages, backoff=False)
            raise

    def _is_answered_or_timed_out(self, message: Message) -> bool:
        if message.has_responded():
            return True
        if message.time_left != 0:
            return False
        text = "its timeout was over before its batch ran, nsqd delivers it again"
        self._logger.limited(logging.WARNING, "timed out", text, message=message)
        message.drop()
        return True

    def _run(self, messages: list[Message]) -> None:
        taken: list[Message] = []
        batch: list[Any] = []
        for message in messages:
            try:
                item = self.handle_message(message)
            except BaseException as error:  # noqa: BLE001  # handle_message may raise anything
                check_is_failure(error)
                self._log_failure(error, "handle_message raised, message is %s", message=message)
                self._on_failure([message], error, self.handle_message_error, message)
            else:
                taken.append(message)
                batch.append(item)
        if not batch:
            return
        try:
            check_ran(self.handle_batch, self.handle_batch(batch))
        except BaseException as error:  # noqa: BLE001  # handle_batch may raise anything
            check_is_failure(error)
            what = counted(len(taken), "message is", "messages are")
            self._log_failure(error, f"handle_batch raised, {what} %s")
            self._on_failure(taken, error, self.handle_batch_error, taken, batch)
        else:
            self.finish_messages(taken)

    def _on_failure(
        self, messages: list[Message], error: BaseException, callback: Callable[..., object], *arguments: object
    ) -> None:
        """Call handle_message_error or handle_batch_error (the callback), and requeue or give up the messages."""
        if self._consumer is not None:
            for message in messages:
                self._consumer.note_failure(message, error)
        try:
            callback(error, *arguments)
        except BaseException as raised:
            check_is_failure(raised)
            logger.exception("%s raised", getattr(callback, "__name__", callback))
        if self._consumer is not None and self._gives_up_on(error):
            for message in messages:
                self._consumer.give_up(message, error)
        else:
            self._requeue(messages, self._is_failure(error))

    def _gives_up_on(self, error: BaseException) -> bool:
        return self._consumer is not None and self._consumer.options.gives_up_on(error)

    def _is_failure(self, error: BaseException) -> bool:
        if isinstance(error, NSQRequeueMessage):
            if error.backoff is not None:
                return error.backoff
            return self._consumer is None or self._consumer.options.backoff_on_requeue
        return True

    # --- answers

    def finish_message(self, message: Message) -> None:
        """Finish a message if it is not answered. If FIN can't be sent, log that: nsqd delivers the message again."""
        if message.has_responded():
            return
        try:
            message.finish()
        except NSQException as error:
            self._logger.info("not finished: %s", error, message=message)

    def finish_messages(self, messages: Sequence[Message]) -> None:
        """Finish the messages that are not answered."""
        for message in messages:
            self.finish_message(message)

    def requeue_message(self, message: Message) -> None:
        """If a message is not answered, requeue it with the consumer's delay. Backoff counts that as a failure."""
        self._requeue([message], backoff=True)

    def requeue_messages(self, messages: Sequence[Message]) -> None:
        """Requeue the messages that are not answered."""
        for message in messages:
            self.requeue_message(message)

    def _requeue(self, messages: Sequence[Message], backoff: bool) -> None:
        """Requeue the messages that are not answered; backoff: count that as one failure."""
        for message in messages:
            if message.has_responded():
                continue
            try:
                message.requeue(backoff=backoff)
                backoff = False
            except NSQException as error:
                self._logger.info("not requeued: %s", error, message=message)

    # --- methods to override

    def handle_message(self, message: Message) -> Any:  # Any: an item of any type
        """Make the item of a message for its batch. If this raises, the message is requeued."""
        return message

    def handle_batch(self, batch: list[Any]) -> object:
        """Handle a batch. If this raises, all its messages are requeued."""
        raise NotImplementedError("the constructor refuses a BatchHandler without it")

    def handle_message_error(self, error: BaseException, message: Message) -> object:
        """Handle an exception of handle_message. Afterwards the message is requeued if it is not answered."""

    def handle_batch_error(self, error: BaseException, messages: list[Message], batch: list[Any]) -> object:
        """Handle an exception of handle_batch. Afterwards the messages that are not answered are requeued."""

    def _log_failure(self, error: BaseException, text: str, message: Message | None = None) -> None:
        """Log a failure with its traceback, rate-limited by the type of the error; NSQRequeueMessage and NSQGiveUp only
        at DEBUG. The text has a place for what happens to the messages."""
        result = "given up" if self._gives_up_on(error) else "requeued"
        if isinstance(error, (NSQRequeueMessage, NSQGiveUp)):
            self._logger.debug(text, result, message=message)
        else:
            kind = type(error).__qualname__
            self._logger.limited(logging.ERROR, kind, text, result, message=message, exc_info=True)


def _warn(text: str) -> None:
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:
        # The program turns warnings into exceptions. An exception here would prevent the run of the batch.
        logger.warning(text)
