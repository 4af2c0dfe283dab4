"""traced(): what a span says of a message and how its handling ended."""

import subprocess
import sys
from types import SimpleNamespace

import gevent
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gnsq import Consumer, Message
from gnsq.contrib.opentelemetry import traced
from gnsq.errors import NSQRequeueMessage
from tests.helpers import wait_until

CONSUMER = Consumer("t", "c", "127.0.0.1:4150")
MESSAGE = Message(1_700_000_000_000_000_000, 2, b"0123456789abcdef", b"body")


class Spans:
    """A provider of the SDK, and what it has recorded."""

    def __init__(self):
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def __call__(self):
        return self._exporter.get_finished_spans()


@pytest.fixture
def spans():
    return Spans()


def test_span_says_what_was_handled(fakensqd, publish, consume, spans):
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
    ("responder", "expected"),
    [
        pytest.param(None, {}, id="nowhere"),
        pytest.param(SimpleNamespace(nsqd="[::1]:4150"), {"server.address": "::1", "server.port": 4150}, id="IPv6"),
        pytest.param(SimpleNamespace(nsqd="/run/nsqd"), {"server.address": "/run/nsqd"}, id="unix socket"),
    ],
)
def test_server_is_where_the_message_came_from(spans, responder, expected):
    message = Message(1, 1, b"0123456789abcdef", b"body", responder)

    traced(lambda consumer, message: None, tracer_provider=spans.provider)(CONSUMER, message)

    assert {name: value for name, value in spans()[0].attributes.items() if name.startswith("server.")} == expected


@pytest.mark.parametrize(
    ("error", "kind"),
    [pytest.param(ValueError("bad page"), "ValueError"), pytest.param(gevent.Timeout(3), "Timeout")],
)
def test_exception_is_recorded_and_goes_on(spans, error, kind):
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
def test_nothing_is_put_together_where_nobody_looks(options):
    class Untouched:
        def __getattr__(self, name):
            raise AssertionError(f"{name} was asked for")

    assert traced(lambda consumer, message: "handled", **options)(Untouched(), Untouched()) == "handled"


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

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_missing_package_is_named_with_its_extra():
    code = "import sys; sys.modules['opentelemetry'] = None; import gnsq.contrib.opentelemetry"

    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "pip install gnsq[opentelemetry]" in failed.stderr
