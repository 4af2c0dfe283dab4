"""The pipeline's processes and nsqd are killed at random, with tables on a local disk and on S3: each event is in the
archive once, and counted once.

PIPELINE_KILLS is the number of kills, 2 unless said otherwise; PIPELINE_KILLS_SEED repeats an order. Maintenance runs
after each batch, so that a kill may strike it.
"""

import contextlib
import json
import os
import random
import sys
import threading
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import fs

from gnsq import Producer
from gnsq.errors import NSQException
from gnsq.spark.pipeline.layout import archive_tables, metrics_table
from gnsq.spark.pipeline.loading import load_config
from gnsq.spark.pipeline.windows import true_counts
from integration.servers import program, running
from tests.spark.helpers import is_empty, wait_for
from tests.spark.pipeline.helpers import delta_table, table_rows
from tests.spark.queries import descendants, kill, named, running_query
from tests.spark.s3server import s3_server

KILLS = int(os.environ.get("PIPELINE_KILLS", "2"))
LIMIT = 150

pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.timeout(300 + 60 * KILLS),
    pytest.mark.skipif(program("nsqd") is None, reason="no nsqd on PATH, none named in NSQD"),
]

# Of each process of the job, a part of its command line.
PROCESSES = {
    "worker": "pyspark.daemon",
    "source": "python_streaming_source_runner",
    "jvm": "pyspark-shell",
    "maintenance": "gnsq.spark.pipeline.maintenance",
}
VICTIMS = (*PROCESSES, "group", "nsqd")
# nsqd writes each message to the disk before it confirms it.
DURABLE = ("--mem-queue-size=0", "--sync-every=1", "--msg-timeout=3s")
SETTINGS = """
topic = "clicks"
output = "{output}"
work = "{work}"
nsqd_tcp_addresses = ["{nsqd.tcp_address}"]
nsqd_http_addresses = ["{nsqd.http_address}"]
partition_by = "hour"
deduplicate = 3600
keep_windows = 86400
maintain_every = 1
max_rows_per_batch = 500
master = "local[2,4]"
[fields]
id = "long"
page = "string"
"""


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

    def wait_for_rows(self, more):
        """Wait for further rows in the archive; start the job if it has ended."""
        target = self._rows() + more
        wait_for(lambda: self._rows() >= target, LIMIT)

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


@pytest.fixture(params=["local", "s3"])
def output(request, tmp_path):
    if request.param == "local":
        yield tmp_path / "out"
    else:
        with s3_server() as server:
            output = server.location("bucket/out", "KEY:SECRET@")
            store, _ = fs.FileSystem.from_uri(f"{output}&allow_bucket_creation=true")
            store.create_dir("bucket")
            yield output


def test_kills_at_random_lose_and_double_no_event(output, tmp_path):
    seed = int(os.environ.get("PIPELINE_KILLS_SEED") or random.randrange(10**6))
    print(f"PIPELINE_KILLS_SEED={seed}")
    chosen = random.Random(seed)
    with contextlib.ExitStack() as stack:
        nsqd = stack.enter_context(running("nsqd", *DURABLE))
        path = tmp_path / "job.toml"
        path.write_text(SETTINGS.format(output=output, work=tmp_path / "work", nsqd=nsqd))
        publisher = Publisher(nsqd)
        wait_for(lambda: publisher.count)
        job = Job(stack, path)
        stack.callback(publisher.stop)
        victims = Counter()
        for _ in range(KILLS):
            job.wait_for_rows(chosen.randint(50, 300))
            threading.Event().wait(chosen.uniform(0, 2))
            victim = chosen.choice(VICTIMS)
            if victim == "nsqd":
                # With SIGTERM: a message in flight is only in the memory of nsqd.
                nsqd.stop()
                nsqd.start()
                victims[victim] += 1
            else:
                victims[victim] += bool(job.kill(victim))
        publisher.stop()
        job.drain()

        assert all(is_empty(nsqd, "clicks", channel) for channel in ("archive", "metrics"))
    archived = Counter(row["id"] for row in table_rows(archive_tables(job.config, "clicks")[0].location))
    twice = sum(archived.values()) - len(archived)
    print(f"killed {dict(victims)}, published {publisher.count}, archived {len(archived)}, twice {twice}")
    assert archived.keys() >= set(range(publisher.count))
    assert {number for number, times in archived.items() if times > 1} <= publisher.repeated
    metrics = metrics_table(job.config, "metrics")
    counts = true_counts(delta_table(metrics.location).to_pyarrow_table(), job.config.metric_queries["metrics"])
    assert metrics.status().entered == pc.sum(counts.column("count")).as_py() == sum(archived.values())
