"""traced() and TracedProducer: OpenTelemetry spans of handled messages and publishes. Needs only opentelemetry-api.

Attributes follow the semantic conventions for messaging (1.28 and later). ``messaging.nsq.message.attempts`` is added.

NSQ's messages have no headers. So by default no trace comes with a message, and the span of its handling starts a new
trace, unless the handler runs within another span. With ``envelope=True``, TracedProducer puts each body into an
envelope (gnsq.contrib.envelope) with the headers of the global propagators: traceparent, tracestate, baggage.
``traced(handler, envelope=True)`` removes the envelope. It also accepts bodies without an envelope, so change the
consumers before the producers. Other handlers of such a topic, for example a BatchHandler or a give-up handler, must
remove the envelope themselves:

    body, headers = gnsq.contrib.envelope.unwrap(message.body)
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, cast, overload
from weakref import WeakKeyDictionary

import gevent

from gnsq.addresses import parse_address
from gnsq.concurrency.forks import register_after_fork
from gnsq.concurrency.greenlets import spawn
from gnsq.concurrency.threads import CrossThreadFuture, is_hub_greenlet
from gnsq.consumer.handlers import check_handler
from gnsq.contrib.envelope import unwrap, wrap
from gnsq.errors import NSQRequeueMessage
from gnsq.logs import LogOwner
from gnsq.options import VERSION, Seconds
from gnsq.producer.result import PublishResult
from gnsq.texts import id_text

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
    from gnsq.producer import Producer, Unconfirmed

    # For type checkers a TracedProducer is a Producer, since it has the same methods.
    _Producer = Producer
else:
    _Producer = object

__all__ = ["TracedProducer", "traced"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")

SCHEMA_URL = "https://opentelemetry.io/schemas/1.28.0"

# Seconds that close() waits for the end of spans.
SPANS_TIMEOUT = 5.0

# Headers of messages whose envelope was removed. Needed because several traced handlers may get the same message.
_removed_headers: WeakKeyDictionary[Message, dict[str, str]] = WeakKeyDictionary()


@overload
def traced(
    handler: Callable[Concatenate[Consumer, P], None],
    *,
    envelope: bool = False,
    tracer_provider: trace.TracerProvider | None = None,
) -> Callable[Concatenate[Consumer, P], None]: ...


@overload  # for lambdas: mypy does not accept them for the other overload
def traced(
    handler: Handler, *, envelope: bool = False, tracer_provider: trace.TracerProvider | None = None
) -> Handler: ...


def traced(
    handler: Callable[..., None], *, envelope: bool = False, tracer_provider: trace.TracerProvider | None = None
) -> Callable[..., None]:
    """Wrap a handler so that each call is recorded as a span of kind CONSUMER with the name ``process TOPIC``.

        consumer = Consumer("clicks", "archive", address, message_handler=traced(handle))

    An exception of the handler is recorded and sets the span's status to an error. An NSQRequeueMessage is recorded as
    an event instead. The span ends when the handler returns, even if the message is finished or requeued later. If no
    OpenTelemetry SDK is set up, there is no span.

    Args:
        handler: Called as handler(consumer, message=message).
        envelope: Remove the envelope, even without an SDK: ``message.body`` is the published body for this handler and
            the handlers after it. The sender's span is the parent of the handler's span, and is also linked to it, as
            the conventions require. The handler has the sender's baggage. Bodies without an envelope stay unchanged.
        tracer_provider: Default: the global one, even if it is set later.

    Raises:
        TypeError: If the handler can't be a message_handler of a Consumer.
    """
    check_handler(handler, "traced handler")
    handle: Callable[..., object] = handler  # the consumer checks its result
    tracer = trace.get_tracer("gnsq", VERSION, tracer_provider, SCHEMA_URL)

    @functools.wraps(handler)
    def traced_handler(consumer: Consumer, message: Message) -> object:
        headers = _remove_envelope(message) if envelope else None
        if not _is_recording(tracer_provider):
            # Without an SDK, build no attributes: a message takes 0.8 us instead of 4.8 us.
            return handle(consumer, message=message)
        with (
            _sender_context(headers) if headers else contextlib.nullcontext(()) as links,
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

    return cast("Callable[..., None]", traced_handler)  # the type that wraps() returns is less exact


class TracedProducer(_Producer):
    """A Producer whose publishes are recorded as spans of kind PRODUCER with the name ``send TOPIC``.

        with TracedProducer(Producer(address)) as producer:
            producer.publish("clicks", b"{}")

    A TracedProducer has all attributes of the Producer. A span ends when the publish is confirmed or has failed,
    even if the call returns earlier. Several messages of one call have one span. An exception is recorded, sets the
    span's status to an error, and is raised. If publish_many() does not raise, the error of the first chunk that failed
    is recorded. If no OpenTelemetry SDK is set up, there are no spans.

    Args:
        producer: The Producer that publishes. The TracedProducer or the program may start and close it.
        envelope: Publish bodies in envelopes with the trace context; the module's docstring says which handlers must
            remove them. An envelope with only a traceparent adds 80 bytes, which count for max_msg_size. A body that is
            in an envelope already (it is forwarded, or close() returned it) is published unchanged. There are no
            envelopes without an SDK or headers, or if the headers are too large; then a warning is logged.
        tracer_provider: Default: the global one, even if it is set later.
    """

    def __init__(
        self, producer: Producer, *, envelope: bool = False, tracer_provider: trace.TracerProvider | None = None
    ) -> None:
        self.producer = producer
        self._envelope = envelope
        self._tracer_provider = tracer_provider
        self._tracer = trace.get_tracer("gnsq", VERSION, tracer_provider, SCHEMA_URL)
        self._finisher = _SpanFinisher()
        self._logger = LogOwner("", time.monotonic).log(logger)

    def __enter__(self) -> Self:
        self.producer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self, timeout: Seconds | None = None) -> list[Unconfirmed]:
        """Close the producer as its close() does, then wait for the end of the spans, up to 5 s."""
        try:
            return self.producer.close(timeout)
        finally:
            # The hub itself can't wait. If it calls this method, a greenlet closes the producer and ends the spans.
            if not is_hub_greenlet():
                self._finisher.wait(SPANS_TIMEOUT)

    if not TYPE_CHECKING:  # type checkers see these methods of Producer

        def __getattr__(self, name):
            return getattr(self.producer, name)

        def publish(self, topic, data, *arguments, **options):
            """Publish a message as Producer.publish() does."""
            return self._send(self.producer.publish, topic, data, arguments, options)

        def publish_async(self, topic, data, *arguments, **options):
            """Publish a message without waiting, as Producer.publish_async() does."""
            return self._send(self.producer.publish_async, topic, data, arguments, options)

        def multipublish(self, topic, messages, *arguments, **options):
            """Publish all messages or none, as Producer.multipublish() does."""
            return self._send(self.producer.multipublish, topic, messages, arguments, options, is_many=True)

        def publish_many(self, topic, messages, *arguments, **options):
            """Publish any number of messages, as Producer.publish_many() does."""
            return self._send(self.producer.publish_many, topic, messages, arguments, options, is_many=True)

    # Any: the arguments and the results are the Producer's.
    def _send(
        self,
        call: Callable[..., Any],
        topic: str,
        payload: Any,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        *,
        is_many: bool = False,
    ) -> Any:
        """Call a method of the producer within a span.

        Args:
            payload: A body, or an iterable of bodies if is_many.
        """
        if not _is_recording(self._tracer_provider):
            return call(topic, payload, *arguments, **options)
        attributes: dict[str, AttributeValue] = {
            "messaging.system": "nsq",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
        }
        if isinstance(payload, bytes) and not is_many:
            attributes["messaging.message.body.size"] = len(payload)
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                prefix = self._prefix() if self._envelope else b""
                if not is_many:
                    result = call(topic, _enveloped(prefix, payload), *arguments, **options)
                elif isinstance(payload, (bytes, bytearray, str)):
                    result = call(topic, payload, *arguments, **options)  # raises: the producer refuses it
                else:
                    taken = 0

                    def bodies() -> Iterator[bytes]:
                        nonlocal taken
                        for body in payload:
                            taken += 1
                            yield _enveloped(prefix, body)

                    try:
                        result = call(topic, bodies(), *arguments, **options)
                    finally:
                        span.set_attribute("messaging.batch.message_count", taken)
        except BaseException as error:
            _end(span, error)
            raise
        if isinstance(result, PublishResult):
            self._finisher.add(span, result)
        else:
            _end(span, _first_error(result))
        return result

    def _prefix(self) -> bytes:
        """Return the bytes of an envelope before its body, with the current trace context; empty if that has none."""
        headers: dict[str, str] = {}
        propagate.inject(headers)
        try:
            return wrap(b"", headers) if headers else b""
        except ValueError as error:
            # The headers are too large. That must not prevent the publish.
            self._logger.limited(logging.WARNING, "headers", "published without trace context: %s", error)
            return b""


class _SpanFinisher:
    """Ends the spans of publishes whose results come later, in any thread.

    The end of a span may wait for an exporter, but a callback in the producer's hub must not wait. So a greenlet ends
    all spans whose results came together. That takes 1 us per publish; a greenlet for each span would take 12 us.
    """

    def __init__(self) -> None:
        self._open: set[trace.Span] = set()
        # Spans to end, each with the error of its publish, and the end of the publish in nanoseconds of Unix time.
        self._due: deque[tuple[trace.Span, BaseException | None, int]] = deque()
        self._ender: gevent.Greenlet | None = None
        self._none_open: CrossThreadFuture[None] | None = None
        register_after_fork(self)

    def after_fork_in_child(self, parent: int) -> None:
        """Forget the spans of the parent, which ends them itself."""
        self._open.clear()
        self._due.clear()
        self._ender = None

    def add(self, span: trace.Span, result: PublishResult) -> None:
        """End a span when the publish has a result."""
        self._open.add(span)
        result.add_done_callback(functools.partial(self._note, span))

    def wait(self, timeout: float) -> None:
        """Wait until all spans have ended, or the timeout (seconds) is over."""
        # Set _none_open, then read _open. _end() changes _open, then reads _none_open. So no end is missed.
        none_open = self._none_open = CrossThreadFuture()
        # End the spans in _due in this thread, since the producer's thread may have ended without doing that.
        self._end_due()
        if self._open:
            none_open.wait(timeout)

    def _note(self, span: trace.Span, result: PublishResult) -> None:
        if span not in self._open:
            return  # it is the parent's, and this is a forked child
        self._due.append((span, result.exception, time.time_ns()))
        if not is_hub_greenlet():
            # The publish had ended before add() was called, so this code runs in the thread of add(), which may wait.
            self._end_due()
        elif self._ender is None:
            self._ender = spawn("gnsq-spans", self._end_due, on_failure="spans end with the next one")

    def _end_due(self) -> None:
        try:
            while self._due:
                self._end(*self._due.popleft())
        finally:
            self._ender = None

    def _end(self, span: trace.Span, error: BaseException | None, end_time: int) -> None:
        try:
            _end(span, error, end_time)
        except Exception:  # a span processor may raise any exception
            logger.exception("the span of a publish could not be ended")
        finally:
            self._open.discard(span)
            if not self._open and self._none_open is not None:
                self._none_open.set_result(None)


def _enveloped(prefix: bytes, body: bytes) -> bytes:
    """Put the prefix before a body, unless the producer refuses the body or the body is in an envelope already."""
    if not prefix or not isinstance(body, bytes) or not body or unwrap(body)[0] is not body:
        return body
    return prefix + body


def _remove_envelope(message: Message) -> dict[str, str]:
    """Remove the envelope of a message, if it has one, and return the headers. A second call returns the same."""
    headers = _removed_headers.get(message)
    if headers is None:
        body, headers = unwrap(message.body)
        if body is not message.body:
            message.body = body
            _removed_headers[message] = headers
    return headers


@contextlib.contextmanager
def _sender_context(headers: dict[str, str]) -> Iterator[Sequence[trace.Link]]:
    """Make the context of the headers the current one during the block; yield a link to the sender's span, if any."""
    context = propagate.extract(headers, contexts.get_current())
    sender = trace.get_current_span(context).get_span_context()
    token = contexts.attach(context)
    try:
        # If the span is not remote, the headers have no span, and ``sender`` is the span of this program.
        yield [trace.Link(sender)] if sender.is_remote else ()
    finally:
        contexts.detach(token)


def _is_recording(tracer_provider: trace.TracerProvider | None) -> bool:
    """Return True if an SDK, or any other provider that is not a no-op, is set up."""
    used = trace.get_tracer_provider() if tracer_provider is None else tracer_provider
    return not isinstance(used, (ProxyTracerProvider, NoOpTracerProvider))


def _first_error(result: object) -> BaseException | None:
    """Return the error of the first chunk of a publish_many() that failed, if one did."""
    return (
        next((chunk.error for chunk in result if chunk.error is not None), None) if isinstance(result, list) else None
    )


def _end(span: trace.Span, error: BaseException | None, end_time: int | None = None) -> None:
    # Only Exception and Timeout are failures. GreenletExit, which a killed greenlet raises, for example, is none.
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
        "messaging.message.id": id_text(message.id),
        "messaging.message.body.size": len(message.body),
        "messaging.nsq.message.attempts": message.attempts,
    }
    if message.nsqd is not None:
        host, port = parse_address(message.nsqd)
        attributes["server.address"] = host
        if port:
            attributes["server.port"] = port
    return attributes
