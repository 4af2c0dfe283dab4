"""Which link each strategy chooses."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq.producer.routing import make_strategy, round_robin


@dataclass(eq=False)
class Link:
    """A connection as strategies see it."""

    address: str


def links_to(*addresses):
    return [Link(address) for address in addresses]


@given(count=st.integers(1, 20), rounds=st.integers(1, 5))
def test_round_robin_gives_all_equally_many(count, rounds):
    links, strategy = links_to(*map(str, range(count))), round_robin()

    chosen = [strategy(links) for _ in range(rounds * count)]

    assert chosen == links * rounds


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=50))
def test_round_robin_goes_on_when_the_list_changes(counts):
    links, strategy = links_to(*"abcdefghi"), round_robin()

    for count in counts:
        assert strategy(links[:count]) in links[:count]
    after = [strategy(links) for _ in links]

    assert Counter(link.address for link in after) == Counter("abcdefghi")


def test_function_chooses_one_of_the_links():
    links = links_to("a", "b")

    assert make_strategy(lambda links: links[1])(links) is links[1]


def test_strategy_function_that_returns_no_link_raises():
    with pytest.raises(ValueError, match="returned None, which is none of its links"):
        make_strategy(lambda links: None)(links_to("a"))


@pytest.mark.parametrize("strategy", ["round-robin", "", None, 5, []])
def test_invalid_strategy_is_refused_with_the_valid_ones(strategy):
    with pytest.raises(ValueError, match="neither 'round_robin' nor a function"):
        make_strategy(strategy)
