"""Transcripts: selecting entries, text, JSON lines and limits; and waiting for a value."""

import json

import pytest

from fakensqd import Transcript, on
from fakensqd.faults import drop, error, inject
from fakensqd.transcript import Entry, difference
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, decode_message, encode_frame
from tests.kit.wire import Client, consumer


@pytest.fixture
def recorded(nsqd):
    """An nsqd that has recorded each kind of entry."""
    publisher = Client(nsqd.tcp_address)
    publisher.identify(client_id="publisher")
    publisher.send(commands.publish("t", b"a") + commands.multipublish("t", [b"b", b"c", b"d"]))
    publisher.send(commands.deferpublish("u", b"e", 1000) + commands.publish("t", b"x" * 100))
    for _ in range(4):
        publisher.frame()
    reader = consumer(nsqd.tcp_address, ready=3)
    ids = [decode_message(reader.frame()[1])[2] for _ in range(3)]
    reader.send(commands.touch(ids[0]) + commands.finish(ids[0]) + commands.requeue(ids[1], 60000))
    reader.send(commands.finish(ids[0]))
    assert [reader.frame()[0] for _ in range(3)].count(1) == 1
    nsqd.add(on.command("NOP"), drop(), name="no NOP")
    publisher.send(b"NOP\nFOO \n")
    assert publisher.frame()[1].startswith(b"E_INVALID invalid command")
    assert publisher.ended()
    nsqd.wait_until(lambda nsqd: nsqd.transcript.connected(), [2])
    return nsqd


def test_transcript_selects_and_counts_entries(recorded):
    transcript = recorded.transcript

    assert transcript.delivered("t", "c") == [b"a", b"b", b"c", b"d", b"x" * 100]
    assert (len(transcript.finished("t", "c")), len(transcript.requeued("t")), len(transcript.touched())) == (1, 1, 1)
    assert len(transcript.finished("u")) == 0
    assert transcript.commands("FIN") == ["FIN", "FIN"]
    assert [error.partition(" ")[0] for error in transcript.errors()] == ["E_FIN_FAILED", "E_INVALID"]
    assert transcript.fired() == ["no NOP"]
    assert (recorded.in_flight("t", "c"), recorded.depth("t", "c"), recorded.depth("u")) == (3, 0, 1)
    assert [session.handshake.client_id for session in recorded.sessions] == ["127.0.0.1"]
    assert {entry.client_id for entry in transcript.select("command", name="PUB", topic="t")} == {"publisher"}


INJECTED = inject(encode_frame(ERROR, b"E_INVALID mine"))
ERRORS = [
    pytest.param(on.command("PUB"), error("E_INVALID", "mine"), id="instead of a command"),
    pytest.param(on.reply("PUB"), error("E_INVALID", "mine"), id="instead of a reply"),
    pytest.param(on.frame("message"), error("E_INVALID", "mine"), id="instead of a message"),
    pytest.param(on.command("PUB"), INJECTED, id="before a command"),
    pytest.param(on.frame("message"), INJECTED, id="before a message"),
]


@pytest.mark.parametrize(("match", "action"), ERRORS)
def test_errors_of_rules_are_recorded(nsqd, match, action):
    nsqd.add(match, action)
    consumer(nsqd.tcp_address, ready=1)

    Client(nsqd.tcp_address).send(commands.publish("t", b"a"))

    assert nsqd.wait_until(lambda nsqd: nsqd.transcript.errors(), ["E_INVALID mine"])


def test_text_has_a_line_for_each_entry(recorded):
    lines = recorded.transcript.text().splitlines()

    assert len(lines) == len(recorded.transcript) == len(list(recorded.transcript))
    assert "#1 command PUB t b'a'" in lines[3]
    assert any("#1 command MPUB t b'b' b'c' b'd'" in line for line in lines)
    assert any("#1 command DPUB u b'e' 1000" in line for line in lines)
    assert any("message t/c" in line and "attempt 1 b'a'" in line for line in lines)
    assert any("(100 bytes)" in line for line in lines)
    assert recorded.transcript.text(2).splitlines()[0] == f"({len(lines) - 2} entries before)"


def test_json_lines_have_the_fields_of_each_entry():
    transcript = Transcript()
    transcript.append(Entry(1.0, 9, "command", "PUB", topic="t", bodies=(b"a", b"\xff"), message_id=b"1", executed=1))
    head, line = map(json.loads, transcript.dump().splitlines())

    assert head == {"transcript": 1, "dropped": 0}
    assert line == {
        "time": 1.0,
        "connection": 9,
        "kind": "command",
        "name": "PUB",
        "topic": "t",
        "message_id": "1",
        "bodies": ["a", {"base64": "/w=="}],
        "executed": 1,
    }


BOUNDS = [pytest.param({"max_entries": 3}, id="entries"), pytest.param({"max_bytes": 30}, id="bytes")]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_oldest_entries_are_dropped_and_counted(bounds):
    transcript = Transcript(**bounds)
    for number in range(5):
        transcript.append(Entry(float(number), 1, "command", "PUB", bodies=(b"x" * 10,)))

    assert [entry.time for entry in transcript] == [2.0, 3.0, 4.0]
    assert transcript.text().splitlines()[0] == "(2 entries before)"
    assert json.loads(transcript.dump().splitlines()[0])["dropped"] == 2
    transcript.clear()
    assert transcript.text() == ""


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_failure_shows_the_nearest_value(nsqd):
    answers = iter([1, 7, 2])
    last = [0]

    def value(nsqd):
        last[0] = next(answers, last[0])
        return last[0]

    with pytest.raises(AssertionError, match=r"not so within 0.1 s: expected 8, nearest was 7"):
        nsqd.wait_until(value, 8, timeout=0.1)


def test_value_in_place_of_a_function_is_refused(nsqd):
    with pytest.raises(TypeError, match="takes a function that gets the server"):
        nsqd.wait_until(len(nsqd.transcript.finished()), 2)


def test_difference_of_large_values_is_bounded_and_shows_the_first_difference():
    numbers = [b"%d" % number for number in range(5000)]

    lines = difference(numbers, [*numbers[:3000], b"other", *numbers[3000:]]).splitlines()

    assert lines[1:5] == ["  (2999 equal items before)", "  b'2999'", "+ b'other'", "  b'3000'"]
    assert lines[-1] == "  (1982 more after)"
    assert len(lines) < 30
    assert len(difference(b"x" * 10**6, [b"y" * 10**6])) < 1000
