"""Four hours of a consumer, on a manual clock: nsqds restart, handlers fail, options change. RDY and in-flight counts
stay within their limits, all messages are handled, and nothing is left over."""

import contextlib
import functools
import gc
import random
from collections import Counter

import gevent
import pytest

from fakensqd import FakeNsqd
from fakensqd.clock import ManualClock
from fakensqd.faults.toxics import stall
from gnsq import Consumer

DURATION = 4 * 3600.0
SEEDS = [1, 20, 300]
# Events, and how often each happens.
PLAN = {
    "publish": 270,
    "restart": 10,
    "down": 7,
    "stall": 3,
    "pause": 7,
    "pause_channel": 4,
    "outage": 10,
    "resize": 35,
}
NSQDS = [{}, {"max_rdy_count": 7}, {"msg_timeout": 20.0}, {"release": "0.2.19"}]


class Simulation:
    """A consumer and its nsqds; PLAN names the methods that are events."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.nsqds = [FakeNsqd(clock=self.clock, max_heartbeat_interval=3600, **options) for options in NSQDS]
        self.published = 0
        self.handled = Counter()
        self.failed = self.running = 0
        self.phases = Counter()
        # Until then handlers fail.
        self.outage_until = 0.0
        self.calm = False
        # Messages in flight when max_in_flight was lowered count until they are answered.
        self.allowed = 20

    def begin(self, seed):
        for nsqd in self.nsqds:
            nsqd.start()
        self.consumer = Consumer(
            "t",
            "c",
            [nsqd.tcp_address for nsqd in self.nsqds],
            message_handler=self.handle,
            max_in_flight=self.allowed,
            max_tries=0,
            heartbeat_interval=600,
            clock=self.clock,
        )
        # Nearly the same order each time; the operating system decides the rest.
        random.seed(seed)
        self.consumer._runtime.rdy._policy._rng.seed(seed)
        self.consumer.on_backoff.connect(self.note_phase, weak=False)
        self.consumer.start(block=False)

    def end(self):
        for nsqd in self.nsqds:
            nsqd.stop()

    # --- the consumer's

    def handle(self, consumer, message):
        self.check()
        self.running += 1
        try:
            self.clock.sleep(self.rng.choice([0.0, 0.1, 1.0, 5.0]))
        finally:
            self.running -= 1
        if not self.calm and (self.clock.monotonic() < self.outage_until or self.rng.random() < 0.01):
            self.failed += 1
            raise RuntimeError("downstream is down")
        self.handled[message.body] += 1

    def note_phase(self, consumer, phase, failures, duration):
        self.phases[phase] += 1

    def check(self):
        """Check the limits."""
        connections = list(self.consumer._runtime.pool.connections.values())
        load = sum(max(connection.ready_count, connection.in_flight) for connection in connections)
        assert load <= self.allowed, f"RDY and in flight: {load}, allowed: {self.allowed}"
        self.allowed = max(self.consumer.max_in_flight, load)
        for connection in connections:
            assert 0 <= connection.ready_count <= connection.identity.max_rdy_count
            assert connection.in_flight >= 0
        # No message of a lost connection is in the inbox, and its running handlers end.
        assert len(self.consumer._runtime.workers.inbox) <= self.allowed

    # --- events

    def publish(self):
        nsqd = self.rng.choice(self.nsqds)
        count = self.rng.choice([1, 1, 1, 3, 10])
        self.publish_to(nsqd, count)

    def publish_to(self, nsqd, count):
        bodies = [b"%d" % number for number in range(self.published, self.published + count)]
        nsqd.broker.ensure_topic("t").publish(bodies, nsqd.now())
        self.published += count

    def restart(self):
        nsqd = self.rng.choice(self.nsqds)
        if nsqd.running:
            nsqd.restart()

    def down(self):
        nsqd = self.rng.choice(self.nsqds)
        nsqd.down()
        self.later(self.rng.uniform(5.0, 1500.0), nsqd.up)

    def stall(self):
        toxic = self.rng.choice(self.nsqds).link.add(stall())
        self.later(self.rng.uniform(1.0, 3000.0), toxic.remove)

    def pause(self):
        self.consumer.pause()
        self.later(self.rng.uniform(1.0, 300.0), self.consumer.resume)

    def pause_channel(self):
        nsqd = self.rng.choice(self.nsqds)

        def set_paused(paused):
            # The topic may be another object after a restart.
            channel = nsqd.broker.ensure_topic("t").ensure_channel("c", nsqd.now())
            channel.set_paused(paused)

        set_paused(True)
        self.later(self.rng.uniform(1.0, 300.0), lambda: set_paused(False))

    def outage(self):
        self.outage_until = self.clock.monotonic() + self.rng.uniform(5.0, 300.0)

    def resize(self):
        size = self.rng.choice([1, 2, 3, 5, 20, 50])
        self.allowed = max(self.allowed, size)
        self.consumer.max_in_flight = size

    def later(self, seconds, function):
        self.clock.call_later(seconds, lambda: gevent.spawn(function) and None)

    # --- from begin to end

    def run(self):
        times = [(self.rng.uniform(0.0, DURATION), name) for name, count in PLAN.items() for _ in range(count)]
        for time, name in sorted(times):
            self.turn_to(time)
            getattr(self, name)()
            self.check()

    def turn_to(self, time):
        self.clock.advance(max(0.0, time - self.clock.monotonic()))
        self.check()

    def calm_down(self):
        """End all faults, and wait until all messages are handled."""
        self.turn_to(self.clock.monotonic() + 3000.0)
        self.calm = True
        self.consumer.resume()
        self.consumer.max_in_flight = 20
        self.allowed = max(self.allowed, 20)
        for _ in range(12):
            for nsqd in self.nsqds:
                self.publish_to(nsqd, 1)
            self.turn_to(self.clock.monotonic() + 600.0)


def living():
    gc.collect()
    return {item for item in gc.get_objects() if isinstance(item, gevent.Greenlet) and not item.dead}


def greenlets(others):
    """Count greenlets by their function, without those of the emulator for stalled connections."""
    functions = [item._run for item in living() - others]
    # A supervised function is the last argument.
    functions = [each.args[-1] if isinstance(each, functools.partial) else each for each in functions]
    names = [getattr(each, "__qualname__", type(each).__name__) for each in functions]
    return Counter(name for name in names if not name.startswith("LinkedTransport."))


def timers(clock):
    return sum(timer.callback is not None for _, _, timer in clock._timers)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_consumer_among_failing_nsqds_stays_within_its_limits_and_handles_all_messages(seed):
    others = living()  # greenlets of earlier tests, which may end
    simulation = Simulation(seed)
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(simulation.end)
        simulation.begin(seed)
        simulation.clock.advance(100.0)
        settled = (greenlets(others), timers(simulation.clock))

        simulation.run()
        simulation.calm_down()

        # There were enough faults.
        assert simulation.failed > 10
        assert simulation.phases["start"] > 3
        assert simulation.phases["continue"] > 10
        # All messages were handled, and all nsqds are connected.
        assert len(simulation.handled) == simulation.published
        assert [nsqd.depth("t", "c") + nsqd.in_flight("t", "c") for nsqd in simulation.nsqds] == [0] * 4
        assert [len(nsqd.sessions) for nsqd in simulation.nsqds] == [1] * 4
        stats = simulation.consumer.stats()
        assert (stats.backoff, stats.waiting, stats.handling, stats.failures) == ("off", 0, 0, {})
        assert (simulation.consumer.total_in_flight, simulation.running, len(simulation.consumer._runtime.workers)) == (
            0,
            0,
            0,
        )
        assert all(connection.rdy for connection in stats.connections)
        # Nothing has accumulated, and there are no more parked workers than handlers ran at the same time.
        running = greenlets(others)
        assert running.pop("WorkerPool._run_worker", 0) <= 50
        assert (running, timers(simulation.clock)) == settled
        gevent.spawn(simulation.consumer.close)
        simulation.clock.advance(1.0)
        assert not simulation.consumer.is_running
        assert [nsqd.errors for nsqd in simulation.nsqds] == [[]] * 4
    assert not greenlets(others)
