"""Workers: the inbox, and the greenlets that take messages from it.

Knows neither what handling a message means nor where messages come from. The inbox has no limit of its own: RDY bounds
what is delivered, and what has timed out meanwhile is dropped.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import gevent

from gnsq.clock import Clock
from gnsq.message import Message
from gnsq.stats import Latency

__all__ = ["Running", "Workers"]

# A worker ends behind the message with which it has worked for so many seconds; another goes on.
SLICE = 0.002
# Handlers that take less, in seconds, are quick: too little to tell their latencies apart.
QUICK = 0.0005


class Running(NamedTuple):
    """A message whose handler runs.

    Attributes:
        began: When the handler was called; monotonic seconds, at most SLICE too early.
        worker: The greenlet in which it runs.
    """

    message: Message
    began: float
    worker: gevent.Greenlet


class Workers:
    """Handles messages in greenlets, in order of arrival, several at once.

    Args:
        name: Of the greenlets.
        concurrency: Asked for how many may run at once.
        handle: Called with each message, in a worker; says whether it is answered. Must not raise what is an
            Exception.
        handle_all: If there is one, called in its place with all that is in the inbox; gives those that are answered.
        dropped: Called with a message that timed out before a worker took it.
        clock: Replaceable time.

    Attributes:
        inbox: Messages that no worker has taken.
        latency: Where the time from arrival to the end of the handler is counted, but of asynchronous messages.
    """

    def __init__(
        self,
        name: str,
        concurrency: Callable[[], int],
        handle: Callable[[Message], bool],
        handle_all: Callable[[list[Message]], Sequence[Message]] | None,
        dropped: Callable[[Message], None],
        clock: Clock,
    ) -> None:
        self.inbox: deque[Message] = deque()
        self.latency = Latency()
        self._name = name
        self._concurrency = concurrency
        self._handle = handle
        self._handle_all = handle_all
        self._run = self._work if handle_all is None else self._work_all
        self._dropped = dropped
        self._clock = clock
        # Each worker with the messages that it handles; before the first, None.
        self._workers: dict[gevent.Greenlet, list[Message | None]] = {}
        # When each has begun. It takes messages for SLICE only, so a handler that runs for longer was called then.
        self._began: dict[gevent.Greenlet, float] = {}
        # The one that is on its way.
        self._due: gevent.Greenlet | None = None

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def handled_now(self) -> list[Message]:
        """Messages whose handlers run."""
        return [message for cell in list(self._workers.values()) for message in cell if message is not None]

    @property
    def running(self) -> list[Running]:
        """Messages whose handlers run, with what is known of those."""
        return [
            Running(message, self._began.get(worker, math.inf), worker)
            for worker, cell in list(self._workers.items())
            for message in cell
            if message is not None
        ]

    @property
    def busy(self) -> int:
        """Handlers that run."""
        return sum(cell[0] is not None for cell in list(self._workers.values()))

    @property
    def is_one(self) -> bool:
        """Whether the caller runs in a worker."""
        return gevent.getcurrent() in self._workers

    def put(self, messages: Iterable[Message]) -> None:
        """Take messages in; workers begin soon."""
        # Here, too: where all workers are busy for longer than nsqd waits, it sends everything again.
        self._drop_timed_out()
        self.inbox.extend(messages)
        if self._may_wake():
            self._add(gevent.spawn(self._run))

    def forget(self, nsqd: str) -> None:
        """Drop what came from an nsqd whose connection is gone: it could not be answered, and is delivered again."""
        kept = [message for message in self.inbox if message.nsqd != nsqd]
        self.inbox.clear()
        self.inbox.extend(kept)

    def kill(self) -> None:
        """Break off all workers but the caller, and forget what no worker has taken. For a forked child."""
        self.inbox.clear()
        for worker, cell in list(self._workers.items()):
            if worker is not gevent.getcurrent():
                cell[:] = [None]  # nothing that _ended() would hand on
                worker.kill(block=False)

    def _may_wake(self) -> bool:
        return self._due is None and len(self._workers) < self._concurrency()

    def _add(self, worker: gevent.Greenlet) -> None:
        self._due = worker
        worker.name = self._name
        self._workers[worker] = [None]
        worker.rawlink(self._ended)

    def _work(self) -> None:
        """Handle messages until the inbox is empty or the slice is over, then end.

        Before each message the next worker is put on its way, so that a handler that waits keeps nobody waiting.
        That one, and the one that goes on behind a slice, begin in the loop's next round: between two rounds it
        looks at its sockets, which it does not between two callbacks, of which sleep(0) is one. So handlers that
        only compute, however many at once, hold up heartbeats no longer than one of them takes.
        """
        inbox, latency, handle, now = self.inbox, self.latency, self._handle, self._clock.monotonic
        cell = self._begin()
        # A look at the clock costs 0.05 us, counting a latency four times that: quick ones of one chunk are counted
        # together.
        time = now()
        end_of_slice = time + SLICE
        arrived, quick = 0.0, 0
        try:
            while inbox and time < end_of_slice:
                # In this order: Ctrl-C may strike behind any call.
                message = cell[0] = inbox[0]
                inbox.popleft()
                if inbox and self._due is None and self._may_wake():
                    self._add(gevent.spawn_later(0, self._run))
                is_answered = handle(message)
                began, time = time, now()
                if message.received == arrived and time < began + QUICK:
                    quick += is_answered
                    continue
                latency.add(began - arrived, quick)
                quick, arrived = 0, message.received
                if is_answered:
                    latency.add(time - arrived)
        finally:
            latency.add(time - arrived, quick)
        self._end()

    def _work_all(self) -> None:
        """Handle all that is in the inbox with one call, then what has come meanwhile, as _work() does one by one. No
        other worker has to be on its way: what comes while the handler waits wakes one."""
        inbox, handle_all, now = self.inbox, self._handle_all, self._clock.monotonic
        assert handle_all is not None  # or this would not be called
        cell = self._begin()
        time = now()
        end_of_slice = time + SLICE
        while inbox and time < end_of_slice:
            messages = list(inbox)
            cell[:] = messages
            inbox.clear()
            answered = handle_all(messages)
            time = now()
            for arrived, number in Counter(message.received for message in answered).items():
                self.latency.add(time - arrived, number)
        self._end()

    def _begin(self) -> list[Message | None]:
        self._due = None
        self._drop_timed_out()
        worker = gevent.getcurrent()
        self._began[worker] = self._clock.monotonic()
        return self._workers[worker]

    def _end(self) -> None:
        worker = gevent.getcurrent()
        del self._workers[worker]
        self._began.pop(worker, None)
        if self.inbox and self._may_wake():
            self._add(gevent.spawn_later(0, self._run))

    def _ended(self, worker: gevent.Greenlet) -> None:
        """Go on where a worker was broken off. Ctrl-C strikes whatever runs: one that has not begun, too, or one
        between a message and its handler."""
        if self._due is worker:
            self._due = None
        self._began.pop(worker, None)
        cell = self._workers.pop(worker, None)
        if cell is None:
            return
        if isinstance(worker.exception, Exception):
            # A bug, which would come again with the message.
            cell.clear()
        unanswered = [
            message for message in cell if not (message is None or message.has_responded() or message.is_async())
        ]
        self.inbox.extendleft([message for message in reversed(unanswered) if message not in self.inbox])
        if self.inbox and self._may_wake():
            self._add(gevent.spawn_later(0, self._run))

    def _drop_timed_out(self) -> None:
        """Drop what nsqd has taken back and delivers again: handling it would be work done twice, and its FIN refused.

        The oldest comes first; where connections differ in their msg_timeout, some wait for their turn.
        """
        inbox = self.inbox
        while inbox and inbox[0].time_left == 0:
            message = inbox.popleft()
            message.discard()
            self._dropped(message)
