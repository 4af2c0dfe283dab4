"""What the programs write to stderr: lines as nsqd writes them, never waiting for somebody to read them.

Never blocks: a line that a full pipe does not take is dropped, since a test-suite that does not read the stderr of its
daemon must not stop it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time

from fakensqd.options import LOG_LEVELS

__all__ = ["LineFormatter", "NonBlockingLogHandler", "configure", "set_level"]

# What poll() calls writable takes this much at once. Source: pipe(7), PIPE_BUF.
_ATOMIC = 4096
_LEVELS = dict(
    zip(LOG_LEVELS, (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL), strict=True)
)
_NAMES = {logging.CRITICAL: "FATAL"}


class LineFormatter(logging.Formatter):
    """``[nsqd] 2026/11/21 07:25:31.125729 INFO: text``, the text on as many lines as it has.

    Args:
        prefix: Begins each record.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """Write a record, with its traceback if it has one."""
        moment = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(record.created))
        micros = int(record.created % 1 * 1e6)
        level = _NAMES.get(record.levelno, record.levelname)
        lines = [f"{self._prefix}{moment}.{micros:06d} {level}: {record.getMessage()}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


class NonBlockingLogHandler(logging.Handler):
    """Writes lines to a file descriptor, unbuffered, if it takes them at once; also a stream for sys.stderr."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self.write(self.format(record) + "\n")

    def write(self, text: str) -> int:
        """Write text, up to where it is not taken."""
        data = text.encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError):  # nobody reads any more
            for start in range(0, len(data), _ATOMIC):
                if not self._poll.poll(0):
                    break
                os.write(self._descriptor, data[start : start + _ATOMIC])
        return len(text)


def configure(level: str, prefix: str, descriptor: int = 2) -> NonBlockingLogHandler:
    """Let all that fakensqd logs go to a file descriptor, from a level of nsqd's names on."""
    handler = NonBlockingLogHandler(descriptor)
    handler.setFormatter(LineFormatter(prefix))
    logger = logging.getLogger("fakensqd")
    logger.handlers = [handler]
    logger.propagate = False
    set_level(level)
    return handler


def set_level(level: str) -> None:
    """Let all that fakensqd logs begin at a level of nsqd's names: it is the whole process's."""
    logging.getLogger("fakensqd").setLevel(_LEVELS[level])
