"""Consumer: discovery, connections, the inbox, its workers, and what becomes of each message.

Policy only: bytes are Connection's, the sharing out of RDY is rdy.py's. The path of a message: a connection's reader
hands each chunk to _receive(), which fills the inbox; worker greenlets take from it and call the handlers; the
outcome goes back through Message to the connection.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import gevent
from blinker import ANY, Signal
from gevent.event import Event

from gnsq.addresses import Addresses, parse_addresses
from gnsq.clock import Clock, RealClock
from gnsq.discovery import lookup_nsqds, parse_lookupds
from gnsq.errors import NSQConnectionClosed, NSQErrorCode, NSQRequeueMessage
from gnsq.message import Handler, Message
from gnsq.nsqd.connection import Connection
from gnsq.nsqd.opening import prepared
from gnsq.options import ConnectionOptions, Options, option
from gnsq.pool import ConnectionPool, Life, ReconnectOptions
from gnsq.protocol.names import assert_valid_channel_name, assert_valid_topic_name
from gnsq.rdy import RdyPolicy
from gnsq.signals import notify

__all__ = ["Consumer", "ConsumerOptions"]

# A worker ends behind the message with which it has worked for so many seconds; another goes on.
SLICE = 0.002
# A message that no handler saw, because none is connected any more, comes again after so many milliseconds.
UNHANDLED_DELAY = 1000


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(Options):
    """How a Consumer treats messages and nsqds. requeue_delay keeps the milliseconds of gnsq 1.0."""

    max_tries: int = option(5, "more attempts than this: given up; 0: never", unit="attempts", minimum=0)
    max_in_flight: int = option(1, "messages delivered and not yet answered", unit="messages", minimum=1)
    requeue_delay: float = option(0, "until a failed message comes again", unit="ms", minimum=0)
    lookupd_poll_interval: float = option(60, "between rounds of asking all nsqlookupds", unit="s", minimum=0.001)
    lookupd_poll_jitter: float = option(0.3, "share of the interval that is random", minimum=0, maximum=1)
    low_ready_idle_timeout: float = option(
        10, "with fewer messages in flight than nsqds: until others get their turn", unit="s", minimum=0.001
    )
    concurrency: int | None = option(None, "handlers at once; default: max_in_flight", unit="greenlets", minimum=1)
    close_timeout: float = option(
        30.0, "for what is in flight when close() is called; nsqd delivers the rest again", unit="s", minimum=0
    )


class Consumer:
    """Receive the messages of one channel.

    Args:
        topic, channel: What to subscribe to.
        nsqd_tcp_addresses: ``host:port``, or a list, tuple or set of them.
        lookupd_http_addresses: URL or ``host[:port]``, or a list or tuple of them.
        name: Of the logger; default ``gnsq.consumer.TOPIC.CHANNEL``.
        message_handler: Called as handler(consumer, message=message), in a worker greenlet. Returns: the message is
            finished. Raises: it is requeued.
        options: Those of ConsumerOptions, ReconnectOptions and ConnectionOptions.

    Every delivery may be a duplicate: NSQ delivers at least once. Messages come in no order that can be relied on.
    Receivers of the other signals run where the event occurs, partly in the greenlet that reads a connection: they
    must not wait. One that raises is logged.

    Raises:
        ValueError: If there is no address at all, or a name, address or option is not valid.
        TypeError: If an address or option has the wrong type, or an option does not exist.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        name: str | None = None,
        message_handler: Handler | None = None,
        max_tries: int = 5,
        max_in_flight: int = 1,
        requeue_delay: float = 0,
        lookupd_poll_interval: float = 60,
        lookupd_poll_jitter: float = 0.3,
        low_ready_idle_timeout: float = 10,
        *,
        concurrency: int | None = None,
        close_timeout: float = 30.0,
        clock: Clock | None = None,
        **options: Any,  # Any: each option's own type, checked where they are taken apart
    ) -> None:
        assert_valid_topic_name(topic)
        assert_valid_channel_name(channel)
        self.topic = topic
        self.channel = channel
        self.nsqd_tcp_addresses = parse_addresses(nsqd_tcp_addresses)
        self.lookupds = parse_lookupds(lookupd_http_addresses)
        if not self.nsqd_tcp_addresses and not self.lookupds:
            raise ValueError("consumer has no address: give nsqd_tcp_addresses or lookupd_http_addresses")
        random.shuffle(self.lookupds)
        self.options = ConsumerOptions(
            max_tries=max_tries,
            max_in_flight=max_in_flight,
            requeue_delay=requeue_delay,
            lookupd_poll_interval=lookupd_poll_interval,
            lookupd_poll_jitter=lookupd_poll_jitter,
            low_ready_idle_timeout=low_ready_idle_timeout,
            concurrency=concurrency,
            close_timeout=close_timeout,
        )
        reconnect = ReconnectOptions.take(options)
        self.logger = logging.getLogger(name or f"gnsq.consumer.{topic}.{channel}")
        self.on_message = Signal()
        self.on_response = Signal()
        self.on_error = Signal()
        self.on_finish = Signal()
        self.on_requeue = Signal()
        self.on_giving_up = Signal()
        self.on_auth = Signal()
        self.on_exception = Signal()
        self.on_close = Signal()
        if message_handler is not None:
            self.on_message.connect(message_handler, sender=ANY, weak=False)
        self._clock = clock if clock is not None else RealClock()
        self._pool = ConnectionPool(
            prepared(ConnectionOptions.of("Consumer", options)),
            reconnect,
            self._clock,
            prepare=self._prepare,
            setup=self._setup,
            on_lost=self._lost,
        )
        self._rdy: RdyPolicy[Connection] = RdyPolicy(max_in_flight)
        self._inbox: deque[Message] = deque()
        self._receivers: tuple[Callable[..., object], ...] = ()
        self._workers: set[gevent.Greenlet] = set()
        self._wake_due = False
        self._rdy_due = False
        self._tasks: list[gevent.Greenlet] = []
        self._state = Life.INIT
        self._closed = Event()

    # --- life

    def start(self, block: bool = True) -> None:
        """Connect and receive. Returns when every nsqd known so far has been tried once; with block, when closed.

        An nsqd that is down is no error: it is tried again.

        Raises:
            RuntimeError: If nothing is connected to on_message.
        """
        if not list(self.on_message.receivers_for(self)):
            raise RuntimeError("consumer has no handler: give message_handler or connect one to on_message")
        if self._state is Life.CLOSED:
            self.logger.warning("consumer of %s/%s was closed; make a new one", self.topic, self.channel)
            return
        if self._state is Life.INIT:
            self._state = Life.RUNNING
            self._connect_all()
        else:
            self.logger.warning("consumer of %s/%s is running already", self.topic, self.channel)
        if block:
            self.join()

    def close(self) -> None:
        """Begin to end, in order: no new messages, what was delivered is worked off for up to close_timeout, then the
        connections are closed. Returns at once; join() waits. May be called from a handler, and twice."""
        if self._state is Life.INIT:
            self._state = Life.CLOSED
            self._closed.set()
        if self._state is not Life.RUNNING:
            return
        self._state = Life.CLOSING
        closer = gevent.spawn(self._close)
        closer.name = f"gnsq-close-{self.topic}"

    def join(self, timeout: float | None = None, raise_error: bool = False) -> None:
        """Wait until the consumer has closed, or the timeout (seconds) ends."""
        self._closed.wait(timeout)

    def __enter__(self) -> Self:
        self.start(block=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        self.join()

    def pause(self) -> None:
        """Ask nsqd for no further messages (RDY 0); what was delivered is still handled."""
        self._rdy.paused = True
        self._share_out()

    def resume(self) -> None:
        """Undo pause()."""
        self._rdy.paused = False
        self._share_out()

    # --- state

    @property
    def is_running(self) -> bool:
        """Whether it was started and not closed."""
        return self._state is Life.RUNNING

    @property
    def max_in_flight(self) -> int:
        """Messages delivered and not yet answered, over all connections; may be changed while running."""
        return self._rdy.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, value: int) -> None:
        ConsumerOptions(max_in_flight=value)  # checks the bounds
        self._rdy.max_in_flight = value
        self._share_out()

    @property
    def total_ready_count(self) -> int:
        """Sum of the RDY counts that were sent last."""
        return sum(connection.ready_count for connection in self._pool.connections.values())

    @property
    def total_in_flight(self) -> int:
        """Messages delivered and not yet answered."""
        return sum(connection.in_flight for connection in self._pool.connections.values())

    @property
    def is_starved(self) -> bool:
        """Whether some connection has nearly all its messages in flight: time to work off a batch.

        Source: the client guide, "Message Flow Starvation".
        """
        return any(
            connection.in_flight >= max(connection.ready_count * 0.85, 1)
            for connection in self._pool.connections.values()
        )

    @property
    def concurrency(self) -> int:
        """Handlers that may run at once."""
        return self.options.concurrency or self.max_in_flight

    # --- connections

    def _connect_all(self) -> None:
        for address in self.nsqd_tcp_addresses:
            self._pool.add(address, permanent=True)
        self._spawn("rotate", self._rotate)
        if self.lookupds:
            self._query_lookupds()
            if self._state is not Life.RUNNING:
                return
            self._spawn("lookup", self._poll_lookupds)
        self._pool.wait_tried()

    def _spawn(self, name: str, loop: Callable[[], None]) -> None:
        greenlet = gevent.spawn(loop)
        greenlet.name = f"gnsq-{name}-{self.topic}"
        self._tasks.append(greenlet)

    def _query_lookupds(self) -> None:
        lookup_nsqds(self.lookupds, self.topic, lambda address: self._pool.add(address, permanent=False))

    def _poll_lookupds(self) -> None:
        options = self.options
        while True:
            spread = 1 + options.lookupd_poll_jitter * (random.random() - 0.5)
            self._clock.sleep(options.lookupd_poll_interval * spread)
            self._query_lookupds()

    def _rotate(self) -> None:
        while True:
            self._clock.sleep(self.options.low_ready_idle_timeout)
            if self._rdy.crowded:
                self._rdy.rotate()
                self._share_out()

    def _prepare(self, connection: Connection) -> None:
        connection.on_messages = self._receive
        connection.on_response = self._handle_response
        connection.on_error = self._handle_error

    def _setup(self, connection: Connection) -> None:
        if connection.identity.auth:
            notify(self.on_auth, self, conn=connection, response=dict(connection.identity.auth))
        connection.subscribe(self.topic, self.channel)
        self._rdy.add(connection, connection.identity.max_rdy_count)
        self._share_out()

    def _lost(self, connection: Connection) -> None:
        self._rdy.remove(connection)
        self._share_out()

    def _share_out(self) -> None:
        """Send each connection the RDY that the policy gives it now."""
        self._rdy_due = False
        connections = self._pool.connections.values()
        changes = self._rdy.decide({connection: connection.in_flight for connection in connections})
        for connection, count in changes.items():
            if connection.is_open:
                connection.ready(count)
        # Answers are looked at only while somebody waits for what they free: it costs a call for each.
        watch = self._answered if self._rdy.owed else None
        for connection in connections:
            connection.answers.on_answered = watch

    def _answered(self) -> None:
        if not self._rdy_due:
            self._rdy_due = True
            gevent.get_hub().loop.run_callback(self._share_out)

    # --- messages

    def _receive(self, connection: Connection, messages: list[Message]) -> None:
        """Take a chunk's messages in. What the hot path needs of signals is asked here, once per chunk."""
        self._receivers = tuple(self.on_message.receivers_for(self))
        answers = connection.answers
        answers.on_finish = self._send_finish if self.on_finish.receivers else None
        answers.on_requeue = self._send_requeue if self.on_requeue.receivers else None
        self._inbox.extend(messages)
        if self._may_wake():
            self._add_worker(gevent.spawn(self._work))

    def _may_wake(self) -> bool:
        return not self._wake_due and len(self._workers) < self.concurrency

    def _add_worker(self, worker: gevent.Greenlet) -> None:
        self._wake_due = True
        worker.name = f"gnsq-worker-{self.topic}"
        self._workers.add(worker)

    def _work(self) -> None:
        """Handle messages until the inbox is empty or the slice is over, then end.

        Before each message the next worker is put on its way, so that a handler that waits keeps nobody waiting.
        That one, and the one that goes on behind a slice, begin in the loop's next round: between two rounds it
        looks at its sockets, which it does not between two callbacks, of which sleep(0) is one. So handlers that
        only compute, however many at once, hold up heartbeats no longer than one of them takes.
        """
        self._wake_due = False
        inbox = self._inbox
        now = self._clock.monotonic
        # A look at the clock costs 0.05 us.
        end_of_slice = now() + SLICE
        try:
            while inbox and now() < end_of_slice:
                message = inbox.popleft()
                if inbox and self._may_wake():
                    self._add_worker(gevent.spawn_later(0, self._work))
                self._handle(message)
        finally:
            self._workers.discard(gevent.getcurrent())
            if inbox and self._may_wake():
                self._add_worker(gevent.spawn_later(0, self._work))

    def _handle(self, message: Message) -> None:
        """Call the handlers, and answer according to how they end."""
        try:
            if 0 < self.options.max_tries < message.attempts:
                self._give_up(message)
                return
            if not self._receivers:
                self.logger.error("message %s: no handler is connected to on_message any more; requeued", message.id)
                message.requeue(UNHANDLED_DELAY, backoff=False)
                return
            try:
                for receiver in self._receivers:
                    receiver(self, message=message)
            except NSQRequeueMessage as request:
                self._requeue(message, backoff=request.backoff is not False)
                return
            except (Exception, gevent.Timeout) as error:  # noqa: BLE001  # a handler may raise anything
                self._handler_failed(message, error)
                return
            except BaseException:
                # Killed, or the program ends: the message must not wait for its timeout.
                self._requeue(message, backoff=False)
                raise
            if not message.is_async() and not message.has_responded():
                message.finish()
        except NSQConnectionClosed as error:
            # nsqd delivers the message again when its timeout ends.
            self.logger.info("message %s: no answer sent, its connection is gone: %s", message.id, error)

    def _give_up(self, message: Message) -> None:
        self.logger.warning(
            "message %s: given up, delivered %d times, max_tries is %d",
            message.id,
            message.attempts,
            self.options.max_tries,
        )
        try:
            self.on_giving_up.send(self, message=message)
        except Exception as error:  # noqa: BLE001  # the message is not lost: it is requeued
            self._handler_failed(message, error)
            return
        if not message.has_responded():
            message.finish()

    def _handler_failed(self, message: Message, error: BaseException) -> None:
        self.logger.exception("message %s: handler raised, message is requeued", message.id)
        notify(self.on_exception, self, message=message, error=error)
        self._requeue(message, backoff=True)

    def _requeue(self, message: Message, backoff: bool) -> None:
        if not message.has_responded():
            message.requeue(round(self.options.requeue_delay), backoff)

    # --- signals

    def _handle_response(self, connection: Connection, data: bytes) -> None:
        notify(self.on_response, self, response=data)

    def _handle_error(self, connection: Connection, error: NSQErrorCode) -> None:
        notify(self.on_error, self, error=error)

    def _send_finish(self, message_id: bytes) -> None:
        notify(self.on_finish, self, message_id=message_id)

    def _send_requeue(self, message_id: bytes, timeout: int, backoff: bool) -> None:
        notify(self.on_requeue, self, message_id=message_id, timeout=timeout)

    # --- end

    def _close(self) -> None:
        try:
            gevent.killall(self._tasks)
            self._pool.close(self.options.close_timeout)
            for lookupd in self.lookupds:
                lookupd.close()
            # What is still in the inbox lost its connection; nsqd delivers it again.
            self._inbox.clear()
        finally:
            self._state = Life.CLOSED
            self._closed.set()
            notify(self.on_close, self)
