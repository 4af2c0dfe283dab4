"""Workers: the inbox, and the greenlets that take messages from it.

Knows neither what handling a message means nor where messages come from. The inbox has no limit of its own: RDY bounds
what is delivered, and what has timed out meanwhile is on_dropped.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import gevent

from gnsq.clock import Clock
from gnsq.message import Message
from gnsq.stats import LatencyRecorder

__all__ = ["RunningHandler", "WorkerPool"]

# A worker ends behind the message with which it has worked for so many seconds; another goes on.
MAX_RUN_SECONDS = 0.002
# Handlers that take less, in seconds, are quick: too little to tell their latencies apart.
FAST_HANDLER = 0.0005


class RunningHandler(NamedTuple):
    """A message whose handler runs.

    Attributes:
        began: When the handler was called; monotonic seconds, at most MAX_RUN_SECONDS too early.
        worker: The greenlet in which it runs.
    """

    message: Message
    began: float
    worker: gevent.Greenlet


class WorkerPool:
    """Handles messages in greenlets, in order of arrival, several at once.

    Args:
        name: Of the greenlets.
        concurrency: Asked for how many may run at once.
        handle: Called with each message, in a worker; says whether it is answered. Must not raise what is an
            Exception.
        handle_all: If there is one, called in its place with all that is in the inbox; gives those that are answered.
        on_dropped: Called with a message that timed out before a worker took it.
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
        on_dropped: Callable[[Message], None],
        clock: Clock,
    ) -> None:
        self.inbox: deque[Message] = deque()
        self.latency = LatencyRecorder()
        self._name = name
        self._concurrency = concurrency
        self._handle = handle
        self._handle_all = handle_all
        self._run = self._work if handle_all is None else self._work_all
        self._on_dropped = on_dropped
        self._clock = clock
        # Each worker with the messages that it handles; before the first, None.
        self._workers: dict[gevent.Greenlet, list[Message | None]] = {}
        # When each has begun. It takes messages for MAX_RUN_SECONDS only, so a longer handler was called then.
        self._began: dict[gevent.Greenlet, float] = {}
        # The one that is on its way.
        self._starting: gevent.Greenlet | None = None

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def handling(self) -> list[Message]:
        """Messages whose handlers run."""
        return [message for current in list(self._workers.values()) for message in current if message is not None]

    @property
    def running(self) -> list[RunningHandler]:
        """Messages whose handlers run, with what is known of those."""
        return [
            RunningHandler(message, self._began.get(worker, math.inf), worker)
            for worker, current in list(self._workers.items())
            for message in current
            if message is not None
        ]

    @property
    def busy(self) -> int:
        """Handlers that run."""
        return sum(current[0] is not None for current in list(self._workers.values()))

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in a worker."""
        return gevent.getcurrent() in self._workers

    def put(self, messages: Iterable[Message]) -> None:
        """Take messages in; workers begin soon."""
        # Here, too: where all workers are busy for longer than nsqd waits, it sends everything again.
        self._drop_timed_out()
        self.inbox.extend(messages)
        if self._may_start():
            self._add(gevent.spawn(self._run))

    def drop_from(self, nsqd: str) -> None:
        """Drop what came from an nsqd whose connection is gone: it could not be answered, and is delivered again."""
        kept = [message for message in self.inbox if message.nsqd != nsqd]
        self.inbox.clear()
        self.inbox.extend(kept)

    def abort(self) -> None:
        """Break off all workers but the caller, and forget what no worker has taken. For a forked child."""
        self.inbox.clear()
        for worker, current in list(self._workers.items()):
            if worker is not gevent.getcurrent():
                current[:] = [None]  # nothing that _on_worker_end() would hand on
                worker.kill(block=False)

    def _may_start(self) -> bool:
        return self._starting is None and len(self._workers) < self._concurrency()

    def _add(self, worker: gevent.Greenlet) -> None:
        self._starting = worker
        worker.name = self._name
        self._workers[worker] = [None]
        worker.rawlink(self._on_worker_end)

    def _work(self) -> None:
        """Handle messages until the inbox is empty or the slice is over, then end.

        Before each message the next worker is put on its way, so that a handler that waits keeps nobody waiting.
        That one, and the one that goes on behind a slice, begin in the loop's next round: between two rounds it
        looks at its sockets, which it does not between two callbacks, of which sleep(0) is one. So handlers that
        only compute, however many at once, hold up heartbeats no longer than one of them takes.
        """
        inbox, latency, handle, now = self.inbox, self.latency, self._handle, self._clock.monotonic
        current = self._start_worker()
        # A look at the clock costs 0.05 us, counting a latency four times that: quick ones of one chunk are counted
        # together.
        time = now()
        end_of_slice = time + MAX_RUN_SECONDS
        arrived, quick = 0.0, 0
        try:
            while inbox and time < end_of_slice:
                # In this order: Ctrl-C may strike behind any call.
                message = current[0] = inbox[0]
                inbox.popleft()
                if inbox and self._starting is None and self._may_start():
                    self._add(gevent.spawn_later(0, self._run))
                is_answered = handle(message)
                began, time = time, now()
                if message.received == arrived and time < began + FAST_HANDLER:
                    quick += is_answered
                    continue
                latency.add(began - arrived, quick)
                quick, arrived = 0, message.received
                if is_answered:
                    latency.add(time - arrived)
        finally:
            latency.add(time - arrived, quick)
        self._end_worker()

    def _work_all(self) -> None:
        """Handle all that is in the inbox with one call, then what has come meanwhile, as _work() does one by one. No
        other worker has to be on its way: what comes while the handler waits wakes one."""
        inbox, handle_all, now = self.inbox, self._handle_all, self._clock.monotonic
        assert handle_all is not None  # or this would not be called
        current = self._start_worker()
        time = now()
        end_of_slice = time + MAX_RUN_SECONDS
        while inbox and time < end_of_slice:
            messages = list(inbox)
            current[:] = messages
            inbox.clear()
            answered = handle_all(messages)
            time = now()
            for arrived, number in Counter(message.received for message in answered).items():
                self.latency.add(time - arrived, number)
        self._end_worker()

    def _start_worker(self) -> list[Message | None]:
        self._starting = None
        self._drop_timed_out()
        worker = gevent.getcurrent()
        self._began[worker] = self._clock.monotonic()
        return self._workers[worker]

    def _end_worker(self) -> None:
        worker = gevent.getcurrent()
        del self._workers[worker]
        self._began.pop(worker, None)
        if self.inbox and self._may_start():
            self._add(gevent.spawn_later(0, self._run))

    def _on_worker_end(self, worker: gevent.Greenlet) -> None:
        """Go on where a worker was broken off. Ctrl-C strikes whatever runs: one that has not begun, too, or one
        between a message and its handler."""
        if self._starting is worker:
            self._starting = None
        self._began.pop(worker, None)
        current = self._workers.pop(worker, None)
        if current is None:
            return
        if isinstance(worker.exception, Exception):
            # A bug, which would come again with the message.
            current.clear()
        unanswered = [
            message for message in current if not (message is None or message.has_responded() or message.is_async())
        ]
        self.inbox.extendleft([message for message in reversed(unanswered) if message not in self.inbox])
        if self.inbox and self._may_start():
            self._add(gevent.spawn_later(0, self._run))

    def _drop_timed_out(self) -> None:
        """Drop what nsqd has taken back and delivers again: handling it would be work done twice, and its FIN refused.

        The oldest comes first; where connections differ in their msg_timeout, some wait for their turn.
        """
        inbox = self.inbox
        while inbox and inbox[0].time_left == 0:
            message = inbox.popleft()
            message.discard()
            self._on_dropped(message)
