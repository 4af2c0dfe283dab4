import pytest

from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.subscriptions import matching_topics, split_max_in_flight


@pytest.mark.parametrize(
    ("total", "topics", "expected"),
    [
        pytest.param(10, ["a"], {"a": 10}, id="one"),
        pytest.param(10, ["a", "b"], {"a": 5, "b": 5}, id="even"),
        pytest.param(11, ["c", "a", "b"], {"a": 4, "b": 4, "c": 3}, id="the rest to the first"),
        pytest.param(2, ["a", "b", "c"], {"a": 1, "b": 1, "c": 1}, id="at least 1"),
        pytest.param(5, [], {}, id="none"),
    ],
)
def test_shares(total, topics, expected):
    assert split_max_in_flight(total, topics) == expected


@pytest.mark.parametrize(
    ("total", "starved", "expected"),
    [
        pytest.param(300, {"a"}, {"a": 280, "b": 10, "c": 10}, id="one"),
        pytest.param(300, {"a", "b"}, {"a": 145, "b": 145, "c": 10}, id="two share alike"),
        pytest.param(300, {"a", "b", "c"}, {"a": 100, "b": 100, "c": 100}, id="nobody lends"),
        pytest.param(9, {"a"}, {"a": 7, "b": 1, "c": 1}, id="each keeps at least 1"),
        pytest.param(300, {"gone"}, {"a": 100, "b": 100, "c": 100}, id="one that is no more"),
    ],
)
def test_hungry_topics_borrow(total, starved, expected):
    assert split_max_in_flight(total, ["a", "b", "c"], starved) == expected


def options(**changes):
    return ReadOptions(**{"channel": "c", "lookupd_http_addresses": ("x",), **changes})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"topic": "b,a,missing"}, ["a", "b"], id="list"),
        pytest.param({"topic_pattern": "a.*"}, ["a", "ab", "ab#ephemeral"], id="pattern"),
        pytest.param({"topic_pattern": r"a\w*"}, ["a", "ab"], id="pattern without ephemeral"),
        pytest.param({"topic_pattern": "b"}, ["b"], id="whole names only"),
    ],
)
def test_matching(given, expected):
    assert matching_topics(options(**given), ["b", "a", "ab", "ab#ephemeral", "a"]) == expected
