"""Outcomes of each toxic for chunks, and of several toxics in a chain: values only."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakensqd.faults.toxics import (
    ConnectionReset,
    Deliver,
    StreamEnd,
    ToxicChain,
    bandwidth,
    corrupt_bytes,
    latency,
    limit_bytes,
    reset,
    slice_bytes,
    stall,
)


def start(toxic, seed=1):
    return toxic.start(Random(seed))


def outcomes_of(toxic, *chunks):
    """The outcomes of (chunk, time) pairs, in a list for each."""
    passage = start(toxic)
    return [list(passage(data, now)) for data, now in chunks]


TABLE = [
    pytest.param(latency(0.2), [(b"ab", 1.0)], [[Deliver(b"ab", 1.2)]], id="latency"),
    pytest.param(latency(0), [(b"ab", 1.0)], [[Deliver(b"ab", 1.0)]], id="no latency"),
    pytest.param(
        bandwidth(100), [(b"x" * 10, 1.0)], [[Deliver(b"x" * 5, 1.05), Deliver(b"x" * 5, 1.1)]], id="grains"
    ),
    pytest.param(bandwidth(1), [(b"ab", 0.0)], [[Deliver(b"a", 1.0), Deliver(b"b", 2.0)]], id="a byte a second"),
    pytest.param(
        bandwidth(1), [(b"a", 0.0), (b"b", 0.5), (b"c", 9.0)], [
            [Deliver(b"a", 1.0)], [Deliver(b"b", 2.0)], [Deliver(b"c", 10.0)],
        ], id="bandwidth is of all chunks, and not saved up",
    ),
    pytest.param(slice_bytes(), [(b"ab", 1.0)], [[Deliver(b"a", 1.0), Deliver(b"b", 1.0)]], id="slices"),
    pytest.param(slice_bytes(2), [(b"abc", 1.0)], [[Deliver(b"ab", 1.0), Deliver(b"c", 1.0)]], id="slices with a rest"),
    pytest.param(
        slice_bytes(2, delay=0.5), [(b"abcd", 1.0), (b"e", 1.1)], [
            [Deliver(b"ab", 1.0), Deliver(b"cd", 1.5)], [Deliver(b"e", 2.0)],
        ], id="slices apart",
    ),
    pytest.param(stall(), [(b"a", 1.0)], [[Deliver(b"a", math.inf)]], id="stall"),
    pytest.param(
        stall(after=3), [(b"ab", 1.0), (b"cd", 2.0)], [
            [Deliver(b"ab", 1.0)], [Deliver(b"c", 2.0), Deliver(b"d", math.inf)],
        ], id="stall after some",
    ),
    pytest.param(limit_bytes(3), [(b"ab", 1.0), (b"cd", 2.0), (b"e", 3.0)], [
        [Deliver(b"ab", 1.0)], [Deliver(b"c", 2.0), StreamEnd(2.0)], [],
    ], id="limit"),
    pytest.param(limit_bytes(2), [(b"ab", 1.0)], [[Deliver(b"ab", 1.0), StreamEnd(1.0)]], id="limit met exactly"),
    pytest.param(reset(), [(b"a", 1.0), (b"b", 2.0)], [[ConnectionReset(1.0)], []], id="reset"),
    pytest.param(reset(after=1), [(b"ab", 1.0)], [[Deliver(b"a", 1.0), ConnectionReset(1.0)]], id="reset after some"),
    pytest.param(corrupt_bytes(), [(b"ab", 1.0)], [[Deliver(b"ab", 1.0)]], id="nothing to corrupt"),
]  # fmt: skip


@pytest.mark.parametrize(("toxic", "chunks", "outcomes"), TABLE)
def test_outcomes_of_chunks(toxic, chunks, outcomes):
    assert outcomes_of(toxic, *chunks) == outcomes


ENDS = [
    pytest.param(latency(0.2), 5.2, id="latency"),
    pytest.param(stall(after=3), 5.0, id="stall not reached"),
    pytest.param(stall(after=2), math.inf, id="stall"),
    pytest.param(corrupt_bytes(0.5), 5.0, id="corrupt"),
]


@pytest.mark.parametrize(("toxic", "at"), ENDS)
def test_time_of_an_end_that_arrives_at_5(toxic, at):
    passage = start(toxic)
    list(passage(b"ab", 5.0))

    assert max((outcome.at for outcome in passage(b"", 5.0)), default=5.0) == at


def test_jitter_is_symmetric_and_never_negative_in_sum():
    passage = start(latency(0.1, jitter=0.2))

    times = [outcome.at for _ in range(500) for outcome in passage(b"x", 1.0)]

    assert min(times) == 1.0
    assert 1.25 < max(times) <= 1.3


def test_bytes_at_given_positions_are_corrupted():
    (first,), (second,) = outcomes_of(corrupt_bytes(at=(1, 4)), (b"abc", 0.0), (b"def", 0.0))

    assert [one == other for one, other in zip(first.data + second.data, b"abcdef", strict=True)] == [
        *[True, False, True],
        *[True, False, True],
    ]


def test_share_of_the_bytes_is_corrupted():
    ((outcome,),) = outcomes_of(corrupt_bytes(0.1), (bytes(10_000), 0.0))

    assert 800 < sum(map(bool, outcome.data)) < 1200


WRONG = [
    pytest.param(lambda: latency(-1), "seconds -1 must be 0 or more", id="latency"),
    pytest.param(lambda: latency(1, jitter=-1), "jitter -1 must be 0 or more", id="jitter"),
    pytest.param(lambda: bandwidth(0), "bytes_per_second 0 must be 1 or more", id="bandwidth"),
    pytest.param(lambda: slice_bytes(delay=-1), "delay -1 must be 0 or more", id="delay"),
    pytest.param(lambda: stall(after=-1), "after -1 must be 0 or more", id="stall"),
    pytest.param(lambda: limit_bytes(-1), "count -1 must be 0 or more", id="limit"),
    pytest.param(lambda: reset(after=-1), "after -1 must be 0 or more", id="reset"),
    pytest.param(lambda: corrupt_bytes(at=(-1,)), "at -1 must be 0 or more", id="place"),
    pytest.param(lambda: slice_bytes(0), "size 0 must be 1 or more", id="slices"),
    pytest.param(lambda: slice_bytes(2, variation=2), "variation 2 must be within 0 to 1", id="variation"),
    pytest.param(lambda: corrupt_bytes(1.1), "share 1.1 must be within 0 to 1", id="share"),
    pytest.param(lambda: latency(math.nan), "seconds nan must be 0 or more", id="nan"),
]


@pytest.mark.parametrize(("make", "text"), WRONG)
def test_setting_out_of_bounds_is_refused(make, text):
    with pytest.raises(ValueError, match=f"^{text}$"):
        make()


# --- chains -----------------------------------------------------------------------------------------------------------


def chain(*toxics):
    made = ToxicChain()
    for toxic in toxics:
        made.add(toxic, start(toxic))
    return made


def popped(made, now):
    """All outcomes of a time: bytes, the end as None, a reset as False."""
    out = []
    while (outcome := made.pop(now)) is not None:
        match outcome:
            case Deliver(data, _):
                out.append(data)
            case StreamEnd():
                out.append(None)
            case ConnectionReset():
                out.append(False)
    return out


def test_toxics_of_a_chain_act_one_after_the_other():
    made = chain(latency(1.0), slice_bytes(1, delay=1.0))
    made.push(b"ab", 0.0)

    assert (made.due, popped(made, 0.9)) == (1.0, [])
    assert popped(made, 1.0) == [b"a"]
    assert (made.due, made.held_bytes) == (2.0, 1)
    assert popped(made, 2.0) == [b"b"]
    assert (made.due, made.held_bytes) == (math.inf, 0)


def test_removed_toxic_passes_on_the_bytes_that_wait_there():
    late, still = latency(1.0), stall()
    made = chain(still, late)
    made.push(b"ab", 0.0)

    made.remove(still, 5.0)
    assert (popped(made, 5.0), made.due) == ([], 6.0)
    made.remove(late, 5.5)
    assert popped(made, 5.5) == [b"ab"]
    made.remove(late, 5.5)


def test_new_toxic_does_not_apply_to_earlier_bytes():
    made = chain(latency(1.0))
    made.push(b"a", 0.0)
    made.add("new", start(stall()))
    assert popped(made, 1.0) == []

    made = chain()
    made.push(b"a", 0.0)
    made.add("new", start(stall()))
    assert popped(made, 1.0) == [b"a"]


def test_no_outcome_after_the_end():
    made = chain(limit_bytes(1))
    made.push(b"abc", 0.0)
    made.push(b"d", 0.0)

    assert popped(made, 0.0) == [b"a", None]
    made.push(b"e", 0.0)
    assert (popped(made, 9.0), made.due, made.held_bytes) == ([], math.inf, 0)


def test_reset_waits_for_delayed_bytes():
    made = chain(reset(after=1), latency(1.0))
    made.push(b"ab", 0.0)

    assert popped(made, 0.9) == []
    assert popped(made, 1.0) == [b"a", False]


def test_dropped_bytes_are_not_counted_as_held():
    made = chain(limit_bytes(0), stall())
    made.push(b"x" * 1000, 0.0)

    assert made.held_bytes == 0


HARMLESS = st.one_of(
    st.builds(latency, st.floats(0, 2), jitter=st.floats(0, 2)),
    st.builds(bandwidth, st.integers(1, 10_000)),
    st.integers(1, 9).flatmap(
        lambda size: st.builds(slice_bytes, st.just(size), variation=st.integers(0, size - 1), delay=st.floats(0, 0.5))
    ),
    st.builds(stall, after=st.integers(0, 50)),
)
CHUNKS = st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.floats(0, 3)), max_size=12)


@given(st.lists(HARMLESS, max_size=4), CHUNKS, st.integers(0, 2**32))
def test_harmless_toxics_deliver_all_bytes_in_order(toxics, chunks, seed):
    made, now, out = ToxicChain(), 0.0, []
    for number, toxic in enumerate(toxics):
        made.add(number, toxic.start(Random(f"{seed} {number}")))

    for data, pause in chunks:
        made.push(data, now)
        now += pause
        out += popped(made, now)
    made.push(b"", now)
    for number, toxic in enumerate(toxics):
        if isinstance(toxic, stall):
            made.remove(number, now)
    while made.due < math.inf:
        now = max(now, made.due)
        out += popped(made, now)

    assert out.pop() is None
    assert b"".join(out) == b"".join(data for data, _ in chunks)
    assert made.held_bytes == 0


@given(st.lists(HARMLESS, min_size=1, max_size=3), CHUNKS)
def test_no_outcome_before_its_time(toxics, chunks):
    made = chain(*dict.fromkeys(toxics))
    for data, _ in chunks:
        made.push(data, 0.0)

    while made.due < math.inf:
        due = made.due
        assert due == -math.inf or popped(made, math.nextafter(due, -math.inf)) == [] or made.due != due
        popped(made, max(due, 0.0))
