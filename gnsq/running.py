"""run(): runs the clients of a program until SIGTERM or SIGINT, then drains them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

import gevent
from gevent.event import Event

from gnsq.concurrency.threads import hub_call_queue
from gnsq.consumer import Consumer
from gnsq.nsqd.pool import State
from gnsq.producer import Producer
from gnsq.texts import counted

__all__ = ["StopSignals", "run"]

logger = logging.getLogger(__name__)

# Seconds. A signal that comes sooner than this after the first one counts as the first one: with Ctrl-C both the
# terminal and a wrapper that forwards signals, such as make or a script, may send one.
SECOND_SIGNAL_AFTER = 0.25
# Seconds between two checks whether all clients are ready, for on_ready.
READY_CHECK_INTERVAL = 0.05
# Seconds. How long a consumer may take longer than its close_timeout to close, and how often that is checked.
CLOSE_GRACE = 5.0
CLOSED_CHECK_INTERVAL = 0.5


class StopSignals:
    """Receives SIGTERM and SIGINT in a ``with`` block: the first one sets an event, the second one ends the process.

    A signal that the process ignores when the block begins stays ignored, such as SIGINT in a background job.

    Attributes:
        requested: Event that the first signal sets.
        number: The first signal; None before it.
    """

    def __init__(self) -> None:
        self.requested = Event()
        self.number: signal.Signals | None = None
        self._first = 0.0
        self._before: dict[signal.Signals, Any] = {}  # Any: a handler of any kind

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("signals can be received by the main thread only; call this there")
        self._queue = hub_call_queue()
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            # None: the handler was not set by Python, and can't be set by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # Python calls this between two instructions of any greenlet, even of a handler that blocks the hub.
        if self.number is None:
            self.number, self._first = signal.Signals(number), time.monotonic()
            self._queue.call_soon_threadsafe(self.requested.set)
        elif time.monotonic() - self._first >= SECOND_SIGNAL_AFTER:
            _end_at_once(signal.Signals(number))


def _end_at_once(number: signal.Signals) -> None:
    """End the process without waiting for anything, and without a traceback."""
    text = f"{number.name} for the second time: ended at once; nsqd delivers unanswered messages again\n"
    with contextlib.suppress(Exception):  # the interrupted code may be writing to the same file
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(128 + number)


def run(*clients: Consumer | Producer, on_ready: Callable[[], object] | None = None) -> None:
    """Start clients, run until SIGTERM or SIGINT or until all consumers have closed, then drain and close the clients.

    To be the last call of a program, in its main thread. The first signal drains: the consumers request no more
    messages and wait for their handlers, up to ``close_timeout``; after that the producers wait for their pending
    publishes. The second signal ends the process at once, with exit status 130 (SIGINT) or 143 (SIGTERM).

    Args:
        clients: Consumers and producers that were not started, or producers that run already.
        on_ready: Called once, when all clients are ready for the first time (``is_ready``); for example, to tell a
            service manager. If it raises, the clients are drained, and run() raises the exception.

    Raises:
        ValueError: If no client is given, or another thread than the main thread calls this.
        SystemExit: With status 1, if a message was not answered, or a publish not confirmed, before the end of
            close_timeout, or if the thread of a consumer has ended. The log has what and how many.
        Exception: What start() raises. The clients that were started before are drained.
    """
    if not clients:
        raise ValueError("run() has no client: give a Consumer or a Producer, or several")
    with StopSignals() as signals:
        if _Run(clients, signals).run(on_ready):
            return
    raise SystemExit(1)


class _Run:
    """One call of run()."""

    def __init__(self, clients: Sequence[Consumer | Producer], signals: StopSignals) -> None:
        self._consumers = [client for client in clients if isinstance(client, Consumer)]
        self._producers = [client for client in clients if isinstance(client, Producer)]
        self._clients = clients
        self._signals = signals
        # Set by a signal, when a client closes, and when on_ready fails.
        self._changed = Event()
        signals.requested.rawlink(lambda _: self._changed.set())
        self._queue = hub_call_queue()

    def run(self, on_ready: Callable[[], object] | None) -> bool:
        """Return True if no message was left unanswered, and no publish unconfirmed."""
        watcher = None
        try:
            for client in self._clients:
                self._start(client)
            if on_ready is not None:
                watcher = gevent.spawn(self._call_when_ready, on_ready)
                watcher.rawlink(lambda _: self._changed.set())
            while not self._must_end(watcher):
                self._changed.wait()
                self._changed.clear()
        finally:
            if watcher is not None:
                watcher.kill()
            left = self._drain()
        for text in left:
            logger.error("%s", text)
        if watcher is not None:
            watcher.get()
        return not left

    def _start(self, client: Consumer | Producer) -> None:
        if self._signals.requested.is_set():
            return
        client.on_close.connect(self._on_close, sender=client, weak=False)
        if isinstance(client, Consumer):
            client.start(block=False)
        elif not client.is_running:
            client.start()

    def _on_close(self, client: object) -> None:
        # The thread of a threaded client calls this. The hub of run() may have been destroyed: then ValueError.
        with contextlib.suppress(ValueError):
            self._queue.call_soon_threadsafe(self._changed.set)

    def _call_when_ready(self, on_ready: Callable[[], object]) -> None:
        while not all(client.is_ready for client in self._clients):
            gevent.sleep(READY_CHECK_INTERVAL)
        on_ready()

    def _must_end(self, watcher: gevent.Greenlet | None) -> bool:
        if self._signals.number is not None:
            logger.info("%s: closing %s", self._signals.number.name, counted(len(self._clients), "client"))
            return True
        if watcher is not None and watcher.ready() and not watcher.successful():
            return True
        closed = [consumer for consumer in self._consumers if _is_closed(consumer)]
        # A consumer whose thread has ended must not be missing unnoticed while others run.
        return any(consumer.stats().unanswered for consumer in closed) or (0 < len(self._consumers) == len(closed))

    def _drain(self) -> list[str]:
        """Close the consumers, then the producers: handlers may still publish. Return what was left, in words."""
        for consumer in self._consumers:
            consumer.close()
        limit = max((consumer.options.close_timeout for consumer in self._consumers), default=0.0) + CLOSE_GRACE
        with gevent.Timeout(limit, False):
            while not all(map(_is_closed, self._consumers)):
                self._changed.wait(CLOSED_CHECK_INTERVAL)
                self._changed.clear()
        left = []
        for consumer in self._consumers:
            label = consumer.log_owner.label
            if not _is_closed(consumer):
                left.append(f"{label}: not closed within {limit:g} s: a handler blocks the consumer's thread")
            elif unanswered := consumer.stats().unanswered:
                what = counted(unanswered, "message was", "messages were")
                left.append(f"{label}: {what} not answered; nsqd delivers them again")
        closers = [gevent.spawn(producer.close) for producer in self._producers]
        gevent.joinall(closers)
        for producer, closer in zip(self._producers, closers, strict=True):
            # get() raises what close() has raised: NSQTimeout, if the producer's thread is blocked.
            if unconfirmed := sum(len(publish.bodies) for publish in closer.get()):
                left.append(f"{producer.name}: {counted(unconfirmed, 'message was', 'messages were')} not confirmed")
        return left


def _is_closed(consumer: Consumer) -> bool:
    return consumer.stats().state == State.CLOSED.value
