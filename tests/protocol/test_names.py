"""Which names nsqd takes."""

import pytest

from gnsq.protocol.names import (
    assert_valid_channel_name,
    assert_valid_topic_name,
    checked_names,
    is_ephemeral,
    valid_channel_name,
    valid_topic_name,
)

GOOD = ["a", "A.b-C_9", "x" * 64, "t#ephemeral", "x" * 54 + "#ephemeral"]
BAD = [
    pytest.param("", id="empty"),
    pytest.param("x" * 65, id="65 characters"),
    pytest.param("x" * 55 + "#ephemeral", id="65 with suffix"),
    pytest.param("#ephemeral", id="suffix alone"),
    pytest.param("a b", id="space"),
    pytest.param("a\n", id="trailing newline"),
    pytest.param("a#other", id="other suffix"),
    pytest.param("\u00e9", id="not ascii"),
    pytest.param("*", id="wildcard"),
]


@pytest.mark.parametrize("name", GOOD)
def test_good_names_pass(name):
    assert valid_topic_name(name)
    assert valid_channel_name(name)
    assert_valid_topic_name(name)
    assert_valid_channel_name(name)


@pytest.mark.parametrize("name", BAD)
def test_bad_names_are_refused_with_subject_and_value(name):
    assert not valid_topic_name(name)
    with pytest.raises(ValueError, match="topic name") as topic:
        assert_valid_topic_name(name)
    with pytest.raises(ValueError, match="channel name"):
        assert_valid_channel_name(name)
    assert repr(name) in str(topic.value)


SENT = [
    pytest.param(None, [], id="null"),
    pytest.param(["a", "b#ephemeral"], ["a", "b#ephemeral"], id="names"),
    pytest.param(["a", "x$(touch x)"], "topic name 'x\\$\\(touch x\\)' is not valid", id="command"),
    pytest.param(["\x1b]0;x"], r"topic name '\\x1b\]0;x' is not valid", id="escape sequence"),
    pytest.param(["x" * 1_000_000], r"topic name 'x{64}\.\.\.' has 1000000 characters", id="long"),
    pytest.param([{"a": 1}], "must be a str, not dict", id="object"),
    pytest.param([b"topic"], "must be a str, not bytes", id="bytes"),
    pytest.param("a", "topics are no list: 'a'", id="text"),
]


@pytest.mark.parametrize(("sent", "expected"), SENT)
def test_names_of_a_server_are_checked(sent, expected):
    if isinstance(expected, list):
        assert checked_names(sent, "topic") == expected
    else:
        with pytest.raises(ValueError, match=expected):
            checked_names(sent, "topic")


def test_suffix_makes_a_name_ephemeral():
    assert [is_ephemeral(name) for name in ("t#ephemeral", "t")] == [True, False]
