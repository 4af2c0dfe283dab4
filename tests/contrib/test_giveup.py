"""Give-up handlers: a message is stored when they return, or they raise and it is requeued."""

import json

import pytest

from fakensqd import on
from fakensqd.faults import answer
from gnsq import Consumer, Message
from gnsq.contrib.giveup import (
    JSONLogGiveupHandler,
    LogGiveupHandler,
    NsqdGiveupHandler,
)
from tests.contrib.conftest import settled
from tests.kit import bodies, refused_port, wait_until

# Only an argument.
CONSUMER = Consumer("t", "c", "127.0.0.1:4150")
CONSUMER.close()


def message(body=b"body", message_id=b"0123456789abcdef"):
    return Message(1_700_000_000_123_456_789, 6, message_id, body)


@pytest.fixture
def give_up(fakensqd, publish, consume):
    """Let a message fail once, so that a handler gets it on its second delivery."""

    def start(handler, *messages, **options):
        def fail(consumer, message):
            raise RuntimeError("never")

        consumer = consume(fail, max_tries=1, requeue_delay=0, max_backoff_duration=0, **options)
        consumer.on_giving_up.connect(handler, weak=False)
        publish(*messages)
        return consumer

    return start


# --- logs


@pytest.mark.parametrize(
    ("body", "written"),
    [
        pytest.param(b"text", "text\n", id="text"),
        pytest.param("größer".encode(), "größer\n", id="not ASCII"),
        pytest.param(b"\xff\x00", "\\xff\x00\n", id="no UTF-8"),
    ],
)
def test_log_give_up_handler_writes_the_body_as_text(capsys, body, written):
    LogGiveupHandler()(CONSUMER, message(body))

    assert capsys.readouterr().out == written


@pytest.mark.parametrize(("text", "newline"), [(b"mine", "!"), ("mine", b"!")])
def test_format_may_be_overridden_with_text_or_bytes(text, newline):
    class Mine(LogGiveupHandler):
        def format_message(self, message):
            return text

    written = []
    Mine(written.append, newline)(CONSUMER, message())

    assert written == ["mine!" if isinstance(newline, str) else b"mine!"]


def test_file_is_flushed_before_the_message_is_finished(tmp_path):
    path = tmp_path / "given-up"
    with open(path, "w") as file:
        LogGiveupHandler(file.write)(CONSUMER, message())

        assert path.read_text() == "body\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b"te\nxt", {"body": "te\nxt"}, id="text"),
        pytest.param(b"\xff\x00", {"body": "/wA=", "encoding": "base64"}, id="no UTF-8"),
    ],
)
def test_json_line_has_all_of_a_message(body, expected):
    lines = []

    JSONLogGiveupHandler(lines.append)(CONSUMER, message(body))

    (line,) = lines
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "timestamp": 1_700_000_000_123_456_789,
        "attempts": 6,
        "id": "0123456789abcdef",
        **expected,
    }


def test_message_is_requeued_if_the_log_fails(fakensqd, give_up):
    lines = []

    def log(line):
        lines.append(line)
        if len(lines) == 1:
            raise OSError("disk full")

    give_up(LogGiveupHandler(log), b"x")

    wait_until(lambda: len(lines) == 2 and settled(fakensqd))


# --- nsqd


def test_nsqd_gets_the_body_before_the_message_is_finished(fakensqd, give_up):
    give_up(NsqdGiveupHandler("dead", fakensqd.http_address), b"1")
    wait_until(lambda: fakensqd.depth("dead"), 10)

    assert bodies(fakensqd, "dead") == [b"1"]
    wait_until(lambda: settled(fakensqd))


def test_nsqd_that_fails_is_followed_by_the_others(fakensqd):
    handler = NsqdGiveupHandler("dead", [f"127.0.0.1:{refused_port()}", fakensqd.http_address])

    handler(CONSUMER, message(b"1"))
    handler(CONSUMER, message(b"2"))

    assert sorted(bodies(fakensqd, "dead")) == [b"1", b"2"]


def test_message_that_no_nsqd_accepts_is_requeued(fakensqd, give_up):
    handler = NsqdGiveupHandler("dead", [fakensqd.http_address, f"127.0.0.1:{refused_port()}"])

    with fakensqd.add(on.http("/pub"), answer(503, b"no disk")):
        consumer = give_up(handler, b"1")
        wait_until(lambda: consumer.stats().given_up == 1)

    assert consumer.stats().failed == 2
    assert bodies(fakensqd, "dead") == [b"1"]


def test_class_without_urls_is_called_with_host_and_port():
    made = []

    class Client:
        def __init__(self, *arguments):
            made.append(arguments)

        def publish(self, topic, data):
            made.append((topic, data))

    NsqdGiveupHandler("dead", ["a", "b:4152"], nsqd_class=Client)(CONSUMER, message())

    assert made == [("a",), ("b", 4152), ("dead", b"body")]


def test_empty_nsqd_hosts_are_refused():
    with pytest.raises(ValueError, match="nsqd_hosts is empty"):
        NsqdGiveupHandler("dead", [])
