"""RdyPolicy: equal RDY counts, turns, the probe, and never more than max_in_flight in total."""

import heapq
import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gnsq.consumer.rdy_policy import GRACE, RdyPolicy

IDLE = 10.0
TURN = 30.0


class TablePolicy(RdyPolicy):
    """A policy that is told the messages in flight in tables, of all connections."""

    def decide(self, in_flight, now):
        for key, state in self._states.items():
            if in_flight.get(key, 0) < state.in_flight:
                self.on_answer(key, in_flight.get(key, 0), now, state.in_flight - in_flight.get(key, 0))
        return super().decide(lambda key: in_flight.get(key, 0), now)

    def pick_probe(self, in_flight):
        return super().pick_probe(lambda key: in_flight.get(key, 0))


class WatchingPolicy(RdyPolicy):
    """A policy that is told answers only while it wants them, and decides as often as a busy RdyController lets it.

    Attributes:
        rest: Seconds after a decision in which no other one is made.
    """

    rest = 0.0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.resting_until, self.is_late = 0.0, False

    def decide(self, in_flight, now):
        self.is_late = now < self.resting_until
        if self.is_late:
            return {}
        self.resting_until = now + self.rest
        return super().decide(in_flight, now)

    def due(self, now):
        due = super().due(now)
        return min(self.resting_until, math.inf if due is None else due) if self.is_late else due

    def answered(self, key, in_flight, now):
        """Return True if decide() should be called."""
        return self.wants_answers and self.on_answer(key, in_flight, now)


def policy(max_in_flight, connections=(), limit=2500, *, on_messages=True, **options):
    """Make a policy whose connections have had their first message, and are not starved."""
    made = TablePolicy(max_in_flight, IDLE, random.Random(1))
    for key in connections:
        made.add(key, limit, 0.0, **options)
    if on_messages:
        made.decide({}, 0.0)
        for key in connections:
            made.on_messages(key, 1, 0, 0.0)
    return made


def test_connection_with_less_than_nearly_all_in_flight_is_not_starved():
    made = policy(20, "ab")
    made.decide({}, 0.0)
    made.on_messages("a", 8, 8, IDLE)
    assert made.decide({"a": 8}, IDLE) == {}

    made.on_messages("a", 1, 9, IDLE)
    assert made.decide({"a": 9}, IDLE) == {"b": 1}


def test_connection_with_messages_in_flight_is_not_idle():
    made = policy(20, "ab")
    made.decide({}, 0.0)
    made.on_messages("a", 10, 10, IDLE)

    assert made.decide({"a": 10, "b": 1}, IDLE) == {}


@pytest.mark.parametrize(
    ("in_flight", "step", "end"),
    [pytest.param(1, 1.0, TURN, id="in flight"), pytest.param(0, GRACE / 2, TURN + GRACE, id="all answered by then")],
)
def test_busy_connection_keeps_its_turn_for_turn_timeout(in_flight, step, end):
    made = policy(1, "ab")
    (busy,) = made.decide({}, 0.0) or [key for key, state in made._states.items() if state.rdy]
    changes, now = {}, 0.0

    while not changes and now < 2 * TURN:
        now += step
        made.on_messages(busy, 1, 1, now)
        changes = made.decide({busy: 1} if in_flight else {}, now)

    assert now == end
    assert changes == {busy: 0}


def test_rdy_that_is_counted_down_is_sent_again_when_less_than_a_quarter_is_left():
    made = policy(100, "a", counts_down=True, on_messages=False)
    assert made.decide({}, 0.0) == {"a": 1}
    made.on_messages("a", 1, 1, 0.0)
    assert made.decide({"a": 1}, 0.0) == {"a": 100}

    assert not made.on_messages("a", 75, 1, 0.0)
    assert made.decide({"a": 1}, 0.0) == {}
    assert made.on_messages("a", 1, 2, 0.0)
    assert made.decide({"a": 2}, 0.0) == {"a": 100}


def test_answers_to_late_messages_free_their_rdy():
    made = WatchingPolicy(1, IDLE, random.Random(1))
    in_flight = Counter()
    for key in "ab":
        made.add(key, 2500, 0.0)
    (first,) = made.decide(in_flight.__getitem__, 0.0)
    (second,) = {"a", "b"} - {first}
    now = IDLE
    assert made.decide(in_flight.__getitem__, now) == {first: 0, second: 1}
    # Two messages of the first come late.
    made.on_messages(first, 1, 1, now)
    made.answered(first, 0, now)
    made.on_messages(first, 1, 1, now)

    made.answered(first, 0, now)
    made.decide(in_flight.__getitem__, now)
    now += 2 * IDLE
    made.remove(second)
    made.add("c", 2500, now)
    made.decide(in_flight.__getitem__, now)

    assert sum(state.rdy for state in made._states.values()) == 1


def test_message_of_a_probe_that_has_a_turn_is_noticed():
    made = policy(2, "abc")
    made.decide({}, 0.0)
    probe = next(key for key, state in made._states.items() if state.rdy)
    made.backing_off = True
    made.decide({}, 0.0)
    made.on_messages(probe, 1, 1, 0.1)
    made.probe = probe
    assert made.decide({probe: 1}, 2 * GRACE) == {probe: 2}
    assert made.lower_probe(0, 2 * GRACE) == 1
    made.decide({}, 4 * GRACE)

    assert made.on_messages(probe, 1, 1, 4 * GRACE)


class Nsqd:
    """A simulated nsqd: RDY, answers and messages arrive with a delay."""

    def __init__(self, limit, counts_down, delay):
        self.limit, self.counts_down, self.delay = limit, counts_down, delay
        self.sent = 0  # the RDY sent last
        self.up, self.down = [], []  # (time, RDY or None for an answer), times of messages
        self.rdy = self.left = self.unanswered = 0
        self.changed = 0.0  # when it was sent another RDY, or a message came, or was answered
        self.in_flight = 0  # as the client sees it
        self.got = 0

    def tell(self, now, word):
        # A silent connection loses its turn at once; no message comes in this moment.
        is_silent = word == 0 and self.sent == 1 and not self.in_flight and now >= self.changed + GRACE
        self.changed = now
        if is_silent and not self.up and not self.down:
            self.rdy = self.left = 0
        else:
            self.up.append((now + self.delay, word))

    def read(self, now):
        while self.up and self.up[0][0] <= now:
            _, word = self.up.pop(0)
            if word is None:
                self.unanswered -= 1
            else:
                self.rdy = self.left = word

    def send(self, now, backlog):
        while backlog and self.unanswered < self.rdy and (self.left or not self.counts_down):
            self.left -= 1
            self.unanswered += 1
            backlog -= 1
            self.down.append(now + self.delay)

    def deliver(self, now):
        count = sum(time <= now for time in self.down)
        del self.down[:count]
        self.in_flight += count
        self.got += count
        self.changed = now if count else self.changed
        return count

    def load(self):
        """Return how many messages may be in flight without another command."""
        unanswered, rdy, sent = self.unanswered, self.rdy, 0
        if not self.up:
            return self.in_flight + len(self.down) + max(rdy - unanswered, 0)
        for word in [rdy, *(word for _, word in self.up)]:
            rdy, unanswered = (rdy, unanswered - 1) if word is None else (word, unanswered)
            more = max(rdy - unanswered, 0)
            sent, unanswered = sent + more, unanswered + more
        return self.in_flight + len(self.down) + sent


class LateNsqd(Nsqd):
    """An nsqd for late decisions. These end silent turns at any time, so also while a message is on its way."""

    def __init__(self, limit, counts_down, delay):
        # So that a message comes within GRACE after RDY, although teardown() looks only each 0.25 s.
        super().__init__(limit, counts_down, min(delay, 0.2))

    def tell(self, now, word):
        if word == 0 and self.sent == 1 and not self.in_flight and not self.up and now >= self.changed + GRACE:
            # As in Nsqd, no message comes in this moment: it is not sent.
            self.unanswered -= len(self.down)
            self.down.clear()
        super().tell(now, word)


class RdyMachine(RuleBasedStateMachine):
    """nsqds that deliver as fast as RDY allows, handlers that answer, and connections that are added and lost."""

    nsqd_type, rest = Nsqd, 0.0

    @initialize(max_in_flight=st.integers(1, 20), seed=st.integers(0, 99))
    def begin(self, max_in_flight, seed):
        self.policy = WatchingPolicy(max_in_flight, IDLE, random.Random(seed))
        self.policy.rest = self.rest
        self.nsqds, self.names, self.now = {}, 0, 0.0
        # Messages in flight when max_in_flight was lowered may exceed it until they are answered.
        self.allowed = max_in_flight

    def decide(self):
        for key, count in self.policy.decide(lambda key: self.nsqds[key].in_flight, self.now).items():
            assert 0 <= count <= self.nsqds[key].limit
            self.nsqds[key].tell(self.now, count)
            self.nsqds[key].sent = count

    def exchange(self):
        """Run all that is due by now."""
        for key, nsqd in self.nsqds.items():
            nsqd.read(self.now)
            nsqd.send(self.now, self.backlog.get(key, 0))
            count = nsqd.deliver(self.now)
            if count and self.policy.on_messages(key, count, nsqd.in_flight, self.now):
                self.decide()

    backlog = {}  # messages that each nsqd may send in one exchange, by key

    @rule(limit=st.integers(1, 30), counts_down=st.booleans(), delay=st.sampled_from([0.0, 0.1, GRACE / 2.1]))
    def connect(self, limit, counts_down, delay):
        self.names += 1
        self.nsqds[self.names] = self.nsqd_type(limit, counts_down, delay)
        self.policy.add(self.names, limit, self.now, counts_down=counts_down)
        self.decide()

    @precondition(lambda self: self.nsqds)
    @rule(data=st.data())
    def lose(self, data):
        key = data.draw(st.sampled_from(sorted(self.nsqds)))
        del self.nsqds[key]
        self.policy.remove(key)
        self.decide()

    @precondition(lambda self: self.nsqds)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 0.05, 0.3, 1.0, 5.0, IDLE]))
    def pass_time(self, data, seconds):
        busy = data.draw(st.sets(st.sampled_from(sorted(self.nsqds))))
        self.backlog = dict.fromkeys(busy, 100)
        end = self.now + seconds
        while True:
            self.exchange()
            times = [time for nsqd in self.nsqds.values() for time in [*nsqd.down, *(when for when, _ in nsqd.up)]]
            due = self.policy.due(self.now)
            times = [time for time in [*times, *([] if due is None else [due])] if self.now < time < end]
            if not times:
                break
            self.now = min(times)
            if self.now == due:
                self.decide()
        self.now = end
        self.exchange()
        self.backlog = {}

    @precondition(lambda self: any(nsqd.in_flight for nsqd in self.nsqds.values()))
    @rule(data=st.data())
    def answer(self, data):
        key = data.draw(st.sampled_from(sorted(key for key, nsqd in self.nsqds.items() if nsqd.in_flight)))
        self.answer_some(key, data.draw(st.integers(1, self.nsqds[key].in_flight)))

    def answer_some(self, key, count):
        nsqd = self.nsqds[key]
        for _ in range(count):
            nsqd.in_flight -= 1
            nsqd.tell(self.now, None)
            if self.policy.answered(key, nsqd.in_flight, self.now):
                self.decide()

    @rule(paused=st.booleans())
    def pause(self, paused):
        self.policy.paused = paused
        self.decide()

    @rule(backing_off=st.booleans(), probing=st.booleans())
    def back_off(self, backing_off, probing):
        self.policy.backing_off = backing_off
        self.policy.probe = self.policy.pick_probe(lambda key: 0) if backing_off and probing else None
        self.decide()

    @rule(size=st.integers(1, 20))
    def resize(self, size):
        self.policy.max_in_flight = size
        self.allowed = max(size, self.allowed)
        self.decide()

    @invariant()
    def never_more_than_max_in_flight(self):
        assert sum(nsqd.in_flight for nsqd in self.nsqds.values()) <= self.allowed
        load = sum(nsqd.load() for nsqd in self.nsqds.values())
        assert load <= self.allowed
        self.allowed = max(self.policy.max_in_flight, load)

    def teardown(self):
        """No connection is stuck: if all messages are answered and all nsqds have messages, each delivers some."""
        if not hasattr(self, "policy"):
            return
        self.policy.paused = self.policy.backing_off = False
        self.policy.probe = None
        self.decide()
        for nsqd in self.nsqds.values():
            nsqd.got = 0
        end = self.now + (len(self.nsqds) + 1) * TURN * 2
        while self.now < end and not all(nsqd.got for nsqd in self.nsqds.values()):
            self.backlog = dict.fromkeys(self.nsqds, 1)
            self.exchange()
            for key, nsqd in self.nsqds.items():
                self.answer_some(key, nsqd.in_flight)
            due = self.policy.due(self.now)
            if due is not None and due <= self.now + 0.25:
                self.now = due
                self.decide()
            else:
                self.now += 0.25
        assert all(nsqd.got for nsqd in self.nsqds.values()), {key: nsqd.got for key, nsqd in self.nsqds.items()}


RdyMachine.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestRdyMachine = RdyMachine.TestCase


class LateRdyMachine(RdyMachine):
    """The same with late decisions, as a busy RdyController makes them."""

    nsqd_type, rest = LateNsqd, 0.1


LateRdyMachine.TestCase.settings = RdyMachine.TestCase.settings
TestLateRdyMachine = LateRdyMachine.TestCase


class Simulation:
    """Many nsqds with random messages and delays, and the times at which the policy is due."""

    def __init__(self, seed, seconds, rest):
        self.rng = rng = random.Random(seed)
        self.now, self.end = 0.0, seconds
        self.max_in_flight = rng.choice([1, 2, 5, 20])
        self.policy = WatchingPolicy(self.max_in_flight, IDLE, rng)
        self.policy.rest = rest
        self.nsqds = {}
        self.backlog = Counter()
        # Since when each nsqd has messages and sends none; the longest of these times.
        self.waits, self.longest = {}, 0.0
        self.loads = {}
        self.events, self.order = [], itertools.count()
        for key in range(rng.choice([1, 3, 10, 30])):
            limit, delay = rng.choice([1, 5, 2500]), rng.choice([0.0, 0.001, 0.05, 0.2])
            self.nsqds[key] = Nsqd(limit, rng.random() < 0.3, delay)
            self.policy.add(key, limit, 0.0, counts_down=self.nsqds[key].counts_down)
            # Some nsqds rarely have messages, some have more than can be handled.
            self.publish_later(key, rng.choice([0.2, 1.0, 5.0, 100.0]))

    def at(self, time, action, *arguments):
        heapq.heappush(self.events, (time, next(self.order), action, arguments))

    def publish_later(self, key, interval):
        self.at(self.now + self.rng.expovariate(1 / interval), self.publish, key, interval)

    def publish(self, key, interval):
        self.backlog[key] += self.rng.choice([1, 1, 20])
        self.at(self.now, self.exchange, key)
        self.publish_later(key, interval)

    def tell(self, key, word):
        nsqd = self.nsqds[key]
        nsqd.tell(self.now, word)
        self.loads[key] = nsqd.load()
        self.at(self.now + nsqd.delay, self.exchange, key)

    def answer(self, key):
        self.nsqds[key].in_flight -= 1
        self.tell(key, None)
        if self.policy.answered(key, self.nsqds[key].in_flight, self.now):
            self.decide()

    def decide(self):
        for key, count in self.policy.decide(lambda key: self.nsqds[key].in_flight, self.now).items():
            self.tell(key, count)
            self.nsqds[key].sent = count

    def exchange(self, key):
        nsqd = self.nsqds[key]
        nsqd.read(self.now)
        before = len(nsqd.down)
        nsqd.send(self.now, self.backlog[key])
        sent = len(nsqd.down) - before
        self.backlog[key] -= sent
        if sent:
            self.at(self.now + nsqd.delay, self.exchange, key)
        if self.backlog[key] and not sent and not nsqd.unanswered:
            self.waits.setdefault(key, self.now)
        else:
            self.end_wait(key)
        count = nsqd.deliver(self.now)
        for _ in range(count):
            self.at(self.now + self.rng.expovariate(10), self.answer, key)
        if count and self.policy.on_messages(key, count, nsqd.in_flight, self.now):
            self.decide()
        self.loads[key] = nsqd.load()

    def end_wait(self, key):
        self.longest = max(self.longest, self.now - self.waits.pop(key, self.now))

    def run(self):
        self.decide()
        while self.now < self.end:
            due = self.policy.due(self.now)
            self.now = min(self.events[0][0], math.inf if due is None else due)
            while self.events[0][0] <= self.now:
                _, _, action, arguments = heapq.heappop(self.events)
                action(*arguments)
            if self.now == due:
                self.decide()
            assert sum(self.loads.values()) <= self.max_in_flight
        for key in list(self.waits):
            self.end_wait(key)


@pytest.mark.parametrize("rest", [0.0, 0.3])
@pytest.mark.parametrize("seed", [1, 2, 3, 38])
@pytest.mark.slow
def test_none_of_many_nsqds_exceeds_the_limit_or_starves(seed, rest):
    simulation = Simulation(seed, 200.0, rest)

    simulation.run()

    turns = 1 + len(simulation.nsqds) / simulation.max_in_flight
    assert simulation.longest <= turns * (TURN + IDLE)
