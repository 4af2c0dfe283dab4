"""What nsqd is known to take, by values."""

from dataclasses import dataclass

import pytest

from gnsq.nsqd.pending import Proven


@dataclass(frozen=True)
class Asked:
    largest: int = 0
    together: int = 0
    defer: int = 0
    topic: str = "t"


@pytest.mark.parametrize(
    ("proved", "asked", "doubted"),
    [
        pytest.param(Asked(largest=10), Asked(largest=10), False, id="as large"),
        pytest.param(Asked(largest=10), Asked(largest=11), True, id="larger"),
        pytest.param(Asked(largest=10, together=50), Asked(largest=10, together=50), False, id="as long together"),
        pytest.param(Asked(largest=10, together=50), Asked(largest=1, together=51), True, id="longer together"),
        pytest.param(Asked(largest=10), Asked(largest=10, together=18), True, id="first multipublish"),
        pytest.param(Asked(largest=10, defer=100), Asked(largest=10, defer=100), False, id="as late"),
        pytest.param(Asked(largest=10, defer=100), Asked(largest=10, defer=101), True, id="later"),
        pytest.param(Asked(largest=10), Asked(largest=10, topic="u"), False, id="another topic, where all are allowed"),
    ],
)
def test_what_goes_beyond_all_that_was_taken_is_doubted(proved, asked, doubted):
    proven = Proven()

    proven.proved(proved)

    assert proven.doubts(asked) is doubted


def test_first_publish_is_doubted():
    assert Proven().doubts(Asked(largest=1))


def test_what_was_taken_later_takes_nothing_back():
    proven = Proven()
    proven.proved(Asked(largest=10, together=50, defer=100))

    proven.proved(Asked(largest=1))

    assert not proven.doubts(Asked(largest=10, together=50, defer=100))


def test_where_topics_need_leave_each_is_doubted_once():
    proven = Proven()
    proven.by_topic()
    proven.proved(Asked(largest=10, topic="t"))

    assert not proven.doubts(Asked(largest=10, topic="t"))
    assert proven.doubts(Asked(largest=1, topic="u"))


def test_where_topics_need_leave_what_has_none_is_not_doubted():
    proven = Proven()

    proven.by_topic()

    assert not proven.doubts(Asked(topic=""))
