"""One job with four queries and two metrics reads nine topics of real nsqds. One topic comes while it runs, one is
deleted, one is malformed, one is replayed; one query fails for a while, and the job is killed: the account of each
topic is exact."""

import contextlib
import json
import random
import re
from collections import Counter

import pytest

from gnsq import LookupdClient, NsqdHTTPClient, Producer
from gnsq.spark.pipeline.status import read_status
from integration.pipeline_job import Job, row_count
from integration.queries import LIMIT
from integration.servers import needs_programs, running
from tests.kit import run
from tests.spark.helpers import channel_stats, unusable, wait_for
from tests.spark.pipeline.helpers import table_rows

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    needs_programs,
]

ROWS = 200
PARTS = [f"part.{letter}" for letter in "abcd"]
MALFORMED, DELETED, LATE = "part.malformed", "part.a", "part.new"
TOPICS = ["clicks", "orders", "more-orders", "frames", *PARTS, MALFORMED]
SETTINGS = """
output = "{folder}/out"
work = "{folder}/work"
lookupd_http_addresses = ["{lookupd}"]
deduplicate = 3600
trigger_interval = 0.2
max_rows_per_batch = 1000
count_every = 5
[tables.clicks]
schema = "id BIGINT, page STRING, time TIMESTAMP"
time = "time"
[tables.orders]
topics = ["orders", "more-orders"]
schema = "id BIGINT, page STRING"
partition_by = ["page"]
[tables.frames]
format = "raw"
[tables.parts]
topic_pattern = "part[.].+"
schema = "id INT, at TIMESTAMP"
time = "at"
[metrics.pages]
table = "clicks"
keys = ["page"]
aggregates = ["count(*)", "max(id)"]
[metrics.by_topic]
table = "parts"
keys = ["_topic"]
[nsq]
lookupdPollInterval = 0.5
msgTimeout = 2
[spark]
"spark.master" = "local[2]"
"""
METRICS = {"pages": "clicks", "by_topic": "parts"}
TABLES = ("clicks", "orders", "frames", "parts")


class Published:
    """Publishes to two nsqds, and keeps what was confirmed, by topic."""

    def __init__(self, nsqds, seed=1):
        self.bodies = {}
        self._nsqds = nsqds
        self._rng = random.Random(seed)

    def publish(self, topic, bodies):
        nsqd = self._nsqds[0] if topic == LATE else self._rng.choice(self._nsqds)
        with Producer(nsqd.tcp_address) as producer:
            producer.multipublish(topic, bodies)
        self.bodies.setdefault(topic, Counter()).update(bodies)

    def events(self, *topics, first=0):
        for topic in topics:
            bodies = [event(topic, number) for number in range(first, first + ROWS)]
            for start in range(0, ROWS, 50):
                self.publish(topic, bodies[start : start + 50])


def event(topic, number):
    time = f"2026-01-01T10:{number % 60:02}:00Z"
    if topic == MALFORMED:
        return b"not json %d" % number
    fields = {"id": number, "page": f"/{number % 3}", "time": time, "at": time}
    return b"\xff%d" % number if topic == "frames" else json.dumps(fields).encode()


def found(job, *names):
    """Bodies in the tables of these queries, by topic."""
    bodies = {}
    for query in job.settings.queries:
        for location in (query.location, query.dead_location) if query.name in names else ():
            for row in table_rows(location) if location else ():
                bodies.setdefault(row["_topic"], Counter())[row["_body"]] += 1
    return bodies


def is_counted(job, metric, table):
    """Whether a metric has counted all rows of its table."""
    return sum(row["count"] for row in table_rows(job.location(metric))) == row_count(job.location(table))


def backlog(job):
    """The messages in all spools and at nsqd, by --status. No job may run."""
    shown = run(*job.command, "--status", limit=LIMIT).stdout
    assert shown.startswith("job      not running\n")
    found = re.findall(r"spool ([\d,]+) rows|nsqd ([\d,]+) messages waiting or in flight", shown)
    assert len(found) == 2 * len(TABLES)
    return sum(int("".join(each).replace(",", "")) for each in found)


def test_each_topic_is_accounted_for(tmp_path):
    with contextlib.ExitStack() as stack:
        lookupd = stack.enter_context(running("nsqlookupd"))
        flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        nsqds = [stack.enter_context(running("nsqd", flag, "--msg-timeout=2s")) for _ in range(2)]
        published = Published(nsqds)
        published.events(*TOPICS)
        registry = LookupdClient.from_url(lookupd.http_address)
        wait_for(lambda: set(TOPICS) <= set(registry.topics()["topics"]))
        path = tmp_path / "job.toml"
        path.write_text(SETTINGS.format(folder=tmp_path, lookupd=lookupd.http_address))
        job = Job(stack, path)

        def is_settled():
            is_archived = found(job, *TABLES) == published.bodies
            return is_archived and all(is_counted(job, *each) for each in METRICS.items())

        job.wait(is_settled)
        for nsqd in nsqds:
            with contextlib.closing(NsqdHTTPClient.from_url(nsqd.http_address)) as client:
                if any(each["topic_name"] == DELETED for each in client.stats()["topics"]):
                    client.delete_topic(DELETED)

        with contextlib.closing(NsqdHTTPClient.from_url(nsqds[0].http_address)) as client:
            client.create_topic(LATE)
        wait_for(lambda: channel_stats(nsqds[0], LATE, "parts"), LIMIT)

        # A query that fails harms no other one, and starts again alone.
        orders = next(query for query in job.settings.queries if query.name == "orders")
        with unusable(tmp_path / "out" / "orders"):
            published.events(*(topic for topic in TOPICS if topic != DELETED), LATE, first=ROWS)
            # Replayed: the same events again; they are other messages.
            published.events("clicks")
            others = {name: bodies for name, bodies in published.bodies.items() if name not in orders.events.topics}
            job.wait(lambda: found(job, "clicks", "frames", "parts") == others)
            job.wait(lambda: read_status(orders).failure)
        job.wait(is_settled)
        assert job.starts == 1

        # A run with --once reads what a killed one has left, and what came after it.
        rows = row_count(job.location("clicks"))
        published.events(LATE, "clicks", "frames", first=2 * ROWS)
        job.wait(lambda: row_count(job.location("clicks")) > rows)
        job.kill("group")
        published.events("clicks", first=3 * ROWS)
        assert backlog(job) >= ROWS
        done = run(*job.command, "--once", limit=LIMIT)
        assert (done.returncode, done.stdout.endswith("\ndrained\n")) == (0, True), done.stderr
        assert is_settled()
        assert backlog(job) == 0
    print({topic: bodies.total() for topic, bodies in published.bodies.items()})
