"""Log of the programs: lines on stderr.

Never blocks: a line is dropped if the pipe is full, since a test suite that does not read the stderr of its daemon must
not stop the daemon.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select

from fakensqd.options import LOG_LEVELS

__all__ = ["NonBlockingLogHandler", "configure"]

# Bytes that a pipe takes without blocking if poll() calls it writable. Source: pipe(7), PIPE_BUF.
_MAX_WRITE = 4096
_LEVELS = dict(
    zip(LOG_LEVELS, (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL), strict=True)
)


class NonBlockingLogHandler(logging.Handler):
    """Writes lines to a file descriptor, but never waits for it. It has write(), so it can replace sys.stderr."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self.write(self.format(record) + "\n")

    def write(self, text: str) -> int:
        """Write text; drop the rest if the descriptor is not writable."""
        data = text.encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError):  # the reader is gone
            for start in range(0, len(data), _MAX_WRITE):
                if not self._poll.poll(0):
                    break
                os.write(self._descriptor, data[start : start + _MAX_WRITE])
        return len(text)


def configure(level: str, descriptor: int = 2) -> NonBlockingLogHandler:
    """Write fakensqd's log to a file descriptor: records of this level and above. The level is one of LOG_LEVELS."""
    handler = NonBlockingLogHandler(descriptor)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
    logger = logging.getLogger("fakensqd")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(_LEVELS[level])
    return handler
