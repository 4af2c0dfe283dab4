"""Every command: built by the client's side, cut by the server's, refused when nsqd would refuse it."""

import pytest

from gnsq.protocol import commands
from gnsq.protocol.commands import Command
from tests.protocol.decoder import CommandDecoder

ID = b"0123456789abcdef"

# Source of the bytes: the V2 specification.
VECTORS = [
    pytest.param(
        commands.identify({"a": 1}), b'IDENTIFY\n\x00\x00\x00\x08{"a": 1}', Command(b"IDENTIFY", (), b'{"a": 1}')
    ),
    pytest.param(commands.auth(b"secret"), b"AUTH\n\x00\x00\x00\x06secret", Command(b"AUTH", (), b"secret")),
    pytest.param(commands.subscribe("t", "c"), b"SUB t c\n", Command(b"SUB", (b"t", b"c"))),
    pytest.param(commands.publish("t", b"body"), b"PUB t\n\x00\x00\x00\x04body", Command(b"PUB", (b"t",), b"body")),
    pytest.param(
        commands.deferpublish("t", b"body", 1500),
        b"DPUB t 1500\n\x00\x00\x00\x04body",
        Command(b"DPUB", (b"t", b"1500"), b"body"),
    ),
    pytest.param(
        commands.multipublish("t", [b"one", b"three"]),
        b"MPUB t\n\x00\x00\x00\x14\x00\x00\x00\x02\x00\x00\x00\x03one\x00\x00\x00\x05three",
        Command(b"MPUB", (b"t",), b"\x00\x00\x00\x02\x00\x00\x00\x03one\x00\x00\x00\x05three"),
    ),
    pytest.param(commands.ready(100), b"RDY 100\n", Command(b"RDY", (b"100",))),
    pytest.param(commands.ready(0), b"RDY 0\n", Command(b"RDY", (b"0",))),
    pytest.param(commands.finish(ID), b"FIN 0123456789abcdef\n", Command(b"FIN", (ID,))),
    pytest.param(commands.finish(ID.decode()), b"FIN 0123456789abcdef\n", Command(b"FIN", (ID,))),
    pytest.param(commands.finish(b"\xff" * 16), b"FIN " + b"\xff" * 16 + b"\n", Command(b"FIN", (b"\xff" * 16,))),
    pytest.param(commands.requeue(ID), b"REQ 0123456789abcdef 0\n", Command(b"REQ", (ID, b"0"))),
    pytest.param(commands.requeue(ID, 250), b"REQ 0123456789abcdef 250\n", Command(b"REQ", (ID, b"250"))),
    pytest.param(commands.touch(ID), b"TOUCH 0123456789abcdef\n", Command(b"TOUCH", (ID,))),
    pytest.param(commands.close(), b"CLS\n", Command(b"CLS")),
    pytest.param(commands.nop(), b"NOP\n", Command(b"NOP")),
]


@pytest.mark.parametrize(("built", "wire", "command"), VECTORS)
def test_builder_writes_the_wire_form(built, wire, command):
    assert built == wire


@pytest.mark.parametrize(("built", "wire", "command"), VECTORS)
def test_decoder_reads_a_command_and_keeps_the_rest(built, wire, command):
    decoder = CommandDecoder()

    decoder.feed(wire + b"NO")

    assert [decoder.next_command(), decoder.next_command()] == [command, None]
    assert decoder.take_remaining() == b"NO"


REFUSED = [
    (lambda: commands.publish("t", b""), ValueError, "message body is empty"),
    (lambda: commands.publish("t", "text"), TypeError, "must be bytes, not str"),
    (lambda: commands.publish("bad topic", b"x"), ValueError, "'bad topic'"),
    (lambda: commands.subscribe("t", "c!"), ValueError, "channel name 'c!'"),
    (lambda: commands.multipublish("t", []), ValueError, "multipublish of 0 messages"),
    (lambda: commands.multipublish("t", [b"x", b""]), ValueError, "message 1 is empty"),
    (lambda: commands.multipublish("t", b"xy"), TypeError, "not bytes"),
    (lambda: commands.multipublish("t", 5), TypeError, "iterable of bytes, not int"),
    (lambda: commands.deferpublish("t", b"x", -1), ValueError, "delay_ms -1 must be at least 0"),
    (lambda: commands.deferpublish("t", b"x", 1.5), TypeError, "delay_ms must be an int of milliseconds, not 1.5"),
    (lambda: commands.ready(-1), ValueError, "ready count -1 must be at least 0"),
    (lambda: commands.ready(True), TypeError, "not True"),
    (lambda: commands.requeue(ID, -1), ValueError, "requeue timeout -1 must be at least 0"),
    (lambda: commands.finish(5), TypeError, "message id must be bytes or str, not 5"),
    (lambda: commands.finish_all([ID, 5]), TypeError, "must be bytes or str, not 5"),
    (lambda: commands.finish(b"short"), ValueError, "b'short' is not 16 bytes"),
    (lambda: commands.finish_all([ID[:-1], ID + b"x"]), ValueError, "is not 16 bytes"),
    (lambda: commands.touch(b"0123456 89abcdef"), ValueError, "space or newline"),
    (lambda: commands.finish(b"0123456789abcde\n"), ValueError, "newline"),
    (lambda: commands.auth("secret"), TypeError, "auth secret must be bytes"),
]


def test_builder_refuses_invalid_arguments():
    for build, error, words in REFUSED:
        with pytest.raises(error, match=words):
            build()


def test_multipublish_takes_any_iterable():
    assert commands.multipublish("t", iter([b"a"])) == commands.multipublish("t", [b"a"])


def test_body_above_the_maximum_of_the_size_field_is_refused():
    class Huge(bytes):
        def __len__(self):
            return 2**31

    with pytest.raises(ValueError, match="message body of 2147483648 bytes exceeds 2147483647"):
        commands.publish("t", Huge(b"four"))


def test_line_limit_counts_the_newline():
    decoder = CommandDecoder()
    decoder.feed(b"x" * 16383 + b"\n")
    assert decoder.take_line() == b"x" * 16383

    decoder.feed(b"x" * 16384 + b"\n")
    with pytest.raises(ValueError, match="exceeds 16384 bytes"):
        decoder.take_line()


def test_bytes_keep_their_order_if_they_come_while_others_wait():
    decoder = CommandDecoder()
    decoder.feed(b"ab")
    assert decoder.take(1) == b"a"
    decoder.feed(b"cd")
    assert (decoder.take(1), decoder.buffered) == (b"b", 2)

    decoder.feed(b"e\nf")

    assert (decoder.peek(2), decoder.take_line(), decoder.take_remaining()) == (b"cd", b"cde", b"f")


BODIES = b"\0\0\0\1a\0\0\0\2bc\0\0\0\3def"


@pytest.mark.parametrize(
    ("data", "count", "limit", "taken", "rest"),
    [
        pytest.param(BODIES, 3, 3, [b"a", b"bc", b"def"], b"", id="all"),
        pytest.param(BODIES, 2, 3, [b"a", b"bc"], b"\0\0\0\3def", id="count"),
        pytest.param(BODIES, 3, 2, [b"a", b"bc"], b"\0\0\0\3def", id="limit"),
        pytest.param(BODIES[:-1], 3, 3, [b"a", b"bc"], b"\0\0\0\3de", id="body is incomplete"),
        pytest.param(BODIES[:8], 3, 3, [b"a"], b"\0\0\0", id="size is incomplete"),
        pytest.param(b"\0\0\0\0" + BODIES, 3, 3, [], b"\0\0\0\0" + BODIES, id="size is 0"),
        pytest.param(b"\xff\xff\xff\xff" + BODIES, 3, 3, [], b"\xff\xff\xff\xff" + BODIES, id="size is negative"),
        pytest.param(b"", 3, 3, [], b"", id="nothing"),
    ],
)
def test_bodies_after_their_sizes(data, count, limit, taken, rest):
    decoder = CommandDecoder()
    decoder.feed(data)

    assert decoder.take_sized(count, limit) == taken
    assert decoder.take_remaining() == rest
