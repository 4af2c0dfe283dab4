"""The pipeline in tests that kill its processes: a publisher, the job, and the account at the end."""

import json
import sys
import threading
from collections import Counter

from gnsq import Producer
from gnsq.errors import NSQException
from gnsq.spark.offsets import decode_offset
from gnsq.spark.pipeline.settings import load_settings
from gnsq.spark.pipeline.snapshot import open_snapshot
from gnsq.spark.pipeline.status import read_status
from gnsq.spark.spool.spool import Spool
from integration.queries import kill, running_query
from tests.spark.helpers import descendants, is_empty, named, wait_for
from tests.spark.pipeline.helpers import table_rows

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
# One table, and one metric of it: the events of Publisher.
QUERIES = """
[tables.clicks]
schema = "id BIGINT NOT NULL, page STRING, time TIMESTAMP"
time = "time"
partition_by = ["_hour"]
[metrics.pages]
table = "clicks"
keys = ["page"]
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
        self.settings = load_settings(str(path))
        self._stack = stack
        self._path = path
        self.starts = 0
        self.start()

    def start(self):
        self.starts += 1
        command = [sys.executable, "-m", "gnsq.spark.pipeline", "--config", str(self._path)]
        log = self._path.with_name(f"job{self.starts}.log")
        self._process = self._stack.enter_context(running_query(command, log))

    def wait_for_rows(self, more, meanwhile=lambda: None):
        """Wait for further rows in the table clicks; start the job if it has ended. Call meanwhile again and again."""
        target = row_count(self.location("clicks")) + more
        self.wait(lambda: meanwhile() or row_count(self.location("clicks")) >= target)

    def wait(self, condition):
        """Wait until a condition holds; start the job if it has ended."""

        def holds():
            if self._process.poll() is not None:
                self.start()
            # Seldom: the job needs the processor.
            threading.Event().wait(0.5)
            return condition()

        wait_for(holds, LIMIT)

    def kill(self, victim):
        """Kill processes; return how many."""
        if victim == "group":
            pids = [*descendants(self._process.pid), self._process.pid]
        else:
            pids = named(self._process.pid, PROCESSES[victim])
        kill(*pids)
        return len(pids)

    def location(self, name):
        """Return where the table of a query or a metric is."""
        return self.settings.location_of(name)


def row_count(location):
    """The number of rows in a table, by its log; 0 if there is no table."""
    found = open_snapshot(location)
    return 0 if found is None else found.rows


def is_read(query):
    """Return whether Spark has committed batches with all that is in the spool of a query."""
    offset = read_status(query).offset
    segments = Spool(query.spool).listing().segments
    if offset is None:
        return False
    read = decode_offset(offset, query.read_options.source)
    return all(segment.number <= read.get(segment.receiver, 0) for segment in segments)


def check_account(job, nsqd, publisher, title, meanwhile=lambda: None):
    """Wait until all is read, print the account, and assert it: nothing is lost or counted wrongly; only what was
    published twice is twice. Call meanwhile again and again."""

    def counts():
        return sum(row["count"] for row in table_rows(job.location("pages")))

    def is_settled():
        meanwhile()
        is_archived = all(is_empty(nsqd, "clicks", query.channel) and is_read(query) for query in job.settings.queries)
        return is_archived and counts() == row_count(job.location("clicks"))

    try:
        # The limit of a wait is for each batch, since a slow machine may have many left.
        while not is_settled():
            rows = row_count(job.location("clicks"))
            job.wait(lambda rows=rows: is_settled() or row_count(job.location("clicks")) > rows)
    finally:
        # If that has failed, the account says what is missing.
        job.kill("group")
        archived = Counter(row["id"] for row in table_rows(job.location("clicks")))
        lost = set(range(publisher.count)) - archived.keys()
        twice = {number for number, times in archived.items() if times > 1}
        print(
            f"{title}: published {publisher.count}, archived {len(archived)}, lost {len(lost)}, twice {len(twice)} "
            f"(possibly published twice {len(publisher.repeated)}), rows {archived.total()}, counted {counts()}"
        )
    assert not lost, f"lost: {sorted(lost)}"
    assert twice <= publisher.repeated, f"twice: {sorted(twice - publisher.repeated)}"
    assert counts() == archived.total()
