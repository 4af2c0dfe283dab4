"""Waits for what other greenlets or programs do: by looks at a condition, and no longer than a limit."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from typing import Any

import gevent

from fakensqd import UnknownChannel

LIMIT = 60.0


def wait_for_program(process: subprocess.Popen[Any], condition: Callable[[], object]) -> None:
    """Wait until a condition is true, while other greenlets run. Fail when the program has ended, as at its limit.

    How long a program takes to start, or to do something, depends on what else the machine does.
    """
    while True:
        with contextlib.suppress(UnknownChannel):
            if condition():
                return
        assert process.poll() is None, f"the program has ended with status {process.returncode} before: {condition}"
        gevent.sleep(0.005)


def wait_until(condition: Callable[[], object], limit: float = LIMIT, *, pause: float = 0.001) -> None:
    """Wait until a condition is true, while other greenlets run; also for a channel. Fail after limit seconds.

    Args:
        pause: Seconds between two looks: more of them for what a program does, whose start the looks would delay.
    """
    with gevent.Timeout(limit, AssertionError(f"not so within {limit} s: {condition}")):
        while True:
            with contextlib.suppress(UnknownChannel):
                if condition():
                    return
            gevent.sleep(pause)
