import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.spark.offsets import (
    TASK_BYTES,
    TASK_ROWS,
    Segment,
    advance,
    decode_offset,
    describe_missing,
    distribute,
    encode_offset,
    may_follow,
    missing,
    take_up_to,
    with_new_revision,
)
from tests.spark.helpers import pending
from tests.strategies import json_values

VECTORS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))
SPOOLS = st.lists(
    st.builds(Segment, st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 50), st.integers(1, 50)),
    unique_by=lambda segment: (segment.receiver, segment.number),
)


def segments(receiver, *numbers, rows=10, size=100):
    return [Segment(receiver, number, size, rows) for number in numbers]


def by_receiver(waiting):
    found = {}
    for segment in sorted(waiting, key=lambda segment: segment.number):
        found.setdefault(segment.receiver, []).append(segment)
    return found


@given(VECTORS)
def test_offset_survives_json_and_does_not_depend_on_the_order(vector):
    encoded = json.dumps(encode_offset(vector, "clicks/a"))

    assert decode_offset(json.loads(encoded), "clicks/a") == vector
    assert json.dumps(encode_offset(dict(reversed(vector.items())), "clicks/a")) == encoded


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param("a,b/ch", "b,c/ch", True, id="one in common"),
        pytest.param("a/ch", "a,b/ch", True, id="added"),
        pytest.param("a/ch", "b/ch", False, id="another topic"),
        pytest.param("a/ch", "a/other", False, id="another channel"),
        pytest.param("a/ch", "/a.*//ch", True, id="to a pattern"),
        pytest.param("/a.*//ch", "b/ch", True, id="from a pattern"),
    ],
)
def test_query_goes_on_if_topics_are_added_or_removed(before, now, expected):
    assert may_follow(before, now) == expected
    if expected:
        assert decode_offset(encode_offset({"r": 1}, before), now) == {"r": 1}


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        pytest.param({"partition-1": 3}, "another query's", id="another source"),
        pytest.param({"r": {}}, "another query's", id="no version"),
        pytest.param({"v": 2, "r": {}}, "version 2", id="later version"),
        pytest.param({"v": 1, "s": "views/a", "r": {}}, "'views/a', this query reads 'clicks/a': give", id="topic"),
        pytest.param({"v": 1, "r": {}}, "is of None, this query reads", id="no source"),
        pytest.param({"v": 1, "s": "clicks/a", "r": {"a": -1}}, "'a': -1", id="negative"),
    ],
)
def test_foreign_offset_is_refused(offset, words):
    with pytest.raises(ValueError, match=words):
        decode_offset(offset, "clicks/a")


@given(json_values(st.sampled_from(["v", "s", "r", "a", "/a", ""])), st.dictionaries(st.text(), json_values()))
def test_any_json_is_an_offset_or_refused(offset, vector):
    for each in (offset, {"v": 1, "s": "clicks/a", "r": offset}, {"v": 1, "s": "clicks/a", "r": vector}):
        with contextlib.suppress(ValueError):
            found = decode_offset(each, "clicks/a")
            assert decode_offset(encode_offset(found, "clicks/a"), "clicks/a") == found


def test_receiver_with_large_segments_is_not_kept_back_by_one_that_always_has_small_ones():
    large, start = segments("b", *range(1, 11), rows=500), {}
    for turn in range(20):
        # Each time ten more, as of a receiver that goes on.
        small = segments("a", *range(1, 10 * turn + 11))
        waiting = by_receiver(pending([*small, *large], start))
        start = advance(start, take_up_to(waiting, 500, 10**9, turn), {"a", "b"})

    # The last batch was a large segment.
    assert start == {"a": 190, "b": 10}


@given(SPOOLS, VECTORS, st.one_of(st.none(), st.integers(1, 100)), st.integers(1, 100), st.integers(0, 9))
def test_repeated_take_up_to_reads_every_segment_once(spool, start, max_rows, max_bytes, turn):
    receivers = {segment.receiver for segment in spool}
    todo = pending(spool, start)
    read = []
    while waiting := pending(spool, start):
        taken = take_up_to(by_receiver(waiting), max_rows, max_bytes, turn)
        end = advance(start, taken, receivers)
        assert set(pending(spool, start, end)) == set(taken)
        read += taken
        start = end

    assert len(read) == len(set(read))
    assert set(read) == set(todo)


def plain_take_up_to(waiting, max_rows, max_bytes, turn):
    """take_up_to() as one pass over all that waits."""
    receivers = sorted({segment.receiver for segment in waiting})
    if receivers:
        first = next(each for each in waiting if each.receiver == receivers[turn % len(receivers)])
        waiting = [first, *(segment for segment in waiting if segment is not first)]
    taken, full = [], set()
    for segment in waiting:
        size, rows = sum(each.size for each in taken), sum(each.rows for each in taken)
        fits = size + segment.size <= max_bytes and (max_rows is None or rows + segment.rows <= max_rows)
        if segment.receiver not in full and (fits or not taken):
            taken.append(segment)
        else:
            full.add(segment.receiver)
    return taken


@given(SPOOLS, VECTORS, st.one_of(st.none(), st.integers(1, 300)), st.integers(1, 300), st.integers(0, 9))
def test_take_up_to_takes_what_one_pass_over_all_segments_takes(spool, start, max_rows, max_bytes, turn):
    waiting = pending(spool, start)

    taken = take_up_to(by_receiver(waiting), max_rows, max_bytes, turn)

    assert taken == plain_take_up_to(waiting, max_rows, max_bytes, turn)


def test_take_up_to_reads_one_segment_more_of_each_receiver():
    waiting = {name: iter(segments(name, *range(1, 1000))) for name in "ab"}

    assert len(take_up_to(waiting, None, 1000)) == 10
    assert [next(queue).number for queue in waiting.values()] == [7, 7]


def test_advance_records_segments_deleted_before_a_receiver_was_known():
    end = advance({"a": 1}, segments("a", 4) + segments("b", 5, 6), {"a", "b"})

    assert end == {"a": 4, "b": 6, "/b": 4}
    assert missing(segments("b", 5, 6) + segments("a", 2, 3, 4), {"a": 1}, end) == []
    # Once is enough.
    assert advance(end, segments("b", 7), {"a", "b"}) == {"a": 4, "b": 7}
    # Receivers without files are dropped, unless nothing is new.
    assert advance({"gone": 4, "a": 1}, segments("a", 2), {"a"}) == {"a": 2}
    assert advance({"gone": 4, "a": 1}, [], {"a"}) == {"gone": 4, "a": 1}


@pytest.mark.parametrize(
    ("present", "start", "end", "gaps"),
    [
        pytest.param([1, 2], {}, {"a": 2}, [], id="all there"),
        pytest.param([2], {"a": 0}, {"a": 2}, [("a", 1)], id="first gone"),
        pytest.param([1, 3], {"a": 0}, {"a": 3}, [("a", 2)], id="one gone"),
        pytest.param([], {}, {"a": 3}, [("a", 1), ("a", 2), ("a", 3)], id="all of an unknown receiver gone"),
        pytest.param([7], {}, {"a": 2}, [("a", 1), ("a", 2)], id="all of an unknown receiver pruned"),
        pytest.param([5, 6], {}, {"a": 6, "/a": 4}, [], id="new checkpoint on an old spool"),
        pytest.param([6], {}, {"a": 6, "/a": 4}, [("a", 5)], id="new checkpoint, and one gone"),
        pytest.param([], {"a": 3}, {"a": 3}, [], id="pruned, and behind us"),
        pytest.param([], {"a": 3}, {}, [], id="receiver left out"),
    ],
)
def test_missing_lists_the_gaps(present, start, end, gaps):
    assert missing(segments("a", *present), start, end) == gaps


@given(SPOOLS, st.integers(1, 5))
def test_sharing_out_keeps_every_segment_once_and_in_order(spool, groups):
    shares = distribute(spool, groups, 10_000)

    assert [segment for share in shares for segment in share] == spool
    assert len(shares) <= groups
    assert all(shares)


def test_small_batch_has_few_tasks_and_a_large_one_tasks_of_like_size():
    def tasks(**each):
        return len(distribute(segments("a", *range(1, 7), **each), 4, 10**9))

    assert tasks(rows=TASK_ROWS // 6, size=100) == 1
    assert tasks(rows=TASK_ROWS // 6 + 1, size=100) == tasks(rows=1, size=TASK_BYTES // 6 + 1) == 2
    assert tasks(rows=TASK_ROWS, size=100) == 4
    shares = distribute(segments("a", 1, 2, 3, 4, 5, 6, size=TASK_BYTES), 3, 10**9)
    assert [len(share) for share in shares] == [2, 2, 2]


def test_a_large_batch_has_more_tasks_each_of_a_bounded_size():
    shares = distribute(segments("a", *range(1, 101), size=100), 2, 510)

    assert len(shares) == 20
    assert max(sum(segment.size for segment in share) for share in shares) <= 510 + 100


def test_vector_with_new_revision_has_the_same_positions():
    start = {"a": 2}
    end = with_new_revision(start)

    assert start != end != with_new_revision(end)
    assert pending(segments("a", 1, 2), start, end) == []
    assert missing(segments("a", 2), start, end) == []
    assert advance(end, segments("a", 3), {"a"}) == {"a": 3}


def test_missing_segments_are_described_for_each_receiver():
    assert describe_missing([("a", 7)]) == "1 segment (1 of receiver a, number 7)"
    two = "3 segments (2 of receiver a, numbers 1 to 4; 1 of receiver b, number 2)"
    assert describe_missing([("a", 1), ("a", 4), ("b", 2)]) == two
    five = "; ".join(f"1 of receiver {receiver}, number 1" for receiver in "abcde")
    many = f"7 segments ({five}; and those of 2 more receivers)"
    assert describe_missing([(receiver, 1) for receiver in "abcdefg"]) == many
