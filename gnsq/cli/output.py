"""stdout of a command that writes messages: as bytes, and from a thread, since the reader may be slow or stopped."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, cast

import gevent
from gevent.event import AsyncResult
from gevent.socket import wait_read

from gnsq.concurrency.greenlets import spawn
from gnsq.running import StopSignals

__all__ = ["Output"]

# Seconds after which a write counts as stalled.
STALLED_AFTER = 1.0
# Seconds. How long a write may go on after a signal.
STOP_GRACE = 0.5

Stalled = Callable[[], contextlib.AbstractContextManager[None]]


class Output:
    """stdout.

    Args:
        stop: Its first signal ends a write that does not go on.
    """

    def __init__(self, stop: StopSignals) -> None:
        buffer = sys.stdout.buffer
        # Without Python's own buffer, the number of written bytes is known. Nothing is left for the interpreter's end.
        self._file = cast(BinaryIO, getattr(buffer, "raw", buffer))
        self._stop = stop
        self._on_end: Callable[[], object] = lambda: None

    @contextlib.contextmanager
    def watch(self, on_end: Callable[[], object]) -> Iterator[None]:
        """Call a function if the reader ends in a block, such as ``head``; for pipes also while nothing is written."""
        self._on_end = on_end
        watcher = spawn("gnsq-output", self._watch, on_failure="the end of the reader is noticed at the next write")
        try:
            yield
        finally:
            watcher.kill()

    def _watch(self) -> None:
        try:
            number = self._file.fileno()
        except OSError:  # a stream of Python in place of a file
            return
        if stat.S_ISFIFO(os.fstat(number).st_mode):
            # The end of a pipe that is written is never readable, but poll() reports its error.
            wait_read(number)
            self._on_end()

    def write(self, parts: Sequence[bytes], stalled: Stalled = contextlib.nullcontext) -> int:
        """Write parts, and wait until they are written, the reader has ended, or a signal has come.

        Args:
            stalled: Makes a context, in which this waits for a reader that is slow or stopped.

        Returns:
            Number of parts that were written completely.

        Raises:
            OSError: If a write fails, for example since the disk is full, and no part was written completely.
        """
        ends = list(itertools.accumulate(map(len, parts)))
        write = _Write(self._file, b"".join(parts))
        job: AsyncResult = gevent.get_hub().threadpool.spawn(write.run)
        if job.wait(STALLED_AFTER) is None:
            with stalled():
                gevent.wait([job, self._stop.requested], count=1)
                job.wait(STOP_GRACE)
        written = sum(end <= write.written for end in ends)
        if isinstance(write.error, BrokenPipeError):
            self._on_end()
        elif write.error is not None and not written:
            raise write.error
        return written


class _Write:
    """A write in a thread.

    Attributes:
        written: Number of bytes that are written.
        error: Why not all bytes are written; None: the write goes on, or all are written.
    """

    def __init__(self, file: BinaryIO, data: bytes) -> None:
        self.written = 0
        self.error: OSError | None = None
        self._file = file
        self._data = memoryview(data)

    def run(self) -> bool:
        """Write all the data. Return True, so that the result differs from that of a wait whose time is over."""
        # gevent would print the traceback of an exception in a thread.
        try:
            while self.written < len(self._data):
                self._write_some()
        except OSError as error:
            self.error = error
        return True

    def _write_some(self) -> None:
        # A longer write to a pipe that is full would not tell how much it has written until it ends.
        count = self._file.write(self._data[self.written : self.written + select.PIPE_BUF])
        if count is None:
            # Another process has made the terminal or pipe non-blocking.
            poll = select.poll()
            poll.register(self._file, select.POLLOUT)
            poll.poll()
        else:
            self.written += count
