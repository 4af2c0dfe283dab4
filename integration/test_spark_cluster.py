"""Receivers beside a standalone cluster, and a query there that reads their spool: one machine fails."""

import sys

import pytest

from integration.servers import needs_programs, running
from integration.spark_cluster import cluster
from tests.spark.helpers import channel_stats, is_empty, wait_for
from tests.spark.helpers import running as running_command
from tests.spark.queries import Publisher, descendants, kill, running_query, written

pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.timeout(300),
    needs_programs,
]


def test_a_machine_dies_and_nothing_is_lost(tmp_path):
    """A worker and a receiver are killed. The other receiver continues, and the query on half of the cores."""
    with running("nsqd", "--msg-timeout=3s") as nsqd, cluster(tmp_path) as spark:
        receiver = [sys.executable, "-m", "gnsq.spark.receiver", "--topic=clicks", "--channel=archive"]
        receiver += [f"--spool={tmp_path / 'spool'}", f"--nsqd-tcp-address={nsqd.tcp_address}"]
        command = [sys.executable, "-m", "tests.spark.query", spark.url, str(tmp_path), "external"]
        command += [nsqd.tcp_address, nsqd.http_address]
        with (
            running_command(receiver) as first,
            running_command(receiver),
            running_query(command, tmp_path / "query.log") as query,
        ):

            def clients():
                stats = channel_stats(nsqd, "clicks", "archive")
                return stats["clients"] if stats else []

            wait_for(lambda: len(clients()) == 2)
            publisher = Publisher(nsqd.tcp_address, pause=0.05)
            wait_for(lambda: len(written(tmp_path)) > 2000, limit=150)

            below = descendants(spark.workers[0].pid)
            spark.workers[0].kill()
            kill(*below)
            first.kill()

            before = len(written(tmp_path))
            wait_for(lambda: len(written(tmp_path)) > before + 5000, limit=60)
            bodies = publisher.stop()
            wait_for(lambda: is_empty(nsqd, "clicks", "archive") and set(written(tmp_path)) == set(bodies), limit=60)
            query.stdin.close()
            assert query.wait(60) == 0

    twice = len(written(tmp_path)) - len(bodies)
    print(f"one machine of two killed: {len(bodies)} published, 0 lost, {twice} twice")
