"""The process of a job: signals ask it to stop in order."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from gnsq.spark.errors import JobFailed

__all__ = ["JobStopped", "StopRequest"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class JobStopped(JobFailed):
    """A signal has stopped a job before it was done.

    What to do: start the job again to go on.
    """


class StopRequest:
    """Sets an event, ``asked``, at the first SIGINT or SIGTERM. Context manager, for the main thread."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._before: dict[int, Any] = {}  # Any: as signal.signal() returns it

    def install(self) -> None:
        """Install the signal handlers. Call again if another library has replaced one (SparkContext takes SIGINT)."""
        for number in _SIGNALS:
            before = signal.signal(number, self._ask)
            self._before.setdefault(number, before)

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked.set()
        for each in _SIGNALS:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
