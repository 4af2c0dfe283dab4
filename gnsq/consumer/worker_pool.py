"""The inbox of a consumer, and the worker greenlets that take messages from it.

Knows neither the handlers nor the connections. The inbox has no limit of its own, since RDY limits the messages that
are delivered. Messages that time out in the inbox are dropped.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import gevent

from gnsq.clock import Clock
from gnsq.message import Message
from gnsq.stats import LatencyRecorder

__all__ = ["RunningHandler", "WorkerPool"]

# Seconds. A worker that has run for this time takes no further message, and another worker continues.
MAX_RUN_SECONDS = 0.002
# Seconds. Consecutive messages of one read whose handlers take less than this are recorded with the same latency.
FAST_HANDLER = 0.0005


class RunningHandler(NamedTuple):
    """A message whose handler runs.

    Attributes:
        began: Time at which the handler was called, monotonic seconds. May be too early, by up to MAX_RUN_SECONDS.
        worker: Greenlet of the handler.
    """

    message: Message
    began: float
    worker: gevent.Greenlet


class WorkerPool:
    """Handles messages in greenlets (workers), several at the same time. Takes messages in the order of their arrival.

    Args:
        name: Name of the greenlets.
        concurrency: Function that returns the limit of workers that run at the same time.
        handle: Function that is called with each message, in a worker. Returns True if its latency is to be
            recorded: if the message is answered and not async. Must not raise an Exception.
        handle_batch: If given, called instead of handle, with the whole inbox. Returns those answered, not async.
        on_dropped: Called with each message that timed out in the inbox.

    Attributes:
        inbox: Messages that no worker has taken.
        latency: Times from the arrival of messages to the return of their handlers. Async messages are not counted.
    """

    def __init__(
        self,
        name: str,
        concurrency: Callable[[], int],
        handle: Callable[[Message], bool],
        handle_batch: Callable[[list[Message]], Sequence[Message]] | None,
        on_dropped: Callable[[Message], None],
        clock: Clock,
    ) -> None:
        self.inbox: deque[Message] = deque()
        self.latency = LatencyRecorder()
        self._name = name
        self._concurrency = concurrency
        self._handle = handle
        self._run = self._work if handle_batch is None else functools.partial(self._work_in_batches, handle_batch)
        self._on_dropped = on_dropped
        self._clock = clock
        # The messages that each worker handles now; [None] before its first message.
        self._workers: dict[gevent.Greenlet, list[Message | None]] = {}
        # Start of each worker. Its last handler was called at most MAX_RUN_SECONDS later: then it takes no messages.
        self._began: dict[gevent.Greenlet, float] = {}
        # The worker that was spawned and has not begun to run.
        self._starting: gevent.Greenlet | None = None

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def handling(self) -> list[Message]:
        """Messages whose handlers run."""
        return [run.message for run in self.running]

    @property
    def running(self) -> list[RunningHandler]:
        """Messages whose handlers run, with their workers."""
        return [
            RunningHandler(message, self._began.get(worker, math.inf), worker)
            for worker, current in list(self._workers.items())
            for message in current
            if message is not None
        ]

    @property
    def busy(self) -> int:
        """Number of workers that handle messages."""
        return sum(current[0] is not None for current in list(self._workers.values()))

    @property
    def is_current(self) -> bool:
        """True if the caller runs in a worker."""
        return gevent.getcurrent() in self._workers

    def put(self, messages: Iterable[Message]) -> None:
        """Add messages to the inbox, and start a worker if there are fewer than allowed and none is about to start."""
        # If all workers are busy for longer than msg_timeout, the messages in the inbox time out, and nsqd delivers
        # them again, possibly many times: drop the old deliveries.
        self._drop_timed_out()
        self.inbox.extend(messages)
        if self._may_start():
            self._start(gevent.spawn(self._run))

    def drop_from(self, nsqd: str) -> None:
        """Drop messages of a closed connection: they can't be answered, and nsqd delivers them again."""
        kept = [message for message in self.inbox if message.nsqd != nsqd]
        self.inbox.clear()
        self.inbox.extend(kept)

    def abort(self) -> None:
        """Clear the inbox and kill all workers except the caller. Called in a forked child."""
        self.inbox.clear()
        for worker, current in list(self._workers.items()):
            if worker is not gevent.getcurrent():
                current[:] = [None]  # so that _on_worker_end() puts no message back
                worker.kill(block=False)

    def _may_start(self) -> bool:
        return self._starting is None and len(self._workers) < self._concurrency()

    def _start(self, worker: gevent.Greenlet) -> None:
        self._starting = worker
        worker.name = self._name
        self._workers[worker] = [None]
        worker.rawlink(self._on_worker_end)

    def _continue_in_another(self) -> None:
        # spawn_later() starts the other worker in the next round of the event loop; _work() says why.
        if self.inbox and self._may_start():
            self._start(gevent.spawn_later(0, self._run))

    def _work(self) -> None:
        """Handle messages until the inbox is empty or MAX_RUN_SECONDS are over.

        If more messages wait, another worker is spawned before each call of a handler: so a handler may wait.
        Such a worker, and the one that continues after MAX_RUN_SECONDS, start in the next round of the event loop.
        Between two rounds the loop reads its sockets; between two callbacks (such as those of sleep(0)) it does not.
        So even many handlers that only compute delay heartbeats by at most MAX_RUN_SECONDS and the time of one handler.
        """
        inbox, latency, handle, now = self.inbox, self.latency, self._handle, self._clock.monotonic
        current = self._begin_worker()
        # Reading the clock takes 0.05 us, recording a latency 0.2 us. So the latencies of messages of one read that had
        # fast handlers are recorded together.
        time = now()
        deadline = time + MAX_RUN_SECONDS
        arrived, fast = 0.0, 0
        try:
            while inbox and time < deadline:
                # Store the message before it leaves the inbox: KeyboardInterrupt may be raised after any call.
                message = current[0] = inbox[0]
                inbox.popleft()
                if inbox and self._starting is None and self._may_start():
                    self._start(gevent.spawn_later(0, self._run))
                is_answered = handle(message)
                began, time = time, now()
                if message.received == arrived and time < began + FAST_HANDLER:
                    fast += is_answered
                    continue
                latency.add(began - arrived, fast)
                fast, arrived = 0, message.received
                if is_answered:
                    latency.add(time - arrived)
        finally:
            latency.add(time - arrived, fast)
        self._end_worker()

    def _work_in_batches(self, handle_batch: Callable[[list[Message]], Sequence[Message]]) -> None:
        """Handle messages as _work() does, but the whole inbox with one call. No other worker is spawned before the
        call, since the inbox is empty then: put() starts a worker for further messages."""
        inbox, now = self.inbox, self._clock.monotonic
        current = self._begin_worker()
        time = now()
        deadline = time + MAX_RUN_SECONDS
        while inbox and time < deadline:
            messages = list(inbox)
            current[:] = messages
            inbox.clear()
            answered = handle_batch(messages)
            time = now()
            for arrived, number in Counter(message.received for message in answered).items():
                self.latency.add(time - arrived, number)
        self._end_worker()

    def _begin_worker(self) -> list[Message | None]:
        self._starting = None
        self._drop_timed_out()
        worker = gevent.getcurrent()
        self._began[worker] = self._clock.monotonic()
        return self._workers[worker]

    def _end_worker(self) -> None:
        worker = gevent.getcurrent()
        del self._workers[worker]
        self._began.pop(worker, None)
        self._continue_in_another()

    def _on_worker_end(self, worker: gevent.Greenlet) -> None:
        """Put the unanswered messages of a killed worker back into the inbox. KeyboardInterrupt may kill a worker even
        before it has begun, or between taking a message and calling the handler."""
        if self._starting is worker:
            self._starting = None
        self._began.pop(worker, None)
        current = self._workers.pop(worker, None)
        if current is None:
            return
        if isinstance(worker.exception, Exception):
            # A bug has ended the worker. Do not put its messages back: they would cause the same exception again.
            current.clear()
        unanswered = [
            message for message in current if not (message is None or message.has_responded() or message.is_async())
        ]
        self.inbox.extendleft([message for message in reversed(unanswered) if message not in self.inbox])
        self._continue_in_another()

    def _drop_timed_out(self) -> None:
        """Drop messages in the inbox that have timed out: nsqd delivers them again, and would refuse their FIN.

        Stop at the first message that has not timed out: if connections differ in msg_timeout, some are dropped later.
        """
        inbox = self.inbox
        while inbox and inbox[0].time_left == 0:
            message = inbox.popleft()
            message.drop()
            self._on_dropped(message)
