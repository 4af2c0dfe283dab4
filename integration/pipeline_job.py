"""The pipeline in tests that kill its processes: a publisher, the job, and the account at the end."""

import json
import sys
import threading
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from gnsq import Producer
from gnsq.errors import NSQException
from gnsq.spark.pipeline.layout import archive_tables, metrics_table
from gnsq.spark.pipeline.loading import load_config
from gnsq.spark.pipeline.windows import true_counts
from tests.spark.helpers import wait_for
from tests.spark.pipeline.helpers import delta_table, table_rows
from tests.spark.queries import descendants, kill, named, running_query

LIMIT = 150
# Options of an nsqd that writes each message to the disk before it confirms it.
DURABLE = ("--mem-queue-size=0", "--sync-every=1", "--msg-timeout=3s")
# Of each process of the job, a part of its command line.
PROCESSES = {
    "worker": "pyspark.daemon",
    "source": "python_streaming_source_runner",
    "jvm": "pyspark-shell",
    "maintenance": "gnsq.spark.pipeline.maintenance",
}


class Publisher:
    """A thread that publishes events until stop(); each is published again until nsqd has confirmed it.

    Attributes:
        count: Events that are confirmed; their ids are the numbers below it.
        repeated: Ids that were published more than once, and so may be there more than once.
    """

    def __init__(self, nsqd):
        self.count = 0
        self.repeated = set()
        self._nsqd = nsqd
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self):
        self._stop.set()
        self._thread.join(60)

    def _run(self):
        with Producer(self._nsqd.tcp_address, reconnect_initial=0.1, reconnect_maximum=0.5) as producer:
            while not self._stop.wait(0.1):
                ids = range(self.count, self.count + 10)
                try:
                    producer.multipublish("clicks", [event(number) for number in ids])
                    self.count += len(ids)
                except NSQException:
                    self.repeated.update(ids)


def event(number):
    time = f"2026-01-01T{number % 3:02}:{number % 60:02}:00Z"
    return json.dumps({"id": number, "page": f"/{number % 5}", "time": time}).encode()


class Job:
    """Runs the job, and starts it again when it has ended."""

    def __init__(self, stack, path):
        self.config = load_config(str(path), {})
        self._stack = stack
        self._path = path
        self._starts = 0
        self.start()

    def start(self, *options):
        self._starts += 1
        command = [sys.executable, "-m", "gnsq.spark.pipeline", "--config", str(self._path), *options]
        log = self._path.with_name(f"job{self._starts}.log")
        self._process = self._stack.enter_context(running_query(command, log))

    def wait_for_rows(self, more, meanwhile=lambda: None):
        """Wait for further rows in the archive; start the job if it has ended. Call meanwhile again and again."""
        target = self._rows() + more
        wait_for(lambda: meanwhile() or self._rows() >= target, LIMIT)

    def kill(self, victim):
        """Kill processes; return how many."""
        if victim == "group":
            pids = [*descendants(self._process.pid), self._process.pid]
        else:
            pids = named(self._process.pid, PROCESSES[victim])
        kill(*pids)
        return len(pids)

    def drain(self):
        self.kill("group")
        # After many kills more waits than small batches could take within the limit.
        self.start("--once", "--max-rows-per-batch=20000")
        assert self._process.wait(LIMIT) == 0

    def _rows(self):
        if self._process.poll() is not None:
            self.start()
        # Seldom: the job needs the processor.
        threading.Event().wait(0.5)
        table = archive_tables(self.config, "clicks")[0]
        return (
            sum(pa.table(delta_table(table.location).get_add_actions())["num_records"].to_pylist())
            if table.exists()
            else 0
        )


def check_account(job, publisher, title):
    """Print the account, and assert it: nothing is lost or counted wrongly; only what was published twice is twice."""
    archived = Counter(row["id"] for row in table_rows(archive_tables(job.config, "clicks")[0].location))
    lost = set(range(publisher.count)) - archived.keys()
    twice = {number for number, times in archived.items() if times > 1}
    metrics = metrics_table(job.config, "metrics")
    counts = true_counts(delta_table(metrics.location).to_pyarrow_table(), job.config.metric_queries["metrics"])
    entered, counted = metrics.status().entered, pc.sum(counts.column("count")).as_py()
    print(
        f"{title}: published {publisher.count}, archived {len(archived)}, lost {len(lost)}, twice {len(twice)} "
        f"(possibly published twice {len(publisher.repeated)}), rows {archived.total()}, entered {entered}, "
        f"counted {counted}"
    )
    assert lost == set()
    assert twice <= publisher.repeated
    assert entered == counted == archived.total()
