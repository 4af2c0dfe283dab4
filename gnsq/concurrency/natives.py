"""Natives: what belongs to OS threads, monkey-patched or not; gevent's in their place would tell greenlets apart, or
belong to one hub.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from gevent import monkey

__all__ = ["allocate_lock", "get_ident", "local", "start_new_thread", "start_thread"]

# Any: gevent has no types.
allocate_lock: Any = monkey.get_original("_thread", "allocate_lock")
get_ident: Callable[[], int] = monkey.get_original("_thread", "get_ident")
local: Any = monkey.get_original("_thread", "_local")
start_new_thread: Any = monkey.get_original("_thread", "start_new_thread")


def start_thread(
    function: Callable[..., object],
    *args: Any,  # Any: the function's own
    name: str = "",
) -> threading.Thread | None:
    """Start a native daemon thread.

    Args:
        name: Makes it known to the threading module, so that log records name it. Without a name, and in a
            monkey-patched process, it stays unknown. A process of one known thread may still be monkey-patched:
            gevent then lets it release the locks that it holds, such as that of the import that patches.

    Returns:
        The threading module's thread; None if it is unknown there.
    """
    known = bool(name) and not monkey.is_module_patched("threading")
    if not known:
        start_new_thread(_run_unknown, (function, args))
        return None
    thread = threading.Thread(target=_run_known, args=(function, args), name=name, daemon=True)
    thread.start()
    return thread


def _run_known(function: Callable[..., object], args: tuple[Any, ...]) -> None:  # Any: as above
    try:
        function(*args)
    finally:
        if (ident := threading.get_ident()) != get_ident():
            # Patched since it was started: the threading module looks for the thread by the id of a greenlet.
            _threads[ident] = _threads.pop(get_ident())


def _run_unknown(function: Callable[..., object], args: tuple[Any, ...]) -> None:  # Any: as above
    # What debuggers and coverage ask of new threads.
    sys.settrace(threading.gettrace())
    sys.setprofile(threading.getprofile())
    try:
        function(*args)
    finally:
        # A log record makes a dummy here, which would stay.
        _threads.pop(get_ident(), None)


# The threading module's own, by ident; there is no public way to either end.
_threads: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]  # typeshed hides it
