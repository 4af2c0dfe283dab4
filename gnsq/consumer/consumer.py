"""The Consumer: its arguments, signals and state.

gnsq/lifecycle.py starts and closes it, and runtime.py has its connections. The comment at the top of nsqd/connection.py
lists the steps of a message.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self, Unpack

from gnsq.addresses import Addresses, checked_address, parse_addresses
from gnsq.clock import Clock, RealClock
from gnsq.concurrency.threads import NO_TIMEOUT, checked_timeout
from gnsq.consumer.handlers import Handler, HandlerSignal, check_handler, check_runs
from gnsq.consumer.options import ConsumerOptions, ConsumerOptionsDict, Delay, OptionAttribute
from gnsq.consumer.runtime import ConsumerRuntime
from gnsq.dead_letter import DeadLetter
from gnsq.discovery import parse_lookupds
from gnsq.errors import NSQConnectionClosed, NSQGiveUp
from gnsq.httpclient import HttpOptionsDict
from gnsq.lifecycle import Client, ClientGreenlets, Lifecycle, State
from gnsq.logs import LogOwner
from gnsq.message import Message
from gnsq.nsqd.connect import load_certificates
from gnsq.nsqd.connection import Connection
from gnsq.nsqd.pool import ReconnectOptions
from gnsq.options import ConnectionOptions, Seconds
from gnsq.protocol.commands import is_starved
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name, valid_channel_name
from gnsq.signals import ConsumerSignals, notify
from gnsq.stats import ConsumerStats
from gnsq.texts import counted
from gnsq.tracebacks import clears_locals

__all__ = ["Consumer"]

_IPV4 = re.compile(r"\d+(\.\d+){3}$")
# Seconds that close() may wait longer than its timeout: for REQs, and for the end of the connections.
CLOSE_GRACE = 3.0


class Consumer(ConsumerSignals, Client):
    """Receive the messages of one channel.

    Args:
        topic, channel: Names of the topic and the channel.
        nsqd_tcp_addresses: ``host:port``, or a list, tuple or set of them.
        lookupd_http_addresses: URL or ``host[:port]``, or a list or tuple of them.
        lookupd_options: Options of HttpOptions, such as ``auth`` or ``ca_certs``, for requests to nsqlookupd. The
            defaults of ``timeout`` and ``max_response_size`` are 5 s and 16 MiB.
        name: Name of the logger (default ``gnsq.consumer.TOPIC.CHANNEL``) and of the consumer in log lines (default
            ``TOPIC/CHANNEL``).
        message_handler: Called as handler(consumer, message=message), in a worker greenlet. If it returns, the message
            is finished, unless it is answered or async. If it raises, the message is requeued, unless it is answered;
            after NSQGiveUp, and what the options give_up_on and retry_on name, it is given up.
        threaded: True: run on a thread with its own gevent hub, for the Python prompt or programs that block their hub.
            Handlers run on that thread: a handler that blocks its hub delays other handlers and answers to heartbeats.
        keywords: Options of ConsumerOptions, ReconnectOptions and ConnectionOptions.

    NSQ may deliver messages more than once, and in any order. Receivers of on_message and on_giving_up may wait. If one
    of them raises an exception, the message is requeued if it is not answered. Receivers of all other signals must not
    wait: some of them run in the greenlet that reads a connection. If one of these raises, the exception is logged.

    The signal on_backoff is new since gnsq 1.0. Its keywords are ``phase`` ("start", "continue", "end"), ``failures``
    (failures that began a longer pause, minus the successes since) and ``duration`` (of the pause, in seconds; 0 with
    "end").

    Raises:
        ValueError: If no address is given, or a name, address or option is not valid.
        TypeError: If an address or option has the wrong type, or an option does not exist; if message_handler, or an
            override of handle_message() or handle_messages(), is a coroutine or generator function, or message_handler
            can't be called as handler(consumer, message=message). Connecting such a receiver raises it, too.
        ImportError: If the option snappy is set and python-snappy can't be imported.
    """

    max_tries = OptionAttribute()
    requeue_delay = OptionAttribute()
    lookupd_poll_interval = OptionAttribute()
    lookupd_poll_jitter = OptionAttribute()
    low_ready_idle_timeout = OptionAttribute()
    max_backoff_duration = OptionAttribute()
    backoff_on_requeue = OptionAttribute()

    @clears_locals
    def __init__(
        self,
        topic: str,
        channel: str,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        name: str | None = None,
        message_handler: Handler | None = None,
        max_tries: int = ConsumerOptions.max_tries,
        max_in_flight: int = ConsumerOptions.max_in_flight,
        requeue_delay: Delay | None = ConsumerOptions.requeue_delay,
        lookupd_poll_interval: float | timedelta = ConsumerOptions.lookupd_poll_interval,
        lookupd_poll_jitter: float = ConsumerOptions.lookupd_poll_jitter,
        low_ready_idle_timeout: float | timedelta = ConsumerOptions.low_ready_idle_timeout,
        max_backoff_duration: float | timedelta = ConsumerOptions.max_backoff_duration,
        backoff_on_requeue: bool = ConsumerOptions.backoff_on_requeue,
        *,
        lookupd_options: HttpOptionsDict | None = None,
        threaded: bool = False,
        clock: Clock | None = None,
        **keywords: Unpack[ConsumerOptionsDict],
    ) -> None:
        super().__init__()
        self.topic = topic
        self.channel = channel
        self.nsqd_tcp_addresses = set(parse_addresses(nsqd_tcp_addresses))
        self.lookupds = parse_lookupds(lookupd_http_addresses, lookupd_options)
        random.shuffle(self.lookupds)
        options: dict[str, Any] = dict(  # Any: each option has its own type
            keywords,
            max_tries=max_tries,
            max_in_flight=max_in_flight,
            requeue_delay=requeue_delay,
            lookupd_poll_interval=lookupd_poll_interval,
            lookupd_poll_jitter=lookupd_poll_jitter,
            low_ready_idle_timeout=low_ready_idle_timeout,
            max_backoff_duration=max_backoff_duration,
            backoff_on_requeue=bool(backoff_on_requeue),
        )
        self.name = name
        self.threaded = threaded
        self.options = ConsumerOptions.split_keywords(options)
        reconnect = ReconnectOptions.split_keywords(options)
        self.conn_kwargs = options
        connection = load_certificates(
            ConnectionOptions.from_keywords(Consumer, options, ConsumerOptions, ReconnectOptions)
        )
        # After the options: the name of the addresses may be misspelt.
        if not self.nsqd_tcp_addresses and not self.lookupds:
            hint = ""
            if not isinstance(channel, str) or not valid_channel_name(channel) or _IPV4.match(channel):
                hint = "; an address after the topic is taken as the channel: Consumer(topic, channel, addresses)"
            raise ValueError(f"consumer has no address: give nsqd_tcp_addresses or lookupd_http_addresses{hint}")
        assert_valid_topic_name(topic)
        assert_valid_channel_name(channel)
        if self.options.dead_letter_topic == topic:
            raise ValueError(
                f"dead_letter_topic {topic!r} is the topic that this consumer receives: give another topic"
            )
        if connection.heartbeat_interval == -1:
            raise ValueError(
                "heartbeat_interval -1 of a consumer must be at least 1 s: without heartbeats nsqd refuses SUB"
            )
        self.logger = logging.getLogger(name or f"gnsq.consumer.{topic}.{channel}")
        self.on_message = HandlerSignal("on_message")
        """A message was received and is to be handled."""
        self.on_giving_up = HandlerSignal("on_giving_up")
        """A message is given up: it was delivered more than ``max_tries`` times, it is older than ``max_age``, or its
        handler has raised NSQGiveUp or an exception that is not retried. Its dead letter was published before. After
        the signal the message is finished."""
        methods = ("handle_message", "handle_messages", "handle_finish")
        self._overrides = overrides = {
            name for name in methods if getattr(type(self), name) is not getattr(Consumer, name)
        }
        for method in ("handle_message", "handle_messages"):
            if method in overrides:
                check_runs(getattr(type(self), method), "override")
        if message_handler is not None:
            check_handler(message_handler, "message_handler")
            self.on_message.connect(message_handler, weak=False)
        clock = clock if clock is not None else RealClock()
        self.log_owner = LogOwner(name or f"{topic}/{channel}", clock.monotonic, topic=topic, channel=channel)
        greenlets = self._greenlets = ClientGreenlets(self.log_owner, clock, self.logger)
        self._runtime = ConsumerRuntime(self, clock, connection, reconnect, overrides, greenlets)
        self._lifecycle = Lifecycle(self, "consumer", self._runtime.start, greenlets, grace=CLOSE_GRACE)

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        connections = len(self._runtime.connections)
        return (
            f"<{type(self).__name__}{name} {self.topic}/{self.channel} {self._lifecycle.state.value}, "
            f"{counted(connections, 'connection')}, {counted(self.total_in_flight, 'message')} in flight>"
        )

    # --- start and close

    def start(self, block: bool = True) -> None:
        """Connect and receive. Return when the consumer has closed; with block=False, return when an nsqd is connected,
        when each attempt to connect has failed, or after a second.

        Further attempts go on in the background. An nsqd that is down is not an error: it is tried again later. If a
        threaded consumer still runs when the program ends, the consumer is closed.

        Raises:
            RuntimeError: If there is no handler; if a callback that the hub itself runs starts a threaded consumer; if
                no thread can be started for it.
        """
        if self._overrides <= {"handle_finish"} and not list(self.on_message.receivers_for(self)):
            raise RuntimeError(
                "consumer has no handler: give message_handler or connect one to on_message"
                + self.on_message.collected_hint()
            )
        if self.on_giving_up.collected_hint() and self.options.dead_letter_topic is None:
            text = "messages that are given up are finished and lost%s"
            self.log_owner.log(self.logger).warning(text, self.on_giving_up.collected_hint())
        try:
            self._lifecycle.start()
        except NSQConnectionClosed as error:
            self.log_owner.log(self.logger).warning("not started again, so it receives nothing: %s", error)
        except BaseException:
            if self.threaded:
                # The call was interrupted, or no thread could be started. Nobody may close a consumer that runs unseen.
                self._lifecycle.ask_to_close(self.options.close_timeout)
            raise
        if block:
            self.join()

    def close(self, timeout: Seconds | None = None) -> None:
        """Shut down: request no more messages, wait until delivered messages are answered, requeue unanswered messages
        after close_timeout, close the connections, and send on_close. If start() was not called, none of this is done.

        May be called by any thread, by a signal handler, while the consumer connects, and more than once. Some callers
        can't wait: handlers, receivers of signals, greenlets inside answering(), and the hub itself. For these callers
        the close continues in the background.

        Args:
            timeout: Seconds to wait for answers, instead of close_timeout. Messages are requeued after the timeout of
                the first call.

        Raises:
            NSQTimeout: If the close takes 3 s longer than the timeout, for example because a handler blocks the
                consumer's thread. The close continues when its hub runs.
        """
        self._lifecycle.close(checked_timeout(timeout, self.options.close_timeout))
        if self._lifecycle.owner_thread is None:
            self._runtime.pool.close(0)  # it was not started, but connect_to_nsqd() may have been called

    def join(self, timeout: Seconds | None = None, raise_error: bool = False) -> None:
        """Wait until the consumer has closed, up to the timeout (seconds). Do not wait if it was never started.

        In a handler, after close(), this does not wait for handlers in join(). Other callers that close() does not wait
        in do not wait here either. raise_error has no effect.
        """
        if self._runtime.workers.is_current and self._lifecycle.state is State.CLOSING:
            self._runtime.wait_for_others(checked_timeout(timeout, NO_TIMEOUT))
        else:
            super().join(timeout, raise_error)

    def answering(self) -> contextlib.AbstractContextManager[None]:
        """Mark the calling greenlet in a ``with`` block as one that answers async messages, as a handler does.

        There close() does not wait, since it would wait for the answers of this very greenlet. BatchHandler calls this.
        """
        return self._greenlets.marked()

    def __enter__(self) -> Self:
        self.start(block=False)
        return self

    def pause(self) -> None:
        """Request no more messages (RDY 0). Delivered messages are still handled. May be called from any thread."""
        self._in_owner_thread(self._runtime.rdy.pause, True)

    def resume(self) -> None:
        """Request messages again after pause()."""
        self._in_owner_thread(self._runtime.rdy.pause, False)

    def _in_owner_thread(self, function: Callable[..., object], *arguments: Any) -> None:  # Any: any arguments
        """Call a function in the consumer's thread: soon if the caller is another thread, otherwise now.

        After the consumer was closed, call the function now, in the caller's thread: the consumer's may have ended.
        """
        owner = self._lifecycle.owner_thread
        if owner is not None and not owner.is_current and not self.is_closed:
            owner.spawn(function, *arguments)
        else:
            function(*arguments)

    # --- state

    @property
    def is_ready(self) -> bool:
        """For a readiness probe: True if the consumer runs and is subscribed to an nsqd, or waits for its topic: an
        nsqlookupd has answered that no nsqd has it, and none has had it. Otherwise see stats().not_ready.

        A worker whose topic nobody has published to yet must be ready: it could never be rolled out before.
        """
        return self.is_running and (self._runtime.is_subscribed or self._runtime.waits_for_topic)

    @property
    def is_healthy(self) -> bool:
        """For a liveness probe: True if the consumer runs and can receive, even while no nsqd has the topic.

        It can receive if an nsqd is connected, or an nsqlookupd answered the last query and no nsqd failed. False if
        a server at one of lookupd_http_addresses is not nsqlookupd. Reasons are in stats(): failures, lookupd_failures.
        """
        return self.is_running and self._runtime.can_receive

    @property
    def max_in_flight(self) -> int:
        """Limit of the messages in flight on all connections together. May be changed while the consumer runs."""
        return self._runtime.rdy.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, value: int) -> None:
        checked = ConsumerOptions(max_in_flight=value).max_in_flight
        self._in_owner_thread(self._runtime.rdy.set_max_in_flight, checked)

    @property
    def total_ready_count(self) -> int:
        """Sum of the RDY counts that were sent last on each connection."""
        return sum(connection.ready_count for connection in self._runtime.connections)

    @property
    def total_in_flight(self) -> int:
        """Number of messages in flight."""
        return self._runtime.in_flight

    @property
    def is_starved(self) -> bool:
        """True if a connection has nearly as many messages in flight as its RDY count allows. Then a handler that
        collects a batch must handle this batch, since nsqd may send no more messages before it gets answers.

        Source: the client guide, "Message Flow Starvation".
        """
        return any(is_starved(connection.in_flight, connection.ready_count) for connection in self._runtime.connections)

    @property
    def concurrency(self) -> int:
        """Number of handlers that may run at the same time."""
        return self.options.concurrency or self.max_in_flight

    def stats(self) -> ConsumerStats:
        """Return the current state and the counts since the start. Takes 10 us for each connection."""
        return self._runtime.stats(self._lifecycle.state.value, self._lifecycle.why_not_running())

    def note_failure(self, message: Message, error: BaseException) -> None:
        """Remember why a message failed, for the log line that is written when it is given up, and for its dead letter.

        Code that requeues messages itself, such as BatchHandler, calls this. Exceptions of handlers need no call.
        """
        self._runtime.runner.note_failure(message, error)

    def give_up(self, message: Message, reason: str | BaseException) -> None:
        """Give an unanswered message up, as if its handler had raised NSQGiveUp, for code that answers async messages.

        In the consumer's thread, this waits until the dead letter is published. Other threads do not wait. If the
        letter can't be published, or a give-up handler raises, the message is requeued.

        Args:
            reason: A text, as for NSQGiveUp; or an exception, whose class and text go into the dead letter.
        """
        error = reason if isinstance(reason, BaseException) else NSQGiveUp(reason)
        self._in_owner_thread(self._runtime.runner.give_up, message, error)

    def dead_letter(self, message: Message) -> DeadLetter:
        """For a receiver of on_giving_up that keeps messages itself: return the dead letter of the message, which says
        why it failed last.

        The consumer remembers the failures of the last 1000 messages that failed here. For other messages, the reason
        is "not seen here": another consumer of the channel had them before.
        """
        return self._runtime.runner.dead_letter(message)

    # --- methods that subclasses may override. An exception of handle_finish() or handle_requeue() is logged.

    def handle_message(self, conn: Connection | None, message: Message) -> None:
        """Call the handlers, then finish or requeue the message unless it is answered or async. A worker greenlet calls
        the override of a subclass instead of the handlers; max_tries and max_age have an effect only if it calls this
        method. conn is None if the connection is lost."""
        self._runtime.runner.handle(message)

    def handle_messages(self, messages: list[Message]) -> None:
        """Handle all waiting messages with one call, in a worker greenlet. If a subclass overrides this method, the
        override is called instead of handle_message(), and calls handlers of on_message only through super().

        Messages that the override leaves unanswered become async. If it raises, they are requeued: this counts as one
        failure, and on_exception is sent with the first of them (not for an NSQRequeueMessage). Messages with more
        attempts than max_tries, or older than max_age, are not in the list. handler_timeout is the limit of the whole
        call.
        """
        for message in messages:
            self._runtime.handle_one(message)

    def handle_finish(self, conn: Connection, message_id: bytes) -> None:
        """Send on_finish."""
        notify(self.on_finish, self, message_id=message_id)

    def handle_requeue(self, conn: Connection, message_id: bytes, timeout: int, backoff: bool) -> None:
        """Send on_requeue."""
        notify(self.on_requeue, self, message_id=message_id, timeout=timeout)

    # --- connections

    def query_nsqd(self) -> None:
        """Start connecting to nsqd_tcp_addresses. Does not wait."""
        for address in self.nsqd_tcp_addresses:
            self._in_owner_thread(functools.partial(self._runtime.pool.add, address, permanent=True))

    def query_lookupd(self) -> None:
        """Query all nsqlookupds once, and start connecting to the nsqds that they name. Waits for the nsqlookupds, but
        not if another thread calls this."""
        if not (self.is_closed and self._lifecycle.is_other_thread):
            self._in_owner_thread(self._runtime.query_lookupd)

    def connect_to_nsqd(self, address: str, port: int) -> None:
        """Start connecting to an nsqd. If that fails, try again only when an nsqlookupd names it. Does not wait.

        Raises:
            ValueError, TypeError: If the address is not valid.
        """
        add = functools.partial(self._runtime.pool.add, checked_address(address, port), permanent=False)
        self._in_owner_thread(add)

    def redistribute_ready_state(self) -> None:
        """Schedule an update of all RDY counts."""
        self._in_owner_thread(self._runtime.rdy.schedule_update)


OnMessages = Callable[[Consumer, list[Message]], None]


class BulkConsumer(Consumer):
    """Passes all messages that have arrived to a function with one call: a call for each takes twice as long in all.
    They become async."""

    def __init__(self, on_messages: OnMessages, *arguments: Any, **options: Any) -> None:  # Any: Consumer's own
        super().__init__(*arguments, **options)
        self._pass_on = on_messages

    def handle_messages(self, messages: list[Message]) -> None:
        self._pass_on(self, messages)
