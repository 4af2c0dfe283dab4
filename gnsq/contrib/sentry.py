"""SentryExceptionHandler: what handlers raise is reported to Sentry."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsq.consumer import Consumer
    from gnsq.message import Message

__all__ = ["SentryExceptionHandler"]


class SentryExceptionHandler:
    """Report what a handler raised; for a Consumer's ``on_exception``.

        consumer.on_exception.connect(SentryExceptionHandler(), weak=False)

    Message bodies are reported, too, unless ``message_extra()`` is overridden.

    Args:
        client: None: sentry_sdk, imported with the first report; ``sentry_sdk.init()`` is the program's to call. Or
            an object with a method ``captureException(extra=...)``, which is called while the exception is handled,
            such as raven's Client.

    Raises:
        ImportError: If there is no client, and sentry_sdk is not installed.
    """

    def __init__(self, client: Any = None) -> None:  # Any: it is asked for one method
        if client is None and find_spec("sentry_sdk") is None:
            raise ImportError("sentry_sdk is not installed; it comes with: pip install gnsq[sentry]")
        self.client = client

    def message_extra(self, message: Message) -> dict[str, object]:
        """Say what is to be reported of a message; may be overridden."""
        return {
            "id": message.id,
            "timestamp": message.timestamp,
            "attempts": message.attempts,
            "body": message.body,
        }

    def __call__(self, consumer: Consumer, message: Message, error: BaseException) -> None:
        """Report an error with its message."""
        extra = {"message": self.message_extra(message)}
        if self.client is not None:
            self.client.captureException(extra=extra)
        else:
            import_module("sentry_sdk").capture_exception(error, extras=extra)
