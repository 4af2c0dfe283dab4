"""Blocks whose lines, bytecodes or calls are traced."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import gevent


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Collect no garbage in a block: finalizers of what other tests have left would run, and be counted."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def interrupted(
    line: int,
    handler: Callable[[], object],
    *packages: str,
    only: object = None,
) -> Iterator[list[int]]:
    """Interrupt a block in so many lines by a signal; returns the lines there were.

    Args:
        handler: The handler of the signal. It may raise.
        packages: Only their lines count; none: all lines.
        only: The greenlet whose lines count; None: all of this thread.
    """
    lines: list[int] = []

    def trace(frame: FrameType, event: str, argument: object) -> Any:  # Any: itself
        if not frame.f_globals.get("__name__", "").startswith(packages or ""):
            return None
        if only is not None and gevent.getcurrent() is not only:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == line:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        with collector_off():
            yield lines
    finally:
        sys.settrace(tracing)
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def tracing_bytecodes(trace: Callable[..., Any]) -> Iterator[None]:  # Any: what sys.settrace() takes
    """Call trace(frame, event, argument) for the events of a block; it must set f_trace_opcodes of the frames."""

    def ask(frame: FrameType, event: str, argument: object) -> None:
        frame.f_trace_opcodes = True

    before = sys.gettrace()
    # Python 3.12 sends no events of bytecodes until a settrace() after the first frame that has asked for them.
    sys.settrace(ask)
    (lambda: None)()
    sys.settrace(trace)
    try:
        with collector_off():
            yield
    finally:
        sys.settrace(before)
