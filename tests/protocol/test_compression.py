"""Both codecs: streams cut anywhere, hostile peers, missing libraries."""

import zlib

import pytest

from gnsq.errors import NSQProtocolError
from gnsq.protocol.compression import Deflate, Snappy

LIMIT = 65536
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"

CODECS = [pytest.param(Deflate, id="deflate"), pytest.param(Snappy, id="snappy")]


def read(codec, data):
    """Decompress all received bytes."""
    result = b""
    while piece := codec.decompress(data, LIMIT):
        result, data = result + piece, b""
    return result


def skippable(size, kind=0x80):
    return bytes([kind]) + size.to_bytes(3, "little") + b"x" * size


@pytest.mark.parametrize("codec", CODECS)
def test_each_command_can_be_read_as_soon_as_it_came(codec):
    sender, receiver = codec(), codec()

    for data in (b"NOP\n", b"PUB t\n\x00\x00\x00\x01x", b"x" * 200_000):
        assert read(receiver, sender.compress(data)) == data


@pytest.mark.parametrize("level", [1, 9])
def test_deflate_is_raw_and_sync_flushed(level):
    stream = Deflate(level).compress(b"hello")

    assert stream.endswith(b"\x00\x00\xff\xff")
    assert zlib.decompressobj(wbits=-15).decompress(stream) == b"hello"


def test_empty_deflate_blocks_decompress_to_nothing():
    receiver = Deflate()

    assert read(receiver, b"\x00\x00\x00\xff\xff") == b""
    assert read(receiver, b"\x00\x00\x00\xff\xff" + Deflate().compress(b"OK")) == b"OK"


def test_small_snappy_chunks_are_read_together():
    sender, receiver = Snappy(), Snappy()

    assert receiver.decompress(b"".join(sender.compress(b"x" * 10) for _ in range(100)), LIMIT) == b"x" * 1000


@pytest.mark.parametrize(
    ("codec", "data", "words"),
    [
        pytest.param(Deflate, b"\xff\xff\xff\xff", "no deflate stream", id="deflate garbage"),
        pytest.param(Deflate, b"OK to begin with", "no deflate stream", id="deflate, clear text"),
        pytest.param(Snappy, b"\x00\x00\x00\x06", "no snappy stream: it begins", id="snappy, a frame"),
        pytest.param(Snappy, b"\xff\x06\x00\x00sNaPpX", "it begins", id="snappy, another identifier"),
        pytest.param(Snappy, skippable(4), "it begins", id="snappy, no identifier"),
        pytest.param(Snappy, IDENTIFIER + b"\x02\x04\x00\x00abcd", "no snappy stream", id="snappy, reserved chunk"),
        pytest.param(Snappy, IDENTIFIER + b"\x01\x08\x00\x00abcdefgh", "checksum|crc", id="snappy, checksum"),
        pytest.param(Snappy, IDENTIFIER + b"\x00\xff\xff\xff", "chunk of 16777215 bytes", id="snappy, long chunk"),
        pytest.param(
            Snappy,
            IDENTIFIER + b"\x00\x0d\x00\x00abcd\xff\xff\xff\xff\x0fxxxx",
            "no snappy stream: a chunk announces 4294967295 bytes, the most is 65536",
            id="snappy, 4 GB announced inside",
        ),
        pytest.param(Snappy, IDENTIFIER + b"\x00\x05\x00\x00abcd\xff", "no snappy stream", id="snappy, size cut short"),
        pytest.param(Snappy, IDENTIFIER + b"\x00\x02\x00\x00ab", "no snappy stream", id="snappy, no checksum"),
        pytest.param(Snappy, IDENTIFIER + b"\x01\x02\x00\x00ab", "no snappy stream", id="snappy, short and as it is"),
    ],
)
def test_invalid_compressed_bytes_are_a_protocol_error(codec, data, words):
    with pytest.raises(NSQProtocolError, match=words):
        codec().decompress(data, LIMIT)


def test_skippable_snappy_chunks_are_dropped_as_they_come():
    receiver = Snappy()
    stream = IDENTIFIER + skippable(3) + skippable(16_000_000, 0xFE) + Snappy().compress(b"OK")

    held = []
    result = b""
    for start in range(0, len(stream), LIMIT):
        result += read(receiver, stream[start : start + LIMIT])
        held.append(len(receiver._buffer))

    assert result == b"OK"
    assert max(held) <= 16


def test_snappy_stream_may_name_itself_again():
    receiver, sender = Snappy(), Snappy()

    assert read(receiver, sender.compress(b"a") + IDENTIFIER + sender.compress(b"b")) == b"ab"
