"""The pipeline's program with real nsqds and nsqlookupd runs, is killed and runs again: no message is lost."""

import contextlib
import itertools
import json
import os
import random
import re
import signal
import sys
from pathlib import Path

import pytest

from gnsq import LookupdClient, Producer
from integration.pipeline_job import LIMIT
from integration.servers import needs_programs, running
from tests.spark.helpers import channel_stats, is_empty, wait_for
from tests.spark.helpers import running as process
from tests.spark.pipeline.helpers import table_rows

pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    needs_programs,
]

QUERIES = ("clicks",)
LATE_HOUR = 8
COMMAND = [str(Path(sys.executable).with_name("gnsq-pipeline")), "--config"]
# msgTimeout: messages in flight of a killed run time out soon.
SETTINGS = """
output = "{folder}/out"
work = "{folder}/work"
lookupd_http_addresses = ["{lookupd}"]
deduplicate = 3600
trigger_interval = 0.2
max_rows_per_batch = 100
[tables.clicks]
schema = "id BIGINT, page STRING, time TIMESTAMP"
time = "time"
[metrics.pages]
table = "clicks"
keys = ["page"]
[nsq]
msgTimeout = 2
[spark]
"spark.master" = "local[2]"
"spark.sql.shuffle.partitions" = "1"
"""


class Cluster:
    """Two nsqds that register with one nsqlookupd."""

    def __init__(self, stack):
        self.lookupd = stack.enter_context(running("nsqlookupd"))
        flag = f"--lookupd-tcp-address={self.lookupd.tcp_address}"
        self.nsqds = [stack.enter_context(running("nsqd", flag)) for _ in range(2)]
        registry = LookupdClient.from_url(self.lookupd.http_address)
        wait_for(lambda: len(registry.nodes()["producers"]) == 2)
        registry.close()


class Events:
    """Publishes events and malformed bodies in random order, and counts the results that the job must have.

    Attributes:
        good, bad: How many of each were published.
        repeated: Of the good, those that are equal to one before.
    """

    def __init__(self, cluster, account):
        self.good = self.bad = self.repeated = 0
        self._cluster = cluster
        self._account = account
        self._ids = itertools.count(1)

    def publish(self, count, late=0):
        """Make events of an hour, with every 10th twice, and events of a much earlier time."""
        events, old = self._events(12, count), self._events(LATE_HOUR, late)
        again, bad = events[::10], [b"not json %d" % next(self._ids) for _ in range(count // 20)]
        bodies = [*events, *old, *again, *bad]
        random.Random(1).shuffle(bodies)
        with Producer(lookupd_http_addresses=self._cluster.lookupd.http_address) as producer:
            for body in bodies:
                self._account.publish(producer, "clicks", body)
        self.good += len(events) + len(old) + len(again)
        self.bad += len(bad)
        self.repeated += len(again)

    def _events(self, hour, count):
        times = [f"2025-01-15T{hour:02}:00:{number % 60:02}Z" for number in range(count)]
        return [json.dumps({"id": next(self._ids), "page": f"/{time[-2]}", "time": time}).encode() for time in times]


@pytest.fixture
def cluster():
    with contextlib.ExitStack() as stack:
        yield Cluster(stack)


@pytest.fixture
def config(cluster, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(SETTINGS.format(folder=tmp_path, lookupd=cluster.lookupd.http_address))
    return str(path)


def run_once(config):
    with process([*COMMAND, config, "--once"]) as running_job:
        output, _ = running_job.communicate(timeout=LIMIT)
    assert running_job.returncode == 0, output
    assert output.endswith("\ndrained\n")


def kill_in_its_middle(config, table):
    """Run once, and kill the job when it begins to write its second batch into the table."""

    def batches():
        return {path.name[:17] for path in table.rglob("part-*.parquet")}

    with process([*COMMAND, config, "--once"]) as running_job:
        wait_for(lambda: len(batches()) >= 2, LIMIT)
        os.killpg(running_job.pid, signal.SIGKILL)
        assert running_job.wait(30) == -signal.SIGKILL


def backlog(config):
    """Return the numbers of --status for each query: messages in its spool and at nsqd. No job may run."""
    with process([*COMMAND, config, "--status"]) as status:
        output, _ = status.communicate(timeout=LIMIT)
    assert status.returncode == 0
    assert output.startswith("job      not running\n")
    spooled, at_nsqd = (
        [int(found.replace(",", "")) for found in re.findall(pattern, output)]
        for pattern in (r"spool ([\d,]+) rows", r"nsqd ([\d,]+) messages waiting or in flight")
    )
    return {query: sum(numbers) for query, *numbers in zip(QUERIES, spooled, at_nsqd, strict=True)}


def test_job_that_is_killed_between_two_runs_accounts_for_everything(cluster, config, account, tmp_path):
    events = Events(cluster, account)
    archive, pages = tmp_path / "out" / "clicks", tmp_path / "out" / "pages"

    events.publish(500)
    kill_in_its_middle(config, archive)
    after_kill = backlog(config)
    events.publish(50, late=6)
    run_once(config)

    assert after_kill["clicks"]
    assert backlog(config) == dict.fromkeys(QUERIES, 0)
    assert all(channel_stats(nsqd, "clicks", "clicks")["message_count"] for nsqd in cluster.nsqds)
    assert all(is_empty(nsqd, "clicks", query) for nsqd in cluster.nsqds for query in QUERIES)

    archived, dead = table_rows(archive), table_rows(tmp_path / "out" / "clicks_dead")
    account.processed.update(row["_body"] for row in [*archived, *dead])
    assert (len(archived), len(dead)) == (events.good, events.bad)
    assert account.duplicated == events.repeated

    assert account.processed.keys() == account.confirmed == account.published

    # Also what is late.
    assert sum(row["count"] for row in table_rows(pages)) == events.good
