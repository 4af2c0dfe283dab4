"""The pipeline on a standalone cluster, with external receivers: its processes, machines and nsqd are killed at
random, and each event is in the archive once, and counted once.

CLUSTER_KILLS_SECONDS is how long processes are killed, 5 unless said otherwise.
"""

import contextlib
import os
import shlex
import sys
import threading
import time
from collections import Counter

import pytest

from integration.pipeline_job import QUERIES, Job, check_account, event
from integration.queries import DURABLE, Publisher, kill, restart, running_query
from integration.servers import needs_programs, running
from integration.spark_cluster import cluster
from tests.kit import run
from tests.spark.helpers import channel_stats, descendants, named, wait_for

SECONDS = float(os.environ.get("CLUSTER_KILLS_SECONDS", "5"))

pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.timeout(600 + SECONDS * 2),
    needs_programs,
]

VICTIMS = ("receiver", "executor", "machine", "master", "driver", "job", "nsqd")
SETTINGS = """
output = "{folder}/out"
work = "{folder}/work"
nsqd_tcp_addresses = ["{nsqd.tcp_address}"]
nsqd_http_addresses = ["{nsqd.http_address}"]
receivers = "external"
deduplicate = 3600
trigger_interval = 0.2
maintain_every = 5
count_every = 1
max_rows_per_batch = 2000
[spark]
"spark.master" = "{master}"
"spark.driver.host" = "127.0.0.1"
"spark.driver.memory" = "512m"
"spark.executor.memory" = "512m"
"spark.executor.cores" = "1"
"spark.cores.max" = "2"
"spark.sql.shuffle.partitions" = "2"
"spark.executor.extraJavaOptions" = {java!r}
"""


class Receivers:
    """For each query two receivers, with the command lines that the job prints."""

    def __init__(self, stack, path):
        self._stack = stack
        self._folder = path.parent
        command = [sys.executable, "-m", "gnsq.spark.pipeline", "--config", str(path), "receivers"]
        lines = run(*command).stdout.splitlines()
        self._commands = [[sys.executable, *shlex.split(line)[1:]] for line in lines] * 2
        self._processes = [None] * len(self._commands)
        self._starts = 0
        self.start_again()

    def start_again(self):
        """Start the receivers that have ended."""
        for number, process in enumerate(self._processes):
            if process is None or process.poll() is not None:
                self._starts += 1
                log = self._folder / f"receiver{self._starts}.log"
                self._processes[number] = self._stack.enter_context(running_query(self._commands[number], log))

    def pids(self):
        return [process.pid for process in self._processes]

    def stop(self):
        """Stop all in order; return their exit statuses."""
        for process in self._processes:
            process.terminate()
        return [process.wait(30) for process in self._processes]


class Site:
    """Everything that runs, and the kills. Each thing that has ended is started again, as an operator's tools would."""

    def __init__(self, stack, folder, chosen):
        self.nsqd = stack.enter_context(running("nsqd", *DURABLE))
        self.spark = stack.enter_context(cluster(folder))
        path = folder / "job.toml"
        java = os.environ.get("SPARK_SUBMIT_OPTS", "")
        settings = SETTINGS.format(folder=folder, nsqd=self.nsqd, master=self.spark.url, java=java)
        path.write_text(settings + QUERIES)
        self.receivers = Receivers(stack, path)
        wait_for(lambda: channel_stats(self.nsqd, "clicks", "clicks"))
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
            restart(self.nsqd, "clicks", "clicks")
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


def test_kills_on_a_cluster_lose_and_double_no_event(stack, tmp_path, chosen):
    site = Site(stack, tmp_path, chosen)
    publisher = Publisher(site.nsqd, event)
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
    check_account(site.job, site.nsqd, publisher, f"killed {dict(killed)}", site.start_again)
    assert site.receivers.stop() == [0] * 2
