import pytest

from gnsq.spark.receiver.buffer import SegmentBuffer, grown_age
from tests.spark.helpers import FakeMessage


def collector(*bodies, rows=10, size=1000, age=0.1, in_flight_limit=100):
    filled = SegmentBuffer(rows, size, age)
    filled.begin(100.0, in_flight_limit)
    for number, body in enumerate(bodies):
        filled.add(f"topic {number}", [FakeMessage(number, body)])
    return filled


@pytest.mark.parametrize(
    ("filled", "full"),
    [
        pytest.param(collector(), False, id="empty"),
        pytest.param(collector(*[b"x"] * 9), False, id="one row short"),
        pytest.param(collector(*[b"x"] * 10), True, id="rows"),
        pytest.param(collector(b"x" * 999), False, id="one byte short"),
        pytest.param(collector(b"x" * 1000), True, id="bytes"),
        pytest.param(collector(*[b"x"] * 6, in_flight_limit=10), False, id="less than most of what may be in flight"),
        pytest.param(collector(*[b"x"] * 7, in_flight_limit=10), True, id="three quarters of what may be in flight"),
        pytest.param(collector(b"x", in_flight_limit=0), True, id="nothing more may come"),
    ],
)
def test_buffer_is_full_at_its_limits(filled, full):
    assert filled.is_full is full


def test_segment_is_due_by_age_and_a_take_empties_the_buffer():
    filled = collector(b"a", b"b" * 999, age=0.1)
    assert filled.seconds_to_flush(100.0) == pytest.approx(0.1)
    assert filled.seconds_to_flush(100.08) == pytest.approx(0.02)
    assert filled.seconds_to_flush(101.0) == 0

    taken = filled.take()

    assert [message.body[:1] for message in taken.messages] == [b"a", b"b"]
    assert (len(filled), filled.is_full) == (0, False)


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        pytest.param({"rows": 4}, [4, 4, 2], id="rows"),
        pytest.param({"size": 55}, [5, 5], id="bytes"),
        pytest.param({"size": 5}, [1] * 10, id="each too big alone"),
    ],
)
def test_take_keeps_to_the_limits(limits, sizes):
    filled = collector(*[b"x" * 10] * 10, **{"rows": 100, "size": 1000, **limits})

    taken = []
    while len(filled):
        taken.append(filled.take())

    assert [len(segment.messages) for segment in taken] == sizes
    assert [topic for segment in taken for topic in segment.topics] == [f"topic {number}" for number in range(10)]
    # What is left over has the age of the first one.
    assert filled.seconds_to_flush(100.1) == 0


def test_segment_waits_for_half_of_the_time_that_nsqd_leaves():
    for time_left, due in (None, 10.0), (60.0, 10.0), (5.0, 2.5):
        filled = SegmentBuffer(10, 1000, 10.0)
        filled.begin(100.0, 100, time_left)
        assert filled.seconds_to_flush(100.0) == due


def test_segments_get_older_while_many_wait_in_the_spool():
    assert [grown_age(0.1, waiting) for waiting in (0, 1000, 3000)] == pytest.approx([0.1, 0.1, 0.3])
    # No more than 5 s, unless the option says more.
    assert (grown_age(0.1, 1_000_000), grown_age(2.0, 3000), grown_age(30.0, 1_000_000)) == (5.0, 5.0, 30.0)
