"""Keys that a person presses while a command shows a screen; and the terminal before that, and during a Ctrl-Z."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from typing import Any

import gevent
from gevent.socket import wait_read
from rich.live import Live

__all__ = ["handing_over", "pressed_keys", "reading_keys", "restore_terminal"]

_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)
# What terminals send for keys that are no characters.
_NAMES = {
    **{f"\x1b{start}A": "up" for start in "[O"},
    **{f"\x1b{start}B": "down" for start in "[O"},
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~"), "home"),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~"), "end"),
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
}
# The mode of the terminal before reading_keys(). Any: termios' list.
_before: list[Any] | None = None


@contextlib.contextmanager
def handing_over(leave: Callable[[], object], enter: Callable[[], object]) -> Iterator[None]:
    """Give the terminal to the shell while Ctrl-Z stops the process, in a block.

    Args:
        leave: Called before the process is stopped.
        enter: Called when it goes on, also after a stop that it could not see.
    """

    def suspend() -> None:
        leave()
        watchers[0].cancel()  # the signal gets its default action
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        watchers[0] = gevent.signal_handler(signal.SIGTSTP, suspend)
        enter()

    watchers = []
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:  # a shell without job control ignores it
        watchers = [gevent.signal_handler(signal.SIGTSTP, suspend), gevent.signal_handler(signal.SIGCONT, enter)]
    try:
        yield
    finally:
        for watcher in watchers:
            watcher.cancel()


@contextlib.contextmanager
def reading_keys(live: Live) -> Iterator[bool]:
    """Let each key come at once in a block, and not be shown. Yield False if there is no terminal to read from.

    Args:
        live: The screen, which is left while Ctrl-Z stops the process.
    """
    has_keys = _is_ours()

    def leave() -> None:
        live.stop()
        restore_terminal()

    def enter() -> None:
        if has_keys:
            _read_each_key()  # in the background this stops the process again, until the shell's fg
        live.start()
        live.refresh()

    with handing_over(leave, enter):
        try:
            if has_keys:
                _read_each_key()
            yield has_keys
        finally:
            restore_terminal()


def _read_each_key() -> None:
    global _before
    if _before is None:
        _before = termios.tcgetattr(0)
    tty.setcbreak(0, termios.TCSANOW)  # by default it drops keys that were pressed


def _is_ours() -> bool:
    """Return True if stdin is the terminal of this process group. A job in the background would be stopped."""
    try:
        return sys.stdin is not None and os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def restore_terminal() -> None:
    """Give the terminal the mode that it had before reading_keys(), also if the process is to end at once."""
    global _before
    before, _before = _before, None
    if before is not None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, before)


def pressed_keys() -> Iterator[str]:
    """Wait for keys, and yield them: characters, and names such as ``page up``. End with the terminal."""
    while True:
        wait_read(0)
        try:
            data = os.read(0, 256)
        except OSError:
            return
        if not data:
            return
        for key in _KEY.findall(data.decode(errors="replace")):
            yield _NAMES.get(key, key)
