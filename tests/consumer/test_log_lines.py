"""Log lines of a consumer: each names it, an event is one line, and a line has an address once."""

import logging
from fnmatch import fnmatchcase

import gevent
from gevent.event import Event

from fakensqd.faults import error, on
from gnsq import Consumer, Producer
from gnsq.consumer.handlers import HandlerSignal
from tests.kit import wait_until


def test_option_that_nsqd_refuses_is_an_error_that_names_it(nsqd, clock, started, lines):
    consumer = started(lambda consumer, message: None, nsqd, msg_timeout=60_000)
    clock.advance(50.0)

    (line,) = lines(logging.ERROR)
    assert "the option msg_timeout is 60000 s; nsqd limits it by --max-msg-timeout" in line
    assert not consumer.is_healthy


def test_loss_of_a_stable_connection_is_logged_each_time(nsqd, clock, started, lines):
    started(lambda consumer, message: None, nsqd)
    for lasted, wait in ((1.0, 8.0), (1.0, 16.0), (12.0, 0.0)):
        clock.advance(lasted)
        nsqd.link.abort()
        clock.advance(wait)

    said = f"{nsqd.tcp_address}: t/c: connection lost: nsqd closed the connection; trying again in [5-8].? s"
    first, second = lines(logging.WARNING)
    assert fnmatchcase(first, said)
    assert fnmatchcase(second, f"{said} (and 1 like it since the last such line)")


def test_bug_in_the_reader_of_messages_is_one_line_with_its_traceback(fakensqd, caplog):
    class BrokenSignal(HandlerSignal):
        def receivers_for(self, sender):
            raise ZeroDivisionError

    class Broken(Consumer):
        def handle_message(self, conn, message):
            """Make a receiver unnecessary."""

    consumer = Broken("t", "c", fakensqd.tcp_address, reconnect_initial=60)
    consumer.on_message = BrokenSignal("on_message")
    with consumer:
        with Producer(fakensqd.tcp_address) as producer:
            producer.publish("t", b"x")
        wait_until(lambda: [record for record in caplog.records if record.levelno >= logging.WARNING])

    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.levelno == logging.ERROR
    assert ": t/c: connection lost: internal error: ZeroDivisionError(); trying again in" in record.getMessage()
    assert "raise ZeroDivisionError" in record.exc_text


def test_timed_out_messages_are_logged_per_consumer_and_not_per_connection(nsqds, clock, publish, started, lines):
    held = []
    consumer = started(lambda _, message: (message.enable_async(), held.append(message)), *nsqds[:2], max_in_flight=10)
    for nsqd in nsqds[:2]:
        publish(nsqd, b"x")
    assert len(held) == 2
    clock.advance(70.0)
    for message in held:
        message.finish()
    clock.advance(0.0)

    assert (consumer.total_in_flight, consumer.stats().counts.timed_out) == (0, 2)
    (line,) = [line for line in lines(logging.WARNING) if "its timeout was over" in line]
    assert ": t/c: E_FIN_FAILED" in line


def test_close_counts_messages_that_time_out_as_such(nsqd, clock, publish, started, lines):
    forever = Event()
    consumer = started(lambda _, message: forever.wait(), nsqd, max_in_flight=4, msg_timeout=3.0, close_timeout=5.0)
    publish(nsqd, b"1")
    publish(nsqd, b"2")
    clock.advance(4.5)  # nsqd delivers both again
    gevent.spawn(consumer.close)
    clock.advance(10.0)
    forever.set()

    assert lines()[-3:] == [
        "t/c: closing, with up to 5 s for 2 messages in flight and 2 timed out on 1 connection",
        "t/c: 4 messages were not answered within 5.0 s of close(), 4 of them by handlers that still run; 4 timed out "
        "before: nsqd delivers them again",
        "t/c: closed; 4 messages timed out",
    ]
    assert consumer.stats().unanswered == 4


def test_requeue_that_nsqd_refuses_is_not_counted_as_one(nsqd, clock, publish, started, lines):
    forever = Event()
    consumer = started(lambda _, message: forever.wait(), nsqd, max_in_flight=2, close_timeout=5.0)
    publish(nsqd, b"1")
    publish(nsqd, b"2")
    nsqd.add(on.command("REQ"), error("E_REQ_FAILED"))
    gevent.spawn(consumer.close)
    clock.advance(10.0)
    forever.set()

    assert lines()[-1] == "t/c: closed; 1 message requeued and 1 message timed out"
    assert consumer.stats().unanswered == 2


def test_close_logs_how_many_messages_nsqd_delivers_again(nsqd, clock, publish, started, lines):
    forever = Event()
    consumer = started(lambda _, message: forever.wait(), nsqd, close_timeout=5.0)
    publish(nsqd, b"1")
    gevent.spawn(consumer.close)
    clock.advance(1.0)
    nsqd.link.abort()
    clock.advance(10.0)
    forever.set()

    assert lines(logging.WARNING) == []
    assert lines()[-2:] == [
        f"{nsqd.tcp_address}: t/c: lost while closing: nsqd closed the connection",
        "t/c: closed; 1 message not answered, which nsqd delivers again",
    ]


def test_repr_of_a_consumer_shows_its_state(nsqd, clock, publish, started):
    consumer = started(lambda _, message: message.enable_async(), nsqd)
    publish(nsqd, b"1")

    assert repr(consumer) == "<Consumer t/c running, 1 connection, 1 message in flight>"
    assert repr(Consumer("t", "c", "a", name="n")) == "<Consumer n t/c init, 0 connections, 0 messages in flight>"
