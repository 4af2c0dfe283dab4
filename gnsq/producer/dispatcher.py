"""Dispatcher: the way of publishes through a producer, from the call to a connection and back.

Owns what has not ended: publishes that wait for room, for a connection, to be sent again; those given to a link are
the link's. Decides nothing about whom to connect to. All of it runs in one hub; only publish(), wait_for_room() and
flush() wait.

Stalls: which links owe an answer for too long. Decides only: sends nothing, moves nothing, reads no clock.

Vigil: the event loop does not fall asleep over the answer to a publish that its caller sends one after another.

A processor that sleeps takes longer to wake, 30 to 60 us on a virtual machine, than an nsqd near by takes to answer. So
behind a lone publish the loop asks for events without waiting, for a little while, and serves everything else
meanwhile. Go's scheduler does the same. It costs up to the processor's time that would have been slept, and is left
where it is in vain: where publishes come one by one, or answers from far away.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import gevent
from gevent.event import Event

from gnsq.clock import Clock
from gnsq.errors import (
    NSQErrorCode,
    NSQException,
    NSQNotSent,
    NSQNotSentClosed,
    NSQNotSentTimeout,
    NSQTimeout,
    NSQUnknown,
    NSQUnknownClosed,
    NSQUnknownTimeout,
)
from gnsq.logs import LogOwner
from gnsq.nsqd.pending import PendingRequest
from gnsq.producer.completion import Deadlines, Telling, overdue_error
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import (
    Link,
    Publish,
    Totals,
    Unconfirmed,
    Where,
    copied,
    forbids,
    leaves_open,
    tries_elsewhere,
)
from gnsq.producer.routing import Strategy
from gnsq.stats import LatencyRecorder
from gnsq.texts import counted

__all__ = [
    "Dispatcher",
    "Stalls",
    "Vigil",
]

logger = logging.getLogger(__name__)


class Stalls:
    """Looks at links from time to time.

    Args:
        limit: Seconds without an answer that is due.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        # Of each link that owes something: what is its oldest, and since when we know.
        self._owed: dict[Link, tuple[PendingRequest, float]] = {}

    def forget(self, link: Link) -> None:
        """Take note that a link is gone."""
        self._owed.pop(link, None)

    def sort(self, links: Sequence[Link], aside: Sequence[Link], now: float) -> tuple[list[Link], list[Link]]:
        """Tell the links to be used from those to be left out; where all have stalled, all are used.

        Args:
            aside: Those that are left out already.
        """
        every = [*links, *aside]
        stalled = [link for link in every if self._is_stalled(link, now)]
        good = [link for link in every if link not in stalled]
        if not good:
            return every, []
        return good, stalled

    def _is_stalled(self, link: Link, now: float) -> bool:
        oldest = next(iter(link.sent), None)
        if oldest is None:
            self._owed.pop(link, None)
            return False
        known, since = self._owed.get(link, (None, now))
        if oldest is not known:
            since = now
            self._owed[link] = oldest, now
        return now - since >= self._limit


# How long the loop stays awake for one answer, and how soon behind another one a publish must begin, seconds.
AWAKE, IN_A_ROW = 0.0001, 0.0003
# Behind an answer that came later none is waited for so, for one publish, then three, seven ... up to this number.
MOST_LEFT_OUT = 1000


class Vigil:
    """Of one hub, the caller's.

    Attributes:
        rounds: How often the loop was kept from sleeping.
    """

    def __init__(self) -> None:
        self.rounds = 0
        # An idle watcher, as long as it runs, makes each round of the loop one that does not wait.
        self._idle = gevent.get_hub().loop.idle(ref=False)
        self._awake = False
        self._end = 0.0
        self._began = 0.0
        self._publish: Publish | None = None
        self._left_out = self._to_leave_out = 0

    def keep(self, publish: Publish) -> None:
        """Take note that this publish alone was sent; stay awake for its answer if that makes sense."""
        # Not the producer's clock: a manual one would stand still meanwhile.
        now = time.monotonic()
        in_a_row, self._began = now - self._began < IN_A_ROW, now
        if not in_a_row:
            return
        if self._to_leave_out:
            self._to_leave_out -= 1
            return
        self._publish = publish
        self._end = now + AWAKE
        if not self._awake:
            self._awake = True
            self._idle.start(self._look)

    def close(self) -> None:
        """Sleep from now on."""
        self._awake = True  # so nothing starts it again
        self._idle.stop()
        self._idle.close()

    def _look(self) -> None:
        self.rounds += 1
        if time.monotonic() < self._end:
            return
        self._awake = False
        self._idle.stop()
        if self._publish is None or self._publish.done:
            self._left_out = 0
        else:
            self._left_out = self._to_leave_out = min(2 * self._left_out + 1, MOST_LEFT_OUT)
        self._publish = None


class Dispatcher:
    """One producer's publishes; made in the hub that it runs in.

    Args:
        nsqds: Tells how many nsqds there are.
        why_none: Says why there is no connection, given how long that was waited for in words.
        owner: Producer that log lines name.

    Attributes:
        links: Those that take publishes.
        aside: Those left out, since they owe an answer for too long.
        totals: What became of all that has ended.
        complete: Tells, soon, those who wait for a publish that it is done.
        deadlines: Knows when the first one comes.
        pending, pending_bytes: What has not ended, and how much of it has room.
        receiving: Greenlets that call receivers of signals, and must not wait meanwhile.
        forward: Takes what has room.
        batched: Tells what is in batches that are being filled.
        press: Sends those: somebody waits for the room that they take. These three are set where there are batches.
    """

    # Saves 6 % of a publish: of more than 30 attributes CPython makes a dict, which is slower to read.
    __slots__ = (
        "_choose",
        "_clock",
        "_closed",
        "_closing",
        "_hub",
        "_is_submitting",
        "_max_pending_bytes",
        "_nsqds",
        "_options",
        "_outside",
        "_owner",
        "_publishing",
        "_removed",
        "_returned",
        "_run_callback",
        "_stalls",
        "_telling",
        "_unconfirmed",
        "_vigil",
        "_waiting",
        "_why_none",
        "aside",
        "batched",
        "complete",
        "deadlines",
        "forward",
        "links",
        "pending",
        "pending_bytes",
        "press",
        "receiving",
        "totals",
    )

    def __init__(
        self,
        options: ProducerOptions,
        clock: Clock,
        strategy: Strategy,
        totals: Totals,
        latency: LatencyRecorder,
        *,
        nsqds: Callable[[], int],
        why_none: Callable[[str], NSQException],
        owner: LogOwner | None = None,
    ) -> None:
        self.links: list[Link] = []
        self.aside: list[Link] = []
        # Those of which some may still have something.
        self._removed: list[Link] = []
        self.totals = totals
        self.pending = 0
        self.pending_bytes = 0
        self.receiving: set[gevent.Greenlet] = set()
        # Greenlet that entered publish() last, until it leaves; whether submit() runs. Both for is_reentrant().
        self._publishing: gevent.Greenlet | None = None
        self._is_submitting = False
        self.forward: Callable[[Publish], None] = self.send
        self.batched: Callable[[], Iterable[Publish]] = tuple
        self.press: Callable[[], object] = bool
        self._options = options
        self._max_pending_bytes = options.max_pending_bytes
        self._clock = clock
        self._choose = strategy.choose
        self._nsqds = nsqds
        self._why_none = why_none
        self._hub = gevent.get_hub()
        self._run_callback = self._hub.loop.run_callback
        # Without room; with room and without a connection; to be sent again.
        self._outside: deque[Publish] = deque()
        self._waiting: deque[Publish] = deque()
        self._returned: list[Publish] = []
        self._owner = owner if owner is not None else LogOwner("", clock.monotonic)
        self._telling = Telling(self, totals, latency, clock, self._owner)
        self.complete: Callable[[Publish], None] = self._telling.settle
        self._stalls = Stalls(options.stalled_after)
        self._vigil = Vigil()
        self.deadlines = Deadlines(
            clock,
            options.stalled_after / 2,
            end_overdue=self._end_overdue,
            check_links=self._set_aside,
            is_rhythmic=lambda: len(self.links) + len(self.aside) > 1,
        )
        self._closing = self._closed = False
        # What has failed since no more was taken.
        self._unconfirmed: list[Unconfirmed] = []

    # --- in

    def publish(self, publish: Publish, block: bool) -> None:
        """Take a publish as submit() does, and wait until it has ended; raise its error, if it has one.

        A greenlet that is killed meanwhile, or runs into a gevent.Timeout of its own, leaves it to itself: it goes on,
        and is logged if it fails.
        """
        publish.waiter = waiter = gevent.getcurrent()
        if waiter is self._hub or (self.receiving and waiter in self.receiving):
            raise RuntimeError(
                "nothing can wait for a publish in the hub itself or a receiver of signals; let a greenlet do it"
            )
        self._publishing = waiter
        try:
            self.submit(publish, block)
            if self.pending == 1 and publish.link is not None:
                self._vigil.keep(publish)
            self._hub.switch()  # until it is told; its deadline ends it, too
            while not publish.done:
                # Another greenlet has switched here by mistake.
                self._publishing = waiter
                self._hub.switch()
        finally:
            publish.waiter = self._publishing = None
        if publish.error is not None:
            # What another publish ended with, too, would get longer with each.
            raise publish.error.with_traceback(None)

    def submit(self, publish: Publish, block: bool) -> None:
        """Take a publish; it ends by its deadline, whatever happens.

        Raises:
            NSQNotSent: If it would have to wait for room or a connection, and block is off; or if this is closed.
        """
        publish.owner = self
        # Before the producer is asked whether it is closed: a signal handler may close it from here on.
        self._is_submitting = True
        try:
            if self._closing:
                raise NSQNotSentClosed("producer was closed; make a new one")
            if not block:
                self._refuse_to_wait(publish)
            self.pending += 1
            if publish.deadline < self.deadlines.due:
                self.deadlines.look_by(publish.deadline)
            # _has_room() and _admit() in place: 0.15 us of 4 for each publish.
            pending_bytes = self.pending_bytes + publish.size
            if self._outside or (pending_bytes > self._max_pending_bytes and self.pending_bytes):
                self._outside.append(publish)
                self.press()
            else:
                publish.room = publish.size
                self.pending_bytes = pending_bytes
                self.forward(publish)
        finally:
            self._is_submitting = False

    def is_reentrant(self, greenlet: gevent.Greenlet) -> bool:
        """Whether a greenlet that runs now is in code of this object, or calls receivers of signals for it.

        True also in a signal handler that has interrupted publish() or submit(): the caller must not wait there for
        publishes to end.
        """
        return self._is_submitting or greenlet is self._publishing or greenlet in self.receiving

    def _refuse_to_wait(self, publish: Publish) -> None:
        if not self.links and not self.aside:
            raise self._why_none("now")
        if self._outside or not self._has_room(publish):
            raise NSQNotSentTimeout(f"publish to {publish.topic}: no room now: {self._taken_room}")

    @property
    def _taken_room(self) -> str:
        taken = counted(self.pending_bytes, "byte has", "bytes have")
        return f"{taken} no answer, max_pending_bytes is {self._max_pending_bytes}"

    def _has_room(self, publish: Publish) -> bool:
        # What is longer than the bound goes alone, or never would.
        return self.pending_bytes + publish.size <= self._max_pending_bytes or not self.pending_bytes

    def _admit(self, publish: Publish) -> None:
        publish.room = publish.size
        self.pending_bytes += publish.size
        self.forward(publish)

    def send(self, publish: Publish) -> None:
        """Give a publish to a link, or let it wait for one."""
        links = self.links
        if not links and self.aside:
            links, self.aside = self.aside, []
            self.links = links
        if not links:
            self._waiting.append(publish)
            return
        if publish.refused_by:
            links = [link for link in links if link.address not in publish.refused_by] or links
        try:
            link = publish.link = self._choose(links, publish.key)
        except Exception as error:  # noqa: BLE001  # a user's function; it must not take others along
            failure = NSQNotSent(f"publish to {publish.topic}: the strategy can't choose: {error!r}")
            failure.__cause__ = error
            self._fail_parts(publish, failure)
            return
        link.submit(publish)

    def wait_for_room(self, publish: Publish) -> None:
        """Wait until it has room, or has ended.

        Raises:
            NSQNotSentTimeout: In the hub itself, or where receivers of signals are called: nothing can wait there.
        """
        if not publish.room and not publish.done:
            if (here := gevent.getcurrent()) is self._hub or here in self.receiving:
                self._outside.remove(publish)
                self.pending -= 1
                raise NSQNotSentTimeout(f"publish to {publish.topic}: no room now: {self._taken_room}")
            room = Event()
            publish.on_room = room.set
            try:
                room.wait()  # until let_in(), or its deadline
            except BaseException:
                # Nobody has its result.
                publish.result = None
                raise

    # --- links

    def add(self, link: Link) -> None:
        """Use a link, at once for what waits."""
        self.links.append(link)
        self.deadlines.look()
        waiting, self._waiting = self._waiting, deque()
        for publish in waiting:
            if not publish.done:
                self.send(publish)

    def remove(self, link: Link) -> None:
        """Give no more to a link; what it has goes on. No-op if that is done."""
        self._stalls.forget(link)
        for links in (self.links, self.aside):
            if link in links:
                links.remove(link)
                if link.pending:
                    self._removed.append(link)

    # --- what became of it

    def fail(self, publish: Publish, error: NSQException) -> None:
        """End a publish with an error; one that was lost before may be held, whatever became of it then."""
        if publish.loss is not None and not isinstance(error, NSQUnknown):
            kind = NSQUnknownTimeout if isinstance(error, NSQTimeout) else NSQUnknownClosed
            error = kind(f"{error}; it was sent before ({publish.loss}): nsqd may have it")
        publish.done = True
        publish.error = error
        if self._closing:
            self._unconfirmed.append(Unconfirmed(publish.topic, publish.bodies, publish.defer, error))
        self.complete(publish)

    def _fail_parts(self, publish: Publish, error: NSQException) -> None:
        for part in [part for part in publish.parts if not part.done]:
            self.fail(part, copied(error))
        publish.done = True

    def refused_topic(self, publish: Publish, error: NSQErrorCode) -> None:
        """End a publish or a batch whose topic nsqd refused. What its link still has for that topic would cost a
        connection each: nsqd executes nothing behind a refusal that closes it, and it ends with the same."""
        link = publish.link
        behind: list[Publish] = []
        if link is not None and forbids(error):
            unsent = [other for other in _publishes(link.unsent) if other.topic == publish.topic]
            behind = [other for other in _publishes(link.sent) if other.topic == publish.topic]
            behind += link.withdraw(unsent)
        for each in [publish, *behind]:
            self._fail_parts(each, error)

    def refused(self, publish: Publish, error: NSQErrorCode) -> None:
        """End a publish that nsqd refused, or try it elsewhere where that makes sense."""
        publish.refused_by |= {self._address(publish)}
        publish.refusals += 1
        publish.refusal = error
        if leaves_open(error):
            self.lost(publish, error)
        elif not self._closed and tries_elsewhere(error, publish.refusals, self._nsqds()):
            self.retry(publish, error)
        else:
            self.fail(publish, error)

    def lost(self, publish: Publish, error: NSQException) -> None:
        """End a publish of which nobody knows what became of it, or send it again if duplicates are allowed."""
        if self._options.allow_duplicates and not self._closed:
            self.totals.repeated += publish.messages
            publish.loss = error
            self.retry(publish, error)
        else:
            self.fail(publish, NSQUnknownClosed(f"{error}; nsqd may have the publish to {publish.topic}"))

    def retry(self, publish: Publish, error: NSQException) -> None:
        """Send a publish again that nsqd has not executed: by another link, soon."""
        if self._closed:
            self.fail(publish, NSQNotSentClosed(f"{error}; the publish to {publish.topic} was not executed"))
            return
        publish.last = error
        publish.link = None
        if not self._returned:
            self._run_callback(self.send_returned)
        self._returned.append(publish)

    def resubmit(self, publish: Publish) -> None:
        """Send a publish again that still has room and time: its batch was not sent."""
        self.deadlines.look_by(publish.deadline)
        self.forward(publish)

    def send_returned(self) -> None:
        """Send again what came back without having been executed."""
        returned, self._returned = self._returned, []
        for publish in returned:
            if not publish.done:
                self.totals.sent_again += publish.messages
                self.forward(publish)

    def let_in(self) -> None:
        """Give room to those who wait for it, in order."""
        outside = self._outside
        while outside and (outside[0].done or self._has_room(outside[0])):
            publish = outside.popleft()
            if publish.done:
                continue
            if publish.on_room is not None:
                publish.on_room()
            self._admit(publish)
        if outside:
            self.press()

    # --- time

    def run(self) -> None:
        """Look after deadlines and stalled links, for ever."""
        self.deadlines.run()

    def undone(self) -> Iterator[Publish]:
        """All that has not ended."""
        places = [publishes for _, publishes in self._own()]
        for link in self._all_links():
            places += [_publishes(link.unsent), _publishes(link.sent)]
        for publishes in places:
            for publish in publishes:
                yield from publish.parts

    def _own(self) -> Iterator[tuple[Where, list[Publish]]]:
        """What no link has."""
        yield Where.ROOM, list(self._outside)
        yield Where.BATCH, list(self.batched())
        yield Where.LINK, [*self._waiting, *self._returned]

    def _all_links(self) -> Iterable[Link]:
        self._removed = [link for link in self._removed if link.pending]
        return dict.fromkeys([*self.links, *self.aside, *self._removed])

    def _end_overdue(self, now: float) -> None:
        for where, publishes in self._own():
            for publish in self._overdue(publishes, now):
                publish.overdue(where, now)
        for link in self._all_links():
            # All at once: taking back one by one took 8 s for 300,000.
            for publish in link.withdraw(self._overdue(_publishes(link.unsent), now)):
                publish.overdue(Where.UNSENT, now)
            for publish in self._overdue(_publishes(link.sent), now):
                publish.overdue(Where.SENT, now)
                if not publish.done:
                    self.deadlines.look_by(publish.deadline)
        self._outside = deque(publish for publish in self._outside if not publish.done)
        self._waiting = deque(publish for publish in self._waiting if not publish.done)
        self.let_in()

    def _overdue(self, publishes: list[Publish], now: float) -> list[Publish]:
        """Tell those whose deadline has come, and look again by those of the others."""
        left = [publish for publish in publishes if not publish.done]
        for publish in left:
            if publish.deadline > now:
                self.deadlines.look_by(publish.deadline)
        return [publish for publish in left if publish.deadline <= now]

    def expire(self, publish: Publish, where: Where) -> None:
        """End a publish by its deadline, and say what it waited for."""
        self.fail(publish, overdue_error(publish, where, self._address(publish), self._why_none, self._taken_room))

    def _set_aside(self, now: float) -> None:
        """Leave out links that owe an answer for too long, while there are others; take back those that go on."""
        before = self.aside
        self.links, self.aside = self._stalls.sort(self.links, before, now)
        for link in self.aside:
            if link not in before:
                text = "%s: has not answered for %g s; publishes go to other nsqds"
                self._log_link(logging.WARNING, link, text, self._options.stalled_after)
            for publish in link.withdraw(_publishes(link.unsent)):
                publish.on_not_sent(NSQNotSentTimeout(f"{link.address}: nsqd does not read"))
        for link in before:
            if link not in self.aside:
                self._log_link(logging.INFO, link, "%s: is published to again")

    def _log_link(self, level: int, link: Link, text: str, *arguments: object) -> None:
        # Together for all connections to an nsqd.
        kind = f"{link.address} {text}"
        self._owner.rate_limited(logger).log(level, kind, text, self._owner.at(link.address), *arguments)

    # --- the end

    def flush(self, timeout: float) -> bool:
        """Wait until all that is here now has ended; False if the timeout (seconds) ended first."""
        deadline = self._clock.monotonic() + timeout
        for publish in list(self.undone()):
            while not publish.done:
                if not self._wait_told(deadline):
                    return False
        if self._telling.is_due:
            self._wait_told(deadline)
        return True

    def _wait_told(self, deadline: float) -> bool:
        """Wait until more was told; False if it is too late for that."""
        pause = deadline - self._clock.monotonic()
        if pause > 0:
            # Whether it was set is no answer: another flush may have cleared it since.
            self._telling.told.clear()
            self._clock.wait(self._telling.told, pause)
        return pause > 0

    def refuse_more(self) -> None:
        """Take no more publishes; from now on what fails is listed."""
        self._closing = True

    def close(self) -> list[Unconfirmed]:
        """End all that no link has, and what links give back from now on; returns what failed since refuse_more()."""
        self._closing = self._closed = True
        self._vigil.close()
        for where, publishes in list(self._own()):
            for publish in publishes:
                text = f"the producer was closed before the publish to {publish.topic} was sent"
                why = f": {self._why_none('until then')}" if where is Where.LINK else ""
                self._fail_parts(publish, NSQNotSentClosed(text + why))
        return self._unconfirmed

    def _address(self, publish: Publish) -> str:
        return publish.link.address if publish.link is not None else "nsqd"


def _publishes(requests: Iterable[PendingRequest]) -> list[Publish]:
    return [request for request in requests if isinstance(request, Publish)]
