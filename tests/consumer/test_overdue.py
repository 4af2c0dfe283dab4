"""Overdue handlers and async messages that time out: counts, and log lines with their causes."""

import logging

import pytest
from gevent.event import Event

from fakensqd import on
from fakensqd.faults import expire_message
from gnsq import Consumer
from gnsq.contrib.batch import BatchHandler


@pytest.fixture
def forever():
    made = Event()
    yield made
    made.set()


def warnings(caplog, text):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING and text in record.message]


def test_overdue_handler_is_logged_with_its_line(nsqd, publish, clock, started, forever, caplog):
    def wait_for_the_end():
        forever.wait()

    def handle(consumer, message):
        ids.append(message.id)
        wait_for_the_end()

    ids = []
    consumer = started(handle, nsqd)
    publish(nsqd, b"x")
    clock.advance(59.0)
    assert consumer.stats().handlers_overdue == 0
    clock.advance(8.0)

    (line,) = warnings(caplog, "its handler has run")
    assert line.startswith(f"t/c: message {ids[0]!r} of {nsqd.tcp_address}: its handler has run for 6")
    assert f"{__file__}:" in line
    assert "in test_overdue_handler_is_logged_with_its_line.<locals>.handle (innermost: " in line
    assert "wait_for_the_end)" in line
    assert "its timeout is over, and nsqd delivers it again" in line
    assert "touching()" in line
    assert "handler_timeout" in line
    assert "longer msg_timeout" in line
    stats = consumer.stats()
    assert (stats.handlers_overdue, stats.handlers_timed_out, stats.async_timed_out) == (1, 1, 0)
    forever.set()
    clock.advance(1.0)
    assert consumer.stats().handlers_overdue == 0
    assert consumer.stats().handlers_timed_out == 1


def test_overdue_handlers_are_logged_once_a_minute(nsqd, publish, clock, started, forever, caplog):
    consumer = started(lambda _, message: forever.wait(), nsqd, max_in_flight=3, max_tries=1)
    publish(nsqd, b"1", b"2", b"3")
    publish(nsqd, b"4")
    for _ in range(30):
        clock.advance(10.0)

    lines = warnings(caplog, "its handler has run")
    assert 4 <= len(lines) <= 5
    assert "(2 more handlers likewise)" in lines[-1]
    assert consumer.stats().handlers_overdue == 3


def test_handler_that_touches_its_message_is_not_overdue(nsqd, publish, clock, started, caplog):
    def handle(consumer, message):
        with message.touching():
            clock.sleep(200.0)

    consumer = started(handle, nsqd)
    publish(nsqd, b"x")
    clock.advance(210.0)

    assert warnings(caplog, "its handler") == []
    assert consumer.stats().counts.finished == 1


def test_log_line_of_a_dropped_message_names_the_overdue_handler(nsqd, publish, clock, started, forever, caplog):
    started(lambda _, message: forever.wait(), nsqd, max_tries=0)
    publish(nsqd, b"x")
    for _ in range(30):
        clock.advance(10.0)

    (line, *_) = warnings(caplog, "not handled, it waited for a handler")
    assert "1 of the 1 running handlers are overdue, the longest has run for" in line
    assert "handler_timeout" in line
    assert "lower max_in_flight" not in line


def test_log_line_of_a_dropped_message_advises_to_shorten_a_long_queue(nsqd, publish, clock, started, caplog):
    started(lambda _, message: clock.sleep(40.0), nsqd, max_in_flight=3, concurrency=1)
    publish(nsqd, b"0")
    publish(nsqd, b"1", b"2", b"3")
    clock.advance(100.0)

    (line, *_) = warnings(caplog, "not handled, it waited for a handler")
    assert "lower max_in_flight, raise concurrency, or ask for a longer msg_timeout" in line
    assert "overdue" not in line


def test_log_line_of_an_overdue_handler_advises_to_shorten_a_long_queue(nsqd, publish, clock, started, caplog):
    started(lambda _, message: clock.sleep(50.0), nsqd, max_in_flight=2, concurrency=1)
    publish(nsqd, b"0")
    publish(nsqd, b"1", b"2")
    clock.advance(95.0)

    (line,) = warnings(caplog, "its handler has run")
    assert "lower max_in_flight" in line


def test_async_message_that_times_out_is_logged(nsqd, publish, clock, started, caplog):
    held = []

    def handle(consumer, message):
        message.enable_async()
        held.append(message)

    consumer = started(handle, nsqd, max_tries=0)
    publish(nsqd, b"x")
    clock.advance(70.0)

    (line,) = warnings(caplog, "not answered")
    assert line.startswith(f"t/c: message {held[0].id!r} of {nsqd.tcp_address}: not answered in the 6")
    assert "call finish() or requeue() whatever happens" in line
    assert consumer.stats().async_timed_out == 1
    for _ in range(30):
        clock.advance(10.0)
    assert 4 <= len(warnings(caplog, "not answered")) <= 6
    assert consumer.stats().async_timed_out >= 4
    assert consumer.stats().handlers_timed_out == 0


def test_unanswered_message_of_an_override_is_logged_when_it_times_out(nsqd, publish, clock, started, caplog):
    class Forgetful(Consumer):
        def handle_messages(self, messages):
            pass

    started(None, nsqd, kind=Forgetful, max_in_flight=3)
    publish(nsqd, b"1", b"2")
    clock.advance(70.0)

    assert len(warnings(caplog, "not answered")) == 1


@pytest.mark.parametrize("is_async", [False, True], ids=["handler", "asynchronous"])
def test_given_up_message_whose_first_delivery_is_unanswered_is_logged_so(
    nsqd, publish, clock, started, forever, caplog, is_async
):
    def handle(consumer, message):
        if is_async:
            message.enable_async()
            held.append(message)
        else:
            forever.wait()

    held = []
    started(handle, nsqd, max_tries=1, max_in_flight=2)
    with nsqd.add(on.frame("message"), expire_message()):  # before the consumer's own clock says so
        publish(nsqd, b"1")
        clock.advance(1.0)

    (line,) = warnings(caplog, "given up")
    assert line.endswith("last error: timed out, and is still unanswered here")


def test_given_up_message_that_timed_out_here_is_logged_so(nsqd, publish, clock, started, forever, caplog):
    started(lambda _, message: forever.wait(), nsqd, max_tries=1, max_in_flight=1, concurrency=2)
    publish(nsqd, b"x")
    clock.advance(130.0)

    (line,) = warnings(caplog, "given up")
    assert line.endswith("last error: timed out while its handler ran")


def test_messages_of_a_hanging_batch_are_logged_when_they_time_out(nsqd, publish, clock, started, forever, caplog):
    consumer = started(BatchHandler(1, lambda batch: forever.wait(), clock=clock), nsqd, max_tries=0)
    publish(nsqd, b"x")
    clock.advance(70.0)

    assert len(warnings(caplog, "not answered")) == 1
    assert consumer.stats().async_timed_out == 1
