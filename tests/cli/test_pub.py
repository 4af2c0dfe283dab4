"""gnsq pub: what is published, what is said of what is not, and how it ends."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

from fakensqd import on
from fakensqd.faults import disconnect, drop, error
from gnsq.cli.pub import READ_SIZE, next_lines
from tests.kit import PYTHON, child, refused_port, run, run_program, wait_for_program, wait_until
from tests.kit.commands import invoke, signalled_when, started


@pytest.fixture
def pub(fakensqd, tmp_path):
    """Publish a text to the topic t; returns the result."""

    def pub(text, *options, address=fakensqd.tcp_address):
        path = tmp_path / "lines"
        path.write_bytes(text)
        return invoke("pub", "t", str(path), "--nsqd", address, *options)

    return pub


# --- what is published


LINES = [
    pytest.param(b"1\n2", [b"1", b"2"], "2 messages published", id="no newline at the end"),
    pytest.param(b"\n1\n\n\n2\n", [b"1", b"2"], "; 3 empty lines left out", id="empty lines"),
    pytest.param(b"\xff\x00\r\n", [b"\xff\x00\r"], "1 message published", id="bytes"),
]


@pytest.mark.parametrize(("text", "published", "summary"), LINES)
def test_each_line_is_a_message(fakensqd, pub, text, published, summary):
    result = pub(text)

    assert (result.exit_code, result.stdout) == (0, "")
    assert summary in result.stderr
    assert fakensqd.messages("t") == published


INPUTS = [
    pytest.param(b"", [], 0, [], id="empty"),
    pytest.param(b"\n\n", ["--defer", "60"], 0, [], id="newlines"),
    pytest.param(b"", ["--raw"], 1, [], id="empty, raw"),
    pytest.param(b"1\n\n2\n" + b"x" * READ_SIZE, ["--raw"], 0, [b"1\n\n2\n" + b"x" * READ_SIZE], id="raw"),
]


@pytest.mark.parametrize(("text", "options", "status", "published"), INPUTS)
def test_input_without_lines_is_no_message_or_a_raw_one(fakensqd, pub, text, options, status, published):
    result = pub(text, *options)

    assert [message for topic in fakensqd.broker.topics for message in fakensqd.messages(topic)] == published
    assert result.exit_code == status


@pytest.mark.parametrize(
    ("lines", "seconds", "expected"),
    [(100, 0.01, 200), (200, 0.99, 400), (400, 1.0, 400), (400, 2.0, 400), (400, 2.1, 200), (3, 9.0, 1), (1, 9.0, 1)],
)
def test_lines_that_are_published_together_take_a_second_or_two(lines, seconds, expected):
    assert next_lines(lines, seconds) == expected


@pytest.mark.fakensqd(max_msg_size=10)
def test_messages_of_the_command_line_have_numbers(fakensqd):
    words = ["pub", "t", "-m", "1\n2", "-m", "x" * 11, "-m", "grün", "--nsqd", fakensqd.tcp_address]

    stopped, rest = invoke(*words), invoke(*words, "--from-line", 3)

    assert (stopped.exit_code, rest.exit_code) == (1, 0)
    assert "stopped at line 2" in stopped.stderr
    assert "1 message published" in rest.stderr
    assert fakensqd.messages("t") == [b"1\n2", "grün".encode()]


NOT_RECORDS = [
    pytest.param(b"x", "not JSON: ", id="text"),
    pytest.param(b'{"body": 1}', "not an object with a text", id="number"),
    pytest.param(b'{"body": "1", "body_base64": "MQ=="}', "not an object with a text", id="two"),
    pytest.param(b'{"body_base64": "?"}', "base64", id="base64"),
    pytest.param(b"[" * 100_000, "not JSON: ", id="nested"),
]


@pytest.mark.parametrize(("line", "reason"), NOT_RECORDS)
def test_line_that_is_no_record_is_named(fakensqd, pub, line, reason):
    result = pub(b'{"body": "1"}\n' + line + b'\n{"body": "3"}\n', "--format", "json")

    assert result.exit_code == 1
    assert "stopped at line 2: " in result.stderr
    assert reason in result.stderr
    assert "without this line: --from-line 3" in result.stderr
    assert fakensqd.messages("t") == [b"1"]


def test_deferred_messages_wait_in_nsqd(fakensqd, pub):
    result = pub(b"".join(b"%d\n" % number for number in range(500)), "--defer", "0.05")
    deferred = [command for command in fakensqd.transcript.commands() if command == "DPUB"]

    assert (result.exit_code, len(deferred)) == (0, 500)
    assert "500 messages published" in result.stderr
    wait_until(lambda: fakensqd.depth("t") == 500)


def test_from_line_leaves_out_the_lines_before(fakensqd, pub):
    result = pub(b"1\n\n3\n4\n", "--from-line", "3")

    assert fakensqd.messages("t") == [b"3", b"4"]
    assert "2 messages published" in result.stderr
    assert "empty" not in result.stderr


@pytest.mark.parametrize("end", [b"", b"\n"], ids=["no newline at the end", "newline"])
def test_from_line_after_the_end_is_an_error_but_the_one_after_the_last_is_not(fakensqd, pub, end):
    text = b"1\n2" + end
    beyond, after_last = pub(text, "--from-line", "4"), pub(text, "--from-line", "3")

    assert (beyond.exit_code, after_last.exit_code) == (1, 0)
    assert "Error: there is no line 4: the input has 2 lines" in beyond.stderr
    assert "0 messages published" in after_last.stderr
    assert "t" not in fakensqd.broker.topics


def test_input_that_can_not_be_read_is_an_error_and_says_where_to_go_on(fakensqd):
    result = invoke("pub", "t", "/proc/self/mem", "--from-line", "7", "--nsqd", fakensqd.tcp_address)

    assert result.exit_code == 1
    assert "Error: stopped at line 7: [Errno 5] Input/output error" in result.stderr
    assert result.stderr.endswith("To go on: --from-line 7\n")


def test_rate_is_not_exceeded(fakensqd, pub):
    result = pub(b"1\n" * 30, "--rate", "100")

    # The first step may pass at once: 10 of 30 messages.
    assert float(re.search(r"in ([\d.]+) s", result.stderr)[1]) >= 0.2
    assert fakensqd.messages("t") == [b"1"] * 30


REFUSED = [
    pytest.param(["--raw", "--from-line", "2"], "--raw has one message, and no lines", id="raw"),
    pytest.param(["--raw", "--delimiter", ","], "leave out --format and --delimiter", id="raw delimiter"),
    pytest.param(["--format", "json", "--delimiter", ","], "leave out --delimiter", id="json delimiter"),
    pytest.param(["-m", "1"], "-m and FILE exclude each other", id="message and file"),
    pytest.param(["--rate", "0"], "rate 0 must be at least 0.001 messages a second", id="rate"),
    pytest.param(["--from-line", "0"], "0 is not in the range x>=1", id="from-line"),
]


@pytest.mark.parametrize(("options", "text"), REFUSED)
def test_refused_option(pub, options, text):
    result = pub(b"1\n", *options)

    assert result.exit_code == 2
    assert text in result.stderr


def test_unknown_variable_is_told_by_a_command_that_logs_only_errors(fakensqd, monkeypatch):
    monkeypatch.setenv("GNSQ_TIMEOUTS", "3")
    monkeypatch.setenv("GNSQ_RECEIVER_TOPIC", "t")
    result = invoke("pub", "t", "-m", "1", "--nsqd", fakensqd.tcp_address)

    (line,) = (line for line in result.stderr.splitlines() if "environment" in line)
    assert "GNSQ_TIMEOUTS, which is unknown; did you mean GNSQ_TIMEOUT?" in line


def test_text_in_place_of_a_file_is_told_how_to_publish_it():
    result = invoke("pub", "t", "hello world", "--nsqd", "127.0.0.1:9")

    assert result.exit_code == 2
    assert "File 'hello world' does not exist. To publish a text, give -m TEXT." in result.stderr


# --- failures


@pytest.mark.fakensqd(max_msg_size=10)
def test_refused_line_among_many_is_named_and_costs_few_publishes(fakensqd, pub):
    lines = [b"%d" % number for number in range(10_000)]
    lines[7000] = b"x" * 11

    result = pub(b"\n".join(lines))

    assert result.exit_code == 1
    assert re.search("Error: stopped at line 7001: .*E_BAD_MESSAGE", result.stderr)
    rest = "To go on: --from-line 7001; without this line: --from-line 7002"
    assert f"All lines before it are published. {rest}" in result.stderr
    assert fakensqd.messages("t") == lines[:7000]
    assert fakensqd.transcript.commands().count("MPUB") > 1
    assert len([command for command in fakensqd.transcript.commands() if command.endswith("PUB")]) < 40


BEFORE = "All lines before it are published."


@pytest.mark.parametrize(
    ("lines", "options", "rule", "expected"),
    [
        pytest.param(
            b"1\n" * 99 + b"\n" + b"1\n" * 5000,
            [],
            (on.reply("MPUB"), disconnect()),
            "\nLines 1 to 101 may be published. To publish again: --from-line 1. To leave out: --from-line 102",
            id="the first of many lost, which are few",
        ),
        pytest.param(
            b"1\n",
            [],
            (on.reply("PUB"), disconnect()),
            "Line 1 may be published. To publish again: --from-line 1. To leave out: --from-line 2",
            id="one lost",
        ),
        pytest.param(
            b"1\n2\n",
            ["--defer", "60"],
            (on.reply("DPUB").nth(2), disconnect()),
            "Line 2 may be published.",
            id="deferred",
        ),
        pytest.param(
            b"1\n2\n3\n",
            ["--defer", "60"],
            (on.command("DPUB").nth(3), error("E_INVALID")),
            f"{BEFORE} To go on: --from-line 3",
            id="deferred and refused",
        ),
    ],
)
def test_lines_that_may_or_may_not_be_published_are_named(fakensqd, pub, lines, options, rule, expected):
    with fakensqd.add(*rule):
        result = pub(lines, *options)

    assert result.exit_code == 1
    assert expected in result.stderr


def test_deferred_lines_that_are_all_refused_are_not_called_published(fakensqd, pub):
    result = pub(b"1\n2\n3\n", "--defer", "7200")

    assert result.exit_code == 1
    assert "Error: stopped at line 1: " in result.stderr
    assert "7200000 out of range" in result.stderr
    assert result.stderr.endswith("Nothing is published.\n")  # each line has this delay


def test_line_is_not_blamed_for_a_wrong_set_up(fakensqd, pub):
    fakensqd.add(on.command("MPUB"), error("E_INVALID", "cannot MPUB in current state (TLS required)"))
    fakensqd.add(on.command("PUB"), error("E_INVALID", "cannot PUB in current state (TLS required)"))

    result = pub(b"1\n2\n")

    assert "give --tls" in result.stderr
    assert result.stderr.endswith("Nothing is published.\n")


def test_nsqd_that_is_down_is_an_error_after_the_timeout(pub):
    address = f"127.0.0.1:{refused_port()}"
    result = pub(b"1\n2\n", "--timeout", "0.2", address=address)

    assert result.exit_code == 1
    assert "0 messages published" in result.stderr
    assert re.search(f"Error: stopped at line 1: .*{address}: .*Connection refused", result.stderr)
    assert result.stderr.endswith("Nothing is published.\n")


# --- pipes and signals


def say(process, text):
    """Write to the program's stdin, and leave it open."""
    process.stdin.write(text)
    process.stdin.flush()


@pytest.mark.subprocess
def test_lines_of_a_slow_pipe_are_published_at_once(fakensqd):
    with started(fakensqd, "pub", "t", stdin=subprocess.PIPE) as process:
        for number in (1, 2):
            say(process, f"{number}\n3")
            wait_for_program(process, lambda count=number: fakensqd.transcript.commands().count("PUB") == count)
        out, err = process.communicate()

    assert (process.returncode, out) == (0, "")
    assert fakensqd.messages("t") == [b"1", b"32", b"3"]
    assert "3 messages published" in err


SIGNALLED = [
    pytest.param([], signal.SIGTERM, [b"1", b"3"], "to go on: --from-line 4", id="lines are left"),
    pytest.param(["--rate", "0.01"], signal.SIGINT, [b"1"], "to go on: --from-line 3", id="slow rate"),
    pytest.param(["--raw"], signal.SIGINT, [], "nothing was published", id="raw"),
]


@pytest.mark.parametrize(("options", "number", "published", "said"), SIGNALLED)
def test_signal_ends_a_pipe_and_says_where_to_go_on(fakensqd, options, number, published, said):
    read, write = os.pipe()
    os.write(write, b"1\n\n3\n4")

    def waits_for_more():
        return fakensqd.transcript.commands("IDENTIFY") and fakensqd.depth("t") == len(published)

    with open(read), open(write, "wb"), signalled_when(waits_for_more, number):
        result = invoke("pub", "t", f"/proc/self/fd/{read}", "--nsqd", fakensqd.tcp_address, *options)

    assert result.exit_code == 128 + number
    assert f"{number.name}: stopped; {said}" in result.stderr
    assert fakensqd.messages("t") == published


def test_signal_ends_the_wait_for_a_named_pipe_that_nobody_writes(fakensqd, tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with signalled_when(lambda: fakensqd.transcript.commands("IDENTIFY"), signal.SIGINT):
        result = invoke("pub", "t", tmp_path / "pipe", "--nsqd", fakensqd.tcp_address)

    assert result.exit_code == 130
    assert "SIGINT: stopped; to go on: --from-line 1" in result.stderr


@pytest.mark.subprocess
def test_second_signal_ends_at_once_and_shows_the_cursor_again(fakensqd):
    terminal, other = os.openpty()
    command = ["-m", "gnsq", "pub", "t", "--nsqd", fakensqd.tcp_address, "--timeout", "60"]
    shown = b""
    with (
        fakensqd.add(on.reply("PUB"), drop()),
        child(sys.executable, *command, stdin=subprocess.PIPE, stdout=other, stderr=other) as process,
    ):
        os.close(other)
        while b"\x1b[?25l" not in shown:
            shown += os.read(terminal, 4096)
        say(process, "1\n")
        wait_for_program(process, lambda: fakensqd.depth("t") == 1)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        # If it has noticed the first one late, another one counts as the second.
        wait_until(lambda: process.send_signal(signal.SIGINT) or process.poll() is not None)

        assert process.returncode == 130
        with contextlib.suppress(OSError):  # EIO: all is read
            while data := os.read(terminal, 4096):
                shown += data
    os.close(terminal)

    assert b"SIGINT for the second time: ended at once" in shown
    assert b"Traceback" not in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")


def test_input_without_lines_is_refused_before_it_fills_the_memory(fakensqd):
    result = invoke("pub", "t", "/dev/zero", "--nsqd", fakensqd.tcp_address)

    assert result.exit_code == 1
    assert "stopped at line 1: line of more than 268435456 bytes, the limit of gnsq pub" in result.stderr
    assert fakensqd.messages("t") == []


# --- the program


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("words", "unbuffered", "error"),
    [
        pytest.param("--help 2>&1", "", "", id="the reader has ended"),
        pytest.param("stats 2>&-", "1", "", id="and stderr is closed"),
        pytest.param("--help >/dev/full", "", "No space left on device", id="full"),
        pytest.param("stats >/dev/full", "1", "No space left on device", id="full, unbuffered"),
        pytest.param("ping --json >&-", "", "stdout is closed", id="closed"),
    ],
)
def test_stdout_that_can_not_be_written_has_status_1_and_one_line_if_somebody_reads_it(
    fakensqd, words, unbuffered, error
):
    addresses = {"GNSQ_NSQD": fakensqd.tcp_address, "GNSQ_NSQD_HTTP": fakensqd.http_address}
    read, write = os.pipe()
    os.close(read)

    environment = {**os.environ, **addresses, "PYTHONUNBUFFERED": unbuffered}
    result = run("sh", "-c", f"exec {PYTHON} -m gnsq {words}", env=environment, stdout=write)
    os.close(write)

    assert result.returncode == 1
    assert [line.startswith("Error: ") and error in line for line in result.stderr.splitlines()] == [True] * bool(error)


@pytest.mark.subprocess
def test_program_without_rich_says_what_to_install():
    result = run_program("import sys; sys.modules['rich'] = None; from gnsq.__main__ import main; main()")

    assert result.returncode == 1
    assert result.stderr.startswith("gnsq's command line needs click and rich: pip install 'gnsq[cli]' (")
    assert result.stderr.count("\n") == 1
