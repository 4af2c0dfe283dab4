"""The Consumer: its public methods, start and close, discovery of nsqds, and the connections to them.

Other classes do the work: connections read and write, MessageDispatcher passes messages to handlers, and RdyController
sends RDY. The comment at the top of nsqd/connection.py lists the steps of a message.
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

import gevent
from gevent.event import Event

from gnsq.addresses import Addresses, checked_address, parse_addresses
from gnsq.clock import Clock, RealClock
from gnsq.concurrency.forks import register_after_fork
from gnsq.concurrency.greenlets import run_until_done, spawn
from gnsq.concurrency.hub_thread import HubThread
from gnsq.concurrency.threads import NO_TIMEOUT, Once, OwnerThread, ThreadEvent, checked_timeout, is_hub_greenlet
from gnsq.consumer.dispatcher import MessageDispatcher
from gnsq.consumer.handler_runner import Failure
from gnsq.consumer.handlers import Handler, HandlerSignal, check_handler, check_runs
from gnsq.consumer.options import ConsumerOptions, ConsumerOptionsDict, Delay, OptionAttribute
from gnsq.consumer.shutdown import Shutdown
from gnsq.discovery import MAX_NSQDS, TopicNodes, parse_lookupds
from gnsq.errors import NSQConnectionClosed, NSQErrorCode, NSQTimeout
from gnsq.httpclient import HttpOptionsDict
from gnsq.lifecycle import (
    ActiveGreenlets,
    call_at_exit,
    call_not_at_exit,
    not_closed_error,
    why_blocked,
    why_not_started,
)
from gnsq.logs import LogOwner
from gnsq.message import Message
from gnsq.nsqd.connect import load_certificates
from gnsq.nsqd.connection import Connection, ConnectionState
from gnsq.nsqd.pool import ConnectionPool, FirstAttempts, ReconnectOptions, State
from gnsq.options import ConnectionOptions, Seconds
from gnsq.protocol.commands import is_starved
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name, valid_channel_name
from gnsq.signals import (
    AuthReceiver,
    BackoffReceiver,
    CloseReceiver,
    ErrorReceiver,
    ExceptionReceiver,
    FinishReceiver,
    RequeueReceiver,
    ResponseReceiver,
    TypedSignal,
    notify,
)
from gnsq.stats import ConsumerStats, MessageCounts
from gnsq.texts import counted
from gnsq.tracebacks import clears_locals

__all__ = ["Consumer"]

# States of a consumer (stats().state):
#
#     +------+  start()  +---------+  close()  +---------+  drained, or close_timeout is over  +--------+
#     | init | --------> | running | --------> | closing | ----------------------------------> | closed |
#     +------+           +---------+           +---------+                                     +--------+
#         |                   |                                                                    ^
#         |                   +--- its thread ends (threaded), or this is a forked child process --+
#         +------------------- close(), or start() of a threaded consumer failed ------------------+

_IPV4 = re.compile(r"\d+(\.\d+){3}$")
# Seconds that close() may wait longer than its timeout: for REQs, and for the end of the connections.
CLOSE_GRACE = 3.0


class Consumer:
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
            is finished, unless it is answered or async. If it raises, the message is requeued, unless it is answered.
        threaded: True: run on a thread with its own gevent hub, for the Python prompt or programs that block their hub.
            Handlers run on that thread: a handler that blocks its hub delays other handlers and answers to heartbeats.
        keywords: Options of ConsumerOptions, ReconnectOptions and ConnectionOptions.

    NSQ may deliver messages more than once, and in any order. Receivers of on_message and on_giving_up may wait. If one
    of them raises an exception, the message is requeued if it is not answered. Receivers of all other signals must not
    wait: some of them run in the greenlet that reads a connection. If one of these raises, the exception is logged.

    The signal on_backoff is new since gnsq 1.0. Its keywords are ``phase`` ("start", "continue", "end"), ``failures``
    (counted failures, minus the successes since) and ``duration`` (of the pause, in seconds; 0 with "end").

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
        self.topic = topic
        self.channel = channel
        self.nsqd_tcp_addresses = set(parse_addresses(nsqd_tcp_addresses))
        self.lookupds = parse_lookupds(lookupd_http_addresses, lookupd_options)
        if not self.nsqd_tcp_addresses and not self.lookupds:
            hint = ""
            if not isinstance(channel, str) or not valid_channel_name(channel) or _IPV4.match(channel):
                hint = "; an address after the topic is taken as the channel: Consumer(topic, channel, addresses)"
            raise ValueError(f"consumer has no address: give nsqd_tcp_addresses or lookupd_http_addresses{hint}")
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
        assert_valid_topic_name(topic)
        assert_valid_channel_name(channel)
        if connection.heartbeat_interval == -1:
            raise ValueError(
                "heartbeat_interval -1 of a consumer must be at least 1 s: without heartbeats nsqd refuses SUB"
            )
        self.logger = logging.getLogger(name or f"gnsq.consumer.{topic}.{channel}")
        self.on_message = HandlerSignal("on_message")
        """A message was received and is to be handled."""
        self.on_response: TypedSignal[ResponseReceiver] = TypedSignal()
        """nsqd sent a response frame."""
        self.on_error: TypedSignal[ErrorReceiver] = TypedSignal()
        """nsqd sent an error frame."""
        self.on_finish: TypedSignal[FinishReceiver] = TypedSignal()
        """FIN was sent."""
        self.on_requeue: TypedSignal[RequeueReceiver] = TypedSignal()
        """REQ was sent. ``timeout`` is its delay in milliseconds."""
        self.on_giving_up = HandlerSignal("on_giving_up")
        """A message was delivered more than ``max_tries`` times. After the signal it is finished."""
        self.on_auth: TypedSignal[AuthReceiver] = TypedSignal()
        """nsqd has accepted the AUTH of a connection. ``conn`` has the ``address`` of the nsqd."""
        self.on_exception: TypedSignal[ExceptionReceiver] = TypedSignal()
        """A handler raised an exception other than NSQRequeueMessage."""
        self.on_close: TypedSignal[CloseReceiver] = TypedSignal()
        """The consumer has closed. Sent once."""
        self.on_backoff: TypedSignal[BackoffReceiver] = TypedSignal()
        """A pause after failures starts (``phase`` is "start"), continues ("continue") or ends ("end").
        ``duration`` is in seconds."""
        methods = ("handle_message", "handle_messages", "handle_finish")
        self._overrides = {name for name in methods if getattr(type(self), name) is not getattr(Consumer, name)}
        for method in ("handle_message", "handle_messages"):
            if method in self._overrides:
                check_runs(getattr(type(self), method), "override")
        if message_handler is not None:
            check_handler(message_handler, "message_handler")
            self.on_message.connect(message_handler, weak=False)
        self._clock = clock if clock is not None else RealClock()
        self.log_owner = LogOwner(name or f"{topic}/{channel}", self._clock.monotonic, topic=topic, channel=channel)
        self._connection_options = connection
        self._first_attempts = FirstAttempts(self._clock, self.log_owner, looks_up=bool(self.lookupds))
        self._pool = ConnectionPool(
            reconnect,
            self._clock,
            make=self._make_connection,
            setup=self._setup_connection,
            on_lost=self._on_connection_lost,
            owner=self.log_owner,
            first_attempts=self._first_attempts,
        )
        dispatcher = self._dispatcher = MessageDispatcher(self, self._pool, self._clock, self._overrides)
        self._runner, self._workers, self._rdy = dispatcher.runner, dispatcher.workers, dispatcher.rdy
        self._tasks: list[gevent.Greenlet] = []
        self._state = State.INIT
        self._owner_thread: OwnerThread | None = None
        self._hub_thread: HubThread | None = None
        # The first call of start() or close() acquires this object, so the consumer can't be started a second time.
        self._starting = Once()
        # Seconds of the first close(); None before it.
        self._close_limit: float | None = None
        self._active = ActiveGreenlets()
        self._closed = ThreadEvent()
        self._shutdown: Shutdown | None = None
        self._unanswered = 0
        self._end_reason = ""  # why it is closed without a close()
        self.has_lost_thread = False
        """True if the consumer's thread has ended before close(), for example since a handler called sys.exit()."""
        self._nodes = TopicNodes(self.lookupds, topic, self.log_owner)
        self._looked_up = False  # True if any nsqlookupd answered the last query_lookupd()
        # Time of the loss of each nsqd that was lost and is not connected again; of the last MAX_NSQDS of them.
        self._lost_nsqds: dict[str, float] = {}
        self._nsqd_lost = Event()

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        connections = len(self._pool.connections)
        return (
            f"<{type(self).__name__}{name} {self.topic}/{self.channel} {self._state.value}, "
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
        if self.threaded and self._state is State.INIT and is_hub_greenlet():
            raise RuntimeError("the hub itself can't wait for the consumer's thread; let a greenlet call start()")
        with self._active.marked():
            self._start()
        if block:
            self.join()

    def _start(self) -> None:
        if not self._starting.acquire():
            reason = self._end_reason or why_not_started("consumer", self._state, self._owner_thread)
            self.logger.warning("%s: not started again: %s", self.log_owner.label, reason)
            return
        if self.on_giving_up.collected_hint():
            text = "%s: messages that are given up are finished and lost%s"
            self.logger.warning(text, self.log_owner.label, self.on_giving_up.collected_hint())
        if self.threaded:
            self._start_on_thread()
        else:
            self._start_in_thread()

    def _start_in_thread(self) -> None:
        self._owner_thread = OwnerThread()
        self._state = State.RUNNING
        register_after_fork(self)
        call_at_exit(Consumer._close_at_exit, self)
        # Set _state, then read _close_limit. close() sets _close_limit, then reads _state. No close() is lost.
        if self._close_limit is not None:
            self._begin_close()
        else:
            self._connect_all()

    def _start_on_thread(self) -> None:
        try:
            self._hub_thread = HubThread(f"gnsq-consumer-{self.topic}", on_end=self._abort_with_thread)
            self._hub_thread.call(self._start_in_thread)
        except BaseException as error:
            if isinstance(error, RuntimeError) and self._closed.is_set:
                return  # the consumer was closed while it connected
            # The call was interrupted, or no thread could be started. Close, since no second start() is possible.
            if self._hub_thread is None:
                self._close_unstarted()
            else:
                with contextlib.suppress(RuntimeError):  # raised if the thread has ended
                    self._hub_thread.call_soon(
                        lambda: spawn("gnsq-abort", self._abort_start, on_failure="not closed in order")
                    )
            raise

    def _abort_start(self) -> None:
        if self._state is State.INIT:
            self._close_unstarted()
        else:
            self._ask_to_close(self.options.close_timeout)

    def _close_at_exit(self) -> None:
        """At the end of the program, close a threaded consumer. For others, log how many messages are in flight."""
        if self.threaded:
            try:
                self.close()
            except NSQTimeout as error:
                self.logger.warning("%s: %s", self.log_owner.label, error)
        elif in_flight := self.total_in_flight:
            text = "%s: the program ends with %s in flight, which nsqd delivers again: close() waits for them"
            self.logger.warning(text, self.log_owner.label, counted(in_flight, "message"))

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
        limit = checked_timeout(timeout, self.options.close_timeout)
        if self._starting.acquire():
            self._close_unstarted()
        self._ask_to_close(limit)
        limit += CLOSE_GRACE
        if not (self._must_not_wait() or self._wait_closed(limit)):
            call_not_at_exit(self)  # it would wait for the same again
            raise not_closed_error("consumer", limit, self._owner_thread, threaded=self.threaded)

    def _ask_to_close(self, limit: float) -> None:
        """Begin the close, in the consumer's thread. Does not wait."""
        if self._close_limit is None:
            # If start() runs in another thread at the same time, it reads this after it has set _state.
            self._close_limit = limit
        if self._state is State.RUNNING and self._owner_thread is not None:
            if self._owner_thread.is_current:
                self._begin_close()
                return
            try:
                self._owner_thread.call_soon(self._begin_close)
            except NSQConnectionClosed:
                self._abort_after_thread_death()

    def _begin_close(self) -> None:
        if self._state is State.RUNNING and self._close_limit is not None:
            self._state = State.CLOSING
            self._shutdown = Shutdown(
                self._close_limit, self._workers, self._pool, self._clock, self.log_owner.label, self.logger
            )
            # In a new greenlet, which continues even if the caller is killed or interrupted by a gevent.Timeout.
            closer = spawn(f"gnsq-close-{self.topic}", self._close, self._shutdown, on_failure="not closed in order")
            self._tasks.append(closer)

    def join(self, timeout: Seconds | None = None, raise_error: bool = False) -> None:
        """Wait until the consumer has closed, up to the timeout (seconds). Do not wait if it was never started.

        In a handler, after close(), this does not wait for handlers in join(). Other callers that close() does not wait
        in do not wait here either. raise_error has no effect.
        """
        limit = checked_timeout(timeout, NO_TIMEOUT)
        if self._in_handler() and self._shutdown is not None:
            self._shutdown.wait_for_others(limit)
        elif self._starting.is_acquired and not self._must_not_wait():
            self._wait_closed(limit)

    def _wait_closed(self, limit: float) -> bool:
        is_closed = self._closed.wait(limit)
        if is_closed and self._hub_thread is not None and self._is_other_thread:
            self._hub_thread.stop()
        return is_closed

    def _in_handler(self) -> bool:
        return self._workers.is_current

    def _must_not_wait(self) -> bool:
        """Return True if the caller must not wait for the close.

        These must not wait: the hub itself, a greenlet that the close waits for, such as that of a handler, and a
        signal handler that has interrupted one of them or a start().
        """
        if self._active.must_not_wait() or self._in_handler():
            return True
        current = gevent.getcurrent()
        return not self._is_other_thread and (current in self._tasks or self._pool.owns_greenlet(current))

    def answering(self) -> contextlib.AbstractContextManager[None]:
        """Mark the calling greenlet in a ``with`` block as one that answers async messages, as a handler does.

        There close() does not wait, since it would wait for the answers of this very greenlet. BatchHandler calls this.
        """
        return self._active.marked()

    def why_blocked(self, limit: float) -> str:
        """For a liveness probe: return why the consumer's thread does not run its hub within some seconds; "" if it
        does. Waits for that; in the consumer's own thread there is nothing to wait for."""
        return why_blocked(self._owner_thread, limit)

    def __enter__(self) -> Self:
        self.start(block=False)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def pause(self) -> None:
        """Request no more messages (RDY 0). Delivered messages are still handled. May be called from any thread."""
        self._in_owner_thread(self._rdy.pause, True)

    def resume(self) -> None:
        """Request messages again after pause()."""
        self._in_owner_thread(self._rdy.pause, False)

    def apply_options(self) -> None:
        """Put into effect the options that were set as attributes."""
        self._in_owner_thread(self._rdy.configure, self.options)

    def _in_owner_thread(self, function: Callable[..., object], *arguments: Any) -> None:  # Any: any arguments
        """Call a function in the consumer's thread: soon if the caller is another thread, otherwise now.

        After the consumer was closed, call the function now, in the caller's thread: the consumer's may have ended.
        """
        if self._owner_thread is not None and self._is_other_thread and self._state is not State.CLOSED:
            self._owner_thread.spawn(function, *arguments)
        else:
            function(*arguments)

    @property
    def _is_other_thread(self) -> bool:
        """True if the caller runs in another thread than the consumer."""
        return self._owner_thread is not None and not self._owner_thread.is_current

    def after_fork_in_child(self, parent: int) -> None:
        """Stop in this child process. In the parent the consumer continues. See concurrency/forks.py."""
        self._state = State.CLOSED
        self._end_reason = f"it runs in process {parent}, and this process was forked from it"
        self._active = ActiveGreenlets()
        for task in self._tasks:
            task.kill(block=False)
        self._workers.abort()
        # Only forget the connections: Connection.after_fork_in_child() closes this process's copies of their sockets.
        self._pool.connections.clear()
        self._end()

    # --- state

    @property
    def is_running(self) -> bool:
        """True from start() until close() or the end of the consumer's thread. False in a child that is forked then."""
        return self._state is State.RUNNING

    @property
    def is_closed(self) -> bool:
        """True after the end of close()."""
        return self._state is State.CLOSED

    @property
    def is_ready(self) -> bool:
        """For a readiness probe: True if the consumer runs and is subscribed to an nsqd, or waits for its topic: an
        nsqlookupd has answered that no nsqd has it, and none has had it. Otherwise see stats().not_ready.

        A worker whose topic nobody has published to yet must be ready: it could never be rolled out before.
        """
        return self.is_running and (self._is_subscribed or self._waits_for_topic)

    @property
    def _is_subscribed(self) -> bool:
        connections = list(self._pool.connections.values())
        return any(connection.state is ConnectionState.SUBSCRIBED for connection in connections)

    @property
    def _waits_for_topic(self) -> bool:
        known = self.nsqd_tcp_addresses or self._nodes.addresses or self._lost_nsqds or self._pool.failures()
        return self._looked_up and not (known or self._nodes.report.wrong)

    @property
    def is_healthy(self) -> bool:
        """For a liveness probe: True if the consumer runs and can receive, even while no nsqd has the topic.

        It can receive if an nsqd is connected, or an nsqlookupd answered the last query and no nsqd failed. False if
        a server at one of lookupd_http_addresses is not nsqlookupd. Reasons are in stats(): failures, lookupd_failures.
        """
        if not self.is_running or self._nodes.report.wrong:
            return False
        return bool(self._pool.connections) or (self._looked_up and not self._pool.failures())

    @property
    def max_in_flight(self) -> int:
        """Limit of the messages in flight on all connections together. May be changed while the consumer runs."""
        return self._rdy.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, value: int) -> None:
        checked = ConsumerOptions(max_in_flight=value).max_in_flight
        self._in_owner_thread(self._rdy.set_max_in_flight, checked)

    @property
    def total_ready_count(self) -> int:
        """Sum of the RDY counts that were sent last on each connection."""
        return sum(connection.ready_count for connection in list(self._pool.connections.values()))

    @property
    def total_in_flight(self) -> int:
        """Number of messages in flight."""
        return sum(connection.in_flight for connection in list(self._pool.connections.values()))

    @property
    def is_starved(self) -> bool:
        """True if a connection has nearly as many messages in flight as its RDY count allows. Then a handler that
        collects a batch must handle this batch, since nsqd may send no more messages before it gets answers.

        Source: the client guide, "Message Flow Starvation".
        """
        connections = list(self._pool.connections.values())
        return any(is_starved(connection.in_flight, connection.ready_count) for connection in connections)

    @property
    def concurrency(self) -> int:
        """Number of handlers that may run at the same time."""
        return self.options.concurrency or self.max_in_flight

    def stats(self) -> ConsumerStats:
        """Return the current state and the counts since the start. Takes 10 us for each connection."""
        rdy, workers, runner = self._rdy, self._workers, self._runner
        failures = {address: error.explanation for address, error in self._pool.failures().items()}
        connections = tuple(connection.stats() for connection in list(self._pool.connections.values()))
        counts = dict(self._dispatcher.closed_counts)
        for connection in connections:
            counts[connection.address] = counts.get(connection.address, MessageCounts()) + connection.counts
        return ConsumerStats(
            topic=self.topic,
            channel=self.channel,
            state=self._state.value,
            max_in_flight=self.max_in_flight,
            connections=connections,
            counts=sum(counts.values(), MessageCounts()),
            given_up=runner.given_up,
            failed=runner.failed,
            waiting=len(workers.inbox),
            handling=len(workers.handling),
            backoff=rdy.backoff.phase.value,
            backoff_failures=rdy.backoff.failures,
            backoff_remaining=rdy.backoff_remaining,
            latency=workers.latency.histogram(),
            handlers_overdue=len(runner.overdue()),
            handlers_timed_out=runner.handlers_timed_out,
            async_timed_out=runner.async_timed_out,
            failures=failures,
            lookupd_failures=dict(self._nodes.report.failures),
            not_ready=self._why_not_ready(failures),
            unanswered=self._unanswered,
            counts_by_nsqd=counts,
        )

    def _why_not_ready(self, failures: dict[str, str]) -> str:
        if self._state is not State.RUNNING:
            if self._end_reason:
                return f"closed: {self._end_reason}"
            return "not started" if self._state is State.INIT else self._state.value
        if self._is_subscribed:
            return ""
        reasons = [f"{address}: {text}" for address, text in failures.items()]
        connecting = sorted((self.nsqd_tcp_addresses | self._nodes.addresses) - failures.keys())
        reasons += [f"{address}: still connecting" for address in connecting]
        if not self._nodes.addresses:
            reasons += self._nodes.report.explanations(self.lookupds, self.topic)
        return "; ".join(reasons)

    def note_failure(self, message: Message, error: BaseException) -> None:
        """Remember why a message failed, for the log line that is written when it is given up, and for last_failure().

        Code that requeues messages itself, such as BatchHandler, calls this. Exceptions of handlers need no call.
        """
        self._runner.note_failure(message, error)

    def last_failure(self, message: Message) -> Failure:
        """For a receiver of on_giving_up: return why the message failed last.

        The consumer remembers the failures of the last 1000 messages that failed here. For other messages, the text is
        "not seen here": another consumer of the channel had them before.
        """
        return self._runner.last_failure(message)

    # --- methods that subclasses may override. If handle_response() or one of the four methods after it raises an
    # exception, the exception is logged.

    def handle_message(self, conn: Connection | None, message: Message) -> None:
        """Call the handlers, then finish or requeue the message unless it is answered or async. A worker greenlet calls
        the override of a subclass instead of the handlers. conn is None if the connection is lost."""
        self._runner.handle(message)

    def handle_messages(self, messages: list[Message]) -> None:
        """Handle all waiting messages with one call, in a worker greenlet. If a subclass overrides this method, the
        override is called instead of handle_message(), and calls handlers of on_message only through super().

        Messages that the override leaves unanswered become async. If it raises, they are requeued: this counts as one
        failure, and on_exception is sent with the first of them (not for an NSQRequeueMessage). Messages with more
        attempts than max_tries are not in the list. handler_timeout is the limit of the whole call.
        """
        for message in messages:
            self._dispatcher.handle_one(message)

    def handle_response(self, conn: Connection, response: bytes) -> None:
        """Send on_response."""
        notify(self.on_response, self, response=response)

    def handle_error(self, conn: Connection, error: NSQErrorCode) -> None:
        """Send on_error."""
        notify(self.on_error, self, error=error)

    def handle_auth(self, conn: Connection, response: dict[str, object]) -> None:
        """Send on_auth."""
        notify(self.on_auth, self, conn=conn, response=response)

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
            self._in_owner_thread(functools.partial(self._pool.add, address, permanent=True))

    def query_lookupd(self) -> None:
        """Query all nsqlookupds once, and start connecting to the nsqds that they name. Waits for the nsqlookupds, but
        not if another thread calls this."""
        if self._is_other_thread:
            if self._state is not State.CLOSED:
                self._in_owner_thread(self.query_lookupd)
            return
        before = self._nodes.addresses

        def add(address: str) -> None:
            self._pool.add(address, permanent=False)
            if address not in before:
                # The nsqd has registered since the last query: connect now, even after many failed attempts.
                self._pool.retry(address)

        self._looked_up = self._nodes.refresh(add, self._pool.connections.keys() - self.nsqd_tcp_addresses)
        self._pool.retain_only(self._nodes.addresses)
        if not self._pool.connections:
            self._nodes.report.log_empty_round(self.logger, self.lookupds, self.topic, self._poll_interval)

    @property
    def _poll_interval(self) -> float:
        """Seconds between two calls of query_lookupd(), without jitter."""
        return self.options.poll_interval(self._clock.monotonic() - since for since in self._lost_nsqds.values())

    def connect_to_nsqd(self, address: str, port: int) -> None:
        """Start connecting to an nsqd. If that fails, try again only when an nsqlookupd names it. Does not wait.

        Raises:
            ValueError, TypeError: If the address is not valid.
        """
        self._in_owner_thread(functools.partial(self._pool.add, checked_address(address, port), permanent=False))

    def redistribute_ready_state(self) -> None:
        """Schedule an update of all RDY counts."""
        self._in_owner_thread(self._rdy.schedule_update)

    def _connect_all(self) -> None:
        self.query_nsqd()
        self._spawn("rdy", self._rdy.run)
        self._spawn("overdue", self._runner.log_regularly)
        if self.lookupds:
            self._spawn("lookup", self._poll_lookupds)
        self._first_attempts.wait()

    def _spawn(self, name: str, loop: Callable[[], None]) -> None:
        what = f"the greenlet for {name} of consumer {self.log_owner.label}"
        arguments = run_until_done, what, loop, self.logger, self._clock
        self._tasks.append(spawn(f"gnsq-{name}-{self.topic}", *arguments, on_failure="it has ended"))

    def _poll_lookupds(self) -> None:
        try:
            self.query_lookupd()
        finally:
            self._first_attempts.lookup_ended()
        while True:
            spread = 1 + self.options.lookupd_poll_jitter * (random.random() - 0.5)
            began = self._clock.monotonic()
            while (left := began + self._poll_interval * spread - self._clock.monotonic()) > 0:
                self._nsqd_lost.clear()
                self._clock.wait(self._nsqd_lost, left)
            self.query_lookupd()

    def _make_connection(self, address: str) -> Connection:
        return self._dispatcher.make_connection(address, self._connection_options)

    def _setup_connection(self, connection: Connection) -> None:
        if connection.identity.auth:
            self._dispatcher.call_hook(self.handle_auth, connection, dict(connection.identity.auth))
        connection.subscribe(self.topic, self.channel)
        self._lost_nsqds.pop(connection.address, None)
        self._dispatcher.add(connection)

    def _on_connection_lost(self, connection: Connection) -> None:
        self._dispatcher.remove(connection)
        if len(self._lost_nsqds) >= MAX_NSQDS:
            del self._lost_nsqds[next(iter(self._lost_nsqds))]
        self._lost_nsqds[connection.address] = self._clock.monotonic()
        self._nsqd_lost.set()

    # --- end

    def _close(self, shutdown: Shutdown) -> None:
        try:
            gevent.killall([task for task in self._tasks if task is not gevent.getcurrent()])
            self._rdy.stop()
            self._unanswered = shutdown.run()
            self._runner.log_given_up_summary(at_once=True)
            for lookupd in self.lookupds:
                lookupd.close()
        finally:
            self._state = State.CLOSED
            self._workers.close()
            self._tell_end()

    def _close_unstarted(self) -> None:
        self._state = State.CLOSED
        self._pool.close(0)
        self._end()

    def _abort_with_thread(self) -> None:
        """Abort if the thread ends before close(), for example when a handler calls sys.exit()."""
        if self._state is State.RUNNING:
            self._note_lost_thread()
            # Abort, do not drain: during a drain, nsqd could redeliver the message whose handler ended the thread.
            for connection in list(self._pool.connections.values()):
                connection.abort()
            try:
                self._pool.close(0)
            finally:
                self._tell_end()

    def _abort_after_thread_death(self) -> None:
        """Close a consumer that is not threaded, and whose thread, and thus whose hub, has ended."""
        self._note_lost_thread()
        for connection in list(self._pool.connections.values()):
            with contextlib.suppress(Exception):
                connection.abort_without_owner(NSQConnectionClosed("the consumer's thread has ended"))
        self._tell_end()

    def _note_lost_thread(self) -> None:
        self._state, self._end_reason = State.CLOSED, "its thread has ended"
        self.has_lost_thread = True
        self._unanswered = self.total_in_flight

    def _tell_end(self) -> None:
        """Send on_close, then end."""
        try:
            with self._active.marked():  # so close() and join() in its receivers do not wait for _end()
                notify(self.on_close, self)
        finally:
            self._end()

    def _end(self) -> None:
        """Wake the callers of close() and join(), and stop the thread of a threaded consumer."""
        call_not_at_exit(self)
        self._closed.set()
        if self._hub_thread is not None:
            # Call stop() last: it also kills the greenlet that runs this method.
            self._hub_thread.stop()
