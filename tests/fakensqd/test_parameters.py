"""The words behind a command."""

import pytest

from fakensqd import parameters
from fakensqd.reader import Refusal

ID = b"0123456789abcdef"


def refused(function, line, *limits):
    with pytest.raises(Refusal) as caught:
        function(line.split(b" "), *limits)
    return caught.value.data


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"SUB t", b"E_INVALID SUB insufficient number of parameters"),
        (b"SUB a@b c", b'E_BAD_TOPIC SUB topic name "a@b" is not valid'),
        (b"SUB t c@d", b'E_BAD_CHANNEL SUB channel name "c@d" is not valid'),
        (b"SUB t \xff", b'E_BAD_CHANNEL SUB channel name "\\xff" is not valid'),
    ],
)
def test_subscription_refuses(line, answer):
    assert refused(parameters.subscription, line) == answer


def test_subscription_ignores_surplus_words():
    assert parameters.subscription([b"SUB", b"t", b"c#ephemeral", b"x"]) == ("t", "c#ephemeral")


@pytest.mark.parametrize(
    ("line", "count"), [(b"RDY", 1), (b"RDY ", 0), (b"RDY 2500", 2500), (b"RDY 18446744073709551617", 1)]
)
def test_ready_count(line, count):
    assert parameters.ready_count(line.split(b" "), 2500) == count


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"RDY x", b"E_INVALID RDY could not parse count x"),
        (b"RDY 2501", b"E_INVALID RDY count 2501 out of range 0-2500"),
        (b"RDY 18446744073709551615", b"E_INVALID RDY count -1 out of range 0-2500"),
    ],
)
def test_ready_count_refuses(line, answer):
    assert refused(parameters.ready_count, line, 2500) == answer


def test_message_id():
    assert parameters.message_id([b"FIN", ID]) == ID
    assert refused(parameters.message_id, b"FIN") == b"E_INVALID FIN insufficient number of params"
    assert refused(parameters.message_id, b"FIN x") == b"E_INVALID invalid message ID"


@pytest.mark.parametrize(
    ("milliseconds", "delay"),
    [(b"", 0), (b"0", 0), (b"1500", 1.5), (b"3600001", 3600), (b"9223372036855", 0), (b"18446744073709551616", 0)],
)
def test_requeue_delay(milliseconds, delay):
    assert parameters.requeue_delay([b"REQ", ID, milliseconds], 3600.0) == delay


def test_requeue_delay_refuses_a_sign():
    assert refused(parameters.requeue_delay, b"REQ %s -1" % ID, 1.0) == b"E_INVALID REQ could not parse timeout -1"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"PUB", b"E_INVALID PUB insufficient number of parameters"),
        (b"PUB ", b'E_BAD_TOPIC PUB topic name "" is not valid'),
        (b"MPUB a@b", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a@b" is not valid'),
    ],
)
def test_publish_topic_refuses(line, answer):
    assert refused(parameters.publish_topic, line) == answer


def test_publish_topic_takes_64_bytes():
    assert parameters.publish_topic([b"PUB", b"a" * 64]) == "a" * 64


@pytest.mark.parametrize(
    ("milliseconds", "delay"), [(b"0", 0), (b"1500", 1.5), (b"3600000", 3600), (b"18446744073709551616", 0)]
)
def test_defer_delay(milliseconds, delay):
    assert parameters.defer_delay([b"DPUB", b"t", milliseconds], 3600.0) == delay


@pytest.mark.parametrize(
    ("milliseconds", "answer"),
    [
        (b"-1", b"E_INVALID DPUB could not parse timeout -1"),
        (b"3600001", b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
        (b"9223372036855", b"E_INVALID DPUB timeout 9223372036855 out of range 0-3600000"),
    ],
)
def test_defer_delay_refuses(milliseconds, answer):
    assert refused(parameters.defer_delay, b"DPUB t " + milliseconds, 3600.0) == answer
