"""``make chaos``, which is ``python -m integration.chaos``: a run with faults, and the account at its end."""

from __future__ import annotations

import argparse
import math
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import gevent

from integration.chaos import commands
from integration.chaos.faults import Disturber, Fault
from integration.chaos.ledger import Judge, read
from integration.chaos.workers import GAP, TICK
from integration.chaos.world import Worker, World, outside
from integration.servers import PROGRAMS

# Seconds.
DRAIN_LIMIT, POLL = 40.0, 0.5


class Run:
    """One run, and what it has found.

    Attributes:
        violations: What does not hold, besides the ledgers.
    """

    def __init__(self, world: World, chosen: random.Random, interval: float) -> None:
        self.violations: list[str] = []
        self.in_flight: list[tuple[float, dict[str, int]]] = []
        self.world = world
        self.disturber = Disturber(world, chosen, interval)

    def run(self, seconds: float) -> None:
        with self.world as world:
            world.start()
            jobs = [gevent.spawn(self._look), gevent.spawn(self._watch)]
            self.disturber.run(seconds)
            self.violations += [f"a fault failed: {text}" for text in self.disturber.errors]
            self._stop([worker for worker in world.workers.values() if worker.settings["kind"] == "producer"])
            self._drain()
            gevent.killall(jobs)
            self.disturber.faults += [Fault("did not run", *each) for each in world.slow]
            self._stop([worker for worker in world.workers.values() if worker.process is not None])
            self.disturber.faults += [
                Fault(kind, node.name, at, at) for node in world.nodes for kind, at in node.lost_records()
            ]
            self.nodes = {node.relay.address: node.name for node in world.nodes}
            self._check_ends()

    def _look(self) -> None:
        """Note the messages in flight: of two looks the smaller one, since nsqds are not asked at the same moment."""
        while True:
            gevent.sleep(POLL)
            first = self.world.in_flight()
            gevent.sleep(POLL / 5)
            second = self.world.in_flight()
            self.in_flight.append(
                (time.monotonic(), {name: min(first[name], second[name]) for name in first if name in second})
            )

    def _watch(self) -> None:
        """Note when this process did not run, and with it the relays: that concerns all nsqds."""
        last = time.monotonic()
        while True:
            gevent.sleep(TICK)
            began, last = last, time.monotonic()
            if last - began > TICK + GAP:
                print(f"the relays did not run for {last - began:.1f} s", flush=True)
                names = [node.name for node in self.world.nodes]
                self.disturber.faults += [Fault("did not run", name, began, last) for name in names]

    def _drain(self) -> None:
        """Wait until all channels are empty, as long as they get emptier."""
        least, since, empty = math.inf, time.monotonic(), 0
        while empty < 3:
            gevent.sleep(POLL)
            left = self.world.left()
            empty = 0 if left else empty + 1
            if sum(left.values()) < least:
                least, since = sum(left.values()), time.monotonic()
            if left and time.monotonic() - since > DRAIN_LIMIT:
                self.violations.append(f"not emptier than {DRAIN_LIMIT:.0f} s before, without any fault: {left}")
                return

    def _stop(self, workers: list[Worker]) -> None:
        jobs = [gevent.spawn(outside, worker.stop) for worker in workers]
        gevent.joinall(jobs)
        for worker, job in zip(workers, jobs, strict=True):
            if not job.successful():
                self.violations.append(f"{worker.full_name} does not end: {job.exception!r}")
            elif status := worker.statuses[worker.full_name]:
                self.violations.append(f"{worker.full_name} ended with status {status}")

    def _check_ends(self) -> None:
        for worker in self.world.workers.values():
            wrong = [f"{name}: {status}" for name, status in worker.statuses.items() if status not in (0, 1)]
            self.violations += [f"status of {text}" for text in wrong]
        for path in sorted(self.world.folder.glob("*.err")):
            if text := path.read_text(errors="replace").strip():
                self.violations.append(f"stderr of {path.stem}: {text[-1500:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Disturb programs that use NSQ, and account for every body.")
    parser.add_argument("--seconds", type=float, default=60, help="time with faults; the end takes up to 2 min more")
    parser.add_argument("--seed", type=int, help="repeat the faults and options of a run; default: a random one")
    parser.add_argument("--interval", type=float, default=2.0, help="mean time between two faults, in seconds")
    parser.add_argument("--commands", action="store_true", help="cut commands of gnsq instead")
    parser.add_argument("--fake", action="store_true", help="with the servers of fakensqd")
    given = parser.parse_args()
    if not given.fake and not all(map(shutil.which, PROGRAMS)):
        parser.error("nsqd and nsqlookupd are not on PATH: put them there, or give --fake")
    seed = random.randrange(10**6) if given.seed is None else given.seed
    print(f"chaos: seed {seed}", flush=True)
    chosen = random.Random(seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("chaos: SIGTERM"))  # all servers and workers are ended
    folder = Path(tempfile.mkdtemp(prefix="gnsq-chaos-"))
    if given.commands:
        found = commands.run(folder, chosen, given.seconds, is_fake=given.fake)
    else:
        found = disturb(folder, chosen, given.seconds, given.interval, is_fake=given.fake)
    if not found:
        shutil.rmtree(folder, ignore_errors=True)
        print("chaos: all invariants hold")
        return 0
    for text in found:
        print(f"chaos: VIOLATED {text}")
    again = shlex.join([sys.executable, "-m", "integration.chaos", *sys.argv[1:], f"--seed={seed}"])
    print(f"chaos: ledgers and logs are in {folder}; again: {again}")
    return 1


def disturb(folder: Path, chosen: random.Random, seconds: float, interval: float, *, is_fake: bool) -> list[str]:
    """Run a world with faults; return what does not hold."""
    run = Run(World(folder, chosen, is_fake), chosen, interval)
    began = time.monotonic()
    run.run(seconds)
    memory = {node.name: node.memory for node in run.world.nodes}
    refused = {node.name: node.refused() for node in run.world.nodes}
    judge = Judge(read(folder), run.disturber.faults, run.nodes, run.in_flight, memory, refused)
    found = [*run.violations, *judge.violations()]
    print(f"chaos: {len(run.disturber.faults)} faults in {time.monotonic() - began:.0f} s; {judge.summary()}")
    for text in run.world.skipped:
        print(f"chaos: skipped: {text}")
    return found


if __name__ == "__main__":
    sys.exit(main())
