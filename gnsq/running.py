"""run(): runs the clients of a program until SIGTERM or SIGINT, then drains them."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import gevent
from gevent.core import READ
from gevent.event import Event

from gnsq.clock import monotonic
from gnsq.concurrency.greenlets import spawn
from gnsq.concurrency.threads import allocate_lock, hub_call_queue, start_thread
from gnsq.errors import NSQTimeout
from gnsq.texts import counted

if TYPE_CHECKING:
    from gnsq.consumer import Consumer
    from gnsq.producer import Producer

__all__ = ["StopSignals", "run"]

logger = logging.getLogger(__name__)

# Seconds. A signal that comes sooner than this after the first one counts as the first one: with Ctrl-C both the
# terminal and a wrapper that forwards signals, such as make or a script, may send one.
SECOND_SIGNAL_AFTER = 0.25
# Seconds between two checks whether all clients are ready, for on_ready.
READY_CHECK_INTERVAL = 0.05
# Seconds. If clients have threads of their own, nothing else keeps the hub of the waiting thread running.
CHECK_INTERVAL = 0.5
# Seconds. When the second signal comes, the reader of stdout may read no more.
FLUSH_TIMEOUT = 0.5


class StopSignals:
    """Receives SIGTERM and SIGINT in a ``with`` block: the first one sets an event, the second one ends the process.

    A signal that the process ignores when the block begins stays ignored, such as SIGINT in a background job. After the
    block, signals are handled as before it. But if one came shortly before, a copy of it must not end the process with
    the signal's own status, since all was drained: so copies are ignored, also while the interpreter ends.

    Args:
        before_end: Called before the second signal ends the process. It must not wait.

    Attributes:
        requested: Event that the first signal sets.
        number: The first signal; None before it.
        interrupt: While it is a function, the first signal also calls it and raises KeyboardInterrupt, because what the
            main thread waits for does not look at the event. The function stays, to tell that this has happened.
    """

    def __init__(self, before_end: Callable[[], object] = lambda: None) -> None:
        self.requested = Event()
        self.number: signal.Signals | None = None
        self.interrupt: Callable[[], object] | None = None
        self._before_end = before_end
        self._first = 0.0
        self._before: dict[signal.Signals, Any] = {}  # Any: a handler of any kind
        self._is_over = False

    def __enter__(self) -> Self:
        self._queue = hub_call_queue()
        try:
            self._waker = _HubWaker()
        except ValueError as error:
            raise ValueError("only the main thread can receive signals: call this there") from error
        for number in (signal.SIGTERM, signal.SIGINT):
            # That of a block that is over has stayed for copies of its signal, and would stay below this one.
            earlier = getattr(signal.getsignal(number), "__self__", None)
            if isinstance(earlier, StopSignals) and earlier._is_over:
                earlier._restore()
            if (before := signal.getsignal(number)) is not signal.SIG_IGN:
                signal.signal(number, self._receive)
                self._before[number] = before
        # Registered now, so that it is called after what the block registers, such as the closing of clients.
        atexit.register(self._ignore_copies_at_exit)
        return self

    def is_set(self) -> bool:
        """Return True after the first signal, also if the hub has not run since."""
        return self.number is not None

    def wait(self, timeout: float) -> bool:
        """Wait for the first signal, up to timeout seconds; return True if it has come."""
        self.requested.wait(timeout)
        return self.is_set()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over = True
        self._waker.close()
        if not self._may_be_copy():
            self._restore()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # Python calls this between two instructions of any greenlet, even of a handler that blocks the hub.
        if self._may_be_copy():
            return
        if self._is_over:
            self._restore()
            signal.raise_signal(number)
        elif self.number is None:
            self.number, self._first = signal.Signals(number), monotonic()
            self._queue.call_soon_threadsafe(self.requested.set)
            if self.interrupt is not None:
                self.interrupt()
                raise KeyboardInterrupt
        else:
            with contextlib.suppress(Exception):
                self._before_end()
            _end_at_once(signal.Signals(number))

    def _may_be_copy(self) -> bool:
        """Return True if a signal that comes now counts as the first one."""
        return self.number is not None and monotonic() - self._first < SECOND_SIGNAL_AFTER

    def _restore(self) -> None:
        atexit.unregister(self._ignore_copies_at_exit)
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._receive:  # otherwise the program has set another one meanwhile
                # None: the handler was not set by Python, and can't be set by it.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _ignore_copies_at_exit(self) -> None:
        # Python soon replaces its handlers by the default actions, but leaves ignored signals ignored.
        if self._may_be_copy():
            for number in self._before:
                signal.signal(number, signal.SIG_IGN)


class _HubWaker:
    """Wakes the hub when a signal comes.

    The hub lets Python handle signals, and then waits for I/O. A signal that comes between the two does not interrupt
    the wait: the hub would handle the signal when something else happens, if ever. So Python also writes to a pipe.

    Raises:
        ValueError: If another thread than the main thread calls the constructor.
    """

    def __init__(self) -> None:
        self._before = signal.set_wakeup_fd(-1)
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        # ref=False: the watcher does not keep the hub running.
        self._watcher = gevent.get_hub().loop.io(self._read_end, READ, ref=False)
        self._watcher.start(self._empty)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)

    def close(self) -> None:
        """Restore the file descriptor that Python wrote to before."""
        signal.set_wakeup_fd(self._before)
        self._watcher.close()
        os.close(self._read_end)
        os.close(self._write_end)

    def _empty(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_end, 4096)


def _end_at_once(number: signal.Signals) -> None:
    """End the process without a traceback, and without waiting for anything longer than FLUSH_TIMEOUT."""
    text = f"{number.name} for the second time: ended at once. nsqd delivers unanswered messages again; "
    text += "pending publishes are not confirmed\n"
    # In a thread: the interrupted code may be writing to stdout, or nothing may read it.
    flushed = allocate_lock()
    flushed.acquire()
    start_thread(_flush_stdout, flushed)
    flushed.acquire(timeout=FLUSH_TIMEOUT)
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(128 + number)


def _flush_stdout(flushed: Any) -> None:  # Any: a native lock, which has no type
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    flushed.release()


def run(*clients: Consumer | Producer, on_ready: Callable[[], object] | None = None) -> None:
    """Start clients, run until SIGTERM or SIGINT or until all consumers have closed, then drain and close the clients.

    To be the last call of a program, in its main thread. The first signal drains: the consumers request no more
    messages and wait for their handlers, up to ``close_timeout``; after that the producers wait for their pending
    publishes. The second signal ends the process at once, with exit status 130 (SIGINT) or 143 (SIGTERM).

    Args:
        clients: Consumers and producers. Those that do not run yet are started, all at the same time. If there are
            only producers, run() ends when all of them have closed.
        on_ready: Called once, when all clients are ready for the first time (``is_ready``); for example, to tell a
            service manager. If it raises, the clients are drained, and run() raises the exception.

    Raises:
        ValueError: If no client is given, or another thread than the main thread calls this.
        TypeError: If an argument is neither a Consumer nor a Producer.
        SystemExit: With status 1, if a message was not answered, or a publish not confirmed, before the end of
            close_timeout, or if the thread of a client has ended. The log has what and how many.
        Exception: What start() raises. The other clients are drained.
    """
    # Here, since the programs that only receive a signal by StopSignals need neither.
    from gnsq.consumer import Consumer
    from gnsq.producer import Producer

    if not clients:
        raise ValueError("run() has no client: give a Consumer or a Producer, or several")
    for client in clients:
        if not isinstance(client, (Consumer, Producer)):
            raise TypeError(f"run() takes Consumers and Producers, one per argument, and not {client!r}")
    with StopSignals() as signals:
        if _Run(clients, signals).run(on_ready):
            return
    raise SystemExit(1)


class _Run:
    """One call of run()."""

    def __init__(self, clients: Sequence[Consumer | Producer], signals: StopSignals) -> None:
        from gnsq.consumer import Consumer
        from gnsq.producer import Producer

        self._consumers = [client for client in clients if isinstance(client, Consumer)]
        self._producers = [client for client in clients if isinstance(client, Producer)]
        self._clients = clients
        self._signals = signals
        self._error: BaseException | None = None  # what start() of a client, or on_ready, has raised
        # Set by a signal, when a client closes, and with _error.
        self._changed = Event()
        signals.requested.rawlink(lambda _: self._changed.set())
        self._queue = hub_call_queue()

    def run(self, on_ready: Callable[[], object] | None) -> bool:
        """Return True if no message was left unanswered, and no publish unconfirmed."""
        # In greenlets: neither a signal nor another client must wait for an nsqd that does not respond.
        starters = [
            spawn("gnsq-run-start", self._start, client, on_failure=self._note_error) for client in self._clients
        ]
        if on_ready is not None:
            arguments = self._call_when_ready, on_ready, list(starters)
            starters.append(spawn("gnsq-run-ready", *arguments, on_failure=self._note_error))
        try:
            while not self._must_end():
                self._wait()
        finally:
            if self._signals.number is not None:
                logger.info("%s: closing %s", self._signals.number.name, counted(len(self._clients), "client"))
            gevent.killall(starters, block=False)
            drainer = spawn("gnsq-run-drain", self._drain, on_failure=None)
            # What ends the program in a handler, gevent raises here. The drain continues; the first one is raised.
            exits: list[SystemExit | KeyboardInterrupt] = []
            while not drainer.ready():
                try:
                    drainer.join()
                except (SystemExit, KeyboardInterrupt) as error:
                    exits.append(error)
        for raised in [*exits, self._error]:
            if raised is not None:
                raise raised
        return bool(drainer.get())

    def _wait(self) -> None:
        self._changed.wait(CHECK_INTERVAL)
        self._changed.clear()

    def _note_error(self, error: BaseException) -> None:
        self._error = self._error or error  # raised by run()
        self._changed.set()

    def _start(self, client: Consumer | Producer) -> None:
        client.on_close.connect(self._on_close, sender=client, weak=False)
        from gnsq.consumer import Consumer

        if isinstance(client, Consumer):
            client.start(block=False)
        elif not client.is_running:
            client.start()

    def _call_when_ready(self, on_ready: Callable[[], object], starters: Sequence[gevent.Greenlet]) -> None:
        gevent.joinall(starters)
        while not all(client.is_ready for client in self._clients):
            gevent.sleep(READY_CHECK_INTERVAL)
        on_ready()

    def _on_close(self, client: object) -> None:
        # The thread of a threaded client calls this. The hub of run() may have been destroyed: then ValueError.
        with contextlib.suppress(ValueError):
            self._queue.call_soon_threadsafe(self._changed.set)

    def _must_end(self) -> bool:
        if self._signals.number is not None or self._error is not None:
            return True
        # A client whose thread has ended must not be missing unnoticed while others run.
        is_lost = any(client.has_lost_thread for client in self._clients)
        return is_lost or all(client.is_closed for client in self._consumers or self._producers)

    def _drain(self) -> bool:
        """Close the consumers, then the producers: handlers may still publish. Return True if nothing was left."""
        closers: list[gevent.Greenlet] = []
        for clients in (self._consumers, self._producers):
            closers += [spawn("gnsq-run-close", _close, client, on_failure=None) for client in clients]
            gevent.joinall(closers)
        # Read the results after all closes: one may raise, for example that of a subclass.
        left = [text for closer in closers if (text := closer.get())]
        for text in left:
            logger.error("%s", text)
        return not left


def _close(client: Consumer | Producer) -> str:
    """Close a client, and write what it has left. Empty: nothing."""
    from gnsq.consumer import Consumer

    label = client.log_owner.label
    try:
        if isinstance(client, Consumer):
            client.close()
            left, how = client.stats().unanswered, "not answered, and will be delivered again"
        else:
            left, how = sum(len(publish.bodies) for publish in client.close()), "not confirmed"
    except NSQTimeout as error:
        return f"{label}: {error}"
    what = f"{counted(left, 'message was', 'messages were')} {how}"
    if client.has_lost_thread:
        return f"{label}: its thread has ended, for example since a handler called sys.exit(); {what}"
    return f"{label}: {what}" if left else ""
