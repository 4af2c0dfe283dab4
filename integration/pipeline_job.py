"""The pipeline in tests that kill its processes: its events, the job, and the account at the end."""

import json
import sys
from collections import Counter

from gnsq.spark.offsets import decode_offset
from gnsq.spark.pipeline.settings import load_settings
from gnsq.spark.pipeline.snapshot import open_snapshot
from gnsq.spark.pipeline.status import read_status
from gnsq.spark.spool.spool import Spool
from integration.queries import Restarted
from tests.spark.helpers import is_empty
from tests.spark.pipeline.helpers import table_rows

# One table, and one metric of it: the events that event() makes.
QUERIES = """
[tables.clicks]
schema = "id BIGINT NOT NULL, page STRING, time TIMESTAMP"
time = "time"
partition_by = ["_hour"]
[metrics.pages]
table = "clicks"
keys = ["page"]
"""


def event(number):
    time = f"2026-01-01T{number % 3:02}:{number % 60:02}:00Z"
    return json.dumps({"id": number, "page": f"/{number % 5}", "time": time}).encode()


class Job(Restarted):
    """Runs the job of a file."""

    def __init__(self, stack, path):
        self.settings = load_settings(str(path))
        super().__init__(stack, [sys.executable, "-m", "gnsq.spark.pipeline", "--config", str(path)], path.parent)

    def wait_for_rows(self, more, meanwhile=lambda: None):
        """Wait for further rows in the table clicks. Call meanwhile again and again."""
        target = row_count(self.location("clicks")) + more
        self.wait(lambda: meanwhile() or row_count(self.location("clicks")) >= target)

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
        job.wait(is_settled)
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
