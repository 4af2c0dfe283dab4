"""What goes wrong in a run: each fault is begun, lasts for some seconds, and is undone."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import gevent

from fakensqd.faults import toxics
from fakensqd.faults.toxics import Toxic
from integration.chaos.world import CHANNELS, TOPIC, Node, Program, Worker, World, outside
from integration.servers import Daemon

# Seconds.
LONGEST = 5.0
AT_ONCE = 3


@dataclass
class Fault:
    """One fault of a run.

    Attributes:
        target: Name of an nsqd, or of another program; of a worker with its generation.
        loses: nsqd itself may lose messages.
        began, ended: Monotonic times.
    """

    kind: str
    target: str
    loses: bool
    began: float
    ended: float = float("inf")

    def __str__(self) -> str:
        return f"{self.target} {self.kind}"


Act = Callable[[World, random.Random, str], AbstractContextManager[None]]


def _node(world: World, name: str) -> Node:
    return next(node for node in world.nodes if node.name == name)


def _program(world: World, name: str) -> Daemon | Program:
    programs: dict[str, Daemon | Program] = {worker.name: worker for worker in world.workers}
    programs |= {node.name: node.daemon for node in world.nodes}
    programs |= {f"nsqlookupd{number}": daemon for number, daemon in enumerate(world.lookupds)}
    return (programs | {"auth": world.auth})[name]


@contextlib.contextmanager
def _killed(world: World, chosen: random.Random, target: str) -> Iterator[None]:
    program = _program(world, target)
    outside(program.stop, kill=True)
    yield
    outside(program.start)


@contextlib.contextmanager
def _hung_up(world: World, chosen: random.Random, target: str) -> Iterator[None]:
    # Neither nsqd nor gnsq handle it, so it ends them as SIGKILL does; a program that ignores it is killed.
    process = _program(world, target).process
    assert process is not None
    process.send_signal(signal.SIGHUP)
    gevent.sleep(0.2)
    with _killed(world, chosen, target):
        yield


@contextlib.contextmanager
def _restarted(world: World, chosen: random.Random, target: str) -> Iterator[None]:
    program = _program(world, target)
    outside(program.stop)
    yield
    outside(program.start)


@contextlib.contextmanager
def _stopped(world: World, chosen: random.Random, target: str) -> Iterator[None]:
    process = _program(world, target).process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    yield
    process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def _disk_full(world: World, chosen: random.Random, target: str) -> Iterator[None]:
    world.fill_disk(_node(world, target))
    yield
    world.free_disk(_node(world, target))


@contextlib.contextmanager
def _paused(world: World, chosen: random.Random, target: str) -> Iterator[None]:
    node, channel = _node(world, target), chosen.choice(CHANNELS)
    node.http.pause_channel(TOPIC, channel)
    yield
    node.http.unpause_channel(TOPIC, channel)


@contextlib.contextmanager
def _refused(world: World, chosen: random.Random, target: str) -> Iterator[None]:
    relay = _node(world, target).relay
    relay.stop()
    yield
    relay.start()


def _toxic(make: Callable[[random.Random], Toxic]) -> Act:
    @contextlib.contextmanager
    def act(world: World, chosen: random.Random, target: str) -> Iterator[None]:
        with _node(world, target).relay.link.add(make(chosen), upstream=chosen.choice([True, False, None])):
            yield

    return act


# By kind: how often, compared with the others; what it concerns; what it does.
KINDS: dict[str, tuple[int, str, Act]] = {
    "killed": (3, "nsqd", _killed),
    "hung up": (1, "nsqd", _hung_up),
    "restarted": (3, "nsqd", _restarted),
    "stopped": (2, "nsqd", _stopped),
    "has a full disk": (3, "disk", _disk_full),
    "has a paused channel": (1, "nsqd", _paused),
    "refuses connections": (2, "nsqd", _refused),
    "has late links": (2, "nsqd", _toxic(lambda chosen: toxics.latency(chosen.uniform(0.01, 0.4), jitter=0.01))),
    "has slow links": (1, "nsqd", _toxic(lambda chosen: toxics.bandwidth(chosen.choice([2_000, 20_000])))),
    "has sliced links": (2, "nsqd", _toxic(lambda chosen: toxics.slice_bytes(chosen.choice([3, 7, 100])))),
    "has stalled links": (2, "nsqd", _toxic(lambda chosen: toxics.stall(after=chosen.randrange(5_000)))),
    "resets links": (3, "nsqd", _toxic(lambda chosen: toxics.reset(after=chosen.randrange(5_000)))),
    "ends links": (2, "nsqd", _toxic(lambda chosen: toxics.limit_bytes(chosen.randrange(5_000)))),
    "has corrupt links": (2, "tls", _toxic(lambda chosen: toxics.corrupt_bytes(chosen.choice([0.001, 0.0001])))),
    "lookup killed": (1, "nsqlookupd", _killed),
    "lookup stopped": (1, "nsqlookupd", _stopped),
    "auth killed": (1, "auth", _killed),
    "auth stopped": (1, "auth", _stopped),
    "worker killed": (3, "worker", _killed),
    "worker hung up": (1, "worker", _hung_up),
    "worker restarted": (3, "worker", _restarted),
    "worker stopped": (3, "worker", _stopped),
}
LOSING = ("killed", "hung up", "has a full disk")


def _targets(world: World, concerns: str) -> list[str]:
    nodes = [node.name for node in world.nodes if concerns in ("nsqd", "tls") or node.disk]
    return {
        "nsqd": nodes,
        "disk": nodes,
        "tls": nodes if world.is_secure else [],
        "nsqlookupd": [f"nsqlookupd{number}" for number in range(len(world.lookupds))],
        "auth": ["auth"],
        # The last ones of a kind live on, so that what they use can be compared.
        "worker": [worker.name for worker in world.workers if worker.name in ("consumer0", "consumer1", "producer0")],
    }[concerns]


class Disturber:
    """Runs faults at random. The choice depends on the random numbers alone.

    Attributes:
        faults: All so far.
        errors: Exceptions of a fault itself.
    """

    def __init__(self, world: World, chosen: random.Random, interval: float) -> None:
        self.faults: list[Fault] = []
        self.errors: list[str] = []
        self._world, self._chosen, self._interval = world, chosen, interval
        self._busy: dict[str, gevent.Greenlet] = {}

    def run(self, seconds: float) -> None:
        """Run faults for some seconds, and wait until they are undone."""
        deadline = time.monotonic() + seconds
        weights = [weight for weight, _, _ in KINDS.values()]
        while time.monotonic() < deadline:
            (kind,) = self._chosen.choices([*KINDS], weights)
            targets = _targets(self._world, KINDS[kind][1])
            target = self._chosen.choice(targets) if targets else ""
            lasts, chosen = self._chosen.uniform(0.2, LONGEST), random.Random(self._chosen.random())
            waits = self._chosen.uniform(0.2, 1.8) * self._interval
            self._busy = {name: job for name, job in self._busy.items() if not job.ready()}
            if target and target not in self._busy and len(self._busy) < AT_ONCE:
                self._busy[target] = gevent.spawn(self._disturb, kind, target, lasts, chosen)
            gevent.sleep(min(waits, max(0.0, deadline - time.monotonic())))
        gevent.joinall(list(self._busy.values()))

    def _disturb(self, kind: str, target: str, lasts: float, chosen: random.Random) -> None:
        program = _program(self._world, target)
        name = program.full_name if isinstance(program, Worker) else target
        fault = Fault(kind, name, kind in LOSING, time.monotonic())
        self.faults.append(fault)
        print(f"{fault} for {lasts:.1f} s", flush=True)
        try:
            with KINDS[kind][2](self._world, chosen, target):
                gevent.sleep(lasts)
        except Exception as error:  # noqa: BLE001  # reported at the end
            self.errors.append(f"{fault}: {error!r}")
        finally:
            fault.ended = time.monotonic()
