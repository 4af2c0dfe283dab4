"""Types of signals and their receivers, and notify(), which sends a signal.

A receiver is called as receiver(sender, **arguments). notify() ignores its result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from blinker import ANY, Signal

from gnsq.concurrency.greenlets import check_is_failure

if TYPE_CHECKING:
    from gnsq.errors import NSQErrorCode
    from gnsq.logs import ClientLog
    from gnsq.message import Message

__all__ = [
    "AuthReceiver",
    "BackoffReceiver",
    "ClientSignals",
    "CloseReceiver",
    "ConsumerSignals",
    "ErrorReceiver",
    "ExceptionReceiver",
    "FinishReceiver",
    "MessageReceiver",
    "RequeueReceiver",
    "ResponseReceiver",
    "TcpAuthReceiver",
    "TcpRequeueReceiver",
    "TypedSignal",
    "call_override",
    "notify",
]

logger = logging.getLogger(__name__)

ReceiverT = TypeVar("ReceiverT", bound=Callable[..., object])


class TypedSignal(Signal, Generic[ReceiverT]):
    """A blinker signal whose receivers have a type."""

    if TYPE_CHECKING:

        def connect(  # type: ignore[override]  # blinker's connect() takes every function
            self,
            receiver: ReceiverT,
            sender: Any = ANY,  # Any: as in blinker's signature
            weak: bool = True,
        ) -> ReceiverT: ...


# The sender is Any in these types, so that a receiver may declare a subclass of Consumer, for example, as its sender.


class MessageReceiver(Protocol):
    """Receives on_message of an NsqdTCPClient. Receivers of a Consumer's on_message have the type Handler instead."""

    def __call__(self, sender: Any, /, *, message: Message) -> object: ...


class ResponseReceiver(Protocol):
    """Receives on_response: a response frame of nsqd."""

    def __call__(self, sender: Any, /, *, response: bytes) -> object: ...


class ErrorReceiver(Protocol):
    """Receives on_error: an error frame of nsqd."""

    def __call__(self, sender: Any, /, *, error: NSQErrorCode) -> object: ...


class FinishReceiver(Protocol):
    """Receives on_finish: FIN was sent."""

    def __call__(self, sender: Any, /, *, message_id: bytes) -> object: ...


class RequeueReceiver(Protocol):
    """Receives on_requeue of a Consumer: REQ was sent. timeout is the delay of the REQ in milliseconds."""

    def __call__(self, sender: Any, /, *, message_id: bytes, timeout: int) -> object: ...


class TcpRequeueReceiver(Protocol):
    """Receives on_requeue of an NsqdTCPClient: REQ was sent. timeout is the delay of the REQ in milliseconds."""

    def __call__(self, sender: Any, /, *, message_id: bytes, timeout: int, backoff: bool) -> object: ...


class AuthReceiver(Protocol):
    """Receives on_auth of a Consumer or Producer: nsqd's response to AUTH. conn has the ``address`` of the nsqd."""

    def __call__(self, sender: Any, /, *, conn: Any, response: dict[str, object]) -> object: ...


class TcpAuthReceiver(Protocol):
    """Receives on_auth of an NsqdTCPClient: nsqd's response to AUTH."""

    def __call__(self, sender: Any, /, *, response: dict[str, object]) -> object: ...


class ExceptionReceiver(Protocol):
    """Receives on_exception: a handler raised an exception other than NSQRequeueMessage and NSQGiveUp."""

    def __call__(self, sender: Any, /, *, message: Message, error: BaseException) -> object: ...


class BackoffReceiver(Protocol):
    """Receives on_backoff: phase is "start", "continue" or "end"; duration is the length of the pause in seconds."""

    def __call__(self, sender: Any, /, *, phase: str, failures: int, duration: float) -> object: ...


class CloseReceiver(Protocol):
    """Receives on_close. This signal is sent once."""

    def __call__(self, sender: Any, /) -> object: ...


# --- the signals, each with the text of the reference. The signals for handlers are in the constructor of Consumer.


class ClientSignals:
    """The signals of a Consumer and a Producer."""

    def __init__(self) -> None:
        self.on_response: TypedSignal[ResponseReceiver] = TypedSignal()
        """nsqd sent a response frame."""
        self.on_error: TypedSignal[ErrorReceiver] = TypedSignal()
        """nsqd sent an error frame."""
        self.on_auth: TypedSignal[AuthReceiver] = TypedSignal()
        """nsqd has accepted the AUTH of a connection. ``conn`` has the ``address`` of the nsqd."""
        self.on_close: TypedSignal[CloseReceiver] = TypedSignal()
        """The sender has closed. Sent once."""


class ConsumerSignals(ClientSignals):
    """Further signals of a Consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.on_finish: TypedSignal[FinishReceiver] = TypedSignal()
        """FIN was sent."""
        self.on_requeue: TypedSignal[RequeueReceiver] = TypedSignal()
        """REQ was sent. ``timeout`` is its delay in milliseconds."""
        self.on_exception: TypedSignal[ExceptionReceiver] = TypedSignal()
        """A handler raised an exception other than NSQRequeueMessage and NSQGiveUp, or a dead letter could not be
        published."""
        self.on_backoff: TypedSignal[BackoffReceiver] = TypedSignal()
        """A pause after failures starts (``phase`` is "start"), continues ("continue") or ends ("end").
        ``duration`` is in seconds."""


def notify(signal: Signal, sender: object, **keywords: Any) -> None:  # Any: each signal has its own keywords
    """Send a signal. If a receiver fails, log its exception, and call no further receiver."""
    if not signal.receivers:
        return
    try:
        signal.send(sender, **keywords)
    except BaseException as error:
        check_is_failure(error)
        logger.exception("a receiver of a signal of %r raised", sender)


def call_override(log: ClientLog, function: Callable[..., object], *arguments: object) -> None:
    """Call a method of a client that a subclass may have overridden. Log its exceptions instead of raising them."""
    try:
        function(*arguments)
    except BaseException as error:  # a subclass may raise anything
        check_is_failure(error)
        log.exception("%s of a subclass raised", getattr(function, "__name__", function))
