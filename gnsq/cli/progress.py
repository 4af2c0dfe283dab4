"""Counts of messages with their rate, shown on stderr; a limit of the rate; and the terminal during a Ctrl-Z."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

import gevent
from gevent.event import Event

from gnsq.texts import counted

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Counter", "RateLimiter", "handing_over"]

# Seconds between two updates on the terminal.
UPDATE_INTERVAL = 0.2


class Counter:
    """Counts messages in a ``with`` block, and shows the count and its rate on stderr, if that is a terminal.

    Args:
        verb: What happens to the messages: ``published``.
        size: Number of bytes that will be read; None: unknown.
        is_shown: False: only count.

    Attributes:
        count: Number of messages until now.
    """

    def __init__(self, verb: str, size: int | None = None, *, is_shown: bool = True) -> None:
        self.count = 0
        self._bytes = 0
        self._verb = verb
        self._started = self._updated = time.monotonic()
        # rich takes as long to load as gevent, so a program without a terminal does not load it.
        self._progress = _progress(size) if is_shown and sys.stderr is not None and sys.stderr.isatty() else None
        self._on_terminal = ExitStack()

    def __enter__(self) -> Self:
        self._started = self._updated = time.monotonic()
        if self._progress is not None:
            self._on_terminal.enter_context(self._progress)
            self._on_terminal.enter_context(handing_over(self._progress.stop, self._progress.start))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Before rich 15, stop() writes a line end even if the progress is not shown.
        self._on_terminal.close()

    def add(self, messages: int, read: int = 0) -> None:
        """Count messages, and bytes that were read."""
        self.count += messages
        self._bytes += read
        now = time.monotonic()
        if now - self._updated >= UPDATE_INTERVAL:
            self._updated = now
            if self._progress is not None:
                (task,) = self._progress.task_ids
                self._progress.update(task, completed=self._bytes, description=self.summary(), refresh=True)

    def summary(self) -> str:
        """Write the count and the rate since the beginning of the block."""
        seconds = time.monotonic() - self._started
        rate = f" ({self.count / seconds:,.0f}/s)" if seconds >= UPDATE_INTERVAL else ""
        return f"{counted(self.count, 'message', spec=',')} {self._verb} in {seconds:.1f} s{rate}"


def _progress(size: int | None) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = [TextColumn("{task.description}"), *([BarColumn()] if size else [])]
    progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    progress.add_task("", total=size)
    return progress


class RateLimiter:
    """Waits so that not more than a number of messages a second pass.

    Args:
        rate: Messages a second; None: no limit.
        interrupt: Event that ends a wait, such as StopSignals.requested.

    Attributes:
        step: Number of messages that should pass at a time: those of a tenth of a second. None: no limit.
    """

    def __init__(self, rate: float | None, interrupt: Event) -> None:
        self._rate = rate
        self._interrupt = interrupt
        self.step = None if rate is None else max(1, int(rate / 10))
        self._due = time.monotonic()

    def wait(self, messages: int) -> None:
        """Wait until a number of messages may pass. Several greenlets may wait at the same time."""
        if self._rate is None:
            return
        now = time.monotonic()
        # Time that was not used is lost: the rate is not exceeded after a pause.
        due = max(self._due, now)
        self._due = due + messages / self._rate
        if due > now:
            self._interrupt.wait(due - now)


@contextmanager
def handing_over(leave: Callable[[], object], enter: Callable[[], object]) -> Iterator[None]:
    """Give the terminal to the shell while Ctrl-Z stops the process, in a block.

    Args:
        leave: Called before the process is stopped.
        enter: Called when it goes on, also after a stop that it could not see.
    """

    def suspend() -> None:
        leave()
        watchers[0].cancel()  # the signal gets its default action
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        watchers[0] = gevent.signal_handler(signal.SIGTSTP, suspend)
        enter()

    watchers = []
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:  # a shell without job control ignores it
        watchers = [gevent.signal_handler(signal.SIGTSTP, suspend), gevent.signal_handler(signal.SIGCONT, enter)]
    try:
        yield
    finally:
        for watcher in watchers:
            watcher.cancel()
