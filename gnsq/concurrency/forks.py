"""Closes inherited sockets in a forked child.

A child has copies of its parent's sockets. If the child read bytes from a copy, the parent would not receive these
bytes. So the child closes its copies and sends nothing over them.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

import gevent

from gnsq.concurrency.threads import get_hub_if_exists

__all__ = ["ForkAware", "disown", "register_after_fork"]


class ForkAware(Protocol):
    """Object with sockets that a forked child process must not use."""

    def after_fork_in_child(self, parent: int) -> None:
        """Close this process's copies of sockets, and send nothing.

        Args:
            parent: Id of the process that continues to use the sockets.
        """


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


def disown(sock: _HasFileno) -> None:
    """Let go of a forked child's copy of a socket, which may be that of a thread that the child does not have.

    Its number means the null device from then on: if it were free, the next file would get it, and a greenlet or a
    watcher that still has the socket would use that file.
    """
    if (number := sock.fileno()) >= 0:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, number, inheritable=False)
        os.close(null)


_registered: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_hook_is_set = False


def register_after_fork(obj: ForkAware) -> None:
    """Call an object's after_fork_in_child() in each child that this process forks while the object exists."""
    global _hook_is_set
    if not _hook_is_set:
        # Register the hook with the first object, so that an import of this module registers nothing.
        _hook_is_set = True
        os.register_at_fork(after_in_child=_run_after_fork)
    _registered.add(obj)


def _run_after_fork() -> None:
    inherited = list(_registered)
    _registered.clear()
    hub = get_hub_if_exists()
    if inherited and hub is not None:
        _forget_pools_of_workers(hub)
        # After a plain os.fork() the child shares the parent's epoll, and its resolver has no threads: renew both.
        gevent.reinit()
    for obj in inherited:
        obj.after_fork_in_child(os.getppid())


def _forget_pools_of_workers(hub: Any) -> None:  # Any: gevent has no types
    """Let gevent.reinit() destroy the hubs of the thread pool's threads without waiting for their own thread pools.

    A function in a thread of the pool may have used gevent, such as a DNS lookup, so that this thread has a hub with a
    pool of its own. reinit() would wait for ever for the threads of that pool, which do not exist in a forked child.
    Source: gevent threadpool.py, _on_fork and _set_size.
    """
    for worker in getattr(hub._threadpool, "_worker_greenlets", ()):
        if worker._hub_of_worker is not None:
            worker._hub_of_worker._threadpool = None
