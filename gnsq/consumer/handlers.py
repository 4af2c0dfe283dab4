"""Handlers: their type, the checks that a function can be a handler, and the signal that performs these checks.

gnsq.contrib uses this module, too. This module calls no handler: handler_runner.py does that.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

from blinker import ANY, Signal

from gnsq.message import Message

__all__ = ["Handler", "HandlerSignal", "check_handler", "check_ran", "check_runs", "handler_name"]


class Handler(Protocol):
    """Signature of message_handler, and of the receivers of a Consumer's on_message and on_giving_up.

    If the handler returns, the message is finished, unless it is answered or async. If it raises an exception, or
    returns a coroutine or generator, the message is requeued, unless it is answered or given up (NSQGiveUp). Other
    results are not used.
    """

    def __call__(self, consumer: Any, /, *, message: Message) -> None:  # Any: a handler may want a subclass of Consumer
        """Handle a message."""


_HandlerT = TypeVar("_HandlerT", bound=Handler)

_ADVICE = (
    "give a plain function (while it waits, other greenlets run; asyncio.run() in gevent's threadpool runs a coroutine)"
)

# Kinds of functions whose code does not run when they are called: name, test for the function, type of the result.
_NOT_RUN: list[tuple[str, Callable[[object], bool], type]] = [
    ("a coroutine", inspect.iscoroutinefunction, Coroutine),
    ("a generator", inspect.isgeneratorfunction, Generator),
    ("an asynchronous generator", inspect.isasyncgenfunction, AsyncGenerator),
]


@functools.lru_cache(64)  # called for each message whose handler returns a value: takes 0.05 us instead of 0.7 us
def _not_run_kind(result: type) -> str | None:
    return next((kind for kind, _, made in _NOT_RUN if issubclass(result, made)), None)


def check_ran(function: object, result: object) -> None:
    """Check that a call has run the code of a function. If the result is a coroutine or a generator, no code has run.

    Raises:
        TypeError: If the result is a coroutine, a generator (these are closed) or an async generator.
    """
    returned: Any = type(result)  # Any: for mypy, a type has the __hash__ of its instances, which may be None
    kind = _not_run_kind(returned)
    if kind is not None:
        close = getattr(result, "close", None)  # an async generator has no close()
        if close is not None:
            close()
        raise TypeError(f"{handler_name(function)} returned {kind}, of which nothing is run; {_ADVICE}")


def check_runs(function: Callable[..., object], what: str) -> None:
    """Check that a call of a function runs the code of the function. A coroutine function, for example, is refused.

    Args:
        what: Name of the argument, for the error text.

    Raises:
        TypeError: If the function is a coroutine function, an (async) generator function, a partial of one
            of these, or an object whose ``__call__`` is one of these.
    """
    called: Any = function  # Any: anything that can be called
    while isinstance(called, functools.partial):
        called = called.func
    for kind, is_one, _ in _NOT_RUN:
        if is_one(called) or is_one(type(called).__call__):
            raise TypeError(
                f"{what} {handler_name(function)} is {kind} function: a call runs nothing of it, and messages "
                f"would be lost; {_ADVICE}"
            )


def check_handler(handler: object, what: str) -> None:
    """Check that a function can be called as a Handler. Accepts functions whose signature Python can't determine.

    Args:
        what: Name of the argument, for the error text.

    Raises:
        TypeError: If the function can't be called as handler(consumer, message=message), or check_runs() refuses it.
    """
    if not callable(handler):
        raise TypeError(f"{what} must be callable, not {handler!r}")
    check_runs(handler, what)
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some functions that are written in C have no signature
        return
    try:
        signature.bind(None, message=None)
    except TypeError as error:
        hint = "define it as def handler(consumer, message)"
        if hasattr(handler, "__wrapped__"):
            hint += "; this is the signature of the function that it wraps: delete __wrapped__ if that is wrong"
        raise TypeError(
            f"{what} {handler_name(handler)}{signature} can't be called as handler(consumer, message=message): "
            f"{error}; {hint}"
        ) from None


def handler_name(handler: object) -> str:
    """Return the qualified name of a function, or the name of the class if the handler is another callable object."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return str(getattr(handler, "__qualname__", None) or type(handler).__qualname__)


class HandlerSignal(Signal):
    """Signal whose receivers are handlers. connect() raises TypeError for functions that check_handler() refuses."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        # Names of the weakly connected receivers, those that were garbage collected included.
        self._weak: dict[str, None] = {}
        # Number of the changes, and the receivers after one of them. Another thread may connect while they are read.
        self._changes = 0
        self._known: tuple[int, tuple[Handler, ...]] = (-1, ())

    def connect(
        self,
        receiver: _HandlerT,
        sender: Any = ANY,  # Any: as in blinker's signature
        weak: bool = True,
    ) -> _HandlerT:
        """Check a receiver by check_handler(), and connect it as blinker does, weakly by default. Also a decorator."""
        check_handler(receiver, f"receiver of {self._name}")
        super().connect(receiver, sender, weak)
        self._changes += 1
        if weak:
            self._weak[handler_name(receiver)] = None
        return receiver

    def disconnect(self, receiver: Callable[..., Any], sender: Any = ANY) -> None:  # Any: as in blinker's signature
        """Disconnect a receiver, as blinker does."""
        super().disconnect(receiver, sender)
        self._changes += 1
        self._weak.pop(handler_name(receiver), None)

    def handlers_for(self, sender: object) -> tuple[Handler, ...]:
        """Return the receivers for the consumer whose signal this is. They stay alive until the next change: blinker's
        search costs 1.5 us for each read of messages, most of it for weak references."""
        changes = self._changes
        if self._known[0] != changes:
            self._known = (changes, tuple(self.receivers_for(sender)))
        return self._known[1]

    def collected_hint(self) -> str:
        """Return a text for the end of a log line if no receiver is left because the last one was garbage collected;
        otherwise an empty text."""
        if not self._weak or self.receivers:
            return ""
        last = next(reversed(self._weak))
        return (
            f"; {last}, connected to {self._name}, was garbage collected: signals hold receivers weakly; "
            "a lambda needs weak=False, as does every receiver without another reference"
        )
