"""What goes wrong in a run: each fault is begun, lasts for some seconds, and is undone."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import gevent

from fakensqd.faults import toxics
from fakensqd.faults.toxics import Toxic
from fakensqd.real import RealLookupd, RealNsqd
from integration.chaos.world import CHANNELS, TOPIC, Node, Worker, World, outside

# Seconds; and how many faults there are at the same time.
SHORTEST, LONGEST = 0.2, 5.0
AT_ONCE = 3


@dataclass
class Fault:
    """One fault of a run.

    Attributes:
        target: Name of an nsqd, or of another process; of a worker with its generation.
        began, ended: Monotonic times.
    """

    kind: str
    target: str
    began: float
    ended: float = float("inf")

    @property
    def loses(self) -> bool:
        """True if nsqd itself may lose messages."""
        return self.kind in ("killed", "hung up", "has a full disk")

    def __str__(self) -> str:
        return f"{self.target} {self.kind}"


@dataclass
class Target:
    """What a fault concerns.

    Attributes:
        chosen: For what is random about the fault.
    """

    process: RealNsqd | RealLookupd | Worker
    node: Node | None
    chosen: random.Random

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


# Begins a fault, and returns the function that undoes it.
Act = Callable[[Target], Callable[[], object]]


def _kill(at: Target) -> Callable[[], object]:
    outside(at.process.kill)
    if at.node is not None:
        at.node.relay.down()
    return lambda: _start(at)


def _start(at: Target) -> None:
    outside(at.process.start)
    if at.node is not None:
        # fakensqd has forgotten its channels, which must be there before the first client.
        at.node.make_channels()
        at.node.relay.start()


def _hang_up(at: Target) -> Callable[[], object]:
    # Neither nsqd nor gnsq handles it, so it ends them as SIGKILL does; a program that ignores it is killed.
    at.signal(signal.SIGHUP)
    gevent.sleep(0.2)
    return _kill(at)


def _restart(at: Target) -> Callable[[], object]:
    outside(at.process.stop)
    return lambda: outside(at.process.start)


def _restart_paused(at: Target) -> Callable[[], object]:
    """Restart nsqd with its channels paused: see restart() in integration/queries.py."""
    assert at.node is not None
    http = at.node.http
    for channel in CHANNELS:
        http.pause_channel(TOPIC, channel)
    outside(at.process.stop)

    def start() -> None:
        outside(at.process.start)
        for channel in CHANNELS:
            http.unpause_channel(TOPIC, channel)

    return start


def _stop(at: Target) -> Callable[[], object]:
    at.signal(signal.SIGSTOP)
    return lambda: at.signal(signal.SIGCONT)


def _fill_disk(at: Target) -> Callable[[], object]:
    assert at.node is not None
    at.node.fill_disk()
    return at.node.free_disk


def _pause(at: Target) -> Callable[[], object]:
    assert at.node is not None
    http, channel = at.node.http, at.chosen.choice(CHANNELS)
    http.pause_channel(TOPIC, channel)
    return lambda: http.unpause_channel(TOPIC, channel)


def _refuse(at: Target) -> Callable[[], object]:
    assert at.node is not None
    at.node.relay.down()
    return at.node.relay.start


def _add(make: Callable[[random.Random], Toxic]) -> Act:
    def act(at: Target) -> Callable[[], object]:
        assert at.node is not None
        return at.node.relay.link.add(make(at.chosen), upstream=at.chosen.choice([True, False, None])).remove

    return act


# By kind: how often, compared with the others; what it concerns; what it does.
KINDS: dict[str, tuple[int, str, Act]] = {
    "killed": (3, "nsqd", _kill),
    "hung up": (1, "nsqd", _hang_up),
    "restarted": (3, "nsqd", _restart_paused),
    "stopped": (2, "nsqd", _stop),
    "has a full disk": (3, "disk", _fill_disk),
    "has a paused channel": (1, "nsqd", _pause),
    "refuses connections": (2, "nsqd", _refuse),
    "has late links": (2, "nsqd", _add(lambda chosen: toxics.latency(chosen.uniform(0.01, 0.4), jitter=0.01))),
    "has slow links": (1, "nsqd", _add(lambda chosen: toxics.bandwidth(chosen.choice([2_000, 20_000])))),
    "has sliced links": (2, "nsqd", _add(lambda chosen: toxics.slice_bytes(chosen.choice([3, 7, 100])))),
    "has stalled links": (2, "nsqd", _add(lambda chosen: toxics.stall(after=chosen.randrange(5_000)))),
    "resets links": (3, "nsqd", _add(lambda chosen: toxics.reset(after=chosen.randrange(5_000)))),
    "ends links": (2, "nsqd", _add(lambda chosen: toxics.limit_bytes(chosen.randrange(5_000)))),
    "has corrupt links": (2, "tls", _add(lambda chosen: toxics.corrupt_bytes(chosen.choice([0.001, 0.0001])))),
    "lookup killed": (1, "nsqlookupd", _kill),
    "lookup stopped": (1, "nsqlookupd", _stop),
    "auth killed": (1, "auth", _kill),
    "auth stopped": (1, "auth", _stop),
    "worker killed": (3, "worker", _kill),
    "worker hung up": (1, "worker", _hang_up),
    "worker restarted": (3, "worker", _restart),
    "worker stopped": (3, "worker", _stop),
}


def _targets(world: World, concerns: str) -> list[str]:
    nodes = [node.name for node in world.nodes]
    return {
        "nsqd": nodes,
        "disk": [node.name for node in world.nodes if node.disk],
        "tls": nodes if world.is_secure else [],
        "nsqlookupd": [*world.lookupds],
        "auth": ["auth"],
        # The others live on, so that what they use can be compared.
        "worker": [name for name in ("consumer0", "consumer1", "producer0") if name in world.workers],
    }[concerns]


class Disturber:
    """Runs faults at random. What is chosen depends on the random numbers alone.

    Attributes:
        faults: All so far.
        errors: Exceptions of a fault itself.
    """

    def __init__(self, world: World, chosen: random.Random, interval: float) -> None:
        self.faults: list[Fault] = []
        self.errors: list[str] = []
        self._world, self._chosen, self._interval = world, chosen, interval

    def run(self, seconds: float) -> None:
        """Run faults for some seconds, and wait until they are undone. A target has one fault at a time."""
        deadline = time.monotonic() + seconds
        # fakensqd has no disk, so that a restart is a kill.
        kinds = {kind: each for kind, each in KINDS.items() if kind != "restarted" or not self._world.is_fake}
        weights = [weight for weight, _, _ in kinds.values()]
        busy: dict[str, gevent.Greenlet] = {}
        while time.monotonic() < deadline:
            (kind,) = self._chosen.choices([*kinds], weights)
            targets = _targets(self._world, KINDS[kind][1])
            target = self._chosen.choice(targets) if targets else ""
            lasts, chosen = self._chosen.uniform(SHORTEST, LONGEST), random.Random(self._chosen.random())
            waits = self._chosen.uniform(0.1, 1.9) * self._interval
            busy = {name: job for name, job in busy.items() if not job.ready()}
            if target and target not in busy and len(busy) < AT_ONCE:
                busy[target] = gevent.spawn(self._disturb, kind, target, lasts, chosen)
            gevent.sleep(min(waits, max(0.0, deadline - time.monotonic())))
        gevent.joinall(list(busy.values()))

    def _disturb(self, kind: str, target: str, lasts: float, chosen: random.Random) -> None:
        node = next((node for node in self._world.nodes if node.name == target), None)
        process = node.daemon if node else {**self._world.lookupds, **self._world.workers}[target]
        name = process.full_name if isinstance(process, Worker) and target != "auth" else target
        fault = Fault(kind, name, time.monotonic())
        self.faults.append(fault)
        print(f"{fault} for {lasts:.1f} s", flush=True)
        try:
            undo = KINDS[kind][2](Target(process, node, chosen))
            gevent.sleep(lasts)
            undo()
        except Exception as error:  # noqa: BLE001  # reported at the end
            self.errors.append(f"{fault}: {error!r}")
        finally:
            fault.ended = time.monotonic()
