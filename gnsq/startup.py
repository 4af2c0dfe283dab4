"""Signals of a program before and after its work: no traceback while it imports, no other status once it is done.

While it works, gnsq.running receives them. This module imports only what Python has loaded by its own start, since a
signal may come meanwhile: the module signal takes longer than all that comes before main().
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see gnsq/__init__.py
if TYPE_CHECKING:
    import signal
    from types import FrameType
else:
    import _signal as signal

__all__ = ["EndingAtSignals", "ignore_signals"]

_NAMES: dict[int, str] = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM"}


class EndingAtSignals:
    """Let SIGINT and SIGTERM end the process at once in a block, with one line and the status 130 or 143.

    To be entered first, when nothing is to be cleaned up yet. A signal that is ignored stays ignored, such as SIGINT in
    a background job. Python's KeyboardInterrupt would be a traceback; or nothing, if code that drops exceptions runs,
    such as the callback of a weak reference.
    """

    def __enter__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in _NAMES}
        for number, handler in self._before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, _end)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) is _end:
                signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM from now on, also while the interpreter ends: the work is done, and its status stands.

    A handler would not do: Python replaces it by the default action before it ends.
    """
    for number in _NAMES:
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, f"{_NAMES[number]}: stopped before the start\n".encode())
    finally:
        os._exit(128 + number)
