"""gnsq copy: a message is finished after nsqd has confirmed its copy."""

import pytest

from fakensqd import FakeNsqd, on
from fakensqd.faults import disconnect, error, refuse
from fakensqd.faults.toxics import stall
from tests.kit import refused_port, wait_until
from tests.kit.commands import background, command, create_channel, gnsq, signalled_when

pytestmark = pytest.mark.slow


@pytest.fixture
def other():
    with FakeNsqd(record=True).in_thread() as nsqd:
        yield nsqd


def test_new_channel_does_not_get_what_waits_in_others(fakensqd):
    create_channel(fakensqd, "t", "billing")
    fakensqd.publish("t", *[b"x"] * 5000)

    result = gnsq(fakensqd, "copy", "t", "u", "--idle", "0.1")

    assert result.stderr.splitlines()[0] == (
        "channel copy of topic t is new: it gets what is published from now on, not what waits in other channels "
        "(billing 5,000): --channel NAME takes that. It stays and collects messages, until gnsq channel delete t copy"
    )
    assert "0 messages copied" in result.stderr


def test_signal_ends_in_order_and_loses_nothing(fakensqd):
    def is_copying():
        # However fast it is, there is more to do: more than it has in flight and in its hands at a signal.
        if fakensqd.depth("t", "copy") < 5000:
            first = len(fakensqd.messages("t"))
            fakensqd.publish("t", *(b"%d" % number for number in range(first, first + 5000)))
        return len(fakensqd.messages("u")) > 500

    with signalled_when(is_copying):
        result = gnsq(fakensqd, "copy", "t", "u")

    assert result.exit_code == 0
    left = fakensqd.messages("t", "copy")
    assert left
    assert sorted(fakensqd.messages("u") + left) == sorted(fakensqd.messages("t"))


# --- a topic onto itself


@pytest.mark.parametrize("arguments", [["t"], ["t", "t"]], ids=str)
def test_copy_onto_itself_is_refused(fakensqd, arguments):
    result = gnsq(fakensqd, "copy", *arguments)

    assert result.exit_code == 2
    assert "are the same topic" in result.stderr


def test_copy_onto_itself_by_another_name_of_the_host_is_refused(fakensqd):
    port = fakensqd.tcp_address.rpartition(":")[2]

    result = gnsq(fakensqd, "copy", "t", "--to-nsqd", f"localhost:{port}")

    assert result.exit_code == 2
    assert f"the same topic of the nsqd 127.0.0.1:{port}" in result.stderr


@pytest.mark.fakecluster
def test_copy_onto_an_nsqd_that_lookupd_names_is_refused(fakecluster):
    fakecluster.nsqds[0].publish("t", b"1")
    (lookupd,) = fakecluster.lookupd_http_addresses
    arguments = ["copy", "t", "--lookupd", lookupd, "--to-nsqd", fakecluster.nsqds[0].tcp_address]

    result = command(*arguments)

    assert result.exit_code == 1
    assert "would be copied onto itself" in result.stderr
    assert fakecluster.nsqds[0].messages("t") == [b"1"]
    assert fakecluster.nsqds[0].messages("t", "copy") == [b"1"]


# --- failures


def test_lost_response_is_copied_again_and_said(fakensqd, other):
    fakensqd.publish("t", b"1")
    other.add(on.reply("PUB"), disconnect())

    result = gnsq(fakensqd, "copy", "t", "-n", "1", "--to-nsqd", other.tcp_address)

    assert result.exit_code == 0
    assert other.messages("t") == [b"1", b"1"]
    assert "1 message requeued without a response, so they may be doubled" in result.stderr


def test_message_whose_fin_is_lost_is_not_copied_twice(clock, other):
    with FakeNsqd(clock=clock) as nsqd:
        nsqd.publish("t", b"1")
        lost = nsqd.add(on.command("FIN"), disconnect())

        def take_back():
            wait_until(lambda: lost.fired)
            clock.advance(60.0)

        with background(take_back):
            result = gnsq(nsqd, "copy", "t", "--idle", "2", "--to-nsqd", other.tcp_address)

        assert other.messages("t") == [b"1"]
        assert nsqd.messages("t", "copy") == []
    assert "1 message came again after being published: finished, and not published again" in result.stderr


def test_messages_that_are_copied_after_the_connection_is_lost_are_said_to_be_doubled(fakensqd, other):
    fakensqd.publish("t", b"first")

    def lose_connection():
        wait_until(lambda: len(fakensqd.transcript.finished("t")) == 1)
        stalled = other.link.add(stall(), upstream=False)
        fakensqd.publish("t", *[b"x"] * 10)
        wait_until(lambda: len(other.messages("t")) == 11)
        refused = fakensqd.add(on.connect(), refuse())
        fakensqd.restart()
        wait_until(lambda: refused.fired)  # the consumer has noticed it
        stalled.remove()

    with background(lose_connection):
        result = gnsq(fakensqd, "copy", "t", "-n", "11", "--to-nsqd", other.tcp_address)

    assert result.exit_code == 0
    assert "11 messages copied" in result.stderr
    assert "10 messages published but not finished, as the connection was lost" in result.stderr


def test_copying_goes_on_when_the_target_is_back(fakensqd, other):
    fakensqd.publish("t", b"1", b"\xff\n")
    other.down()

    def restart():
        wait_until(lambda: len(fakensqd.transcript.requeued("t")) >= 2)
        other.up()

    with background(restart):
        result = gnsq(fakensqd, "copy", "t", "-n", "2", "--to-nsqd", other.tcp_address, "--timeout", "0.3")

    assert result.exit_code == 0
    assert sorted(other.messages("t")) == [b"1", b"\xff\n"]
    assert "not published and requeued" in result.stderr
    assert fakensqd.messages("t", "copy") == []


def test_refused_message_stays_and_the_others_are_copied(fakensqd):
    fakensqd.publish("t", b"1", b"x" * 100, b"2")

    with FakeNsqd(max_msg_size=50).in_thread() as small:
        result = gnsq(fakensqd, "copy", "t", "--to-nsqd", small.tcp_address, "--idle", "0.5")
        copied = small.messages("t")

    assert result.exit_code == 1
    assert sorted(set(copied)) == [b"1", b"2"]
    assert "1 message refused and requeued" in result.stderr
    assert fakensqd.messages("t", "copy") == [b"x" * 100]


def test_topic_that_the_target_refuses_ends_the_command(fakensqd, other):
    fakensqd.publish("t", b"1")
    other.add(on.command("PUB").always(), error("E_UNAUTHORIZED"))

    result = gnsq(fakensqd, "copy", "t", "--to-nsqd", other.tcp_address)

    assert result.exit_code == 1
    assert f"Error: {other.tcp_address}: E_UNAUTHORIZED" in result.stderr
    assert fakensqd.messages("t", "copy") == [b"1"]


def test_idle_command_says_which_nsqds_it_has_not_reached(fakensqd):
    gone = f"127.0.0.1:{refused_port()}"

    result = gnsq(fakensqd, "copy", "t", "u", "--nsqd", gone, "--idle", "0.3")

    assert result.exit_code == 1
    assert f"messages may be left there: {gone}" in result.stderr
