"""The inbox of a consumer, and the worker greenlets that take messages from it.

Knows neither the handlers nor the connections. The inbox has no limit of its own, since RDY limits the messages that
are delivered. Messages that time out in the inbox are dropped.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import gevent

from gnsq.clock import Clock
from gnsq.concurrency.greenlets import spawn
from gnsq.errors import NSQException
from gnsq.message import Message
from gnsq.stats import LatencyRecorder
from gnsq.texts import counted

__all__ = ["RunningHandler", "WorkerPool"]

logger = logging.getLogger(__name__)

# Seconds. After this time in one round of the event loop, workers take no further messages until the next round.
MAX_RUN_SECONDS = 0.002
# Limit of the workers that are parked. A consumer with more concurrent handlers starts some greenlets anew.
MAX_PARKED = 1000
# Seconds between two searches for timed out messages in the inbox. A search takes 0.4 us, also if it finds none.
DROP_INTERVAL = 0.001
# Seconds. Consecutive messages of one read whose handlers take less than this are recorded with the same latency.
FAST_HANDLER = 0.0005


class RunningHandler(NamedTuple):
    """A message whose handler runs.

    Attributes:
        began: Time at which the handler was called, monotonic seconds.
        worker: Greenlet of the handler.
    """

    message: Message
    began: float
    worker: gevent.Greenlet


@dataclass(slots=True, eq=False)
class _Work:
    """State of a worker.

    Attributes:
        worker: Its greenlet.
        messages: The messages that it handles; [None] if there is none.
        began: Time at which their handler was called, monotonic seconds.
        is_parked: True while the worker waits for put() to wake it.
    """

    worker: gevent.Greenlet
    messages: list[Message | None] = field(default_factory=lambda: [None])
    began: float = 0.0
    is_parked: bool = False


class WorkerPool:
    """Handles messages in greenlets (workers), several at the same time. Takes messages in the order of their arrival.

    A worker without work is parked: it waits for put() to wake it. With new greenlets in place of parked workers, a
    message takes 45 us of CPU time in place of 29 us if one is in flight, and 8.3 us in place of 4.5 us if ten are.

    Args:
        name: Name of the greenlets.
        concurrency: Function that returns the limit of workers that run at the same time.
        handle: Function that is called with each message, in a worker. Returns True if its latency is to be
            recorded: if the message is answered and not async. Must not raise an Exception.
        handle_batch: If given, called instead of handle, with the whole inbox. Returns those answered, not async.
        on_dropped: Called with each message that timed out in the inbox.

    Attributes:
        inbox: Messages that no worker has taken.
        latency: Times from the arrival of messages to the return of their handlers. For async messages, the
            connections add the times to their answers.
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
        # All workers, and those of them that are parked.
        self._workers: dict[gevent.Greenlet, _Work] = {}
        self._parked: list[_Work] = []
        # Limit of the workers: what concurrency() has returned last. A call for each message would take 0.4 us.
        self._limit = 1
        # The worker that was spawned or woken and has not begun to run.
        self._starting: gevent.Greenlet | None = None
        # The round of the event loop in which workers run, and the time until which they take messages in it.
        self._round: object = None
        self._round_end = 0.0
        # Time of the next search for timed out messages.
        self._drop_due = 0.0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._workers) - len(self._parked)

    @property
    def handling(self) -> list[Message]:
        """Messages whose handlers run."""
        return [run.message for run in self.running]

    @property
    def running(self) -> list[RunningHandler]:
        """Messages whose handlers run, with their workers."""
        return [
            RunningHandler(message, work.began, worker)
            for worker, work in list(self._workers.items())
            for message in work.messages
            if message is not None
        ]

    @property
    def busy(self) -> int:
        """Number of workers that handle messages."""
        return sum(work.messages[0] is not None for work in list(self._workers.values()))

    @property
    def is_current(self) -> bool:
        """True if the caller runs in a worker."""
        return gevent.getcurrent() in self._workers

    def put(self, messages: Iterable[Message], *, at_once: bool = True) -> None:
        """Add messages to the inbox, and start a worker if there are fewer than allowed and none is about to start.

        Args:
            at_once: If True and the hub itself calls this method, a parked worker runs first, until its handler waits.
        """
        if self.inbox and (now := self._clock.monotonic()) >= self._drop_due:
            # If all workers are busy for longer than msg_timeout, the messages in the inbox time out, and nsqd delivers
            # them again, possibly many times: drop the old deliveries.
            self._drop_timed_out(now)
        self.inbox.extend(messages)
        if len(self._workers) > len(self._parked) or len(self.inbox) > 1:
            self._limit = self._concurrency()
        if not self._may_start():
            return
        if at_once and self._parked and gevent.getcurrent() is gevent.get_hub():
            self._unpark().switch()
        else:
            self._start()

    def drop_from(self, nsqd: str) -> None:
        """Drop messages of a closed connection: they can't be answered, and nsqd delivers them again."""
        kept = [message for message in self.inbox if message.nsqd != nsqd]
        self.inbox.clear()
        self.inbox.extend(kept)

    def abort(self) -> None:
        """Clear the inbox and kill all workers except the caller. Called in a forked child."""
        self.inbox.clear()
        for worker, work in list(self._workers.items()):
            if worker is not gevent.getcurrent():
                work.messages = [None]  # so that _on_worker_end() puts no message back
                worker.kill(block=False)

    def close(self) -> None:
        """End the parked workers, and let the others end when they have no more messages."""
        self._is_closed = True
        for work in self._parked:
            gevent.get_hub().loop.run_callback(work.worker.switch)

    def _may_start(self) -> bool:
        return self._starting is None and len(self._workers) - len(self._parked) < self._limit

    def _start(self, *, in_next_round: bool = False) -> None:
        """Start a worker soon: in this round of the event loop, or in the next one."""
        if not self._parked:
            delay = 0 if in_next_round else None
            worker = self._starting = spawn(self._name, self._run_worker, on_failure=self._on_bug, delay=delay)
            self._workers[worker] = _Work(worker)
            worker.rawlink(self._on_worker_end)
        elif in_next_round:
            gevent.get_hub().loop.timer(0.0).start(self._unpark().switch)
        else:
            gevent.get_hub().loop.run_callback(self._unpark().switch)

    def _unpark(self) -> gevent.Greenlet:
        work = self._parked.pop()
        work.is_parked = False
        self._starting = work.worker
        return work.worker

    def _begin_round(self, time: float, work: _Work) -> bool:
        """Return True if the event loop has begun another round since the last one in which workers took messages, and
        a message is left that has not timed out."""
        # Only libev's loop counts its rounds, from 1 on. With another loop, each worker has a time of its own.
        iteration = gevent.get_hub().loop.iteration
        number = iteration if iteration > 0 else work
        if number == self._round:
            return False
        self._round, self._round_end = number, time + MAX_RUN_SECONDS
        # The handler before may have taken long.
        if len(self.inbox) > 1:
            self._limit = self._concurrency()
        if time >= self._drop_due:
            self._drop_timed_out(time)
        return bool(self.inbox)

    def _continue_in_another(self) -> None:
        self._limit = self._concurrency()
        if self.inbox and self._may_start():
            self._start(in_next_round=True)

    def _run_worker(self) -> None:
        work, hub = self._workers[gevent.getcurrent()], gevent.get_hub()
        while True:
            self._starting = None
            self._run(work)
            if self._round is work:
                self._round = None
            work.is_parked = len(self._parked) < MAX_PARKED and not self._is_closed
            if not work.is_parked:
                return
            self._parked.append(work)
            if self.inbox:
                self._continue_in_another()
            try:
                hub.switch()
                while work.is_parked and not self._is_closed:
                    hub.switch()  # something else that a handler has left behind has woken the worker
            except gevent.Timeout:  # a handler has left behind a Timeout
                return
            if work.is_parked:
                return

    def _work(self, work: _Work) -> None:
        """Handle messages until the inbox is empty, or the time for this round of the event loop is over.

        If more messages wait, another worker is started before each call of a handler: so a handler may wait. It begins
        when this one waits. Between two rounds the loop reads its sockets; between two callbacks (such as those of
        sleep(0)) it does not. So all workers together take messages for MAX_RUN_SECONDS of a round, and even many
        handlers that only compute delay heartbeats by at most MAX_RUN_SECONDS and the time of one handler.
        """
        inbox, latency, handle, now = self.inbox, self.latency, self._handle, self._clock.monotonic
        current = work.messages
        # Reading the clock takes 0.05 us, recording a latency 0.2 us. So the latencies of messages of one read that had
        # fast handlers are recorded together.
        time = now()
        arrived, fast = 0.0, 0
        try:
            while inbox and (time < self._round_end or self._begin_round(time, work)):
                # Store the message before it leaves the inbox: KeyboardInterrupt may be raised after any call.
                message = current[0] = inbox[0]
                work.began = time
                inbox.popleft()
                if inbox and self._may_start():
                    self._start()
                is_answered = handle(message)
                began, time = time, now()
                if message.received != arrived or time >= began + FAST_HANDLER:
                    if fast:
                        latency.add(began - arrived, fast)
                    fast, arrived = 0, message.received
                fast += is_answered
            current[0] = None
        finally:
            if fast:
                latency.add(time - arrived, fast)

    def _work_in_batches(self, handle_batch: Callable[[list[Message]], Sequence[Message]], work: _Work) -> None:
        """Handle messages as _work() does, but the whole inbox with one call. No other worker is started before the
        call, since the inbox is empty then: put() starts a worker for further messages."""
        inbox, now = self.inbox, self._clock.monotonic
        time = now()
        while inbox and (time < self._round_end or self._begin_round(time, work)):
            messages = list(inbox)
            work.messages, work.began = list(messages), time
            inbox.clear()
            answered = handle_batch(messages)
            time = now()
            self.latency.add_since(time, [message.received for message in answered])
        work.messages = [None]

    def _on_worker_end(self, worker: gevent.Greenlet) -> None:
        """Put the unanswered messages of a killed worker back into the inbox. KeyboardInterrupt may kill a worker even
        before it has begun, or between taking a message and calling the handler."""
        if self._starting is worker:
            self._starting = None
        work = self._workers.pop(worker)
        if work.is_parked:
            self._parked.remove(work)
        unanswered = _unanswered(work.messages)
        self.inbox.extendleft([message for message in reversed(unanswered) if message not in self.inbox])
        self._continue_in_another()

    def _on_bug(self, error: BaseException) -> None:
        """Requeue the messages of a worker that ends by a bug. To put them back could cause the same error again."""
        work = self._workers[gevent.getcurrent()]
        unanswered, work.messages = _unanswered(work.messages), [None]
        what = counted(len(unanswered), "message is", "messages are")
        logger.error("%s: internal error: a worker has ended, its %s requeued", self._name, what, exc_info=error)
        for message in unanswered:
            with contextlib.suppress(NSQException):
                message.requeue(backoff=False)

    def _drop_timed_out(self, now: float) -> None:
        """Drop messages in the inbox that have timed out: nsqd delivers them again, and would refuse their FIN.

        Stop at the first message that has not timed out: if connections differ in msg_timeout, some are dropped later.
        """
        self._drop_due = now + DROP_INTERVAL
        inbox = self.inbox
        while inbox and inbox[0].time_left == 0:
            message = inbox.popleft()
            message.drop()
            self._on_dropped(message)


def _unanswered(messages: Iterable[Message | None]) -> list[Message]:
    return [message for message in messages if message and not (message.has_responded() or message.is_async())]
