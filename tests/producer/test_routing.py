"""Which link each strategy chooses."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq.producer.routing import consistent, least_pending, make_strategy, primary, round_robin


@dataclass(eq=False)
class Link:
    """A connection as strategies see it."""

    address: str
    pending: int = 0
    number: int = 0


def links_to(*addresses):
    return [Link(address) for address in addresses]


ADDRESSES = st.lists(st.integers(0, 999).map(lambda host: f"host{host}:4150"), min_size=2, max_size=12, unique=True)
PENDING = st.lists(st.integers(0, 5), min_size=1, max_size=12)
KEYS = st.lists(st.binary(max_size=20) | st.text(max_size=20), min_size=1, max_size=50)


# --- round robin ------------------------------------------------------------------------------------------------------


@given(count=st.integers(1, 20), rounds=st.integers(1, 5))
def test_round_robin_gives_all_equally_many(count, rounds):
    links, strategy = links_to(*map(str, range(count))), round_robin()

    chosen = [strategy(links, None) for _ in range(rounds * count)]

    assert chosen == links * rounds


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=50))
def test_round_robin_goes_on_when_the_list_changes(counts):
    links, strategy = links_to(*"abcdefghi"), round_robin()

    for count in counts:
        assert strategy(links[:count], None) in links[:count]
    after = [strategy(links, None) for _ in links]

    assert Counter(link.address for link in after) == Counter("abcdefghi")


# --- least pending ----------------------------------------------------------------------------------------------------


@given(pending=PENDING, before=st.integers(0, 20))
def test_least_pending_has_no_better_one(pending, before):
    links, strategy = [Link("a", many) for many in pending], least_pending()

    for _ in range(before + 1):
        chosen = strategy(links, None)

    assert chosen.pending == min(pending)


@given(pending=PENDING)
def test_least_pending_gives_equals_in_turn(pending):
    links, strategy = [Link("a", many) for many in pending], least_pending()
    equals = [link for link in links if link.pending == min(pending)]

    chosen = [strategy(links, None) for _ in range(3 * len(equals))]

    assert chosen == equals * 3


@given(count=st.integers(1, 9), publishes=st.integers(1, 60))
def test_least_pending_levels_publishes_that_are_never_answered(count, publishes):
    links, strategy = links_to(*map(str, range(count))), least_pending()

    for _ in range(publishes):
        strategy(links, None).pending += 1

    assert max(link.pending for link in links) - min(link.pending for link in links) <= 1


def test_least_pending_goes_on_when_the_list_is_shorter():
    links, strategy = links_to(*"abc"), least_pending()
    for _ in links:
        strategy(links, None)

    assert strategy(links[:1], None) is links[0]


# --- primary ----------------------------------------------------------------------------------------------------------


def test_primary_stays_with_the_first_and_goes_back_when_it_returns():
    first, second, third = links_to("z:1", "a:1", "m:1")
    strategy = primary(["z:1", "a:1", "m:1"])

    there = [[third, second, first], [third, second], [third], [third, second], [second, first]]
    chosen = [strategy(links, None) for links in there]

    assert chosen == [first, second, third, second, first]


def test_primary_takes_unnamed_nsqds_last_and_sorted():
    named, early, late = links_to("z", "a", "b")
    strategy = primary(["y", "z"])

    assert strategy([late, early, named], None) is named
    assert strategy([late, early], None) is early


def test_primary_takes_the_least_pending_of_one_nsqds_connections():
    links = [Link("a", 2), Link("a", 1), Link("b", 0), Link("a", 3)]

    assert primary(["a", "b"])(links, None) is links[1]
    assert primary([])(links, None) is links[1]


# --- consistent -------------------------------------------------------------------------------------------------------


def homes(addresses, keys):
    """Where each key goes."""
    links, strategy = links_to(*addresses), consistent
    return [strategy(links, key).address for key in keys]


@given(addresses=ADDRESSES, keys=KEYS, data=st.data())
def test_consistent_moves_only_the_keys_of_a_removed_nsqd(addresses, keys, data):
    gone = data.draw(st.sampled_from(addresses))
    before = homes(addresses, keys)

    after = homes([address for address in addresses if address != gone], keys)

    assert gone not in after
    assert [new for old, new in zip(before, after, strict=True) if old != gone] == [
        old for old in before if old != gone
    ]


@settings(max_examples=30)
@given(addresses=ADDRESSES, salt=st.binary(max_size=8))
@pytest.mark.slow
def test_consistent_spreads_keys_evenly(addresses, salt):
    share = 200

    counts = Counter(homes(addresses, [salt + b"%d" % number for number in range(share * len(addresses))]))

    # 14 is the standard deviation of the count of each.
    assert all(share - 7 * 14 < counts[address] < share + 7 * 14 for address in addresses), counts


def test_consistent_is_the_same_in_every_process():
    addresses = ["a:4150", "b:4150", "c:4150"]

    assert "".join(home[0] for home in homes(addresses, [b"%d" % number for number in range(12)])) == "abbbacaaacca"


@given(key=st.text(max_size=20))
def test_consistent_takes_text_as_its_bytes(key):
    assert homes("abcde", [key]) == homes("abcde", [key.encode()])


def test_consistent_without_a_key_is_refused():
    with pytest.raises(ValueError, match="strategy 'consistent' needs key="):
        consistent(links_to("a"), None)


# --- by name ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "chosen"),
    [("round_robin", "bacb"), ("least_pending", "cccc"), ("primary", "aaaa"), ("consistent", "bbbb")],
)
def test_strategy_is_made_by_its_name(name, chosen):
    links = [Link("b", 2), Link("a", 2), Link("c", 1)]
    strategy = make_strategy(name, ["a", "b"])

    assert "".join(strategy(links, "k4").address for _ in range(4)) == chosen


def test_function_is_asked_with_links_and_key():
    links = links_to("a", "b")
    strategy = make_strategy(lambda links, key: links[key], [])

    assert [strategy(links, key) for key in (1, 0)] == [links[1], links[0]]


def test_strategy_function_that_returns_no_link_raises():
    with pytest.raises(ValueError, match="returned None, which is none of its links"):
        make_strategy(lambda links, key: None)(links_to("a"), None)


@pytest.mark.parametrize("strategy", ["round-robin", "", None, 5, []])
def test_invalid_strategy_is_refused_with_the_valid_names(strategy):
    with pytest.raises(ValueError, match="one of round_robin, least_pending, primary, consistent"):
        make_strategy(strategy, ["a"])
