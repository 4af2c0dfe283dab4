"""traced() and TracedProducer: OpenTelemetry's spans of handled messages and of publishes. Needs the API package alone.

Attributes are those of the semantic conventions for messaging (1.28 and later), with ``messaging.nsq.message.attempts``
for what they have no name for.

NSQ's messages have no headers. Unless both sides are told ``envelope=True``, no trace comes with a message, and the
span of its handling is the first of a trace, if the handler is not called within another. With it, a body is published
in an envelope (gnsq.contrib.envelope) with what the global propagators say of the trace: traceparent, tracestate,
baggage. ``traced(handler, envelope=True)`` opens it again, and takes bodies without one, too; so begin with the
consumers. Any other handler that reads such a topic, a BatchHandler's or a give-up handler's, has to open it:

    body, headers = gnsq.contrib.envelope.unwrap(message.body)
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, cast, overload
from weakref import WeakKeyDictionary

import gevent

from gnsq.addresses import parse_address
from gnsq.concurrency.threads import CrossThreadFuture, get_hub_if_exists, get_ident
from gnsq.consumer.handlers import check_handler
from gnsq.contrib.envelope import unwrap, wrap
from gnsq.errors import NSQRequeueMessage
from gnsq.logs import RateLimitedLogger
from gnsq.options import VERSION
from gnsq.producer.result import PublishResult

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError("opentelemetry-api is not installed; it comes with: pip install gnsq[opentelemetry]") from error

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from gnsq.consumer import Consumer, Handler
    from gnsq.message import Message
    from gnsq.producer import Chunk, Producer, Unconfirmed

__all__ = ["TracedProducer", "traced"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")

SCHEMA_URL = "https://opentelemetry.io/schemas/1.28.0"

# Seconds that close() leaves to spans whose publishes have ended.
SPANS_TIMEOUT = 5.0

# The headers of messages whose body has been taken out of its envelope: handlers may see a message more than once.
_opened: WeakKeyDictionary[Message, dict[str, str]] = WeakKeyDictionary()


@overload
def traced(
    handler: Callable[Concatenate[Consumer, P], None],
    *,
    envelope: bool = False,
    tracer_provider: trace.TracerProvider | None = None,
) -> Callable[Concatenate[Consumer, P], None]: ...


@overload  # mypy takes no lambda for the other one
def traced(
    handler: Handler, *, envelope: bool = False, tracer_provider: trace.TracerProvider | None = None
) -> Handler: ...


def traced(
    handler: Callable[..., None], *, envelope: bool = False, tracer_provider: trace.TracerProvider | None = None
) -> Callable[..., None]:
    """Wrap a handler so that each call is a span of kind CONSUMER, ``process TOPIC``.

        consumer = Consumer("clicks", "archive", address, message_handler=traced(handle))

    What the handler raises is recorded, and makes the span's status an error; but an NSQRequeueMessage, which is the
    handler's own decision, is an event. A handler that answers later has a span up to its return. Without an SDK the
    handler is just called.

    Args:
        handler: Called as handler(consumer, message=message).
        envelope: Take bodies out of their envelopes, with an SDK and without: ``message.body`` is what was given to
            publish(), for this handler and for those called after it. The sender's span is the parent of the
            handling's, in the same trace, and linked to as the conventions want it; its baggage is there in the
            handler. A message that comes without an envelope is handled as if this were off.
        tracer_provider: Default: the global one, whenever it is set.

    Raises:
        TypeError: If it could not handle a message, as for a Consumer.
    """
    check_handler(handler, "traced handler")
    handle: Callable[..., object] = handler  # what it returns is the consumer's to look at
    tracer = trace.get_tracer("gnsq", VERSION, tracer_provider, SCHEMA_URL)

    @functools.wraps(handler)
    def traced_handler(consumer: Consumer, message: Message) -> object:
        headers = _open(message) if envelope else None
        if not _is_on(tracer_provider):
            # Nobody looks, so nothing is put together: 0.8 us a message, and not 4.8.
            return handle(consumer, message=message)
        with (
            _sent_with(headers) if headers else contextlib.nullcontext(()) as links,
            tracer.start_as_current_span(
                f"process {consumer.topic}",
                kind=SpanKind.CONSUMER,
                attributes=_attributes(consumer, message),
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
        ):
            try:
                return handle(consumer, message=message)
            except NSQRequeueMessage:
                span.add_event("messaging.nsq.requeue")
                raise
            except (Exception, gevent.Timeout) as error:
                _record(span, error)
                raise

    return cast("Callable[..., None]", traced_handler)  # called as the handler is, which wraps() can't say


class TracedProducer:
    """A Producer each of whose publishes is a span of kind PRODUCER, ``send TOPIC``.

        with TracedProducer(Producer(address)) as producer:
            producer.publish("clicks", b"{}")

    It is used as the Producer is, which has all the rest: what is not here is asked of it. A span lasts until nsqd has
    confirmed the publish or it has failed, also where the call itself returns before. Several messages published by one
    call are one span. What a publish raises is recorded, makes the span's status an error, and goes on; so is the error
    of the first chunk that failed, where publish_many() does not raise it. Without an SDK the Producer is just called.

    Args:
        producer: Started and closed through this, or by itself.
        envelope: Publish bodies in envelopes that carry the trace context; see the module on who must open them. One
            adds 80 bytes where there is only a traceparent, which count for max_msg_size. A body that is in an
            envelope already (one that is forwarded, or that close() gave back) is published as it is, with the context
            that it has. There are no envelopes without an SDK, nor around headers that are too large for one (a warning
            says so).
        tracer_provider: Default: the global one, whenever it is set.
    """

    def __init__(
        self, producer: Producer, *, envelope: bool = False, tracer_provider: trace.TracerProvider | None = None
    ) -> None:
        self.producer = producer
        self._envelope = envelope
        self._tracer_provider = tracer_provider
        self._tracer = trace.get_tracer("gnsq", VERSION, tracer_provider, SCHEMA_URL)
        self._endings = _Endings()
        self._rate_limited = RateLimitedLogger(logger, time.monotonic)

    def __getattr__(self, name: str) -> Any:  # Any: the producer's own
        return getattr(self.producer, name)

    def __enter__(self) -> Self:
        self.producer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self, timeout: float | None = None) -> list[Unconfirmed]:
        """Close the producer as its close() does, then wait for the spans of what it has answered, up to 5 s."""
        try:
            return self.producer.close(timeout)
        finally:
            # In the hub itself nothing can wait; a greenlet closes the producer then.
            if gevent.getcurrent() is not get_hub_if_exists():
                self._endings.wait(SPANS_TIMEOUT)

    # Any in these: arguments are the producer's own.

    @overload
    def publish(
        self, topic: str, data: bytes, *arguments: Any, raise_error: Literal[True] = True, **options: Any
    ) -> bytes: ...

    @overload
    def publish(
        self, topic: str, data: bytes, *arguments: Any, raise_error: Literal[False], **options: Any
    ) -> PublishResult: ...

    def publish(self, topic: str, data: bytes, *arguments: Any, **options: Any) -> bytes | PublishResult:
        """Publish a message, as Producer.publish()."""
        result: bytes | PublishResult = self._send_one(self.producer.publish, topic, data, arguments, options)
        return result

    def publish_async(self, topic: str, data: bytes, *arguments: Any, **options: Any) -> PublishResult:
        """Publish a message without waiting, as Producer.publish_async()."""
        result: PublishResult = self._send_one(self.producer.publish_async, topic, data, arguments, options)
        return result

    @overload
    def multipublish(
        self, topic: str, messages: Iterable[bytes], *arguments: Any, raise_error: Literal[True] = True, **options: Any
    ) -> bytes: ...

    @overload
    def multipublish(
        self, topic: str, messages: Iterable[bytes], *arguments: Any, raise_error: Literal[False], **options: Any
    ) -> PublishResult: ...

    def multipublish(
        self, topic: str, messages: Iterable[bytes], *arguments: Any, **options: Any
    ) -> bytes | PublishResult:
        """Publish messages, all or none, as Producer.multipublish()."""
        result: bytes | PublishResult = self._send_many(self.producer.multipublish, topic, messages, arguments, options)
        return result

    def publish_many(self, topic: str, messages: Iterable[bytes], *arguments: Any, **options: Any) -> list[Chunk]:
        """Publish any number of messages, as Producer.publish_many(); they are asked for one by one."""
        chunks: list[Chunk] = self._send_many(self.producer.publish_many, topic, messages, arguments, options)
        return chunks

    def _send_one(
        self, call: Callable[..., Any], topic: str, data: bytes, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if not _is_on(self._tracer_provider):
            return call(topic, data, *arguments, **options)

        def send(prefix: bytes) -> Any:
            return call(topic, _enveloped(prefix, data), *arguments, **options)

        # What is no bytes is the producer's to refuse.
        return self._send(topic, {"messaging.message.body.size": len(data)} if isinstance(data, bytes) else {}, send)

    def _send_many(
        self,
        call: Callable[..., Any],
        topic: str,
        messages: Iterable[bytes],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        if not _is_on(self._tracer_provider):
            return call(topic, messages, *arguments, **options)

        def send(prefix: bytes) -> Any:
            if isinstance(messages, (bytes, bytearray, str)):
                return call(topic, messages, *arguments, **options)  # the producer's to refuse
            bodies = _Bodies(messages, prefix)
            try:
                return call(topic, bodies, *arguments, **options)
            finally:
                trace.get_current_span().set_attribute("messaging.batch.message_count", bodies.taken)

        return self._send(topic, {}, send)

    def _send(self, topic: str, attributes: dict[str, AttributeValue], send: Callable[[bytes], Any]) -> Any:
        """Call send() with what goes before each body, within a span."""
        span = self._tracer.start_span(
            f"send {topic}",
            kind=SpanKind.PRODUCER,
            attributes={
                "messaging.system": "nsq",
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": topic,
                **attributes,
            },
        )
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                result = send(self._prefix() if self._envelope else b"")
        except BaseException as error:
            _end(span, error)
            raise
        if isinstance(result, PublishResult):
            self._endings.add(span, result)
        else:
            _end(span, _first_error(result))
        return result

    def _prefix(self) -> bytes:
        """Build the envelope of the current context, up to the body; empty: there is none."""
        headers: dict[str, str] = {}
        propagate.inject(headers)
        try:
            return wrap(b"", headers) if headers else b""
        except ValueError as error:
            # A message must not be lost for what is known of its trace.
            self._rate_limited.log(logging.WARNING, "headers", "published without trace context: %s", error)
            return b""


class _Bodies:
    """Bodies on their way to a producer, each put into an envelope when it is asked for; says how many were."""

    def __init__(self, bodies: Iterable[bytes], prefix: bytes) -> None:
        self._bodies = bodies
        self._prefix = prefix
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        for body in self._bodies:
            self.taken += 1
            yield _enveloped(self._prefix, body)


class _Endings:
    """Ends the spans of publishes whose results come later, in whatever thread.

    What exports a span may wait, which a callback of the producer's hub must not. So a greenlet does it, one for all
    results that come together: 1 us a publish; with one for each it would be 12.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._open: set[trace.Span] = set()
        # Spans whose results are there: with the error, and the nanoseconds of Unix time.
        self._due: deque[tuple[trace.Span, BaseException | None, int]] = deque()
        self._ender: gevent.Greenlet | None = None
        self._none_open: CrossThreadFuture[None] | None = None

    def add(self, span: trace.Span, result: PublishResult) -> None:
        """End a span when a result is there."""
        if self._process != os.getpid():
            # Those of the process that was forked are its own to end.
            self._begin()
        self._open.add(span)
        thread = get_ident()
        is_adding = True

        def note(result: PublishResult) -> None:
            if is_adding and get_ident() == thread:
                # It was there before: this is the caller, who may wait.
                self._end(span, result.exception, time.time_ns())
            else:
                self._note(span, result.exception)

        result.add_done_callback(note)
        is_adding = False

    def wait(self, timeout: float) -> None:
        """Wait until all have ended, or the timeout (seconds) does."""
        if self._process == os.getpid():
            # In this order, while _end() goes the other way: one of the two sees the other.
            none_open = self._none_open = CrossThreadFuture()
            # Here, because a thread of the producer's own is gone by now.
            self._end_due()
            if self._open:
                none_open.wait(timeout)

    def _note(self, span: trace.Span, error: BaseException | None) -> None:
        """Take note, in the producer's hub, that a result is there."""
        if self._process == os.getpid() and span in self._open:
            self._due.append((span, error, time.time_ns()))
            if self._ender is None:
                self._ender = gevent.spawn(self._run)
                self._ender.name = "gnsq-spans"

    def _run(self) -> None:
        try:
            self._end_due()
        finally:
            self._ender = None

    def _end_due(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._end(*self._due.popleft())

    def _end(self, span: trace.Span, error: BaseException | None, end_time: int) -> None:
        try:
            _end(span, error, end_time)
        except Exception:  # a processor of the program's own may raise anything
            logger.exception("the span of a publish could not be ended")
        finally:
            self._open.discard(span)
            if not self._open and self._none_open is not None:
                self._none_open.set_result(None)


def _enveloped(prefix: bytes, body: bytes) -> bytes:
    """Put the prefix before a body; but before none that the producer refuses, or that is in an envelope already."""
    if not prefix or not isinstance(body, bytes) or not body or unwrap(body)[0] is not body:
        return body
    return prefix + body


def _open(message: Message) -> dict[str, str]:
    """Take a message's body out of its envelope, if it is in one, and give the headers; once or many times."""
    headers = _opened.get(message)
    if headers is None:
        body, headers = unwrap(message.body)
        if body is not message.body:
            message.body = body
            _opened[message] = headers
    return headers


@contextlib.contextmanager
def _sent_with(headers: dict[str, str]) -> Iterator[Sequence[trace.Link]]:
    """Make the sender's context the current one, as far as the headers have it; gives the link to its span."""
    context = propagate.extract(headers, contexts.get_current())
    sender = trace.get_current_span(context).get_span_context()
    token = contexts.attach(context)
    try:
        # One that is not remote is around this call, and none of the headers'.
        yield [trace.Link(sender)] if sender.is_remote else ()
    finally:
        contexts.detach(token)


def _is_on(tracer_provider: trace.TracerProvider | None) -> bool:
    """Whether spans are of use to anybody."""
    used = trace.get_tracer_provider() if tracer_provider is None else tracer_provider
    return not isinstance(used, (ProxyTracerProvider, NoOpTracerProvider))


def _first_error(result: object) -> BaseException | None:
    """Why the first chunk of a publish_many() failed, if one did; other results are no failures."""
    return (
        next((chunk.error for chunk in result if chunk.error is not None), None) if isinstance(result, list) else None
    )


def _end(span: trace.Span, error: BaseException | None, end_time: int | None = None) -> None:
    # Who is killed has not failed.
    if isinstance(error, (Exception, gevent.Timeout)):
        _record(span, error)
    span.end(end_time)


def _record(span: trace.Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))


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
