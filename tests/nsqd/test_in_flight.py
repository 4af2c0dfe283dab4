"""Messages in flight: in_flight from other OS threads are sent by the connection's hub; periodic TOUCH."""

import logging
import threading

import gevent
import pytest
from gevent.event import Event

from gnsq.clock import RealClock
from gnsq.errors import NSQConnectionClosed
from gnsq.logs import LogOwner
from gnsq.message import Message, finish_all
from gnsq.nsqd.in_flight import AnswerListener, InFlightMessages, logger, touch_periodically
from gnsq.stats import LatencyRecorder
from tests.kit import wait_until

ID = b"0123456789abcdef"


def in_thread(function):
    """Call a function in another OS thread; return its result or raise its exception."""
    return gevent.get_hub().threadpool.apply(function)


@pytest.fixture
def sent():
    """Queued commands, each with its thread."""
    return []


class Answers(AnswerListener):
    """Notes the answers."""

    wants_finishes = True

    def __init__(self):
        self.finished = []

    def on_finish(self, connection, message_id):
        self.finished.append(message_id)


@pytest.fixture
def answers():
    return Answers()


@pytest.fixture
def latency():
    return LatencyRecorder()


@pytest.fixture
def in_flight(sent, answers, latency):
    made = InFlightMessages(
        *("nsqd:4150", lambda data: sent.append((data, threading.get_ident())), lambda: None, RealClock()),
        listener=answers,
        latency=latency,
    )
    made.in_flight = 2
    return made


def test_answers_from_a_thread_are_sent_by_the_hub(in_flight, sent):
    def answer():
        in_flight.touch(ID)
        in_flight.finish(ID)
        in_flight.requeue(ID, 5, True)

    in_thread(answer)
    wait_until(lambda: len(sent) == 3)

    here = threading.get_ident()
    assert sent == [
        (b"TOUCH %s\n" % ID, here),
        (b"FIN %s\n" % ID, here),
        (b"REQ %s 5\n" % ID, here),
    ]
    assert in_flight.in_flight == 0
    assert in_flight.drained.is_set()


def new_message(in_flight, number, received):
    message = Message(1, 1, b"%016d" % number, b"x", in_flight, received)
    message.enable_async()
    return message


@pytest.mark.parametrize("call", [lambda function: function(), in_thread], ids=["here", "in a thread"])
def test_many_answers_are_one_command_and_counted_as_many(in_flight, sent, answers, latency, call):
    now = in_flight.now()
    messages = [
        new_message(in_flight, 1, now - 3),
        new_message(in_flight, 2, now - 3),
        new_message(in_flight, 3, now),
        new_message(in_flight, 4, now),
    ]
    messages[3].mark_timed_out()
    in_flight.in_flight = 3

    assert call(lambda: finish_all(messages)) == []
    wait_until(lambda: sent)

    assert [data for data, _ in sent] == [b"".join(b"FIN %016d\n" % number for number in (1, 2, 3, 4))]
    assert answers.finished == [message.id for message in messages]
    assert in_flight.totals.finished == 4
    assert in_flight.totals.timed_out == 0
    assert (in_flight.in_flight, in_flight.async_messages, in_flight.drained.is_set()) == (0, set(), True)
    assert sum(latency.counts) == 4
    assert latency.total >= 6


def test_answer_of_a_closed_connection_raises_in_the_calling_thread():
    def check():
        raise NSQConnectionClosed("nsqd:4150: closed")

    in_flight = InFlightMessages("nsqd:4150", lambda data: None, check, RealClock())

    with pytest.raises(NSQConnectionClosed, match="closed"):
        in_thread(lambda: in_flight.finish(ID))


@pytest.mark.parametrize("others", [0, 1])
def test_answer_that_could_not_be_sent_is_not_counted(others):
    def refuse(data):
        raise NSQConnectionClosed("closed")

    in_flight = InFlightMessages("nsqd:4150", refuse, lambda: None, RealClock())
    in_flight.in_flight = 1 + others

    with pytest.raises(NSQConnectionClosed):
        in_flight.finish(ID)

    assert in_flight.totals.finished == 0


def test_connection_that_closes_on_the_way_is_logged(sent, caplog):
    caplog.set_level("INFO")

    def send(data):
        sent.append(data)
        raise NSQConnectionClosed("nsqd:4150: gone meanwhile")

    in_flight = InFlightMessages("nsqd:4150", send, lambda: None, RealClock())
    in_thread(lambda: in_flight.finish(ID))
    wait_until(lambda: sent)

    assert "an answer from another thread was not sent: nsqd:4150: gone meanwhile" in caplog.text


# --- periodic touch

ID = b"0123456789abcdef"


class TouchResponder:
    """Records TOUCH and FIN, by a clock that the test turns."""

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
    return TouchResponder(clock)


@pytest.fixture
def message(responder):
    return Message(1, 1, ID, b"job", responder, responder.now())


class PeriodicTouch:
    """A greenlet that touches a message."""

    def __init__(self, message, interval, clock):
        stopped, log = Event(), LogOwner("topic/channel", clock.monotonic).log(logger, nsqd="host:4150")
        self._greenlet = gevent.Greenlet(touch_periodically, message, interval, stopped, clock, log)
        self.start = self._greenlet.start
        self.stop = stopped.set

    @property
    def ended(self):
        return self._greenlet.dead


@pytest.fixture
def start(message, clock):
    """Start a PeriodicTouch of the message; it is stopped after the test."""
    touchs = []

    def started(interval=20.0):
        touch = PeriodicTouch(message, interval, clock)
        touchs.append(touch)
        touch.start()
        gevent.sleep(0)
        return touch

    yield started
    for touch in touchs:
        touch.stop()


@pytest.mark.parametrize(
    ("interval", "touched"),
    [
        pytest.param(20.0, [20.0, 40.0, 60.0], id="given"),
        pytest.param(100.0, [30.0, 60.0], id="longer than the timeout"),
    ],
)
def test_touches_at_every_interval_or_twice_in_the_timeout(start, clock, responder, interval, touched):
    start(interval)

    clock.advance(70)

    assert responder.touched == touched


def test_first_touch_comes_earlier_when_the_message_has_waited(start, clock, responder):
    clock.advance(50)
    start(20.0)

    clock.advance(30)

    # Half of the 10 s that were left, then by the interval.
    assert responder.touched == [55.0, 75.0]


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


def lose(message):
    raise NSQConnectionClosed("gone")


def answer_first(message):
    message.finish()
    message.touch()


@pytest.mark.parametrize("at_touch", [None, lose, answer_first], ids=["answered", "lost", "answered in that moment"])
def test_message_that_is_answered_or_lost_ends_it_quietly(start, clock, responder, message, caplog, at_touch):
    touch = start()
    clock.advance(20)

    if at_touch is None:
        message.finish()
    else:
        responder.touch = lambda message_id: at_touch(message)
    clock.advance(20)

    assert touch.ended
    assert responder.touched == [20.0]
    assert caplog.records == []


def test_at_the_longest_timeout_it_warns_once_and_stops(start, clock, responder, caplog):
    touch = start(100.0)
    responder.msg_timeout = 200.0

    clock.advance(299)
    assert caplog.records == []
    clock.advance(1000)

    assert touch.ended
    assert responder.touched == [30.0, 130.0, 230.0]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("gnsq.nsqd.in_flight", logging.WARNING)
    assert "nsqd takes it back and delivers it again" in record.message
    assert record.message.startswith("host:4150: topic/channel: message ")


def test_no_touch_is_sent_after_stop_even_if_the_sleep_has_ended(message, clock, responder):
    woken = Event()
    clock.wait = lambda stopped, seconds: woken.wait() and stopped.ready()
    touch = PeriodicTouch(message, 20.0, clock)
    touch.start()
    gevent.sleep(0)

    woken.set()
    touch.stop()
    wait_until(lambda: touch.ended)

    assert responder.touched == []


def test_stop_does_not_cut_a_send_short(start, clock, responder):
    go, sent = Event(), []

    def slow(message_id):
        go.wait()
        sent.append(message_id)

    touch = start()
    responder.touch = slow
    clock.advance(20)

    touch.stop()
    gevent.sleep(0)
    go.set()
    wait_until(lambda: touch.ended)

    assert sent == [ID]


@pytest.mark.parametrize("call", [lambda function: function(), in_thread], ids=["here", "in a thread"])
def test_touching_ends_with_a_block_that_raises(clock, call):
    sent = []
    in_flight = InFlightMessages("host:4150", sent.append, lambda: None, clock)
    message = Message(1, 1, ID, b"job", in_flight, clock.monotonic())

    def block():
        with message.touching(20.0):
            raise KeyError("job")

    with pytest.raises(KeyError):
        call(block)
    clock.advance(50)

    assert sent == []


def test_touching_in_a_thread_runs_the_block_after_the_connection_was_closed(clock):
    def check():
        raise NSQConnectionClosed("gone")

    ran = []
    message = Message(1, 1, ID, b"job", InFlightMessages("host:4150", ran.append, check, clock), 0.0)

    def block():
        with message.touching():
            ran.append("block")

    in_thread(block)

    assert ran == ["block"]


def test_receiver_of_on_touch_that_raises_is_logged_and_touching_goes_on(clock, caplog):
    sent = []
    in_flight = InFlightMessages("host:4150", sent.append, lambda: None, clock)
    message = Message(1, 1, ID, b"job", in_flight, clock.monotonic())

    def broken(sender):
        raise KeyError("bug")

    message.on_touch.connect(broken)
    with message.touching(20.0):
        clock.advance(50)

    assert sent == [b"TOUCH %s\n" % ID] * 2
    assert caplog.text.count("a receiver of on_touch of <Message") == 2
