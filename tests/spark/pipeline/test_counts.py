import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.spark.pipeline.counts import EMPTY, Count, advance, decode_state, encode_state, updates, watermark

WINDOW, DELAY = dt.timedelta(minutes=1), dt.timedelta(minutes=10)


def at(minute, second=0):
    return dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC) + dt.timedelta(minutes=minute, seconds=second)


def step(state, batch_id, on_time, latest=None, late=0):
    return advance(state, batch_id, on_time, late, latest, watermark(state, DELAY), WINDOW)


def test_first_batch_has_no_watermark():
    assert watermark(EMPTY, DELAY) is None


def test_watermark_follows_the_latest_event_of_earlier_batches():
    state = step(EMPTY, 0, [(at(0), "/", 1)], latest=at(0, 30))
    state = step(state, 1, [(at(0), "/", 1)], latest=at(0, 5))

    assert watermark(state, DELAY) == at(-10, 30)


def test_counts_grow_and_versions_with_them():
    state = step(EMPTY, 0, [(at(0), "/", 2), (at(0), "/cart", 1)], latest=at(0))
    state = step(state, 1, [(at(0), "/", 3), (at(1), "/", 1)], latest=at(1))

    assert state.counts == (Count(at(0), "/", 5, 1), Count(at(0), "/cart", 1, 0), Count(at(1), "/", 1, 1))
    assert updates(state) == [Count(at(0), "/", 5, 1), Count(at(1), "/", 1, 1)]


def test_closed_windows_are_let_go():
    state = step(EMPTY, 0, [(at(0), "/", 2), (at(1), "/", 2)], latest=at(11))
    state = step(state, 1, [(at(11), "/", 1)], latest=at(11))

    assert [count.start for count in state.counts] == [at(1), at(11)]


def test_account():
    state = step(EMPTY, 0, [(at(0), "/", 2)], latest=at(30), late=0)
    state = step(state, 1, [], latest=at(0), late=4)

    assert (state.aggregated, state.late) == (2, 4)
    assert state.max_event_time == at(30)


def test_batch_without_events_changes_nothing():
    before = step(EMPTY, 0, [(at(0), "/", 2)], latest=at(0))
    after = step(before, 1, [])

    assert after.counts == before.counts
    assert updates(after) == []


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(1, 9)), max_size=5), max_size=6)
)
def test_highest_versions_add_up_to_what_was_aggregated(batches):
    state, emitted = EMPTY, {}
    for batch_id, batch in enumerate(batches):
        rows = [(at(minute), key, count) for minute, key, count in {(m, k): (m, k, c) for m, k, c in batch}.values()]
        state = step(state, batch_id, rows, latest=max((row[0] for row in rows), default=None))
        for count in updates(state):
            assert count.version > emitted.get((count.start, count.key), (-1,))[0]
            emitted[count.start, count.key] = (count.version, count.count)

    assert sum(count for _, count in emitted.values()) == state.aggregated


def test_state_survives_its_file():
    state = step(EMPTY, 0, [(at(0), "/ü", 2)], latest=at(0, 1), late=0)

    assert decode_state(encode_state(state)) == state
    assert decode_state(encode_state(EMPTY)) == EMPTY


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"max_event_time": null}'])
def test_foreign_state_is_refused(data):
    with pytest.raises(ValueError):  # noqa: PT011  # JSON's own, too
        decode_state(data)
