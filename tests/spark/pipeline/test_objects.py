"""Output on S3, in a real Spark: a batch's files are there once, whatever ran before."""

import io

import pyarrow.parquet as pq
import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.metrics import MetricsBatches
from gnsq.spark.pipeline.objects import ObjectFiles
from gnsq.spark.pipeline.preflight import check_places
from gnsq.spark.spool.storage import open_store
from gnsq.spark.uris import join_uri
from tests.spark.pipeline.helpers import config_for, event, messages, put_checkpoint
from tests.spark.pipeline.test_metrics import MINUTE, START


@pytest.fixture
def location(s3, tmp_path):
    return s3.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")


@pytest.fixture
def config(fakensqd, location, tmp_path):
    addresses = {"nsqd_tcp_addresses": (fakensqd.tcp_address,), "nsqd_http_addresses": (fakensqd.http_address,)}
    return config_for(tmp_path, output=location, **addresses)


@pytest.fixture
def archive(location):
    return open_store(join_uri(location, "archive"))


def names(store):
    """What is there; pyarrow leaves an empty object where a directory was."""
    return sorted(path for path, _ in store.list() if not path.endswith("/"))


def files(store):
    return [path for path in names(store) if not path.startswith("_")]


def rows(store):
    """All rows of the Parquet files that readers see."""
    found = []
    for path in files(store):
        with store.open(path) as file:
            found += pq.read_table(io.BytesIO(file.read())).to_pylist()
    return found


@pytest.mark.spark
def test_other_results_are_there_too(spark, config, location):
    batches = MetricsBatches(config)
    batches(messages(spark, config, [event(START), event(START + 20 * MINUTE)]), 0, "ours")
    batches(messages(spark, config, [event(START)]), 1, "ours")

    assert [row["event_time"] for row in rows(open_store(join_uri(location, "late")))] == [START]
    assert [row["count"] for row in rows(open_store(join_uri(location, "metrics")))] == [1, 1]


# --- without Spark


@pytest.mark.subprocess
def test_new_checkpoint_would_overwrite_the_files_of_an_older_one(config, location, tmp_path):
    check_places(config)
    open_store(join_uri(location, "late")).put("batch-000000000000-0.parquet", b"")

    with pytest.raises(JobFailed, match=r"checkpoint is new, but s3://\*\*\*@bucket/.*/late/batch-.* is there"):
        check_places(config)
    for query in ("archive", "metrics"):
        put_checkpoint(tmp_path / "work" / query / "checkpoint")
    check_places(config)


@pytest.mark.subprocess
def test_note_of_another_batch_counts_for_nothing(location, archive):
    archive.put("_batch.json", b'{"batch": 3, "files": ["a"]}')
    files = ObjectFiles(join_uri(location, "archive"))

    assert (files._noted(3), files._noted(4)) == ({"a"}, set())
