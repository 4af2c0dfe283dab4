"""Reading sizes, bodies and messages: whole, byte by byte, and cut short."""

import struct

import pytest

from fakensqd.reader import Input, Refusal
from gnsq.protocol.commands import multipublish_body


def sized(data):
    return struct.pack(">i", len(data)) + data


READERS = [
    pytest.param(lambda source: source.read(3, b"x"), b"abc", b"abc", id="read"),
    pytest.param(lambda source: source.read_size(b"x"), b"\xff\xff\xff\xfe", -2, id="size"),
    pytest.param(lambda source: source.read_body(b"IDENTIFY", 10), sized(b"{}"), b"{}", id="body"),
    pytest.param(lambda source: source.read_message(b"PUB", 10), sized(b"hello"), b"hello", id="message"),
    pytest.param(
        lambda source: source.read_messages(10, 100), multipublish_body([b"a", b"bc"]), [b"a", b"bc"], id="messages"
    ),
]


def result(reading):
    """Run a reader on what is there; give back what it returns, None if it waits for more."""
    try:
        next(reading)
    except StopIteration as end:
        return end.value
    return None


@pytest.mark.parametrize(("read", "data", "value"), READERS)
def test_whole_and_with_a_tail(read, data, value):
    source = Input()
    source.decoder.feed(data + b"tail")

    assert result(read(source)) == value
    assert source.decoder.detach() == b"tail"


@pytest.mark.parametrize(("read", "data", "value"), READERS)
def test_byte_by_byte(read, data, value):
    source = Input()
    reading = read(source)
    for byte in data[:-1]:
        source.decoder.feed(bytes([byte]))
        assert result(reading) is None
    source.decoder.feed(data[-1:])

    assert result(reading) == value


def refused(read, data):
    source = Input()
    source.decoder.feed(data)
    source.ended = True
    with pytest.raises(Refusal) as caught:
        result(read(source))
    assert caught.value.fatal
    return caught.value.data


def number(value):
    return struct.pack(">i", value)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\0\0\0", b"E_BAD_BODY AUTH failed to read body size"),
        (number(11), b"E_BAD_BODY AUTH body too big 11 > 10"),
        (number(0), b"E_BAD_BODY AUTH invalid body size 0"),
        (number(-1), b"E_BAD_BODY AUTH invalid body size -1"),
        (number(3) + b"ab", b"E_BAD_BODY AUTH failed to read body"),
    ],
)
def test_body_refuses(data, answer):
    assert refused(lambda source: source.read_body(b"AUTH", 10), data) == answer


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", b"E_BAD_MESSAGE DPUB failed to read message body size"),
        (number(0), b"E_BAD_MESSAGE DPUB invalid message body size 0"),
        (number(11), b"E_BAD_MESSAGE DPUB message too big 11 > 10"),
        (number(2) + b"a", b"E_BAD_MESSAGE DPUB failed to read message body"),
    ],
)
def test_message_refuses(data, answer):
    assert refused(lambda source: source.read_message(b"DPUB", 10), data) == answer


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\0", b"E_BAD_BODY MPUB failed to read message count"),
        (number(0), b"E_BAD_BODY MPUB invalid message count 0"),
        (number(-1), b"E_BAD_BODY MPUB invalid message count -1"),
        (number(20), b"E_BAD_BODY MPUB invalid message count 20"),
        (number(19), b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (number(2) + sized(b"a"), b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
        (number(2) + sized(b"a") + number(0), b"E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
        (number(1) + number(11), b"E_BAD_MESSAGE MPUB message too big 11 > 10"),
        (number(1) + number(2) + b"a", b"E_BAD_MESSAGE MPUB failed to read message body"),
    ],
)
def test_messages_refuse(data, answer):
    assert refused(lambda source: source.read_messages(10, 100), data) == answer


def test_a_failed_answer_to_a_message_is_not_fatal():
    assert not Refusal(b"E_FIN_FAILED FIN x failed ID not in flight").fatal
