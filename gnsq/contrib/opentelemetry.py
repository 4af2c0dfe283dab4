"""traced(): a span of OpenTelemetry for each message that a handler handles. Needs the API package alone.

Attributes are those of the semantic conventions for messaging (1.28 and later), with ``messaging.nsq.message.attempts``
for what they have no name for. NSQ's messages have no headers, so no trace comes with them: each span is the first of
its trace, unless the handler is called within another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import gevent

from gnsq.addresses import parse_address
from gnsq.errors import NSQRequeueMessage
from gnsq.options import VERSION

try:
    from opentelemetry import trace
    from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError("opentelemetry-api is not installed; it comes with: pip install gnsq[opentelemetry]") from error

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from gnsq.consumer import Consumer
    from gnsq.message import Message

__all__ = ["traced"]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.28.0"


def traced(
    handler: Callable[..., object], *, tracer_provider: trace.TracerProvider | None = None
) -> Callable[..., object]:
    """Wrap a handler so that each call is a span of kind CONSUMER, ``process TOPIC``.

        consumer = Consumer("clicks", "archive", address, message_handler=traced(handle))

    What the handler raises is recorded, and makes the span's status an error; but an NSQRequeueMessage, which is the
    handler's own decision, is an event. A handler that answers later has a span up to its return. Without an SDK the
    handler is just called.

    Args:
        handler: Called as handler(consumer, message=message).
        tracer_provider: Default: the global one, whenever it is set.
    """
    tracer = trace.get_tracer("gnsq", VERSION, tracer_provider, SCHEMA_URL)

    @functools.wraps(handler)
    def traced_handler(consumer: Consumer, message: Message) -> object:
        used = trace.get_tracer_provider() if tracer_provider is None else tracer_provider
        if isinstance(used, (ProxyTracerProvider, NoOpTracerProvider)):
            # Nobody looks, so nothing is put together: 0.8 us a message, and not 4.8.
            return handler(consumer, message=message)
        with tracer.start_as_current_span(
            f"process {consumer.topic}",
            kind=SpanKind.CONSUMER,
            attributes=_attributes(consumer, message),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                return handler(consumer, message=message)
            except NSQRequeueMessage:
                span.add_event("messaging.nsq.requeue")
                raise
            except (Exception, gevent.Timeout) as error:
                span.record_exception(error)
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
                raise

    return traced_handler


def _attributes(consumer: Consumer, message: Message) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "nsq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": consumer.topic,
        "messaging.destination.subscription.name": consumer.channel,
        "messaging.message.id": message.id.decode("ascii", "backslashreplace"),
        "messaging.message.body.size": len(message.body),
        "messaging.nsq.message.attempts": message.attempts,
    }
    if message.nsqd is not None:
        host, port = parse_address(message.nsqd)
        attributes["server.address"] = host
        if port:
            attributes["server.port"] = port
    return attributes
