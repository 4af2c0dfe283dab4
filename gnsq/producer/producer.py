"""Producer: publishes that each end as confirmed, refused, not sent, or unknown.

The face of it: arguments checked, commands built, threads told apart. The path of a publish goes on in dispatcher.py;
its start and end are lifetime.py's, connections and greenlets running.py's.

Making: from a call's arguments to a Publish; what nsqd would refuse is refused here, before anything is sent.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sized
from typing import Any, Literal, Self, Unpack, overload

from gnsq.addresses import Addresses, format_address, ordered_addresses, parse_address
from gnsq.clock import Clock, RealClock
from gnsq.concurrency.threads import CROSS_THREAD_GRACE, NO_TIMEOUT, current_thread, is_hub_greenlet
from gnsq.discovery import parse_lookupds
from gnsq.errors import NSQErrorCode, NSQTimeout
from gnsq.httpclient import HttpOptionsDict
from gnsq.logs import LogOwner
from gnsq.nsqd.connect import load_certificates
from gnsq.nsqd.connection import Connection
from gnsq.nsqd.pool import ReconnectOptions, State
from gnsq.options import ConnectionOptions, parameters_of
from gnsq.producer.batching import Member
from gnsq.producer.http import check_no_tcp, wanted_clients
from gnsq.producer.lifecycle import Lifetime, begin, publish_and_wait
from gnsq.producer.options import ProducerOptions, ProducerOptionsDict
from gnsq.producer.publish import Publish, Totals, Unconfirmed
from gnsq.producer.publish_many import Chunk, Publishing, publish_chunks
from gnsq.producer.result import PublishResult
from gnsq.producer.routing import make_strategy
from gnsq.producer.runtime import Running, RuntimeConfig
from gnsq.protocol import commands
from gnsq.protocol.frames import OK
from gnsq.protocol.names import MAX_NAME_LENGTH, assert_valid_topic_name
from gnsq.signals import AuthReceiver, CloseReceiver, ErrorReceiver, ResponseReceiver, TypedSignal, notify
from gnsq.stats import LatencyRecorder, ProducerConnectionStats, ProducerStats
from gnsq.texts import counted

__all__ = [
    "Making",
    "Producer",
    "check_timeout",
]


Key = bytes | str | None
# How many valid names are kept.
MAX_TOPICS = 1000


class Making:
    """Makes publishes of one producer.

    Args:
        max_name_length: Of topics.
        now: Tells monotonic seconds.
    """

    def __init__(self, options: ProducerOptions, max_name_length: int, now: Callable[[], float]) -> None:
        self._timeout = options.publish_timeout
        self._max_msg_size = options.max_msg_size
        self._max_body_size = options.max_body_size
        self._max_name_length = max_name_length
        self._now = now
        # Known to be valid.
        self._topics: set[str] = set()
        self._batches = options.batch_messages is not None
        self._needs_key = options.strategy == "consistent"
        # Whether there is anything to check that the commands' builders do not.
        self._strict = max_name_length < MAX_NAME_LENGTH or options.max_msg_size is not None

    def single(self, topic: str, data: bytes, defer: int | None, timeout: float | None, key: Key) -> Publish:
        """Make a PUB, a DPUB, or a member of a batch.

        Raises:
            ValueError, TypeError: For what nsqd would refuse, or is longer than the options allow.
        """
        if self._strict:
            self._check(topic, data)
        if timeout is None:
            timeout = self._timeout
        else:
            check_timeout(timeout)
        now = self._now()
        deadline = now + timeout
        publish: Publish
        if defer is not None:
            publish = Publish(topic, commands.deferpublish(topic, data, defer), len(data), now, deadline)
            publish.defer = defer
        elif self._batches:
            # What publish() checks; without a call for what nearly always is in order.
            if type(data) is not bytes or not data or topic not in self._topics:
                commands.publish(topic, data)
                self._note(topic)
            publish = Member(topic, data, now, deadline)
        else:
            publish = Publish(topic, commands.publish(topic, data), len(data), now, deadline)
        if key is not None or self._needs_key:
            publish.key = self._checked_key(key)
        return publish

    def _note(self, topic: str) -> None:
        if len(self._topics) == MAX_TOPICS:
            self._topics.clear()
        self._topics.add(topic)

    def multi(self, topic: str, messages: Iterable[bytes], timeout: float | None, key: Key) -> Publish:
        """Make an MPUB.

        Raises:
            ValueError, TypeError: As single().
        """
        if timeout is None:
            timeout = self._timeout
        else:
            check_timeout(timeout)
        bodies = messages if isinstance(messages, (bytes, bytearray, str)) else list(messages)
        command = commands.multipublish(topic, bodies)
        sizes = list(map(len, bodies))
        if self._strict:
            for body in bodies:
                self._check(topic, body)
        together = 4 * (len(sizes) + 1) + sum(sizes)
        limit = self._max_body_size
        if limit is not None and together > limit:
            raise ValueError(
                f"multipublish of {counted(len(sizes), 'message')} is {together} bytes, max_body_size is {limit}"
            )
        now = self._now()
        publish = Publish(topic, command, max(sizes), now, now + timeout)
        publish.mpub_body_size, publish.messages = together, len(sizes)
        if key is not None or self._needs_key:
            publish.key = self._checked_key(key)
        return publish

    def _check(self, topic: str, body: object) -> None:
        if self._max_name_length < MAX_NAME_LENGTH:
            assert_valid_topic_name(topic, self._max_name_length)
        limit = self._max_msg_size
        if limit is not None and isinstance(body, bytes) and len(body) > limit:
            raise ValueError(f"message body of {len(body)} bytes exceeds max_msg_size {limit}")

    def _checked_key(self, key: Key) -> Key:
        if key is None:
            raise ValueError("strategy 'consistent' needs key=")
        if not isinstance(key, (bytes, str)):
            raise TypeError(f"key must be bytes or str, not {key!r}")
        return key


def check_timeout(timeout: float) -> None:
    """Refuse what no clock can wait for.

    Raises:
        ValueError: If it is negative, endless or no number at all.
    """
    if not 0 <= timeout < NO_TIMEOUT:
        raise ValueError(f"timeout {timeout} must be at least 0 and less than {NO_TIMEOUT:g} s")


# For the names of those that were given none, as threading.Thread has them.
_numbers = itertools.count(1)


class Producer:
    """Publish messages.

    Args:
        nsqd_tcp_addresses: ``host:port``, or a list, tuple or set of them.
        nsqd_http_addresses: In their place, where TCP is closed off: URLs or ``host[:port]``, published to over HTTP.
        max_backoff_duration: Seconds; longest wait before an nsqd is tried again, up to a quarter of publish_timeout
            (reconnect_maximum has no such bound).
        lookupd_http_addresses: URL or ``host[:port]``, or a list or tuple of them: all nsqds that they know are
            published to.
        lookupd_options: Those of HttpOptions, such as ``auth`` or ``ca_certs``, for asking them. Its ``timeout`` is 5 s
            by default, and its ``max_response_size`` 16 MiB.
        http: Publish over HTTP to what they know, too, by its ``http_port``; nsqd_http_addresses says so already.
        http_options: Those of HttpOptions, such as ``auth`` or ``ca_certs``, in place of ConnectionOptions.
        threaded: Run on a thread with a hub of its own, for programs that block natively.
        name: For log lines; default ``producer-1`` and so on, in the order in which producers are made.
        keywords: Options of ProducerOptions, ReconnectOptions and ConnectionOptions.

    Every publish ends, by its deadline, in exactly one way. It returns: nsqd has confirmed it. It raises NSQErrorCode:
    nsqd has refused it. It raises NSQNotSent: nsqd has not executed it, and will not; publishing it again is safe. It
    raises NSQUnknown: it was sent, and there was no answer; nsqd may have it. What is certainly not executed is sent
    again by itself, to another nsqd if there is one, within the deadline.

    May be called from any thread: calls cross to the thread that started it, whose hub must run (else: threaded).
    After a fork the child connects anew, and what waits for an answer stays the parent's.

    Receivers of its signals are called where answers are read, so nothing can wait for one there: they use
    publish_async(); publish() raises RuntimeError.

    Raises:
        ValueError: If there is no address at all, or an address or option is not valid, or some are of TCP and others
            of HTTP.
        TypeError: If an address or option has the wrong type, or an option does not exist.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses = (),
        max_backoff_duration: float = 128,
        *,
        nsqd_http_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        lookupd_options: HttpOptionsDict | None = None,
        http: bool = False,
        http_options: HttpOptionsDict | None = None,
        threaded: bool = False,
        name: str | None = None,
        clock: Clock | None = None,
        **keywords: Unpack[ProducerOptionsDict],
    ) -> None:
        options: dict[str, Any] = dict(keywords)  # Any: each option's own type, checked where they are taken apart
        self.options = ProducerOptions.split_keywords(options)
        make_strategy(self.options.strategy)  # refuses what is none
        self.addresses = ordered_addresses(nsqd_tcp_addresses)
        self.nsqd_tcp_addresses = set(self.addresses)
        self.lookupds = parse_lookupds(lookupd_http_addresses, lookupd_options)
        self.http_clients = wanted_clients(nsqd_http_addresses, http_options, self.options, http=http)
        if self.http_clients is not None:
            check_no_tcp(self.addresses, self.options, options)
            self.addresses = self.http_clients.addresses
        if not self.addresses and not self.lookupds:
            raise ValueError(
                "producer has no address: give nsqd_tcp_addresses, nsqd_http_addresses or lookupd_http_addresses"
            )
        self.max_backoff_duration = max_backoff_duration
        self.threaded = threaded
        self.logger = logging.getLogger("gnsq.producer")
        options.setdefault("reconnect_initial", 0.1)
        # 0 switched backoff off in 1.0; it must not mean trying without a pause. And whoever waits for an nsqd that is
        # down must find it within the deadline when it is back.
        longest = min(max_backoff_duration, self.options.publish_timeout / 4)
        options.setdefault("reconnect_maximum", max(longest, 0.1))
        self.reconnect = ReconnectOptions.split_keywords(options)
        self.conn_kwargs = options
        self.connection_options = load_certificates(
            ConnectionOptions.from_keywords(
                "Producer", options, ProducerOptions, ReconnectOptions, parameters=parameters_of(Producer.__init__)
            )
        )
        self.on_response: TypedSignal[ResponseReceiver] = TypedSignal()
        self.on_error: TypedSignal[ErrorReceiver] = TypedSignal()
        self.on_auth: TypedSignal[AuthReceiver] = TypedSignal()
        self.on_close: TypedSignal[CloseReceiver] = TypedSignal()
        self.clock = clock if clock is not None else RealClock()
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name of a producer must be a str, not {name!r}")
        self.name = name if name is not None else f"producer-{next(_numbers)}"
        self.log_owner = LogOwner(self.name, self.clock.monotonic)
        self.totals = Totals()
        self.latency = LatencyRecorder()
        self._making = Making(self.options, self.connection_options.max_name_length, self.clock.monotonic)
        self._life = Lifetime(
            self._begin,
            self.name,
            threaded=threaded,
            close_timeout=self.options.close_timeout,
            on_close=self._closed,
            on_fork=self._reset_counts,
        )

    def __repr__(self) -> str:
        running = self._life.running
        connections = 0 if running is None else len(running.dispatcher.links) + len(running.dispatcher.aside)
        pending = 0 if running is None else running.dispatcher.pending
        return (
            f"<{type(self).__name__} {self.name} {self._life.state.value}, {counted(connections, 'connection')}, "
            f"{counted(pending, 'publish', 'publishes')} pending>"
        )

    # --- life

    def start(self) -> None:
        """Connect. Returns when every nsqd known so far has been tried once; those that are down are tried again.

        May be left out: the first publish starts the producer.

        Raises:
            NSQException: If it was closed.
        """
        if self._life.state is State.RUNNING:
            self.logger.warning("%s: producer is running already", self.name)
            return
        running = self._life.started(NO_TIMEOUT)
        running.owner_thread.call_and_wait(NO_TIMEOUT, running.wait_attempted)

    def _begin(self) -> Running:
        config = RuntimeConfig(
            options=self.options,
            reconnect=self.reconnect,
            connection=self.connection_options,
            addresses=self.addresses,
            lookupds=self.lookupds,
            http_clients=self.http_clients,
            clock=self.clock,
            owner=self.log_owner,
            totals=self.totals,
            latency=self.latency,
        )
        running = Running(config, self)
        running.start()
        return running

    def _closed(self) -> None:
        notify(self.on_close, self)

    def _reset_counts(self) -> None:
        """Count from 0 in a forked child: the parent keeps what was counted so far."""
        self.totals, self.latency = Totals(), LatencyRecorder()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything published so far has ended, its batches included.

        Args:
            timeout: Seconds; default: close_timeout.

        Returns:
            False if the timeout ended first.

        Raises:
            ValueError: If the timeout is negative, endless or no number; so do all that take one.
        """
        limit = self._limit(timeout)
        running = self._life.running
        if running is None:
            return True
        try:
            return running.owner_thread.call_and_wait(limit + CROSS_THREAD_GRACE, running.flush, limit)
        except NSQTimeout:
            # The hub of the producer's thread does not run.
            return False

    def close(self, timeout: float | None = None) -> list[Unconfirmed]:
        """Take no more publishes, wait for those without an answer, then close the connections.

        In the hub itself, in receivers of the producer's signals, and in a signal handler of Python's own that has
        interrupted it, nothing can wait: there it goes on in the background.

        Args:
            timeout: Seconds to wait, in place of close_timeout. What has no answer by then ends with NSQNotSent or
                NSQUnknown.

        Returns:
            Those: what was not confirmed. Empty in the background, and for a second call, which waits for the first.

        Raises:
            NSQTimeout: If it takes much longer, as where the hub of the producer's thread does not run. It is closed
                when that does.
        """
        return self._life.close(self._limit(timeout))

    def _limit(self, timeout: float | None) -> float:
        if timeout is None:
            return self.options.close_timeout
        check_timeout(timeout)
        return timeout

    def join(self, timeout: float | None = None, raise_error: bool = False) -> None:
        """Wait until the producer has closed, or the timeout (seconds) ends."""
        if timeout is not None:
            check_timeout(timeout)
        self._life.join(timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether it was started and not closed."""
        return self._life.state is State.RUNNING

    @property
    def is_ready(self) -> bool:
        """Whether it runs and some nsqd takes publishes; for a readiness probe. stats().not_ready says why not."""
        running = self._life.running
        return self.is_running and running is not None and not running.why_not_ready()

    def stats(self) -> ProducerStats:
        """Tell how things are at this moment, and what was counted since the start."""
        state, running = self._life.state.value, self._life.running
        dispatcher = None if running is None else running.dispatcher
        links = [] if dispatcher is None else [(link, False) for link in dispatcher.links]
        links += [] if dispatcher is None else [(link, True) for link in dispatcher.aside]
        not_ready = "not started" if state == State.INIT.value else state
        if running is not None and state == State.RUNNING.value:
            not_ready = running.why_not_ready()
        totals = self.totals
        return ProducerStats(
            state=state,
            confirmed=totals.confirmed,
            refused=totals.refused,
            not_sent=totals.not_sent,
            unknown=totals.unknown,
            sent_again=totals.sent_again,
            repeated=totals.repeated,
            pending=0 if dispatcher is None else dispatcher.pending,
            pending_bytes=0 if dispatcher is None else dispatcher.pending_bytes,
            latency=self.latency.histogram(),
            connections=tuple(
                ProducerConnectionStats(link.address, link.pending, link.confirmed, stalled) for link, stalled in links
            ),
            failures={} if running is None else {address: str(error) for address, error in running.failures().items()},
            lookupd_failures={} if running is None else running.lookup_failures,
            not_ready=not_ready,
        )

    def connect_to_nsqd(self, address: str, port: int) -> None:
        """Publish to one more nsqd, too; over HTTP its port is that of HTTP.

        Raises:
            ValueError: If the address is not valid.
        """
        added = format_address(*parse_address(format_address(address, port)))
        running = self._life.started(CROSS_THREAD_GRACE)
        running.owner_thread.call_and_wait(CROSS_THREAD_GRACE, running.add, added)

    # --- what subclasses may override, as in gnsq 1.0; conn is None over HTTP

    def handle_response(self, conn: Connection | None, response: bytes) -> None:
        """Send on_response."""
        notify(self.on_response, self, response=response)

    def handle_error(self, conn: Connection | None, error: NSQErrorCode) -> None:
        """Send on_error."""
        notify(self.on_error, self, error=error)

    def handle_auth(self, conn: Connection, response: dict[str, object]) -> None:
        """Send on_auth."""
        notify(self.on_auth, self, conn=conn, response=response)

    @property
    def listeners(self) -> Sized:
        """Empty while nobody wants to hear of responses."""
        overridden = type(self).handle_response is not Producer.handle_response
        return (True,) if overridden else self.on_response.receivers

    # --- publishing

    @overload
    def publish(
        self,
        topic: str,
        data: bytes,
        defer: int | None = None,
        block: bool = True,
        timeout: float | None = None,
        raise_error: Literal[True] = True,
        *,
        key: Key = None,
    ) -> bytes: ...

    @overload
    def publish(
        self,
        topic: str,
        data: bytes,
        defer: int | None = None,
        block: bool = True,
        timeout: float | None = None,
        *,
        raise_error: Literal[False],
        key: Key = None,
    ) -> PublishResult: ...

    @overload
    def publish(
        self,
        topic: str,
        data: bytes,
        defer: int | None = None,
        block: bool = True,
        timeout: float | None = None,
        raise_error: bool = True,
        *,
        key: Key = None,
    ) -> bytes | PublishResult: ...

    def publish(
        self,
        topic: str,
        data: bytes,
        defer: int | None = None,
        block: bool = True,
        timeout: float | None = None,
        raise_error: bool = True,
        *,
        key: Key = None,
    ) -> bytes | PublishResult:
        """Publish a message and wait until nsqd has confirmed it.

        Args:
            defer: Milliseconds that nsqd holds it back (up to its max-req-timeout).
            block: Whether to wait for a connection, and for room, where there is none. If not, the first publish finds
                a connection only behind start().
            timeout: Seconds, for all of it: room, connection, sending, answer; default publish_timeout.
            raise_error: If False, do as publish_async(), and return its PublishResult.
            key: For the strategy ``consistent``: messages of one key go to one nsqd.

        Returns:
            b"OK".

        Raises:
            ValueError, TypeError: For a topic, body or delay that nsqd would refuse; nothing was sent.
            NSQErrorCode: What nsqd said instead; it has not taken the message.
            NSQNotSent: nsqd has not executed it: NSQNoConnections, NSQNotSentTimeout, NSQNotSentClosed.
            NSQUnknown: No answer came; nsqd may have it: NSQUnknownTimeout, NSQUnknownClosed.
        """
        if not raise_error:
            return self.publish_async(topic, data, defer, block, timeout, key=key)
        return self._published(self._making.single(topic, data, defer, timeout, key), block)

    def publish_async(
        self,
        topic: str,
        data: bytes,
        defer: int | None = None,
        block: bool = True,
        timeout: float | None = None,
        *,
        key: Key = None,
    ) -> PublishResult:
        """Publish a message without waiting for its answer.

        Waits for room (max_pending_bytes), and where it starts the producer up to a second for a connection, unless
        block is off. In the hub itself, as in callbacks, it waits for neither: without room it raises
        NSQNotSentTimeout, and without a connection the message waits for one.

        Returns:
            The result, an AsyncResult of gevent that any thread can wait for: its get() returns or raises what
            publish() would have returned or raised, by the same deadline.

        Raises:
            As publish(), but for what comes behind having room: that is in the result.
        """
        return self._begun(self._making.single(topic, data, defer, timeout, key), block)

    @overload
    def multipublish(
        self,
        topic: str,
        messages: Iterable[bytes],
        block: bool = True,
        timeout: float | None = None,
        raise_error: Literal[True] = True,
        *,
        key: Key = None,
    ) -> bytes: ...

    @overload
    def multipublish(
        self,
        topic: str,
        messages: Iterable[bytes],
        block: bool = True,
        timeout: float | None = None,
        *,
        raise_error: Literal[False],
        key: Key = None,
    ) -> PublishResult: ...

    @overload
    def multipublish(
        self,
        topic: str,
        messages: Iterable[bytes],
        block: bool = True,
        timeout: float | None = None,
        raise_error: bool = True,
        *,
        key: Key = None,
    ) -> bytes | PublishResult: ...

    def multipublish(
        self,
        topic: str,
        messages: Iterable[bytes],
        block: bool = True,
        timeout: float | None = None,
        raise_error: bool = True,
        *,
        key: Key = None,
    ) -> bytes | PublishResult:
        """Publish messages in one MPUB and wait until nsqd has confirmed them. Otherwise as publish().

        nsqd takes all or none, unless its disk fails meanwhile: then NSQUnknown is raised, and it may have some.

        Raises:
            ValueError: Also if they are longer than max_body_size together.
        """
        publish = self._making.multi(topic, messages, timeout, key)
        return self._published(publish, block) if raise_error else self._begun(publish, block)

    def publish_many(
        self,
        topic: str,
        messages: Iterable[bytes],
        timeout: float | None = None,
        raise_error: bool = True,
        *,
        key: Key = None,
    ) -> list[Chunk]:
        """Publish any number of messages in chunks, each an MPUB of its own, several under way at once.

        Args:
            messages: Any iterable; it is asked for more when there is room.
            timeout: Seconds, for each chunk.
            raise_error: If False, go on behind a chunk that fails, or a message that can't be published.

        Returns:
            What became of each chunk, in order.

        Raises:
            NSQManyFailed: If a chunk failed; has all chunks. Nothing more was taken from messages then. Whatever
                raise_error says, if messages itself raised (that is the ``__cause__``) or the producer was closed.
            ValueError, TypeError: For a topic or key that nsqd or the strategy would refuse.
            RuntimeError: In the hub itself.
        """
        if is_hub_greenlet():
            raise RuntimeError("nothing can wait for publishes in the hub itself; let a greenlet do it")

        def begin_chunk(bodies: list[bytes]) -> Publishing:
            publish = self._making.multi(topic, bodies, timeout, key)
            return self._begun(publish, block=True)

        return publish_chunks(begin_chunk, messages, self.options, raise_error=raise_error, label=self.log_owner.label)

    # --- one publish

    def _begun(self, publish: Publish, block: bool) -> PublishResult:
        running = self._life.running or self._first(publish, block)
        if current_thread.token is not running.owner_thread.token():
            return begin(running, publish, block=block)
        result = publish.result = PublishResult()
        # ResultWaiters.new() in place: 0.05 us of 2.
        result.waiters = running.waiters
        result.deadline = publish.deadline
        running.dispatcher.submit(publish, block)
        if not publish.room:
            running.dispatcher.wait_for_room(publish)
        return result

    def _published(self, publish: Publish, block: bool) -> bytes:
        running = self._life.running or self._first(publish, block)
        if current_thread.token is running.owner_thread.token():
            running.dispatcher.publish(publish, block)
        else:
            publish_and_wait(running, publish, block=block)
        return OK

    def _first(self, publish: Publish, block: bool) -> Running:
        """Start with the first publish."""
        can_wait = block and not is_hub_greenlet()
        running = self._life.started(publish.limit if can_wait else 0)
        if can_wait and running.owner_thread.is_current:
            running.wait_first(publish.limit)
        return running
