"""gnsq requeue-dead: a dead letter is finished after nsqd has confirmed its body; the others stay."""

import dataclasses
import signal
import time

import pytest

from gnsq.dead_letter import encode_dead_letter
from tests.kit import channel_stats, wait_for_program
from tests.kit.commands import gnsq, started
from tests.test_dead_letter import LETTER


def letter(body=b'{"n": 1}', *, age=0.0, **fields):
    return encode_dead_letter(dataclasses.replace(LETTER, body=body, given_up_at=time.time() - age, **fields))


def requeue(nsqd, *arguments):
    return gnsq(nsqd, "requeue-dead", "dead", "--idle", "0.3", *arguments)


def left(nsqd):
    return nsqd.messages("dead", "requeue-dead")


def test_topic_that_does_not_exist_is_not_made(fakensqd):
    result = requeue(fakensqd, "--all")

    assert result.exit_code == 2
    assert "topic dead does not exist, so it has no messages. Nothing was made" in result.stderr
    assert "dead" not in fakensqd.broker.topics


def test_bodies_go_back_to_their_topics(fakensqd):
    fakensqd.publish("dead", letter(b"1"), letter(b"\xff", topic="clicks"))

    result = requeue(fakensqd, "--all")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "\n2 messages requeued" in result.stderr
    assert (fakensqd.messages("orders"), fakensqd.messages("clicks")) == ([b"1"], [b"\xff"])
    assert left(fakensqd) == []


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--error", "Client.KeyError"], id="error"),
        pytest.param(["--error", "KeyError"], id="its own name"),
        pytest.param(["--reason", "other"], id="reason"),
        pytest.param(["--older", "2h"], id="older"),
        pytest.param(["--error", "KeyError", "--older", "10m", "--newer", "2d"], id="several"),
    ],
)
def test_only_chosen_letters_are_requeued(fakensqd, arguments):
    chosen = letter(b'{"n": 2}', age=86_400, error="Client.KeyError", reason="the other one")
    fakensqd.publish("dead", letter(), chosen)

    result = requeue(fakensqd, *arguments)

    assert result.exit_code == 0
    assert fakensqd.messages("orders") == [b'{"n": 2}']
    assert [b"bad country" in body for body in left(fakensqd)] == [True]
    assert "1 message left in the channel, deferred until 20" in result.stderr


def test_body_without_an_envelope_needs_a_topic(fakensqd):
    fakensqd.publish("dead", b"bare", letter(b"1"))

    without = requeue(fakensqd, "--all")
    assert left(fakensqd) == [b"bare"]
    fakensqd.publish("dead", letter(b"2"), b"bare 2")
    requeue(fakensqd, "--all", "--to", "again")

    assert "1 message of these without an envelope: give --to" in without.stderr
    assert fakensqd.messages("orders") == [b"1"]
    assert sorted(fakensqd.messages("again")) == [b"2", b"bare 2"]


def test_letters_that_were_left_come_again_later(fakensqd):
    fakensqd.publish("dead", letter(b"1"), letter(b"2", error="KeyError"))
    requeue(fakensqd, "--error", "KeyError", "--leave-for", "0.1s")

    result = requeue(fakensqd, "--all", "--idle", "0.5")

    assert "1 message requeued" in result.stderr
    assert sorted(fakensqd.messages("orders")) == [b"1", b"2"]


def test_run_ends_when_letters_come_again(fakensqd):
    fakensqd.publish("dead", *(letter(b"%d" % number) for number in range(20)))

    result = requeue(fakensqd, "--error", "KeyError", "--leave-for", "0.05", "--idle", "60s")

    assert result.exit_code == 0
    assert fakensqd.messages("orders") == []
    assert len(left(fakensqd)) == 20
    assert "20 messages left in the channel" in result.stderr


def test_dry_run_lists_and_changes_nothing(fakensqd):
    fakensqd.publish("dead", letter(b"1"), letter(b"2", error="KeyError", reason="\x1b[31m\nred"), b"bare")

    result = requeue(fakensqd, "--newer", "1h", "--dry-run")

    first, second, third = result.stdout.splitlines()
    assert " publish to orders: from orders/billing, given up 20" in first
    assert first.endswith("after 6 attempts: ValueError: bad country")
    assert second.endswith("KeyError: \\x1b[31m red")
    assert " leave (needs --to): no envelope" in third
    assert "2 messages would be requeued, 1 left" in result.stderr
    assert fakensqd.messages("orders") == []
    assert fakensqd.depth("dead", "requeue-dead") == 3


# --- failures


def test_letter_with_a_bad_topic_stays(fakensqd):
    fakensqd.publish("dead", letter(b"1", topic="not a topic"), letter(b"2"))

    result = requeue(fakensqd, "--all")

    assert result.exit_code == 1
    assert fakensqd.messages("orders") == [b"2"]
    assert len(left(fakensqd)) == 1
    assert "1 message refused and requeued, last error:" in result.stderr
    assert "not a topic" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "no condition is given"),
        (["--all", "--error", "ValueError"], "exclude each other"),
        (["--all", "--to", "dead"], "is the topic of the dead letters"),
        (["--older", "soon"], "time must be a number of seconds, or a duration such as 500ms, 1m30s or 3d, not 'soon'"),
        (["--all", "--idle", "0"], "time 0 must be at least 0.1 s"),
    ],
)
def test_wrong_options_are_refused(fakensqd, arguments, text):
    result = requeue(fakensqd, *arguments)

    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.subprocess
def test_signal_ends_a_dry_run_whose_reader_is_stopped(fakensqd):
    fakensqd.publish("dead", *[letter(reason="x" * 300)] * 500)

    with started(fakensqd, "requeue-dead", "dead", "--all", "--dry-run", "--idle", "0.3") as process:
        wait_for_program(process, lambda: fakensqd.depth("dead", "requeue-dead") == 500)
        process.stdout.read(1)
        process.send_signal(signal.SIGTERM)

        assert process.wait() == 128 + signal.SIGTERM


@pytest.mark.fakensqd(msg_timeout=0.5)
def test_message_does_not_time_out_while_a_slow_rate_delays_it(fakensqd):
    fakensqd.publish("dead", letter(b"1"), letter(b"2"))

    result = requeue(fakensqd, "--all", "--rate", "1", "-n", "2")

    assert result.exit_code == 0
    assert fakensqd.messages("orders") == [b"1", b"2"]
    assert channel_stats(fakensqd, "dead", "requeue-dead")["timeout_count"] == 0
