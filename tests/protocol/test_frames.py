"""Frames from chunks of every size, and malformed frames."""

import tracemalloc

import pytest

from gnsq.errors import NSQFrameError
from gnsq.protocol.frames import (
    ERROR,
    MESSAGE,
    RESPONSE,
    FrameDecoder,
    MessageFields,
    decode_message,
    decode_messages,
    encode_frame,
    encode_message,
)


def test_frames_of_the_specification_are_read():
    # Source of the bytes: the V2 specification, "Data Format", and recordings of nsqd 1.3.0.
    message = b"\x18\xa3\x02\xdb\x74\xe6\x90\x00\x00\x010123456789abcdefhello"
    stream = b"\x00\x00\x00\x23\x00\x00\x00\x02%b\x00\x00\x00\x06\x00\x00\x00\x00OK" % message
    stream += b"\x00\x00\x00\x0d\x00\x00\x00\x01E_INVALID"

    assert FrameDecoder().feed(stream) == [(MESSAGE, message), (RESPONSE, b"OK"), (ERROR, b"E_INVALID")]


BAD_SIZES = [
    pytest.param(b"\x00\x00\x00\x00", "frame size 0", id="zero"),
    pytest.param(b"\x00\x00\x00\x03", "frame size 3", id="too small for a type"),
    pytest.param(b"\xff\xff\xff\xff", "frame size -1", id="negative, or 4 GiB unsigned"),
    pytest.param(b"\x80\x00\x00\x00", "frame size -2147483648", id="2 GiB unsigned"),
    pytest.param(b"\x7f\xff\xff\xff", "not within 4 to 268435456", id="2 GiB less one"),
    pytest.param(b"HTTP", "the peer speaks HTTP", id="http"),
    pytest.param(b"\x15\x03\x03\x00", "the peer speaks TLS", id="tls alert"),
]


@pytest.mark.parametrize(("head", "words"), BAD_SIZES)
def test_bad_size_is_refused_at_its_fourth_byte(head, words):
    decoder = FrameDecoder()
    decoder.feed(head[:3])
    assert decoder.failure is None

    decoder.feed(head[3:])

    assert words in str(decoder.failure)
    with pytest.raises(NSQFrameError, match=words):
        FrameDecoder().next_frame(head)


@pytest.mark.parametrize(("head", "words"), BAD_SIZES)
@pytest.mark.parametrize("tail", [b"", b"\x00\x00\x00\x00junk"], ids=["cut", "more"])
def test_frames_before_a_bad_one_are_given_out_first(head, words, tail):
    decoder = FrameDecoder()

    assert decoder.feed(encode_frame(RESPONSE, b"OK") + head + tail) == [(RESPONSE, b"OK")]

    assert words in str(decoder.failure)


def test_announced_size_reserves_no_memory():
    decoder = FrameDecoder(max_frame_size=2**31 - 1)

    decoder.feed(b"\x7f\xff\xff\xff" + b"\x00\x00\x00\x02" + b"x" * 10)

    assert decoder.pending == 18


LARGE = 8 * 1024 * 1024
HEAD = encode_frame(MESSAGE, encode_message(1, 2, b"0123456789abcdef", bytes(LARGE)))[:40]


def test_large_message_is_not_copied():
    decoder, messages = FrameDecoder(), []
    tracemalloc.start()
    try:
        for chunk in [HEAD, *[bytes(65536)] * (LARGE // 65536)]:
            decoder.feed(chunk, messages)
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert LARGE <= len(messages[0].body) <= current
    # What a growing buffer has too much, and the chunk that came.
    assert peak < 1.3 * LARGE


MESSAGE_DATA = encode_message(1, 2, b"0123456789abcdef", b"x" * 100)


def test_large_frame_that_next_frame_has_started_is_read_by_feed():
    decoder, messages = FrameDecoder(large_frame_size=50), []
    frame = encode_frame(MESSAGE, MESSAGE_DATA)

    assert decoder.next_frame(frame[:60]) is None
    others = decoder.feed(frame[60:] + frame[:60], messages) + decoder.feed(frame[60:], messages)

    assert others == []
    assert [message.body for message in messages] == [b"x" * 100] * 2


def test_large_frame_of_unknown_type_is_left_in_failure():
    decoder, messages = FrameDecoder(large_frame_size=50), []
    frame = encode_frame(7, b"x" * 100)

    assert decoder.feed(frame[:60], messages) == decoder.feed(frame[60:], messages) == []
    assert "frame type 7 is not one of" in str(decoder.failure)


def test_attempts_are_unsigned_and_wrap():
    assert decode_message(encode_message(0, 40000, b"0" * 16, b""))[1] == 40000
    assert decode_message(encode_message(0, 65537, b"0" * 16, b""))[1] == 1


def test_short_message_is_a_frame_error():
    with pytest.raises(NSQFrameError, match="message frame of 25 bytes"):
        decode_message(bytes(25))


def framed(body):
    return encode_frame(MESSAGE, encode_message(123, 2, b"0123456789abcdef", body))


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        framed(b"cut")[:-1],
        framed(b"cut")[:33],
        framed(b"of more than max_size"),
        encode_frame(MESSAGE, bytes(25)) + bytes(99),
        encode_frame(RESPONSE, b"x" * 99),
        b"\xff\xff\xff\xff" + bytes(99),
    ],
    ids=["nothing", "part of a message", "part of its header", "too large", "too short", "response", "negative size"],
)
def test_messages_are_decoded_up_to_a_frame_of_another_type(rest):
    messages = []
    front = framed(b"") + framed(b"2")

    assert decode_messages(MessageFields, b"head" + front + rest, 4, 35, messages) == 4 + len(front)

    assert [message.body for message in messages] == [b"", b"2"]
