"""Takes publishes, gives them to connections, and retries or ends the publishes that were not confirmed.

The dispatcher owns the publishes that wait for capacity, for a connection or for a retry. A link is a connection to one
nsqd; it owns each publish that was submitted to it. The dispatcher does not decide which nsqds to connect to. It runs
in one hub; only publish(), wait_for_capacity() and flush() wait.
"""

# A publish, from the call to nsqd's OK:
#
#  1. `Producer.publish` in producer/producer.py checks the arguments and makes a `PendingPublish` in
#     producer/publish.py.
#  2. `Producer._start_with` in producer/producer.py starts the producer with its first publish. If another thread
#     publishes, `ProducerRuntime.publish_from_thread` in producer/runtime.py passes it to the producer's hub.
#  3. `Dispatcher.submit` reserves bytes of max_pending_bytes; if too few are left, the publish waits for
#     `Dispatcher._admit_waiting`.
#  4. `Batcher.add` in producer/batching.py collects publishes with one topic, if batch_messages is set.
#  5. `Dispatcher.send` asks the strategy, such as `round_robin` in producer/routing.py, for a link.
#  6. The link is a connection. If nothing else is pending on it, `Writer.submit` in nsqd/writer.py lets
#     `TcpTransport.send_nowait` in transport.py send what `PendingPublish.encode` in producer/publish.py has built.
#  7. Otherwise `PendingRequests.put` in nsqd/pending.py queues it, and `Writer.run` in nsqd/writer.py sends it together
#     with others.
#  8. `Dispatcher.publish` waits. If no other publish is pending, `TcpTransport.poll_reply` in transport.py may poll
#     for the response instead: then the caller's greenlet itself takes steps 9 and 10.
#  9. `Connection` in nsqd/connection.py reads OK in the hub; `PendingRequests.take_confirmed` in nsqd/pending.py finds
#     the publish. `ConnectionListener.on_oks` in nsqd/connection.py is called with it.
# 10. `Dispatcher.confirm` counts it as confirmed, and switches to the caller.
#
# The states of a publish, from submit() to its outcome. If nsqd has refused an earlier try, or may have executed it,
# the deadline ends the publish as REFUSED or UNKNOWN instead of NOT SENT:
#      submit()             retry: refused by this nsqd, not executed, or allow_duplicates. Also after WAITING TO BE
#         |                  SENT, if the connection is lost or stalled. With batch_messages, in another batch
#         |                           +-----------------------------------------------+
#         v                           v                                               |
#   WAITING FOR --> WAITING FOR --> WAITING FOR --> WAITING TO --> WAITING FOR -------+
#    CAPACITY        A BATCH        A CONNECTION      BE SENT      ITS RESPONSE
#         |               |              |               |              |
#         +---------------+--------------+---------------+              +--> CONFIRMED  OK
#                         |                                             +--> REFUSED    NSQErrorCode
#                         v                                             +--> UNKNOWN    NSQUnknown: connection lost,
#                     NOT SENT                                                          or deadline
#           NSQNotSent: deadline, or closed

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from weakref import WeakKeyDictionary

import gevent
from gevent import getcurrent
from gevent.event import Event

from gnsq.clock import Clock
from gnsq.concurrency.greenlets import check_is_failure
from gnsq.errors import (
    NSQConnectionClosed,
    NSQErrorCode,
    NSQException,
    NSQNotSent,
    NSQNotSentClosed,
    NSQNotSentTimeout,
    NSQTimeout,
    NSQUnauthorized,
    NSQUnknown,
    NSQUnknownClosed,
    NSQUnknownTimeout,
)
from gnsq.logs import LogOwner
from gnsq.nsqd.connection import HUB_ROUND, Connection
from gnsq.producer.batching import Batcher
from gnsq.producer.deadlines import STALLED_AFTER, Deadlines, StallDetector
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import (
    Decision,
    Failure,
    PendingPublish,
    PublishCounts,
    Unconfirmed,
    WaitingFor,
    copy_error,
    decide,
    is_topic_error,
    sent_publishes,
    unsent_publishes,
)
from gnsq.producer.routing import Strategy
from gnsq.texts import counted

__all__ = ["Dispatcher"]

logger = logging.getLogger(__name__)

# Seconds without a word from nsqd after which a short timeout of a publish may cost the connection: a disk that needs
# longer once must not.
MIN_SILENCE = 1.0


class Dispatcher:
    """The publishes of one producer. The object must be made in the hub in which it runs.

    Args:
        nsqd_count: Returns the number of known nsqds.
        no_connection_error: Makes the error that tells why there is no connection. Called with a text that tells how
            long the publish waited, such as "within 5 s".
        owner: The Producer whose name is in the log lines.

    Attributes:
        hub: The hub in which the dispatcher runs.
        links: The links that publishes are submitted to.
        stalled_links: Links without a response for too long. They get no publishes while there are other links.
        batcher: Collects batches; None if batch_messages is not set.
        deadlines: Checks deadlines and stalled links.
        pending: Number of publishes that were submitted, and whose callers were not woken yet.
        pending_bytes: Bytes that these publishes have reserved.
        signal_greenlets: Greenlets that run receivers of signals now. A receiver must not wait for a publish.
    """

    # Slots save 6 % of a publish's time: with more than 30 attributes CPython makes a dict, which is slower to read.
    __slots__ = (
        *("_add_latency", "_choose", "_clock", "_closed", "_closing", "_completed", "_confirmed"),
        *("_counts", "_failed", "_is_submitting", "_max_pending_bytes", "_no_connection_error", "_now"),
        *("_nsqd_count", "_options", "_owner", "_publishing", "_removed", "_run_callback", "_seen_overdue"),
        *("_send_or_batch", "_stall_detector", "_to_retry", "_unconfirmed", "_waiting_for_capacity"),
        *("_waiting_for_connection", "_will_resume", "batcher", "deadlines", "hub", "links", "pending"),
        *("pending_bytes", "signal_greenlets", "stalled_links"),
    )

    def __init__(
        self,
        options: ProducerOptions,
        clock: Clock,
        strategy: Strategy,
        counts: PublishCounts,
        *,
        nsqd_count: Callable[[], int],
        no_connection_error: Callable[[str], NSQException],
        owner: LogOwner,
    ) -> None:
        self.links: list[Connection] = []
        self.stalled_links: list[Connection] = []
        # Links that get no further publishes, but may still have pending ones.
        self._removed: list[Connection] = []
        self.pending = 0
        self.pending_bytes = 0
        self.signal_greenlets: set[gevent.Greenlet] = set()
        # For is_reentrant().
        self._publishing: gevent.Greenlet | None = None  # the greenlet that runs publish()
        self._is_submitting = False  # True while submit() runs
        self._options = options
        self._max_pending_bytes = options.max_pending_bytes
        self._clock = clock
        self._now = clock.monotonic
        self._choose = strategy
        self._nsqd_count = nsqd_count
        self._no_connection_error = no_connection_error
        self.hub = gevent.get_hub()
        self._run_callback = self.hub.loop.run_callback
        self._waiting_for_capacity: deque[PendingPublish] = deque()
        self._waiting_for_connection: deque[PendingPublish] = deque()
        self._to_retry: list[PendingPublish] = []
        # Publishes whose callers _resume() wakes: confirmed ones, which it counts, too, and failed ones.
        self._confirmed: list[PendingPublish] = []
        self._failed: list[PendingPublish] = []
        self._will_resume = False  # True from _resume_soon() until the hub calls _resume()
        self._owner = owner
        self._counts = counts
        self._add_latency = counts.latency.add
        # Set when a publish ends. None before the first flush(), so that publishes need not set it.
        self._completed: Event | None = None
        self.batcher = Batcher(self.send, options, clock) if options.batch_messages else None
        self._send_or_batch: Callable[[PendingPublish], None] = self.batcher.add if self.batcher else self.send
        self._stall_detector = StallDetector()
        # By link: its oldest publish, if it was seen without a response after its deadline.
        self._seen_overdue: WeakKeyDictionary[Connection, PendingPublish] = WeakKeyDictionary()
        self.deadlines = Deadlines(
            clock,
            expire_overdue=self._expire_overdue,
            check_links=self._check_stalled,
        )
        self._closing = self._closed = False
        # Publishes that have failed since stop_accepting().
        self._unconfirmed: list[Unconfirmed] = []

    # --- submit

    def publish(self, publish: PendingPublish, block: bool) -> None:
        """Submit a publish and wait until it has ended. If it ends with an error, raise the error.

        If the calling greenlet is killed or interrupted by a gevent.Timeout, the publish continues. If the publish then
        fails, the failure is logged.
        """
        publish.waiter = waiter = getcurrent()
        if waiter is self.hub or (self.signal_greenlets and waiter in self.signal_greenlets):
            raise RuntimeError(
                "nothing can wait for a publish in the hub itself or a receiver of signals; let a greenlet do it"
            )
        self._publishing = waiter
        try:
            self.submit(publish, block)
            if self.pending == 1 and publish.link is not None:
                publish.waiter = None  # so that confirm() does not switch to this greenlet, which runs
                try:
                    publish.link.poll_reply()
                except BaseException:
                    self._abort_if_interrupted(publish)
                    raise
                publish.waiter = waiter
            # _wake() resumes this greenlet, at the deadline at the latest. Then the result is the publish; otherwise
            # another greenlet has switched here by mistake: wait again.
            while not publish.done and self.hub.switch() is not publish:
                self._publishing = waiter
        finally:
            publish.waiter = self._publishing = None
        if publish.error is not None:
            # Several publishes may end with the same error object. Each raise makes the traceback longer, so reset it.
            raise publish.error.with_traceback(None)

    def submit(self, publish: PendingPublish, block: bool) -> None:
        """Accept a publish. It will end at its deadline at the latest.

        Raises:
            NSQNotSent: If the producer is closed. If block is False, also if there is no capacity or no connection.
        """
        publish.owner = self
        # Set the flag before checking _closing: a close() in a signal handler after the check must see the flag.
        self._is_submitting = True
        try:
            if self._closing:
                raise NSQNotSentClosed("producer is closing; make a new one")
            if not block:
                self._refuse_to_wait(publish)
            self.pending += 1
            if publish.deadline < self.deadlines.due:
                self.deadlines.schedule(publish.deadline)
            # These lines repeat _has_capacity() and _admit_waiting() instead of calling them. It saves 0.15 us of 4 us.
            pending_bytes = self.pending_bytes + publish.size
            if self._waiting_for_capacity or (pending_bytes > self._max_pending_bytes and self.pending_bytes):
                self._waiting_for_capacity.append(publish)
                self.flush_batches()
            else:
                publish.reserved_bytes = publish.size
                self.pending_bytes = pending_bytes
                self._send_or_batch(publish)
        except BaseException:
            self._abort_if_interrupted(publish)
            raise
        finally:
            self._is_submitting = False

    def _abort_if_interrupted(self, publish: PendingPublish) -> None:
        """Close the connection of a publish if a signal handler has raised while it was sent, or its response was read.

        If it was not sent, or its response is lost, each later response would be taken for an earlier publish.
        """
        if publish.link is not None and not publish.done:
            publish.link.abort(NSQConnectionClosed("a signal handler has interrupted a publish"))

    def is_reentrant(self, greenlet: gevent.Greenlet) -> bool:
        """Return True if a greenlet, the running one, is inside publish(), submit() or a receiver of signals.

        A signal handler that has interrupted publish() or submit() runs in the same greenlet: the result is True there,
        too. If the result is True, the caller must not wait for publishes to end.
        """
        return self._is_submitting or greenlet is self._publishing or greenlet in self.signal_greenlets

    def _refuse_to_wait(self, publish: PendingPublish) -> None:
        if not self.links and not self.stalled_links:
            raise self._no_connection_error("now")
        if self._waiting_for_capacity or not self._has_capacity(publish):
            raise self._no_capacity_error(publish, "now")

    def _no_capacity_error(self, publish: PendingPublish, limit: str) -> NSQNotSentTimeout:
        used = f"{counted(self.pending_bytes, 'byte has', 'bytes have')} no response"
        text = (
            f"publish to {publish.topic}: no capacity {limit}: {used}, max_pending_bytes is {self._max_pending_bytes}"
        )
        return NSQNotSentTimeout(text)

    def _has_capacity(self, publish: PendingPublish) -> bool:
        # A publish that is larger than max_pending_bytes has capacity when no other publish is pending.
        return self.pending_bytes + publish.size <= self._max_pending_bytes or not self.pending_bytes

    def waits_for_connection(self) -> bool:
        """Return True if a publish waits until any nsqd is connected."""
        return bool(self._waiting_for_connection)

    def _admit_waiting(self) -> None:
        """Give free capacity to the publishes that wait for it, the oldest first."""
        waiting = self._waiting_for_capacity
        while waiting and (waiting[0].done or self._has_capacity(waiting[0])):
            publish = waiting.popleft()
            if publish.done:
                continue
            if publish.on_capacity is not None:
                publish.on_capacity()
            publish.reserved_bytes = publish.size
            self.pending_bytes += publish.size
            self._send_or_batch(publish)
        if waiting:
            self.flush_batches()

    def flush_batches(self) -> None:
        """Send all batches that are not full."""
        if self.batcher is not None:
            self.batcher.flush()

    def wait_for_capacity(self, publish: PendingPublish) -> None:
        """Wait until a publish has capacity, or has ended.

        Raises:
            NSQNotSentTimeout: If there is no capacity, and the caller (the hub or a signal's receiver) can't wait.
        """
        if publish.reserved_bytes or publish.done:
            return
        if (greenlet := getcurrent()) is self.hub or greenlet in self.signal_greenlets:
            self._waiting_for_capacity.remove(publish)
            self.pending -= 1
            raise self._no_capacity_error(publish, "now")
        admitted = Event()
        publish.on_capacity = admitted.set
        try:
            admitted.wait()  # returns when the publish gets capacity, or ends without it
        except BaseException:
            # The caller was interrupted. Clear the result, so that a failure of the publish is logged.
            publish.result = None
            raise

    # --- links

    def send(self, publish: PendingPublish) -> None:
        """Submit a publish to a link. If there is no link, let the publish wait until there is one."""
        links = self.links
        if not links and self.stalled_links:
            links, self.stalled_links = self.stalled_links, []
            self.links = links
        if not links:
            self._waiting_for_connection.append(publish)
            return
        if publish.refused_by:
            links = [link for link in links if link.address not in publish.refused_by] or links
        try:
            link = publish.link = self._choose(links)
        except BaseException as error:  # noqa: BLE001  # the user's strategy may raise anything; only this publish fails
            check_is_failure(error)
            failure = NSQNotSent(f"publish to {publish.topic}: the strategy can't choose: {error!r}")
            failure.__cause__ = error
            self._fail_all(publish, failure)
            return
        link.submit(publish)

    def add(self, link: Connection) -> None:
        """Add a link, and immediately submit the publishes that wait for a connection."""
        self.links.append(link)
        waiting, self._waiting_for_connection = self._waiting_for_connection, deque()
        for publish in waiting:
            if not publish.done:
                self.send(publish)

    def remove(self, link: Connection) -> None:
        """Submit no further publishes to a link. Its pending publishes continue. Removing it again has no effect."""
        for links in (self.links, self.stalled_links):
            if link in links:
                links.remove(link)
                if link.pending:
                    self._removed.append(link)

    # --- outcomes

    def confirm_soon(self, publish: PendingPublish) -> None:
        """Let the hub call confirm(). Any greenlet may call this."""
        self._confirmed.append(publish)
        self._resume_soon()

    def confirm(self, publishes: Iterable[PendingPublish]) -> None:
        """Count publishes that nsqd has confirmed, and wake their callers. The hub calls this, or the greenlet in
        publish() whose own publish was confirmed while it polled; it is no waiter then."""
        now, confirmed_by_nsqd = self._now(), self._counts.confirmed_by_nsqd
        ended: list[PendingPublish] = []
        for publish in publishes:
            if publish.done:
                continue  # it has ended before this response came, at its deadline
            publish.done = True
            messages = publish.messages
            if publish.members:
                members = publish.confirm_members()
                messages = len(members)
                ended += members
            else:
                ended.append(publish)
            self.pending_bytes -= publish.reserved_bytes
            confirmed_by_nsqd[publish.link.address] += messages  # type: ignore[union-attr]  # it has a link
            self._add_latency(now - publish.started, messages)
        if self._waiting_for_capacity or self._completed is not None:
            self._resume_soon()
        self._wake(ended)

    def _wake(self, publishes: Sequence[PendingPublish]) -> None:
        """Wake the callers of publishes that have ended.

        This code switches to each waiting greenlet directly, which saves one callback for each publish. The greenlet
        switches back to the hub, and thus to this code, when it waits again.
        """
        # While others are to be woken, what a caller publishes next must not count as the only pending publish, which
        # would be polled for.
        others = len(publishes) > 1
        self.pending -= len(publishes) - others
        for publish in publishes:
            waiter = publish.waiter
            if waiter is not None:
                try:
                    waiter.switch(publish)
                except BaseException:  # noqa: BLE001  # a greenlet that is not gevent's own may raise anything at its end
                    self.hub.handle_error(waiter, *sys.exc_info())
            elif publish.result is not None:
                publish.result.end(publish.error)
        self.pending -= others

    def handle_failure(self, publish: PendingPublish, failure: Failure, error: NSQException) -> None:
        """Retry or end a publish that was not confirmed. If it is a batch, retry or end each member by itself."""
        if failure is Failure.REFUSED and is_topic_error(error):
            self._refuse_topic(publish, error)
            return
        unfinished = publish.unfinished()
        publish.done = publish.done or bool(publish.members)
        for each in unfinished:
            own_error = copy_error(error) if failure is Failure.REFUSED and publish.members else error
            self._handle_one(each, failure, own_error, len(publish.members))

    def _handle_one(self, publish: PendingPublish, failure: Failure, error: NSQException, batch_size: int) -> None:
        decision = decide(
            failure,
            error,
            refusals=publish.refusals,
            nsqds=self._nsqd_count(),
            batch_size=batch_size,
            allow_duplicates=self._options.allow_duplicates,
            may_retry=not self._closed,
        )
        if decision is Decision.REFUSED:
            self.fail(publish, error)
        elif decision is Decision.NOT_SENT:
            self.fail(
                publish,
                NSQNotSentClosed.after(error, f"{error.reason}; the publish to {publish.topic} was not executed"),
            )
        elif decision is Decision.UNKNOWN:
            self.fail(
                publish, NSQUnknownClosed.after(error, f"{error.reason}; nsqd may have the publish to {publish.topic}")
            )
        else:
            if decision is Decision.RETRY_ALONE:
                publish.is_batchable = False
            elif isinstance(error, NSQErrorCode) and failure is Failure.REFUSED:
                publish.refused_by |= {publish.address}
                publish.refusals += 1
                publish.refused_error = error
            if decision is Decision.RETRY_POSSIBLY_DUPLICATED:
                self._counts.possibly_duplicated += publish.messages
                publish.lost_error = error
            self._counts.retried += publish.messages
            self._retry(publish)

    def fail(self, publish: PendingPublish, error: NSQException) -> None:
        """End a publish with an error. If nsqd may have executed an earlier try, the error becomes an NSQUnknown."""
        if publish.lost_error is not None and not isinstance(error, NSQUnknown):
            kind = NSQUnknownTimeout if isinstance(error, NSQTimeout) else NSQUnknownClosed
            error = kind.after(error, f"{error.reason}; it was sent before ({publish.lost_error}): nsqd may have it")
        publish.done = True
        publish.error = error
        if self._closing:
            self._unconfirmed.append(Unconfirmed(publish.topic, publish.bodies, publish.defer, error))
        self.pending_bytes -= publish.reserved_bytes
        self._counts.count_failed(error, publish.messages)
        if publish.on_capacity is not None and not publish.reserved_bytes:
            publish.on_capacity()
        if publish.waiter is None and publish.result is None:
            text, topic = "a publish to %s failed, and its caller no longer waits for it: %s", publish.topic
            log = self._owner.log(logger)
            log.limited(logging.WARNING, "no caller", text, topic, error, extra={"topic": topic})
        self._failed.append(publish)
        self._resume_soon()

    def _fail_all(self, publish: PendingPublish, error: NSQException) -> None:
        for each in publish.unfinished():
            self.fail(each, copy_error(error))
        publish.done = True

    def _refuse_topic(self, publish: PendingPublish, error: NSQException) -> None:
        """End a publish whose topic nsqd refused; after NSQUnauthorized, all publishes to this topic on the same link.

        With NSQUnauthorized nsqd closes the connection, and executes nothing after the refused command. If the other
        publishes were retried, nsqd would refuse them, too, and close a connection each time.

        Source: nsqd protocol_v2.go, CheckAuth.
        """
        link = publish.link
        refused = [publish]
        if link is not None and isinstance(error, NSQUnauthorized):
            unsent = [other for other in unsent_publishes(link) if other.topic == publish.topic]
            refused += [other for other in sent_publishes(link) if other.topic == publish.topic]
            refused += link.writer.pending.cancel_unsent(unsent)
        for each in refused:
            self._fail_all(each, error)

    def _retry(self, publish: PendingPublish) -> None:
        """Send a publish soon, on any link."""
        publish.link = None
        self._to_retry.append(publish)
        self._resume_soon()

    def _resume_soon(self) -> None:
        if not self._will_resume:
            self._will_resume = True
            self._run_callback(self._resume)

    def _resume(self) -> None:
        """Send the publishes that _retry() has collected, then wake the callers of those that have ended: what these
        callers publish is younger. Then give free capacity to publishes that wait for it, and wake flush()."""
        self._will_resume = False
        to_retry, self._to_retry = self._to_retry, []
        for publish in to_retry:
            if not publish.done:
                self._send_or_batch(publish)
        failed, self._failed = self._failed, []
        confirmed, self._confirmed = self._confirmed, []
        if confirmed:
            self.confirm(confirmed)
        self._wake(failed)
        self._admit_waiting()
        if self._completed is not None:
            self._completed.set()

    # --- time

    def expire(self, publish: PendingPublish, waiting_for: WaitingFor, now: float) -> None:
        """End a publish whose deadline has passed. Of a batch, end only the members whose deadline has passed.

        If a batch was not sent, its other members are sent soon. The link must have removed such a batch.
        """
        was_sent = waiting_for is WaitingFor.RESPONSE
        members = publish.unfinished()
        for each in members:
            if each.deadline <= now:
                self.fail(each, self._expired_error(each, waiting_for))
                if was_sent:
                    each.drop_bodies()
            elif not was_sent:
                self.deadlines.schedule(each.deadline)
                self._retry(each)
        if was_sent:
            # The sent publish stays pending at its link, since its response may still come. Only drop its bodies.
            publish.drop_bodies()
            publish.deadline = min([each.deadline for each in members if not each.done], default=publish.deadline)
        publish.done = publish.done or not was_sent or all(each.done for each in members)

    def _expired_error(self, publish: PendingPublish, waiting_for: WaitingFor) -> NSQException:
        limit = f"within {publish.timeout:g} s"
        if waiting_for is WaitingFor.RESPONSE:
            return NSQUnknownTimeout(f"publish not answered {limit}; nsqd may have it", address=publish.address)
        if publish.refused_error is not None:
            return publish.refused_error
        if waiting_for is WaitingFor.CAPACITY:
            return self._no_capacity_error(publish, limit)
        if waiting_for is WaitingFor.SEND:
            return NSQNotSentTimeout(
                f"publish not sent {limit}: nsqd has not read the commands before it, or the hub was blocked",
                address=publish.address,
            )
        if waiting_for is WaitingFor.BATCH:
            return NSQNotSentTimeout(f"publish to {publish.topic}: batch not sent {limit}; batch_linger is longer")
        return self._no_connection_error(limit)

    def _expire_overdue(self, now: float) -> None:
        for waiting_for, publishes in self._own_publishes():
            for publish in self._overdue(publishes, now):
                self.expire(publish, waiting_for, now)
        for link in self._all_links():
            link.writer.pending.expire_unsent(now)
            self.deadlines.schedule(link.writer.pending.due)
            for publish in self._overdue(sent_publishes(link), now):
                self.expire(publish, WaitingFor.RESPONSE, now)
                if not publish.done:
                    self.deadlines.schedule(publish.deadline)
            self._close_if_silent(link, now)
        self._waiting_for_capacity = deque(publish for publish in self._waiting_for_capacity if not publish.done)
        self._waiting_for_connection = deque(publish for publish in self._waiting_for_connection if not publish.done)
        self._admit_waiting()

    def _close_if_silent(self, link: Connection, now: float) -> None:
        """Close the connection of a link whose oldest publish got no response by its deadline, if nsqd was silent for
        that timeout, too.

        That response may be lost. Then each later one would be taken for that of the publish before, and what waits
        for it to be sent alone would never be sent. While other responses come, nsqd is only slow.
        """
        oldest = next(iter(sent_publishes(link)), None)
        if oldest is None or not oldest.done:
            return
        due = max(link.last_read, oldest.started) + min(max(oldest.timeout, MIN_SILENCE), STALLED_AFTER)
        if self._seen_overdue.get(link) is not oldest:
            # After a time in which the hub was blocked, the response may wait in the socket: let it be read first.
            self._seen_overdue[link], due = oldest, max(due, now + HUB_ROUND)
        if now < due:
            self.deadlines.schedule(due)
        else:
            text = f"nsqd sends nothing, and a publish got no response within its timeout of {oldest.timeout:g} s"
            link.abort(NSQTimeout(text, address=link.address))

    def _overdue(self, publishes: Iterable[PendingPublish], now: float) -> list[PendingPublish]:
        """Return the publishes whose deadline has passed, and schedule a check for the others."""
        unfinished = [publish for publish in publishes if not publish.done]
        for publish in unfinished:
            if publish.deadline > now:
                self.deadlines.schedule(publish.deadline)
        return [publish for publish in unfinished if publish.deadline <= now]

    def _check_stalled(self, now: float) -> None:
        """Stop using stalled links while there are other links. Use a stalled link again after it has responded."""
        before = self.stalled_links
        self.links, self.stalled_links = self._stall_detector.partition([*self.links, *before], now)
        for link in self.stalled_links:
            if link not in before:
                text = "has not answered for %g s; publishes go to other nsqds"
                self._log_link(logging.WARNING, link, text, STALLED_AFTER)
            for publish in link.writer.pending.cancel_unsent(unsent_publishes(link)):
                publish.on_not_sent(NSQNotSentTimeout("nsqd does not read", address=link.address))
        for link in before:
            if link not in self.stalled_links:
                self._log_link(logging.INFO, link, "is published to again")

    def _log_link(self, level: int, link: Connection, text: str, *arguments: object) -> None:
        # An nsqd may have several connections. Log one line for all of them.
        kind = f"{link.address} {text}"
        self._owner.log(logger, nsqd=link.address).limited(level, kind, text, *arguments)

    # --- all publishes

    def pending_publishes(self) -> Iterator[PendingPublish]:
        """Yield all publishes that have not ended. Instead of a batch, yield its members."""
        places = [publishes for _, publishes in self._own_publishes()]
        for link in self._all_links():
            places += [unsent_publishes(link), sent_publishes(link)]
        for publishes in places:
            for publish in publishes:
                yield from publish.unfinished()

    def _own_publishes(self) -> Iterator[tuple[WaitingFor, list[PendingPublish]]]:
        """Yield the publishes that no link has, in lists, each with the step that its publishes wait for."""
        yield WaitingFor.CAPACITY, list(self._waiting_for_capacity)
        yield WaitingFor.BATCH, [] if self.batcher is None else list(self.batcher.waiting())
        yield WaitingFor.CONNECTION, [*self._waiting_for_connection, *self._to_retry]

    def _all_links(self) -> Iterable[Connection]:
        self._removed = [link for link in self._removed if link.pending]
        return dict.fromkeys([*self.links, *self.stalled_links, *self._removed])

    def flush(self, timeout: float) -> bool:
        """Wait until all publishes that are pending now have ended.

        Returns:
            False if the timeout (seconds) ended first.
        """
        deadline = self._now() + timeout
        if self._completed is None:
            self._completed = Event()
        for publish in list(self.pending_publishes()):
            while not publish.done:
                pause = deadline - self._now()
                if pause <= 0:
                    return False
                # Ignore the result of wait(): another flush() may have cleared the event.
                self._completed.clear()
                self._clock.wait(self._completed, pause)
        return True

    def stop_accepting(self) -> None:
        """Refuse further publishes. From now on, collect the publishes that fail: close() returns them."""
        self._closing = True

    def close(self) -> list[Unconfirmed]:
        """End all publishes that no link has. From now on, a publish that fails on a link is not retried.

        Returns:
            The publishes that have failed since stop_accepting(). Those that fail later are appended to this list.
        """
        self._closing = self._closed = True
        for waiting_for, publishes in list(self._own_publishes()):
            for publish in publishes:
                text = f"the producer was closed before the publish to {publish.topic} was sent"
                if waiting_for is WaitingFor.CONNECTION:
                    text += f": {self._no_connection_error('until then')}"
                self._fail_all(publish, NSQNotSentClosed(text))
        return self._unconfirmed
