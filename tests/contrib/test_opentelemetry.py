"""traced() and TracedProducer: spans of handled messages and of publishes, and envelopes with their context."""

import logging
import time
from types import SimpleNamespace

import gevent
import pytest
from gevent.event import Event
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fakensqd import on
from fakensqd.faults import delay, error
from gnsq import Consumer, Message, Producer
from gnsq.concurrency.threads import OwnerThread
from gnsq.contrib.envelope import unwrap, wrap
from gnsq.contrib.opentelemetry import TracedProducer, traced
from gnsq.errors import NSQException, NSQRequeueMessage
from gnsq.producer.result import ResultWaiters
from tests.helpers import run_program, wait_until

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
HEADERS = {"traceparent": f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"}
CONSUMER = Consumer("t", "c", "127.0.0.1:4150")
MESSAGE = Message(1_700_000_000_000_000_000, 2, b"0123456789abcdef", b"body")


class Spans:
    """A provider of the SDK, and the spans that it has recorded."""

    def __init__(self):
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def __call__(self):
        return self._exporter.get_finished_spans()


@pytest.fixture
def spans():
    return Spans()


def test_span_of_a_handled_message_has_its_attributes(fakensqd, publish, consume, spans):
    publish(b"body")
    consume(traced(lambda consumer, message: None, tracer_provider=spans.provider))
    wait_until(spans)

    (span,) = spans()
    host, port = fakensqd.tcp_address.split(":")
    message_id = span.attributes["messaging.message.id"]
    assert (span.name, span.kind) == ("process t", SpanKind.CONSUMER)
    assert dict(span.attributes) == {
        "messaging.system": "nsq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "t",
        "messaging.destination.subscription.name": "c",
        "messaging.message.id": message_id,
        "messaging.message.body.size": 4,
        "messaging.nsq.message.attempts": 1,
        "server.address": host,
        "server.port": int(port),
    }
    assert len(message_id) == 16
    assert span.status.status_code is StatusCode.UNSET
    assert span.instrumentation_scope.name == "gnsq"


@pytest.mark.parametrize(
    ("error", "kind"),
    [pytest.param(ValueError("bad page"), "ValueError"), pytest.param(gevent.Timeout(3), "Timeout")],
)
def test_exception_of_a_handler_is_recorded_and_raised(spans, error, kind):
    def handle(consumer, message):
        raise error

    with pytest.raises(type(error)):
        traced(handle, tracer_provider=spans.provider)(CONSUMER, message=MESSAGE)

    (span,) = spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == f"{kind}: {error}"
    assert span.attributes["error.type"] == kind
    assert [event.name for event in span.events] == ["exception"]


def test_requeue_on_request_is_no_error(spans):
    def handle(consumer, message):
        raise NSQRequeueMessage

    with pytest.raises(NSQRequeueMessage):
        traced(handle, tracer_provider=spans.provider)(CONSUMER, MESSAGE)

    (span,) = spans()
    assert span.status.status_code is StatusCode.UNSET
    assert [event.name for event in span.events] == ["messaging.nsq.requeue"]


def test_handlers_own_spans_are_children(spans):
    def handle(consumer, message):
        with spans.provider.get_tracer("mine").start_as_current_span("insert"):
            gevent.sleep(0)

    handler = traced(handle, tracer_provider=spans.provider)
    gevent.joinall([gevent.spawn(handler, CONSUMER, MESSAGE) for _ in range(3)], raise_error=True)

    parents = {span.context.span_id for span in spans() if span.name == "process t"}
    children = [span.parent.span_id for span in spans() if span.name == "insert"]
    assert len(parents) == 3
    assert sorted(children) == sorted(parents)


def test_wrapped_handler_keeps_its_name_and_result():
    def handle(consumer, message):
        return message.body

    assert traced(handle).__name__ == "handle"
    assert traced(handle)(CONSUMER, message=MESSAGE) == b"body"


@pytest.mark.parametrize(
    "options", [pytest.param({}, id="no SDK"), pytest.param({"tracer_provider": trace.NoOpTracerProvider()}, id="off")]
)
def test_no_span_is_built_without_an_sdk(options):
    class Untouched:
        def __getattr__(self, name):
            raise AssertionError(f"{name} was asked for")

    assert traced(lambda consumer, message: "handled", **options)(Untouched(), Untouched()) == "handled"


@pytest.mark.subprocess
def test_provider_that_is_set_later_is_used():
    code = """
from gnsq import Consumer, Message
from gnsq.contrib.opentelemetry import traced
handler = traced(lambda consumer, message: None)
from opentelemetry import trace
from tests.contrib.test_opentelemetry import CONSUMER, MESSAGE, Spans
spans = Spans()
trace.set_tracer_provider(spans.provider)
handler(CONSUMER, MESSAGE)
print(len(spans()))
"""

    assert run_program(code, flags=()).stdout == "1\n"


# --- publishing


@pytest.fixture
def send(fakensqd, spans):
    """A producer with spans and without envelopes."""
    with TracedProducer(Producer(fakensqd.tcp_address), tracer_provider=spans.provider) as producer:
        yield producer


@pytest.fixture
def send_enveloped(fakensqd, spans):
    """A producer with spans and envelopes."""
    with TracedProducer(Producer(fakensqd.tcp_address), envelope=True, tracer_provider=spans.provider) as producer:
        yield producer


SENT = {
    "messaging.system": "nsq",
    "messaging.operation.name": "send",
    "messaging.operation.type": "send",
    "messaging.destination.name": "t",
}
ONE = {**SENT, "messaging.message.body.size": 4}
TWO = {**SENT, "messaging.batch.message_count": 2}

WAYS = [
    pytest.param(lambda p: p.publish("t", b"body"), [b"body"], ONE, id="publish"),
    pytest.param(lambda p: p.publish("t", b"body", raise_error=False).get(5), [b"body"], ONE, id="answer later"),
    pytest.param(lambda p: p.publish_async("t", b"body").get(5), [b"body"], ONE, id="publish_async"),
    pytest.param(lambda p: p.multipublish("t", [b"1", b"2"]), [b"1", b"2"], TWO, id="multipublish"),
    pytest.param(lambda p: p.publish_many("t", iter([b"1", b"2"])), [b"1", b"2"], TWO, id="publish_many"),
]


@pytest.mark.parametrize(("publish", "published", "attributes"), WAYS)
def test_span_of_a_publish_has_its_attributes(fakensqd, send, spans, publish, published, attributes):
    publish(send)
    wait_until(spans)

    (span,) = spans()
    assert fakensqd.transcript.published("t") == published
    assert (span.name, span.kind) == ("send t", SpanKind.PRODUCER)
    assert dict(span.attributes) == attributes
    assert span.status.status_code is StatusCode.UNSET
    assert span.instrumentation_scope.name == "gnsq"


@pytest.mark.parametrize(("publish", "published", "attributes"), WAYS)
def test_envelope_names_the_span_of_the_send(fakensqd, send_enveloped, spans, publish, published, attributes):
    publish(send_enveloped)
    wait_until(spans)

    (span,) = spans()
    sender = span.context
    headers = {"traceparent": f"00-{sender.trace_id:032x}-{sender.span_id:016x}-{sender.trace_flags:02x}"}
    assert [unwrap(body) for body in fakensqd.transcript.published("t")] == [(body, headers) for body in published]
    assert dict(span.attributes) == attributes


@pytest.mark.parametrize(
    "publish",
    [
        pytest.param(lambda p: p.publish("t", b"body"), id="publish"),
        pytest.param(lambda p: p.publish("t", b"body", raise_error=False).get(5), id="answer later"),
        pytest.param(lambda p: p.publish_async("t", b"body").get(5), id="publish_async"),
        pytest.param(lambda p: p.multipublish("t", [b"body"]), id="multipublish"),
        pytest.param(lambda p: p.publish_many("t", [b"body"]), id="publish_many"),
    ],
)
def test_refusal_is_recorded_and_raised(fakensqd, send, spans, publish):
    with fakensqd.add(on.reply(), error("E_BAD_MESSAGE")), pytest.raises(NSQException) as caught:
        publish(send)
    wait_until(spans)

    (span,) = spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == type(caught.value).__name__
    assert [event.name for event in span.events] == ["exception"]


@pytest.mark.parametrize(
    ("publish", "kind"),
    [
        pytest.param(lambda p: p.publish("bad topic", b"body"), ValueError, id="topic"),
        pytest.param(lambda p: p.publish("t", "text"), TypeError, id="text"),
        pytest.param(lambda p: p.publish("t", b""), ValueError, id="empty"),
        pytest.param(lambda p: p.multipublish("t", [b"body", b""]), ValueError, id="one is empty"),
        pytest.param(lambda p: p.multipublish("t", b"body"), TypeError, id="bytes for a list"),
        pytest.param(lambda p: p.publish_many("t", "body"), TypeError, id="text for a list"),
    ],
)
def test_misuse_is_refused_as_without_an_envelope(fakensqd, send_enveloped, spans, publish, kind):
    with pytest.raises(kind):
        publish(send_enveloped)

    (span,) = spans()
    assert span.attributes["error.type"] == kind.__name__
    assert fakensqd.transcript.published("t") == []


def test_messages_of_an_iterable_that_raises_are_counted_up_to_the_error(send, spans):
    def read():
        yield b"1"
        yield b"2"
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        send.multipublish("t", read())

    (span,) = spans()
    assert span.attributes["messaging.batch.message_count"] == 2
    assert span.status.description == "OSError: disk"


def test_timeout_of_the_caller_is_recorded(fakensqd, send, spans):
    def publish():
        with pytest.raises(gevent.Timeout):
            send.publish("t", b"body")

    with fakensqd.add(on.reply("PUB"), delay(0.2)):
        publishing = gevent.spawn(publish)
        wait_until(lambda: fakensqd.transcript.published("t"))
        publishing.kill(gevent.Timeout)

    assert spans()[0].attributes["error.type"] == "Timeout"


def test_killed_publish_is_not_recorded_as_an_error(fakensqd, send, spans):
    with fakensqd.add(on.reply("PUB"), delay(0.2)):
        publishing = gevent.spawn(send.publish, "t", b"body")
        wait_until(lambda: fakensqd.transcript.published("t"))
        publishing.kill()

    (span,) = spans()
    assert span.status.status_code is StatusCode.UNSET


def test_span_lasts_until_the_answer_is_there(fakensqd, send, spans):
    with fakensqd.add(on.reply("PUB"), delay(0.2)):
        answer = send.publish("t", b"body", raise_error=False)
        before = spans()
        answer.get(timeout=5)
        wait_until(spans)

    (span,) = spans()
    assert before == ()
    assert span.end_time - span.start_time > 0.15e9


def test_close_waits_for_an_exporter_of_spans_that_waits(fakensqd):
    ended, proceed = [], Event()

    class Slow(SpanProcessor):
        def on_end(self, span):
            proceed.wait()
            ended.append(span)

    provider = TracerProvider()
    provider.add_span_processor(Slow())

    with TracedProducer(Producer(fakensqd.tcp_address), tracer_provider=provider) as producer:
        for _ in range(3):
            producer.publish("t", b"body", raise_error=False)
        closing = gevent.spawn(producer.close)
        producer.join(5)
        assert not closing.ready()
        proceed.set()
        closing.get(timeout=5)

    assert len(ended) == 3


def test_span_that_can_not_be_ended_does_not_keep_others_open(fakensqd, caplog):
    ended = []

    class Broken(SpanProcessor):
        def on_end(self, span):
            ended.append(span)
            if len(ended) == 1:
                raise OSError("disk")

    provider = TracerProvider()
    provider.add_span_processor(Broken())

    with TracedProducer(Producer(fakensqd.tcp_address), tracer_provider=provider) as producer:
        for _ in range(3):
            producer.publish("t", b"body", raise_error=False)

    assert len(ended) == 3
    assert [record.getMessage() for record in caplog.records if record.name == "gnsq.contrib.opentelemetry"] == [
        "the span of a publish could not be ended"
    ]


def test_producer_on_a_thread_of_its_own_is_traced_from_others(fakensqd, spans):
    producer = TracedProducer(Producer(fakensqd.tcp_address, threaded=True), tracer_provider=spans.provider)

    def publish():
        for _ in range(10):
            producer.publish_async("t", b"body")
        producer.publish("t", b"body")
        producer.close()

    gevent.get_hub().threadpool.apply(publish)

    assert [span.status.status_code for span in spans()] == [StatusCode.UNSET] * 11


@pytest.mark.parametrize(
    ("result", "status"),
    [pytest.param(None, StatusCode.UNSET, id="OK"), pytest.param(OSError("gone"), StatusCode.ERROR, id="error")],
)
def test_result_of_another_thread_may_be_there_at_once(spans, result, status):
    answer = ResultWaiters(OwnerThread(), time.monotonic, "producer-1").new(deadline=0)
    answer.end(result)
    producer = TracedProducer(SimpleNamespace(publish_async=lambda *arguments: answer), tracer_provider=spans.provider)

    assert producer.publish_async("t", b"body") is answer

    assert [span.status.status_code for span in spans()] == [status]


def test_close_ends_spans_that_the_thread_of_the_producer_left(fakensqd):
    seen = []

    class Slow(SpanProcessor):
        def on_end(self, span):
            seen.append(span)
            gevent.sleep(0.03)

    provider = TracerProvider()
    provider.add_span_processor(Slow())
    producer = TracedProducer(Producer(fakensqd.tcp_address, threaded=True), tracer_provider=provider)
    with producer, fakensqd.add(on.reply("PUB"), delay(0.05)):
        for _ in range(3):
            producer.publish_async("t", b"body")

    assert len(seen) == 3


FORKING = """
import os, sys, time
import gevent, gevent.os
from fakensqd import on
from gnsq import Producer
from gnsq.concurrency.threads import OwnerThread
from gnsq.producer.result import ResultWaiters
from gnsq.contrib.opentelemetry import TracedProducer
from tests.contrib.test_opentelemetry import Spans

# Without this, gevent misses a child that ends before the first wait.
gevent.get_hub().loop.install_sigchld()

spans = Spans()
producer = TracedProducer(Producer(sys.argv[1], close_timeout=10), tracer_provider=spans.provider)
producer.start()
answer = producer.publish_async("t", b"parent")
child = gevent.os.fork()
if not child:
    try:
        for _ in range(100):
            gevent.sleep(1e-6)  # not 0: the loop looks at its sockets
        inherited = len(spans())
        started = time.monotonic()
        {in_child}
        producer.close()
        print("child:", inherited, len(spans()), time.monotonic() - started < 10, flush=True)
    finally:
        os._exit(0)
gevent.os.waitpid(child, 0)
answer.get(5)
producer.close()
print("parent:", len(spans()))
"""


@pytest.mark.parametrize(
    ("in_child", "count"),
    [pytest.param('producer.publish_async("t", b"child")', 1, id="publishing"), pytest.param("pass", 0, id="idle")],
)
@pytest.mark.subprocess
def test_forked_child_ends_only_its_own_spans(fakensqd, in_child, count):
    code = FORKING.format(in_child=in_child)

    with fakensqd.add(on.reply("PUB", body=b"parent"), delay(0.3)):
        ran = run_program(code, fakensqd.tcp_address)

    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [f"child: 0 {count} True", "parent: 1"]


def test_other_attributes_are_those_of_the_wrapped_producer(fakensqd):
    producer = Producer(fakensqd.tcp_address)
    with TracedProducer(producer) as traced_producer:
        assert producer.is_running
        assert traced_producer.nsqd_tcp_addresses is producer.nsqd_tcp_addresses

    assert not producer.is_running
    with pytest.raises(AttributeError, match="publish_to_all"):
        traced_producer.publish_to_all("t", b"body")


@pytest.mark.parametrize(("publish", "published", "attributes"), WAYS)
def test_bodies_are_not_enveloped_without_an_sdk(fakensqd, publish, published, attributes):
    with TracedProducer(Producer(fakensqd.tcp_address), envelope=True) as producer:
        publish(producer)

    assert fakensqd.transcript.published("t") == published


@pytest.fixture
def propagator():
    """Set the global propagator for one test."""
    before = propagate.get_global_textmap()
    yield propagate.set_global_textmap
    propagate.set_global_textmap(before)


def test_headers_too_large_for_an_envelope_are_left_out(fakensqd, send_enveloped, propagator, caplog):
    class Chatty(TextMapPropagator):
        fields = frozenset(["chat"])

        def inject(self, carrier, context=None, setter=None):
            carrier["chat"] = "x" * 70_000

        def extract(self, carrier, context=None, getter=None):
            raise AssertionError("nothing is received")

    propagator(Chatty())

    send_enveloped.publish("t", b"body")
    send_enveloped.publish("t", b"body")

    assert fakensqd.transcript.published("t") == [b"body"] * 2
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "published without trace context: headers of 70008 bytes exceed an envelope's 65535"
    ]


def test_body_in_an_envelope_is_published_unchanged(fakensqd, send_enveloped):
    send_enveloped.publish("t", wrap(b"body", HEADERS))

    assert fakensqd.transcript.published("t") == [wrap(b"body", HEADERS)]


# --- handling messages in envelopes


def enveloped(body=b"body", headers=HEADERS):
    return Message(1_700_000_000_000_000_000, 1, b"0123456789abcdef", wrap(body, headers))


def test_handling_is_in_the_trace_of_the_send(consume, send_enveloped, spans):
    handled = []
    send_enveloped.publish("t", b"body")
    consume(
        traced(lambda consumer, message: handled.append(message.body), envelope=True, tracer_provider=spans.provider)
    )
    wait_until(lambda: len(spans()) == 2)

    sent, processed = spans()
    assert handled == [b"body"]
    assert (processed.name, processed.context.trace_id) == ("process t", sent.context.trace_id)
    assert (processed.parent.span_id, processed.parent.is_remote) == (sent.context.span_id, True)
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert processed.attributes["messaging.message.body.size"] == 4


def test_headers_without_a_trace_leave_the_span_where_it_is(spans):
    handler = traced(lambda consumer, message: None, envelope=True, tracer_provider=spans.provider)
    with spans.provider.get_tracer("mine").start_as_current_span("test") as around:
        handler(CONSUMER, enveloped(headers={"traceparent": "nonsense", "baggage": "user=7"}))

    span = spans()[0]
    assert (span.parent, list(span.links)) == (around.get_span_context(), [])


def test_senders_baggage_is_there_while_the_message_is_handled(spans):
    seen = []
    handler = traced(
        lambda consumer, message: seen.append(baggage.get_baggage("user")),
        envelope=True,
        tracer_provider=spans.provider,
    )
    before = context.get_current()

    handler(CONSUMER, enveloped(headers={**HEADERS, "baggage": "user=7"}))

    assert seen == ["7"]
    assert context.get_current() == before


def test_envelope_of_a_message_that_is_handled_again_is_removed_once(spans):
    seen = []
    one, other = (
        traced(lambda consumer, message: seen.append(message.body), envelope=True, tracer_provider=spans.provider)
        for _ in range(2)
    )
    body = wrap(b"body", {"a": "b"})
    message = enveloped(body)

    one(CONSUMER, message)
    other(CONSUMER, message)

    assert seen == [body, body]
    assert [(span.context.trace_id, span.parent.span_id) for span in spans()] == [(TRACE_ID, SPAN_ID)] * 2


@pytest.mark.subprocess
def test_missing_package_is_named_with_its_extra():
    code = "import sys; sys.modules['opentelemetry'] = None; import gnsq.contrib.opentelemetry"

    failed = run_program(code)

    assert "pip install gnsq[opentelemetry]" in failed.stderr
