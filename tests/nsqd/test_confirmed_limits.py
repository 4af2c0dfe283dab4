"""What nsqd is known to take, by values."""

from dataclasses import dataclass

import pytest

from gnsq.nsqd.pending import ConfirmedLimits


@dataclass(frozen=True)
class Asked:
    largest_message: int = 0
    mpub_body_size: int = 0
    defer: int = 0
    topic: str = "t"


@pytest.mark.parametrize(
    ("proved", "asked", "doubted"),
    [
        pytest.param(Asked(largest_message=10), Asked(largest_message=10), False, id="as large"),
        pytest.param(Asked(largest_message=10), Asked(largest_message=11), True, id="larger"),
        pytest.param(
            Asked(largest_message=10, mpub_body_size=50),
            Asked(largest_message=10, mpub_body_size=50),
            False,
            id="as long together",
        ),
        pytest.param(
            Asked(largest_message=10, mpub_body_size=50),
            Asked(largest_message=1, mpub_body_size=51),
            True,
            id="longer together",
        ),
        pytest.param(Asked(10), Asked(10, 18), True, id="first multipublish"),
        pytest.param(Asked(largest_message=10, defer=100), Asked(largest_message=10, defer=100), False, id="as late"),
        pytest.param(Asked(largest_message=10, defer=100), Asked(largest_message=10, defer=101), True, id="later"),
        pytest.param(
            Asked(largest_message=10),
            Asked(largest_message=10, topic="u"),
            False,
            id="another topic, where all are allowed",
        ),
    ],
)
def test_what_goes_beyond_all_that_was_taken_is_doubted(proved, asked, doubted):
    proven = ConfirmedLimits()

    proven.record_confirmed(proved)

    assert proven.may_be_refused(asked) is doubted


def test_first_publish_is_doubted():
    assert ConfirmedLimits().may_be_refused(Asked(largest_message=1))


def test_what_was_taken_later_takes_nothing_back():
    proven = ConfirmedLimits()
    proven.record_confirmed(Asked(largest_message=10, mpub_body_size=50, defer=100))

    proven.record_confirmed(Asked(largest_message=1))

    assert not proven.may_be_refused(Asked(largest_message=10, mpub_body_size=50, defer=100))


def test_where_topics_need_leave_each_is_doubted_once():
    proven = ConfirmedLimits()
    proven.check_topics()
    proven.record_confirmed(Asked(largest_message=10, topic="t"))

    assert not proven.may_be_refused(Asked(largest_message=10, topic="t"))
    assert proven.may_be_refused(Asked(largest_message=1, topic="u"))


def test_where_topics_need_leave_what_has_none_is_not_doubted():
    proven = ConfirmedLimits()

    proven.check_topics()

    assert not proven.may_be_refused(Asked(topic=""))
