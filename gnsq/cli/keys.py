"""Keys that a person presses while a command shows a screen; and the state of the terminal before that."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Any

from gevent.socket import wait_read

__all__ = ["pressed_keys", "reading_keys", "restore_terminal"]

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
def reading_keys() -> Iterator[bool]:
    """Let each key come at once in a block, and not be shown. Yield False if there is no terminal to read from."""
    global _before
    if not _is_ours():
        yield False
        return
    _before = termios.tcgetattr(0)
    try:
        tty.setcbreak(0)
        yield True
    finally:
        restore_terminal()


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
