"""Forks: what an open connection becomes in a child process.

The child inherits sockets that its parent goes on using: whatever it read from them the parent would miss. So each
connection that is open when a process forks is given up in the child, without a word to nsqd.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

import gevent
from gevent._hub_local import get_hub_if_exists

__all__ = ["give_up_in_children"]


class Inherited(Protocol):
    """What a child must not use."""

    def give_up(self, parent: int) -> None:
        """Close what this process has of it, sending nothing; parent is the process that goes on with it."""


_open: weakref.WeakSet[Inherited] = weakref.WeakSet()
_registered = False


def give_up_in_children(connection: Inherited) -> None:
    """Tell a connection in every child process that is forked while it lives."""
    global _registered
    if not _registered:
        # With the first connection: importing registers nothing.
        _registered = True
        os.register_at_fork(after_in_child=_forked)
    _open.add(connection)


def _forked() -> None:
    inherited = list(_open)
    _open.clear()
    if inherited and get_hub_if_exists() is not None:
        # os.fork() alone leaves both processes with one epoll, and the child with a resolver that has no threads.
        gevent.reinit()
    for connection in inherited:
        connection.give_up(os.getppid())
