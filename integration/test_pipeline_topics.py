"""One job reads ten topics of real nsqds, with two metrics. One topic comes while it runs, one is deleted, one is
malformed, one is replayed, and the job is killed: the account of each topic is exact."""

import contextlib
import json
import random
from collections import Counter

import pyarrow.compute as pc
import pytest

from gnsq import LookupdClient, NsqdHTTPClient, Producer
from gnsq.spark.pipeline.layout import metrics_table, topics_with_tables, with_layout
from gnsq.spark.pipeline.windows import true_counts
from integration.pipeline_job import LIMIT, Job
from integration.servers import program, running
from tests.spark.helpers import wait_for
from tests.spark.pipeline.helpers import delta_table, table_rows

pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not (program("nsqd") and program("nsqlookupd")), reason="starts servers of its own"),
]

ROWS = 200
PARTS = [f"part.{letter}" for letter in "abcdef"]
MALFORMED, DELETED, LATE = "part.malformed", "part.a", "part.new"
TOPICS = ["clicks", "views", "frames", *PARTS, MALFORMED]
SETTINGS = """
output = "{folder}/out"
work = "{folder}/work"
lookupd_http_addresses = ["{lookupd}"]
deduplicate = 3600
keep_windows = 86400
max_rows_per_batch = 1000
required_fields = []
master = "local[2]"
[fields]
id = "long"
page = "string"
[topics.clicks]
[topics.views]
partition_by = "page"
[topics.frames]
raw = true
[topics."part[.].+"]
fields = {{ id = "int", time_of_day = "string" }}
time_field = "at"
[[metrics]]
name = "pages"
topic = "clicks"
[[metrics]]
name = "ids"
topic = "views"
keys = []
aggregates = ["max(id)"]
[nsq]
lookupdPollInterval = 0.5
msgTimeout = 2
"""


class Published:
    """Publishes to two nsqds, and keeps what was confirmed, by topic."""

    def __init__(self, nsqds, seed=1):
        self.bodies = {}
        self._nsqds = nsqds
        self._rng = random.Random(seed)

    def publish(self, topic, bodies):
        with Producer(self._rng.choice(self._nsqds).tcp_address) as producer:
            producer.multipublish(topic, bodies)
        self.bodies.setdefault(topic, Counter()).update(bodies)

    def events(self, topic, first=0):
        bodies = [event(topic, number) for number in range(first, first + ROWS)]
        for start in range(0, ROWS, 50):
            self.publish(topic, bodies[start : start + 50])
        return bodies


def event(topic, number):
    time = f"2026-01-01T10:{number % 60:02}:00Z"
    if topic == MALFORMED:
        return b"not json %d" % number
    fields = {"id": number, "page": f"/{number % 3}", "time": time, "at": time}
    return b"\xff%d" % number if topic == "frames" else json.dumps(fields).encode()


def found(config, topic):
    """Bodies in the tables of a topic."""
    rows = [row for name in ("archive", "dead") for row in table_rows(f"{config.output}/{topic}/{name}")]
    return Counter(row["body"].encode() if isinstance(row["body"], str) else row["body"] for row in rows)


def test_each_topic_is_accounted_for(tmp_path):
    with contextlib.ExitStack() as stack:
        lookupd = stack.enter_context(running("nsqlookupd"))
        flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        nsqds = [stack.enter_context(running("nsqd", flag, "--msg-timeout=2s")) for _ in range(2)]
        published = Published(nsqds)
        for topic in TOPICS:
            published.events(topic)
        registry = LookupdClient.from_url(lookupd.http_address)
        wait_for(lambda: set(TOPICS) <= set(registry.topics()["topics"]))
        path = tmp_path / "job.toml"
        path.write_text(SETTINGS.format(folder=tmp_path, lookupd=lookupd.http_address))
        job = Job(stack, path)

        wait_for(lambda: all(found(job.config, topic) == published.bodies[topic] for topic in TOPICS), LIMIT)
        for nsqd in nsqds:
            with contextlib.closing(NsqdHTTPClient.from_url(nsqd.http_address)) as client:
                if any(each["topic_name"] == DELETED for each in client.stats()["topics"]):
                    client.delete_topic(DELETED)
        published.events(LATE)
        # Replayed: the same events again; they are other messages.
        published.events("views")
        wait_for(lambda: found(job.config, LATE) == published.bodies[LATE], LIMIT)
        for topic in TOPICS:
            if topic != DELETED:
                published.events(topic, ROWS)
        job.kill("group")
        for topic in (LATE, "clicks", "frames"):
            published.events(topic, 2 * ROWS)
        job.drain()
    config = with_layout(job.config)
    print({topic: (bodies.total(), found(config, topic).total()) for topic, bodies in published.bodies.items()})
    assert {topic: found(config, topic) for topic in published.bodies} == published.bodies
    assert set(topics_with_tables(config)) == {*TOPICS, LATE}
    for query, metric in config.metric_queries.items():
        table = metrics_table(config, query)
        counts = true_counts(delta_table(table.location).to_pyarrow_table(), metric)
        archived = len(table_rows(f"{config.output}/{metric.topic}/archive"))
        assert table.status().entered == pc.sum(counts.column("count")).as_py() == archived
