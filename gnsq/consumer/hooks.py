"""Hooks: a consumer's signals, what subclasses may override, and what can be a handler.

Tells others; decides nothing but which handlers are refused.
"""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from blinker import ANY, Signal

from gnsq.errors import NSQErrorCode
from gnsq.message import Message
from gnsq.nsqd.connection import Connection
from gnsq.pool import ConnectionPool
from gnsq.repeats import Owner
from gnsq.signals import (
    AuthReceiver,
    BackoffReceiver,
    CloseReceiver,
    ErrorReceiver,
    ExceptionReceiver,
    FinishReceiver,
    RequeueReceiver,
    ResponseReceiver,
    TypedSignal,
    notify,
)

if TYPE_CHECKING:
    from gnsq.consumer.consumer import Consumer
    from gnsq.consumer.handling import Handling

__all__ = ["Handler", "HandlerSignal", "Hooks", "check_handler", "check_ran", "check_runs", "handler_name"]


class Handler(Protocol):
    """Handles a message: message_handler, and what is connected to on_message and on_giving_up.

    Returns: the message is finished, whatever is returned. Raises: it is requeued.
    """

    def __call__(self, consumer: Consumer, /, *, message: Message) -> None:
        """Handle a message."""


HandlerT = TypeVar("HandlerT", bound=Handler)

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
        receiver: HandlerT,
        sender: Any = ANY,  # Any: blinker's signature
        weak: bool = True,
    ) -> HandlerT:
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


class Hooks:
    """Base of Consumer. What an override raises is logged, and changes nothing."""

    logger: logging.Logger
    _pool: ConnectionPool
    _handling: Handling
    log_owner: Owner

    def __init__(self) -> None:
        self.on_message = HandlerSignal("on_message")
        self.on_response: TypedSignal[ResponseReceiver] = TypedSignal()
        self.on_error: TypedSignal[ErrorReceiver] = TypedSignal()
        self.on_finish: TypedSignal[FinishReceiver] = TypedSignal()
        self.on_requeue: TypedSignal[RequeueReceiver] = TypedSignal()
        self.on_giving_up = HandlerSignal("on_giving_up")
        self.on_auth: TypedSignal[AuthReceiver] = TypedSignal()
        self.on_exception: TypedSignal[ExceptionReceiver] = TypedSignal()
        self.on_close: TypedSignal[CloseReceiver] = TypedSignal()
        self.on_backoff: TypedSignal[BackoffReceiver] = TypedSignal()
        for name in ("handle_message", "handle_messages"):
            if self._overridden(name):
                check_runs(getattr(type(self), name), "override")

    def handle_message(self, conn: Connection | None, message: Message) -> None:
        """Call the handlers of on_message, and answer by how they end. Runs in a worker; conn is None if it is gone."""
        self._handling.handle(message)

    def handle_messages(self, messages: list[Message]) -> None:
        """Handle all that has come with one call, in place of handle_message() for each; for subclasses to override:
        without one it is not called, and with one handlers of on_message only by super(). Runs in a worker.

        What an override leaves unanswered is taken for asynchronous, and to be answered later. What it raises is what
        a handler raises: one failure, for which all is requeued that it has not answered; on_exception is sent with the
        first. Messages above max_tries are not among those it gets; handler_timeout is for the whole call.
        """
        for message in messages:
            self._handle_one(message)

    def _handle_one(self, message: Message) -> object:
        handle: Callable[..., object] = self.handle_message  # an override may return anything
        return handle(self._pool.connections.get(message.nsqd or ""), message)

    def _overridden(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(Hooks, name)

    def handle_response(self, conn: Connection, response: bytes) -> None:
        """Send on_response."""
        notify(self.on_response, self, response=response)

    def handle_error(self, conn: Connection, error: NSQErrorCode) -> None:
        """Send on_error."""
        notify(self.on_error, self, error=error)

    def handle_auth(self, conn: Connection, response: dict[str, object]) -> None:
        """Send on_auth."""
        notify(self.on_auth, self, conn=conn, response=response)

    def handle_finish(self, conn: Connection, message_id: bytes) -> None:
        """Send on_finish."""
        notify(self.on_finish, self, message_id=message_id)

    def handle_requeue(self, conn: Connection, message_id: bytes, timeout: int, backoff: bool) -> None:
        """Send on_requeue."""
        notify(self.on_requeue, self, message_id=message_id, timeout=timeout)

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        """Call what a subclass may have overridden; nothing of ours may depend on it."""
        try:
            function(*arguments)
        except Exception:  # a subclass may raise anything
            self.logger.exception(
                "%s: %s of a subclass raised", self.log_owner.label, getattr(function, "__name__", function)
            )
