"""Dispatcher: the way of publishes through a producer, from the call to a connection and back.

Owns what has not ended: publishes that wait for room, for a connection, to be sent again; those given to a link are
the link's. Decides nothing about whom to connect to. All of it runs in one hub, and nothing here but wait() waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator

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
from gnsq.nsqd.latency import Latency
from gnsq.nsqd.requests import Request
from gnsq.producer.deadlines import Deadlines, overdue_error
from gnsq.producer.links import Link
from gnsq.producer.options import ProducerOptions
from gnsq.producer.outcomes import Totals, leaves_open, tries_elsewhere
from gnsq.producer.publish import Publish, Unconfirmed, Where
from gnsq.producer.stalls import Stalls
from gnsq.producer.strategies import Strategy
from gnsq.repeats import Repeats

__all__ = ["Dispatcher"]

logger = logging.getLogger(__name__)


class Dispatcher:
    """One producer's publishes; made in the hub that it runs in.

    Args:
        nsqds: Tells how many nsqds there are.
        why_none: Says why there is no connection, given how long that was waited for in words.

    Attributes:
        links: Those that take publishes.
        aside: Those left out, since they owe an answer for too long.
        totals, latency: What became of all that has ended, and how long that took.
        deadlines: Knows when the first one comes.
        pending, pending_bytes: What has not ended, and how much of it has room.
        forward: Takes what has room; batches come in here.
        batched: Tells what is in batches that are being filled.
        press: Sends those: somebody waits for the room that they take.
    """

    def __init__(
        self,
        options: ProducerOptions,
        clock: Clock,
        strategy: Strategy,
        totals: Totals,
        latency: Latency,
        *,
        nsqds: Callable[[], int],
        why_none: Callable[[str], NSQException],
    ) -> None:
        self.links: list[Link] = []
        self.aside: list[Link] = []
        # Those of which some may still have something.
        self._removed: list[Link] = []
        self.totals = totals
        self.latency = latency
        self.pending = 0
        self.pending_bytes = 0
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
        # Ended, and not yet told.
        self._ended: deque[Publish] = deque()
        self._telling = False
        self._told = Event()
        self._stalls = Stalls(options.stalled_after)
        self.deadlines = Deadlines(
            clock,
            options.stalled_after / 2,
            end_overdue=self._end_overdue,
            check_links=self._set_aside,
            is_rhythmic=lambda: len(self.links) + len(self.aside) > 1,
        )
        self._repeats = Repeats(logger, clock.monotonic)
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
        if waiter is self._hub:
            raise RuntimeError("nothing can wait for a publish in the hub itself; let a greenlet do it")
        try:
            self.submit(publish, block)
            self._hub.switch()  # until _tell(); the deadline of the publish ends it, too
        finally:
            publish.waiter = None
        if publish.error is not None:
            raise publish.error

    def submit(self, publish: Publish, block: bool) -> None:
        """Take a publish; it ends by its deadline, whatever happens.

        Raises:
            NSQNotSent: If it would have to wait for room or a connection, and block is off; or if this is closed.
        """
        publish.dispatcher = self
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

    def _refuse_to_wait(self, publish: Publish) -> None:
        if not self.links and not self.aside:
            raise self._why_none("now")
        if self._outside or not self._has_room(publish):
            raise NSQNotSentTimeout(f"publish to {publish.topic}: no room now: {self._taken_room}")

    @property
    def _taken_room(self) -> str:
        return f"{self.pending_bytes} bytes have no answer, max_pending_bytes is {self._max_pending_bytes}"

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
        """Wait until it has room, or has ended."""
        if not publish.room and not publish.done:
            room = Event()
            publish.on_room = room.set
            try:
                room.wait()  # until _let_in(), or its deadline
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

    def settle(self, publish: Publish) -> None:
        """Tell, soon, those who wait for a publish that it is done."""
        self._ended.append(publish)
        if not self._telling:
            self._telling = True
            self._run_callback(self._tell)

    def fail(self, publish: Publish, error: NSQException) -> None:
        """End a publish with an error; one that was lost before may be held, whatever became of it then."""
        if publish.loss is not None and not isinstance(error, NSQUnknown):
            kind = NSQUnknownTimeout if isinstance(error, NSQTimeout) else NSQUnknownClosed
            error = kind(f"{error}; it was sent before ({publish.loss}): nsqd may have it")
        publish.done = True
        publish.error = error
        if self._closing:
            self._unconfirmed.append(Unconfirmed(publish.topic, publish.bodies, publish.defer, error))
        self.settle(publish)

    def _fail_parts(self, publish: Publish, error: NSQException) -> None:
        for part in [part for part in publish.parts if not part.done]:
            self.fail(part, error)
        publish.done = True

    def refused(self, publish: Publish, error: NSQErrorCode) -> None:
        """End a publish that nsqd refused, or try it elsewhere where that makes sense."""
        publish.refused_by |= {self._address(publish)}
        publish.refusals += 1
        publish.refusal = error
        if leaves_open(error):
            self.lost(publish, error)
        elif not self._closed and tries_elsewhere(error, publish.refusals, self._nsqds()):
            self.again(publish, error)
        else:
            self.fail(publish, error)

    def lost(self, publish: Publish, error: NSQException) -> None:
        """End a publish of which nobody knows what became of it, or send it again if duplicates are allowed."""
        if self._options.allow_duplicates and not self._closed:
            self.totals.repeated += publish.messages
            publish.loss = error
            self.again(publish, error)
        else:
            self.fail(publish, NSQUnknownClosed(f"{error}; nsqd may have the publish to {publish.topic}"))

    def again(self, publish: Publish, error: NSQException) -> None:
        """Send a publish again that nsqd has not executed: by another link, soon."""
        if self._closed:
            self.fail(publish, NSQNotSentClosed(f"{error}; the publish to {publish.topic} was not executed"))
            return
        publish.last = error
        publish.link = None
        if not self._returned:
            self._run_callback(self._send_returned)
        self._returned.append(publish)

    def _send_returned(self) -> None:
        returned, self._returned = self._returned, []
        for publish in returned:
            if not publish.done:
                self.totals.sent_again += publish.messages
                self.forward(publish)

    def _tell(self) -> None:
        """Wake those who wait: all that one read has answered in one callback, each resumed from here.

        Who is resumed comes back to the hub, so here, when it waits again: no callback or event for each publish.
        """
        ended, totals, add_latency = self._ended, self.totals, self.latency.add
        now = self._clock.monotonic()
        try:
            while ended:
                publish = ended.popleft()
                if publish.members:
                    self._tell_members(publish, now)
                    continue
                self.pending -= 1
                self.pending_bytes -= publish.room
                if publish.error is None:
                    totals.confirmed += publish.messages
                    if publish.link is not None:
                        publish.link.confirmed += publish.messages
                    add_latency(now - publish.started)
                else:
                    self._count_failure(publish, publish.error)
                if publish.waiter is not None:
                    publish.waiter.switch()
                else:
                    publish.tell()
        finally:
            self._telling = bool(ended)
            if ended:
                self._run_callback(self._tell)
            if self._outside:
                self._let_in()
            self._told.set()

    def _tell_members(self, batch: Publish, now: float) -> None:
        """Wake those who wait for a batch that was confirmed; counted as one, which saves 0.5 us of 3 for each."""
        members = deque(batch.members)
        self.pending -= batch.messages
        self.pending_bytes -= batch.room
        self.totals.confirmed += batch.messages
        if batch.link is not None:
            batch.link.confirmed += batch.messages
        self.latency.add(now - batch.started, batch.messages)
        try:
            while members:
                member = members.popleft()
                if member.waiter is not None:
                    member.waiter.switch()
                else:
                    member.tell()
        finally:
            for member in members:
                # A greenlet without a parent's care has raised; the others are told all the same.
                member.room = member.messages = 0
                self.pending += 1
                self._ended.append(member)

    def _count_failure(self, publish: Publish, error: NSQException) -> None:
        self.totals.count(error, publish.messages)
        if publish.on_room is not None and not publish.room:
            publish.on_room()
        if publish.waiter is None and publish.result is None and publish.on_done is None:
            text = "a publish to %s failed, and who waited for it is gone: %s"
            self._repeats.log(logging.WARNING, "unheard", text, publish.topic, error)

    def _let_in(self) -> None:
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
        for _, places in self._places():
            for publish in places:
                yield from publish.parts

    def _places(self) -> Iterator[tuple[Where, list[Publish]]]:
        yield Where.ROOM, list(self._outside)
        yield Where.BATCH, list(self.batched())
        yield Where.LINK, [*self._waiting, *self._returned]
        self._removed = [link for link in self._removed if link.pending]
        for link in dict.fromkeys([*self.links, *self.aside, *self._removed]):
            yield Where.UNSENT, _publishes(link.unsent)
            yield Where.SENT, _publishes(link.sent)

    def _end_overdue(self, now: float) -> None:
        for where, publishes in self._places():
            for publish in publishes:
                if publish.deadline <= now and not publish.done:
                    publish.overdue(where, now)
                if not publish.done:
                    self.deadlines.look_by(publish.deadline)
        self._outside = deque(publish for publish in self._outside if not publish.done)
        self._waiting = deque(publish for publish in self._waiting if not publish.done)
        if self._outside:
            self._let_in()

    def fail_overdue(self, publish: Publish, where: Where) -> None:
        """End a publish by its deadline, and say what it waited for."""
        self.fail(publish, overdue_error(publish, where, self._address(publish), self._why_none, self._taken_room))

    def _set_aside(self, now: float) -> None:
        """Leave out links that owe an answer for too long, while there are others; take back those that go on."""
        self.links, self.aside = self._stalls.sort(self.links, self.aside, now)
        for link in self.aside:
            for publish in _publishes(link.unsent):
                if link.withdraw(publish):
                    publish.not_executed(NSQNotSentTimeout(f"{link.address}: nsqd does not read"))

    # --- the end

    def flush(self, timeout: float) -> bool:
        """Wait until all that is here now has ended; False if the timeout (seconds) ended first."""
        left = list(self.undone())
        deadline = self._clock.monotonic() + timeout
        while left := [publish for publish in left if not publish.done]:
            pause = deadline - self._clock.monotonic()
            if pause <= 0:
                return False
            # Whether it was set is no answer: another flush may have cleared it since.
            self._told.clear()
            self._clock.wait(self._told, pause)
        if self._telling:
            self._told.clear()
            self._clock.wait(self._told, max(deadline - self._clock.monotonic(), 0))
        return True

    def refuse_more(self) -> None:
        """Take no more publishes; from now on what fails is listed."""
        self._closing = True

    def close(self) -> list[Unconfirmed]:
        """End all that no link has, and what links give back from now on; returns what failed since refuse_more()."""
        self._closing = self._closed = True
        for where, publishes in list(self._places()):
            for publish in publishes if where in (Where.ROOM, Where.BATCH, Where.LINK) else ():
                text = f"the producer was closed before the publish to {publish.topic} was sent"
                self._fail_parts(publish, NSQNotSentClosed(text))
        return self._unconfirmed

    def _address(self, publish: Publish) -> str:
        return publish.link.address if publish.link is not None else "nsqd"


def _publishes(requests: Iterable[Request]) -> list[Publish]:
    return [request for request in requests if isinstance(request, Publish)]
