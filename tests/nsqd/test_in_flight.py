"""Messages in flight: in_flight from other OS threads are sent by the connection's hub; periodic TOUCH."""

import contextlib
import logging
import threading

import gevent
import pytest
from gevent.event import Event

from gnsq.clock import RealClock
from gnsq.errors import NSQConnectionClosed
from gnsq.logs import LogOwner
from gnsq.message import Message, finish_all
from gnsq.nsqd.in_flight import AnswerListener, InFlightMessages
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


class Block:
    """A block with touching() for a message on a clock that the test turns; touched has the times."""

    def __init__(self, clock):
        self.touched = []
        owner = LogOwner("topic/channel", clock.monotonic)
        self.in_flight = InFlightMessages("host:4150", self.send, lambda: None, clock, owner)
        self.in_flight.msg_timeout, self.in_flight.max_msg_timeout = 60.0, 300.0
        self.message = Message(1, 1, ID, b"job", self.in_flight, clock.monotonic())
        self._stack = contextlib.ExitStack()

    def send(self, data):
        if data.startswith(b"TOUCH"):
            self.touched.append(self.in_flight.now())

    def begin(self, interval=20.0):
        self._stack.enter_context(self.message.touching(interval))
        gevent.sleep(0)

    def end(self):
        self._stack.close()


@pytest.fixture
def block(clock):
    made = Block(clock)
    yield made
    made.end()


@pytest.mark.parametrize(
    ("interval", "touched"),
    [
        pytest.param(20.0, [20.0, 40.0, 60.0], id="given"),
        pytest.param(100.0, [30.0, 60.0], id="longer than the timeout"),
    ],
)
def test_touches_at_every_interval_or_twice_in_the_timeout(block, clock, interval, touched):
    block.begin(interval)

    clock.advance(70)

    assert block.touched == touched


def test_first_touch_comes_earlier_when_the_message_has_waited(block, clock):
    clock.advance(50)
    block.begin(20.0)

    clock.advance(30)

    # Half of the 10 s that were left, then by the interval.
    assert block.touched == [55.0, 75.0]


def test_timeout_of_0_is_no_busy_loop(block, clock):
    block.in_flight.msg_timeout = 0.0
    block.begin(20.0)

    clock.advance(1)

    assert 9 <= len(block.touched) <= 10


def test_without_known_timeouts_only_the_interval_counts(block, clock, caplog):
    block.in_flight.msg_timeout = block.in_flight.max_msg_timeout = None
    block.begin(20.0)

    clock.advance(2000)

    assert len(block.touched) == 100
    assert caplog.records == []


def lose(message):
    raise NSQConnectionClosed("gone")


def answer_first(message):
    message.finish()
    message.touch()


@pytest.mark.parametrize("at_touch", [None, lose, answer_first], ids=["answered", "lost", "answered in that moment"])
def test_message_that_is_answered_or_lost_ends_it_quietly(block, clock, caplog, at_touch):
    block.begin()
    clock.advance(20)

    if at_touch is None:
        block.message.finish()
    else:
        block.in_flight.touch = lambda message_id: at_touch(block.message)
    clock.advance(40)

    assert block.touched == [20.0]
    assert caplog.records == []


def test_at_the_longest_timeout_it_warns_once_and_stops(block, clock, caplog):
    block.begin(100.0)
    block.in_flight.msg_timeout = 200.0

    clock.advance(299)
    assert caplog.records == []
    clock.advance(1000)

    assert block.touched == [30.0, 130.0, 230.0]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("gnsq.nsqd.in_flight", logging.WARNING)
    assert "nsqd takes it back and delivers it again" in record.message
    assert record.message.startswith("host:4150: topic/channel: message ")


def test_no_touch_is_sent_after_the_block_even_if_the_sleep_has_ended(block, clock):
    woken, waited = Event(), []
    clock.wait = lambda stopped, seconds: woken.wait() and (waited.append(1) or stopped.ready())
    block.begin()

    woken.set()
    block.end()
    wait_until(lambda: waited)

    assert block.touched == []


def test_end_of_the_block_does_not_cut_a_send_short(block, clock):
    go, sent = Event(), []

    def slow(message_id):
        go.wait()
        sent.append(message_id)

    block.begin()
    block.in_flight.touch = slow
    clock.advance(20)

    block.end()
    gevent.sleep(0)
    go.set()

    wait_until(lambda: sent == [ID])


@pytest.mark.parametrize("call", [lambda function: function(), in_thread], ids=["here", "in a thread"])
def test_touching_ends_with_a_block_that_raises(block, clock, call):
    def fail():
        with block.message.touching(20.0):
            raise KeyError("job")

    with pytest.raises(KeyError):
        call(fail)
    clock.advance(50)

    assert block.touched == []


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


def test_receiver_of_on_touch_that_raises_is_logged_and_touching_goes_on(block, clock, caplog):
    def broken(sender):
        raise KeyError("bug")

    block.message.on_touch.connect(broken)
    block.begin(20.0)
    clock.advance(50)

    assert block.touched == [20.0, 40.0]
    assert caplog.text.count("a receiver of on_touch of <Message") == 2
