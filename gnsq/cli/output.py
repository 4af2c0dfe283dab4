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
        data = memoryview(b"".join(parts))
        done, failure = 0, None

        def write_all() -> bool:
            """Write in a thread. Return True, so that the result differs from that of a wait whose time is over."""
            nonlocal done, failure
            try:
                while done < len(data):
                    # A longer write to a pipe that is full would not tell how much it has written until it ends.
                    count = self._file.write(data[done : done + select.PIPE_BUF])
                    if count is None:
                        # Another process has made the terminal or pipe non-blocking.
                        poll = select.poll()
                        poll.register(self._file, select.POLLOUT)
                        poll.poll()
                    else:
                        done += count
            except OSError as error:  # gevent would print its traceback
                failure = error
            return True

        job: AsyncResult = gevent.get_hub().threadpool.spawn(write_all)
        if job.wait(STALLED_AFTER) is None:
            with stalled():
                gevent.wait([job, self._stop.requested], count=1)
                job.wait(STOP_GRACE)
        written = sum(end <= done for end in itertools.accumulate(map(len, parts)))
        if isinstance(failure, BrokenPipeError):
            self._on_end()
        elif failure is not None and not written:
            raise failure
        return written
