"""Handlers: which functions can handle a message, and the signals that they are connected to. Calls none of them."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, TypeVar

from blinker import ANY, Signal

__all__ = ["HandlerSignal", "check_handler", "check_ran", "check_runs", "handler_name"]

_Receiver = TypeVar("_Receiver", bound=Callable[..., object])


# What to do about a handler that is none, in texts.
PLAIN = (
    "give a plain function (where it waits, other greenlets run; asyncio.run() in gevent's threadpool runs a coroutine)"
)

# What a call only makes, and does not run; and how to tell: of a function, and of what a call has returned.
_UNRUN: list[tuple[str, Callable[[object], bool], type]] = [
    ("a coroutine", inspect.iscoroutinefunction, Coroutine),
    ("a generator", inspect.isgeneratorfunction, Generator),
    ("an asynchronous generator", inspect.isasyncgenfunction, AsyncGenerator),
]


@functools.lru_cache(64)  # asked for each message whose handler returns something: 0.05 us, not 0.7
def _unrun_kind(result: type) -> str | None:
    return next((kind for kind, _, made in _UNRUN if issubclass(result, made)), None)


def check_ran(function: object, result: object) -> None:
    """Refuse what a function has made in place of running.

    Raises:
        TypeError: If the result is a coroutine or a generator; it is closed.
    """
    returned: Any = type(result)  # Any: mypy takes the __hash__ of its instances for the type's own
    kind = _unrun_kind(returned)
    if kind is not None:
        close = getattr(result, "close", None)  # an asynchronous generator has none, and needs none before it begins
        if close is not None:
            close()
        raise TypeError(f"{handler_name(function)} returned {kind}, of which nothing is run; {PLAIN}")


def check_runs(function: Callable[..., object], what: str) -> None:
    """Refuse a function whose call runs nothing.

    Args:
        what: What it was given as, for the text.

    Raises:
        TypeError: If it is a coroutine function, a generator function, an async generator, a partial of one, or an
            object whose ``__call__`` is one.
    """
    called: Any = function  # Any: anything that can be called
    while isinstance(called, functools.partial):
        called = called.func
    for kind, is_one, _ in _UNRUN:
        if is_one(called) or is_one(type(called).__call__):
            raise TypeError(
                f"{what} {handler_name(function)} is {kind} function: a call runs nothing of it, and messages "
                f"would be lost; {PLAIN}"
            )


def check_handler(handler: object, what: str) -> None:
    """Refuse what could not handle a message. What has no signature that Python knows is taken.

    Args:
        what: What it was given as, for the text.

    Raises:
        TypeError: If it can't be called as handler(consumer, message=message), or the call would run nothing.
    """
    if not callable(handler):
        raise TypeError(f"{what} must be callable, not {handler!r}")
    check_runs(handler, what)
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # of some functions that are written in C
        return
    try:
        signature.bind(None, message=None)
    except TypeError as error:
        hint = "define it as def handler(consumer, message)"
        if hasattr(handler, "__wrapped__"):
            hint += "; this is the signature of what it wraps: without __wrapped__ its own counts"
        raise TypeError(
            f"{what} {handler_name(handler)}{signature} can't be called as handler(consumer, message=message): "
            f"{error}; {hint}"
        ) from None


def handler_name(handler: object) -> str:
    """Name a handler in a text: a function's qualified name, else its class's."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return str(getattr(handler, "__qualname__", None) or type(handler).__qualname__)


class HandlerSignal(Signal):
    """A signal whose receivers are handlers: connect() refuses what could not handle a message.

    Args:
        name: The attribute that it is.

    Attributes:
        collected: The name of the last receiver that was connected weakly and has been garbage collected since.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.collected: str | None = None
        self._name = name
        self._weak: list[weakref.ref[Any]] = []

    def connect(
        self,
        receiver: _Receiver,
        sender: Any = ANY,  # Any: blinker's signature
        weak: bool = True,
    ) -> _Receiver:
        """Connect a receiver, as blinker does: weakly unless told otherwise. May be used as a decorator.

        Raises:
            TypeError: If it could not handle a message: see check_handler().
        """
        check_handler(receiver, f"receiver of {self._name}")
        super().connect(receiver, sender, weak)
        if weak:
            self._forget_weak(receiver)
            make: Any = weakref.WeakMethod if inspect.ismethod(receiver) else weakref.ref  # Any: the one or the other
            name = handler_name(receiver)
            self._weak.append(make(receiver, functools.partial(self._collect, name)))
        return receiver

    def disconnect(self, receiver: Callable[..., Any], sender: Any = ANY) -> None:  # Any: blinker's signature
        """Disconnect a receiver, as blinker does."""
        super().disconnect(receiver, sender)
        self._forget_weak(receiver)

    def _forget_weak(self, receiver: object) -> None:
        self._weak = [reference for reference in self._weak if reference() not in (None, receiver)]

    def _collect(self, name: str, reference: weakref.ref[Any]) -> None:
        self.collected = name

    def collected_hint(self) -> str:
        """Say, for the end of a text, that a receiver is missing since it was garbage collected; empty: none was."""
        if self.collected is None:
            return ""
        return (
            f"; {self.collected}, connected to {self._name}, was garbage collected: signals hold receivers weakly; "
            "a lambda needs weak=False, as everything does that nothing else refers to"
        )
