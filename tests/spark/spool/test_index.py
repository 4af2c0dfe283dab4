"""The index of segments answers as a plain list of them does."""

from hypothesis import given
from hypothesis import strategies as st

from gnsq.spark.offsets import Segment
from gnsq.spark.spool.index import SegmentIndex, Totals
from tests.spark.helpers import pending
from tests.spark.test_offsets import SPOOLS, VECTORS

CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SPOOLS),
        st.tuples(st.just("discard"), st.sets(st.tuples(st.sampled_from("abc"), st.integers(1, 9)))),
        st.tuples(st.just("remove_up_to"), VECTORS),
    ),
    max_size=6,
)


def changed(changes):
    """An index, and the list of its segments, after some changes."""
    index, present = SegmentIndex(), {}
    for change, what in changes:
        if change == "add":
            new = [each for each in what if (each.receiver, each.number) not in present]
            index.add(new)
            present |= {(each.receiver, each.number): each for each in new}
        elif change == "discard":
            index.discard({present.pop(key) for key in what & present.keys()})
        else:
            index.remove_up_to(what)
            present = {key: each for key, each in present.items() if each.number > what.get(each.receiver, 0)}
    return index, list(present.values())


@given(CHANGES, VECTORS, st.one_of(st.none(), VECTORS))
def test_index_answers_as_a_list_of_its_segments(changes, start, end):
    index, present = changed(changes)
    expected = pending(present, start, end)

    assert index.between(start, end) == expected
    assert [each for each in index.between({}) if each.receiver == "a"] == [*index.waiting({}).get("a", ())]
    sums = Totals(len(expected), sum(each.rows for each in expected), sum(each.size for each in expected))
    assert index.totals(start, end) == sums
    assert set(index.up_to(start)) == set(present) - set(pending(present, start))
    assert index.last() == {
        name: max(each.number for each in present if each.receiver == name)
        for name in {each.receiver for each in present}
    }
    assert sorted(index, key=lambda each: (each.receiver, each.number)) == sorted(
        present, key=lambda each: (each.receiver, each.number)
    )
    assert len(index) == len(present)


def test_segment_that_is_not_in_the_index_is_discarded_without_an_effect():
    index = SegmentIndex([Segment("a", 1, 5, 1)])

    index.discard({Segment("a", 2, 5, 1), Segment("b", 1, 5, 1)})

    assert list(index) == [Segment("a", 1, 5, 1)]
