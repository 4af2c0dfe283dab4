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
from integration.queries import DURABLE, Publisher, Restarted, kill, restart
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


def receivers_of(stack, path):
    """For each query two receivers, with the command lines that the job prints."""
    command = [sys.executable, "-m", "gnsq.spark.pipeline", "--config", str(path), "receivers"]
    for number, line in enumerate(run(*command).stdout.splitlines() * 2):
        folder = path.with_name(f"receiver{number}")
        folder.mkdir()
        yield Restarted(stack, [sys.executable, *shlex.split(line)[1:]], folder)


class Site:
    """Everything that runs, and the kills. Each thing that has ended is started again, as an operator's tools would."""

    def __init__(self, stack, folder, chosen):
        self.nsqd = stack.enter_context(running("nsqd", *DURABLE))
        self.spark = stack.enter_context(cluster(folder))
        path = folder / "job.toml"
        java = os.environ.get("SPARK_SUBMIT_OPTS", "")
        settings = SETTINGS.format(folder=folder, nsqd=self.nsqd, master=self.spark.url, java=java)
        path.write_text(settings + QUERIES)
        self.receivers = [*receivers_of(stack, path)]
        wait_for(lambda: channel_stats(self.nsqd, "clicks", "clicks"))
        self.job = Job(stack, path)
        self._chosen = chosen

    def start_again(self):
        self.spark.start_again()
        for receiver in self.receivers:
            receiver.start_again()

    def wait_for_rows(self, more):
        self.job.wait_for_rows(more, self.start_again)

    def kill(self, victim):
        """Kill one; return how many processes there were to choose from, or to kill."""
        if victim in ("driver", "job"):
            return self.job.kill({"driver": "jvm", "job": "group"}[victim])
        if victim == "nsqd":
            restart(self.nsqd, "clicks", "clicks")
        elif victim == "master":
            self.spark.master.kill()
        elif victim == "machine":
            worker = self._chosen.choice(self.spark.workers)
            below = descendants(worker.pid)
            worker.kill()
            kill(*below)
        else:
            pids = [each.process.pid for each in self.receivers]
            if victim == "executor":
                pids = [pid for each in self.spark.workers for pid in named(each.pid, "CoarseGrainedExecutorBackend")]
            kill(*self._chosen.sample(pids, min(1, len(pids))))
            return len(pids)
        return 1

    def stop_receivers(self):
        """Stop all in order; return their exit statuses."""
        for receiver in self.receivers:
            receiver.process.terminate()
        return [receiver.process.wait(30) for receiver in self.receivers]


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
        killed[victim] += bool(site.kill(victim))
        threading.Event().wait(chosen.uniform(0, 2))
        if chosen.random() < 0.7:
            site.wait_for_rows(chosen.randint(20, 200))
        else:
            # The next kill strikes before this one is overcome.
            site.start_again()
    publisher.stop()
    check_account(site.job, site.nsqd, publisher, f"killed {dict(killed)}", site.start_again)
    assert site.stop_receivers() == [0] * 2
