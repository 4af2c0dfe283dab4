"""Natives: what belongs to OS threads, monkey-patched or not; gevent's in their place would tell greenlets apart, or
belong to one hub.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gevent import monkey

__all__ = ["allocate_lock", "get_ident", "local", "start_named_thread", "start_new_thread"]

# Any: gevent has no types.
allocate_lock: Any = monkey.get_original("_thread", "allocate_lock")
get_ident: Callable[[], int] = monkey.get_original("_thread", "get_ident")
local: Any = monkey.get_original("_thread", "_local")
start_new_thread: Any = monkey.get_original("_thread", "start_new_thread")


class _Thread(threading.Thread):
    """A thread of the OS, and that to its end: monkey-patching while it runs makes the threading module look
    for it by a greenlet's number, and print a KeyError that nobody can catch.
    """

    def _delete(self) -> None:
        try:
            super()._delete()  # type: ignore[misc]  # Python's own, the last that a thread does
        except KeyError:
            threading._active.pop(self.ident, None)  # type: ignore[attr-defined]  # as that does


def start_named_thread(name: str, function: Callable[..., object], *arguments: Any) -> threading.Thread | None:
    """Start a daemon thread of the OS.

    Returns:
        The thread as the threading module knows it, so that log records name it and no dummy stays behind; None in a
        patched process, where that module knows greenlets only.

    Raises:
        RuntimeError: If the OS gives no more threads.
    """
    if monkey.is_module_patched("threading"):
        start_new_thread(function, arguments)
        return None
    thread = _Thread(target=function, args=arguments, name=name, daemon=True)
    thread.start()
    return thread
