"""Signals of a program before and after its work: no traceback while it imports, no other status once it is done.

While it works, gnsq.running receives them. This module imports nothing that takes time, since a signal may come
meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

__all__ = ["ending_at_signals", "ignore_signals"]

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def ending_at_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process at once in a block, with one line and the status 130 or 143.

    To be entered first, when nothing is to be cleaned up yet. A signal that is ignored stays ignored, such as SIGINT in
    a background job. Python's KeyboardInterrupt would be a traceback; or nothing, if code that drops exceptions runs,
    such as the callback of a weak reference.
    """
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _end)
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM from now on, also while the interpreter ends: the work is done, and its status stands.

    A handler would not do: Python replaces it by the default action before it ends.
    """
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, f"{signal.Signals(number).name}: stopped before the start\n".encode())
    finally:
        os._exit(128 + number)
