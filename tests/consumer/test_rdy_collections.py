"""Collections of the RDY policy: deadlines, random sets, turns and equal shares."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.consumer.rdy_collections import Deadlines, RandomSet
from gnsq.consumer.rdy_shares import equal_shares


def test_deadlines_are_popped_in_the_order_of_their_times():
    deadlines = Deadlines()
    for item, time in {"a": 3.0, "b": 1.0, "c": 2.0, "d": 9.0}.items():
        deadlines.set(item, time)
    deadlines.set("b", 2.5)
    deadlines.discard("c")

    assert deadlines.first(period=1.0) == 3.5
    assert deadlines.pop(4.0, period=1.0) == ["b", "a"]
    assert (len(deadlines), "d" in deadlines) == (1, True)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, 1.0, 2.0, 3.0])), max_size=100))
def test_deadlines_are_those_that_were_set_last(changes):
    deadlines, times = Deadlines(), {}
    for item, time in changes:
        if time is None:
            deadlines.discard(item)
            times.pop(item, None)
        else:
            deadlines.set(item, time)
            times[item] = time
        assert deadlines.first() == min(times.values(), default=float("inf"))
        assert len(deadlines._heap) <= 2 * len(times) + 11

    assert sorted(deadlines.pop(5.0)) == sorted(times)
    assert deadlines.pop(5.0) == []


def test_each_item_of_a_random_set_may_be_chosen_and_removed():
    items = RandomSet("abcd")
    items.discard("b")
    items.discard("d")
    items.discard("x")
    items.add("e")

    assert {items.choose(random.Random(seed)) for seed in range(30)} == {"a", "c", "e"}
    assert (len(items), "b" in items, sorted(items)) == (3, False, ["a", "c", "e"])


SHARES = [
    pytest.param({2500: 3}, 11, 0, {2500: {3: 1, 4: 2}}, id="remainder"),
    pytest.param({2500: 3}, 11, 2, {2500: {2: 3, 3: 0}}, id="reserved, no remainder"),
    pytest.param({2500: 3}, 2, 9, {2500: {1: 3, 2: 0}}, id="at least 1"),
    pytest.param({5: 1, 2500: 2}, 31, 0, {5: {5: 1}, 2500: {13: 2, 14: 0}}, id="above a limit"),
    pytest.param({5: 1, 7: 2}, 100, 0, {5: {5: 1}, 7: {7: 2}}, id="above all limits"),
    pytest.param({5: 1, 7: 2}, 14, 0, {5: {4: 0, 5: 1}, 7: {4: 1, 5: 1}}, id="remainder within two limits"),
    pytest.param({5: 0}, 14, 0, {5: {5: 0}}, id="no connection"),
]


@pytest.mark.parametrize(("sizes", "count", "reserved", "shares"), SHARES)
def test_shares_are_equal_within_the_limits(sizes, count, reserved, shares):
    assert equal_shares(sizes, count, reserved) == shares
