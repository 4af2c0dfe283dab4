"""SentryExceptionHandler: reports exceptions of handlers to Sentry."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsq.consumer import Consumer
    from gnsq.message import Message

__all__ = ["SentryExceptionHandler"]


class SentryExceptionHandler:
    """Report exceptions of handlers; for a Consumer's ``on_exception``.

        consumer.on_exception.connect(SentryExceptionHandler(), weak=False)

    Reports contain the message body, unless ``message_extra()`` is overridden.

    Args:
        client: None: use sentry_sdk, which is imported at the first report; the program must call
            ``sentry_sdk.init()``. Or an object with a method ``captureException(extra=...)``, such as raven's Client.
            The method is called while the exception is the current one (sys.exc_info()).

    Raises:
        ImportError: If client is None and sentry_sdk is not installed.
    """

    def __init__(self, client: Any = None) -> None:  # Any: any object with captureException()
        if client is None and find_spec("sentry_sdk") is None:
            raise ImportError("sentry_sdk is not installed; it comes with: pip install gnsq[sentry]")
        self.client = client

    def message_extra(self, message: Message) -> dict[str, object]:
        """Return the data of a message for the report; may be overridden."""
        return {
            "id": message.id,
            "timestamp": message.timestamp,
            "attempts": message.attempts,
            "body": message.body,
        }

    def __call__(self, consumer: Consumer, message: Message, error: BaseException) -> None:
        """Report an exception with its message."""
        extra = {"message": self.message_extra(message)}
        if self.client is not None:
            self.client.captureException(extra=extra)
        else:
            import_module("sentry_sdk").capture_exception(error, extras=extra)
