"""Receiver: the one way of messages to the commands that consume. It starts consumers, passes their messages in batches
to the command, and ends at a signal, a count, an idle time or an error.
"""

# The way of the messages of `gnsq copy orders orders-test`, from the command line to the last FIN:
#
#  1. `main` in __main__.py runs the program, inside `program` in cli/group.py, which receives SIGINT and SIGTERM.
#     click finds the command in the group `command_line` in cli/main.py.
#  2. `Command.invoke` in cli/command.py makes a Cluster by `load_cluster` in cli/servers.py: of the command line, for
#     what it lacks of the environment, and then of the file. An error of the command becomes one line on stderr.
#  3. `copy` in cli/copy.py starts a producer (`Cluster.producer` in cli/servers.py), and makes a `Receiver` and, with
#     it, a Republisher, whose `Republisher.run` in cli/republish.py calls `Receiver.run`.
#  4. `Receiver._start` asks the nsqds about the topic (`NodePoller.poll` in cli/nodes.py), and says on stderr what
#     cannot be undone later (`find` in cli/waiting.py). Then it starts the consumer, and waits until it is ready.
#  5. The consumer calls `Receiver._accept` with all messages that it has read. The first comment in
#     nsqd/connection.py has the steps before. `Inbox.add` pauses the consumer if too many bytes wait.
#  6. Each greenlet that runs `Receiver._work` waits in `Receiver._wait`, takes a batch by `Inbox.take`, and passes it
#     to `Republisher._handle` in cli/republish.py.
#  7. `_Decision.__call__` in cli/copy.py says where to. `Receiver.pace` waits for the rate.
#     `Republisher._publish` in cli/republish.py publishes them at the same time, and waits for each response of nsqd.
#     The first comment in producer/dispatcher.py has the steps of a publish.
#  8. `Receiver.done` counts what is confirmed, and ends the run after the last one of --count. After that,
#     `Republisher._finish` in cli/republish.py calls `finish_all` in message.py: FIN. A message whose publish failed is
#     requeued by `Republisher._on_failure` in cli/republish.py.
#  9. Meanwhile `Receiver._watch` touches what is held for too long, and ends the run when nothing comes any more.
# 10. At the end, also that of a signal, `Receiver._close` lets the batches that are being copied end, requeues what
#     waits, and closes the consumer, which sends the last FIN.
# 11. `Republisher.summary` in cli/republish.py says what was not copied, and `Receiver.status` gives the exit status.

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from logging.handlers import MemoryHandler
from typing import Any, NamedTuple

import click
import gevent
from gevent.event import Event

from gnsq.addresses import parse_address
from gnsq.census import short_address
from gnsq.cli.command import until_signal
from gnsq.cli.nodes import NodePoller
from gnsq.cli.progress import Counter, RateLimiter
from gnsq.cli.servers import Cluster
from gnsq.cli.sums import Snapshot
from gnsq.cli.topics import Topics
from gnsq.cli.waiting import Finding, find
from gnsq.concurrency.greenlets import spawn
from gnsq.consumer.consumer import BulkConsumer, Consumer
from gnsq.errors import NSQException, NSQHttpError
from gnsq.message import Message
from gnsq.nsqd import NsqdTCPClient
from gnsq.protocol.names import is_ephemeral
from gnsq.running import StopSignals

__all__ = ["Inbox", "Received", "Receiver", "requeue_all"]

logger = logging.getLogger(__name__)

# Bytes of bodies. Above the first limit, no more messages are requested until half of them are taken: a number of
# messages is no limit of the memory. At most the second limit, or one message, is taken at a time.
MAX_WAITING_SIZE, BATCH_SIZE = 64 << 20, 16 << 20
# Seconds. With a limit of the rate, messages of this time are in flight.
RATE_AHEAD = 10.0
# Seconds between two checks whether messages must be touched, and whether nothing has come for some time.
CHECK_INTERVAL = 0.1
# Parts of the msg_timeout. Messages that this command holds are touched if less than the first is left. None waits for
# others longer than the second.
TOUCH_BELOW, LINGER_BELOW = 0.6, 0.5
# Seconds. nsqds that take longer to answer are not waited for.
QUESTION_LIMIT = 1.0
# Seconds between two looks whether a consumer has a connection.
READY_CHECK_INTERVAL = 0.02
# Seconds that the end waits, after the close_timeout, for a command that handles all messages that have arrived.
HANDLE_GRACE = 5.0
# Topics of which something is said at the start.
MAX_SAID = 10
# The two ways on if an ephemeral channel would take what waits for a topic's first channel.
KEEP_OR_TAKE = "give --channel NAME, which keeps what is left, or take them with gnsq tail --take"


class Received(NamedTuple):
    """A message, and the topic that it came from."""

    topic: str
    message: Message


class Inbox:
    """Messages that wait until the command takes them.

    Attributes:
        filled: Set while a message waits.
        waiting: The messages, the first one first.
        size: Bytes of their bodies.
        since: Monotonic time at which the first one has come to an empty inbox.
    """

    def __init__(self) -> None:
        self.filled = Event()
        self.waiting: deque[Received] = deque()
        self.size = 0
        self.since = 0.0
        self._paused: set[Consumer] = set()

    def add(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Add messages of a consumer, and pause it if too many bytes wait."""
        if not self.waiting:
            self.since = time.monotonic()
        topic = consumer.topic
        self.waiting.extend(Received(topic, message) for message in messages)
        self.size += sum(len(message.body) for message in messages)
        if self.size > MAX_WAITING_SIZE and consumer not in self._paused:
            self._paused.add(consumer)
            consumer.pause()
        self.filled.set()

    def take(self, limit: int) -> list[Received]:
        """Remove and return up to a number of messages, without waiting. Drop those that have timed out."""
        # The first one has waited longest. Most timed out messages are found so, and to look at all takes 1 us each.
        while self.waiting and self.waiting[0].message.time_left == 0:
            message = self.waiting.popleft().message
            self.size -= len(message.body)
            message.drop()  # nsqd delivers it again
        taken: list[Received] = []
        size = 0
        while self.waiting and len(taken) < limit:
            size += len(self.waiting[0].message.body)
            if taken and size > BATCH_SIZE:
                break
            taken.append(self.waiting.popleft())
        self.size -= sum(len(received.message.body) for received in taken)
        if self.waiting:
            self.filled.set()
        else:
            self.filled.clear()
        if self.size <= MAX_WAITING_SIZE // 2:
            while self._paused:
                self._paused.pop().resume()
        return taken

    def empty(self) -> list[Message]:
        """Remove and return all messages, without requesting others."""
        messages = [received.message for received in self.waiting]
        self.waiting.clear()
        self.size = 0
        self.filled.clear()
        self._paused.clear()
        return messages


class Receiver:
    """Receives the messages of a channel of some topics.

    Args:
        counter: Shows the count.
        max_in_flight: Limit for each topic.
        count: End after this number of messages that are done; None: no limit.
        is_filtered: True if the command does not count all messages, so that more than count are needed.
        idle: End when no message has come for this number of seconds; None: go on.
        rate: Limit of the messages a second that pace() lets pass.
        linger: Seconds that a message may wait for others, so that they are handled together. After a signal, all that
            have arrived are handled. None: a message is handled at once, and those that wait after a signal are
            requeued.
        takes_waiting: Subscribe with an ephemeral channel also if it takes what waits for the topic's first channel.
        must_exist: Refuse to make the channel.
        needs_topic: Refuse to make the topic.
        options: More options of the consumers.

    Attributes:
        batch: Limit of the messages that are passed at a time.
        counter: Counts the messages that are done.
        is_complete: True if run() has ended by itself, and not by a signal or an error.
        is_idle: True if it has ended since no message came.
        was_starved: True if at the end an nsqd had delivered nearly all messages that may be in flight.
        requeued: Number of messages that were given back at the end.
        failures: After run(), by address: why nsqds were not reached.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: Topics,
        channel: str,
        stop: StopSignals,
        counter: Counter,
        *,
        max_in_flight: int,
        batch: int,
        count: int | None = None,
        is_filtered: bool = False,
        idle: float | None = None,
        rate: float | None = None,
        linger: float | None = None,
        takes_waiting: bool = False,
        must_exist: bool = False,
        needs_topic: bool = False,
        **options: Any,  # Any: each option has its own type
    ) -> None:
        self.batch = batch
        self.counter = counter
        self.is_complete = self.is_idle = self.was_starved = False
        self.requeued = 0
        self.failures: dict[str, str] = {}
        self._cluster = cluster
        self._stop = stop
        self._count = self._left = count
        self._is_filtered = is_filtered
        self._idle = idle
        self._limiter = RateLimiter(rate, stop.requested)
        self._linger = linger
        self._takes_waiting = takes_waiting
        self._must_exist = must_exist
        self._needs_topic = needs_topic
        self._most_ahead = math.inf if rate is None else math.ceil(rate * RATE_AHEAD)
        self._inbox = Inbox()
        self._is_over = Event()  # no more messages are wanted
        self._is_closed = Event()  # none can come
        self._error: BaseException | None = None
        self._msg_timeout = math.inf  # the shortest of all nsqds
        self._passed: list[list[Message]] = []  # the batches that the command handles now
        self._kept: list[Message] = []  # those that it has left unanswered
        # Monotonic time of the last message, later than now if requeued messages are expected; and time at which all
        # consumers had a connection. Before the start nothing is idle.
        self._active_at = self._ready_at = math.inf
        self._max_in_flight = max_in_flight
        self._topics = topics
        self._channel = channel
        self._options = options
        self.consumers = [self._make_consumer(topic) for topic in topics.names]

    def _make_consumer(self, topic: str) -> Consumer:
        make = functools.partial(BulkConsumer, self._accept)
        most = self._wanted(self._max_in_flight)
        return self._cluster.consumer(topic, self._channel, make, max_tries=0, max_in_flight=most, **self._options)

    # --- what a command calls

    def run(self, handle: Callable[[list[Received]], object], workers: int = 1) -> None:
        """Pass messages to a function, which answers them, until the end. Then give the others back, and close.

        Messages that the function leaves unanswered stay in flight until the end.

        Args:
            workers: How often the function may be called at the same time. With a limit of the count or the rate, one
                call is made after the other.

        Raises:
            NSQException: If no server can be reached.
            Exception: That of fail(), or of the function.
        """
        self._stop.requested.rawlink(lambda _: self._is_over.set())
        number = workers if self._count is None and self._limiter.step is None else 1
        started = [spawn("gnsq-handle", self._work, handle, on_failure=self.fail) for _ in range(number)]
        watcher = spawn("gnsq-watch", self._watch, on_failure=self.fail)
        follower = None
        try:
            with self.counter:
                poller = NodePoller(self._cluster, self._topics.only)
                with _held_log():
                    self._start(poller)
                if self._topics.pattern is not None:
                    follower = spawn("gnsq-topics", self._follow_topics, poller, on_failure=self.fail)
                self._active_at = self._ready_at = time.monotonic()
                if self._stop.number is None:
                    self._is_over.wait()
        finally:
            if follower is not None:
                follower.kill()
            self._close(started)
            watcher.kill()
        if self._error is not None:
            raise self._error

    def done(self, messages: int) -> None:
        """Count messages that are safe elsewhere. To be called before FIN: nsqd sends the next one when it gets FIN."""
        self.counter.add(messages)
        if self._left is not None:
            self._left -= messages
            if self._left > 0:
                self.limit_in_flight(self._max_in_flight)
                return
            for consumer in self.consumers:
                consumer.pause()
            self.end()

    def pace(self, messages: int) -> bool:
        """Wait until the rate lets a number of messages pass. Return False if a signal has come instead."""
        self._limiter.wait(messages)
        return self._stop.number is None

    def limit_in_flight(self, most: int) -> None:
        """Request no more messages at a time for each topic, and no more than are wanted."""
        self._max_in_flight = most
        wanted = self._wanted(most)
        for consumer in self.consumers:
            if consumer.max_in_flight != wanted:
                consumer.max_in_flight = wanted

    def _wanted(self, most: int) -> int:
        left = math.inf if self._left is None or self._is_filtered else self._left
        return max(1, int(min(most, self._most_ahead, left)))

    def expect(self, seconds: float) -> None:
        """Do not count the next seconds as idle, since requeued messages come again then."""
        self._active_at = max(self._active_at, time.monotonic() + seconds)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold no other messages in a block than those that were passed to the command."""
        for consumer in self.consumers:
            consumer.pause()
        requeue_all(self._inbox.empty())
        yield
        for consumer in self.consumers:
            consumer.resume()

    def end(self) -> None:
        """End run(), since all is done."""
        self.is_complete = True
        self._is_over.set()

    def fail(self, error: BaseException) -> None:
        """End run() with an error."""
        self._error = self._error or error
        self._is_over.set()

    def status(self) -> int:
        """Return the exit status after run(), and say on stderr why it is not 0."""
        stop = self._stop.number
        if stop is not None and (self._count, self._idle) != (None, None) and not self.is_complete:
            click.echo(f"{stop.name}: stopped before the end", err=True)
            return 128 + stop
        if self.is_idle and self.failures:
            # Warnings, if they are logged, have said why.
            is_said = logging.getLogger("gnsq").isEnabledFor(logging.WARNING)
            text = "; ".join(f"{address}{'' if is_said else f': {error}'}" for address, error in self.failures.items())
            click.echo(f"Error: not all nsqds could be reached, so messages may be left there: {text}", err=True)
            return 1
        return 0

    # --- the start, and topics that match a pattern

    def _start(self, poller: NodePoller) -> None:
        """Start the consumers, and return when one of them can receive, or a signal has come.

        Before, asks the nsqds at their HTTP ports, and writes to stderr which topics do not exist, and which messages
        a new channel takes or does not get: afterwards it would be too late.

        Raises:
            NSQException: If no server can be reached.
            click.ClickException: If this command must not subscribe.
        """
        # An answer that only informs is not waited for.
        is_needed = self._topics.pattern is not None or self._must_exist or self._may_refuse
        snapshot = until_signal(self._stop, poller.poll, None if is_needed else QUESTION_LIMIT)
        if snapshot is None:
            return
        if self._topics.pattern is not None:
            self.consumers += [self._make_consumer(name) for name in self._new_topics(poller, snapshot)]
            if not self.consumers:
                if not snapshot.reached and all(snapshot.lookupds.values()):
                    raise NSQException(f"no nsqd can be reached: {'; '.join(snapshot.failures)}")
                click.echo(f"there are no {self._topics} yet; asking again every {self._topics.refresh:g} s", err=True)
                return
        findings = [self._find(snapshot, name) for name in self._names()]
        self._check(snapshot, findings)
        if is_ephemeral(self._channel):
            until_signal(self._stop, self._check_memory, poller, snapshot, findings)
        if (error := until_signal(self._stop, _try_start, self._cluster, self.consumers)) is not None:
            raise error
        # Only now: if no nsqd can be reached, the error says why.
        _say(finding.text for finding in findings if not finding.is_known)

    def _find(self, snapshot: Snapshot, topic: str) -> Finding:
        return find(snapshot, topic, self._channel, self._cluster.nsqds)

    def _names(self) -> list[str]:
        return [consumer.topic for consumer in self.consumers]

    @property
    def _may_refuse(self) -> bool:
        return is_ephemeral(self._channel) and not self._takes_waiting

    def _check(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        """Write to stderr what is known about the topics, unless this command must not subscribe then."""
        if self._needs_topic and any(each.has_no_topic for each in findings):
            raise _Refused(f"topic {self._topics} does not exist, so it has no messages. Nothing was made")
        if self._must_exist and not all(each.exists for each in findings):
            missing = [name for name, each in zip(self._names(), findings, strict=True) if not each.exists]
            why = "".join(f"; {failure}" for failure in snapshot.failures)
            raise _Refused(
                f"no nsqd has channel {self._channel} of topic {', '.join(missing)}{why}. A look makes none: "
                "gnsq stats shows those that exist"
            )
        if self._may_refuse and (lost := [each for each in findings if each.loses]):
            if not all(each.is_known for each in lost):
                _check_reachable(self._cluster, snapshot)
            raise _Refused(
                f"{'; '.join(each.text for each in lost)}. An ephemeral channel would take them, and lose what is left "
                f"in it at the end. Nothing was taken: {KEEP_OR_TAKE}"
            )
        _say(finding.text for finding in findings if finding.is_known)

    def _check_memory(self, poller: NodePoller, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        """Say which nsqds drop most of what an ephemeral channel should get, and refuse to let them drop what waits."""
        small = [node.address for node in snapshot.reached if _memory(poller, node.address) == 0]
        if not small:
            return
        named = ", ".join(map(short_address, small))
        text = f"nsqd {named} keeps no messages in memory (--mem-queue-size=0), so it drops from an ephemeral channel"
        if any(each.loses for each in findings):
            raise _Refused(f"{text} nearly all that wait. Nothing was taken: give --channel NAME")
        click.echo(f"{text} what comes while another message is on its way; --channel NAME gets all", err=True)

    def _new_topics(self, poller: NodePoller, snapshot: Snapshot) -> list[str]:
        names = poller.census.registered().union(row.topic for row in snapshot.topics)
        return self._topics.matching(names.difference(self._names()))

    def _follow_topics(self, poller: NodePoller) -> None:
        refused: set[str] = set()
        while True:
            gevent.sleep(self._topics.refresh)
            snapshot = poller.poll()
            for name in self._new_topics(poller, snapshot):
                finding = self._find(snapshot, name)
                if self._may_refuse and finding.loses:
                    if name not in refused:
                        refused.add(name)
                        click.echo(f"topic {name} is left out: {finding.text}: {KEEP_OR_TAKE}", err=True)
                    continue
                logger.info("topic %s is new", name)
                consumer = self._make_consumer(name)
                self.consumers.append(consumer)
                consumer.start(False)

    # --- from the consumers to the command

    def _accept(self, consumer: Consumer, messages: list[Message]) -> None:
        """Put messages into the inbox; requeue them after the end."""
        if self._is_closed.is_set():
            requeue_all(messages)
            return
        if (left := messages[0].time_left) is not None:
            self._msg_timeout = min(self._msg_timeout, left)
        self._inbox.add(consumer, messages)

    def _work(self, handle: Callable[[list[Received]], object]) -> None:
        while self._wait():
            limit = min(self.batch, self._limiter.step or self.batch, self.batch if self._left is None else self._left)
            received = self._inbox.take(limit)
            messages = [each.message for each in received]
            self._passed.append(messages)
            try:
                if received:
                    handle(received)
            finally:
                self._keep([message for message in messages if not message.has_responded()])
                self._passed.remove(messages)
                self.expect(0)

    def _keep(self, messages: list[Message]) -> None:
        for message in messages:
            message.body = b""
        self._kept += messages

    def _wait(self) -> bool:
        """Wait for messages that are due. Return False at the end."""
        inbox = self._inbox
        gevent.wait([inbox.filled, self._is_over], count=1)
        while not self._is_due():
            inbox.filled.clear()
            gevent.wait([inbox.filled, self._is_over], max(inbox.since + self._patience - time.monotonic(), 0), count=1)
        if self._is_draining and self._is_over.is_set():
            if not inbox.waiting:
                gevent.wait([inbox.filled, self._is_closed], count=1)
            return bool(inbox.waiting)
        return not self._is_over.is_set()

    @property
    def _is_draining(self) -> bool:
        """True if after a signal all messages that have arrived are to be handled."""
        return self._linger is not None and self._error is None and self._left != 0

    def _is_due(self) -> bool:
        """Return True if nothing is to be gained by waiting for more messages."""
        waiting = self._inbox.waiting
        return (
            self._linger is None
            or not waiting
            or self._is_over.is_set()
            or self._inbox.size >= BATCH_SIZE
            or len(waiting) >= (self.batch if self._left is None else min(self._left, self.batch))
            or time.monotonic() >= self._inbox.since + self._patience
            or self._is_starved
        )

    @property
    def _is_starved(self) -> bool:
        return any(consumer.is_starved for consumer in self.consumers)

    @property
    def _patience(self) -> float:
        return min(self._linger or 0.0, self._msg_timeout * LINGER_BELOW)

    def _watch(self) -> None:
        """Keep what the command holds from timing out, and end when nothing has come for some time."""
        while True:
            began = time.monotonic()
            gevent.sleep(CHECK_INTERVAL)
            # While this process did not run, because the machine was busy or it was stopped, messages may have come.
            self._active_at += max(time.monotonic() - began - CHECK_INTERVAL, 0.0)
            for messages in [*self._passed, self._kept, [received.message for received in self._inbox.waiting]]:
                self._touch(messages)
            if self._idle is not None and not self._is_over.is_set():
                self._check_idle(self._idle)

    def _touch(self, messages: list[Message]) -> None:
        held = [message for message in messages if not message.has_responded()]
        left = held[0].time_left if held else None  # the first one has waited longest
        if left is not None and left < self._msg_timeout * TOUCH_BELOW:
            for message in held:
                if message.time_left:
                    with contextlib.suppress(NSQException):  # the connection is lost, or close_timeout is over
                        message.touch()

    def _check_idle(self, idle: float) -> None:
        now = time.monotonic()
        stats = [consumer.stats() for consumer in self.consumers]
        if not_ready := [each for each in stats if each.not_ready]:
            if now - self._ready_at > self._cluster.timeout + idle:
                self.fail(NSQException(f"{not_ready[0].topic}: no nsqd can be reached: {not_ready[0].not_ready}"))
            self.expect(0)
            return
        self._ready_at = now
        # A probe is not waited for: its message may have been deferred for long.
        if self._passed or self._inbox.waiting or any(each.backoff == "waiting" for each in stats):
            self.expect(0)
        if now - self._active_at >= idle:
            self.is_idle = True
            self.end()

    def _close(self, workers: Sequence[gevent.Greenlet]) -> None:
        """Give back what is left, and close the consumers. A lingering command handles what arrives until then."""
        self._is_over.set()
        self.was_starved = self._is_starved
        for consumer in self.consumers:
            self.failures |= consumer.stats().failures
        if not self._is_draining:
            gevent.joinall(workers)
            for consumer in self.consumers:
                consumer.pause()  # otherwise nsqd would deliver the requeued messages here again
            self._is_closed.set()
            left = [*self._kept, *self._inbox.empty()]
            self.requeued = len(left)
            requeue_all(left)
        closers = [spawn("gnsq-inbox-close", consumer.close, on_failure=None) for consumer in self.consumers]
        gevent.joinall(closers, raise_error=True)
        self._is_closed.set()
        gevent.joinall(workers, HANDLE_GRACE)


def requeue_all(messages: Iterable[Message], delay: float = 0.0, *, backoff: bool = False) -> None:
    """Requeue messages. Those that have timed out and those whose connection is lost come again without that.

    Args:
        delay: Seconds.
    """
    for message in messages:
        if message.time_left == 0:
            message.drop()
            continue
        with contextlib.suppress(NSQException):
            message.requeue(round(delay * 1000), backoff=backoff)


# --- the start


class _Refused(click.ClickException):
    """The command does nothing, since messages would be lost, or a channel made by mistake."""

    exit_code = 2


def _memory(poller: NodePoller, address: str) -> object:
    """Return an nsqd's mem_queue_size; None if it does not say it."""
    with contextlib.suppress(NSQHttpError):
        return poller.census.client(address).config("mem_queue_size")
    return None


def _say(texts: Iterable[str]) -> None:
    said = [text for text in texts if text]
    for text in said[:MAX_SAID]:
        click.echo(text, err=True)
    if len(said) > MAX_SAID:
        click.echo(f"... and so on for {len(said) - MAX_SAID:,} more topics", err=True)


def _check_reachable(cluster: Cluster, snapshot: Snapshot) -> None:
    """Connect to the nsqds that are given, without a subscription.

    Raises:
        NSQException: If no nsqd can be reached, or no nsqlookupd.
    """
    connects = [spawn("gnsq-connect", _failure_to_connect, cluster, each, on_failure=None) for each in cluster.nsqds]
    gevent.joinall(connects, raise_error=True)
    errors = [each.value for each in connects] or ([] if snapshot.nodes else snapshot.failures)
    if errors and all(errors):
        raise NSQException(f"no nsqd can be reached: {'; '.join(errors)}")


def _failure_to_connect(cluster: Cluster, nsqd: str) -> str:
    client = NsqdTCPClient(*parse_address(nsqd), **cluster.connection)
    try:
        client.connect()
        client.identify()
    except NSQException as error:
        return str(error)
    finally:
        client.close_stream()
    return ""


def _try_start(cluster: Cluster, consumers: Sequence[Consumer]) -> NSQException | None:
    """Start consumers, and return why no server can be reached; None if one can."""
    starts = [spawn("gnsq-start", consumer.start, False, on_failure=None) for consumer in consumers]
    gevent.joinall(starts, raise_error=True)
    deadline = time.monotonic() + cluster.timeout
    while not any(consumer.is_ready for consumer in consumers):
        if time.monotonic() > deadline or all(_has_failed(consumer) for consumer in consumers):
            reasons = dict.fromkeys(consumer.stats().not_ready for consumer in consumers)
            return NSQException(f"no nsqd can be reached: {'; '.join(reasons)}")
        gevent.sleep(READY_CHECK_INTERVAL)
    return None


def _has_failed(consumer: Consumer) -> bool:
    """Return True if the attempts to reach each server have failed."""
    stats = consumer.stats()
    named = stats.failures.keys() - consumer.nsqd_tcp_addresses
    has_no_nsqd = len(stats.lookupd_failures) == len(consumer.lookupds)
    return consumer.nsqd_tcp_addresses <= stats.failures.keys() and (has_no_nsqd or bool(named))


@contextlib.contextmanager
def _held_log() -> Iterator[None]:
    """Hold log lines back in a block, and write them at its end, but not after an error: it says the same, and nothing
    is tried again.
    """
    logger = logging.getLogger("gnsq")
    if logger.isEnabledFor(logging.INFO):  # -v: for people who want to see when
        yield
        return
    before = logger.handlers
    held = MemoryHandler(1000, flushLevel=logging.CRITICAL + 1, target=before[0] if before else None)
    logger.handlers = [held]
    try:
        yield
    except (NSQException, click.ClickException):
        held.buffer.clear()
        raise
    finally:
        logger.handlers = before
        held.close()
