"""What the lives of a Consumer and a Producer share: who must not wait for a close, and the end of the program.

This code may be called from greenlets, threads, signal handlers and forked children. It uses no lock: a signal handler
would wait for ever for a lock that the interrupted thread has acquired.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import gevent

from gnsq.concurrency.threads import OwnerThread, is_hub_greenlet
from gnsq.errors import NSQConnectionClosed, NSQTimeout
from gnsq.nsqd.pool import State

__all__ = [
    "ActiveGreenlets",
    "call_at_exit",
    "call_not_at_exit",
    "not_closed_error",
    "why_blocked",
    "why_not_started",
]

Client = TypeVar("Client")


class ActiveGreenlets:
    """Greenlets that run code of a client, or that the client waits for when it closes.

    close() and join() must not wait in them. The caller may also be a signal handler that has interrupted one of them.
    """

    def __init__(self) -> None:
        self._greenlets: set[gevent.Greenlet] = set()

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """Mark the calling greenlet during the block."""
        greenlet = gevent.getcurrent()
        if greenlet in self._greenlets:
            yield
            return
        self._greenlets.add(greenlet)
        try:
            yield
        finally:
            self._greenlets.discard(greenlet)

    def must_not_wait(self) -> bool:
        """Return True if the caller is the hub itself or a marked greenlet."""
        return is_hub_greenlet() or gevent.getcurrent() in self._greenlets


def not_closed_error(kind: str, limit: float, owner: OwnerThread | None, *, threaded: bool) -> NSQTimeout:
    """Say why a client has not closed in time.

    Args:
        kind: "consumer" or "producer".
        owner: Its thread.
    """
    text = f"not closed within {limit:g} s, and goes on in the background"
    if owner is None or owner.is_current:
        return NSQTimeout(text)
    text += f" when the {kind}'s thread runs its hub"
    if threaded:
        return NSQTimeout(f"{text}: a handler or other code blocks it")
    return NSQTimeout(f"{text}; in a program that blocks natively a {kind} needs threaded=True")


def why_not_started(kind: str, state: State, owner: OwnerThread | None = None) -> str:
    """Say why start() of a client in a state, which is INIT while another caller starts it, starts nothing.

    Args:
        kind: "consumer" or "producer".
        owner: Its thread.
    """
    if state is State.RUNNING and owner is not None and owner.has_ended:
        return f"the {kind}'s thread has ended; make a new one"
    if state is State.RUNNING:
        return f"{kind} is running already"
    if state is State.INIT:
        return f"another thread or greenlet is starting the {kind}"
    return f"{kind} {'is closing' if state is State.CLOSING else 'was closed'}; make a new one"


def why_blocked(owner: OwnerThread | None, limit: float) -> str:
    """Return why the hub of a client's thread does not run a call within some seconds. Empty: it does."""
    try:
        if owner is not None:
            owner.call_and_wait(limit, lambda: None)
    except NSQTimeout:
        return f"the hub of its thread has not run for {limit:g} s: a handler or other code blocks it"
    except NSQConnectionClosed as error:
        return str(error)
    return ""


# --- the end of the program

# Clients that were started and are not closed, each with the function to call with it, and whether it comes last.
# Any: each function takes its client.
_open: weakref.WeakKeyDictionary[object, tuple[Callable[[Any], object], bool]] = weakref.WeakKeyDictionary()
_registered = False


def call_at_exit(function: Callable[[Client], object], client: Client, *, last: bool = False) -> None:
    """Call a function with a client at the end of the program, if the client still exists then.

    Args:
        last: Call it after those of the other clients: handlers may publish until their end.
    """
    global _registered
    if not _registered:
        # Register when the first client starts, so that an import of this module registers nothing.
        _registered = True
        atexit.register(_call_all)
    _open[client] = function, last


def call_not_at_exit(client: object) -> None:
    """Forget a client that has closed, or of which its caller knows already that it does not close."""
    _open.pop(client, None)


def _call_all() -> None:
    # The stack calls the last one first, and all of them even if one raises: Ctrl-C may interrupt a close, and a
    # subclass may override it.
    with contextlib.ExitStack() as stack:
        for client, (function, _) in sorted(_open.items(), key=lambda item: not item[1][1]):
            stack.callback(function, client)
