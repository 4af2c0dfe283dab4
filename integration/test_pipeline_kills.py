"""The pipeline's processes and nsqd are killed at random, with tables on S3: each event is in the archive once, and
counted once.

PIPELINE_KILLS is the number of kills, 2 unless said otherwise; if it is given, tables on a local disk follow, which
test_cluster_kills.py has in any case. Maintenance runs after each batch, so that a kill may strike it.
"""

import contextlib
import os
import threading
from collections import Counter

import pytest
from pyarrow import fs

from integration.pipeline_job import QUERIES, Job, check_account, event
from integration.queries import DURABLE, PROCESSES, Publisher, restart
from integration.servers import needs_programs, running
from tests.spark.helpers import wait_for
from tests.spark.s3server import s3_server

KILLS = int(os.environ.get("PIPELINE_KILLS", "2"))
OUTPUTS = ["s3", "local"] if "PIPELINE_KILLS" in os.environ else ["s3"]

pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.timeout(300 + 120 * KILLS),
    needs_programs,
]

VICTIMS = (*PROCESSES, "group", "nsqd")
SETTINGS = """
output = "{output}"
work = "{work}"
nsqd_tcp_addresses = ["{nsqd.tcp_address}"]
nsqd_http_addresses = ["{nsqd.http_address}"]
deduplicate = 3600
trigger_interval = 0.2
maintain_every = 1
count_every = 1
max_rows_per_batch = 1000
[spark]
"spark.master" = "local[2,4]"
"""


@pytest.fixture(params=OUTPUTS)
def output(request, tmp_path):
    if request.param == "local":
        yield tmp_path / "out"
    else:
        with s3_server() as server:
            output = server.location("bucket/out", "KEY:SECRET@")
            store, _ = fs.FileSystem.from_uri(f"{output}&allow_bucket_creation=true")
            store.create_dir("bucket")
            yield output


def test_kills_at_random_lose_and_double_no_event(output, tmp_path, chosen):
    with contextlib.ExitStack() as stack:
        nsqd = stack.enter_context(running("nsqd", *DURABLE))
        path = tmp_path / "job.toml"
        path.write_text(SETTINGS.format(output=output, work=tmp_path / "work", nsqd=nsqd) + QUERIES)
        publisher = Publisher(nsqd, event)
        wait_for(lambda: publisher.count)
        job = Job(stack, path)
        stack.callback(publisher.stop)
        victims = Counter()
        for _ in range(KILLS):
            job.wait_for_rows(chosen.randint(50, 300))
            threading.Event().wait(chosen.uniform(0, 2))
            victim = chosen.choice(VICTIMS)
            if victim == "nsqd":
                restart(nsqd, "clicks", "clicks")
                victims[victim] += 1
            else:
                victims[victim] += bool(job.kill(victim))
        publisher.stop()
        check_account(job, nsqd, publisher, f"killed {dict(victims)}")
