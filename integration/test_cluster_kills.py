"""The pipeline on a standalone cluster, with external receivers: its processes, machines and nsqd are killed at
random, and each event is in the archive once, and counted once.

CLUSTER_KILLS_SECONDS is how long processes are killed, 5 unless said otherwise; CLUSTER_KILLS_SEED repeats an order.
"""

import contextlib
import itertools
import os
import random
import sys
import threading
import time
from collections import Counter

import pytest

from integration.pipeline_job import DURABLE, Job, Publisher, check_account
from integration.servers import program, running
from integration.spark_cluster import cluster
from tests.spark.helpers import channel_stats, is_empty
from tests.spark.queries import descendants, kill, named, running_query

SECONDS = float(os.environ.get("CLUSTER_KILLS_SECONDS", "5"))

pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.timeout(600 + SECONDS * 2),
    pytest.mark.skipif(program("nsqd") is None, reason="no nsqd on PATH, none named in NSQD"),
]

CHANNELS = ("archive", "metrics")
VICTIMS = ("receiver", "executor", "machine", "master", "driver", "job", "nsqd")
SETTINGS = """
topic = "clicks"
output = "{folder}/out"
work = "{folder}/work"
nsqd_tcp_addresses = ["{nsqd.tcp_address}"]
nsqd_http_addresses = ["{nsqd.http_address}"]
receivers = "external"
deduplicate = 3600
keep_windows = 86400
maintain_every = 5
max_rows_per_batch = 2000
master = "{master}"
[fields]
id = "long"
page = "string"
[spark]
"spark.driver.host" = "127.0.0.1"
"spark.driver.memory" = "512m"
"spark.executor.memory" = "512m"
"spark.executor.cores" = "1"
"spark.cores.max" = "2"
"spark.sql.shuffle.partitions" = "2"
"spark.executor.extraJavaOptions" = "{java}"
"""


class Receivers:
    """For each channel two receivers."""

    def __init__(self, stack, folder, nsqd):
        self._stack = stack
        self._folder = folder
        self._nsqd = nsqd
        self._processes = {}
        self._starts = 0
        self.start_again()

    def start_again(self):
        """Start the receivers that have ended."""
        for channel, number in itertools.product(CHANNELS, (1, 2)):
            process = self._processes.get((channel, number))
            if process is None or process.poll() is not None:
                self._starts += 1
                command = [sys.executable, "-m", "gnsq.spark.receiver", "--topic=clicks"]
                command += [f"--channel={channel}", f"--spool={self._folder}/work/{channel}/spool"]
                command += [f"--nsqd-tcp-address={self._nsqd.tcp_address}"]
                log = self._folder / f"receivers{self._starts}.log"
                self._processes[channel, number] = self._stack.enter_context(running_query(command, log))

    def pids(self):
        return [process.pid for process in self._processes.values()]

    def stop(self):
        """Stop all in order; return their exit statuses."""
        for process in self._processes.values():
            process.terminate()
        return [process.wait(30) for process in self._processes.values()]


class Site:
    """Everything that runs, and the kills. Each thing that has ended is started again, as an operator's tools would."""

    def __init__(self, stack, folder, chosen):
        self.nsqd = stack.enter_context(running("nsqd", *DURABLE))
        self.spark = stack.enter_context(cluster(folder))
        path = folder / "job.toml"
        java = os.environ.get("SPARK_SUBMIT_OPTS", "")
        path.write_text(SETTINGS.format(folder=folder, nsqd=self.nsqd, master=self.spark.url, java=java))
        self.receivers = Receivers(stack, folder, self.nsqd)
        self.job = Job(stack, path)
        self._chosen = chosen

    def start_again(self):
        self.spark.start_again()
        self.receivers.start_again()

    def wait_for_rows(self, more):
        self.job.wait_for_rows(more, self.start_again)

    def kill(self, victim):
        """Kill one; return False if there was none."""
        if victim == "nsqd":
            # With SIGTERM: a message in flight is only in the memory of nsqd.
            self.nsqd.stop()
            self.nsqd.start()
            return True
        if victim == "master":
            self.spark.master.kill()
            return True
        if victim == "machine":
            worker = self._chosen.choice(self.spark.workers)
            below = descendants(worker.pid)
            worker.kill()
            kill(*below)
            return True
        if victim in ("driver", "job"):
            return bool(self.job.kill({"driver": "jvm", "job": "group"}[victim]))
        if victim == "executor":
            pids = [pid for each in self.spark.workers for pid in named(each.pid, "CoarseGrainedExecutorBackend")]
        else:
            pids = self.receivers.pids()
        if pids:
            kill(self._chosen.choice(pids))
        return bool(pids)


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def victims(chosen):
    """Victims in random order, for ever: each comes once before any comes again."""
    while True:
        yield from chosen.sample(VICTIMS, len(VICTIMS))


def test_kills_on_a_cluster_lose_and_double_no_event(stack, tmp_path):
    seed = int(os.environ.get("CLUSTER_KILLS_SEED") or random.randrange(10**6))
    print(f"CLUSTER_KILLS_SEED={seed}")
    chosen = random.Random(seed)
    site = Site(stack, tmp_path, chosen)
    publisher = Publisher(site.nsqd)
    stack.callback(publisher.stop)
    site.wait_for_rows(50)
    killed = Counter()
    end = time.monotonic() + SECONDS
    for victim in victims(chosen):
        if time.monotonic() > end:
            break
        print(f"{end - time.monotonic():.0f} s left: killing {victim}", flush=True)
        killed[victim] += site.kill(victim)
        threading.Event().wait(chosen.uniform(0, 2))
        if chosen.random() < 0.7:
            site.wait_for_rows(chosen.randint(20, 200))
        else:
            # The next kill strikes before this one is overcome.
            site.start_again()
    publisher.stop()
    site.start_again()
    site.job.drain()

    assert all(is_empty(site.nsqd, "clicks", channel) for channel in CHANNELS)
    assert site.receivers.stop() == [0] * 4
    requeued = {channel: channel_stats(site.nsqd, "clicks", channel)["requeue_count"] for channel in CHANNELS}
    check_account(site.job, publisher, f"killed {dict(killed)}, requeued since nsqd's start {requeued}")
