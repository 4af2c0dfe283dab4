"""PeriodicTouch: TOUCH as long as it helps, and no longer."""

import logging

import gevent
import pytest
from gevent.event import Event

from gnsq.errors import NSQConnectionClosed
from gnsq.message import Message
from gnsq.nsqd.in_flight import PeriodicTouch
from tests.helpers import wait_until

ID = b"0123456789abcdef"


class Responder:
    """What a connection would do, by a clock that the test moves."""

    nsqd = "host:4150"

    def __init__(self, clock):
        self.now = clock.monotonic
        self.msg_timeout = 60.0
        self.max_msg_timeout = 300.0
        self.touched = []
        self.answers = []

    def touch(self, message_id):
        self.touched.append(self.now())

    def finish(self, message_id):
        self.answers.append(message_id)


@pytest.fixture
def responder(clock):
    return Responder(clock)


@pytest.fixture
def message(responder):
    return Message(1, 1, ID, b"job", responder, responder.now())


@pytest.fixture
def start(message, clock):
    """Start a toucher of the message; whatever the test leaves running is stopped."""
    touchers = []

    def started(interval=20.0):
        toucher = PeriodicTouch(message, interval, clock, "host:4150: topic/channel")
        touchers.append(toucher)
        toucher.start()
        gevent.sleep(0)
        return toucher

    yield started
    for toucher in touchers:
        toucher.stop()


def test_touches_at_every_interval(start, clock, responder):
    start(20.0)

    clock.advance(65)

    assert responder.touched == [20.0, 40.0, 60.0]


def test_first_touch_comes_earlier_when_the_message_has_waited(start, clock, responder):
    clock.advance(50)
    start(20.0)

    clock.advance(30)

    # Half of the 10 s that were left, then by the interval.
    assert responder.touched == [55.0, 75.0]


def test_interval_longer_than_the_timeout_keeps_the_message_all_the_same(start, clock, responder):
    start(100.0)

    clock.advance(70)

    assert responder.touched == [30.0, 60.0]


def test_message_whose_time_is_over_is_tried_at_once_but_not_in_a_hurry(start, clock, responder):
    clock.advance(70)
    start(20.0)

    clock.advance(20.1)

    assert responder.touched == [70.1, 90.1]


def test_timeout_of_0_is_no_busy_loop(start, clock, responder):
    responder.msg_timeout = 0.0
    start(20.0)

    clock.advance(1)

    assert 9 <= len(responder.touched) <= 10


def test_without_known_timeouts_only_the_interval_counts(start, clock, responder, caplog):
    responder.msg_timeout = responder.max_msg_timeout = None
    start(20.0)

    clock.advance(2000)

    assert len(responder.touched) == 100
    assert caplog.records == []


def test_answer_ends_it_quietly(start, clock, responder, message, caplog):
    toucher = start()
    clock.advance(20)

    message.finish()
    clock.advance(20)

    assert toucher.ended
    assert responder.touched == [20.0]
    assert caplog.records == []


def test_lost_connection_ends_it_quietly(start, clock, responder, caplog):
    def refuse(message_id):
        raise NSQConnectionClosed("gone")

    toucher = start()
    responder.touch = refuse
    clock.advance(20)

    assert toucher.ended
    assert caplog.records == []


def test_answer_in_the_moment_of_the_touch_ends_it_quietly(start, clock, responder, message, caplog):
    def answered_first(message_id):
        message.finish()
        message.touch()

    toucher = start()
    responder.touch = answered_first
    clock.advance(20)

    assert toucher.ended
    assert caplog.records == []


def test_at_the_longest_timeout_it_warns_once_and_stops(start, clock, responder, caplog):
    toucher = start(100.0)
    responder.msg_timeout = 200.0

    clock.advance(299)
    assert caplog.records == []
    clock.advance(1000)

    assert toucher.ended
    assert responder.touched == [30.0, 130.0, 230.0]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("gnsq.nsqd.in_flight", logging.WARNING)
    assert "nsqd takes it back and delivers it again" in record.message
    assert record.message.startswith("host:4150: topic/channel: message ")


def test_block_that_ends_before_the_longest_timeout_is_not_warned_of(start, clock, caplog):
    toucher = start()
    clock.advance(299)

    toucher.stop()
    clock.advance(1000)

    assert toucher.ended
    assert caplog.records == []


def test_stop_ends_it_at_once_and_may_be_repeated(start, clock, responder):
    toucher = start()

    toucher.stop()
    toucher.stop()
    gevent.spawn(toucher.stop).get(timeout=1)
    wait_until(lambda: toucher.ended)
    clock.advance(100)

    assert responder.touched == []


def test_nothing_is_touched_behind_stop_even_when_the_sleep_has_ended(message, clock, responder):
    woken = Event()
    clock.sleep = lambda seconds: woken.wait()
    toucher = PeriodicTouch(message, 20.0, clock, "host:4150: topic/channel")
    toucher.start()
    gevent.sleep(0)

    woken.set()
    toucher.stop()
    wait_until(lambda: toucher.ended)

    assert responder.touched == []


def test_stop_before_start_starts_nothing(message, clock, responder):
    toucher = PeriodicTouch(message, 20.0, clock, "host:4150: topic/channel")

    toucher.stop()
    toucher.start()
    clock.advance(100)

    assert not toucher.ended
    assert responder.touched == []


def test_stop_does_not_cut_a_send_short(start, clock, responder):
    go, sent = Event(), []

    def slow(message_id):
        go.wait()
        sent.append(message_id)

    toucher = start()
    responder.touch = slow
    clock.advance(20)

    toucher.stop()
    gevent.sleep(0)
    go.set()
    wait_until(lambda: toucher.ended)

    assert sent == [ID]


def test_receiver_of_on_touch_that_raises_is_logged_and_ends_it(start, clock, message, caplog):
    def broken(sender):
        raise KeyError("bug")

    message.on_touch.connect(broken)
    toucher = start()
    clock.advance(20)

    assert toucher.ended
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "not touched any more" in record.message


def test_second_start_does_nothing(start, clock, responder):
    start().start()

    clock.advance(20)

    assert responder.touched == [20.0]
