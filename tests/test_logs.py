"""Log lines of clients: their subject, their fields, and their rate limits by owner."""

import json
import logging

import pytest

from gnsq import Consumer, Producer
from gnsq.logs import MAX_KINDS, LogOwner
from tests.docs.pages import example
from tests.kit import wait_until

logger = logging.getLogger("gnsq.test")


def test_owners_are_limited_apart(clock, caplog):
    for label in ("one", "one", "two"):
        LogOwner(label, clock.monotonic).log(logger).limited(logging.WARNING, "kind", "x")

    assert caplog.messages == ["one: x", "one: x", "two: x"]


def test_lines_of_one_owner_are_limited_together(clock, caplog):
    owner = LogOwner("one", clock.monotonic)
    for number in range(3):
        owner.log(logger, nsqd=f"h:{number}").limited(logging.WARNING, "kind", "%d", number)
    clock.advance(61.0)
    owner.log(logger).limited(logging.WARNING, "kind", "%d", 3)

    assert caplog.messages == ["h:0: one: 0", "one: 3 (and 2 like it since the last such line)"]


def test_kinds_of_lines_are_not_kept_for_ever(clock):
    owner = LogOwner("", clock.monotonic)
    for number in range(10 * MAX_KINDS):
        owner.log(logger).limited(logging.DEBUG, f"kind {number}", "x")
        clock.advance(1.0)

    assert len(owner.kinds) <= MAX_KINDS


def test_record_has_the_line_of_its_caller(clock, caplog):
    log = LogOwner("one", clock.monotonic).log(logger)
    log.warning("100 %")
    log.limited(logging.WARNING, "kind", "x")

    assert [record.funcName for record in caplog.records] == ["test_record_has_the_line_of_its_caller"] * 2
    assert caplog.messages[0] == "one: 100 %"


def test_line_that_is_off_is_not_made(clock):
    class Unreadable:
        def __getattr__(self, name):
            raise AssertionError(name)

    log = LogOwner("one", clock.monotonic).log(logging.Logger("off", logging.ERROR))

    log.debug("%s", Unreadable(), message=Unreadable())


# --- the fields, as the formatter of the guide shows them


@pytest.fixture
def lines():
    """Return the lines that the formatter of the guide writes in this test, as objects."""
    source = example("guides/logging.md", "JSON")
    names = {}
    exec(source.partition("\nhandler = ")[0], names)  # the code of our own page
    found = []

    class Handler(logging.Handler):
        def emit(self, record):
            found.append(json.loads(self.format(record)))

    handler = Handler()
    handler.setFormatter(names["JsonFormatter"]())
    root = logging.getLogger("gnsq")
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield found
    root.removeHandler(handler)
    root.setLevel(before)


def line_with(lines, text):
    return next(line for line in lines if text in line["message"])


def test_json_formatter_shows_the_fields_of_a_run(lines, fakensqd):
    def fail(consumer, message):
        raise OSError("away")

    fakensqd.publish("orders", b"1")
    with Consumer("orders", "billing", fakensqd.tcp_address, message_handler=fail):
        wait_until(lambda: any("handler raised" in line["message"] for line in lines))
    fakensqd.down()
    with Producer(fakensqd.tcp_address, name="shop") as producer:
        wait_until(lambda: any("not connected" in line["message"] for line in lines))
        producer.close(0)

    consumer = {"client": "orders/billing", "topic": "orders", "channel": "billing", "nsqd": fakensqd.tcp_address}
    connected = line_with(lines, "subscribed to")
    failed = line_with(lines, "handler raised")
    assert consumer.items() <= connected.items()
    assert "message_id" not in connected
    assert {**consumer, "message_id": failed["message_id"], "attempt": 1}.items() <= failed.items()
    assert len(failed["message_id"]) == 16
    assert line_with(lines, "not connected")["client"] == "shop"
    assert line_with(lines, "not connected")["nsqd"] == fakensqd.tcp_address
