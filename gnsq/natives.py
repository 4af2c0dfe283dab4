"""Natives: what belongs to OS threads, monkey-patched or not; gevent's in their place would tell greenlets apart, or
belong to one hub.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gevent import monkey

__all__ = ["allocate_lock", "get_ident", "local", "start_new_thread"]

# Any: gevent has no types.
allocate_lock: Any = monkey.get_original("_thread", "allocate_lock")
get_ident: Callable[[], int] = monkey.get_original("_thread", "get_ident")
local: Any = monkey.get_original("_thread", "_local")
start_new_thread: Any = monkey.get_original("_thread", "start_new_thread")
