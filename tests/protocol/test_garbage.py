"""Random bytes in random pieces: only the documented errors, no hang, and bounded memory."""

import contextlib
import itertools
import json
import math
import re
import struct
import zlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gnsq.errors import NSQException, NSQFrameError, NSQProtocolError
from gnsq.options import ConnectionOptions
from gnsq.protocol import commands
from gnsq.protocol.commands import MAX_LINE_SIZE, split_multipublish_body
from gnsq.protocol.compression import Deflate, Snappy
from gnsq.protocol.frames import (
    ERROR,
    LARGE_FRAME_SIZE,
    MESSAGE,
    RESPONSE,
    FrameDecoder,
    decode_message,
    encode_frame,
    encode_message,
)
from gnsq.protocol.handshake import Identity, ReadFrame, StartCompression, StartTLS, Write, handshake
from tests.protocol.decoder import CommandDecoder
from tests.strategies import numbers, values

MAX_FRAME_SIZE = 64
ID = b"0123456789abcdef"


@st.composite
def cut(draw, streams):
    """A stream and the same in pieces, empty ones included."""
    data = draw(streams)
    cuts = [0, *sorted(draw(st.lists(st.integers(0, len(data)), max_size=8))), len(data)]
    return data, [data[start:stop] for start, stop in itertools.pairwise(cuts)]


def joined(items, **limits):
    return st.lists(items, **limits).map(b"".join)


# --- frames

frames = st.tuples(st.sampled_from([RESPONSE, ERROR, MESSAGE, 7, -1]), st.binary(max_size=MAX_FRAME_SIZE - 4))
sizes = st.integers(-(2**31), 2**31 - 1) | st.integers(0, MAX_FRAME_SIZE + 2)
broken_frames = joined(
    frames.map(lambda frame: encode_frame(*frame)) | sizes.map(struct.Struct(">i").pack) | st.binary(max_size=12),
    max_size=6,
)


# Those that put long frames together apart from the stream, and those that never do so with frames this short.
decoders = st.builds(FrameDecoder, st.just(MAX_FRAME_SIZE), st.sampled_from([0, LARGE_FRAME_SIZE]))


def outcome(decoder, pieces):
    """Feed the pieces as a reader does: up to the first error. Gives the frames, and the error's text."""
    got = []
    for piece in pieces:
        got += decoder.feed(piece)
        if decoder.failure is not None:
            return got, str(decoder.failure)
        assert decoder.pending < 4 + MAX_FRAME_SIZE
    return got, None


@given(cut(st.lists(frames, max_size=6).map(lambda items: b"".join(encode_frame(*item) for item in items))), decoders)
def test_frames_are_the_same_however_they_are_cut(stream, decoder):
    data, pieces = stream
    whole = FrameDecoder(MAX_FRAME_SIZE).feed(data)

    assert outcome(decoder, pieces) == (whole, None)
    assert b"".join(encode_frame(*frame) for frame in whole) == data


@given(cut(broken_frames), decoders)
def test_garbage_ends_at_the_same_place_however_it_is_cut(stream, decoder):
    data, pieces = stream

    assert outcome(decoder, pieces) == outcome(FrameDecoder(MAX_FRAME_SIZE), [data])


@given(cut(broken_frames), st.lists(st.booleans(), min_size=9, max_size=9), decoders)
def test_frames_taken_one_by_one_are_those_of_the_stream(stream, singly, decoder):
    data, pieces = stream
    whole, _ = outcome(FrameDecoder(MAX_FRAME_SIZE), [data])
    got = []

    # No complete frame is left in the decoder.
    with contextlib.suppress(NSQFrameError):
        for piece, one in zip(pieces, singly, strict=False):
            if one:
                got += [frame for frame in [decoder.next_frame(piece)] if frame is not None]
                piece = b""
            got += decoder.feed(piece)
            if decoder.failure is not None:
                break
            assert decoder.next_frame() is None
            assert decoder.pending < 4 + MAX_FRAME_SIZE

    assert got == whole


def not_for_a_reader(kind, payload):
    return kind not in (RESPONSE, ERROR, MESSAGE) or (kind == MESSAGE and not is_message(payload))


def is_message(payload):
    return len(payload) >= 26 and payload[10:26].isalnum()


message_ids = st.text("0123456789abcdef", min_size=16, max_size=16).map(str.encode)
messages = st.tuples(st.binary(min_size=10, max_size=10), message_ids, st.binary(max_size=MAX_FRAME_SIZE - 30))
message_frames = messages.map(lambda parts: encode_frame(MESSAGE, b"".join(parts)))


@given(
    cut(joined(message_frames | frames.map(lambda frame: encode_frame(*frame)) | st.binary(max_size=12), max_size=6)),
    decoders,
)
def test_messages_read_from_the_chunk_are_those_of_the_frames(stream, decoder):
    data, pieces = stream
    whole, refusal = outcome(FrameDecoder(MAX_FRAME_SIZE), [data])
    messages, others = [], []

    for piece in pieces:
        if decoder.failure is None:
            others += decoder.feed(piece, messages)
    error = decoder.failure

    wrong = next((index for index, frame in enumerate(whole) if not_for_a_reader(*frame)), None)
    if wrong is None:
        assert (error and str(error)) == refusal
    else:
        assert re.search("at least 26 wanted|is not one of", str(error))
        whole = whole[:wrong]
    assert others == [frame for frame in whole if frame[0] != MESSAGE]
    assert [(message.timestamp, message.attempts, message.id, message.body) for message in messages] == [
        decode_message(payload) for kind, payload in whole if kind == MESSAGE
    ]


@given(cut(broken_frames), st.integers(0, 3), decoders)
def test_detached_bytes_go_on_where_the_handshake_ended(stream, count, decoder):
    data, pieces = stream
    whole = outcome(FrameDecoder(MAX_FRAME_SIZE), [data])
    got, rest, refusal = [], list(pieces), None

    try:
        while len(got) < count and rest:
            got += [frame for frame in [decoder.next_frame(rest.pop(0))] if frame is not None]
    except NSQFrameError as error:
        refusal = str(error)
    if refusal is None:
        more, refusal = outcome(FrameDecoder(MAX_FRAME_SIZE), [decoder.take_remaining(), *rest])
        got += more

    assert (got, refusal) == whole


@given(st.binary(max_size=80) | messages.map(b"".join))
def test_message_data_is_a_message_or_a_frame_error(data):
    try:
        timestamp, attempts, message_id, body = decode_message(data)
    except NSQFrameError:
        assert not is_message(data)
        return
    assert encode_message(timestamp, attempts, message_id, body) == data


# --- commands

words = st.text("abcXYZ019._-#", min_size=1, max_size=20)
names = st.text("abcXYZ019._-", min_size=1, max_size=20)
bodies = st.binary(min_size=1, max_size=40)
good_commands = st.one_of(
    st.builds(commands.publish, names, bodies),
    st.builds(commands.multipublish, names, st.lists(bodies, min_size=1, max_size=4)),
    st.builds(commands.deferpublish, names, bodies, st.integers(0, 10**6)),
    st.builds(commands.subscribe, names, names),
    st.builds(commands.auth, st.binary(max_size=40)),
    st.builds(commands.identify, st.dictionaries(words, st.none() | st.booleans() | st.integers() | words)),
    st.builds(commands.ready, st.integers(0, 2500)),
    st.sampled_from([commands.NOP, commands.close(), commands.finish(ID), commands.touch(ID), commands.requeue(ID, 5)]),
)
broken_commands = joined(
    good_commands
    | st.binary(max_size=20)
    | sizes.map(struct.Struct(">i").pack)
    | st.sampled_from([b"PUB\n", b"MPUB t\n", b"\r\n", b"\n", b" ", b"IDENTIFY\n", b"x" * MAX_LINE_SIZE]),
    max_size=6,
)


def commands_of(pieces):
    """Every command that can be taken, as the pieces come, and the text of the error that ends it."""
    decoder, got = CommandDecoder(), []
    fed = 0
    for piece in pieces:
        decoder.feed(piece)
        fed += len(piece)
        assert decoder.buffered <= fed
        try:
            while (command := decoder.next_command()) is not None:
                got.append(command)
        except ValueError as error:
            return got, str(error), None
    return got, None, decoder.take_remaining()


@given(cut(joined(good_commands, max_size=6)))
def test_commands_are_the_same_however_they_are_cut(stream):
    data, pieces = stream
    got, error, rest = commands_of(pieces)

    assert commands_of([data]) == (got, error, rest) == (got, None, b"")
    assert b"".join(written(command) for command in got) == data


def written(command):
    line = b" ".join([command.name, *command.args]) + b"\n"
    return line if command.body is None else line + struct.pack(">i", len(command.body)) + command.body


@given(cut(broken_commands))
@example((b"x" * MAX_LINE_SIZE + b"\n", [b"x" * MAX_LINE_SIZE, b"\n"]))
def test_garbage_commands_end_at_the_same_place_however_they_are_cut(stream):
    data, pieces = stream

    assert commands_of(pieces) == commands_of([data])


steps = st.one_of(
    st.tuples(st.just("feed"), st.binary(max_size=30) | st.sampled_from([b"NOP\n", b"x\r\n"])),
    st.tuples(st.just("take"), st.integers(0, 40)),
    st.tuples(st.just("line"), st.none()),
    st.tuples(st.just("size"), st.none()),
)


@given(st.lists(steps, max_size=20))
def test_single_steps_return_the_first_bytes(program):
    decoder, kept = CommandDecoder(), b""
    for name, argument in program:
        if name == "feed":
            decoder.feed(argument)
            kept += argument
        elif name == "take":
            wanted = kept[:argument] if len(kept) >= argument else None
            assert decoder.take(argument) == wanted
            kept = kept[len(wanted or b"") :]
        elif name == "line":
            line, newline, rest = kept.partition(b"\n")
            assert decoder.take_line() == (line.removesuffix(b"\r") if newline else None)
            kept = rest if newline else kept
        else:
            assert decoder.take_size() == (int.from_bytes(kept[:4], "big", signed=True) if len(kept) >= 4 else None)
            kept = kept[4:] if len(kept) >= 4 else kept
        assert decoder.buffered == len(kept)
    assert decoder.take_remaining() == kept


@given(joined(st.binary(max_size=12) | sizes.map(struct.Struct(">i").pack), max_size=8))
@example(struct.pack(">i", 2**31 - 1))
@example(struct.pack(">iii", 2**31 - 1, 2**31 - 1, 0))
def test_multipublish_body_is_messages_or_a_value_error(body):
    try:
        messages = split_multipublish_body(body)
    except ValueError:
        return
    parts = [struct.pack(">i", len(message)) + message for message in messages]
    assert struct.pack(">i", len(messages)) + b"".join(parts) == body


# --- compression

CODECS = [pytest.param(Deflate, id="deflate"), pytest.param(Snappy, id="snappy")]
# Snappy gives a chunk at once, of 64 KiB at most; deflate keeps the limit.
READ = 65536
BOUND = {"deflate": lambda limit: limit, "snappy": lambda limit: max(limit, 65536)}
# What may wait for the rest: nothing; one chunk that is not whole.
HELD = {"deflate": 0, "snappy": 80_000}

texts = st.binary(max_size=200) | st.builds(
    lambda text, times: text * times, st.binary(max_size=30), st.integers(1, 900)
)


def drained(codec, data, limit):
    """Decompress all received bytes, and check that pieces and memory are bounded."""
    pieces = []
    while piece := codec.decompress(data, limit):
        assert len(piece) <= BOUND[codec.name](limit)
        pieces.append(piece)
        data = b""
    assert codec.decompress(b"", limit) == b""
    # Behind its end a deflate stream takes nothing more, so that need not be bounded.
    ended = getattr(codec._decompressor, "eof", False)
    assert ended or len(getattr(codec, "_tail", b"")) + len(getattr(codec, "_buffer", b"")) <= HELD[codec.name]
    return b"".join(pieces)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
def test_compressed_streams_are_the_same_however_they_are_cut(codec, data):
    sender, receiver = codec(), codec()
    sent = data.draw(st.lists(texts, max_size=4))
    _, pieces = data.draw(cut(st.just(b"".join(sender.compress(text) for text in sent))))
    limit = data.draw(st.sampled_from([1, 2, 7, 100, 65536]))

    assert b"".join(drained(receiver, piece, limit) for piece in pieces) == b"".join(sent)


deflate_garbage = joined(
    st.binary(max_size=20)
    | texts.map(lambda text: zlib.compress(text, wbits=-15))
    | st.sampled_from([b"\x00\x00\x00\xff\xff", b"\x03\x00"]),
    max_size=4,
)
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"


@st.composite
def snappy_garbage(draw):
    """Chunks of every kind, with sizes and contents that are mostly invalid, often after a valid beginning."""
    parts = [draw(st.sampled_from([IDENTIFIER, IDENTIFIER, IDENTIFIER[:7], b""]))]
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFD, 0xFE, 0xFF]) | st.integers(0, 255))
        content = draw(st.binary(max_size=30) | st.just(Snappy().compress(b"x" * 100)[14:]))
        size = draw(st.sampled_from([len(content)] * 3 + [0, 3, 70_000, 2**24 - 1]))
        parts += [bytes([kind]), size.to_bytes(3, "little"), content]
    return b"".join(parts)


@pytest.mark.parametrize(
    ("codec", "garbage"),
    [pytest.param(Deflate, deflate_garbage, id="deflate"), pytest.param(Snappy, snappy_garbage(), id="snappy")],
)
@given(data=st.data())
def test_compressed_garbage_is_a_protocol_error(codec, garbage, data):
    _, pieces = data.draw(cut(garbage))
    limit = data.draw(st.sampled_from([1, 7, 100, 65536]))
    receiver = codec()

    with contextlib.suppress(NSQProtocolError):
        for piece in pieces:
            drained(receiver, piece, limit)


@pytest.mark.parametrize("codec", CODECS)
@given(size=st.integers(1, 3_000_000), limit=st.sampled_from([100, 4096, 65536]))
@settings(max_examples=10)
def test_highly_compressed_bytes_are_decompressed_in_bounded_pieces(codec, size, limit):
    packed, receiver = codec().compress(bytes(size)), codec()

    sizes = [len(drained(receiver, packed[start : start + READ], limit)) for start in range(0, len(packed), READ)]

    assert sum(sizes) == size


# --- handshake

FIELDS = ["max_rdy_count", "version", "max_msg_timeout", "msg_timeout", "deflate_level", "sample_rate", "identity"]
LAYERS = ["tls_v1", "snappy", "deflate", "auth_required"]
flags = st.fixed_dictionaries({}, optional={name: st.booleans() for name in LAYERS})
answers = st.builds(
    dict.__or__,
    st.dictionaries(st.sampled_from(FIELDS), numbers | values, max_size=3),
    flags | st.dictionaries(st.sampled_from(LAYERS), values, max_size=2),
)
texts_of_answers = (
    answers.map(lambda answer: json.dumps(answer).encode())
    | flags.map(lambda answer: json.dumps(answer).encode())
    | st.sampled_from([b"OK", b"_heartbeat_", b"{}", b"[" * 100_000, b"1" * 5000, b"E_INVALID x", b""])
    | st.binary(max_size=30)
)
handshake_frames = st.lists(
    st.tuples(st.sampled_from([RESPONSE] * 4 + [ERROR, MESSAGE, 9]), texts_of_answers), min_size=1, max_size=6
)
OPTIONS = st.sampled_from(
    [
        {},
        {"tls_v1": True},
        {"snappy": True, "auth_secret": b"s"},
        {"deflate": True},
        {"tls_v1": True, "deflate": True, "deflate_level": 3, "auth_secret": b"s"},
        {"auth_secret": b"s", "output_buffer_timeout": 5},
    ]
)


@given(OPTIONS, handshake_frames)
@settings(max_examples=200)
@pytest.mark.slow
def test_handshake_ends_with_an_identity_or_with_our_error(options, frames):
    generator, left, answer, count = handshake(ConnectionOptions(**options)), list(frames), None, 0
    ended = None
    while ended is None:
        try:
            step = generator.send(answer)
        except StopIteration as end:
            ended = end.value
            break
        except NSQException as error:
            ended = error
            break
        count += 1
        assert isinstance(step, (Write, ReadFrame, StartTLS, StartCompression))
        answer = None
        if isinstance(step, ReadFrame):
            if not left:
                break
            answer = left.pop(0)

    # The result can be printed, since it is logged.
    assert isinstance(str(ended), str)
    assert not isinstance(ended, Identity) or sane(ended)
    # Each frame is answered by two steps at most, and no layer begins twice.
    assert count <= 2 * len(frames) + 5


def sane(identity):
    """Whether what IDENTIFY settled can be reckoned with."""
    times = [time for time in (identity.msg_timeout, identity.max_msg_timeout) if time is not None]
    return identity.max_rdy_count >= 0 and all(0 < time < math.inf for time in times)
