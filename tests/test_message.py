"""A message gets one answer."""

import pytest

from gnsq.errors import NSQException
from gnsq.message import Message
from gnsq.protocol.frames import encode_message


class Responder:
    nsqd = "host:4150"

    def __init__(self):
        self.calls = []

    def finish(self, message_id):
        self.calls.append(("finish", message_id))

    def requeue(self, message_id, timeout, backoff):
        self.calls.append(("requeue", message_id, timeout, backoff))

    def touch(self, message_id):
        self.calls.append(("touch", message_id))


ID = b"0123456789abcdef"


@pytest.fixture
def responder():
    return Responder()


@pytest.fixture
def message(responder):
    return Message.from_frame(encode_message(123, 2, ID, b"body"), responder)


def test_frame_becomes_attributes(message):
    assert (message.timestamp, message.attempts, message.id, message.body) == (123, 2, ID, b"body")
    assert message.nsqd == "host:4150"
    assert repr(message) == "<Message b'0123456789abcdef' attempts=2 of 4 bytes>"


def test_finish_reaches_the_responder(message, responder):
    message.finish()

    assert responder.calls == [("finish", ID)]
    assert message.has_responded()


def test_requeue_reaches_the_responder(message, responder):
    message.requeue(250, backoff=False)

    assert responder.calls == [("requeue", ID, 250, False)]


@pytest.mark.parametrize("first", [Message.finish, Message.requeue])
@pytest.mark.parametrize("second", [Message.finish, Message.requeue, Message.touch])
def test_second_answer_raises(message, responder, first, second):
    first(message)

    with pytest.raises(NSQException, match="already responded"):
        second(message)
    assert len(responder.calls) == 1


def test_touch_may_be_repeated(message, responder):
    message.touch()
    message.touch()

    assert responder.calls == [("touch", ID)] * 2
    assert not message.has_responded()


def test_negative_delay_is_refused_and_the_message_still_to_be_answered(message, responder):
    with pytest.raises(ValueError, match="-1 ms is negative"):
        message.requeue(-1)

    message.finish()
    assert responder.calls == [("finish", ID)]


def test_delay_that_is_no_int_is_refused_and_the_message_still_to_be_answered(message, responder):
    with pytest.raises(TypeError, match=r"int of milliseconds, not 1\.5"):
        message.requeue(1.5)

    message.finish()
    assert responder.calls == [("finish", ID)]


def test_async_is_remembered(message):
    assert not message.is_async()
    message.enable_async()
    assert message.is_async()


def test_signals_are_sent_by_their_names(message):
    got = []
    for name in ("on_touch", "on_requeue"):
        getattr(message, name).connect(lambda sender, name=name, **words: got.append((name, words)), weak=False)

    message.touch()
    message.requeue(5)

    assert got == [("on_touch", {}), ("on_requeue", {"timeout": 5, "backoff": True})]


def test_finish_signal_is_sent_once(message):
    got = []
    message.on_finish.connect(got.append, weak=False)

    message.finish()

    assert got == [message]


def test_message_without_a_responder_can_be_answered():
    message = Message(1, 1, ID, b"x")

    message.touch()
    message.finish()

    assert message.nsqd is None
    assert message.has_responded()


def test_equality_is_identity():
    assert Message(1, 1, ID, b"x") != Message(1, 1, ID, b"x")
