"""A message gets one answer, and knows how much time there is for it."""

import contextlib
import functools
import itertools
import threading
import time
from datetime import UTC, datetime

import pytest

from gnsq.errors import NSQConnectionClosed, NSQException
from gnsq.message import Message, deliver, enable_async_all, finish_all
from gnsq.protocol.frames import MESSAGE, MessageFields, decode_messages, encode_frame, encode_message
from tests.kit import tracing_bytecodes


class Responder:
    nsqd = "host:4150"
    msg_timeout: float | None = 60.0
    max_msg_timeout: float | None = 900.0

    def __init__(self):
        self.calls = []
        self.time = 1000.0

    def now(self):
        return self.time

    def finish(self, message_id):
        self.calls.append(("finish", message_id))

    def finish_all(self, message_ids):
        self.calls.append(("finish all", message_ids))

    def requeue(self, message_id, timeout, backoff):
        self.calls.append(("requeue", message_id, timeout, backoff))

    def requeue_after(self, attempts):
        return 0

    def touch(self, message_id):
        self.calls.append(("touch", message_id))

    def track_async(self, message):
        self.calls.append(("track async", message))

    def untrack_async(self, messages):
        self.calls.append(("untrack async", *messages))

    def mark_timed_out(self, message):
        self.calls.append(("mark timed out", message))

    @contextlib.contextmanager
    def touching(self, message, interval):
        self.calls.append(("touching", message, interval))
        yield
        self.calls.append(("stop", message))


ID = b"0123456789abcdef"


@pytest.fixture
def responder():
    return Responder()


@pytest.fixture
def message(responder):
    return Message(123, 2, ID, b"body", responder, responder.now())


def test_frame_becomes_attributes(message):
    assert (message.timestamp, message.attempts, message.id, message.body) == (123, 2, ID, b"body")
    assert message.nsqd == "host:4150"
    assert repr(message) == "<Message b'0123456789abcdef' attempts=2 of 4 bytes>"


def test_requeue_without_a_delay_takes_that_of_the_responder(responder):
    responder.requeue_after = lambda attempts: attempts * 1000
    for attempts in (1, 3):
        Message(1, attempts, ID, b"x", responder).requeue()
    Message(1, 3, ID, b"x", responder).requeue(0)

    assert [delay for _, _, delay, _ in responder.calls] == [1000, 3000, 0]


MISUSES = [
    pytest.param(lambda m: m.requeue(-1), "time_ms -1 must be at least 0 milliseconds", id="negative delay"),
    pytest.param(lambda m: m.requeue(1.5), r"time_ms must be an int of milliseconds, not 1\.5", id="float"),
    pytest.param(lambda m: m.requeue(5, backoff="no"), "backoff must be True or False, not 'no'", id="backoff"),
    pytest.param(lambda m: m.touching(0).__enter__(), "interval of 0 s is not above 0", id="interval"),
    pytest.param(
        lambda m: m.touching("5").__enter__(), "interval must be a number of seconds, not '5'", id="no number"
    ),
    pytest.param(lambda m: finish_all([m, 5]), "one of them is 5", id="no message"),
]


@pytest.mark.parametrize(("call", "words"), MISUSES)
def test_wrong_argument_is_refused_and_the_message_still_to_be_answered(message, responder, call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call(message)

    message.finish()
    assert responder.calls == [("finish", ID)]


def test_message_without_a_responder_can_be_answered_and_sends_its_signals():
    finished, requeued, got = Message(1, 1, ID, b"x"), Message(1, 42, ID, b"x"), []
    for message in (finished, requeued):
        for name in ("on_touch", "on_requeue", "on_finish"):
            getattr(message, name).connect(lambda sender, name=name, **words: got.append((name, words)), weak=False)

    finished.touch()
    finished.finish()
    requeued.requeue()

    assert finished.nsqd is None
    assert got == [("on_touch", {}), ("on_finish", {}), ("on_requeue", {"timeout": 0, "backoff": True})]
    assert (finished.has_responded(), requeued.has_responded()) == (True, True)
    assert finished != Message(1, 1, ID, b"x")


def interleaved(function, step, first, second):
    """Call first; in front of the given bytecode step of a function inside it, another OS thread calls second.

    Gives whether the function came that far.
    """
    steps = iter(range(step))
    met = []

    def trace(frame, event, argument):
        if frame.f_code is not function.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not met and next(steps, None) is None:
            met.append(True)
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()
        return trace

    with tracing_bytecodes(trace):
        first()
    return bool(met)


@pytest.mark.parametrize("second", ["finish", "requeue", "touch"])
@pytest.mark.parametrize(
    ("first", "text"),
    [
        pytest.param(lambda message: message.finish(), "it was finished before", id="finish"),
        pytest.param(lambda message: finish_all([message]), "it was finished before", id="finish_all"),
        pytest.param(lambda message: message.requeue(), "it was requeued before", id="requeue"),
        pytest.param(lambda message: message.drop(), "its timeout was over before that, and nsqd", id="timeout"),
        pytest.param(
            Message.finish_if_unanswered, r"the return of its handler .*enable_async\(\)", id="return of the handler"
        ),
    ],
)
def test_second_answer_says_what_the_first_was(message, first, text, second):
    first(message)

    with pytest.raises(NSQException, match=f"^already responded: {text}"):
        getattr(message, second)()


@pytest.mark.parametrize("second", ["finish", "requeue"])
@pytest.mark.parametrize("first", ["finish", "requeue"])
def test_of_two_threads_that_answer_one_wins_wherever_they_meet(first, second):
    def answer(message, name, refused):
        try:
            getattr(message, name)()
        except NSQException as error:
            refused.append(str(error))

    for step in itertools.count():
        responder, refused = Responder(), []
        message = Message(1, 1, ID, b"x", responder)
        calls = [functools.partial(answer, message, name, refused) for name in (first, second)]
        if not interleaved(getattr(Message, first), step, *calls):
            break
        assert len(responder.calls) == 1, step
        assert refused[0].startswith("already responded: it was "), step

    assert step > 5


def refuse(*_):
    raise NSQConnectionClosed("gone")


def test_answer_that_the_connection_refuses_is_an_answer_but_a_touch_gives_no_time(message, responder):
    responder.finish = responder.touch = refuse
    responder.time += 50
    with pytest.raises(NSQConnectionClosed):
        message.touch()
    assert message.time_left == 10.0

    with pytest.raises(NSQConnectionClosed):
        message.finish()

    assert message.has_responded()


@pytest.mark.parametrize(
    ("timestamp", "moment"),
    [
        pytest.param(-1, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), id="before the epoch"),
        pytest.param(2**63 - 1, datetime(2262, 4, 11, 23, 47, 16, 854775, UTC), id="last"),
        pytest.param(-(2**63), datetime(1677, 9, 21, 0, 12, 43, 145224, UTC), id="first"),
    ],
)
def test_publishing_time_is_exact_and_aware(timestamp, moment):
    assert Message(timestamp, 1, ID, b"").published_at == moment


def test_age_counts_from_publishing_and_is_not_negative():
    assert 5.0 <= Message(time.time_ns() - 5 * 10**9, 1, ID, b"").age < 60.0
    assert Message(time.time_ns() + 3600 * 10**9, 1, ID, b"").age == 0.0


@pytest.mark.parametrize(
    ("limits", "touched_after", "age", "left"),
    [
        pytest.param((60.0, 900.0), None, 15, (45.0, 885.0), id="from the arrival"),
        pytest.param((60.0, 900.0), None, 901, (0.0, 0.0), id="never negative"),
        pytest.param((60.0, 900.0), 50, 70, (40.0, 830.0), id="a touch begins it anew"),
        pytest.param((60.0, 900.0), 880, 880, (20.0, 20.0), id="no more than the longest timeout"),
        pytest.param((60.0, None), 880, 880, (60.0, None), id="longest timeout unknown"),
        pytest.param((None, None), None, 5, (None, None), id="timeout unknown"),
    ],
)
def test_time_left(message, responder, limits, touched_after, age, left):
    responder.msg_timeout, responder.max_msg_timeout = limits
    if touched_after is not None:
        responder.time = 1000.0 + touched_after
        message.touch()
    responder.time = 1000.0 + age

    assert (message.time_left, message.max_time_left) == left


@pytest.mark.parametrize(
    ("timeout", "given", "used"),
    [
        pytest.param(60.0, None, 20.0, id="a third of the timeout"),
        pytest.param(None, None, 20.0, id="timeout unknown"),
        pytest.param(60.0, 7, 7, id="given"),
    ],
)
def test_touching_lasts_as_long_as_the_block(message, responder, timeout, given, used):
    responder.msg_timeout = timeout

    with message.touching(given):
        assert responder.calls == [("touching", message, used)]

    assert responder.calls[1:] == [("stop", message)]


# --- many at once


def messages_of(responder, *ids):
    return [Message(1, 1, message_id, b"x", responder) for message_id in ids]


def test_many_are_finished_by_one_call_of_each_responder(responder):
    other = Responder()
    first, second, third = messages_of(responder, b"1", b"2", b"3")
    [alien] = messages_of(other, b"4")
    second.enable_async()
    responder.calls.clear()
    heard = []
    third.on_finish.connect(heard.append, weak=False)

    assert finish_all([first, second, alien, third]) == []

    assert responder.calls == [("untrack async", second), ("finish all", [b"1", b"2"]), ("finish all", [b"3"])]
    assert (other.calls, heard) == ([("finish all", [b"4"])], [third])
    assert all(message.has_responded() for message in (first, second, third, alien))


def test_finish_all_returns_answered_messages_and_those_of_lost_connections(responder):
    lost = Responder()
    lost.finish_all = refuse
    answered, open_one = messages_of(responder, b"1", b"2")
    answered.requeue()
    [gone] = messages_of(lost, b"3")

    assert finish_all([answered, gone, open_one]) == [answered, gone]

    assert responder.calls[-1] == ("finish all", [b"2"])
    assert gone.has_responded()


def test_enable_async_all_makes_unanswered_messages_async(responder):
    open_one, answered, asynchronous = messages_of(responder, b"1", b"2", b"3")
    answered.finish()
    asynchronous.enable_async()
    alien = Message(1, 1, b"4", b"x")
    responder.calls.clear()

    assert enable_async_all([open_one, answered, asynchronous, alien]) == [answered]

    assert responder.calls == [("track async", open_one)]
    assert (open_one.is_async(), alien.is_async(), answered.is_async()) == (True, True, False)


def test_message_of_a_frame_is_as_one_made_by_hand(responder):
    messages, frame = [], encode_frame(MESSAGE, encode_message(123, 2, ID, b"body"))
    decode_messages(Message, frame, 0, 1000, messages)
    deliver(messages, responder, 5.0)
    made = Message(123, 2, ID, b"body", responder, 5.0)

    def slots(message):
        return {
            name: getattr(message, name, None)
            for name in (*MessageFields.__slots__, *Message.__slots__)
            if name != "__weakref__"
        }

    assert [slots(message) for message in messages] == [slots(made)]
