"""Random faults and schedules: each publish ends once, in time, and with a true outcome."""

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field

import gevent
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from fakensqd import FakeNsqd, on
from fakensqd.clock import ManualClock
from fakensqd.faults import delay, disconnect, error, inject, refuse, reset
from fakensqd.faults import toxics as t
from gnsq import Producer
from gnsq.errors import NSQErrorCode, NSQNotSent, NSQUnknown

pytestmark = pytest.mark.slow

# Of a body; longer ones are refused.
MAX_SIZE = 3000
MAX_DELAY_MS = 60_000
OUTCOMES = ["confirmed", "refused", "not sent", "unknown"]
# Between two looks for deadlines, and what a clock's sums may lose.
SLACK = 0.02

# --- what may happen --------------------------------------------------------------------------------------------------

seconds = st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.3, 1.0, 2.5, 7.0, 40.0])
places = st.integers(0, 2)
sizes = st.integers(1, 200) | st.sampled_from([MAX_SIZE - 1, MAX_SIZE, MAX_SIZE + 1, 8 * MAX_SIZE])
limits = st.sampled_from([0.0, 0.05, 0.5, 3.0, 20.0])
commands = st.sampled_from(["PUB", "MPUB", "DPUB"])
numbers = st.integers(1, 6)

publishes = st.tuples(
    st.just("publish"),
    st.sampled_from(["wait", "wait", "async", "async", "multi", "many", "defer", "no block", "killed", "own timeout"]),
    st.lists(sizes, min_size=1, max_size=6),
    limits,
)
faults = st.one_of(
    st.builds(lambda kind, n: (on.reply(kind).nth(n), disconnect()), commands, numbers),
    st.builds(lambda kind, n: (on.reply(kind).nth(n), reset()), commands, numbers),
    st.builds(lambda kind, n: (on.reply(kind).nth(n), disconnect(after=True)), commands, numbers),
    st.builds(lambda kind, n: (on.command(kind).nth(n), disconnect()), commands, numbers),
    st.builds(lambda kind, n: (on.command(kind).nth(n), reset()), commands, numbers),
    st.builds(lambda kind, n: (on.command(kind).nth(n), error(f"E_{kind}_FAILED")), commands, numbers),
    st.builds(lambda kind, n: (on.command(kind).first(n), error(f"E_{kind}_FAILED")), commands, numbers),
    st.builds(lambda kind, n: (on.command(kind).nth(n), error("E_BAD_TOPIC")), commands, numbers),
    st.builds(lambda kind, n, late: (on.command(kind).nth(n), delay(late)), commands, numbers, seconds),
    st.builds(lambda kind, n, late: (on.reply(kind).nth(n), delay(late)), commands, numbers, seconds),
    st.builds(lambda kind: (on.reply(kind).always(), inject("heartbeat")), commands),
    st.builds(lambda n: (on.connect().first(n), refuse()), numbers),
).map(lambda rule: ("rule", rule))
poisons = st.one_of(
    st.builds(t.latency, seconds),
    st.builds(t.bandwidth, st.sampled_from([500, 5000])),
    st.builds(t.slice_bytes, st.integers(1, 50)),
    st.builds(lambda after: t.stall(after=after), st.integers(0, 5000)),
    st.builds(t.limit_bytes, st.integers(0, 5000)),
    st.builds(lambda after: t.reset(after=after), st.integers(0, 5000)),
)
troubles = st.one_of(
    st.tuples(st.just("fault"), places, faults),
    st.tuples(st.just("toxic"), places, poisons, st.sampled_from([True, False, None])),
    st.tuples(st.just("state"), places, st.sampled_from(["down", "up", "restart", "stop_reading", "resume_reading"])),
    st.tuples(st.just("delay"), places, seconds),
    st.tuples(st.just("calm"), places),
)
others = st.one_of(
    st.tuples(st.just("advance"), seconds),
    st.tuples(st.just("advance"), seconds),
    st.tuples(st.just("yield"), st.integers(1, 20)),
    st.tuples(st.just("flush"), limits),
)


def least_pending(links):
    return min(links, key=lambda link: link.pending)


def lowest_address(links):
    return min(links, key=lambda link: link.address)


steps = st.lists(st.one_of(publishes, publishes, troubles, others), max_size=14)
options = st.fixed_dictionaries(
    {},
    optional={
        "allow_duplicates": st.booleans(),
        "batch_messages": st.sampled_from([2, 5]),
        "batch_bytes": st.sampled_from([300, 100_000]),
        "batch_linger": st.sampled_from([0.0, 0.01, 1.0]),
        "max_pending_bytes": st.sampled_from([1, 500, 5000]),
        "connections_per_nsqd": st.just(2),
        "strategy": st.sampled_from([least_pending, lowest_address]),
        "deflate": st.booleans(),
        "heartbeat_interval": st.just(4.0),
    },
)

# --- how it is done ---------------------------------------------------------------------------------------------------


@dataclass
class Published:
    """A publish: what it holds, whether the producer surely took it, and how it ended; killed ones do not tell."""

    bodies: list[bytes]
    deadline: float
    repeats: bool
    taken: bool
    outcomes: list[str] = field(default_factory=list)
    ended: float = 0.0


class World:
    """Some nsqds and a producer on one clock."""

    def __init__(self, stack: ExitStack, nsqds: int, options: dict) -> None:
        self.clock = ManualClock()
        self.nsqds = [
            stack.enter_context(
                FakeNsqd(
                    clock=self.clock,
                    record=True,
                    seed=0,
                    max_msg_size=MAX_SIZE,
                    max_body_size=5 * MAX_SIZE,
                    max_req_timeout=MAX_DELAY_MS / 1000,
                )
            )
            for _ in range(nsqds)
        ]
        addresses = [nsqd.tcp_address for nsqd in self.nsqds]
        self.repeats = options.get("allow_duplicates", False)
        self.producer = Producer(addresses, 1.0, clock=self.clock, timeout=5.0, **options)
        self.published: list[Published] = []
        self.jobs: list[gevent.Greenlet] = []
        self.greenlets: list[gevent.Greenlet] = []
        self.unconfirmed: list = []
        gevent.Greenlet.add_spawn_callback(self.greenlets.append)
        stack.callback(gevent.Greenlet.remove_spawn_callback, self.greenlets.append)
        self._run(self.producer.start)

    def _run(self, function, *arguments):
        job = gevent.spawn(function, *arguments)
        self.jobs.append(job)
        return job

    def take(self, step: tuple) -> None:
        getattr(self, f"_{step[0]}")(*step[1:])

    # --- steps

    def _publish(self, how: str, sizes: list[int], limit: float) -> None:
        if how in ("multi", "many"):
            self._begin(how, sizes, limit)
            return
        for size in sizes:
            self._begin(how, [size], limit)

    def _begin(self, how: str, sizes: list[int], limit: float) -> None:
        place = len(self.published)
        bodies = [b"%d.%d." % (place, number) for number in range(len(sizes))]
        bodies = [body.ljust(size, b"x") for body, size in zip(bodies, sizes, strict=True)]
        made = Published(bodies, self.clock.monotonic() + limit, self.repeats, taken=how != "no block")
        self.published.append(made)
        job = self._run(self._end, how, made, limit)
        if how == "killed":
            self._run(lambda: gevent.sleep(0) or job.kill(block=False))

    def _end(self, how: str, made: Published, limit: float) -> None:
        producer, (body, *_) = self.producer, made.bodies
        try:
            if how == "async":
                producer.publish_async("t", body, timeout=limit).get()
            elif how == "multi":
                producer.multipublish("t", made.bodies, timeout=limit)
            elif how == "many":
                producer.multipublish("t", made.bodies, timeout=limit, raise_error=False).get()
            elif how == "defer":
                delay_ms = MAX_DELAY_MS + 1 if len(body) == MAX_SIZE else 10
                producer.publish("t", body, defer=delay_ms, timeout=limit)
            elif how == "own timeout":
                with self.clock.timeout(limit / 2):
                    producer.publish("t", body, timeout=limit)
            else:
                producer.publish("t", body, timeout=limit, block=how != "no block")
        except NSQErrorCode:
            made.outcomes.append("refused")
        except NSQNotSent:
            made.outcomes.append("not sent")
        except NSQUnknown:
            made.outcomes.append("unknown")
        except gevent.Timeout:
            made.outcomes.append("left")
        except gevent.GreenletExit:
            made.outcomes.append("killed")
        else:
            made.outcomes.append("confirmed")
        made.ended = self.clock.monotonic()

    def _fault(self, place: int, rule: tuple) -> None:
        self._nsqd(place).add(rule[1][0], *rule[1][1:], optional=True)

    def _toxic(self, place: int, toxic: t.Toxic, upstream: bool | None) -> None:
        self._nsqd(place).link.add(toxic, upstream=upstream)

    def _state(self, place: int, name: str) -> None:
        getattr(self._nsqd(place), name)()

    def _delay(self, place: int, late: float) -> None:
        self._nsqd(place).set_processing_delay(late)

    def _calm(self, place: int) -> None:
        nsqd = self._nsqd(place)
        nsqd.faults.sequences.clear()
        nsqd.link.clear()
        nsqd.resume_reading()
        nsqd.set_processing_delay(0)
        nsqd.up()

    def _advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def _yield(self, times: int) -> None:
        for _ in range(times):
            gevent.sleep(0)

    def _flush(self, limit: float) -> None:
        self._run(self.producer.flush, limit)

    def _nsqd(self, place: int) -> FakeNsqd:
        return self.nsqds[place % len(self.nsqds)]

    # --- the end

    def close(self, limit: float) -> gevent.Greenlet:
        """Close the producer, in the background."""
        return self._run(lambda: self.unconfirmed.extend(self.producer.close(limit)))

    def heal(self) -> None:
        """Let all be well, and everything end."""
        for place in range(len(self.nsqds)):
            self._calm(place)
        self.clock.advance(80.0)

    def check(self) -> None:
        """Compare what was said with what nsqds have stored."""
        assert all(job.ready() for job in self.jobs)
        assert all(not nsqd.errors for nsqd in self.nsqds)
        stored = Counter(body for nsqd in self.nsqds for body in nsqd.messages("t"))
        for made in self.published:
            self._check(made, [stored[body] for body in made.bodies])
        assert [g for g in self.greenlets if getattr(g, "name", "").startswith("gnsq-") and not g.dead] == []

        self._check_totals()

    def _check_totals(self) -> None:
        """Compare what the producer has counted."""
        stats = self.producer.stats()
        sure: Counter[str] = Counter()
        for made in self.published:
            if made.taken:
                sure[made.outcomes[0]] += len(made.bodies)
        others = sum(len(made.bodies) for made in self.published) - sum(sure[outcome] for outcome in OUTCOMES)
        for outcome in OUTCOMES:
            assert 0 <= getattr(stats, outcome.replace(" ", "_")) - sure[outcome] <= others, (outcome, stats)

    def _check(self, made: Published, stored: list[int]) -> None:
        (outcome,) = made.outcomes
        event(outcome)
        assert made.ended <= made.deadline + SLACK, made
        assert len(set(stored)) == 1, "an MPUB is taken whole or not at all"
        assert made.repeats or stored[0] <= 1, "stored twice"
        if outcome == "confirmed":
            assert stored[0], made
        if outcome in ("refused", "not sent"):
            assert not stored[0], (made.bodies[0][:20], outcome)


def bodies_of(unconfirmed: list) -> set[bytes]:
    return {bytes(body) for each in unconfirmed for body in each.bodies}


@given(st.integers(1, 3), options, steps)
def test_every_publish_ends_once_in_time_with_a_true_outcome(nsqds, options, schedule):
    with ExitStack() as stack:
        world = World(stack, nsqds, options)
        for step in schedule:
            world.take(step)
        world.heal()

        stats = world.producer.stats()
        world.close(5.0)
        world.clock.advance(10.0)

        assert (stats.pending, stats.pending_bytes) == (0, 0)
        assert world.unconfirmed == []
        world.check()


@given(st.integers(1, 3), options, steps, limits, steps)
def test_close_in_the_middle_returns_the_unconfirmed_publishes(nsqds, options, schedule, limit, later):
    with ExitStack() as stack:
        world = World(stack, nsqds, options)
        for step in schedule:
            world.take(step)
        gevent.sleep(0)
        before = len(world.published)
        began = world.clock.monotonic()
        closing = world.close(limit)
        for step in later:
            world.take(step)
        world.clock.advance(limit + SLACK)
        if not closing.ready():
            # The connections are closed in order within the same time once more.
            world.clock.advance(limit + 1.0)

        assert closing.ready()
        world.heal()
        for made in world.published[before:]:
            made.taken = False
        world.check()
        unconfirmed = bodies_of(world.unconfirmed)
        assert all(made.outcomes != ["confirmed"] for made in world.published[before:])
        for made in world.published:
            if made.outcomes == ["confirmed"]:
                assert not unconfirmed & set(made.bodies)
        for made in world.published[:before]:
            if made.outcomes[0] in OUTCOMES[1:] and made.taken and made.ended > began:
                assert set(made.bodies) <= unconfirmed, made
