"""Kills lose no message: set(sink) == set(published), with a real nsqd. Duplicates are counted and printed.

First a receiver alone, killed at each point between nsqd and spool; then all processes of a query and nsqd itself.
"""

import contextlib
import sys

import pytest

from gnsq import NsqdHTTPClient
from integration.queries import DURABLE, LIMIT, Publisher, Restarted, restart, written
from integration.query import CHANNEL
from integration.servers import needs_programs, running
from tests.spark.helpers import bodies_of, is_empty, numbered, publish, wait_for
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
        publisher = Publisher(nsqd, size=100, pause=0.005)
        stack.callback(publisher.stop)
        for _ in range(3):
            with receiver_process(nsqd, spool) as process:
                before, more = len(bodies_of(spool)), chosen.randint(1, 5000)
                wait_for(lambda before=before, more=more: len(bodies_of(spool)) > before + more)
                process.kill()
        publisher.stop()
        drain(nsqd, spool, hub)

    report("receiver killed 3 times", numbered(publisher.count), bodies_of(spool))


def test_processes_of_a_query_killed_at_random(tmp_path, chosen):
    kinds = [*KINDS, chosen.choice(ENDS)]
    chosen.shuffle(kinds)
    with contextlib.ExitStack() as stack:
        nsqd = stack.enter_context(running("nsqd", *DURABLE))
        command = [sys.executable, "-m", "integration.query", str(tmp_path), nsqd.tcp_address, nsqd.http_address]
        query = Restarted(stack, command, tmp_path)
        publisher = Publisher(nsqd, size=5, pause=0.05)
        stack.callback(publisher.stop)

        def go_on(rows):
            target = len(written(tmp_path)) + rows
            query.wait(lambda: len(written(tmp_path)) >= target)

        for kind in kinds:
            go_on(chosen.randint(50, 300))
            print(f"killing {kind} behind {len(written(tmp_path))} rows", flush=True)
            if kind == "nsqd":
                restart(nsqd, "clicks", CHANNEL)
            else:
                query.kill(kind)
        go_on(50)
        query.kill("group")
        publisher.stop()
        published = numbered(publisher.count)

        # Without messages in flight, nsqd may be killed.
        wait_for(lambda: at_rest(nsqd), LIMIT)
        nsqd.kill()
        nsqd.start()
        query.wait(lambda: is_empty(nsqd, "clicks", CHANNEL) and set(written(tmp_path)) >= set(published))
        query.process.stdin.close()
        assert query.process.wait(60) == 0

    report(f"query, killed: {', '.join(kinds)}, group, nsqd", published, written(tmp_path))


def report(what, published, found):
    lost = set(published) - set(found)
    print(f"\n{what}: {len(published)} published, {len(lost)} lost, {len(found) - len(set(found))} twice", flush=True)
    assert set(found) == set(published)


def at_rest(nsqd):
    """Return whether nsqd has all messages on its disk."""
    with NsqdHTTPClient.from_url(nsqd.http_address) as client:
        [topic] = client.stats("clicks")["topics"]
    [channel] = topic["channels"]
    return not channel["clients"] and not channel["in_flight_count"] and not topic["depth"]
