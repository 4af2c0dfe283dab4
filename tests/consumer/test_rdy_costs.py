"""An update of RDY after one event costs what has changed: as many bytecodes with 1,000 connections as with 10."""

import contextlib
import random
import sys

import pytest

from fakensqd import FakeNsqd
from gnsq import Consumer
from gnsq.consumer.rdy_policy import GRACE, RdyPolicy
from tests.helpers import wait_until

FEW, MANY = 10, 1000
EVENTS = 10
# Heaps need a comparison more for each doubling.
FACTOR = 1.5


class Bytecodes:
    """Counts the bytecodes that are executed in a block."""

    def __init__(self):
        self.count = 0

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.on_event)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def on_event(self, frame, event, argument):
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self.on_event


class Connections:
    """Connections of one policy that all have had messages, and as many in flight as the test sets."""

    def __init__(self, count, max_in_flight):
        self.policy = RdyPolicy(max_in_flight, rng=random.Random(1))
        self.in_flight = dict.fromkeys(range(count), 0)
        self.rdy = dict.fromkeys(range(count), 0)
        self.rng = random.Random(2)
        self.now = 0.0
        self.sent = 0
        for key in self.in_flight:
            self.policy.add(key, 2500, self.now)
        self.update()
        self.pass_time(2.0)
        for key in self.in_flight:
            self.policy.on_messages(key, 1, 0, self.now)
        self.update()
        self.pass_time(2.0)

    def update(self):
        sent = self.policy.decide(self.in_flight.__getitem__, self.now)
        self.rdy.update(sent)
        self.sent += len(sent)
        self.policy.take_watched()
        return self.policy.due(self.now)

    def pass_time(self, seconds):
        end = self.now + seconds
        while (due := self.update()) is not None and due <= end:
            self.now = due
        self.now = end
        self.update()

    def deliver(self, key):
        self.in_flight[key] += 1
        self.policy.on_messages(key, 1, self.in_flight[key], self.now)

    def answer(self, key):
        self.in_flight[key] -= 1
        self.policy.on_answer(key, self.in_flight[key], self.now)

    def random_with_rdy(self):
        return self.rng.choice([key for key, count in self.rdy.items() if count > self.in_flight[key]])


def message(connections):
    key = connections.random_with_rdy()
    yield
    connections.deliver(key)
    connections.update()
    connections.answer(key)
    connections.update()


def silence(connections):
    yield
    due = connections.policy.due(connections.now)
    connections.now = connections.now if due is None else due
    connections.update()


def lost_and_new_connection(connections):
    key = connections.random_with_rdy()
    yield
    connections.policy.remove(key)
    connections.update()
    connections.policy.add(key, 2500, connections.now)
    connections.update()


def probe(connections):
    policy = connections.policy
    policy.backing_off = True
    connections.pass_time(2.0)
    yield
    policy.probe = policy.pick_probe(connections.in_flight.__getitem__)
    connections.update()
    connections.deliver(policy.probe)
    policy.probe = None
    connections.update()
    connections.now += GRACE
    connections.update()


def end_without_event(connections):
    yield
    connections.update()


CASES = [
    pytest.param(event, per_connection, id=f"{event.__name__}, {name}")
    for event in (message, silence, lost_and_new_connection, probe, end_without_event)
    for name, per_connection in (("shares", 2.5), ("turns", 0.2))
]


def cost(event, count, per_connection):
    """Return the mean number of bytecodes of an event, or of an RDY if an event changes several."""
    connections = Connections(count, int(count * per_connection))
    bytecodes, changes = Bytecodes(), 0
    for _ in range(EVENTS):
        steps = event(connections)
        next(steps)  # what the test itself does
        connections.sent = 0
        with bytecodes:
            next(steps, None)
        changes += max(connections.sent, 1)
        for key in [key for key, number in connections.in_flight.items() if number]:
            connections.answer(key)
        connections.now += 0.001
    return bytecodes.count / changes


@pytest.mark.parametrize(("event", "per_connection"), CASES)
def test_decision_after_an_event_costs_the_same_with_many_connections(event, per_connection):
    few, many = cost(event, FEW, per_connection), cost(event, MANY, per_connection)

    assert many <= FACTOR * few, (few, many)


def test_first_messages_of_all_connections_do_not_each_change_all_rdy_counts():
    # Each connection would get much less RDY with each further connection that has messages.
    made = RdyPolicy(1_000_000, rng=random.Random(1))
    for key in range(MANY):
        made.add(key, 2500, 0.0)
    made.decide(lambda key: 0, 0.0)
    made.decide(lambda key: 0, 2.0)
    sent = 0

    for key in range(MANY):
        now = 2.0 + key * 0.001
        made.on_messages(key, 1, 0, now)
        sent += len(made.decide(lambda key: 0, now))
    sent += len(made.decide(lambda key: 0, made.due(now)))

    assert sent < 10 * MANY
    assert made._states[MANY - 1].target == 1000


def rdy_update(count):
    """Return the bytecodes of one update of a consumer, after one message came."""
    with FakeNsqd() as nsqd, contextlib.ExitStack() as stack:
        port = nsqd.tcp_address.rpartition(":")[2]
        # One address in several ways of writing.
        addresses = [f"127.{'0' * (1 + index // 10)}.{'0' * (1 + index % 10)}.1:{port}" for index in range(count)]
        consumer = Consumer("t", "c", addresses, message_handler=lambda *_, **__: None, max_in_flight=3 * count)
        stack.enter_context(consumer)
        wait_until(lambda: consumer.total_ready_count == count)
        rdy = consumer._rdy
        rdy._expected_until = 0.0
        with Bytecodes() as bytecodes:
            rdy._update_rdy()
        return bytecodes.count


def test_update_of_a_consumer_costs_the_same_with_many_connections():
    few, many = rdy_update(3), rdy_update(60)

    assert many <= FACTOR * few, (few, many)
