"""StopRequest: SIGINT and SIGTERM as a request to stop in order; the second one ends the process as usual."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["StopRequest"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether somebody asked to stop. Use as a context manager, in the main thread."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._before: dict[int, Any] = {}  # Any: as signal.signal() returns it

    def install(self) -> None:
        """Handle the signals from now on; again, when another library has taken them (SparkContext takes SIGINT)."""
        for number in _SIGNALS:
            before = signal.signal(number, self._ask)
            self._before.setdefault(number, before)

    @property
    def is_set(self) -> bool:
        """Whether a signal came."""
        return self._asked.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait for a signal, up to timeout seconds."""
        return self._asked.wait(timeout)

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked.set()
        for each in _SIGNALS:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
