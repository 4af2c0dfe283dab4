"""Kills lose no message: set(sink) == set(published), with a real nsqd. Duplicates are counted and printed.

First a receiver alone, killed at each point between nsqd and spool; then all processes of a query and nsqd itself.
"""

import contextlib
import sys

import pytest

from gnsq import NsqdHTTPClient
from gnsq.concurrency.hub_thread import HubThread
from gnsq.spark.spool.spool import Spool
from integration.queries import Publisher, kill, restart, running_query, written
from integration.query import CHANNEL
from integration.servers import needs_programs, running
from tests.spark.helpers import bodies_of, descendants, is_empty, named, numbered, publish, wait_for
from tests.spark.kills import drain, receiver_process, run_until_killed

pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    needs_programs,
]

COUNT = 20_000
# Killed in any order, with one of those after which the query starts again; the last step kills all of them.
KINDS, ENDS = ("worker", "nsqd"), ("source", "jvm")
LIMIT = 120
# nsqd writes each message to the disk before it confirms it: some hundred messages per second.
SLOWLY = {"size": 5, "pause": 0.05}
DURABLE = ("--mem-queue-size=0", "--sync-every=1", "--msg-timeout=3s")


@pytest.fixture
def hub():
    with HubThread("test") as hub:
        yield hub


@pytest.fixture
def spool(tmp_path):
    return Spool(str(tmp_path / "spool"))


class Query:
    """Runs the query, and starts it again."""

    TEXTS = {"worker": "pyspark.daemon", "source": "python_streaming_source_runner", "jvm": "pyspark-shell"}

    def __init__(self, stack, folder, nsqd):
        self._stack = stack
        self._folder = folder
        # Tasks may fail, as on a cluster.
        self._command = [sys.executable, "-m", "integration.query", "local[2,4]", str(folder)]
        self._command += [nsqd.tcp_address, nsqd.http_address]
        self.starts = 0
        self._start()

    def _start(self):
        self.starts += 1
        self._process = self._stack.enter_context(
            running_query(self._command, self._folder / f"query{self.starts}.log")
        )

    def _rows(self):
        if self._process.poll() is not None:
            self._start()
        return len(written(self._folder))

    def go_on(self, rows):
        """Wait for further rows in the sink; start the query if it has ended."""
        target = self._rows() + rows
        wait_for(lambda: self._rows() >= target, limit=LIMIT)

    def kill(self, kind):
        if kind == "group":
            kill(*descendants(self._process.pid), self._process.pid)
            self._process.wait(30)
        else:
            kill(*named(self._process.pid, self.TEXTS[kind]))

    def end(self):
        self._process.stdin.close()
        assert self._process.wait(60) == 0


@pytest.mark.parametrize("point", ["write", "durable", "fins"])
def test_receiver_killed(point, spool, hub):
    with running("nsqd", "--msg-timeout=2s") as nsqd:
        publish(nsqd, "clicks", numbered(COUNT))
        run_until_killed(point, nsqd, spool)
        drain(nsqd, spool, hub)

    report(f"receiver killed at {point!r}", numbered(COUNT), bodies_of(spool))


def test_receiver_killed_at_random(spool, hub, chosen):
    """Kill the receiver three times, often after FINs."""
    with contextlib.ExitStack() as stack:
        nsqd = stack.enter_context(running("nsqd", "--msg-timeout=2s"))
        publisher = Publisher(nsqd.tcp_address, pause=0.005)
        stack.callback(publisher.stop)
        for _ in range(3):
            with receiver_process(nsqd, spool) as process:
                before, more = len(bodies_of(spool)), chosen.randint(1, 5000)
                wait_for(lambda before=before, more=more: len(bodies_of(spool)) > before + more)
                process.kill()
        published = publisher.stop()
        drain(nsqd, spool, hub)

    report("receiver killed 3 times", published, bodies_of(spool))


def test_processes_of_a_query_killed_at_random(tmp_path, chosen):
    kinds = [*KINDS, chosen.choice(ENDS)]
    chosen.shuffle(kinds)
    with contextlib.ExitStack() as stack:
        nsqd = stack.enter_context(running("nsqd", *DURABLE))
        query = Query(stack, tmp_path, nsqd)
        publisher = Publisher(nsqd.tcp_address, **SLOWLY)
        stack.callback(publisher.stop)
        for kind in kinds:
            query.go_on(chosen.randint(50, 300))
            print(f"killing {kind} behind {len(written(tmp_path))} rows", flush=True)
            if kind == "nsqd":
                restart(nsqd, "clicks", CHANNEL)
            else:
                query.kill(kind)
        query.go_on(50)
        query.kill("group")
        published = publisher.stop()

        # Without messages in flight, nsqd may be killed.
        wait_for(lambda: at_rest(nsqd), limit=LIMIT)
        nsqd.kill()
        nsqd.start()
        query.go_on(0)
        wait_for(lambda: is_empty(nsqd, "clicks", "archive") and set(written(tmp_path)) >= set(published), limit=LIMIT)
        query.end()

    report(f"query, killed: {', '.join(kinds)}, group, nsqd", published, written(tmp_path))


def report(what, published, found):
    lost = set(published) - set(found)
    print(f"\n{what}: {len(published)} published, {len(lost)} lost, {len(found) - len(set(found))} twice", flush=True)
    assert set(found) == set(published)


def at_rest(nsqd):
    """Return whether nsqd has all messages on its disk."""
    client = NsqdHTTPClient.from_url(nsqd.http_address)
    [topic] = client.stats("clicks")["topics"]
    client.close()
    [channel] = topic["channels"]
    return not channel["clients"] and not channel["in_flight_count"] and not topic["depth"]
