"""gnsq tail: the messages of a topic on stdout; each is finished after it was written."""

import base64
import io
import json
import os
import pty
import re
import signal
import subprocess
import time

import gevent
import pytest
from rich.console import Console

from fakensqd import FakeNsqd
from gnsq import Message
from gnsq.cli.formats import for_terminal, meta_line
from gnsq.cli.receiving import Received
from gnsq.cli.tail import BATCH
from tests.kit import peer, refused_port, wait_for_program, wait_until
from tests.kit.commands import command, create_channel, gnsq, signalled_when, started

BODIES = [b'{"a": 1}', b"two\nlines", b"\xff\x1b[31m"]


# --- what is written


def test_bodies_are_written_unchanged_if_stdout_is_no_terminal(fakensqd):
    fakensqd.publish("t", *BODIES)

    result = gnsq(fakensqd, "tail", "t", "-n", "3", "--take")

    assert result.exit_code == 0
    assert result.stdout_bytes == b"\n".join(BODIES) + b"\n"
    assert len(fakensqd.transcript.finished("t")) == 3


def test_json_has_all_of_a_message(fakensqd):
    fakensqd.publish("t", *BODIES)

    result = gnsq(fakensqd, "tail", "t", "-n", "3", "--json", "--take")

    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record.get("body") for record in records] == ['{"a": 1}', "two\nlines", None]
    assert base64.b64decode(records[2]["body_base64"]) == b"\xff\x1b[31m"
    assert {record["nsqd"] for record in records} == {fakensqd.tcp_address}
    assert {(record["topic"], record["attempts"], len(record["id"])) for record in records} == {("t", 1, 16)}
    assert all(abs(time.time() - record["timestamp"] / 1e9) < 60 for record in records)


def test_meta_adds_a_line_before_each_body(fakensqd):
    fakensqd.publish("t", b"body")

    lines = gnsq(fakensqd, "tail", "t", "-n", "1", "--meta", "--take").stdout.splitlines()

    assert lines[0].startswith("20")
    assert f" attempts=1 nsqd={fakensqd.tcp_address} topic=t" in lines[0]
    assert lines[1:] == ["body"]


def test_id_of_another_server_is_escaped_in_the_meta_line():
    message = Received("t", Message(0, 1, b"\x1b]0;\x07\xff \x9b31m a=b\n", b""))

    assert rb" id=\x1b]0;\x07\xff\x20\x9b31m\x20a=b\x0a attempts=1 " in meta_line(message)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        pytest.param(b'{"b":1,"a":["x",null]}', '{\n  "b": 1,\n  "a": [\n    "x",\n    null\n  ]\n}\n', id="JSON"),
        pytest.param(b"42.10", "42.10\n", id="a number"),
        pytest.param(b'{"a":1,"a":2}', '{"a":1,"a":2}\n', id="a key twice"),
        pytest.param(b'{"a":0.12345678901234567890}', '{"a":0.12345678901234567890}\n', id="too many digits"),
        pytest.param(b'{"a":NaN}', '{"a":NaN}\n', id="NaN"),
        pytest.param(b"[" * 50_000, "[" * 50_000 + "\n", id="too deep"),
        pytest.param(b"[1" + b" " * 70_000 + b"]", "[1" + " " * 70_000 + "]\n", id="too large for colors"),
        pytest.param("größer\tals\n".encode(), "größer\tals\n\n", id="text"),
        pytest.param(b"\x1b]0;title\x07\r\x9b", "\\x1b]0;title\\x07\\r\\x9b\n", id="escapes, no UTF-8"),
        pytest.param("\x9b31m\u202e\x7f".encode(), "\\x9b31m\\u202e\\x7f\n", id="C1 and bidi controls"),
        pytest.param('["\u009b\u202e"]'.encode(), '[\n  "\\u009b\\u202e"\n]\n', id="controls in JSON"),
        pytest.param(b"[red]text[/red] :smile:", "[red]text[/red] :smile:\n", id="markup"),
        pytest.param(b"x" * 50, "x" * 50 + "\n", id="longer than a line"),
    ],
)
def test_bodies_on_a_terminal_are_readable_and_harmless(body, shown):
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=20)

    assert for_terminal(console)(Received("t", Message(0, 1, b"", body))).decode() == shown


@pytest.mark.subprocess
def test_terminal_gets_colored_json(fakensqd):
    fakensqd.publish("t", b'{"a":1}')
    ours, theirs = pty.openpty()
    try:
        with started(fakensqd, "tail", "t", "-n", "1", "--take", stdout=theirs) as program:
            assert program.wait() == 0
            shown = os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(theirs)

    assert shown.replace(b"\r\n", b"\n").startswith((b"\x1b[1m{", b"{\n"))
    assert b'"a"' in shown


# --- the start


@pytest.mark.parametrize(
    "words", ["tail t -n 1", "tail t -n 1 --channel c#ephemeral", "copy t u --channel c#ephemeral"]
)
def test_ephemeral_channel_takes_nothing_that_waits_for_the_first_one(fakensqd, words):
    fakensqd.publish("t", b"1", b"2", b"3")

    result = gnsq(fakensqd, *words.split())

    assert (result.exit_code, result.stdout) == (2, "")
    assert "topic t has no channel, and 3 messages wait for its first one" in result.stderr
    assert "--channel NAME" in result.stderr
    assert "--take" in result.stderr
    assert not fakensqd.broker.topics["t"].channels
    assert fakensqd.depth("t") == 3


def test_take_takes_all_that_waits_for_the_first_channel_which_ends_with_the_command(fakensqd):
    fakensqd.publish("t", b"1", b"2", b"3")

    result = gnsq(fakensqd, "tail", "t", "-n", "1", "--take")

    assert result.stdout == "1\n"
    assert result.stderr.startswith("topic t has no channel, and 3 messages wait for its first one\n")
    (subscribed,) = fakensqd.transcript.select("command", name="SUB")
    assert subscribed.channel.endswith("#ephemeral")
    wait_until(lambda: not fakensqd.broker.topics["t"].channels)
    assert fakensqd.depth("t") == 0


def test_take_is_refused_if_nsqd_would_drop_what_waits():
    with FakeNsqd(mem_queue_size=0).in_thread() as nsqd:
        nsqd.publish("t", b"1", b"2")

        result = gnsq(nsqd, "tail", "t", "--take")

        assert (result.exit_code, nsqd.depth("t")) == (2, 2)
    assert "keeps no messages in memory (--mem-queue-size=0)" in result.stderr
    assert "give --channel NAME" in result.stderr


def test_nsqd_that_drops_most_of_a_quick_topic_is_named():
    with FakeNsqd(mem_queue_size=0).in_thread() as nsqd:
        create_channel(nsqd, "t", "c")
        result = gnsq(nsqd, "tail", "t", "--idle", "0.2")

    assert result.exit_code == 0
    assert "(--mem-queue-size=0), so it drops from an ephemeral channel what comes while" in result.stderr


def test_channel_that_stays_keeps_what_is_not_shown(fakensqd):
    fakensqd.publish("t", b"1", b"2", b"3")

    result = gnsq(fakensqd, "tail", "t", "-n", "1", "--channel", "c")

    assert result.stdout == "1\n"
    assert result.stderr.startswith(
        "topic t has no channel: c gets 3 waiting messages. "
        "It stays and collects messages, until gnsq channel delete t c\n"
    )
    assert fakensqd.messages("t", "c") == [b"2", b"3"]


def test_nsqd_that_can_not_be_asked_may_have_messages_that_wait_for_the_first_channel(fakensqd):
    fakensqd.publish("t", b"1")
    servers = ["--nsqd", fakensqd.tcp_address, "--nsqd-http", f"x:{refused_port()}"]

    refused = command("tail", "t", "-n", "1", *servers)
    taken = command("tail", "t", "-n", "1", *servers, "--take")

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "not known whether messages wait for the first channel of topic t: nsqd x:" in refused.stderr
    assert (taken.exit_code, taken.stdout) == (0, "1\n")
    assert taken.stderr.startswith("not known whether messages wait for the first channel of topic t: nsqd x:")
    create_channel(fakensqd, "t", "c")  # the other one may have none
    assert command("tail", "t", *servers).exit_code == 2


def test_nsqd_that_can_not_be_asked_has_the_channels_that_its_nsqlookupd_knows(fakelookupd):
    with FakeNsqd(lookupd_tcp_addresses=[fakelookupd.tcp_address]).in_thread() as nsqd:
        nsqd.wait_registered()
        create_channel(nsqd, "t", "c")
        servers = ["--lookupd", fakelookupd.http_address, "--nsqd-http", f"127.0.0.1:{refused_port()}"]

        result = command("tail", "t", "--idle", "0.2", *servers)

    assert "not known" not in result.stderr


def test_look_at_a_channel_that_one_of_two_nsqds_has(fakensqd):
    create_channel(fakensqd, "dead", "review")
    with FakeNsqd().in_thread() as other:
        other.publish("dead", b"waits")
        servers = ["--nsqd", other.tcp_address, "--nsqd-http", other.http_address]

        result = gnsq(fakensqd, "tail", "dead", "--channel", "review", "--peek", "--raw", *servers)

    assert (result.exit_code, result.stdout) == (0, "waits\n")
    assert "topic dead has no channel on some nsqds: review gets 1 waiting message" in result.stderr


# --- a look


def dead(fakensqd, *bodies):
    """Publish dead letters for a channel that stays."""
    create_channel(fakensqd, "dead", "review")
    fakensqd.publish("dead", *bodies)


PEEK = ("tail", "dead", "--channel", "review", "--peek", "--raw")


def test_look_shows_some_messages_and_gives_all_back(fakensqd):
    dead(fakensqd, *(b"%d" % number for number in range(50)))

    result = gnsq(fakensqd, *PEEK, "-n", "20")

    assert result.exit_code == 0
    assert sorted(result.stdout.split(), key=int) == [str(number) for number in range(20)]
    assert "20 messages given back; the look counts as an attempt of each, towards max_tries" in result.stderr
    assert len(fakensqd.messages("dead", "review")) == 50
    assert len(fakensqd.transcript.finished("dead")) == 0
    assert fakensqd.transcript.commands().count("REQ") == 20


def test_look_ends_when_nothing_comes(fakensqd):
    dead(fakensqd, b"1", b"2")

    result = gnsq(fakensqd, *PEEK)

    assert (result.exit_code, result.stdout) == (0, "1\n2\n")
    assert fakensqd.messages("dead", "review") == [b"1", b"2"]


def test_look_reaches_its_number_if_one_of_several_nsqds_has_all(fakensqd):
    dead(fakensqd, *(b"%d" % number for number in range(9)))
    with FakeNsqd().in_thread() as other:
        create_channel(other, "dead", "review")
        servers = ["--nsqd", other.tcp_address, "--nsqd-http", other.http_address]
        result = gnsq(fakensqd, *PEEK, *servers, "-n", "8")

    assert len(result.stdout.split()) == 8


def test_signal_gives_back_what_is_looked_at(fakensqd):
    dead(fakensqd, b"1")

    with signalled_when(lambda: fakensqd.transcript.commands("RDY")):
        gnsq(fakensqd, *PEEK, "--idle", "60s")

    assert fakensqd.messages("dead", "review") == [b"1"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        pytest.param("dead --peek", "--peek looks at the messages of a channel that stays", id="no channel"),
        pytest.param(
            "dead --peek --channel reviw", "no nsqd has channel reviw of topic dead. A look makes none", id="wrong name"
        ),
        pytest.param("dead --take --channel review", "leave --take or --channel out", id="take"),
        pytest.param("dead --json --raw", "exclude each other", id="JSON and raw"),
    ],
)
def test_words_that_mean_nothing_are_refused(fakensqd, words, text):
    dead(fakensqd, b"1")

    result = gnsq(fakensqd, "tail", *words.split())

    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
    assert list(fakensqd.broker.topics["dead"].channels) == ["review"]


# --- several servers


@pytest.mark.parametrize("option", ["--nsqd", "--lookupd"])
@pytest.mark.parametrize("words", ["tail t", "to-file t -d DIRECTORY", "copy t u", "requeue-dead t --all"])
def test_first_connect_that_fails_is_an_error(tmp_path, option, words):
    address = f"127.0.0.1:{refused_port()}"

    result = command(*words.replace("DIRECTORY", str(tmp_path)).split(), option, address)

    assert result.exit_code == 1
    assert re.search(f"Error: no nsqd can be reached: .*{address}/?: (no response: )?can't connect", result.stderr)
    assert result.stderr.count("Error:") == 1


def test_first_messages_come_few_at_a_time_for_a_reader_that_wants_no_more(fakensqd):
    fakensqd.publish("t", *(b"%d" % number for number in range(600)))

    gnsq(fakensqd, "tail", "t", "-n", "600", "--take")

    finished, counts = 0, []
    for entry in fakensqd.transcript:
        finished += entry.name == "FIN"
        if entry.name == "RDY":
            counts.append(int(str(entry).split()[-1]))
            assert counts[-1] <= max(3, 2 * finished)
    assert max(counts) == 200


# --- which messages


def test_message_of_many_attempts_is_written(fakensqd):
    fakensqd.publish("t", b"1")
    gnsq(fakensqd, "tail", "t", "-n", "1", "--channel", "c")
    fakensqd.publish("t", b"2")
    for message in fakensqd.broker.topics["t"].channels["c"].stored():
        message.attempts = 10

    assert gnsq(fakensqd, "tail", "t", "-n", "1", "--channel", "c").stdout == "2\n"


# --- the end


@pytest.mark.parametrize(("words", "status"), [((), 0), (("-n", "2"), 130)], ids=["no count", "before the count"])
def test_signal_ends_in_order(fakensqd, words, status):
    fakensqd.publish("t", b"1")

    with signalled_when(lambda: len(fakensqd.transcript.finished("t")) == 1, signal.SIGINT):
        result = gnsq(fakensqd, "tail", "t", "--channel", "c", *words)

    assert (result.exit_code, result.stdout) == (status, "1\n")
    assert "CLS" in fakensqd.transcript.commands()


@pytest.mark.subprocess
def test_reader_that_ends_gets_no_traceback_and_loses_no_message(fakensqd):
    fakensqd.publish("t", b"1")
    with started(fakensqd, "tail", "t", "--channel", "c") as program:
        assert program.stdout.readline() == "1\n"
        wait_for_program(program, lambda: len(fakensqd.transcript.finished("t")) == 1)
        program.stdout.close()
        code = program.wait()
        fakensqd.publish("t", b"2")

        assert code == 0
        assert "Traceback" not in program.stderr.read()
    assert fakensqd.messages("t", "c") == [b"2"]


@pytest.mark.subprocess
def test_full_disk_is_an_error_in_one_line(fakensqd):
    fakensqd.publish("t", b"1")

    with open("/dev/full", "wb") as full, started(fakensqd, "tail", "t", "--channel", "c", stdout=full) as program:
        code, error = program.wait(), program.stderr.read()

    assert (code, error.splitlines()[-1]) == (1, "Error: [Errno 28] No space left on device")
    assert fakensqd.messages("t", "c") == [b"1"]


@pytest.mark.subprocess
def test_stopped_reader_holds_no_more_messages_than_are_being_written(fakensqd):
    fakensqd.publish("t", *(b"%3d" % number + b"x" * 5000 for number in range(300)))
    with started(fakensqd, "tail", "t", "--channel", "c", stdin=subprocess.DEVNULL) as program:
        # The pipe is full, and the command requests no more messages.
        wait_for_program(
            program, lambda: any(str(rdy).endswith("RDY t/c 0") for rdy in fakensqd.transcript.select(name="RDY"))
        )
        wait_for_program(program, lambda: fakensqd.in_flight("t", "c") <= BATCH)
        program.send_signal(signal.SIGTERM)
        code = program.wait()
        out = program.stdout.read()

        assert code == 0
    written = {line[:3] for line in out.split("\n")[:-1]}
    assert written
    assert written | {body[:3].decode() for body in fakensqd.messages("t", "c")} == {f"{n:3}" for n in range(300)}


def test_topic_may_be_at_an_nsqd_that_has_not_answered_yet(fakensqd):
    with FakeNsqd().in_thread() as other, peer(lambda sock: gevent.sleep(60)) as slow:
        other.publish("t", b"1")
        servers = ["--nsqd", other.tcp_address, "--nsqd-http", slow]
        result = gnsq(fakensqd, "tail", "t", *servers, "--idle", "0.2", "--channel", "c")

    assert "topic t does not exist on the nsqds that have answered; nsqd creates it\n" in result.stderr
    assert result.stdout == "1\n"


# --- end and topics


def test_idle_ends_the_command(fakensqd):
    fakensqd.publish("t", b"1")

    first = gnsq(fakensqd, "tail", "t", "--idle", "0.2", "--take")
    second = gnsq(fakensqd, "tail", "t", "--idle", "0.2")

    assert (first.exit_code, first.stdout) == (0, "1\n")
    assert "no message came" not in first.stderr
    assert (second.exit_code, second.stdout) == (0, "")
    assert "no message came within 0.2 s; a new channel gets those that are published after the start" in second.stderr


def test_time_in_which_the_process_does_not_run_is_not_idle(fakensqd):
    def block():
        wait_until(lambda: fakensqd.transcript.commands("RDY"))
        time.sleep(0.5)  # the hub blocks: the command's checks are due before it can read
        fakensqd.publish("t", b"1")

    blocking = gevent.spawn(block)
    result = gnsq(fakensqd, "tail", "t", "--idle", "0.2")
    blocking.get()

    assert result.stdout == "1\n"
