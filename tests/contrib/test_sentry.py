"""SentryExceptionHandler: reports through sentry_sdk, or through an older client."""

import sys

import pytest
import sentry_sdk

from gnsq import Message
from gnsq.contrib.sentry import SentryExceptionHandler
from tests.kit import run_program, wait_until

MESSAGE = Message(1_700_000_000_000_000_000, 2, b"0123456789abcdef", b"body")


@pytest.fixture
def events():
    """Events that sentry_sdk sends."""
    sent = []
    with sentry_sdk.isolation_scope() as scope:
        client = sentry_sdk.Client(dsn="http://key@127.0.0.1:9/1", before_send=lambda event, hint: sent.append(event))
        scope.set_client(client)
        yield sent


@pytest.mark.subprocess
def test_sdk_gets_the_error_and_its_message(events):
    error = ValueError("bad page")

    SentryExceptionHandler()(None, message=MESSAGE, error=error)

    (event,) = events
    assert event["exception"]["values"][-1]["value"] == "bad page"
    assert "0123456789abcdef" in str(event["extra"]["message"]["id"])
    assert event["extra"]["message"]["attempts"] == 2
    assert "body" in str(event["extra"]["message"]["body"])


def test_raven_client_is_called_while_the_exception_is_handled(publish, consume):
    captured = []

    class Client:
        def captureException(self, extra):
            captured.append((sys.exc_info()[1], extra))

    def handle(consumer, message):
        raise ValueError("bad page")

    consumer = consume(handle, requeue_delay=60_000)
    consumer.on_exception.connect(SentryExceptionHandler(Client()), weak=False)
    publish(b"body")
    wait_until(lambda: captured)

    (error, extra), *_ = captured
    assert str(error) == "bad page"
    assert (extra["message"]["body"], extra["message"]["attempts"]) == (b"body", 1)
    assert set(extra["message"]) == {"id", "timestamp", "attempts", "body"}


@pytest.mark.subprocess
def test_message_extra_may_be_overridden(events):
    class Shy(SentryExceptionHandler):
        def message_extra(self, message):
            return {"size": len(message.body)}

    Shy()(None, message=MESSAGE, error=ValueError("bad page"))

    assert events[0]["extra"]["message"] == {"size": 4}


@pytest.mark.subprocess
def test_sdk_is_not_imported_before_it_is_used():
    code = (
        "import sys; from gnsq.contrib.sentry import SentryExceptionHandler; SentryExceptionHandler()\n"
        "print('sentry_sdk' in sys.modules)"
    )

    assert run_program(code).stdout == "False\n"


def test_missing_sdk_is_an_import_error_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)

    with pytest.raises(ImportError, match=r"pip install gnsq\[sentry\]"):
        SentryExceptionHandler()
