"""Most messages and answers change no RDY count, and cost the same with 1,000 connections as with 10. A decision costs
a bounded number of bytecodes for each connection, and a consumer makes decisions at a bounded rate."""

import contextlib
import random

import gevent
import pytest

from fakensqd import FakeNsqd
from fakensqd.clock import ManualClock
from gnsq import Consumer
from gnsq.consumer.rdy_controller import REST_PER_CONNECTION
from gnsq.consumer.rdy_policy import RdyPolicy
from tests.kit import tracing_bytecodes

FEW, MANY = 10, 1000
# Bytecodes of a decision for each connection: about 1 us.
PER_CONNECTION = 280


class Bytecodes:
    """Counts the bytecodes that are executed in a block."""

    def __init__(self):
        self.count = 0
        self._tracing = tracing_bytecodes(self.on_event)

    def __enter__(self):
        self._tracing.__enter__()
        return self

    def __exit__(self, *error):
        self._tracing.__exit__(*error)

    def on_event(self, frame, event, argument):
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self.on_event


class Connections:
    """Connections of one policy that all have had messages."""

    def __init__(self, count, per_connection):
        self.policy = RdyPolicy(int(count * per_connection), rng=random.Random(1))
        self.in_flight = dict.fromkeys(range(count), 0)
        self.now = 0.0
        for key in self.in_flight:
            self.policy.add(key, 2500, self.now)
        self.decide()
        for key in self.in_flight:
            self.policy.on_messages(key, 1, 0, self.now)
        for _ in range(3):
            self.now += 2.0
            self.decide()

    def decide(self):
        self.policy.decide(self.in_flight.__getitem__, self.now)
        self.policy.due(self.now)

    def with_rdy(self):
        return next(key for key, state in self.policy._states.items() if state.rdy)


DIVISIONS = [pytest.param(2.5, id="shares"), pytest.param(0.2, id="turns")]


@pytest.mark.parametrize("per_connection", DIVISIONS)
def test_message_that_changes_nothing_costs_the_same_with_many_connections(per_connection):
    def cost(count):
        connections = Connections(count, per_connection)
        key, policy = connections.with_rdy(), connections.policy
        policy.on_messages(key, 1, 1, connections.now)
        with Bytecodes() as bytecodes:
            is_due = policy.on_messages(key, 1, 1, connections.now), policy.on_answer(key, 0, connections.now)
        assert is_due == (False, False)
        return bytecodes.count

    few, many = cost(FEW), cost(MANY)

    assert many == few


def nothing(connections):
    pass


def starved(connections):
    connections.policy.on_messages(connections.with_rdy(), 5, 5, connections.now)


def silence(connections):
    connections.now += 30.0


@pytest.mark.parametrize("per_connection", DIVISIONS)
@pytest.mark.parametrize("event", [nothing, starved, silence])
def test_decision_costs_a_bounded_number_of_bytecodes_for_each_connection(event, per_connection):
    connections = Connections(MANY, per_connection)
    event(connections)

    with Bytecodes() as bytecodes:
        connections.decide()

    assert bytecodes.count <= PER_CONNECTION * MANY


@contextlib.contextmanager
def rdy_of_many(clock, count):
    """Yield the RdyController of a consumer with many connections."""
    with FakeNsqd(clock=clock) as nsqd:
        port = nsqd.tcp_address.rpartition(":")[2]
        # One address in several ways of writing.
        addresses = [f"127.{'0' * (1 + index // 10)}.{'0' * (1 + index % 10)}.1:{port}" for index in range(count)]
        consumer = Consumer(
            *("t", "c", addresses), message_handler=lambda *_, **__: None, max_in_flight=3 * count, clock=clock
        )
        consumer.start(block=False)
        clock.advance(5.0)
        assert consumer.total_ready_count == count
        yield consumer._runtime.rdy
        gevent.spawn(consumer.close)
        clock.advance(1.0)
        assert not consumer.is_running


def test_events_of_many_connections_update_rdy_at_a_bounded_rate():
    clock, updates = ManualClock(), set()
    with rdy_of_many(clock, 60) as rdy:
        # The first second of events uses the saved rest.
        for milliseconds in range(2000):
            rdy.schedule_update()
            clock.advance(0.001)
            if milliseconds >= 1000:
                updates.add(rdy._resting_until)

    # Each millisecond has an event, and each update is followed by a rest.
    rest = 0.001 + 60 * REST_PER_CONNECTION
    assert 0.9 / rest <= len(updates) <= 1.1 / (60 * REST_PER_CONNECTION)


def test_updates_of_a_burst_come_at_once():
    clock = ManualClock()
    with rdy_of_many(clock, 60) as rdy:
        for _ in range(60):
            rdy.schedule_update()
            assert rdy.is_update_scheduled
            gevent.sleep(0)
