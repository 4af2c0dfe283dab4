"""RDY is shared out evenly, and never more than max_in_flight altogether."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gnsq.rdy import RdyPolicy


def policy(max_in_flight, connections=(), limit=2500):
    made = RdyPolicy(max_in_flight, random.Random(1))
    for key in connections:
        made.add(key, limit)
    return made


def test_one_connection_gets_all():
    assert policy(10, "a").decide({}) == {"a": 10}


def test_shares_are_even_and_the_remainder_goes_to_some():
    shares = policy(11, "abc").decide({})

    assert sorted(shares.values()) == [3, 4, 4]


def test_nsqds_limit_is_kept():
    assert policy(5000, "a", limit=100).decide({}) == {"a": 100}


def test_nothing_is_said_twice():
    made = policy(10, "ab")
    made.decide({})

    assert made.decide({"a": 5}) == {}


def test_newcomer_waits_for_what_is_in_flight_elsewhere():
    made = policy(10, "a")
    made.decide({})
    made.add("b", 2500)

    assert made.decide({"a": 10}) == {"a": 5}
    assert made.owed
    assert made.decide({"a": 8}) == {"b": 2}
    assert made.decide({"a": 5}) == {"b": 5}
    assert not made.owed


def test_lost_connection_gives_its_share_back():
    made = policy(10, "ab")
    made.decide({})
    made.remove("a")

    assert made.decide({}) == {"b": 10}


def test_removing_twice_is_no_error():
    made = policy(10, "a")
    made.remove("a")
    made.remove("a")

    assert made.decide({}) == {}


def test_fewer_than_connections_rotates_to_everyone():
    made = policy(1, "abc")
    assert made.crowded
    served = set()
    rdy = {}

    for _ in range(50):
        rdy.update(made.decide({}))
        served |= {key for key, count in rdy.items() if count}
        assert sum(rdy.values()) == 1
        made.rotate()

    assert served == set("abc")


def test_pause_takes_all_and_resume_gives_it_back():
    made = policy(4, "ab")
    made.decide({})
    made.paused = True
    assert made.decide({}) == {"a": 0, "b": 0}

    made.paused = False
    assert made.decide({}) == {"a": 2, "b": 2}


def test_resize_takes_effect():
    made = policy(10, "a")
    made.decide({})

    made.max_in_flight = 3

    assert made.decide({"a": 10}) == {"a": 3}


class RdyMachine(RuleBasedStateMachine):
    """nsqds that deliver up to their RDY, handlers that answer, connections that come and go."""

    @initialize(max_in_flight=st.integers(1, 20))
    def begin(self, max_in_flight):
        self.policy = RdyPolicy(max_in_flight, random.Random(0))
        self.rdy, self.in_flight, self.limits, self.names = {}, {}, {}, 0
        # What was in flight when max_in_flight was lowered may exceed it until answered.
        self.allowed = max_in_flight

    def decide(self):
        for key, count in self.policy.decide(dict(self.in_flight)).items():
            assert 0 <= count <= self.limits[key]
            self.rdy[key] = count

    @rule(limit=st.integers(1, 30))
    def connect(self, limit):
        self.names += 1
        self.rdy[self.names] = self.in_flight[self.names] = 0
        self.limits[self.names] = limit
        self.policy.add(self.names, limit)
        self.decide()

    @precondition(lambda self: self.rdy)
    @rule(data=st.data())
    def lose(self, data):
        key = data.draw(st.sampled_from(sorted(self.rdy)))
        for table in (self.rdy, self.in_flight, self.limits):
            del table[key]
        self.policy.remove(key)
        self.decide()

    @precondition(lambda self: self.rdy)
    @rule(data=st.data())
    def deliver(self, data):
        key = data.draw(st.sampled_from(sorted(self.rdy)))
        self.in_flight[key] = max(self.in_flight[key], self.rdy[key])

    @precondition(lambda self: any(self.in_flight.values()))
    @rule(data=st.data())
    def answer(self, data):
        key = data.draw(st.sampled_from(sorted(key for key, count in self.in_flight.items() if count)))
        self.in_flight[key] -= data.draw(st.integers(1, self.in_flight[key]))
        if self.policy.owed:
            self.decide()

    @rule(paused=st.booleans())
    def pause(self, paused):
        self.policy.paused = paused
        self.decide()

    @rule()
    def rotate(self):
        self.policy.rotate()
        self.decide()

    @rule(size=st.integers(1, 20))
    def resize(self, size):
        self.policy.max_in_flight = size
        self.decide()
        self.allowed = max(size, sum(self.load().values()))

    def load(self):
        return {key: max(self.rdy[key], self.in_flight[key]) for key in self.rdy}

    @invariant()
    def never_more_than_max_in_flight(self):
        load = sum(self.load().values())
        assert load <= self.allowed
        self.allowed = max(self.policy.max_in_flight, load)

    @invariant()
    def never_stuck(self):
        if self.rdy and not self.policy.paused and not any(self.in_flight.values()):
            assert any(self.rdy.values())


RdyMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRdyMachine = RdyMachine.TestCase


def test_random_order_of_newcomers_is_seeded():
    assert policy(2, "abc").decide({}) == policy(2, "abc").decide({})


@pytest.mark.parametrize("paused", [True, False])
def test_no_connection_no_change(paused):
    made = policy(5)
    made.paused = paused

    assert made.decide({}) == {}
