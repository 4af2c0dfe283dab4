"""Output on S3, in a real Spark: a batch's files are there once, whatever ran before."""

import io
import json

import pyarrow.parquet as pq
import pytest

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline import objects
from gnsq.spark.pipeline.archive import ArchiveBatches
from gnsq.spark.pipeline.joblock import OutputClaim, job_id
from gnsq.spark.pipeline.metrics import MetricsBatches
from gnsq.spark.pipeline.objects import ObjectFiles
from gnsq.spark.pipeline.preflight import check_places
from gnsq.spark.spool.storage import RemoteStore, open_store
from gnsq.spark.uris import join_uri
from tests.spark.pipeline.helpers import config_for, event, messages, put_checkpoint
from tests.spark.pipeline.test_archive import BODIES
from tests.spark.pipeline.test_metrics import MINUTE, START

FILE = "hour=2026-01-01T{:02}/batch-{:012d}-{}.parquet"


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
def test_batch_is_in_files_by_hour_that_any_reader_knows(spark, config, archive):
    ArchiveBatches(config)(messages(spark, config, BODIES).coalesce(1), 7)

    assert names(archive) == ["_batch.json", FILE.format(10, 7, 0), FILE.format(11, 7, 0)]
    assert sorted(row["body"] for row in rows(archive)) == [body.decode() for body in sorted(BODIES[:3])]
    assert "hour" not in rows(archive)[0]
    assert str(rows(archive)[0]["event_time"].tzinfo) == "UTC"


@pytest.mark.spark
def test_batch_that_runs_again_overwrites_itself(spark, config, archive):
    for batch_id, frame in (
        (7, messages(spark, config, BODIES).repartition(5)),
        (7, messages(spark, config, BODIES).coalesce(1)),
        (8, messages(spark, config, BODIES[:1])),
    ):
        # As after a restart.
        ArchiveBatches(config)(frame, batch_id)

    assert len(rows(archive)) == 4


# note, file, file, and clear
@pytest.mark.spark
@pytest.mark.parametrize("request_number", range(4))
def test_kill_before_any_request_leaves_what_the_next_run_makes_right(
    spark, config, archive, monkeypatch, request_number
):
    ArchiveBatches(config)(messages(spark, config, BODIES[:1]), 6)
    # The hours are other ones when it runs again, as with another time_field.
    ArchiveBatches(config)(messages(spark, config, [event(START - 60 * MINUTE), event(START)]), 7)
    left = [request_number]

    def dying(request):
        def call(*arguments):
            if not left[0]:
                raise OSError("as if killed")
            left[0] -= 1
            return request(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(objects, "_PUTS", 1)
        for name in ("put", "remove"):
            patch.setattr(RemoteStore, name, dying(getattr(RemoteStore, name)))
        with pytest.raises(OSError, match="killed"):
            ArchiveBatches(config)(messages(spark, config, BODIES), 7)

    ArchiveBatches(config)(messages(spark, config, [event(START + 180 * MINUTE)]), 7)

    assert files(archive) == [FILE.format(10, 6, 0), FILE.format(13, 7, 0)]


@pytest.mark.spark
def test_other_results_are_there_too(spark, config, location):
    batches = MetricsBatches(config)
    batches(messages(spark, config, [event(START), event(START + 20 * MINUTE)]), 0)
    batches(messages(spark, config, [event(START)]), 1)
    ArchiveBatches(config)(messages(spark, config, [b"x" * 1_000_000]), 0)

    assert [row["event_time"] for row in rows(open_store(join_uri(location, "late")))] == [START]
    assert [row["count"] for row in rows(open_store(join_uri(location, "metrics")))] == [1, 1]
    assert [len(row["body"]) for row in rows(open_store(join_uri(location, "dead")))] == [1_000_000]
    assert files(open_store(join_uri(location, "archive"))) == []


# --- without Spark


@pytest.mark.subprocess
def test_output_is_claimed_for_one_job(location, tmp_path):
    ours = {"topic": "clicks", "work": "/w", "id": "a"}
    first = OutputClaim(location, ours)
    OutputClaim(location, ours)
    first.check()

    with pytest.raises(JobFailed, match=r'output s3://\*\*\*@bucket.* belongs to another job .*"id": "a".*delete') as e:
        OutputClaim(location, {**ours, "id": "b"})
    assert "SECRET" not in str(e.value)
    # As one that claims at the same moment.
    open_store(location).put("owner.json", json.dumps({**ours, "id": "b"}).encode())
    with pytest.raises(JobFailed, match="belongs to another job"):
        first.check()


def test_job_is_known_by_its_work_directory(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    assert job_id(tmp_path / "a") == job_id(tmp_path / "a") != job_id(tmp_path / "b")


@pytest.mark.parametrize(
    "place", ["s3://bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1", "abfs://nothing"]
)
@pytest.mark.slow
def test_store_that_can_not_be_used_is_told(place):
    with pytest.raises(JobFailed, match=r"^setting output [^?]* can't be .*give a place that can be$"):
        OutputClaim(place, {})


@pytest.mark.subprocess
def test_new_checkpoint_would_overwrite_the_files_of_an_older_one(config, archive, tmp_path):
    check_places(config)
    archive.put(FILE.format(8, 0, 0), b"")

    with pytest.raises(JobFailed, match=r"checkpoint is new, but s3://\*\*\*@bucket/.*/archive/hour=.* is there"):
        check_places(config)
    for query in ("archive", "metrics"):
        put_checkpoint(tmp_path / "work" / query / "checkpoint")
    check_places(config)


@pytest.mark.subprocess
def test_note_of_another_batch_counts_for_nothing(location, archive):
    archive.put("_batch.json", b'{"batch": 3, "files": ["a"]}')
    files = ObjectFiles(join_uri(location, "archive"))

    assert (files._noted(3), files._noted(4)) == ({"a"}, set())
