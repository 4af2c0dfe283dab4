"""The public methods of a Producer. They check arguments and make publishes, which dispatcher.py sends.

gnsq/lifecycle.py starts and closes the producer; runtime.py owns its connections and greenlets.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterable, Sized
from datetime import timedelta
from typing import Any, Literal, Self, Unpack, overload

from gnsq.addresses import Addresses, checked_address, parse_addresses
from gnsq.clock import Clock, RealClock
from gnsq.concurrency.threads import (
    CROSS_THREAD_GRACE,
    OwnerThread,
    checked_timeout,
    get_hub_if_exists,
    is_hub_greenlet,
)
from gnsq.discovery import parse_lookupds
from gnsq.errors import NSQTimeout
from gnsq.httpclient import HttpOptionsDict
from gnsq.lifecycle import Client, ClientGreenlets, Lifecycle, State
from gnsq.logs import LogOwner
from gnsq.nsqd.connect import load_certificates
from gnsq.nsqd.pool import ReconnectOptions
from gnsq.options import ConnectionOptions, Milliseconds, Seconds, check_flag
from gnsq.producer.options import ProducerOptions, ProducerOptionsDict
from gnsq.producer.publish import DeferredPublish, MultiPublish, PendingPublish, PublishCounts, Unconfirmed
from gnsq.producer.publish_many import Chunk, publish_chunks
from gnsq.producer.result import PublishResult
from gnsq.producer.routing import make_strategy
from gnsq.producer.runtime import ProducerRuntime
from gnsq.protocol import commands
from gnsq.protocol.frames import OK
from gnsq.protocol.names import assert_valid_topic_name
from gnsq.stats import ProducerConnectionStats, ProducerStats
from gnsq.texts import counted
from gnsq.tracebacks import clears_locals

__all__ = ["Producer"]

# Bytes. Larger bodies are checked by the functions that build commands: sizes in nsqd's protocol have 31 bits.
LARGE_BODY = 2**30

# Numbers in the default names of producers: producer-1, producer-2 and so on.
_numbers = itertools.count(1)


class Producer(Client):
    """Publish messages.

    Args:
        nsqd_tcp_addresses: ``host:port``, or a list, tuple or set of them.
        max_backoff_duration: The option of ProducerOptions.
        lookupd_http_addresses: URL or ``host[:port]`` of an nsqlookupd, or a list or tuple of these: publish to all
            nsqds that the nsqlookupds know.
        lookupd_options: Options of HttpOptions, such as ``auth`` or ``ca_certs``, for requests to nsqlookupd. The
            defaults of ``timeout`` and ``max_response_size`` are 5 s and 16 MiB.
        threaded: Run on a thread with a hub of its own, for programs that block threads without running a hub.
        name: Name of the producer in log lines; default: ``producer-1`` and so on.
        keywords: Options of ProducerOptions, ReconnectOptions and ConnectionOptions.

    Every publish ends in one of four ways, at its deadline at the latest. If publish() returns, nsqd has confirmed the
    message. NSQErrorCode: nsqd has refused the message. NSQNotSent: nsqd has not stored the message and will not, so
    the program may safely publish the message again. NSQUnknown: the message was sent but got no response, so nsqd may
    have it. A publish that was not executed is retried until its deadline. One that an nsqd refused because of its own
    state (it is exiting, for example) is tried as often as there are nsqds, and at least twice.

    Methods may be called from any thread. The thread that started the producer must run its hub, unless the producer is
    threaded. After a fork the child makes new connections; the parent continues the pending publishes.

    Receivers of all signals but on_close run in greenlets that connect or read responses, so they can't wait for one:
    publish() raises RuntimeError there. Use publish_async() instead.

    Raises:
        ValueError: If there is no address at all, or if an address or option is not valid.
        TypeError: If an address or option has the wrong type, or an option does not exist.
    """

    @clears_locals
    def __init__(
        self,
        nsqd_tcp_addresses: Addresses = (),
        max_backoff_duration: float | timedelta = ProducerOptions.max_backoff_duration,
        *,
        lookupd_http_addresses: Addresses = (),
        lookupd_options: HttpOptionsDict | None = None,
        threaded: bool = False,
        name: str | None = None,
        clock: Clock | None = None,
        **keywords: Unpack[ProducerOptionsDict],
    ) -> None:
        super().__init__()
        # Any: each option has its own type, which its class checks
        options: dict[str, Any] = dict(keywords, max_backoff_duration=max_backoff_duration)
        self.options = ProducerOptions.split_keywords(options)
        make_strategy(self.options.strategy)  # raises if it is not valid
        self.addresses = parse_addresses(nsqd_tcp_addresses)
        self.nsqd_tcp_addresses = set(self.addresses)
        self.lookupds = parse_lookupds(lookupd_http_addresses, lookupd_options)
        self.max_backoff_duration = self.options.max_backoff_duration
        self.threaded = threaded
        self.logger = logging.getLogger("gnsq.producer")
        # In gnsq 1.0, max_backoff_duration=0 meant no backoff. Here the longest wait is at least 0.1 s: attempts
        # without a pause use all processor time. With longer waits, a publish could time out though its nsqd is back.
        longest = min(self.max_backoff_duration, self.options.publish_timeout / 4)
        for option, default in (("reconnect_initial", 0.1), ("reconnect_maximum", max(longest, 0.1))):
            if options.get(option) is None:
                options[option] = default
        self._reconnect = ReconnectOptions.split_keywords(options)
        self.conn_kwargs = options
        connection = load_certificates(
            ConnectionOptions.from_keywords(Producer, options, ProducerOptions, ReconnectOptions)
        )
        # After the options: the name of the addresses may be misspelt.
        if not self.addresses and not self.lookupds:
            raise ValueError("producer has no address: give nsqd_tcp_addresses or lookupd_http_addresses")
        # While this is empty, handle_response() need not be called.
        overridden = type(self).handle_response is not Producer.handle_response
        response_receivers: Sized = (True,) if overridden else self.on_response.receivers
        clock = clock if clock is not None else RealClock()
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name of a producer must be a str, not {name!r}")
        self.name = name if name is not None else f"producer-{next(_numbers)}"
        self.log_owner = LogOwner(self.name, clock.monotonic)
        self._counts = PublishCounts()
        self._now = clock.monotonic
        self._timeout = self.options.publish_timeout
        # Cached: checking a name takes 1 us, and most programs publish to a few topics.
        self._check_topic = functools.lru_cache(1000)(assert_valid_topic_name)
        self._max_message = self.options.max_msg_size or LARGE_BODY
        greenlets = ClientGreenlets(self.log_owner, clock, self.logger)
        self._make_runtime = functools.partial(
            ProducerRuntime, self, clock, connection, self._reconnect, response_receivers, greenlets
        )
        self._lifecycle: Lifecycle[ProducerRuntime] = Lifecycle(
            self,
            "producer",
            self._start_runtime,
            greenlets,
            grace=CROSS_THREAD_GRACE,
            on_fork=self._reset_counts,
            is_last=True,
        )

    def __repr__(self) -> str:
        stats = self.stats()
        return (
            f"<{type(self).__name__} {self.name} {stats.state}, {counted(len(stats.connections), 'connection')}, "
            f"{counted(stats.pending, 'publish', 'publishes')} pending>"
        )

    # --- start and close

    def start(self) -> None:
        """Connect. Return when an nsqd is connected, when each attempt to connect has failed, or after a second.

        Further attempts go on in the background. An nsqd that is down is tried again later.
        This call is not necessary, since the first publish starts the producer.

        Raises:
            NSQException: If the producer was closed, or its thread has ended.
            RuntimeError: If the hub itself calls this, and the producer is threaded.
        """
        self._lifecycle.start()

    def _start_runtime(self, owner_thread: OwnerThread) -> ProducerRuntime:
        runtime = self._make_runtime(self._counts, owner_thread)
        runtime.start()
        return runtime

    def _reset_counts(self) -> None:
        """Count from 0 again in a forked child: the counts so far are of publishes of the parent."""
        self._counts = PublishCounts()

    def flush(self, timeout: Seconds | None = None) -> bool:
        """Wait until all earlier publishes have ended. Batches that are not full are sent immediately.

        Args:
            timeout: Seconds; default: close_timeout.

        Returns:
            False if some publishes have not ended within the timeout.

        Raises:
            ValueError: If the timeout is negative, too large or not a number. All methods with a timeout raise this.
        """
        limit = checked_timeout(timeout, self.options.close_timeout)
        runtime = self._lifecycle.runtime
        if runtime is None:
            return True
        try:
            return runtime.owner_thread.call_and_wait(limit + CROSS_THREAD_GRACE, runtime.flush, limit)
        except NSQTimeout:
            # The thread of the producer does not run its hub.
            return False

    def close(self, timeout: Seconds | None = None) -> list[Unconfirmed]:
        """Refuse further publishes, wait for the pending publishes, then close the connections.

        Some callers can't wait: the hub itself, receivers of the producer's signals, and a Python signal handler that
        has interrupted the producer. For these callers the close continues in the background.

        Args:
            timeout: Seconds to wait, instead of close_timeout. When they are over, the pending publishes end with
                NSQNotSent or NSQUnknown.

        Returns:
            The publishes that were not confirmed. Empty if the close continues in the background. A second call waits
            for the end of the first one, and returns an empty list, too.

        Raises:
            NSQTimeout: If the close takes a second longer than the timeout, for example because the producer's thread
                does not run its hub. The close continues when the hub runs.
        """
        closed = self._lifecycle.close(checked_timeout(timeout, self.options.close_timeout))
        return [] if closed is None else closed.unconfirmed

    def __enter__(self) -> Self:
        self.start()
        return self

    @property
    def is_ready(self) -> bool:
        """For a readiness probe: True if the producer runs and is connected to an nsqd. If this is False,
        stats().not_ready has the reason."""
        runtime = self._lifecycle.runtime
        return self.is_running and runtime is not None and not runtime.why_not_ready()

    def stats(self) -> ProducerStats:
        """Return the current state, and the counts since the start."""
        state, runtime = self._lifecycle.state, self._lifecycle.runtime
        dispatcher = None if runtime is None else runtime.dispatcher
        links = [] if dispatcher is None else [(link, False) for link in dispatcher.links]
        links += [] if dispatcher is None else [(link, True) for link in dispatcher.stalled_links]
        not_ready = self._lifecycle.why_not_running()
        if runtime is not None and state is State.RUNNING:
            not_ready = runtime.why_not_ready()
        counts = self._counts
        return ProducerStats(
            state=state.value,
            confirmed=counts.confirmed,
            refused=counts.refused,
            not_sent=counts.not_sent,
            unknown=counts.unknown,
            retried=counts.retried,
            possibly_duplicated=counts.possibly_duplicated,
            pending=0 if dispatcher is None else dispatcher.pending,
            pending_bytes=0 if dispatcher is None else dispatcher.pending_bytes,
            latency=counts.latency.histogram(),
            connections=tuple(ProducerConnectionStats(link.address, link.pending, stalled) for link, stalled in links),
            failures={
                address: error.explanation for address, error in (() if runtime is None else runtime.failures().items())
            },
            lookupd_failures={} if runtime is None else runtime.lookup_failures,
            not_ready=not_ready,
            confirmed_by_nsqd=dict(counts.confirmed_by_nsqd),
        )

    def connect_to_nsqd(self, address: str, port: int) -> None:
        """Add an nsqd to publish to, and start the producer if needed.

        Raises:
            ValueError: If the address is not valid.
            NSQException: If the producer was closed, or its thread does not run its hub.
        """
        added = checked_address(address, port)
        runtime = self._lifecycle.ensure_started(CROSS_THREAD_GRACE)
        runtime.owner_thread.call_and_wait(CROSS_THREAD_GRACE, runtime.add, added)

    def set_nsqds(self, nsqd_tcp_addresses: Addresses) -> None:
        """Publish to these nsqds in place of those before, and start the producer if needed. For a program that finds
        nsqds elsewhere than at nsqlookupds.

        An open connection to another nsqd is used until it is lost. nsqds that nsqlookupds name are added as before.

        Raises:
            ValueError, TypeError: If an address is not valid, or there is none.
            NSQException: As connect_to_nsqd().
        """
        addresses = parse_addresses(nsqd_tcp_addresses)
        if not addresses:
            raise ValueError("nsqd_tcp_addresses is empty: give the address of an nsqd")
        self.addresses, self.nsqd_tcp_addresses = addresses, set(addresses)
        runtime = self._lifecycle.ensure_started(CROSS_THREAD_GRACE)
        runtime.owner_thread.call_and_wait(CROSS_THREAD_GRACE, runtime.set_nsqds, addresses)

    # --- publishing

    @overload
    def publish(
        self,
        topic: str,
        data: bytes,
        defer: Milliseconds | None = None,
        block: bool = True,
        timeout: Seconds | None = None,
        raise_error: Literal[True] = True,
    ) -> bytes: ...

    @overload
    def publish(
        self,
        topic: str,
        data: bytes,
        defer: Milliseconds | None = None,
        block: bool = True,
        timeout: Seconds | None = None,
        *,
        raise_error: Literal[False],
    ) -> PublishResult: ...

    @overload
    def publish(
        self,
        topic: str,
        data: bytes,
        defer: Milliseconds | None = None,
        block: bool = True,
        timeout: Seconds | None = None,
        raise_error: bool = True,
    ) -> bytes | PublishResult: ...

    def publish(
        self,
        topic: str,
        data: bytes,
        defer: Milliseconds | None = None,
        block: bool = True,
        timeout: Seconds | None = None,
        raise_error: bool = True,
    ) -> bytes | PublishResult:
        """Publish a message and wait until nsqd has confirmed it.

        Args:
            defer: Milliseconds until nsqd delivers the message (up to nsqd's max-req-timeout); 0: at once, by a PUB.
            block: Wait if there is no connection or no capacity (max_pending_bytes). If block is False, call start()
                before the first publish, which otherwise finds no connection.
            timeout: Seconds for capacity, connection, sending and response together; default: publish_timeout.
            raise_error: If False, do not wait: call publish_async(), and return its PublishResult.

        Returns:
            b"OK".

        Raises:
            ValueError, TypeError: If an argument is not valid or exceeds a limit of the options; nothing was sent.
            NSQErrorCode: If nsqd has responded with an error; nsqd has not stored the message.
            NSQNotSent: If nsqd has not executed the publish, such as NSQNoConnections or NSQNotSentTimeout.
            NSQUnknown: If no response came; nsqd may have the message: NSQUnknownTimeout, NSQUnknownClosed.
            RuntimeError: If the hub itself or a receiver of the producer's signals calls this.
        """
        if raise_error is not True:
            check_flag("raise_error", raise_error)
            return self.publish_async(topic, data, defer, block, timeout)
        return self._submit_and_wait(self._make_publish(topic, data, defer, timeout), block)

    def publish_async(
        self,
        topic: str,
        data: bytes,
        defer: Milliseconds | None = None,
        block: bool = True,
        timeout: Seconds | None = None,
    ) -> PublishResult:
        """Publish a message without waiting for nsqd's response.

        Unless block is False, the call waits for capacity (max_pending_bytes), and the message waits for a connection.
        In the hub itself, for example in a callback, the call never waits: without capacity it raises
        NSQNotSentTimeout.

        Returns:
            The result, an AsyncResult of gevent. Any thread can wait for it; get() returns or raises as publish() does.

        Raises:
            NSQException: An error of publish(), if the publish is not accepted. The result gets the errors of an
                accepted publish.
        """
        return self._submit(self._make_publish(topic, data, defer, timeout), block)

    @overload
    def multipublish(
        self,
        topic: str,
        messages: Iterable[bytes],
        block: bool = True,
        timeout: Seconds | None = None,
        raise_error: Literal[True] = True,
    ) -> bytes: ...

    @overload
    def multipublish(
        self,
        topic: str,
        messages: Iterable[bytes],
        block: bool = True,
        timeout: Seconds | None = None,
        *,
        raise_error: Literal[False],
    ) -> PublishResult: ...

    @overload
    def multipublish(
        self,
        topic: str,
        messages: Iterable[bytes],
        block: bool = True,
        timeout: Seconds | None = None,
        raise_error: bool = True,
    ) -> bytes | PublishResult: ...

    def multipublish(
        self,
        topic: str,
        messages: Iterable[bytes],
        block: bool = True,
        timeout: Seconds | None = None,
        raise_error: bool = True,
    ) -> bytes | PublishResult:
        """Publish messages in one MPUB and wait until nsqd has confirmed them. Arguments and errors as for publish().

        nsqd stores all messages or none, unless its disk fails meanwhile: it may have some, and NSQUnknown is raised.

        Raises:
            ValueError: In the cases of publish(), and if the body of the MPUB is longer than max_body_size.
        """
        check_flag("raise_error", raise_error)
        publish = self._make_multipublish(topic, messages, timeout)
        return self._submit_and_wait(publish, block) if raise_error else self._submit(publish, block)

    def publish_many(
        self,
        topic: str,
        messages: Iterable[bytes],
        timeout: Seconds | None = None,
        raise_error: bool = True,
    ) -> list[Chunk]:
        """Publish any number of messages in chunks. Each chunk is an MPUB, and several chunks are sent concurrently.

        Args:
            messages: Any iterable of bytes. Messages are taken from it for one chunk at a time.
            timeout: Seconds, for each chunk.
            raise_error: If False, continue after a chunk that fails, or a message that can't be published.

        Returns:
            The outcome of each chunk, in the order of the messages.

        Raises:
            NSQManyFailed: If a chunk failed. The error has all chunks so far. Once the failure was known,
                no message was taken from the iterable. With raise_error=False, only if the iterable itself raised an
                exception (the ``__cause__``) or the producer was closed.
            ValueError, TypeError: If the topic or the timeout is not valid, or messages is a str or bytes.
            RuntimeError: If called in the hub itself.
        """
        if is_hub_greenlet():
            raise RuntimeError("nothing can wait for publishes in the hub itself; let a greenlet do it")
        # Check all arguments now: there may be no message with which the first chunk would check them.
        check_flag("raise_error", raise_error)
        assert_valid_topic_name(topic)
        checked_timeout(timeout, self._timeout)

        def submit(bodies: list[bytes]) -> PublishResult:
            return self._submit(self._make_multipublish(topic, bodies, timeout), block=True)

        return publish_chunks(submit, messages, self.options, raise_error=raise_error, owner=self.log_owner)

    # --- make and submit

    def _make_publish(
        self, topic: str, data: bytes, defer: Milliseconds | None, timeout: Seconds | None
    ) -> PendingPublish:
        """Make a PUB or DPUB.

        Raises:
            ValueError, TypeError: If an argument is not valid or exceeds a limit of the options.
        """
        timeout = self._timeout if timeout is None else checked_timeout(timeout, self._timeout)
        if type(topic) is not str:
            assert_valid_topic_name(topic)  # the cache below raises another error if it can't hash the topic
        self._check_topic(topic)
        # commands.publish() makes the same checks. To call it only if a check fails saves a call for each publish.
        if type(data) is not bytes or not 0 < len(data) <= self._max_message:
            commands.publish(topic, data)
            self._check_size(len(data))
        now = self._now()
        publish: PendingPublish
        if defer is not None:
            defer = commands.checked_milliseconds("defer", defer)
        if defer:
            publish = DeferredPublish(topic, data, defer, now, now + timeout)
        else:
            publish = PendingPublish(topic, data, now, now + timeout)
        return publish

    def _make_multipublish(self, topic: str, messages: Iterable[bytes], timeout: Seconds | None) -> PendingPublish:
        """Make an MPUB.

        Raises:
            ValueError, TypeError: In the cases of _make_publish().
        """
        timeout = checked_timeout(timeout, self._timeout)
        if type(topic) is not str:
            assert_valid_topic_name(topic)
        self._check_topic(topic)
        commands.check_messages(messages)
        bodies = list(messages)
        # commands.multipublish() makes the same checks, but builds the whole MPUB. So call it only if a check fails.
        if set(map(type, bodies)) != {bytes} or not all(bodies):
            commands.multipublish(topic, bodies)
        now = self._now()
        publish = MultiPublish(topic, bodies, now, now + timeout)
        self._check_size(publish.largest_message)
        limit = self.options.max_body_size
        if limit is not None and publish.mpub_body_size > limit:
            count = counted(publish.messages, "message")
            raise ValueError(f"multipublish of {count} is {publish.mpub_body_size} bytes, max_body_size is {limit}")
        if publish.mpub_body_size >= LARGE_BODY:
            commands.multipublish(topic, publish.bodies)
        return publish

    def _check_size(self, size: int) -> None:
        limit = self.options.max_msg_size
        if limit is not None and size > limit:
            raise ValueError(f"message body of {size} bytes exceeds max_msg_size {limit}")

    def _submit(self, publish: PendingPublish, block: bool) -> PublishResult:
        if block is not True:
            check_flag("block", block)
        runtime = self._lifecycle.runtime or self._start_with(publish, block)
        if get_hub_if_exists() is not runtime.dispatcher.hub:
            return runtime.publish_from_thread(publish, block=block, until_end=False)
        result = publish.result = runtime.waiters.new(publish.deadline)
        runtime.dispatcher.submit(publish, block)
        if not publish.reserved_bytes:
            runtime.dispatcher.wait_for_capacity(publish)
        return result

    def _submit_and_wait(self, publish: PendingPublish, block: bool) -> bytes:
        if block is not True:
            check_flag("block", block)
        runtime = self._lifecycle.runtime or self._start_with(publish, block)
        dispatcher = runtime.dispatcher
        if get_hub_if_exists() is dispatcher.hub:
            dispatcher.publish(publish, block)
        else:
            runtime.publish_from_thread(publish, block=block, until_end=True).get()
        return OK

    def _start_with(self, publish: PendingPublish, block: bool) -> ProducerRuntime:
        """Start the producer. Unless block is False, wait if another greenlet or thread is just starting it."""
        can_wait = block and not is_hub_greenlet()
        return self._lifecycle.ensure_started(publish.timeout if can_wait else 0)
